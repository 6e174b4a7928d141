"""Crashing: a store whose process dies in the middle of a call, with any part of that call's writes done."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import TypeVar

from soak import sized

from vstate import KVStore

T = TypeVar("T")

ALL_SUBSETS_UP_TO = sized(5, 10)  # writes of one call
RANDOM_SUBSETS = sized(12, 200)


class Crash(BaseException):
    """The process is dead. A BaseException, so no handler under test takes it for an error of the store."""


class Crashing(KVStore):
    """`store`, whose process dies in call number `crash_at`, counted from 1; None for never.

    That call does the writes whose numbers are in `done`. Every later call raises, because a dead process
    cleans nothing up. `calls` lists each call with the number of its independent writes: none for a call that
    reads, one for a transaction.

    With `atomic=False` it is a store without transactions: each key of `set_many` and `delete_many` is a
    write of its own, and `transact` is that of KVStore.
    """

    def __init__(
        self, store: KVStore, crash_at: int | None = None, done: Iterable[int] = (), *, atomic: bool = True
    ) -> None:
        self.store = store
        self.crash_at = crash_at
        self.done = frozenset(done)
        self.atomic = atomic
        self.calls: list[tuple[str, int]] = []
        self.dead = False

    def _call(self, name: str, parts: list[Callable[[], T]], read: bool = False) -> T:
        if self.dead:
            raise Crash("called after its death")
        self.calls.append((name, 0 if read else len(parts)))
        if len(self.calls) == self.crash_at:
            for number, part in enumerate(parts):
                if number in self.done:
                    part()
            self.dead = True
            raise Crash(f"in call {self.crash_at}, {name}")
        results = [part() for part in parts]
        if self.dead:  # this call made another call: the plan of `exclusively`
            raise Crash("called after its death")
        return results[-1] if results else None  # type: ignore[return-value]

    def get(self, key: str) -> bytes | None:
        return self._call("get", [lambda: self.store.get(key)], read=True)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        return self._call("get_many", [lambda: self.store.get_many(keys)], read=True)

    def keys(self, prefix: str = "") -> Iterator[str]:
        return self._call("keys", [lambda: iter(list(self.store.keys(prefix)))], read=True)

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        return self._call("items", [lambda: iter(list(self.store.items(prefix)))], read=True)

    def set(self, key: str, value: bytes) -> None:
        self._call("set", [lambda: self.store.set(key, value)])

    def delete(self, key: str) -> None:
        self._call("delete", [lambda: self.store.delete(key)])

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes | None) -> bool:
        return self._call("compare_and_swap", [lambda: self.store.compare_and_swap(key, expected, new)])

    def set_many(self, items: Mapping[str, bytes]) -> None:
        if self.atomic:
            self._call("set_many", [lambda: self.store.set_many(items)])
        else:
            self._call("set_many", [_bound(self.store.set, *item) for item in items.items()])

    def delete_many(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        if self.atomic:
            self._call("delete_many", [lambda: self.store.delete_many(keys)])
        else:
            self._call("delete_many", [_bound(self.store.delete, key) for key in keys])

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        if not self.atomic:
            return super().transact(writes, expected)
        return self._call("transact", [lambda: self.store.transact(writes, expected)])

    @property
    def transactional(self) -> bool:
        return self.atomic

    def exclusively(self, plan: Callable[[], Mapping[str, bytes | None]]) -> bool:
        if not self.atomic:
            return super().exclusively(plan)
        return self._call("exclusively", [lambda: self.store.exclusively(plan)])


def _bound(action: Callable[..., None], *arguments: object) -> Callable[[], None]:
    return lambda: action(*arguments)


def subsets(writes: int) -> Iterator[tuple[int, ...]]:
    """Every subset of `writes` writes; of many writes the most telling subsets and random ones."""
    numbers = range(writes)
    if writes <= ALL_SUBSETS_UP_TO:
        for chosen in product((False, True), repeat=writes):
            yield tuple(number for number in numbers if chosen[number])
        return
    yield ()
    yield tuple(numbers)
    for one in numbers:
        yield (one,)
        yield tuple(number for number in numbers if number != one)
    chance = random.Random(writes)
    for _ in range(RANDOM_SUBSETS):
        yield tuple(number for number in numbers if chance.random() < 0.5)
