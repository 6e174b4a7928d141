"""`vstate undo`."""

from __future__ import annotations

import click

from vstate_cli import documents
from vstate_cli.output import safe
from vstate_cli.render import subject
from vstate_cli.session import Session, command


@command(
    "undo",
    examples=["vstate undo", "vstate undo -n 3", "vstate undo --redo"],
    json="{branch, old, commit, action}: the branch, the ids of the commits where it was and where it is, and what "
    "the reflog says of it.",
)
@click.option(
    "-n", "steps", type=click.IntRange(min=1), metavar="N", help="Take back so many moves, instead of one."
)
@click.option("--redo", is_flag=True, help="Take the last undo back.")
def undo(session: Session, steps: int | None, redo: bool) -> None:
    """Put HEAD's branch where it was before its last move.

    A move is whatever changed where the branch is: a commit, a merge, a rollback, a reset. Undoing again takes the
    move before that back. Nothing is lost: `vstate reflog` has every move. To keep the history as it is and go
    back by a new commit, use `vstate rollback`.
    """
    if redo and steps is not None:
        raise click.UsageError("--redo takes the last undo back as a whole: it does not go with -n.")
    repo, out = session.repo, session.out
    branch = session.branch()
    found = repo.find_redo(branch) if redo else repo.find_undo(branch, steps=steps or 1)
    commit = repo.carry_out(found)
    if session.json:
        document = {"branch": branch, "old": found.old.id, "commit": commit.id, "action": found.action}
        documents.write(out, document)
        return
    out.line((branch, "bold green"), " is at ", (commit.short, "yellow"), f" {subject(commit)}".rstrip())
    out.line((safe(found.action), "dim"))
    if not redo:
        out.line(("To take that back: vstate undo --redo", "dim"))
