"""A store that counts its reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from vstate import KVStore
from vstate.kv.wrapper import StoreWrapper


class Counting(StoreWrapper):
    """It counts calls that read, how often each key is asked for, and the lengths of the values."""

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
