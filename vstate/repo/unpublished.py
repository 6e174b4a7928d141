"""Unpublished: objects that are read before they are in the store: their commits go there together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from weakref import ReferenceType, ref

from vstate.forks import new_lock
from vstate.kv.base import KVStore
from vstate.kv.front import Front


class Rows(dict[str, bytes]):
    """The rows of objects by key, of `size` bytes. They are shown as long as something else holds them."""

    __slots__ = ("__weakref__", "size")

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def add(self, rows: Mapping[str, bytes]) -> None:
        """Add rows."""
        self.update(rows)
        self.size += sum(map(len, rows.values()))


class Unpublished(Front):
    """`store`, with the objects that are on their way there. Threads may share it."""

    def __init__(self, store: KVStore) -> None:
        super().__init__(store)
        self._lock = new_lock()
        self._shown: tuple[ReferenceType[Rows], ...] = ()

    def show(self, rows: Rows) -> None:
        """Show these rows too, and those that are added to them."""
        with self._lock:
            self._shown = (*(each for each in self._shown if each() is not None), ref(rows))

    def get(self, key: str) -> bytes | None:
        for each in self._shown:
            if (rows := each()) is not None and key in rows:
                return rows[key]
        return self._store.get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        rest = keys = list(keys)
        for each in self._shown:
            if (rows := each()) is not None:
                found |= {key: rows[key] for key in rest if key in rows}
                rest = [key for key in rest if key not in rows]
        return found | self._store.get_many(rest) if rest else found
