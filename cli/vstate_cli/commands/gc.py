"""`vstate gc`."""

from __future__ import annotations

import dataclasses

import click

from vstate.values.inspection import size_text
from vstate_cli import documents
from vstate_cli.output import Bar, safe
from vstate_cli.session import Session, command, complete_branch

KEEP_REFLOG = "30d"
GRACE = "1h"


@command(
    "gc",
    examples=[
        "vstate gc --dry-run",
        "vstate gc",
        "vstate gc --keep-reflog 0",
        "vstate gc --keep-last 1000 main",
        "vstate gc --keep-since 30d main",
    ],
    json="{live, removed, removed_bytes, waiting, reflog_lines, shallow, kept_by, dry_run, seconds, expired}: numbers of "
    "objects in use, removed and waiting for the grace period to end, of reflog lines removed, of commits where "
    "a history was cut off; kept_by are branches that share commits with it, which were not cut off; expired are branches that are gone.",
)
@click.argument("branch", nargs=-1, shell_complete=complete_branch)
@click.option(
    "--keep-reflog",
    default=KEEP_REFLOG,
    metavar="AGE",
    help=f"How long to keep what only the reflog leads to: 12h, 30d, 8w; 0: not at all. Default: {KEEP_REFLOG}.",
)
@click.option(
    "--keep-last",
    type=click.IntRange(min=1),
    metavar="N",
    help="Cut the history of each BRANCH off behind its newest N commits.",
)
@click.option("--keep-since", metavar="AGE", help="Cut the history of each BRANCH off before that time.")
@click.option(
    "--grace",
    default=GRACE,
    metavar="AGE",
    help="How long a store without transactions keeps what was removed, for writers that are about to need it. "
    f"Default: {GRACE}.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
def gc(
    session: Session,
    branch: tuple[str, ...],
    keep_reflog: str,
    keep_last: int | None,
    keep_since: str | None,
    grace: str,
    dry_run: bool,
) -> None:
    """Remove what no branch, tag, HEAD or recent reflog line leads to.

    With --keep-last or --keep-since, the history of each BRANCH is cut off first: older commits go, unless
    something else leads to them, and `vstate log` says where it ends. What it shares with a branch that is not
    named stays. Other programs may work with the store meanwhile.
    """
    if keep_last is not None and keep_since is not None:
        raise click.UsageError("--keep-last and --keep-since do not go together.")
    if (not branch) != (keep_last is None and keep_since is None):
        raise click.UsageError("--keep-last and --keep-since take the BRANCH whose history to cut off.")
    with Bar() as bar:
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
        documents.write(session.out, dataclasses.asdict(report))
        return
    out = session.out
    would = "would remove" if dry_run else "removed"
    objects = f"{report.removed:,} object{'' if report.removed == 1 else 's'}"
    out.line(f"{would} {objects}, {size_text(report.removed_bytes)}")
    if report.expired:
        over = "is over" if len(report.expired) == 1 else "are over"
        out.line(f"{would} {safe(', '.join(report.expired))}, whose time {over}")
    if report.reflog_lines:
        out.line(
            f"{would} {report.reflog_lines:,} line{'' if report.reflog_lines == 1 else 's'} of the reflog"
        )
    if report.shallow:
        cut = "would end" if dry_run else "ends"
        out.line(f"the history {cut} at {report.shallow:,} commit{'' if report.shallow == 1 else 's'}")
    if report.kept_by:
        out.line(f"not cut off is what {safe(', '.join(report.kept_by))} leads to as well; name that too")
    if report.waiting:
        out.line(f"{report.waiting:,} objects wait for the grace period to end; run vstate gc again then")
    out.line((f"{report.live:,} objects are in use", "dim"))
