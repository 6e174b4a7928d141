"""Undo: which move of a branch is the last that is not undone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from vstate.errors import InvalidInput, NotFound
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.repo.names.refs import HEADS, ReflogEntry, Refs
from vstate.repo.objects import Objects

__all__ = ["Undo", "find_redo", "find_undo"]

_UNDO = re.compile(r"undo(?: (?P<steps>[1-9][0-9]{,8}) moves)?: ")
_REDO = "redo: "


@dataclass(frozen=True, slots=True)
class Undo:
    """A move to be made: `branch` from the commit `old` to `new`, with this line in its reflog."""

    branch: str
    old: Commit
    new: Commit
    action: str


def find_undo(objects: Objects, refs: Refs, branch: str, old: Commit, steps: int) -> Undo:
    """What takes back the last `steps` moves of the branch, which is at `old`; as `Repository.undo` promises.

    A line `undo: …` marks the last move before it that is not marked yet as undone, so that undoing twice goes
    two moves back. A line `redo: …` takes the marks of the last undo away, as if that had never been.
    """
    if steps < 1:
        raise InvalidInput(f"steps is a number of moves from 1 on, not {steps}")
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
                    f"branch {branch!r} began with {line.action!r}, and was nowhere before; to do without the "
                    f"branch, switch to another and delete it: vstate branch -d {branch}"
                )
            if len(moves) == steps:
                how = "undo" if steps == 1 else f"undo {steps} moves"
                return Undo(branch, old, _commit(objects, line.old), f"{how}: {moves[0].action}")
    count = f"only {len(moves)} of {steps} moves" if moves else "nothing"
    raise InvalidInput(f"{count} to undo on branch {branch!r}: its reflog has no more that are not undone")


def find_redo(objects: Objects, refs: Refs, branch: str, old: Commit) -> Undo:
    """What takes back the last undo of the branch, which is at `old`, if nothing else has moved it since."""
    redone = 0
    for line in _moves(refs, branch, old.oid):
        if line.action.startswith(_REDO):
            redone += 1
        elif not _UNDO.match(line.action) or line.old is None:
            break
        elif redone:
            redone -= 1
        else:
            what = _UNDO.sub("", line.action, count=1)
            return Undo(branch, old, _commit(objects, line.old), f"{_REDO}{what}")
    raise InvalidInput(f"nothing to redo on branch {branch!r}: the last move was no undo")


def _moves(refs: Refs, branch: str, at: ObjectId) -> Iterator[ReflogEntry]:
    """The lines of the reflog that led to where the branch is, newest first.

    Left out are those that moved nothing, and those that do not join on: a process that died while it moved
    the branch in a store without transactions, or one whose clock is behind, leaves such a line.
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
        raise NotFound(f"the commit {oid.short} of before is gone: gc has removed it", name=str(oid))
    return commit
