"""Upkeep: `vstate keep` sets how long data stays, `gc` removes the rest, and `fsck` mends damage."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import click

from vstate.errors import NotFound, StorageError
from vstate.plural import counted
from vstate.repo.names.dates import shown_ttl
from vstate.repo.rules.keeps import Keep
from vstate.repo.upkeep.fsck import FsckReport
from vstate.repo.upkeep.gc import GRACE, KEEP_REFLOG
from vstate_cli.output import Line, safe
from vstate_cli.session import Session, command
from vstate_cli.suggestions import BRANCH, Count


@command(
    "gc",
    examples=[
        "vstate gc --dry-run",
        "vstate gc",
        "vstate gc --keep-reflog 0",
        "vstate gc --keep-last 1000 main",
        "vstate gc --keep-since 30d main",
        "vstate gc --seconds 2",
    ],
    json="{live, removed, removed_bytes, waiting, reflog_lines, shallow, kept_by, dry_run, seconds, rooms, "
    "rooms_left, expired, size_before, size_after, garbage: [{reason, objects, bytes}]}. live, removed and "
    "waiting count objects: in use, removed, and waiting for the grace period; reflog_lines counts removed "
    "lines; shallow counts the commits that lost parents; kept_by lists branches that share the "
    "history to cut, and so keep it; rooms counts the rooms that were collected, and rooms_left those that "
    "--seconds has left, null in the first round through all; expired lists removed branches; size_before "
    "and size_after are the bytes of the store's files, null where unknown; garbage says after a dry run why "
    "the objects would go.",
)
@click.argument("branch", nargs=-1, type=BRANCH)
@click.option(
    "--keep-reflog",
    default=KEEP_REFLOG,
    metavar="AGE",
    help="Keep commits that only the reflog reaches for this long: 12h, 30d, 8w; 0 keeps none. "
    f"Default: {KEEP_REFLOG}.",
)
@click.option(
    "--keep-last", type=Count(min=1), help="Cut the history of each BRANCH off after its newest N commits."
)
@click.option(
    "--keep-since", metavar="AGE", help="Cut the history of each BRANCH off before this time, such as 30d."
)
@click.option(
    "--grace",
    default=GRACE,
    metavar="AGE",
    help="On a store without transactions, keep removed objects this long for writers at work. "
    f"Default: {GRACE}.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    metavar="N",
    help="Stop after about so many seconds. The next call with this option goes on from there.",
)
@click.option("--dry-run", is_flag=True, help="Print what gc would remove, and why, and remove nothing.")
def gc(
    session: Session,
    branch: tuple[str, ...],
    keep_reflog: str,
    keep_last: int | None,
    keep_since: str | None,
    grace: str,
    seconds: float | None,
    dry_run: bool,
) -> None:
    """Remove objects that no ref and no recent reflog line reaches.

    First it carries out the rules of `vstate keep`, and with --keep-last or --keep-since cuts off the history
    of each BRANCH. Older commits go unless another ref reaches them, and `vstate log` shows where the history
    ends. Other programs can use the store meanwhile. A store on the disk then gives the room back to the
    system.

    With --seconds, gc collects one room after the other, such as the threads of a service: run it often, and
    each run is short.
    """
    if (not branch) != (keep_last is None and keep_since is None):
        raise click.UsageError("--keep-last and --keep-since take the BRANCH whose history to cut off.")
    report = session.repo.gc(
        keep_reflog=keep_reflog,
        branch=branch or None,
        keep_last=keep_last,
        keep_since=keep_since,
        grace=grace,
        seconds=seconds,
        dry_run=dry_run,
        progress=session.out.progress,
    )
    session.tell(report)


@command(
    "keep",
    examples=[
        "vstate keep 'threads/*' --idle 30d",
        "vstate keep main --last 1000 --since 30d",
        "vstate keep main --last 20 --hourly 24 --daily 7 --weekly 4",
        "vstate keep",
        "vstate keep 'threads/*' --delete",
    ],
    json="a list of {pattern, idle, since, last, hourly, daily, weekly}: idle and since in seconds, and null "
    "for no limit.",
)
@click.argument("pattern", required=False, metavar="BRANCH|BEGINNING*")
@click.option(
    "--idle", metavar="AGE", help="Delete a branch that no commit has reached for this long: 12h, 30d."
)
@click.option("--since", metavar="AGE", help="Keep the commits of this age, and cut off those before.")
@click.option("--last", type=Count(min=1), help="Keep the newest N commits, and cut off those before.")
@click.option("--hourly", type=Count(min=1), help="Keep the newest commit of each of N hours with commits.")
@click.option("--daily", type=Count(min=1), help="Keep the newest commit of each of N days with commits.")
@click.option("--weekly", type=Count(min=1), help="Keep the newest commit of each of N weeks with commits.")
@click.option("-d", "--delete", is_flag=True, help="Remove the rule: keep everything again.")
def keep(session: Session, pattern: str | None, delete: bool, **limits: Any) -> None:
    """Say what `vstate gc` keeps of a branch, or of all branches that begin so; without, list the rules.

    A rule lies in the store, and counts for every program. Of several that fit a branch, the longest counts
    alone. A commit stays that any of the limits keeps, and so does one with a tag. Hours, days and weeks are
    those of UTC. HEAD's branch is never deleted.
    """
    is_given = any(limit is not None for limit in limits.values())
    if pattern is None:
        if is_given or delete:
            raise click.UsageError("Name the branch, or the beginning of branches, as in 'threads/*'.")
    elif is_given == delete:
        raise click.UsageError("Give a limit, such as --idle or --last; or --delete to remove the rule.")
    elif delete and pattern not in session.repo.keeps():
        raise NotFound(f"no rule for {pattern!r}: `vstate keep` lists the rules", name=pattern)
    else:
        session.repo.keep(pattern, **limits)
    rules = session.repo.keeps().items()
    session.answer(
        [_rule(*rule) for rule in rules],
        [_rule_line(*rule) for rule in rules] or [[("no rules: gc keeps what branches lead to", "dim")]],
    )


def _rule(pattern: str, rule: Keep) -> dict[str, object]:
    limits = dataclasses.asdict(rule)
    ages = {name: age.total_seconds() for name, age in limits.items() if isinstance(age, timedelta)}
    return {"pattern": pattern, **limits, **ages}


def _rule_line(pattern: str, rule: Keep) -> Line:
    parts = []
    if rule.idle is not None:
        parts.append(f"goes after {shown_ttl(rule.idle.total_seconds())} without a commit")
    kept = [] if rule.since is None else [f"the commits of the last {shown_ttl(rule.since.total_seconds())}"]
    if rule.last is not None:
        kept.append(f"the newest {counted(rule.last, 'commit')}")
    for period, number in {"hour": rule.hourly, "day": rule.daily, "week": rule.weekly}.items():
        if number is not None:
            kept.append(f"the newest of each of {counted(number, period)}")
    if kept:
        parts.append(f"keeps {', '.join(kept[:-1])}{' and ' if kept[1:] else ''}{kept[-1]}")
    return [safe(f"{pattern}: {', '.join(parts)}")]


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
    "--repair", is_flag=True, help="Repair the store. Without it, nothing is written: the steps are listed."
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
    report = session.repo.fsck(full=not quick, repair=repair, progress=session.out.progress)
    session.tell(report)
    if not report.ok:
        raise StorageError(_advice(report, session.repo.store.location, repair))


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
