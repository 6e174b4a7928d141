"""Live: the mapping without history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from vstate.errors import NotVersioned
from vstate.objects.commit import Event
from vstate.state.base import RootState, check_key, missing
from vstate.state.turns import Turn


class Live(RootState):
    """A dict-like state in memory, for any object, unpicklable ones too.

    It has the methods that a task calls on `Versioned`; `commit` does nothing and returns None, and the
    methods that need a history raise NotVersioned.
    """

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[str, Any] = {}
        self._events: list[Event] = []

    def __getitem__(self, key: str) -> Any:
        try:
            return self._values[key]
        except (KeyError, TypeError):
            raise missing(key) from None

    def __setitem__(self, key: str, value: Any) -> None:
        key = check_key(key)
        with self._lock:
            self._values[key] = value

    def __delitem__(self, key: str) -> None:
        key = check_key(key)
        with self._lock:
            if key not in self._values:
                raise missing(key)
            del self._values[key]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key in self._values

    def scan_keys(self, prefix: str) -> Iterator[str]:
        with self._lock:
            keys = sorted(key for key in self._values if key.startswith(prefix))
        return iter(keys)

    def count_keys(self, prefix: str) -> int:
        return sum(1 for _ in self.scan_keys(prefix)) if prefix else len(self._values)

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
            values = dict(self._values)
            try:
                yield self
            except BaseException:
                self._values = values
                raise

    def run_update(
        self, function: Callable[[], object], *, attempts: int = 10, message: str = "", **info: Any
    ) -> None:
        """Run the function once, in a transaction: nobody else can be in the way."""
        with self.transaction(message, **info):
            function()

    def savepoint(self) -> Callable[[], None]:
        with self._lock:
            values = dict(self._values)

        def restore() -> None:
            with self._lock:
                self._values = dict(values)

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
    "diff", "discard", "fork", "log", "merge", "policies", "redo", "refresh", "reset",
    "revert", "rollback", "set_policy", "status", "switch", "tag", "tags", "undo",
):  # fmt: skip
    setattr(Live, _name, _not_versioned(_name))
