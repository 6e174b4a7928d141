"""`vstate fsck`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import click

from vstate.errors import StorageError
from vstate.repo.upkeep.damage import Damage, Lost
from vstate.repo.upkeep.fsck import FsckReport
from vstate_cli.output import Output, safe
from vstate_cli.progress import ProgressBar
from vstate_cli.session import Session, command

_MOST_SHOWN = 100  # damages, and losses; --json lists a thousand of each


@command(
    "fsck",
    examples=["vstate fsck", "vstate fsck --quick", "vstate fsck --repair"],
    json="{ok, full, objects: {commit, tree, index, blob}, bytes, refs, reflog_lines, orphans, foreign, "
    "ahead, damage: [{id, kind, reason, readable, known}], damaged, lost: [{ref, commit, key, what}], "
    "lost_in_all, broken, repaired, left, plan, seconds}. broken lists the refs whose state is incomplete, "
    "plan what --repair would do; damage and lost list at most a thousand each, and damaged and lost_in_all "
    "are the full counts.",
)
@click.option(
    "--repair",
    is_flag=True,
    help="Repair the store. Without it, nothing is written: the steps are listed.",
)
@click.option("--quick", is_flag=True, help="Check only that values are present; do not read them.")
def fsck(session: Session, repair: bool, quick: bool) -> None:
    """Check that the store is intact.

    Checks that every object matches its id and can be decoded, and every link, ref and reflog line. Names
    the lost keys by commit. Exits with 1 if the store is damaged and not repaired.

    With --repair, a damaged branch moves to its newest intact commit; the reflog keeps its old position.
    Lost branches and tags are restored. If a commit is lost, the history ends there, and tags fsck/...
    keep the older part. Damaged objects are set aside; storing the same values again heals them.
    """
    with ProgressBar() as bar:
        report = session.repo.fsck(full=not quick, repair=repair, progress=bar)
    if session.json:
        session.out.json(dataclasses.asdict(report))
    else:
        _show(session.out, report)
    if not report.ok:
        raise StorageError(_advice(report, session.repo.store.location, repair))


def _show(out: Output, report: FsckReport) -> None:
    out.line(safe(report.summary()))
    _list(out, "damaged", [_damage(damage) for damage in report.damage], report.damaged)
    _list(out, "lost", [_lost(lost) for lost in report.lost], report.lost_in_all)
    _list(out, "repaired", report.repaired, len(report.repaired))
    _list(out, "not repaired", report.left, len(report.left))
    _list(out, "with --repair", report.plan, len(report.plan))


def _list(out: Output, title: str, items: Sequence[str], count: int) -> None:
    if not items:
        return
    out.line((f"{title}:", "bold"))
    for text in items[:_MOST_SHOWN]:
        out.line("  ", safe(text))
    if count > _MOST_SHOWN:
        listed = " (--json lists more)" if len(items) > _MOST_SHOWN else ""
        out.line((f"  … {count - _MOST_SHOWN:,} more{listed}", "dim"))


def _damage(damage: Damage) -> str:
    notes = []
    if damage.readable:
        notes.append("no value is lost")
    if damage.known:
        notes.append("known from an earlier repair")
    return f"{damage}" + (f" ({'; '.join(notes)})" if notes else "")


def _lost(lost: Lost) -> str:
    loss = lost.what if lost.key is None else f"the value of {lost.key!r}"
    return f"{lost.ref} {lost.commit[:10]}  {loss}"


def _advice(report: FsckReport, location: str, repaired: bool) -> str:
    damaged = f"the store at {location} is damaged"
    if not repaired:
        return f"{damaged}: make a copy of it, then run `vstate fsck --repair`"
    if report.broken:
        return (
            f"{damaged}, and the repair could not restore {', '.join(report.broken[:5])}: import a bundle "
            "that has the missing objects (`vstate import`), or commit new values for the lost keys and "
            "delete broken tags"
        )
    return f"{damaged} beyond repair: `vstate export` the intact branches, and import them into a new store"
