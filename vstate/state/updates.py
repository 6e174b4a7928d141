"""Updates: functions called again until nobody else changed what they read."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from threading import Lock
from typing import Any

from vstate.arguments import called
from vstate.errors import Conflict, InvalidInput, MergeConflict
from vstate.objects.commit import Commit, Event
from vstate.state.base import Message
from vstate.state.transactions import TransactionalMapping
from vstate.state.turns import Turn
from vstate.state.working import Noticed

_SHORT = 0.05  # seconds
_PAUSE = 0.001  # seconds, doubled with each attempt


class UpdatableMapping(TransactionalMapping):
    """A mapping that a function can change as if it were alone with the branch."""

    def run_update(
        self, function: Callable[[], object], *, attempts: int = 10, message: Message = "", **info: Any
    ) -> Commit | None:
        if self.turns.nested:
            _check_attempts(attempts)
            called("the function of an update", function)
            return None
        # The turn only, not the lock: what the function starts in other threads may read and write too.
        turn = Turn()
        with turn.bell, turn.held:
            self.turns.take(turn)
            return self.update_in_turn(function, attempts=attempts, message=message, **info)

    def update_in_turn(
        self, function: Callable[[], object], *, attempts: int = 10, message: Message = "", **info: Any
    ) -> Commit | None:
        """`run_update` for whoever has the turn, and is not inside another one."""
        _check_attempts(attempts)
        self._require_clean("update")
        queue = f"update {self._own_branch()}"
        for attempt in range(1, attempts + 1):
            # Short ones go one after the other, rather than do the work in vain; long ones only when
            # they were in each other's way, since others can go on with other keys meanwhile.
            one_by_one = attempt > 1 or self._update_seconds < _SHORT
            with self.store.turn(queue, lost=attempt > 1) if one_by_one else nullcontext():
                try:
                    return self._try_update(function, message, info)
                except _LostRace as lost:
                    if attempt == attempts:
                        raise lost.told() from None
            time.sleep(_PAUSE * 2 ** min(attempt, 8) * os.urandom(1)[0] / 256)
        raise AssertionError("the last attempt returns or raises")

    def _try_update(
        self, function: Callable[[], object], message: Message, info: Mapping[str, Any]
    ) -> Commit | None:
        span, attempt = Lock(), _Attempt(self)
        try:
            with span:
                with self._lock:
                    self._catch_up()
                    self._go_to_newest()
                    self._unfinished.begin(span, attempt.finish)
                    noticed = attempt.begin()
                began, running = time.monotonic(), Lock()
                self._running = running
                with running:
                    returned = called("the function of an update", function)
                    told = called("message", message, returned) if callable(message) else message
                self._update_seconds = time.monotonic() - began
                with self._lock:
                    try:
                        commit = self._commit(told, info, noticed.__contains__)
                    except Conflict as conflict:
                        raise _LostRace(conflict) from None
                    attempt.done = True
                    return commit
        finally:
            with self._lock:
                self._unfinished.finish()


class _LostRace(Exception):
    """The commit of an update met this conflict."""

    def __init__(self, conflict: Conflict) -> None:
        super().__init__()
        self._conflict = conflict

    def told(self) -> Conflict:
        """The conflict, as an update's."""
        found = self._conflict
        if not isinstance(found, MergeConflict):
            return found
        return MergeConflict(found.keys, branch=found.branch, conflicts=found.conflicts, operation="update")


class _Attempt:
    """One attempt of an update: what its function reads and writes, to be undone unless it is `done`."""

    def __init__(self, state: UpdatableMapping) -> None:
        self._state = state
        self._events: list[Event] = []
        self.noticed: Noticed | None = None
        self.done = False

    def begin(self) -> Noticed:
        """Take note from now on."""
        self._events = list(self._state._events)
        self.noticed = noticed = self._state._working.notice()
        return noticed

    def finish(self) -> None:
        """Take no more notes, and undo what was done."""
        state = self._state
        state._working.end_notice()
        noticed = self.noticed
        if self.done or noticed is None:
            return
        known = set(map(id, self._events))
        state._events = [event for event in state._events if id(event) in known]
        staged = state._compared(state._tree, tolerant=True)
        # What it neither read nor wrote is another thread's, and stays.
        touched = {*staged.changes, *staged.unpicklable, *staged.set_alike}
        state._working.forget([key for key in touched if key in noticed])


def _check_attempts(attempts: int) -> None:
    if attempts < 1:
        raise InvalidInput(f"attempts is a number from 1 on, not {attempts}")
