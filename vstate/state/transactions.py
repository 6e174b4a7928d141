"""Transactions: changes that are committed together, or undone together."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, ContextDecorator
from threading import Lock
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from vstate.arguments import check_info
from vstate.state.committing import commit_now
from vstate.state.handle import Handle
from vstate.state.savepoints import Savepoint

_S = TypeVar("_S")


class Transaction(AbstractContextManager[_S], ContextDecorator, Generic[_S]):
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

    def _recreate_cm(self) -> Self:
        """As a decorator, another transaction for each call."""
        return type(self)(self._handle, self._state, self._message, self._info, in_turn=self._in_turn)

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
        assert savepoint is not None, "the with block has begun"
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
