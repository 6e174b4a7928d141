"""Trial: a store whose writes stay in memory, to see what an operation would do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from vstate.forks import new_lock
from vstate.kv.base import KVStore, TransactionalStore, check_key, check_value

__all__ = ["Trial"]


class Trial(TransactionalStore):
    """The contents of `store`, and on top of them the writes that were made here. `store` never changes."""

    def __init__(self, store: KVStore) -> None:
        self._store = store
        self._written: dict[str, bytes | None] = {}
        self._lock = new_lock()

    @property
    def location(self) -> str:
        """Where the store behind is."""
        return self._store.location

    def get(self, key: str) -> bytes | None:
        check_key(key)
        with self._lock:
            if key in self._written:
                return self._written[key]
        return self._store.get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        names = [*keys]
        with self._lock:
            here = {key: self._written[key] for key in names if key in self._written}
        found = self._store.get_many([key for key in names if key not in here])
        return found | {key: value for key, value in here.items() if value is not None}

    def keys(self, prefix: str = "") -> Iterator[str]:
        with self._lock:
            written = dict(self._written)
        yield from (key for key in self._store.keys(prefix) if key not in written)
        yield from (key for key, value in written.items() if value is not None and key.startswith(prefix))

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        new = {check_key(key): None if value is None else check_value(value) for key, value in writes.items()}
        with self._lock:
            if any(self.get(key) != value for key, value in expected.items()):
                return False
            self._written.update(new)
        return True

    def close(self) -> None:
        """The store behind stays open."""
