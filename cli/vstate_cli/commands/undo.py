"""`vstate undo`."""

from __future__ import annotations

import click

from vstate.repo.names.undo import Undo
from vstate_cli.output import safe
from vstate_cli.session import Session, command


@command(
    "undo",
    examples=["vstate undo", "vstate undo -n 3", "vstate undo --redo"],
    json="{branch, old, commit, action}. old and commit are the ids of the commits before and after; "
    "action is the text of the reflog line.",
)
@click.option("-n", "steps", type=click.IntRange(min=1), metavar="N", help="Take back N moves. Default: 1.")
@click.option("--redo", is_flag=True, help="Take back the last undo.")
def undo(session: Session, steps: int | None, redo: bool) -> None:
    """Move HEAD's branch back to its position before the last move.

    A commit, a merge, a rollback and a reset each move a branch. A second undo takes back the move before.
    Nothing is lost: `vstate reflog` shows every move. To go back by a new commit instead, use `vstate
    rollback`.
    """
    if redo and steps is not None:
        raise click.UsageError("--redo takes back the last undo as a whole, so it does not go with -n.")
    repo, branch = session.repo, session.branch()
    found = repo.find_redo(branch) if redo else repo.find_undo(branch, steps=steps or 1)
    move_back(session, found, is_redo=redo)


def move_back(session: Session, found: Undo, *, is_redo: bool) -> None:
    """Make the move, and print where the branch is now."""
    out, commit = session.out, session.repo.carry_out(found)
    if session.json:
        document = {"branch": found.branch, "old": found.old.id, "commit": commit.id, "action": found.action}
        out.json(document)
        return
    out.line((safe(found.branch), "bold green"), " is at ", *session.summary(commit))
    out.line((safe(found.action), "dim"))
    if not is_redo:
        out.line(("To take that back: vstate redo", "dim"))
