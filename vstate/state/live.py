"""Live: the mapping without history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, NoReturn

from vstate.errors import NotVersioned
from vstate.objects import expiry
from vstate.objects.commit import Event
from vstate.objects.expiry import Expiry
from vstate.state.base import RootState, check_key, missing
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
            del self._values[key]
            if key in self._expiries:
                del self._expiries[key]

    def __contains__(self, key: object) -> bool:
        if self._expiries:
            self._drop_expired()
        return isinstance(key, str) and key in self._values

    def scan_keys(self, prefix: str) -> Iterator[str]:
        with self._lock:
            self._drop_expired()
            keys = sorted(key for key in self._values if key.startswith(prefix))
        return iter(keys)

    def count_keys(self, prefix: str) -> int:
        self._drop_expired()
        return sum(1 for _ in self.scan_keys(prefix)) if prefix else len(self._values)

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
                del self._expiries[key]
                if key in self._values:
                    del self._values[key]

    def commit(self, message: str = "", **info: Any) -> None:
        """Do nothing: there is no history to commit to."""
        return

    @contextmanager
    def transaction(self, message: str = "", **info: Any) -> Iterator[Live]:
        """Undo by key, on an exception, what was set and deleted inside.

        A value that was edited in place stays edited: a value that cannot be pickled cannot be copied.
        """
        turn = Turn()
        with turn.bell, turn.held:
            if not self.turns.nested:
                self.turns.take(turn)
            values, expiries = dict(self._values), dict(self._expiries)
            try:
                yield self
            except BaseException:
                self._values, self._expiries = values, expiries
                raise

    def run_update(
        self, function: Callable[[], object], *, attempts: int = 10, message: str = "", **info: Any
    ) -> None:
        """Run the function once, in a transaction: nobody else can be in the way."""
        with self.transaction(message, **info):
            function()

    def savepoint(self) -> Callable[[], None]:
        with self._lock:
            values, expiries = dict(self._values), dict(self._expiries)

        def restore() -> None:
            with self._lock:
                self._values, self._expiries = dict(values), dict(expiries)

        return restore

    def has_uncommitted(self) -> bool:
        return False

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
