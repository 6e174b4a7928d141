"""Updates: functions that run again until nobody else has changed the keys that they read.

Updates that wait for one turn make a chain: each has its own commit, and one transaction takes all of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from contextvars import copy_context
from threading import Lock
from types import TracebackType
from typing import Any
from weakref import ref

from vstate.arguments import called, check_info
from vstate.errors import Conflict, InvalidInput, MergeConflict, VStateError
from vstate.objects.commit import Commit
from vstate.repo.unpublished import Rows
from vstate.state.base import Message
from vstate.state.committing import commit_now, may_have_written, publish_chain
from vstate.state.handle import Handle
from vstate.state.moving import go_to_newest
from vstate.state.position import Attempt, Chain, Notes, Token
from vstate.state.turns import Turn

_SHORT = 0.05  # seconds
_LONG = 4_000_000  # bytes
_PAUSE = 0.001  # seconds, doubled with each attempt


def run_update(
    handle: Handle,
    function: Callable[[], object],
    in_turn: bool = False,
    /,
    *,
    attempts: int = 10,
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
    if handle.turns.nested:
        called("the function of an update", function)
        return None
    # The turn only, not the lock: threads that the function starts may read and write too.
    turn = Turn()
    with turn.bell, turn.held:
        handle.turns.take(turn)
        return _run(handle, function, attempts, message, info)


def _run(
    handle: Handle, function: Callable[[], object], attempts: int, message: Message, info: Mapping[str, Any]
) -> Commit | None:
    handle.require_clean("update")
    queue = f"update {handle.own_branch()}"
    for attempt in range(1, attempts + 1):
        # Short functions queue rather than run in vain. Long ones queue only after they lost a race, because
        # others can go on with other keys meanwhile.
        queues = attempt > 1 or handle.update_seconds < _SHORT
        with handle.store.turn(queue, lost=attempt > 1) if queues else nullcontext():
            try:
                return _attempt(handle, function, message, info)
            except _LostRace as lost:
                if attempt == attempts:
                    raise lost.as_update() from None
        time.sleep(_PAUSE * 2 ** min(attempt, 8) * os.urandom(1)[0] / 256)
    raise AssertionError("the last attempt returns or raises")


def _attempt(
    handle: Handle, function: Callable[[], object], message: Message, info: Mapping[str, Any]
) -> Commit | None:
    token = Lock()
    try:
        with token:
            notes = _begin(handle, token)
            began = time.monotonic()
            returned = called("the function of an update", function)
            text = called("message", message, returned) if callable(message) else message
            handle.update_seconds = time.monotonic() - began
            try:
                return handle.operate(commit_now, handle, text, info, None, notes.__contains__)
            except Conflict as conflict:
                raise _LostRace(conflict) from None
    except BaseException as error:
        handle.settle_after(error)
        raise


def _begin(handle: Handle, token: Token) -> Notes:
    """Go to the newest commit, and note each key that is read or written there until the token is over."""
    with handle.lock:
        if handle.settle().rest is None or handle.rest.chain is None:
            go_to_newest(handle)
        notes = Notes()
        handle.change(lambda at: at.moved(attempt=Attempt(ref(token), notes, at.events)))
    return notes


class Update:
    """One update among others. `function`, `report` and `message` run in the context of its caller.

    `report` gets the commit. Once the update is `done`, `result` is its outcome.
    """

    def __init__(
        self,
        function: Callable[[], object],
        report: Callable[[Commit | None], object],
        *,
        attempts: int = 10,
        message: Message = "",
        **info: Any,
    ) -> None:
        if info:
            check_info(info)
        self.function = function
        self.attempts = attempts
        self.message = message
        self.info = info
        self.done = False
        self._report = report
        self._context = copy_context()
        self._commit: Commit | None = None
        self._error: BaseException | None = None
        self._trace: TracebackType | None = None

    def join(self, handle: Handle, turn: Turn) -> None:
        """Have the functions run inside the turn."""
        self._context.run(handle.turns.join, turn)

    def attempt(self, handle: Handle) -> Commit | None:
        """Call the function once, and make its commit in the chain of the handle."""
        return self._context.run(_attempt, handle, self.function, self.message, self.info)

    def run(self, handle: Handle, *, in_turn: bool = True) -> None:
        """Carry out the update by itself, as `run_update`."""
        try:
            commit = self._context.run(
                run_update,
                handle,
                self.function,
                in_turn,
                attempts=self.attempts,
                message=self.message,
                **self.info,
            )
        except BaseException as error:  # raised again by `result`, where the caller is
            self.fail(error)
        else:
            self.end(commit)

    def end(self, commit: Commit | None) -> None:
        """Report the commit, and keep it for `result`."""
        try:
            self._context.run(self._report, commit)
        except BaseException as error:  # as in `run`
            self.fail(error)
        self._commit, self.done = commit, True

    def fail(self, error: BaseException) -> None:
        """Keep the exception for `result`."""
        self._error, self._trace, self.done = error, error.__traceback__, True

    def result(self) -> Commit | None:
        """The commit, None if nothing changed. Raises the exception that ended the update. It is done.

        It is asked for once: the traceback of the exception leads here, so keeping both would be a cycle.
        """
        assert self.done  # else None would say that nothing changed
        error, trace = self._error, self._trace
        self._error = self._trace = None
        try:
            if error is not None:
                # Several updates may have met one error. Its traceback names the caller of this one alone.
                raise error.with_traceback(trace)
        finally:
            del error, trace
        return self._commit


End = tuple[Update, Commit | BaseException | None]
"""An update, and its commit or the exception that ended it."""


def run_updates(handle: Handle, updates: Sequence[Update], turn: Turn) -> None:
    """Carry out the updates one after the other, in this turn; their commits go to the store together.

    It carries out the first, and more for a short while: those that are not `done` then are left for another
    turn. An update that raises, and all of them if the branch moves meanwhile, are carried out again, each by
    itself. So an exception never depends on a commit that was not published.
    """
    tried = list(updates[:1])
    try:
        for update in updates:
            update.join(handle, turn)
        if len(updates) > 1:
            with suppress(VStateError):  # an update that is carried out by itself meets the same error
                _run_chain(handle, updates, tried)
        for update in tried:
            if not update.done:
                update.run(handle)
    except BaseException as error:
        # Its caller must not carry out an update again that is on the branch perhaps.
        for update in tried:
            if not update.done:
                update.fail(error)


def _run_chain(handle: Handle, updates: Sequence[Update], tried: list[Update]) -> None:
    branch = handle.own_branch()
    short = handle.update_seconds < _SHORT
    with handle.store.turn(f"update {branch}", lost=False) if short else nullcontext():
        token = Lock()
        with token:
            rows = _begin_chain(handle, token)
            if rows is None:
                return
            ends: list[End] = []
            end = time.monotonic() + _SHORT
            for update in updates:
                if update is not tried[0]:
                    if time.monotonic() > end or rows.size > _LONG:
                        break
                    tried.append(update)
                ends += _attempted(handle, update)
            _end_chain(handle, branch, ends)


def _attempted(handle: Handle, update: Update) -> list[End]:
    """The end of an update in the chain; none if the update has to be carried out by itself."""
    before = handle.rest.chain
    try:
        return [(update, update.attempt(handle))]
    except BaseException as error:  # without a commit, the update meets the same error by itself
        return [] if handle.rest.chain is before else [(update, error)]


def _begin_chain(handle: Handle, token: Token) -> Rows | None:
    """Begin a chain at the newest commit; its rows. None if something is under way, or staged, here."""
    with handle.lock:
        handle.settle()
        if handle.has_uncommitted():
            return None
        go_to_newest(handle)
        at, rows = handle.at, Rows()
        if at.rest is not None:
            return None
        handle.repo.objects.show(rows)
        return rows if handle.swap(at, at.moved(chain=Chain(ref(token), at.head, rows))) else None


def _end_chain(handle: Handle, branch: str, ends: Sequence[End]) -> None:
    """Publish the chain, and end its updates; each by itself is still to be carried out if that failed."""
    failure: BaseException | None = None
    try:
        if not handle.operate(_published, handle, branch):
            return
    except BaseException as error:
        handle.settle_after(error)
        if isinstance(error, VStateError) and not may_have_written(error):
            raise
        # The commits may be on the branch, so their updates do not run again.
        failure = error
    for update, end in ends:
        end = failure or end
        if isinstance(end, BaseException):
            update.fail(end)
        else:
            update.end(end)


def _published(handle: Handle, branch: str) -> bool:
    chain = handle.rest.chain
    if chain is not None and chain.commits:
        return publish_chain(handle, branch, chain)
    handle.change(lambda at: at.moved(chain=None))
    return True


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
