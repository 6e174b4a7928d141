"""`vstate reflog`."""

from __future__ import annotations

from itertools import islice

import click

from vstate.repo.names.refs import HEAD, HEADS, ReflogEntry
from vstate_cli.output import Document, safe
from vstate_cli.session import Session, command
from vstate_cli.suggestions import BRANCH

_DELETED = "(deleted)"


@command(
    "reflog",
    dated=True,
    paged=True,
    examples=["vstate reflog", "vstate reflog -n 5", "vstate reflog what-if --json"],
    json="a list of {name, old, new, time, action}, newest first. name is a revision such as main@{2}; "
    "old and new are ids of commits, or null where there was no branch.",
)
@click.argument("branch", required=False, type=BRANCH)
@click.option("-n", "limit", type=click.IntRange(min=0), metavar="N", help="Show at most N moves.")
def reflog(session: Session, branch: str | None, limit: int | None) -> None:
    """Show the moves of a branch, newest first.

    Each line begins with a revision for the position after the move: main@{1} is the position one move ago.
    BRANCH defaults to HEAD's branch, or to HEAD itself if it is detached. The reflog still names commits
    that no branch reaches, and the moves of a deleted branch, until `vstate gc` removes old moves.
    """
    repo, out = session.repo, session.out
    if branch is None or branch == HEAD:
        branch = repo.refs.head().branch
    name, ref = (HEAD, HEAD) if branch is None else (branch, HEADS + branch)
    moves = islice(repo.refs.reflog(ref), limit)
    if session.json:
        out.json_array(_document(name, *move) for move in enumerate(moves))
        return
    is_empty = True
    for number, move in enumerate(moves):
        is_empty = False
        at = (_DELETED.ljust(10), "dim") if move.new is None else (move.new.short, "yellow")
        time = (out.moment(move.time), "dim")
        out.line((f"{safe(name)}@{{{number}}}", "bold green"), "  ", at, "  ", time, "  ", safe(move.action))
    if is_empty and limit != 0:
        if branch is not None and repo.refs.read(ref) is None:
            repo.branch(branch)  # raises NotFound, with similar names
        out.note(f"no move of {name} is on record")


def _document(name: str, number: int, move: ReflogEntry) -> Document:
    return {
        "name": f"{name}@{{{number}}}",
        "old": None if move.old is None else str(move.old),
        "new": None if move.new is None else str(move.new),
        "time": move.time.isoformat(),
        "action": move.action,
    }
