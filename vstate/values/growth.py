"""Growth: serialized values that grow or change in parts, each of whose bytes is kept once.

A *heap* is all bytes that a journal has ever taken, one after another. A value is described by `Grown`: a few
bytes of its own, and ranges of the heap. A list in MessagePack that got items at its end is its new head and
one range, whatever its length. After a trim, an edit in the middle or a new first item, the items that stay
are ranges of the heap too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import msgpack

from vstate.errors import InvalidInput

SHORT = 32
"""A value up to this long is kept in its description: a range of the heap would take as many bytes."""

LONG = 3 * 1024
"""A part of the heap from this length on is read by itself: little else is in its segment."""

MOST_RANGES = 256
"""A value in more pieces is put on the heap anew, as a whole."""

# The first byte of a MessagePack text, binary, array or map whose length follows, and the bytes of the head.
_LONG_HEADS = {0xD9: 2, 0xDA: 3, 0xDB: 5, 0xC4: 2, 0xC5: 3, 0xC6: 5, 0xDC: 3, 0xDD: 5, 0xDE: 3, 0xDF: 5}
_ARRAYS_AND_MAPS = range(0x80, 0xA0)
_ITEMS = frozenset({*_ARRAYS_AND_MAPS, 0xDC, 0xDD, 0xDE, 0xDF})

NOT_JOINED = (
    "two copies of a journal were merged after both had gone on, and its records name others by their "
    "positions, so {!r} cannot be read: go back to a commit before the merge, with `vstate reset`"
)


class Grown(NamedTuple):
    """A value: its first bytes, and the ranges of the heap with the others, each as start and end."""

    head: bytes
    ranges: tuple[int, ...]

    @property
    def length(self) -> int:
        """The bytes of the value."""
        return len(self.head) + sum(self.ranges[1::2]) - sum(self.ranges[::2])

    def moved(self, count: int, start: int) -> Grown:
        """The same value, once so many bytes at its end are at this position of the heap."""
        ranges = [*self.ranges]
        left = count
        while ranges and left >= ranges[-1] - ranges[-2]:
            left -= ranges.pop() - ranges.pop()
        if left:
            ranges[-1] -= left
        return Grown(self.head, (*ranges, start, start + count))


class Unread(InvalidInput):
    """A reader of the newest part of a journal needs more: these spans of the heap, or without one the part
    before its first record.
    """

    def __init__(self, *spans: tuple[int, int]) -> None:
        super().__init__(f"a value needs bytes at {spans} that its heap lacks")
        self.spans: Sequence[tuple[int, int]] = spans


class Heap:
    """The bytes of a journal in memory, as the parts that were added: no part is copied."""

    def __init__(self, start: int = 0) -> None:
        """The heap from this position on."""
        self._parts: list[bytes] = []
        self._starts: list[int] = []
        self.end = start
        """The position behind the last byte."""

    def add(self, data: bytes) -> None:
        """Put bytes at the end of the heap."""
        if data:
            self._starts.append(self.end)
            self._parts.append(data)
            self.end += len(data)

    def fill(self, start: int, data: bytes) -> None:
        """Put bytes at their position before the beginning."""
        place = bisect_right(self._starts, start)
        self._starts.insert(place, start)
        self._parts.insert(place, data)

    def value(self, grown: Grown) -> bytes:
        """The value of a description. Raises Unread if the heap lacks a part of it."""
        found = [grown.head]
        lacking: list[tuple[int, int]] = []
        for start, end in zip(grown.ranges[::2], grown.ranges[1::2], strict=True):
            place = bisect_right(self._starts, start) - 1
            while start < end:
                part = b""
                if 0 <= place < len(self._parts) and (first := self._starts[place]) <= start:
                    part = self._parts[place][start - first : end - first]
                if not part:
                    lacking.append((start, end))
                    break
                found.append(part)
                start += len(part)
                place += 1
        if lacking:
            raise Unread(*lacking)
        return b"".join(found)

    def scattered(self, grown: Grown) -> int:
        """How many bytes at the end of a value are in short parts of the heap."""
        count = 0
        for start, end in zip(grown.ranges[-2::-2], grown.ranges[::-2], strict=True):
            place = bisect_right(self._starts, end - 1) - 1
            while start < end and place >= 0:
                if len(self._parts[place]) >= LONG:
                    return count
                first = max(start, self._starts[place])
                count += end - first
                end = first
                place -= 1
        return count


def grow(data: bytes, heap_size: int, before: tuple[Grown, bytes] | None = None) -> tuple[Grown, bytes]:
    """The description of a value, and the bytes that it adds to a heap of this size.

    `before` is an earlier version, with its description: parts of it that are still there are used again.
    The data may be anything. The items of an array or a map in MessagePack are found one by one.
    """
    if len(data) <= SHORT:
        return Grown(data, ()), b""
    cut = _head_length(data)
    if before is not None and len(before[0].ranges) // 2 < MOST_RANGES:
        old, old_data = before
        same = len(old_data) - len(old.head)
        # Compared as a whole first: most values stay as they are, or grow at their end.
        if same and data[cut : cut + same] == old_data[len(old.head) :]:
            return _added(data[:cut], old.ranges, data[cut + same :], heap_size)
        reused = _from_items(data, cut, old, old_data, heap_size)
        if reused is not None:
            return reused
    return _added(data[:cut], (), data[cut:], heap_size)


def _added(head: bytes, ranges: tuple[int, ...], new: bytes, heap_size: int) -> tuple[Grown, bytes]:
    if new:
        joined = ranges[:-1] if ranges and ranges[-1] == heap_size else (*ranges, heap_size)
        ranges = *joined, heap_size + len(new)
    return Grown(head, ranges), new


def _from_items(
    data: bytes, cut: int, old: Grown, old_data: bytes, heap_size: int
) -> tuple[Grown, bytes] | None:
    """The value as items of its earlier version and new ones; None if it has no items."""
    places = _borders(data)
    old_places = _borders(old_data)
    if not places or not old_places:
        return None
    # Where the items of the old version lie on the heap, by their bytes.
    known: dict[bytes, tuple[int, int]] = {}
    starts, ends = list(old.ranges[::2]), list(old.ranges[1::2])
    place = len(old.head)
    for i, j in pairwise(old_places):
        while starts and i - place >= ends[0] - starts[0]:
            place += ends.pop(0) - starts.pop(0)
        if starts and i >= place and j - place <= ends[0] - starts[0]:
            known[old_data[i:j]] = starts[0] + i - place, starts[0] + j - place
    ranges: list[int] = []
    new: list[bytes] = []
    end = heap_size
    for i, j in pairwise(places):
        item = data[i:j]
        found = known.get(item)
        if found is None:
            found = known[item] = end, end + len(item)
            new.append(item)
            end += len(item)
        ranges += found
    joined = _joined(ranges)
    return None if len(joined) // 2 > MOST_RANGES else (Grown(data[:cut], joined), b"".join(new))


def _joined(ranges: list[int]) -> tuple[int, ...]:
    """The ranges, with neighbours joined."""
    joined: list[int] = []
    for start, end in zip(ranges[::2], ranges[1::2], strict=True):
        if joined and joined[-1] == start:
            joined[-1] = end
        else:
            joined += start, end
    return tuple(joined)


def _head_length(data: bytes) -> int:
    """The bytes of the head of a MessagePack text, binary, array or map; 0 for other data."""
    return _LONG_HEADS.get(data[0], 1 if data[0] in _ARRAYS_AND_MAPS else 0)


def _borders(data: bytes) -> list[int]:
    """Where the items of an array or map in MessagePack begin, and where the last one ends; else nothing."""
    if not data or data[0] not in _ITEMS:
        return []
    unpacker = msgpack.Unpacker(max_buffer_size=len(data))
    unpacker.feed(data)
    try:
        array = data[0] in range(0x90, 0xA0) or data[0] in (0xDC, 0xDD)
        count = unpacker.read_array_header() if array else 2 * unpacker.read_map_header()
        places = [unpacker.tell()]
        for _ in range(count):
            unpacker.skip()
            places.append(unpacker.tell())
    except (ValueError, msgpack.UnpackException):
        return []
    return places if places[-1] == len(data) else []
