"""`vstate reflog`."""

from __future__ import annotations

from itertools import islice

import click

from vstate.repo.names.refs import HEAD, HEADS, ReflogEntry
from vstate_cli import documents, render
from vstate_cli.output import safe
from vstate_cli.session import Session, command, complete_branch

_GONE = "(deleted)"


@command(
    "reflog",
    examples=["vstate reflog", "vstate reflog -n 5", "vstate reflog what-if --json"],
    json="a list of {name, old, new, time, action}, newest first: name is a revision such as main@{2}, old and "
    "new are ids of commits, null where there was no branch.",
)
@click.argument("branch", required=False, shell_complete=complete_branch)
@click.option("-n", "limit", type=click.IntRange(min=0), metavar="N", help="At most so many moves.")
def reflog(session: Session, branch: str | None, limit: int | None) -> None:
    """Show where a branch has been, newest first.

    Each move of BRANCH (HEAD's; of HEAD itself when it is detached), with the revision that names where it led
    to: main@{1} is where main was one move ago. A commit that no branch leads to any more can be found here, and
    a branch that was deleted too; collecting garbage forgets old moves.
    """
    repo, out = session.repo, session.out
    if branch is None or branch == HEAD:
        branch = repo.refs.head().branch
    name, ref = (HEAD, HEAD) if branch is None else (branch, HEADS + branch)
    moves = islice(repo.refs.reflog(ref), limit)
    if session.json:
        documents.write_array(out, (_document(name, *move) for move in enumerate(moves)))
        return
    count = 0
    for number, move in enumerate(moves):
        count += 1
        at = (_GONE.ljust(10), "dim") if move.new is None else (move.new.short, "yellow")
        time = (render.moment(move.time), "dim")
        out.line((f"{safe(name)}@{{{number}}}", "bold green"), "  ", at, "  ", time, "  ", safe(move.action))
    if count == 0 and limit != 0:
        if branch is not None and repo.refs.read(ref) is None:
            repo.branch(branch)  # it is not there, and this says so
        out.note(f"no move of {name} is on record")


def _document(name: str, number: int, move: ReflogEntry) -> documents.Document:
    return {
        "name": f"{name}@{{{number}}}",
        "old": None if move.old is None else str(move.old),
        "new": None if move.new is None else str(move.new),
        "time": move.time.isoformat(),
        "action": move.action,
    }
