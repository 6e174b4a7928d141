"""The hash tables of the dicts and sets that are built from untrusted keys.

The hashes of numbers and of tuples of them are no secret, and where CPython puts a key follows from its
hash. Whoever knows that can choose n keys, no two with the same hash, so that each is compared with n
others before it finds its place: a pickle of 3.8 MB took 33 s. So the search for a place is made here
first, on a table that only says which places are taken, and paid for step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vstate.values.budget import Budget

__all__ = ["CROWDED", "Table", "add_members", "make_frozenset", "make_set"]

CROWDED: Final = 1024
"""Dicts and sets of fewer keys are not watched: at worst a search in them takes a microsecond."""

_SMALLEST: Final = 8
_FREE_STEPS: Final = 16  # honest keys need one or two
_SHORT: Final = 64  # texts up to here cost nothing extra
_UNSIGNED: Final = 2**64 - 1
# Source: CPython's Objects/dictobject.c and Objects/setobject.c, alike from 3.7 to 3.13.
_PERTURB_SHIFT: Final = 5
_LINEAR_PROBES: Final = 9  # a set looks at so many neighbours before it jumps
_LARGE_SET: Final = 50_000  # up to here a set grows four times, then twice as large
_DICT_ENTRY: Final = 16  # bytes for each place of a table, at the least; at the most 20
_SET_ENTRY: Final = 16
_SET_BYTES: Final = 200
_MEMBER_BYTES: Final = 64  # with the slack that a set grows by


class Table:
    """Which places are taken in the table of a dict or set with `CROWDED` keys or more."""

    __slots__ = ("_budget", "_container", "_count", "_neighbours", "_place", "_taken")

    def __init__(self, container: dict[object, object] | set[object], budget: Budget) -> None:
        self._container = container
        self._budget = budget
        self._neighbours = _LINEAR_PROBES if isinstance(container, set) else 0
        self._count = len(container)
        self._place = 0
        """Where the key goes that was searched for last."""
        self._fill(self._size_now())

    @property
    def size(self) -> int:
        """The number of places."""
        return len(self._taken)

    def expect(self, key: object) -> None:
        """Pay for putting `key` into the container, which has to come next."""
        count = len(self._container)
        if count != self._count:  # the key before was a new one
            self._taken[self._place] = 1
            self._count = count
        size = len(self._taken)
        if self._is_full(count, size) and key not in self._container:
            self._fill(self._size_after(count))
        self._place = self._search(hash(key))

    def freeze(self) -> None:
        """Pay for a frozenset of the set, which has a table of its own."""
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
        """The places in the container's table now, or with the next key if that makes it another kind."""
        container = self._container
        # There is room for all at any rate: without a free place a search would not end.
        least = _power_above(3 * len(container) // 2)
        if isinstance(container, set):
            return max(_power_above((container.__sizeof__() - _SET_BYTES) // _SET_ENTRY) // 2, least)
        if all(type(key) is str for key in container):
            # The first key that is no text makes a table of texts one of anything.
            return self._size_after(len(container))
        return max(_power_above(container.__sizeof__() // _DICT_ENTRY) // 2, least)

    def _fill(self, size: int) -> None:
        """Put all the keys into an empty table of so many places, as CPython does when a table grows."""
        self._budget.take_bytes(size)
        self._taken = bytearray(size)
        for key in self._container:
            self._taken[self._search(hash(key))] = 1

    def _search(self, number: int) -> int:
        """The place for a key with this hash. Raises InertError if that takes too long."""
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
    table: Table | None = None,
) -> Table | None:
    """Add `members` to `target`, paid for; the table of `target`, None as long as it needs none.

    `hashes` and `table` are what earlier calls for this set left. Raises InertError for what cannot be a member.
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
            table = Table(target, budget)
        if table is not None:
            table.expect(member)
        target.add(member)
    return table


def make_set(members: Sequence[object], budget: Budget) -> set[object]:
    """A new set of `members`, paid for."""
    budget.take_bytes(_SET_BYTES)
    made: set[object] = set()
    add_members(made, members, budget, {})
    return made


def make_frozenset(members: Sequence[object], budget: Budget) -> frozenset[object]:
    """A new frozenset of `members`, paid for."""
    budget.take_bytes(_SET_BYTES)
    made: set[object] = set()
    table = add_members(made, members, budget, {})
    if table is not None:
        table.freeze()
    return frozenset(made)


def _power_above(number: int) -> int:
    """The least power of two that is greater than `number`, and at least 8."""
    return max(1 << number.bit_length(), _SMALLEST)
