"""HashTable: bounds the time of building dicts and sets from untrusted keys.

The hashes of numbers, and of tuples of them, are no secret, and a key's hash decides where CPython puts the
key. A forger can choose n keys with n different hashes so that each key probes n places: a pickle of 3.8 MB
took 33 s. So each key is first placed in a model of the table, which has only taken and free places, and
every probe is paid for.

Why not simpler? CPython inserts and grows in C, where nothing can interrupt it. A list of pairs would avoid
hashing, but then an honest dict with thousands of numbers as keys would be no dict any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vstate.values.budget import Budget

__all__ = ["CROWDED", "HashTable", "add_members", "make_dict", "make_frozenset", "make_set"]

CROWDED: Final = 1024
"""Dicts and sets of fewer keys are not modelled: a search in them takes a microsecond at worst."""

_SMALLEST: Final = 8
_FREE_STEPS: Final = 16  # honest keys need one or two
_SHORT: Final = 64  # texts up to here cost nothing extra
_UNSIGNED: Final = 2**64 - 1
# Source: CPython's Objects/dictobject.c and Objects/setobject.c, alike from 3.7 to 3.13.
_PERTURB_SHIFT: Final = 5
_LINEAR_PROBES: Final = 9  # a set probes so many neighbours before it jumps
_LARGE_SET: Final = 50_000  # up to here a set grows by a factor of four, then of two
_DICT_ENTRY: Final = 16  # bytes for each place of a table, at the least; at the most 20
_SET_ENTRY: Final = 16
_SET_BYTES: Final = 200
_MEMBER_BYTES: Final = 64  # with the slack that a set grows by


class HashTable:
    """The taken places in the table of a dict or set with `CROWDED` keys or more."""

    __slots__ = ("_budget", "_container", "_count", "_neighbours", "_place", "_taken")

    def __init__(self, container: dict[object, object] | set[object], budget: Budget) -> None:
        self._container = container
        self._budget = budget
        self._neighbours = _LINEAR_PROBES if isinstance(container, set) else 0
        self._count = len(container)
        self._place = 0
        """The place of the key of the last `expect`."""
        self._fill(self._size_now())

    @property
    def size(self) -> int:
        """The number of places."""
        return len(self._taken)

    def expect(self, key: object) -> None:
        """Pay for adding `key` to the container. The caller must add it before the next `expect`."""
        count = len(self._container)
        if count != self._count:  # the last key was a new one
            self._taken[self._place] = 1
            self._count = count
        size = len(self._taken)
        if self._is_full(count, size) and key not in self._container:
            self._fill(self._size_after(count))
        self._place = self._search(hash(key))

    def freeze(self) -> None:
        """Pay for making a frozenset of the set: it has its own table."""
        size = _power_above(2 * len(self._container))
        if size != len(self._taken):
            self._fill(size)

    def _is_full(self, count: int, size: int) -> bool:
        """Whether one more key makes the table grow."""
        if isinstance(self._container, set):
            return (count + 1) * 5 >= (size - 1) * 3
        return count >= 2 * size // 3

    def _size_after(self, count: int) -> int:
        if isinstance(self._container, set):
            return _power_above((count + 1) * (2 if count + 1 > _LARGE_SET else 4))
        return _power_above(3 * count - 1)

    def _size_now(self) -> int:
        """The number of places in the container's table, or after the next key if that rebuilds the table."""
        container = self._container
        # Always room for all keys: without a free place a search would not end.
        least = _power_above(3 * len(container) // 2)
        if isinstance(container, set):
            return max(_power_above((container.__sizeof__() - _SET_BYTES) // _SET_ENTRY) // 2, least)
        if all(type(key) is str for key in container):
            # The first key that is not a text rebuilds the table: a dict of texts has its own kind.
            return self._size_after(len(container))
        return max(_power_above(container.__sizeof__() // _DICT_ENTRY) // 2, least)

    def _fill(self, size: int) -> None:
        """Put all keys into an empty table of this size, as CPython does when a table grows."""
        self._budget.take_bytes(size)
        self._taken = bytearray(size)
        for key in self._container:
            self._taken[self._search(hash(key))] = 1

    def _search(self, number: int) -> int:
        """The free place for a key with this hash. Raises InertError if the search takes too long."""
        taken, mask = self._taken, len(self._taken) - 1
        perturb = number & _UNSIGNED
        at = perturb & mask
        steps = 0
        while taken[at]:
            if self._neighbours and at + self._neighbours <= mask:
                free = taken.find(0, at + 1, at + self._neighbours + 1)
                if free >= 0:
                    at = free
                    break
            perturb >>= _PERTURB_SHIFT
            at = (5 * at + perturb + 1) & mask
            steps += 1
            if steps % _FREE_STEPS == 0:
                self._budget.take_nodes(_FREE_STEPS)
        return at


def add_members(
    target: set[object],
    members: Sequence[object],
    budget: Budget,
    hashes: dict[str, int],
    table: HashTable | None = None,
) -> HashTable | None:
    """Add `members` to `target` and pay for it; returns the table of `target`, None for few members.

    `hashes` and `table` come from earlier calls for this set. Raises InertError for an unhashable member.
    """
    budget.take_bytes(_MEMBER_BYTES * len(members))
    odd = 0
    for member in members:
        if type(member) is not str or len(member) > _SHORT:
            budget.take_key(member, hashes)
            odd += 1
    if table is None and (not odd or len(target) + len(members) < CROWDED):
        target.update(members)
        return None
    for member in members:
        if table is None and len(target) >= CROWDED:
            table = HashTable(target, budget)
        if table is not None:
            table.expect(member)
        target.add(member)
    return table


def make_set(members: Sequence[object], budget: Budget) -> set[object]:
    """A new set of `members`; pays for it."""
    budget.take_bytes(_SET_BYTES)
    made: set[object] = set()
    add_members(made, members, budget, {})
    return made


def make_dict(keys: Sequence[object], values: Sequence[object], budget: Budget) -> dict[object, object]:
    """A new dict of these entries; pays for it."""
    made: dict[object, object] = {}
    hashes: dict[str, int] = {}
    table: HashTable | None = None
    for key, value in zip(keys, values, strict=True):
        if type(key) is not str:
            budget.take_key(key, hashes)
            if table is None and len(made) >= CROWDED:
                table = HashTable(made, budget)
        if table is not None:
            table.expect(key)
        made[key] = value
    return made


def make_frozenset(members: Sequence[object], budget: Budget) -> frozenset[object]:
    """A new frozenset of `members`; pays for it."""
    budget.take_bytes(_SET_BYTES)
    made: set[object] = set()
    table = add_members(made, members, budget, {})
    if table is not None:
        table.freeze()
    return frozenset(made)


def _power_above(number: int) -> int:
    """The least power of two that is greater than `number`, and at least 8."""
    return max(1 << number.bit_length(), _SMALLEST)
