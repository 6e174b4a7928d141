"""A store that counts what is read from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from vstate import KVStore
from vstate.kv.wrapper import StoreWrapper


class Counting(StoreWrapper):
    """Counts the round trips of reads, how often each row is asked for, and the lengths of rows that came."""

    def __init__(self, store: KVStore) -> None:
        super().__init__(store)
        self.trips = 0
        self.rows = Counter[str]()
        self.lengths: list[int] = []

    def get(self, key: str) -> bytes | None:
        return self.get_many([key]).get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        keys = list(keys)
        self.trips += 1
        self.rows.update(keys)
        found = super().get_many(keys)
        self.lengths += map(len, found.values())
        return found
