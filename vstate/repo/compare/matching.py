"""Matching: which items, keys and members of two values belong together."""

from __future__ import annotations

import datetime
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Final

from vstate.repo.compare.fingerprints import ATOMS, Fingerprints, TooLargeError
from vstate.values.alignment import Aligner
from vstate.values.arrays import Array
from vstate.values.instance import Instance

_MOST_WORK: Final = 5_000_000  # about a second
_PRINT_WORK: Final = 6  # for a part in a fingerprint
_ALIKE_WORK: Final = 4  # for a part that is compared
_STEP_WORK: Final = 2  # for a step of aligning
_MOST_PARTS: Final = 200  # of an item that are compared to find out whether it is the same item
_MOST_DEPTH: Final = 8
_SHORT: Final = 1000  # characters or bits of an atom that is its own token
_ATOM_CLASSES: Final = (
    *ATOMS,
    bytearray,
    memoryview,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    datetime.tzinfo,
)
_QUICK: Final = ATOMS | {bytearray, memoryview}
_OWN_HASH: Final = 60  # bits; a forger can make longer ints of one hash
_TEXTS: Final = frozenset({str, bytes, bytearray})


def same_atom(old: object, new: object) -> bool:
    """Whether both are atoms, such as texts, numbers and times, of one type and value; NaN is NaN."""
    kind = type(old)
    if kind is not type(new):
        return False
    if kind not in _QUICK:
        if not isinstance(old, _ATOM_CLASSES):
            return False
        if isinstance(old, datetime.date | datetime.time):
            # Equal moments in two zones are two values.
            return repr(old) == repr(new)
    return old == new or (old != old and new != new)


def size_of(value: object) -> int:
    """The work of comparing an atom, about one for each half kilobyte."""
    kind = type(value)
    if kind in _TEXTS:
        return len(value) >> 9  # type: ignore[arg-type]
    if kind is int:
        return value.bit_length() >> 12  # type: ignore[attr-defined, no-any-return]
    return value.nbytes >> 8 if isinstance(value, memoryview) else 0


class Matching:
    """Finds the parts of two values that belong together, with a bounded amount of work."""

    def __init__(self, work: int = _MOST_WORK) -> None:
        self.left = work
        self._prints = Fingerprints()
        self._parts = 0

    def items(self, old: Sequence[object], new: Sequence[object]) -> Iterator[tuple[int | None, int | None]]:
        """Pairs of indices, None where one side has no item; no pair for items that are surely the same.

        The caller still has to compare every pair.
        """
        shorter = min(len(old), len(new))
        start = 0
        while start < shorter and (same := self._alike(old[start], new[start])) is not False:
            if same is None:
                yield start, start
            start += 1
        end = 0
        unsure: list[int] = []
        while end < shorter - start and (same := self._alike(old[-1 - end], new[-1 - end])) is not False:
            end += 1
            if same is None:
                unsure.append(end)
        if start + end < max(len(old), len(new)):
            yield from self._middle(old, new, start, end)
        for back in reversed(unsure):
            yield len(old) - back, len(new) - back

    def _middle(
        self, old: Sequence[object], new: Sequence[object], start: int, end: int
    ) -> Iterator[tuple[int | None, int | None]]:
        height, breadth = len(old) - end - start, len(new) - end - start
        rows: list[Hashable] = [None] * height
        columns: list[Hashable] = [None] * breadth
        if height and breadth and height + breadth > 2:
            tokens = [self.token(old[index]) for index in range(start, start + height) if self.left >= 0]
            others = [self.token(new[index]) for index in range(start, start + breadth) if self.left >= 0]
            if self.left >= 0:  # without work left, the items are aligned by index
                rows, columns = tokens, others
        aligner = Aligner(self.left // _STEP_WORK)
        for before, after in aligner.pairs(rows, columns):
            yield None if before is None else before + start, None if after is None else after + start
        self.left = min(self.left, aligner.left * _STEP_WORK)

    def by_token(self, keys: Iterable[object]) -> Iterator[tuple[object, object]]:
        """Each key of a dict, or member of a set, behind its token, numbered where several have the same.

        Equal keys of two dicts have equal tokens. Ends early once `left` is below 0.
        """
        counts: dict[object, int] = {}
        for key in keys:
            kind = type(key)
            if kind is str:
                yield key, key
                continue
            token = self.token(key)
            if self.left < 0:
                return
            if kind is not int and kind is not bytes:
                counts[token] = count = counts.get(token, 0) + 1
                token = (token, count)
            yield token, key

    def token(self, value: object) -> Hashable:
        """Equal for equal values, and only for those; any token once no work is left."""
        kind = type(value)
        if kind is str and len(value) <= _SHORT:  # type: ignore[arg-type]  # mypy does not narrow by `is`
            self.left -= 1
            return value
        if kind is int and value.bit_length() <= _OWN_HASH:  # type: ignore[attr-defined]  # as above
            self.left -= 1
            return ("int", value)  # not the int: 1 is not True, and a forger chooses its hash
        self.left -= 1 + size_of(value)
        prints = self._prints
        prints.left = before = max(self.left // _PRINT_WORK, 0)
        try:
            return prints.of(value)
        except TooLargeError:
            return None
        finally:
            self.left -= (before - prints.left) * _PRINT_WORK

    def _alike(self, old: object, new: object) -> bool | None:
        """True if two items are the same, None if they seem to be the same item, else False."""
        if old is new:
            return True
        if type(old) is not type(new):
            return False
        if self.left < 0:
            return None
        self._parts = _MOST_PARTS
        try:
            return self._same(old, new, 0)
        finally:
            self.left -= (_MOST_PARTS - self._parts) * _ALIKE_WORK

    def _same(self, old: object, new: object, depth: int) -> bool | None:
        """Whether two values are the same, None if that needs a closer look."""
        self._parts -= 1
        if old is new:
            return True
        if type(old) is not type(new):
            return False
        if isinstance(old, _ATOM_CLASSES):
            self.left -= size_of(old)
            return same_atom(old, new)
        if self._parts < 0 or depth >= _MOST_DEPTH:
            return None
        if isinstance(old, list | tuple):
            assert isinstance(new, list | tuple)
            return len(old) == len(new) and self._all_same(zip(old, new, strict=True), depth + 1)
        if isinstance(old, dict):
            assert isinstance(new, dict)
            if len(old) != len(new):
                return False
            if len(old) > self._parts:
                return None
            if all(type(key) is str for key in old):
                if not all(key in new for key in old):
                    return False
                return self._all_same(((value, new[key]) for key, value in old.items()), depth + 1)
        if isinstance(old, Instance) and not isinstance(old, Array):
            assert isinstance(new, Instance)
            if old.type != new.type or old.called != new.called:
                return False
            return self._all_same(zip(_parts(old), _parts(new), strict=True), depth + 1)
        # Sets, arrays and other keys: an Instance is another object in the other value, and 1 is not True.
        return None if self.token(old) == self.token(new) or self.left < 0 else False

    def _all_same(self, pairs: Iterable[tuple[object, object]], depth: int) -> bool | None:
        sure = True
        for old, new in pairs:
            if self._parts < 0:
                return None
            same = self._same(old, new, depth)
            if same is False:
                return False
            sure = sure and same is not None
        return True if sure else None


def _parts(instance: Instance) -> tuple[object, ...]:
    return (
        instance.args,
        instance.kwargs,
        instance.fields,
        instance.items,
        instance.entries,
        instance.state,
    )
