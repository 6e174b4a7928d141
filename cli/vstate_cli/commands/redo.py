"""`vstate redo`."""

from __future__ import annotations

from vstate_cli.commands.undo import move_back
from vstate_cli.session import Session, command


@command("redo", examples=["vstate redo"], json="the same object as `vstate undo --json`.")
def redo(session: Session) -> None:
    """Take back the last undo of HEAD's branch.

    If something else moved the branch since, there is nothing to redo. `vstate undo --redo` is the same.
    """
    move_back(session, session.repo.find_redo(session.branch()), is_redo=True)
