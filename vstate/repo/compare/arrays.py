"""Arrays: the elements in which two stored arrays of one dtype and shape differ."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import islice
from typing import Final, Literal, NamedTuple

from vstate.values.arrays import Array

_BLOCK: Final = 2**16  # bytes of an array compared at a time
_SHORT_ITEM: Final = 16  # bytes of an element, up to which many are compared at once
_MOST_RUNS: Final = 10  # ranges that are named one by one
_MOST_RUNS_OF_BLOCK: Final = 50
_RUN: Final = re.compile(rb"[^\0]+")


class Found(NamedTuple):
    """A difference inside an array or a table. A "pair" has to be compared further.

    `steps` lead to it: the indices of an element, a slice of rows or elements, the name of a column, the
    label of a row; none for the whole.
    """

    steps: tuple[object, ...]
    kind: Literal["added", "removed", "modified", "pair"]
    old: object = None
    new: object = None
    note: str = ""


def differences(old: Array, new: Array) -> list[Found] | None:
    """The places in which the arrays differ; few of them, or one range around all.

    Arrays may have different numbers of rows: then rows at the end were added or removed. None for arrays of
    another dtype, order or shape of a row, and for those whose elements cannot be read.
    """
    if any(old.fields.get(name) != new.fields.get(name) for name in ("dtype", "order")):
        return None
    if old.raw is None or new.raw is None or old.itemsize != new.itemsize or not old.shape or not new.shape:
        return None
    if old.shape == new.shape:
        return _inside(old, new)
    if old.shape[1:] != new.shape[1:]:
        return None
    height, later = old.shape[0], new.shape[0]
    row = math.prod(old.shape[1:])
    both = min(height, later)
    first, second = old.rows(0, both), new.rows(0, both)
    if first is None or second is None:
        return None
    found = _inside(first, second)
    steps = (slice(both, max(height, later)),)
    if later > height:
        return [*found, Found(steps, "added", None, new.part(both * row, later * row))]
    return [*found, Found(steps, "removed", old.part(both * row, height * row))]


def _inside(old: Array, new: Array) -> list[Found]:
    """The places in which two arrays of one form differ."""
    assert old.raw is not None
    assert new.raw is not None
    first: list[tuple[int, int]] = []
    count = end = 0
    for start, stop, differing in runs(old.raw, new.raw, old.itemsize):
        if len(first) <= _MOST_RUNS:
            first.append((start, stop))
        count += differing
        end = stop
    if not count:
        return []
    dimensions = len(old.shape)
    total = old.count
    if dimensions == 1 and len(first) <= _MOST_RUNS:
        return [_run(old, new, start, stop) for start, stop in first]
    if dimensions > 1 and count <= _MOST_RUNS:
        places = [place for start, stop in first for place in range(start, stop)]
        return [_element(old, new, place) for place in places]
    note = f"{count} of {total} elements differ"
    if dimensions == 1:
        return [_range(old, new, first[0][0], end, note)]
    return [Found((), "modified", old, new, note)]


def _run(old: Array, new: Array, start: int, stop: int) -> Found:
    if stop - start == 1:
        return _element(old, new, start)
    return _range(old, new, start, stop, f"{stop - start} of {old.count} elements differ")


def _range(old: Array, new: Array, start: int, stop: int, note: str) -> Found:
    return Found((slice(start, stop),), "modified", old.part(start, stop), new.part(start, stop), note)


def _element(old: Array, new: Array, place: int) -> Found:
    before, after = old.elements(place, place + 1), new.elements(place, place + 1)
    if before and after:
        return Found((*old.index(place),), "modified", before[0], after[0])
    note = f"1 of {old.count} elements differ"
    parts = old.part(place, place + 1), new.part(place, place + 1)
    return Found((*old.index(place),), "modified", *parts, note)


def runs(old: memoryview, new: memoryview, itemsize: int) -> Iterator[tuple[int, int, int]]:
    """The runs [start, stop) of elements that differ in their bytes, and their number in each.

    In a block of many short runs, these count as one run with fewer elements than places.
    """
    block = max(_BLOCK // itemsize, 1) * itemsize if itemsize else 1
    waiting: tuple[int, int, int] | None = None
    for at in range(0, len(old), block):
        before, after = old[at : at + block], new[at : at + block]
        if before == after:
            continue
        first = at // itemsize
        marks = _marks(bytes(before), bytes(after), itemsize)
        found = [match.span() for match in islice(_RUN.finditer(marks), _MOST_RUNS_OF_BLOCK)]
        if len(found) == _MOST_RUNS_OF_BLOCK:
            found = [(found[0][0], len(marks.rstrip(b"\0")))]
        for start, stop in found:
            count = stop - start - marks.count(0, start, stop)
            if waiting is not None and waiting[1] == first + start:
                waiting = (waiting[0], first + stop, waiting[2] + count)
                continue
            if waiting is not None:
                yield waiting
            waiting = (first + start, first + stop, count)
    if waiting is not None:
        yield waiting


def _marks(old: bytes, new: bytes, itemsize: int) -> bytes:
    """A byte for each element, which is 0 where both have the same bytes."""
    if itemsize > _SHORT_ITEM:
        starts = range(0, len(old), itemsize)
        return bytes(old[at : at + itemsize] != new[at : at + itemsize] for at in starts)
    # As numbers: one operation for all elements, not one for each.
    bits = (int.from_bytes(old) ^ int.from_bytes(new)).to_bytes(len(old))
    found = 0
    for at in range(itemsize):
        found |= int.from_bytes(bits[at::itemsize])
    return found.to_bytes(len(old) // itemsize)
