"""Live: the mapping without history."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import islice
from threading import Lock
from typing import Any, NoReturn

from vstate.arguments import called, check_info, check_new_key, check_state_key
from vstate.errors import NotVersioned
from vstate.forks import renew_in_child
from vstate.objects import expiry
from vstate.objects.commit import Event
from vstate.objects.expiry import Expiry
from vstate.plural import counted
from vstate.state.base import ATTEMPTS, Message, State, StateHandle, make_expiry, missing
from vstate.state.namespace import Namespace


class LiveHandle(StateHandle):
    """The values of a Live, its expiries, and the events recorded on it."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, Any] = {}
        self.expiries: dict[str, Expiry] = {}
        self._events: list[Event] = []
        self._sorted: list[str] | None = None  # None once keys came or went since they were sorted
        self.begun: LiveSavepoint | None = None
        """The savepoint of the transaction that is under way."""
        renew_in_child(self, LiveHandle.renew)

    def renew(self) -> None:
        if self.begun is not None and self.turns.is_taken and not self.turns.nested:
            self.begun.restore()  # the thread of the transaction is not here
        super().renew()

    def write(self, key: str, value: Any) -> None:
        """Set a key. Its expiry is taken away."""
        key = check_new_key(key)
        with self.lock:
            # No call from here on: an exception could come between the changes.
            if key not in self.values:
                self._sorted = None
            self.values[key] = value
            if key in self.expiries:
                del self.expiries[key]

    def delete(self, key: str) -> None:
        """Delete a key; KeyNotFound."""
        with self.lock:
            self.require(key)
            self._sorted = None
            del self.values[key]
            if key in self.expiries:
                del self.expiries[key]

    def require(self, key: str) -> None:
        """Raise KeyNotFound unless the key is there now."""
        check_state_key(key)
        self.drop_expired()
        if key not in self.values:
            raise missing(key)

    def find(self, prefix: str) -> tuple[list[str], int, int]:
        """The sorted keys, and the first and last position of those that begin with `prefix`."""
        with self.lock:
            self.drop_expired()
            keys = self._sorted
            if keys is None:
                keys = self._sorted = sorted(self.values)
            start = bisect_left(keys, prefix)
            # In the order of the keys, their first characters are less than, equal to, or greater than the
            # prefix.
            end = bisect_right(keys, prefix, lo=start, key=lambda key: key[: len(prefix)])
            return keys, start, end

    def drop_expired(self) -> None:
        """Let go of expired keys."""
        if not self.expiries:
            return
        with self.lock:
            at = expiry.now()
            for key in [key for key, found in self.expiries.items() if found.at <= at]:
                self._sorted = None
                if key in self.values:
                    del self.values[key]
                del self.expiries[key]

    def restore(self, values: dict[str, Any], expiries: dict[str, Expiry]) -> None:
        """Have these values and expiries, in two assignments."""
        with self.lock:
            self.values, self.expiries, self._sorted = values, expiries, None

    def savepoint(self) -> LiveSavepoint:
        return LiveSavepoint(self)

    def record_event(self, event: Event) -> None:
        with self.lock:
            self._events.append(event)

    def forget_event(self, event: Event) -> bool:
        with self.lock:
            kept = [each for each in self._events if each is not event]
            found = len(kept) < len(self._events)
            self._events = kept
        return found

    def pending_events(self) -> list[Event]:
        with self.lock:
            return list(self._events)

    def may_have_changed(self, prefix: str) -> bool:
        """True: there is nothing to compare with."""
        return True


class LiveSavepoint:
    """The values of a Live by key, to go back to."""

    def __init__(self, handle: LiveHandle) -> None:
        self._handle = handle
        with handle.lock:
            self._values, self._expiries = dict(handle.values), dict(handle.expiries)

    def restore(self) -> None:
        """Have the keys and values of then. A value that was edited in place stays edited."""
        self._handle.restore(self._values, self._expiries)

    def release(self) -> None:
        """Keep the values as they are."""


class Live(State):
    """A dict-like state in memory, for any object, unpicklable ones too.

    It has the methods that a task calls on `Versioned`; `commit` does nothing and returns None, and the
    methods that need a history raise NotVersioned.
    """

    _handle: LiveHandle
    _instead = "dict(live) has its values, and Live().update(values) takes them"

    def __init__(self) -> None:
        self._handle = LiveHandle()

    def __getitem__(self, key: str) -> Any:
        self._handle.drop_expired()
        try:
            return self._handle.values[key]
        except (KeyError, TypeError):
            raise missing(key) from None

    def __setitem__(self, key: str, value: Any) -> None:
        self._handle.write(key, value)

    def __delitem__(self, key: str) -> None:
        self._handle.delete(key)

    def __contains__(self, key: object) -> bool:
        self._handle.drop_expired()
        return isinstance(key, str) and key in self._handle.values

    def _scan(self, prefix: str, *, reverse: bool = False) -> Iterator[str]:
        keys, start, end = self._handle.find(prefix)
        return iter(keys[start:end][::-1]) if reverse else islice(keys, start, end)

    def _count(self, prefix: str) -> int:
        _, start, end = self._handle.find(prefix)
        return end - start

    def expire(self, key: str, ttl: float | timedelta | None) -> None:
        handle, wanted = self._handle, None if ttl is None else make_expiry(ttl)
        with handle.lock:
            handle.require(key)
            if wanted is not None:
                handle.expiries[key] = wanted
            elif key in handle.expiries:
                del handle.expiries[key]

    def expires(self, key: str) -> datetime | None:
        with self._handle.lock:
            self._handle.require(key)
            found = self._handle.expiries.get(key)
        return None if found is None else found.moment

    def namespace(self, name: str) -> Namespace:
        return Namespace(self, name)

    def purge(self) -> None:
        """Let go of expired keys."""
        self._handle.drop_expired()

    def commit(self, message: str = "", *, keys: Iterable[str] | None = None, **info: Any) -> None:
        """Call the functions of `before_commit`, and nothing else: there is no history to commit to."""
        check_info(info)
        with self._handle.lock:
            self._handle.hooks.run()

    @contextmanager
    def transaction(self, message: str = "", **info: Any) -> Iterator[Live]:
        """Undo by key, on an exception, every set and delete made inside.

        A value that was edited in place stays edited: a value that cannot be pickled cannot be copied.
        """
        check_info(info)
        handle, token = self._handle, Lock()
        with handle.turns, token:
            outermost = handle.turns.take(token)
            savepoint = handle.savepoint()
            if outermost:
                handle.begun = savepoint
            try:
                yield self
                if outermost:
                    self.commit()
            except BaseException:
                savepoint.restore()
                raise
            finally:
                if outermost:
                    handle.begun = None  # it holds the values of then

    def _update(
        self, function: Callable[[], object], *, attempts: int = ATTEMPTS, message: Message = "", **info: Any
    ) -> None:
        """Run the function once, in a transaction: a Live has no other writer, and no commits."""
        with self.transaction(message if isinstance(message, str) else "", **info):
            called("the function of an update", function)

    @property
    def has_uncommitted(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<Live, {counted(len(self), 'key')}>"

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _not_versioned(name: str) -> Callable[..., NoReturn]:
    def method(self: Live, *args: Any, **options: Any) -> NoReturn:
        raise NotVersioned(name)

    method.__name__ = name
    method.__qualname__ = f"Live.{name}"
    method.__doc__ = "Raise NotVersioned: Live keeps no history."
    return method


for _name in (
    "bisect", "blame", "branch_names", "branches", "checkout", "cherry_pick", "create_branch",
    "delete_branch", "delete_tag", "diff", "discard", "erase", "fork", "inert", "lease", "log", "merge",
    "merge_base", "policies", "pull", "push", "redo", "refresh", "reset", "revert", "rollback", "run", "runs",
    "set_policy", "status", "subscribe", "switch", "tag", "tags", "undo", "view", "watch",
):  # fmt: skip
    setattr(Live, _name, _not_versioned(_name))
for _name in "branch", "head", "repo", "store":
    setattr(Live, _name, property(_not_versioned(_name)))
