"""`vstate checkout`."""

from __future__ import annotations

import click

from vstate_cli import heads
from vstate_cli.session import Session, command
from vstate_cli.suggestions import complete_revision


@command(
    "checkout",
    examples=["vstate checkout main", "vstate checkout HEAD~3 -b what-if", "vstate checkout -"],
    json="{branch, commit}. branch is HEAD's branch, or null if HEAD is detached; commit is the id of HEAD's "
    "commit, or null on a branch without commits.",
)
@click.argument("rev", metavar="REV|BRANCH", required=False, shell_complete=complete_revision)
@click.option(
    "-b", "new", metavar="NEW", help="Create the branch NEW at REV (default: HEAD), and move HEAD to it."
)
def checkout(session: Session, rev: str | None, new: str | None) -> None:
    """Move HEAD to a branch, a new branch or a commit.

    A program that opens the store and names no branch works on HEAD's branch. If REV is a commit and not a
    branch, HEAD is detached: programs can read the state, but need a branch to commit. As in git, `-` is the
    branch, or the commit, that HEAD was on before.
    """
    if new is not None:
        session.repo.create_branch(new, "HEAD" if rev is None else rev)
        heads.move(session, new, is_new=True)
    elif rev is not None:
        heads.move(session, rev)
    else:
        raise click.UsageError("Missing argument 'REV|BRANCH' (or -b NEW).")
