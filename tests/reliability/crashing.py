"""Crashing: a store whose process dies in the middle of a call, with any part of that call's writes done."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import TypeVar

from soak import sized

from vstate import KVStore
from vstate.testing import Faulty

T = TypeVar("T")

READING = frozenset({"get", "get_many", "keys", "items", "__contains__", "present", "check", "release"})
"""A failure after one of these calls equals a failure before it: the store is the same, and nobody saw the
answer.
"""

ALL_SUBSETS_UP_TO = sized(5, 10)  # writes of one call
RANDOM_SUBSETS = sized(12, 200)


class Crash(BaseException):
    """The process is dead. A BaseException, so no handler under test takes it for an error of the store."""


class Crashing(Faulty):
    """A store whose process dies in call number `crash_at`, counted from 1; None for never.

    That call does the writes whose numbers are in `done`. Every later call raises, because a dead process
    cleans nothing up. `writes` has the number of independent writes of each call: none for a call that reads,
    one for a transaction. With `atomic=False` each key of `set_many` and `delete_many` is one.
    """

    crash_at: int | None = None
    done: frozenset[int] = frozenset()
    dead = False

    def __init__(self, store: KVStore, *, atomic: bool = True) -> None:
        super().__init__(store, atomic=atomic)
        self.writes: list[int] = []

    def _call(self, name: str, action: Callable[[], T], parts: Sequence[Callable[[], object]] = ()) -> T:
        if self.dead:
            raise Crash("called after its death")
        parts = () if name in READING else parts or [action]
        self.calls.append(name)
        self.writes.append(len(parts))
        if len(self.calls) == self.crash_at:
            self.dead = True
            for number, part in enumerate(parts):
                if number in self.done:
                    part()
            raise Crash(f"in call {self.crash_at}, {name}")
        result = action()
        if self.dead:  # this call made another call: the plan of `exclusively`
            raise Crash("called after its death")
        return result

    def set_many(self, items: Mapping[str, bytes]) -> None:
        parts = () if self.atomic else [partial(self.store.set, *item) for item in items.items()]
        self._call("set_many", lambda: self.store.set_many(items), parts)

    def delete_many(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        parts = () if self.atomic else [partial(self.store.delete, key) for key in keys]
        self._call("delete_many", lambda: self.store.delete_many(keys), parts)


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
