"""`vstate fetch`."""

from __future__ import annotations

import click

from vstate_cli import moved_refs
from vstate_cli.progress import ProgressBar
from vstate_cli.session import Session, command
from vstate_cli.suggestions import complete_branch, complete_remote


@command(
    "fetch",
    examples=["vstate fetch", "vstate fetch origin main", "vstate fetch backup --tags"],
    json=moved_refs.JSON,
)
@click.argument("remote", metavar="REMOTE|URL", required=False, shell_complete=complete_remote)
@click.argument("branch", nargs=-1, shell_complete=complete_branch)
@click.option("--tags", is_flag=True, help="Create the tags that this store does not have, too.")
def fetch(session: Session, remote: str | None, branch: tuple[str, ...], tags: bool) -> None:
    """Copy branches from another store, without moving any branch here.

    Fetches each BRANCH (default: all) of REMOTE (default: `origin`) as REMOTE/BRANCH. Look at it with
    `vstate log origin/main` or `vstate diff main origin/main`. A path or URL works too, but no ref keeps
    the commits from there: use `vstate remote add` first. To continue an interrupted fetch, run the command
    again.
    """
    with ProgressBar() as bar:
        report = session.repo.fetch(remote, branch or None, tags=tags, progress=bar)
    moved_refs.show(session, report, "received")
