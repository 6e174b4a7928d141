"""Transactions: changes that are committed together, or taken back."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, ContextDecorator, contextmanager
from functools import partial
from threading import Lock
from typing import Any, Self, TypeVar

from vstate.errors import CannotLoad, VStateError
from vstate.objects.expiry import split_expiry
from vstate.state.moving import MovingMapping
from vstate.state.turns import Turn
from vstate.state.unfinished import Step
from vstate.values.entry import Encoded

_W = TypeVar("_W")


class TransactionalMapping(MovingMapping):
    """A mapping that can be taken back to what it was, by itself if a with block fails."""

    def transaction(self, message: str = "", **info: Any) -> _Transaction[Self]:
        """Commit at the end of the with block; on an exception discard what was changed inside.

        Inside another transaction, or a task, it leaves the commit to that one. Transactions of several
        threads on one handle follow one another; a failing one discards whatever changed on the handle
        since it began, so give independent work handles of its own.
        """
        return _Transaction(partial(self._transact, message, info))

    def transaction_in_turn(self, message: str, info: Mapping[str, Any]) -> _Transaction[Self]:
        """A transaction for whoever has the turn, and is not inside another one."""
        return _Transaction(partial(self._transact, message, info, in_turn=True))

    def _transact(
        self, message: str, info: Mapping[str, Any], *, in_turn: bool = False
    ) -> Generator[Self, None, None]:
        turn = Turn()
        with turn.bell, turn.held:
            nested = self.turns.nested and not in_turn
            if not nested and not in_turn:
                self.turns.take(turn)
            saved = self._saved()
            try:
                yield self
            except BaseException as error:
                # Written down first, and without calling a function of ours, which an interruption can prevent.
                with self._lock:
                    self._unfinished.steps.append(saved.step)
                _noting(error, saved.restore)
                raise
            if not nested:
                # Not commit(): this block may end in another context than the one that has the turn.
                with self._lock:
                    self._catch_up()
                    self._commit(message, info)

    def savepoint(self) -> Callable[[], None]:
        """A function that takes the mapping back to what it is now; recorded events stay."""
        return self._saved().restore

    def _saved(self) -> Savepoint:
        with self._lock:
            self._catch_up()
            staged = self._compared(self._tree)
            saved = Savepoint(self, staged.encoded | staged.set_alike)
            self._savepoints.add(saved)
        return saved

    def _restore(self, saved: dict[str, Encoded | None]) -> None:
        with self._lock:
            now = self._compared(self._tree, tolerant=True)
            moved, encoded_now = set(now.unpicklable), now.encoded | now.set_alike
            for key in encoded_now.keys() | saved.keys():
                if key not in saved or key not in encoded_now or not _same(encoded_now[key], saved[key]):
                    moved.add(key)
            # Load first, change then: a value that does not load leaves the others, and itself, in hand.
            restored: dict[str, Any] = {}
            failures: list[CannotLoad] = []
            for key in moved & saved.keys():
                encoded = saved[key]
                if encoded is not None:
                    try:
                        restored[key] = self._working.decoded(key, encoded)
                    except CannotLoad as error:
                        failures.append(error)
                        moved.discard(key)
            back = {key: saved[key] for key in moved & saved.keys()}
            self._unfinished.surely(partial(self._put_back, moved, back, restored))
            if failures:
                raise failures[0]

    def _put_back(
        self, moved: set[str], back: Mapping[str, Encoded | None], values: Mapping[str, Any]
    ) -> None:
        self._working.forget(moved)
        for key, encoded in back.items():
            if encoded is None:
                self._working.delete(key)
                continue
            self._working.set(key, values[key])
            expiry = split_expiry(encoded.entry)[1]
            if expiry != self._working.expiry(key, self._tree):
                self._working.expire(key, expiry)


class _Transaction(AbstractContextManager[_W], ContextDecorator):
    """The context manager of a generator, which is closed if an interruption keeps its with block from beginning.

    One that keeps `__exit__` itself from beginning leaves it open until the exception is let go of: it is then
    discarded.
    """

    def __init__(self, begin: Callable[[], Generator[_W, None, None]]) -> None:
        self._begin = begin

    def _recreate_cm(self) -> Self:
        return type(self)(self._begin)  # as a decorator, a new one for each call

    def __enter__(self) -> _W:
        self._block = block = contextmanager(self._begin)()
        try:
            return block.__enter__()
        except BaseException:
            block.gen.close()
            raise

    def __exit__(self, *raised: Any) -> bool | None:
        return self._block.__exit__(*raised)


class Savepoint:
    """What was staged at some time; empty once a commit made that the committed state."""

    def __init__(self, state: TransactionalMapping, staged: dict[str, Encoded | None]) -> None:
        self._state = state
        self.staged = staged
        self.step: Step = Lock(), partial(state._restore, staged)
        """`restore`, as a step that is left to do."""

    def restore(self) -> None:
        """Take the mapping back to that."""
        with self._state._lock:
            if self.step not in self._state._unfinished.steps:
                self._state._unfinished.steps.append(self.step)
            self._state._unfinished.finish()


def _noting(error: BaseException, action: Callable[[], None]) -> None:
    """Carry out the action; if that fails too, say so on the error that is on its way to the caller."""
    try:
        action()
    except VStateError as failure:
        error.add_note(f"vstate, while it undid what changed: {failure}")


def _same(one: Encoded | None, other: Encoded | None) -> bool:
    """Whether the two are the same change. What slides is begun anew each time that one looks."""
    if one is None or other is None:
        return one is other
    if one.entry == other.entry:
        return True
    (bare, expiry), (other_bare, other_expiry) = split_expiry(one.entry), split_expiry(other.entry)
    slides = expiry is not None and other_expiry is not None and 0 < expiry.ttl == other_expiry.ttl
    return bare == other_bare and (slides or expiry == other_expiry)
