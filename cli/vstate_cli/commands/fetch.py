"""`vstate fetch`."""

from __future__ import annotations

import click

from vstate_cli import moved_refs
from vstate_cli.progress import ProgressBar
from vstate_cli.session import Session, command
from vstate_cli.suggestions import BRANCH, complete_remote


@command(
    "fetch",
    examples=["vstate fetch", "vstate fetch origin main", "vstate fetch backup --tags"],
    json="the same object as `vstate clone --json`.",
)
@click.argument("remote", metavar="REMOTE|URL", required=False, shell_complete=complete_remote)
@click.argument("branch", nargs=-1, type=BRANCH)
@click.option("--tags", is_flag=True, help="Create the tags that this store does not have, too.")
def fetch(session: Session, remote: str | None, branch: tuple[str, ...], tags: bool) -> None:
    """Copy branches from another store, as REMOTE/BRANCH.

    Fetches each BRANCH (default: all) of REMOTE (default: `origin`), and moves no branch here. Look at the
    result with `vstate log origin/main` or `vstate diff main origin/main`. From a path or URL, no ref keeps
    the commits, and `vstate gc` removes them: use `vstate remote add` first. To continue an interrupted
    fetch, run the command again.
    """
    with ProgressBar() as bar:
        report = session.repo.fetch(remote, branch or None, tags=tags, progress=bar)
    moved_refs.show(session, report, "received")
