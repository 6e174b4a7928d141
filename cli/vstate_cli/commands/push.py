"""`vstate push`."""

from __future__ import annotations

import click

from vstate_cli import moved_refs
from vstate_cli.progress import ProgressBar
from vstate_cli.session import Session, command
from vstate_cli.suggestions import BRANCH, complete_remote


@command(
    "push",
    examples=[
        "vstate push",
        "vstate push origin main what-if --tags",
        "vstate push /backup/agent main --create",
        "vstate push origin --delete what-if",
    ],
    json="the same object as `vstate clone --json`. If the push could not update origin/BRANCH here, "
    "not_noted says why.",
)
@click.argument("remote", metavar="REMOTE|URL", required=False, shell_complete=complete_remote)
@click.argument("branch", nargs=-1, type=BRANCH)
@click.option("-f", "--force", is_flag=True, help="Move remote branches even if they lose commits.")
@click.option("--tags", is_flag=True, help="Send all tags, too.")
@click.option(
    "-d",
    "--delete",
    multiple=True,
    metavar="BRANCH",
    type=BRANCH,
    help="Delete that remote branch. Its reflog stays.",
)
@click.option("--create", is_flag=True, help="Create the remote store if there is none.")
def push(
    session: Session,
    remote: str | None,
    branch: tuple[str, ...],
    force: bool,
    tags: bool,
    delete: tuple[str, ...],
    create: bool,
) -> None:
    """Send branches to another store.

    Sends each BRANCH (default: HEAD's) to the branch of the same name in REMOTE (default: `origin`), or in
    the store at a path or URL. Only missing objects are sent. If the remote branch has commits that you
    lack, nothing is sent: run `vstate pull` first, or use --force. To continue an interrupted push, run the
    command again.
    """
    with ProgressBar() as bar:
        report = session.repo.push(
            remote, branch or None, force=force, tags=tags, delete=delete, create=create, progress=bar
        )
    moved_refs.show(session, report, "sent")
