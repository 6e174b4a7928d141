"""Reading ahead: when keys are asked for in order, the values of the next keys come in the same call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from vstate.errors import CannotLoad, CorruptObject, CorruptStore
from vstate.kv.base import batches
from vstate.objects import tree
from vstate.objects.ids import ObjectId
from vstate.objects.stream import is_single
from vstate.repo.objects import Objects
from vstate.spans import spanned
from vstate.values.entry import PICKLE, Entry, OneBlobEntry, Reader, parse_entry
from vstate.values.loading import is_plain
from vstate.values.opcodes import load_only_plain

FIRST_BATCH = 8
LONGEST_BATCH = 1024
"""How many keys come in the first batch, and at most; each batch is four times the one before."""

BATCH_BYTES = 4 * 1024 * 1024
"""The values of a batch together are no longer than this, the first value aside."""

MOST_SKIPPED = 8
"""A reader that leaves out so many keys in a row still reads in order."""

MOST_LOADED = 64
MOST_LOADED_BYTES = 64 * 1024
"""How many values are loaded before their keys are asked for, and how many bytes their pickles have."""

_DAMAGE = (CorruptObject, CorruptStore)

Item = tuple[str, bytes]
"""A key and its entry."""


class _Batch(NamedTuple):
    """The entries of one tree that were read ahead, in order, the place of each key, and their objects."""

    root: ObjectId | None
    keys: list[str]
    places: dict[str, int]
    entries: list[Entry | OneBlobEntry]
    bodies: Mapping[ObjectId, bytes | memoryview]


_NO_BATCH = _Batch(None, [], {}, [], {})


class _ReadsInOrder(ABC):
    """Finds entries that were read ahead, and reads the objects that they need, as a `Reader`.

    When two keys are asked for in order, the entries and objects of the next keys come in one call of the
    store. Threads may share it: each takes the batch once, as another thread may read another tree.
    """

    _reader: Reader
    _expected: tuple[ObjectId | None, Sequence[str], int] = None, (), 0
    """The keys of which one comes next if a tree is read in order, and the size of the batch then."""
    batch = _NO_BATCH
    """What was read ahead."""

    @abstractmethod
    def _items_from(self, root: ObjectId | None, key: str, count: int) -> Sequence[Item]:
        """So many items of this tree, from this key on; CorruptObject."""

    def _look(self, root: ObjectId | None, key: str) -> Entry | OneBlobEntry | None:
        """The entry of a key that was read ahead, or that comes next in order; None for any other key."""
        batch = self.batch
        if key in batch.places and batch.root == root:
            return batch.entries[batch.places[key]]
        expected, keys, size = self._expected
        if key not in keys or expected != root:
            return None
        try:
            items = self._items_from(root, key, size + MOST_SKIPPED)
            after = items[self._read(root, items[:size]) :][:MOST_SKIPPED]
        except _DAMAGE:  # perhaps of another key alone
            self._expected = None, (), 0
            return None
        self._expected = root, [key for key, _ in after], min(4 * size, LONGEST_BATCH)
        batch = self.batch
        return batch.entries[batch.places[key]] if key in batch.places and batch.root == root else None

    def _read(self, root: ObjectId | None, items: Sequence[Item]) -> int:
        """Read the entries and objects of the first of these items; how many."""
        entries: list[Entry | OneBlobEntry] = []
        sizes: dict[ObjectId, int] = {}
        left = BATCH_BYTES
        for key, data in items:
            entry = OneBlobEntry.find(data) or parse_entry(key, data)
            left -= entry.size
            if left < 0 and entries:
                break
            if isinstance(entry, OneBlobEntry):
                sizes[entry.id] = entry.size
            else:
                sizes |= {link.id: link.length for link in entry.links if is_single(link)}
            entries.append(entry)
        keys = [key for key, _ in items[: len(entries)]]
        try:
            bodies = self.blobs(sizes) if len(sizes) > 1 else {}
        except _DAMAGE:  # each key tells for itself
            bodies = {}
        self.batch = _Batch(root, keys, {key: i for i, key in enumerate(keys)}, entries, bodies)
        return len(entries)

    # Reader

    def blob(self, oid: ObjectId) -> bytes:
        """The body of this blob."""
        body = self.batch.bodies.get(oid)
        return self._fetch_one(oid) if body is None else bytes(body)

    @spanned("read", lambda body, *_: {"objects": 1, "bytes": len(body)})
    def _fetch_one(self, oid: ObjectId) -> bytes:
        return self._reader.blob(oid)

    @spanned("read", lambda bodies, *_: {"objects": len(bodies), "bytes": sum(map(len, bodies.values()))})
    def blobs(self, sizes: Mapping[ObjectId, int]) -> Mapping[ObjectId, bytes | memoryview]:
        """The bodies of these blobs."""
        return self._reader.blobs(sizes)

    def indexes(self, ids: Sequence[ObjectId]) -> Mapping[ObjectId, bytes]:
        """The bodies of these index nodes."""
        return self._reader.indexes(ids)


class ItemsAhead(_ReadsInOrder):
    """Reads the values of these items, as a `Reader`. The items are looked at when the first is read."""

    def __init__(self, items: Iterable[Item], reader: Reader) -> None:
        self._reader = reader
        self._unsorted: Iterable[Item] | None = items
        self._items: list[Item] = []

    def of(self, key: str) -> Reader:
        """A reader for the value of this key."""
        if self._unsorted is not None:
            self._items, self._unsorted = sorted(self._unsorted), None
        if self._look(None, key) is None:
            after = self._items_from(None, key, MOST_SKIPPED + 1)[1:]
            self._expected = None, [key for key, _ in after], FIRST_BATCH
        return self

    def _items_from(self, root: ObjectId | None, key: str, count: int) -> Sequence[Item]:
        begin = bisect_left(self._items, (key, b""))
        return self._items[begin : begin + count]


class EntryPrefetch(_ReadsInOrder):
    """Finds the entries of trees, and reads their objects, as a `Reader`.

    If `loads` is true, pickles of plain data are loaded a few keys ahead. Any other value is loaded only when
    its key is asked for, because loading it may run code, or fail.
    """

    def __init__(self, objects: Objects, *, loads: bool = True) -> None:
        self._reader = self._objects = objects
        self._loads = loads
        self._loaded = _NO_BATCH, 0
        """A batch, and the place of the last value up to which its plain data was loaded."""

    def drop(self) -> None:
        """Keep nothing in memory."""
        self.batch, self._expected, self._loaded = _NO_BATCH, (None, (), 0), (_NO_BATCH, 0)

    def _items_from(self, root: ObjectId | None, key: str, count: int) -> Sequence[Item]:
        return list(islice(tree.scan(self._objects.nodes, root, start=key), count))

    def find(self, root: ObjectId | None, key: str) -> Entry | OneBlobEntry | None:
        """The entry of a key in the tree of this root, None if absent; CorruptObject."""
        if (entry := self._look(root, key)) is not None:
            return entry
        found = tree.find(self._objects.node, root, key)
        if found is None:
            return None
        leaf, i = found
        self._expected = root, leaf.keys[i + 1 : i + 1 + MOST_SKIPPED], FIRST_BATCH
        data: bytes = leaf.items[i]  # type: ignore[assignment]  # a leaf's are bytes
        return OneBlobEntry.find(data) or parse_entry(key, data)

    def in_batches(
        self, root: ObjectId | None, keys: Iterable[str], *, known: Callable[[str], bool] = lambda key: False
    ) -> Iterator[list[str]]:
        """The keys, a batch at a time; `find` and the objects of a batch then take no call of the store.

        Nothing is read for `known` keys.
        """
        for some in batches(keys, LONGEST_BATCH):
            unknown = [key for key in some if not known(key)]
            found = tree.lookup_many(self._objects.nodes, root, unknown) if len(unknown) > 1 else {}
            items = [(key, found[key]) for key in dict.fromkeys(some) if key in found]
            begin = 0
            while True:
                count = self._read(root, items)
                del items[:count]
                end = some.index(items[0][0], begin) if items else len(some)
                yield some[begin:end]
                if not items:
                    break
                begin = end

    def following(self, root: ObjectId | None, key: str) -> list[tuple[str, Any, OneBlobEntry]]:
        """If this key was read ahead: the next keys of its batch with plain data, the values, the entries."""
        batch = self.batch
        place = batch.places.get(key)
        if place is None or batch.root != root or not self._loads:
            return []
        loaded, last = self._loaded
        if loaded is batch and place < last:
            return []
        found: list[tuple[str, Any, OneBlobEntry]] = []
        left = MOST_LOADED_BYTES
        last = place
        some = slice(place + 1, place + 1 + MOST_LOADED)
        for following, entry in zip(batch.keys[some], batch.entries[some], strict=True):
            left -= entry.size
            if left < 0:
                break
            last += 1
            body = batch.bodies.get(entry.id) if isinstance(entry, OneBlobEntry) else None
            if type(body) is bytes and len(body) == entry.size and entry.codec == PICKLE and is_plain(body):
                try:
                    found.append((following, load_only_plain(body), entry))  # type: ignore[arg-type]  # a Short
                except CannotLoad:  # the read of that key tells
                    continue
        self._loaded = batch, last
        return found
