"""Which items of two values belong together."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from vstate.values.inert import Array, Global, Instance

__all__ = ["Alignment", "same_atom", "size_of"]

_MOST_WORK: Final = 5_000_000  # parts of lists that are looked at to align them: a second or so
_SKETCH_WORK: Final = 6  # the same for a part of a token
_ALIKE_WORK: Final = 4  # and for one that is compared
_STEP_WORK: Final = 2  # and for a step of aligning
_MOST_EDITS: Final = 700  # items of two lists that are not in both; takes time and memory by their square
_LONGEST_ALIGNED: Final = 200_000  # items of both lists, without those equal at both ends
_SKETCH: Final = 200  # parts of one value
_SKETCH_DEPTH: Final = 8
_LONG: Final = 1000  # characters, bytes or bits
_ATOMS: Final = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    memoryview,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    datetime.tzinfo,
)
_QUICK: Final = frozenset({type(None), bool, int, float, complex, str, bytes, bytearray, memoryview})
_TEXTS: Final = frozenset({str, bytes, bytearray})


def same_atom(old: object, new: object) -> bool:
    """Whether both are atoms, such as texts, numbers and times, of one type and value; NaN is NaN."""
    kind = type(old)
    if kind is not type(new):
        return False
    if kind not in _QUICK:
        if not isinstance(old, _ATOMS):
            return False
        if isinstance(old, datetime.date | datetime.time):
            # Equal moments in two zones are two values.
            return repr(old) == repr(new)
    return old == new or (old != old and new != new)


def size_of(value: object) -> int:
    """About how many half kilobytes there are to compare in an atom."""
    kind = type(value)
    if kind in _TEXTS:
        return len(value) >> 9  # type: ignore[arg-type]
    if kind is int:
        return value.bit_length() >> 12  # type: ignore[attr-defined, no-any-return]
    return value.nbytes >> 8 if isinstance(value, memoryview) else 0


class Alignment:
    """Finds what belongs together, of all the parts of two values, with a bounded amount of work."""

    def __init__(self, work: int = _MOST_WORK) -> None:
        self.left = work

    def pairs(self, old: Sequence[object], new: Sequence[object]) -> Iterator[tuple[int | None, int | None]]:
        """Pairs of indices, None where one side has nothing; none for items that are found to be the same.

        Every pair still has to be compared.
        """
        shorter = min(len(old), len(new))
        start = 0
        while start < shorter and (same := self.alike(old[start], new[start])) is not False:
            if same is None:
                yield start, start
            start += 1
        end = 0
        unsure: list[int] = []
        while end < shorter - start and (same := self.alike(old[-1 - end], new[-1 - end])) is not False:
            end += 1
            if same is None:
                unsure.append(end)
        yield from self._middle(old, new, (start, len(old) - end), (start, len(new) - end))
        for back in reversed(unsure):
            yield len(old) - back, len(new) - back

    def _middle(
        self, old: Sequence[object], new: Sequence[object], olds: tuple[int, int], news: tuple[int, int]
    ) -> Iterator[tuple[int | None, int | None]]:
        height, breadth = olds[1] - olds[0], news[1] - news[0]
        matches: list[tuple[int, int]] = []
        if height and breadth and 2 < height + breadth <= _LONGEST_ALIGNED:
            rows, columns = self._numbers(old[olds[0] : olds[1]], new[news[0] : news[1]])
            matches, steps = _common(rows, columns, self.left // _STEP_WORK)
            self.left -= steps * _STEP_WORK
        at, to = olds[0], news[0]
        for row, column in [*matches, (height, breadth)]:
            stop, until = olds[0] + row, news[0] + column
            both = min(stop - at, until - to)
            yield from ((at + step, to + step) for step in range(both))
            yield from ((index, None) for index in range(at + both, stop))
            yield from ((None, index) for index in range(to + both, until))
            if row < height:
                yield stop, until
            at, to = stop + 1, until + 1

    def _numbers(self, *lists: Sequence[object]) -> list[list[int]]:
        """The items of each list as numbers, equal for equal tokens; no items without work left for that."""
        known: dict[object, int] = {}
        numbers: list[list[int]] = []
        for items in lists:
            numbers.append([])
            for item in items:
                if self.left < 0:
                    return [[] for _ in lists]
                numbers[-1].append(known.setdefault(self.token(item), len(known)))
        return numbers

    def alike(self, old: object, new: object) -> bool | None:
        """True if two items are the same, None if they look as if they were the same item, else False."""
        if old is new:
            return True
        if type(old) is not type(new):
            return False
        if self.left < 0:
            # Without means to look further, lists are aligned by index.
            return None
        self.left -= 1
        if isinstance(old, _ATOMS):
            self.left -= size_of(old)
            return same_atom(old, new)
        left = [_SKETCH]
        try:
            return _same(old, new, left, 0)
        finally:
            self.left -= (_SKETCH - left[0]) * _ALIKE_WORK

    def by_token(self, keys: Iterable[object]) -> Iterator[tuple[object, object]]:
        """Each key of a dict, or member of a set, behind its token, numbered where several have the same.

        Ends early once `left` is below 0.
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

    def token(self, value: object) -> object:
        """Something hashable that is equal for equal values, and most often only for those."""
        if type(value) is int and value.bit_length() <= _LONG:
            self.left -= 1
            return ("int", value)
        left = [_SKETCH]
        token = _sketch(value, left, 0)
        self.left -= (_SKETCH - left[0]) * _SKETCH_WORK + size_of(value)
        return token


def _same(old: object, new: object, left: list[int], depth: int) -> bool | None:
    """Whether two values are the same, None if that needs a closer look; `left` counts down the parts."""
    left[0] -= 1
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if isinstance(old, _ATOMS):
        left[0] -= size_of(old)
        return same_atom(old, new)
    if left[0] < 0 or depth >= _SKETCH_DEPTH:
        return None
    if isinstance(old, list | tuple):
        assert isinstance(new, list | tuple)
        return len(old) == len(new) and _all_same(zip(old, new, strict=True), left, depth + 1)
    if isinstance(old, dict):
        assert isinstance(new, dict)
        if len(old) != len(new) or len(old) > left[0]:
            return False if len(old) != len(new) else None
        if not all(type(key) is str for key in old):
            # Records are other keys in the other value, and 1 and True must not meet.
            return _look_alike(old, new, left, depth)
        if not all(key in new for key in old):
            return False
        return _all_same(((value, new[key]) for key, value in old.items()), left, depth + 1)
    if isinstance(old, Instance) and not isinstance(old, Array):
        assert isinstance(new, Instance)
        if old.type != new.type or old.called != new.called:
            return False
        return _all_same(zip(_parts(old), _parts(new), strict=True), left, depth + 1)
    return _look_alike(old, new, left, depth)


def _look_alike(old: object, new: object, left: list[int], depth: int) -> bool | None:
    """None if the sketches of two values are equal, else False."""
    first, second = [left[0]], [left[0]]
    alike = _sketch(old, first, depth) == _sketch(new, second, depth)
    left[0] = min(first[0] + second[0] - left[0], left[0])
    return None if alike else False


def _all_same(pairs: Iterable[tuple[object, object]], left: list[int], depth: int) -> bool | None:
    sure = True
    for old, new in pairs:
        if left[0] < 0:
            return None
        same = _same(old, new, left, depth)
        if same is False:
            return False
        sure = sure and same is not None
    return True if sure else None


def _parts(instance: Instance) -> tuple[object, ...]:
    return (instance.args, instance.kwargs, instance.fields, instance.items, instance.entries, instance.state)


def _sketch(value: object, left: list[int], depth: int) -> object:
    """The type and parts of `value`, down to some depth and number; `left` counts down the parts."""
    left[0] -= 1
    kind = type(value).__name__
    if isinstance(value, _ATOMS):
        return (kind, _atom(value))
    if left[0] < 0 or depth >= _SKETCH_DEPTH:
        return (kind,)
    deeper = depth + 1
    if isinstance(value, list | tuple):
        return (kind, len(value), *_sketches(value, left, deeper))
    if isinstance(value, set | frozenset):
        # In no order, so either all or none.
        whole = len(value) <= left[0]
        return (kind, len(value), frozenset(_sketches(value, left, deeper)) if whole else None)
    if isinstance(value, dict):
        whole = len(value) <= left[0]
        return (kind, len(value), frozenset(_pairs(value, left, deeper)) if whole else None)
    if isinstance(value, Global):
        return (kind, value.name)
    if isinstance(value, Instance):
        # What is empty is left out.
        parts = [part for part in enumerate(_parts(value)) if part[1]]
        sketches = _sketches((part for _, part in parts), left, deeper)
        return (kind, value.type, value.called, *(number for number, _ in parts), *sketches)
    return (kind,)


def _atom(value: object) -> object:
    """Something short that is equal for equal atoms of one type."""
    kind = type(value)
    if kind is str or kind is bytes:
        # Python remembers their hashes: so many comparisons of one long text cost no more than one.
        return value if len(value) <= _LONG else (len(value), hash(value))  # type: ignore[arg-type]
    if isinstance(value, int):
        bits = value.bit_length()
        return value if bits <= _LONG else (bits, value & (1 << _LONG) - 1)
    if isinstance(value, bytearray):
        return bytes(value[:_LONG])
    if isinstance(value, memoryview):
        return value.nbytes
    return "nan" if value != value else value


def _sketches(values: Iterable[object], left: list[int], depth: int) -> Iterator[object]:
    for value in values:
        if left[0] < 0:
            return
        yield _sketch(value, left, depth)


def _pairs(entries: Mapping[object, object], left: list[int], depth: int) -> Iterator[object]:
    # Each entry by the same allowance, whatever the order in which a dict has them.
    share = max(left[0] // max(len(entries), 1), 2)
    for key, value in entries.items():
        own = [share]
        yield (_sketch(key, own, depth), _sketch(value, own, depth))
        left[0] -= share - max(own[0], 0)


def _common(rows: Sequence[int], columns: Sequence[int], steps: int) -> tuple[list[tuple[int, int]], int]:
    """The index pairs of a longest common subsequence, and how many of `steps` it took to find it.

    No pairs when there are more than _MOST_EDITS other items, or the steps do not suffice. The algorithm is
    that of E. Myers, "An O(ND) difference algorithm and its variations" (1986): quick for few differences.
    """
    height, breadth = len(rows), len(columns)
    # The row that can be reached on each diagonal (row - column) with so many edits.
    reached = {1: 0}
    taken = 0
    history: list[dict[int, int]] = []
    for edits in range(min(height + breadth, _MOST_EDITS) + 1):
        history.append(reached.copy())
        for diagonal in range(-edits, edits + 1, 2):
            source = _before(reached, diagonal, edits)
            start = row = reached[source] + (source < diagonal)
            column = row - diagonal
            while row < height and column < breadth and rows[row] == columns[column]:
                row += 1
                column += 1
            reached[diagonal] = row
            taken += row - start + 1
            if row >= height and column >= breadth:
                return _retraced(history, height, breadth), taken
        if taken > steps:
            break
    return [], taken


def _before(reached: Mapping[int, int], diagonal: int, edits: int) -> int:
    """The diagonal from which `diagonal` is reached with one more edit."""
    if diagonal == -edits or (diagonal != edits and reached[diagonal - 1] < reached[diagonal + 1]):
        return diagonal + 1
    return diagonal - 1


def _retraced(history: Sequence[Mapping[int, int]], row: int, column: int) -> list[tuple[int, int]]:
    matches: list[tuple[int, int]] = []
    for edits in range(len(history) - 1, -1, -1):
        diagonal = _before(history[edits], row - column, edits)
        earlier = history[edits][diagonal]
        while row > earlier and column > earlier - diagonal:
            row -= 1
            column -= 1
            matches.append((row, column))
        row, column = earlier, earlier - diagonal
    matches.reverse()
    return matches
