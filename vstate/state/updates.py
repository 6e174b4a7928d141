"""Updates: functions that run again until nobody else has changed the keys that they read."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any
from weakref import ref

from vstate.arguments import called, check_info
from vstate.errors import Conflict, InvalidInput, MergeConflict
from vstate.objects.commit import Commit
from vstate.state.base import ATTEMPTS, Message
from vstate.state.committing import commit_now
from vstate.state.handle import Handle
from vstate.state.moving import go_to_newest
from vstate.state.position import ReadSet, Saved
from vstate.state.turns import Token

_CONTENDED_SECONDS = 0.5
"""For so long after a lost race, each attempt begins with a pause, also that of another update. Without it, a
process that commits on and on would win until it is done."""
_LONGEST_PAUSE = 0.05
"""Seconds. The pause is a random part of the time that the lost attempt took, and of this at the most."""


def run_update(
    handle: Handle,
    function: Callable[[], object],
    in_turn: bool = False,
    /,
    *,
    attempts: int = ATTEMPTS,
    message: Message = "",
    **info: Any,
) -> Commit | None:
    """Call the function and commit its changes, as `State.apply` promises.

    `in_turn` says that the caller has the turn.
    """
    if info:
        check_info(info)
    if attempts < 1:
        raise InvalidInput(f"attempts is a number from 1 on, not {attempts}")
    if in_turn:
        return _run(handle, function, attempts, message, info)
    # The turn only, not the lock: threads that the function starts may read and write too.
    token = Lock()
    with handle.turns, token:
        if handle.turns.take(token):
            return _run(handle, function, attempts, message, info)
        called("the function of an update", function)
        return None


def _run(
    handle: Handle, function: Callable[[], object], attempts: int, message: Message, info: Mapping[str, Any]
) -> Commit | None:
    handle.require_clean("update")
    handle.own_branch()  # before the function is called, if there is none
    for attempt in range(1, attempts + 1):
        contended_until, longest = handle.contended
        if time.monotonic() < contended_until:
            time.sleep(longest * os.urandom(1)[0] / 256)
        began = time.monotonic()
        try:
            return _attempt(handle, function, message, info)
        except _LostRace as lost:
            if attempt == attempts:
                raise lost.as_update() from None
        ended = time.monotonic()
        handle.contended = ended + _CONTENDED_SECONDS, min(ended - began, _LONGEST_PAUSE)
    raise AssertionError("the last attempt returns or raises")


def _attempt(
    handle: Handle, function: Callable[[], object], message: Message, info: Mapping[str, Any]
) -> Commit | None:
    token = Lock()
    try:
        with token:
            notes = _begin(handle, token)
            returned = called("the function of an update", function)
            text = called("message", message, returned) if callable(message) else message
            try:
                return handle.operate(commit_now, handle, text, info, None, notes.__contains__)
            except Conflict as conflict:
                raise _LostRace(conflict) from None
    except BaseException as error:
        handle.settle_after(error)
        raise


def _begin(handle: Handle, token: Token) -> ReadSet:
    """Go to the newest commit, and note each key that is read or written there until the token is over."""
    with handle.lock:
        handle.settle()
        go_to_newest(handle)
        notes = ReadSet()
        handle.change(lambda at: at.moved(open=(Saved(ref(token), at.epoch, {}, notes, at.events),)))
    return notes


class _LostRace(Exception):
    """The commit of an attempt met this conflict."""

    def __init__(self, conflict: Conflict) -> None:
        super().__init__()
        self._conflict = conflict

    def as_update(self) -> Conflict:
        """The conflict, told as an update's."""
        found = self._conflict
        if not isinstance(found, MergeConflict):
            return found
        return MergeConflict(found.keys, branch=found.branch, conflicts=found.conflicts, operation="update")
