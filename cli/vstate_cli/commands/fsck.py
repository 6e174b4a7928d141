"""`vstate fsck`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from vstate.errors import StorageError
from vstate_cli import documents
from vstate_cli.output import Bar, Output, safe
from vstate_cli.session import Session, command

if TYPE_CHECKING:
    from vstate.repo.upkeep.damage import Damage, Lost
    from vstate.repo.upkeep.fsck import FsckReport

_SHOWN = 100  # damages, and losses; --json lists a thousand of each


@command(
    "fsck",
    examples=["vstate fsck", "vstate fsck --quick", "vstate fsck --repair"],
    json="{ok, full, objects: {commit, tree, index, blob}, bytes, refs, reflog_lines, orphans, foreign, damage: "
    "[{id, kind, reason, readable, known}], damaged, lost: [{ref, commit, key, what}], lost_in_all, broken, "
    "repaired, left, seconds}: broken are the refs whose state cannot be read whole; damage and lost list a "
    "thousand at the most.",
)
@click.option("--repair", is_flag=True, help="Repair what can be repaired; without it nothing is written.")
@click.option(
    "--quick", is_flag=True, help="Do not read the contents of values, only look whether they are there."
)
def fsck(session: Session, repair: bool, quick: bool) -> None:
    """Check all that the store holds.

    Every object against its id and the format, every link, ref and reflog line; says which keys of which
    commits cannot be read any more. Exits with 1 if something is damaged that is not repaired.

    --repair puts each branch whose newest state is damaged on the newest commit that is whole (its reflog has
    where it was), puts branches and tags back whose rows are lost, lets a history end where a commit is lost (a
    tag fsck/... keeps what was before that), and moves damaged objects aside, so that writing the same values
    again heals them.
    """
    with Bar() as bar:
        report = session.repo.fsck(full=not quick, repair=repair, progress=bar)
    if session.json:
        documents.write(session.out, dataclasses.asdict(report))
    else:
        _show(session.out, report)
    if not report.ok:
        raise StorageError(_what_next(report, session.repo.store.location, repair))


def _show(out: Output, report: FsckReport) -> None:
    out.line(safe(report.summary()))
    _list(out, "damaged", [_damage(damage) for damage in report.damage], report.damaged)
    _list(out, "lost", [_lost(lost) for lost in report.lost], report.lost_in_all)
    _list(out, "repaired", report.repaired, len(report.repaired))
    _list(out, "not repaired", report.left, len(report.left))


def _list(out: Output, title: str, items: Sequence[str], count: int) -> None:
    if not items:
        return
    out.line((f"{title}:", "bold"))
    for text in items[:_SHOWN]:
        out.line("  ", safe(text))
    if count > _SHOWN:
        listed = " (--json lists more)" if len(items) > _SHOWN else ""
        out.line((f"  … {count - _SHOWN:,} more{listed}", "dim"))


def _damage(damage: Damage) -> str:
    notes = []
    if damage.readable:
        notes.append("nothing is lost by it")
    if damage.known:
        notes.append("known since an earlier repair")
    return f"{damage}" + (f" ({'; '.join(notes)})" if notes else "")


def _lost(lost: Lost) -> str:
    what = lost.what if lost.key is None else f"the value of {lost.key!r}"
    return f"{lost.ref} {lost.commit[:10]}  {what}"


def _what_next(report: FsckReport, location: str, repaired: bool) -> str:
    begin = f"the store at {location} is damaged"
    if not repaired:
        return f"{begin}: make a copy of it, then run `vstate fsck --repair`"
    if report.broken:
        return (
            f"{begin}, and {', '.join(report.broken[:5])} could not be repaired: a bundle that has the missing "
            "objects heals it (`vstate import`); or give the lost keys new values and commit, and delete a broken "
            "tag"
        )
    return f"{begin} in ways that cannot be repaired: `vstate export` what is whole, into a new store"
