"""`vstate fetch`."""

from __future__ import annotations

import click

from vstate_cli import documents, moved_refs
from vstate_cli.output import Bar
from vstate_cli.session import Session, command, complete_branch, complete_remote


@command(
    "fetch",
    examples=["vstate fetch", "vstate fetch origin main", "vstate fetch backup --tags"],
    json=moved_refs.JSON,
)
@click.argument("remote", metavar="REMOTE|URL", required=False, shell_complete=complete_remote)
@click.argument("branch", nargs=-1, shell_complete=complete_branch)
@click.option("--tags", is_flag=True, help="Make the tags that are not here, too.")
def fetch(session: Session, remote: str | None, branch: tuple[str, ...], tags: bool) -> None:
    """Bring branches from another store, without moving any here.

    Each BRANCH, all by default, of the remote `origin` or another REMOTE is `origin/BRANCH` then: `vstate log
    origin/main`, `vstate diff main origin/main`. Nothing leads to what is fetched from a path or URL that is
    no remote: see `vstate remote add`. Interrupted, and run again, it goes on where it was.
    """
    with Bar() as bar:
        report = session.repo.fetch(remote, branch or None, tags=tags, progress=bar)
    if session.json:
        documents.write(session.out, moved_refs.document(report))
    else:
        moved_refs.write(session.out, report, "received")
