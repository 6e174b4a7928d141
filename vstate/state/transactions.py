"""Transactions: changes that are committed together, or undone together; and updates, which run again until
nobody else has changed the keys that they read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from threading import Lock
from types import TracebackType
from typing import Any, TypeVar
from weakref import ref

from vstate.arguments import called, check_count, check_info
from vstate.errors import Conflict, MergeConflict
from vstate.objects.commit import Commit
from vstate.state.base import ATTEMPTS, Message
from vstate.state.committing import commit_now
from vstate.state.handle import Handle
from vstate.state.moving import go_to_newest
from vstate.state.position import ReadSet, Saved, Savepoint
from vstate.state.turns import Token

_S = TypeVar("_S")

_CONTENDED_SECONDS = 0.5
"""For so long after a lost race, each attempt begins with a pause, also that of another update. Without it, a
process that commits on and on would win until it is done."""
_LONGEST_PAUSE = 0.05
"""Seconds. The pause is a random part of the time that the lost attempt took, and of this at the most."""


class Transaction(AbstractContextManager[_S]):
    """Commits at the end of the with block; on an exception it undoes the changes made since it began.

    Inside another transaction, or a task, the outer one commits. `in_turn` is for a caller that has the turn.
    If an exception keeps `__exit__` from running, the changes are undone once nothing holds the transaction.
    """

    def __init__(
        self, handle: Handle, state: _S, message: str, info: Mapping[str, Any], *, in_turn: bool = False
    ) -> None:
        check_info(info)
        self._handle = handle
        self._state = state
        self._message = message
        self._info = info
        self._in_turn = in_turn
        self._token = Lock()
        self._is_outermost = in_turn
        self._savepoint: Savepoint | None = None

    def __enter__(self) -> _S:
        try:
            if not self._in_turn:
                self._token.acquire()
                self._is_outermost = self._handle.turns.take(self._token)
            self._savepoint = self._handle.savepoint()
        except BaseException:
            self._end_turn()
            raise
        return self._state

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        savepoint = self._savepoint
        if savepoint is None:  # an awaited block ends by this also if it could not begin
            return
        try:
            if error is not None:
                savepoint.end()
                self._handle.settle_after(error)
            elif self._is_outermost:
                # Not alone(): this block may end in another context than the one that has the turn.
                self._handle.operate(self._end, savepoint)
            else:
                savepoint.release()
        finally:
            self._end_turn()

    def _end_turn(self) -> None:
        if self._token.locked():
            self._token.release()
            self._handle.turns.ring()

    def _end(self, savepoint: Savepoint) -> None:
        # Released before the commit: if the commit fails, everything is still staged.
        savepoint.release()
        commit_now(self._handle, self._message, self._info)


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
    if attempts is not ATTEMPTS:
        check_count("attempts", attempts, 1)
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
        made = _attempt(handle, function, message, info)
        if not isinstance(made, Conflict):
            return made
        if attempt == attempts:
            if not isinstance(made, MergeConflict):
                raise made
            raise MergeConflict(made.keys, branch=made.branch, conflicts=made.conflicts, operation="update")
        ended = time.monotonic()
        handle.contended = ended + _CONTENDED_SECONDS, min(ended - began, _LONGEST_PAUSE)
    raise AssertionError("the last attempt returns or raises")


def _attempt(
    handle: Handle, function: Callable[[], object], message: Message, info: Mapping[str, Any]
) -> Commit | Conflict | None:
    """The commit of one run of the function, or the conflict by which this commit lost a race."""
    token = Lock()
    try:
        with token:
            notes = _begin(handle, token)
            returned = called("the function of an update", function)
            text = called("message", message, returned) if callable(message) else message
            try:
                return handle.operate(commit_now, handle, text, info, None, notes.__contains__)
            except Conflict as conflict:
                lost = conflict.with_traceback(None)  # or its frames would hold the conflict, and it them
    except BaseException as error:
        handle.settle_after(error)
        raise
    handle.settle_after(lost)
    return lost


def _begin(handle: Handle, token: Token) -> ReadSet:
    """Go to the newest commit, and note each key that is read or written there until the token is over."""
    with handle.lock:
        epoch = handle.settle().epoch
        go_to_newest(handle)
        if handle.at.epoch != epoch:  # a commit has landed late, under values that were edited back since
            handle.require_clean("update")
        notes = ReadSet()
        at = handle.at
        handle.at = at.moved(open=(Saved(ref(token), at.epoch, {}, notes, at.events),))
    return notes
