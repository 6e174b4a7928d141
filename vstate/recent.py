"""Recent: a mapping that keeps the entries that were used last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from vstate.forks import new_lock

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """The entries that were used last, as many as have the size `most` together. Threads may share it.

    Each entry has the size 1, or that which `size` gives for the value. One that is larger than `most` is not
    kept, unless it is among the last `least` entries, which always stay.
    """

    def __init__(self, most: int, size: Callable[[V], int] = lambda value: 1, *, least: int = 0) -> None:
        self._most = most
        self._size_of = size
        self._least = least
        self._lock = new_lock()
        self._kept: OrderedDict[K, V] = OrderedDict()
        self._size = 0

    def get(self, key: K) -> V | None:
        """The value of a key, which counts as used now; None if it is not kept."""
        with self._lock:
            value = self._kept.get(key)
            if value is not None:
                self._kept.move_to_end(key)
            return value

    def __setitem__(self, key: K, value: V) -> None:
        with self._lock:
            self._drop(key)
            size = self._size_of(value)
            if size <= self._most or self._least:
                self._kept[key] = value
                self._size += size
            while self._size > self._most and len(self._kept) > self._least:
                self._drop(next(iter(self._kept)))

    def setdefault(self, key: K, value: V) -> V:
        """The value of a key; if it is not kept, this value, which is kept from now on."""
        with self._lock:
            found = self.get(key)
            if found is None:
                self[key] = found = value
            return found

    def discard(self, *keys: K) -> None:
        """Remove these keys, if they are kept."""
        with self._lock:
            for key in keys:
                self._drop(key)

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            self._kept.clear()
            self._size = 0

    def items(self) -> list[tuple[K, V]]:
        """The entries, the one that was used last at the end."""
        with self._lock:
            return list(self._kept.items())

    def _drop(self, key: K) -> None:
        value = self._kept.pop(key, None)
        if value is not None:
            self._size -= self._size_of(value)
