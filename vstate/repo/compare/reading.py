"""Reading: the blobs of changed keys, in batches if the values are read in the order of the keys."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from vstate.errors import CorruptObject
from vstate.objects.ids import ObjectId
from vstate.objects.stream import is_single
from vstate.objects.tree import KeyChange
from vstate.values.entry import Entry, Reader

FIRST_BATCH = 8
LONGEST_BATCH = 1024
"""How many keys come in the first batch, and at most; each batch is four times the one before."""

BATCH_BYTES = 4 * 1024 * 1024
"""The values of a batch together are no longer than this, the first value aside."""

MOST_SKIPPED = 8
"""A reader that leaves out so many keys in a row still reads in order."""


class _Side:
    """The old values of some changes, or the new ones, as far as they were read."""

    def __init__(self) -> None:
        self.place = -MOST_SKIPPED  # of the key that was read last, or that is the last of a batch
        self.batch = FIRST_BATCH
        self.bodies: Mapping[ObjectId, bytes | memoryview] = {}


class ChangesReader:
    """Reads the values of changed keys, as a `Reader`."""

    def __init__(self, changes: Mapping[str, KeyChange], reader: Reader) -> None:
        self._changes = changes
        self._reader = reader
        self._keys: list[str] = []
        self._old, self._new = _Side(), _Side()

    def of(self, key: str, data: bytes) -> Reader:
        """A reader for the value with this entry, an old or a new one of the key."""
        self._expect(key, data)
        return self

    def _expect(self, key: str, data: bytes) -> None:
        """Read the value with those of the next keys, if the values are read in order."""
        is_new = self._changes[key].new is data
        side = self._new if is_new else self._old
        keys = self._keys = self._keys or sorted(self._changes)
        place = bisect_right(keys, key) - 1
        sizes = _blobs(data)
        if place <= side.place or not sizes or not side.bodies.keys().isdisjoint(sizes):
            return  # of the last batch, or without a blob
        if place - side.place > MOST_SKIPPED:
            side.place, side.batch = place, FIRST_BATCH
            return
        left = BATCH_BYTES - sum(sizes.values())
        side.place = place
        for next_key in keys[place + 1 : place + side.batch]:
            change = self._changes[next_key]
            more = _blobs(change.new if is_new else change.old)
            left -= sum(more.values())
            if left < 0:
                break
            sizes |= more
            side.place += 1
        side.batch = min(4 * side.batch, LONGEST_BATCH)
        try:
            side.bodies = self._reader.blobs(sizes)
        except CorruptObject:  # each key tells for itself
            side.bodies = {}

    # Reader

    def blob(self, oid: ObjectId) -> bytes:
        """The body of this blob."""
        body = self._new.bodies.get(oid) or self._old.bodies.get(oid)
        return self._reader.blob(oid) if body is None else bytes(body)

    def blobs(self, sizes: Mapping[ObjectId, int]) -> Mapping[ObjectId, bytes | memoryview]:
        """The bodies of these blobs."""
        return self._reader.blobs(sizes)

    def indexes(self, ids: Sequence[ObjectId]) -> Mapping[ObjectId, bytes]:
        """The bodies of these index nodes."""
        return self._reader.indexes(ids)


def _blobs(data: bytes | None) -> dict[ObjectId, int]:
    """The blobs that an entry links to itself, with their lengths; none if the entry is damaged."""
    try:
        links = Entry.decode(data).links if data is not None else ()
    except ValueError:  # the read of that key tells
        return {}
    return {link.id: link.length for link in links if is_single(link)}
