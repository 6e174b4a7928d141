"""`vstate reset`."""

from __future__ import annotations

import click

from vstate_cli.session import Session, command
from vstate_cli.suggestions import complete_revision


@command(
    "reset",
    examples=["vstate reset HEAD~1", "vstate reset main@{yesterday}"],
    json="{branch, old, commit}. old and commit are the ids of the commits before and after.",
)
@click.argument("rev", shell_complete=complete_revision)
@click.option("--hard", is_flag=True, help="Taken as in git: a store has no working tree to keep.")
def reset(session: Session, rev: str, hard: bool) -> None:
    """Move HEAD's branch itself to REV.

    The commits behind REV leave the history of the branch. The reflog keeps them, and `vstate undo` brings
    them back. To go back by a new commit instead, use `vstate rollback`.
    """
    repo, out = session.repo, session.out
    branch = session.branch()
    old = repo.branch(branch)
    commit = repo.move_branch(branch, repo.resolve(rev), seen=old)
    if session.json:
        out.json({"branch": branch, "old": old.id, "commit": commit.id})
        return
    out.line((branch, "bold green"), " is at ", *session.summary(commit))
    if commit != old:
        out.line((f"It was at {old.short}. To take that back: vstate undo", "dim"))
