"""RoomCopy: a small room in memory, whose changes become one transaction of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set

from vstate.kv.base import OBJECT_PREFIX, KVStore, TransactionalStore


class RoomCopy(TransactionalStore):
    """A room with these keys, and the changes that were made to it here. The store never changes.

    It reads each row once: objects at their first use, and all other rows at once.
    """

    remote = False

    def __init__(self, store: KVStore, prefix: str, keys: Iterable[str]) -> None:
        self._store = store
        self._prefix = prefix
        self._rows: dict[str, bytes | None] = dict.fromkeys(keys)  # None: not read yet
        self.changes: dict[str, bytes | None] = {}
        """The rows that were written here, None for a deletion."""
        self._read([key for key in self._rows if not key.startswith(OBJECT_PREFIX)])

    @property
    def location(self) -> str:
        """Where the store is."""
        return self._store.location

    def _read(self, keys: Iterable[str]) -> None:
        names = {self._prefix + key: key for key in keys if self._rows.get(key, b"") is None}
        found = self._store.get_many(list(names)) if names else {}
        for name, key in names.items():
            if (row := found.get(name)) is None:
                del self._rows[key]  # it was deleted after the keys were listed
            else:
                self._rows[key] = row

    def get(self, key: str) -> bytes | None:
        self._read([key])
        return self._rows.get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        keys = list(keys)
        self._read(keys)
        return {key: row for key in keys if (row := self._rows.get(key)) is not None}

    def keys(self, prefix: str = "") -> Iterator[str]:
        return iter([key for key in self._rows if key.startswith(prefix)])

    def present(self, keys: Iterable[str]) -> Set[str]:
        return self._rows.keys() & set(keys)

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        if any(self.get(key) != row for key, row in expected.items()):
            return False
        for key, row in writes.items():
            if row is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = row
        self.changes |= writes
        return True

    def exclusively(self, plan: Callable[[], Mapping[str, bytes | None]]) -> bool:
        return self.transact(plan(), {})
