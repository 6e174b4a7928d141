"""`vstate push`."""

from __future__ import annotations

import click

from vstate_cli import documents, moved_refs
from vstate_cli.output import Bar
from vstate_cli.session import Session, command, complete_branch, complete_remote


@command(
    "push",
    examples=[
        "vstate push",
        "vstate push origin main what-if --tags",
        "vstate push /backup/agent main --create",
        "vstate push origin --delete what-if",
    ],
    json=moved_refs.JSON,
)
@click.argument("remote", metavar="REMOTE|URL", required=False, shell_complete=complete_remote)
@click.argument("branch", nargs=-1, shell_complete=complete_branch)
@click.option(
    "-f",
    "--force",
    is_flag=True,
    help="Move branches there that have commits which those here do not follow.",
)
@click.option("--tags", is_flag=True, help="Bring all tags, too.")
@click.option(
    "-d",
    "--delete",
    multiple=True,
    metavar="BRANCH",
    shell_complete=complete_branch,
    help="Delete that branch there; its reflog keeps where it was.",
)
@click.option("--create", is_flag=True, help="Make the store there if there is none.")
def push(
    session: Session,
    remote: str | None,
    branch: tuple[str, ...],
    force: bool,
    tags: bool,
    delete: tuple[str, ...],
    create: bool,
) -> None:
    """Bring branches to another store.

    Each BRANCH, HEAD's by default, goes to the one of the same name in the remote `origin`, or another
    REMOTE, or the store at that path or URL. Only what that store lacks is sent. If a branch there has
    commits that the one here does not follow, nothing is: `vstate pull` first, or --force. Interrupted, and
    run again, it goes on where it was.
    """
    with Bar() as bar:
        report = session.repo.push(
            remote, branch or None, force=force, tags=tags, delete=delete, create=create, progress=bar
        )
    if session.json:
        documents.write(session.out, moved_refs.document(report))
    else:
        moved_refs.write(session.out, report, "sent")
