"""Live: the mapping without history."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, NoReturn

from vstate.arguments import called
from vstate.errors import NotVersioned
from vstate.objects import expiry
from vstate.objects.commit import Event
from vstate.objects.expiry import Expiry
from vstate.state.base import Message, RootState, check_key, missing
from vstate.state.timed import make_expiry
from vstate.state.turns import Turn


class Live(RootState):
    """A dict-like state in memory, for any object, unpicklable ones too.

    It has the methods that a task calls on `Versioned`; `commit` does nothing and returns None, and the
    methods that need a history raise NotVersioned.
    """

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[str, Any] = {}
        self._sorted: list[str] | None = None  # the keys, unless some came or went since they were sorted
        self._expiries: dict[str, Expiry] = {}
        self._events: list[Event] = []

    def __getitem__(self, key: str) -> Any:
        if self._expiries:
            self._drop_expired()
        try:
            return self._values[key]
        except (KeyError, TypeError):
            raise missing(key) from None

    def __setitem__(self, key: str, value: Any) -> None:
        key = check_key(key)
        with self._lock:
            before, at = self._expiries.get(key), expiry.now()
            anew = None if before is None or before.at <= at else before.begun_anew(at)
            # Together: a call in between could be interrupted.
            if key not in self._values:
                self._sorted = None
            self._values[key] = value
            if anew is not None and anew.ttl:
                self._expiries[key] = anew
            elif before is not None:
                del self._expiries[key]

    def __delitem__(self, key: str) -> None:
        key = check_key(key)
        with self._lock:
            if key not in self:
                raise missing(key)
            self._sorted = None
            del self._values[key]
            if key in self._expiries:
                del self._expiries[key]

    def __contains__(self, key: object) -> bool:
        if self._expiries:
            self._drop_expired()
        return isinstance(key, str) and key in self._values

    def scan_keys(self, prefix: str) -> Iterator[str]:
        with self._lock:
            keys, start, end = self._found(prefix)
        return islice(keys, start, end)

    def count_keys(self, prefix: str) -> int:
        with self._lock:
            _, start, end = self._found(prefix)
        return end - start

    def _found(self, prefix: str) -> tuple[list[str], int, int]:
        """The keys, sorted, and where in them are those that begin with `prefix`."""
        self._drop_expired()
        keys = self._sorted
        if keys is None:
            keys = self._sorted = sorted(self._values)
        start = bisect_left(keys, prefix)
        # A slice of equal length is before, equal to, or behind the prefix, in the order of the keys.
        end = bisect_right(keys, prefix, lo=start, key=lambda key: key[: len(prefix)])
        return keys, start, end

    def expire(self, key: str, ttl: float | timedelta | None, *, sliding: bool = False) -> None:
        """As promised by State; what slides begins anew each time that the key is set."""
        wanted = None if ttl is None else make_expiry(ttl, sliding=sliding)
        with self._lock:
            if check_key(key) not in self:
                raise missing(key)
            if wanted is not None:
                self._expiries[key] = wanted
            elif key in self._expiries:
                del self._expiries[key]

    def expires(self, key: str) -> datetime | None:
        with self._lock:
            if check_key(key) not in self:
                raise missing(key)
            found = self._expiries.get(key)
        return None if found is None else found.moment

    def purge(self) -> None:
        """Let go of what has expired."""
        self._drop_expired()

    def _drop_expired(self) -> None:
        with self._lock:
            at = expiry.now()
            for key in [key for key, found in self._expiries.items() if found.at <= at]:
                self._sorted = None
                del self._expiries[key]
                if key in self._values:
                    del self._values[key]

    def commit(self, message: str = "", **info: Any) -> None:
        """Call what was registered by `before_commit`, and nothing else: there is no history to commit to."""
        with self._lock:
            self._run_hooks()

    @contextmanager
    def transaction(self, message: str = "", **info: Any) -> Iterator[Live]:
        """Undo by key, on an exception, what was set and deleted inside.

        A value that was edited in place stays edited: a value that cannot be pickled cannot be copied.
        """
        turn = Turn()
        with turn.bell, turn.held:
            outermost = not self.turns.nested
            if outermost:
                self.turns.take(turn)
            values, expiries = dict(self._values), dict(self._expiries)
            try:
                yield self
                if outermost:
                    with self._lock:
                        self._run_hooks()
            except BaseException:
                self._values, self._expiries, self._sorted = values, expiries, None
                raise

    def run_update(
        self, function: Callable[[], object], *, attempts: int = 10, message: Message = "", **info: Any
    ) -> None:
        """Run the function once, in a transaction: nobody else can be in the way, and no commit has a message."""
        with self.transaction():
            called("the function of an update", function)

    def savepoint(self) -> Callable[[], None]:
        with self._lock:
            values, expiries = dict(self._values), dict(self._expiries)

        def restore() -> None:
            with self._lock:
                self._values, self._expiries, self._sorted = dict(values), dict(expiries), None

        return restore

    def has_uncommitted(self) -> bool:
        return False

    def may_have_changed(self, prefix: str) -> bool:
        """True: there is nothing that it could be compared with."""
        return True

    def record_event(self, event: Event) -> None:
        with self._lock:
            self._events.append(event)

    def pending_events(self) -> list[Event]:
        with self._lock:
            return list(self._events)

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
    "bisect", "blame", "branches", "checkout", "cherry_pick", "create_branch", "delete_branch", "delete_tag",
    "diff", "discard", "fork", "lease", "log", "merge", "policies", "pull", "push", "redo", "refresh", "reset",
    "revert", "rollback", "set_policy", "status", "subscribe", "switch", "tag", "tags", "undo", "watch",
):  # fmt: skip
    setattr(Live, _name, _not_versioned(_name))
