"""Undo: find the last move of a branch that is not undone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from vstate.arguments import check_count
from vstate.errors import InvalidInput, NotFound
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.repo.names.refs import HEADS, ReflogEntry, Refs
from vstate.repo.objects import Objects

_UNDO = re.compile(r"undo(?: (?P<steps>[1-9][0-9]{,8}) moves)?: ")
_REDO = "redo: "


@dataclass(frozen=True, slots=True)
class Undo:
    """A move to make: `branch` from the commit `old` to `new`, with the action in its reflog."""

    branch: str
    old: Commit
    new: Commit
    action: str


def find_undo(objects: Objects, refs: Refs, branch: str, old: Commit, steps: int) -> Undo:
    """The move that reverses the last `steps` moves of the branch, which is at `old`.

    A reflog line `undo: …` marks the last unmarked move before it as undone, so undoing twice goes two
    moves back. A line `redo: …` cancels the last undo.
    """
    check_count("steps", steps, 1)
    redone, undone, moves = 0, 0, list[ReflogEntry]()
    for line in _moves(refs, branch, old.oid):
        if line.action.startswith(_REDO):
            redone += 1
        elif (mark := _UNDO.match(line.action)) is not None and redone:
            redone -= 1
        elif mark is not None:
            undone += int(mark["steps"] or 1)
        elif undone:
            undone -= 1
        else:
            moves.append(line)
            if line.old is None:
                raise InvalidInput(
                    f"branch {branch!r} began with {line.action!r}, and did not exist before; to remove it, "
                    f"switch to another branch and delete it: vstate branch -d {branch}"
                )
            if len(moves) == steps:
                how = "undo" if steps == 1 else f"undo {steps} moves"
                return Undo(branch, old, _commit(objects, line.old), f"{how}: {moves[0].action}")
    count = f"only {len(moves)} of {steps} moves" if moves else "nothing"
    raise InvalidInput(f"{count} to undo on branch {branch!r}: all earlier moves in its reflog are undone")


def find_redo(objects: Objects, refs: Refs, branch: str, old: Commit) -> Undo:
    """The move that reverses the last undo of the branch, which is at `old`, unless it has moved since."""
    redone = 0
    for line in _moves(refs, branch, old.oid):
        if line.action.startswith(_REDO):
            redone += 1
        elif not _UNDO.match(line.action) or line.old is None:
            break
        elif redone:
            redone -= 1
        else:
            undone = _UNDO.sub("", line.action, count=1)
            return Undo(branch, old, _commit(objects, line.old), f"{_REDO}{undone}")
    raise InvalidInput(f"nothing to redo on branch {branch!r}: the last move was no undo")


def _moves(refs: Refs, branch: str, at: ObjectId) -> Iterator[ReflogEntry]:
    """The lines of the reflog that led to the branch's commit, newest first.

    Without lines that moved nothing, and without stale lines, which do not connect: a crash in a store
    without transactions leaves such lines, and so does a clock that is behind.
    """
    now: ObjectId | None = at
    for line in refs.reflog(HEADS + branch):
        marks = line.action.startswith(("undo", _REDO))
        if line.new == now and (marks or line.old != line.new):
            yield line
            now = line.old


def _commit(objects: Objects, oid: ObjectId) -> Commit:
    commit = objects.find_commit(oid)
    if commit is None:
        raise NotFound(f"the earlier commit {oid.short} is gone: gc has removed it", name=str(oid))
    return commit
