"""`vstate gc`."""

from __future__ import annotations

import dataclasses

import click

from vstate.plural import counted
from vstate.repo.upkeep.gc import GRACE, KEEP_REFLOG
from vstate.values.inspection import size_text
from vstate_cli.output import safe
from vstate_cli.progress import ProgressBar
from vstate_cli.session import Session, command
from vstate_cli.suggestions import BRANCH


@command(
    "gc",
    examples=[
        "vstate gc --dry-run",
        "vstate gc",
        "vstate gc --keep-reflog 0",
        "vstate gc --keep-last 1000 main",
        "vstate gc --keep-since 30d main",
    ],
    json="{live, removed, removed_bytes, waiting, reflog_lines, shallow, kept_by, dry_run, seconds, "
    "expired, size_before, size_after}. live, removed and waiting count objects: in use, removed, and "
    "waiting for the grace period; reflog_lines counts removed lines; shallow counts the commits at which "
    "a history now ends; kept_by lists branches that share the history to cut, and so keep it; expired "
    "lists removed branches; size_before and size_after are the bytes of the store's files, null where "
    "unknown.",
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
    "--keep-last",
    type=click.IntRange(min=1),
    metavar="N",
    help="Cut the history of each BRANCH off after its newest N commits.",
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
@click.option("--dry-run", is_flag=True, help="Print what gc would remove, and remove nothing.")
def gc(
    session: Session,
    branch: tuple[str, ...],
    keep_reflog: str,
    keep_last: int | None,
    keep_since: str | None,
    grace: str,
    dry_run: bool,
) -> None:
    """Remove objects that no ref and no recent reflog line reaches.

    Expired branches are removed too. --keep-last and --keep-since first cut off the history of each BRANCH.
    Older commits go unless another ref reaches them, and `vstate log` shows where the history ends. Other
    programs can use the store meanwhile. A store on the disk then gives the room back to the system.
    """
    if keep_last is not None and keep_since is not None:
        raise click.UsageError("Give --keep-last or --keep-since, not both.")
    if (not branch) != (keep_last is None and keep_since is None):
        raise click.UsageError("--keep-last and --keep-since take the BRANCH whose history to cut off.")
    with ProgressBar() as bar:
        report = session.repo.gc(
            keep_reflog=keep_reflog,
            branch=branch or None,
            keep_last=keep_last,
            keep_since=keep_since,
            grace=grace,
            dry_run=dry_run,
            progress=bar,
        )
    if session.json:
        session.out.json(dataclasses.asdict(report))
        return
    out = session.out
    removed = "would remove" if dry_run else "removed"
    out.line(f"{removed} {counted(report.removed, 'object')}, {size_text(report.removed_bytes)}")
    if report.size_before is not None and report.size_after is not None:
        out.line(f"the files took {size_text(report.size_before)} and take {size_text(report.size_after)}")
    if report.expired:
        branches = "the expired branch" if len(report.expired) == 1 else "the expired branches"
        out.line(f"{removed} {branches} {safe(', '.join(report.expired))}")
    if report.reflog_lines:
        out.line(f"{removed} {counted(report.reflog_lines, 'reflog line')}")
    if report.shallow:
        ends = "would end" if dry_run else "ends"
        out.line(f"the history {ends} at {counted(report.shallow, 'commit')}")
    if report.kept_by:
        out.line(
            f"kept the history that {safe(', '.join(report.kept_by))} shares; to cut it, name that branch too"
        )
    if report.waiting:
        out.line(
            f"{counted(report.waiting, 'object')} must wait for the grace period; "
            "run vstate gc again after it"
        )
    out.line((f"{counted(report.live, 'object')} in use", "dim"))
