"""EntryPrefetch: the entries of a tree by key; keys that are asked for in order are read in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from vstate.errors import CannotLoad, CorruptObject, CorruptStore
from vstate.kv.base import batches
from vstate.objects import tree
from vstate.objects.ids import ObjectId
from vstate.objects.stream import is_single
from vstate.repo.compare.reading import BATCH_BYTES, FIRST_BATCH, LONGEST_BATCH, MOST_SKIPPED
from vstate.repo.core import Core
from vstate.spans import spanned
from vstate.values.entry import PICKLE, Entry, OneBlobEntry
from vstate.values.loading import is_plain, load_plain


class _Expected(NamedTuple):
    """The keys of which one comes next if the tree is read in order, and the size of the batch then."""

    root: ObjectId | None
    first: str
    last: str
    batch: int


class _Batch(NamedTuple):
    """The entries of one tree that were read ahead, in order, the place of each key, and their objects."""

    root: ObjectId | None
    keys: list[str]
    places: dict[str, int]
    entries: list[Entry | OneBlobEntry]
    bodies: Mapping[ObjectId, bytes | memoryview]


_NONE = _Batch(None, [], {}, [], {})


MOST_LOADED = 64
MOST_LOADED_BYTES = 64 * 1024
"""How many values are loaded before their keys are asked for, and how many bytes their pickles have."""

_NOTHING = _Expected(None, "", "", 0)
_DAMAGE = (CorruptObject, CorruptStore)


class EntryPrefetch:
    """Finds entries, and reads the objects that they need, as a `Reader`.

    When two keys are asked for in order, the entries and objects of the next keys come in one call of the
    store. Pickles of plain data are loaded a few keys ahead. Any other value is loaded only when its key is
    asked for, because loading it may run code, or fail. Threads may share it.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._objects = core.objects
        self._expected = _NOTHING
        self._batch = _NONE
        self._loaded = _NONE, 0
        """A batch, and the place of the last value up to which its plain data was loaded."""

    def find(self, root: ObjectId | None, key: str) -> Entry | OneBlobEntry | None:
        """The entry of a key in the tree of this root, None if absent; CorruptObject."""
        if (entry := self._in_batch(root, key)) is not None:
            return entry
        expected = self._expected
        if expected.first <= key <= expected.last and expected.root == root and root is not None:
            try:
                self._read_on(root, key, expected.batch)
            except _DAMAGE:  # perhaps of another key alone
                self._expected = _NOTHING
            if (entry := self._in_batch(root, key)) is not None:
                return entry
        found = tree.find(self._objects.node, root, key)
        if found is None:
            return None
        leaf, i = found
        if some := leaf.keys[i + 1 : i + 1 + MOST_SKIPPED]:
            # As in `Entry.decode`.
            self._expected = tuple.__new__(_Expected, (root, some[0], some[-1], FIRST_BATCH))
        data: bytes = leaf.items[i]  # type: ignore[assignment]  # a leaf's are bytes
        return OneBlobEntry.find(data) or self._core.parse_entry(key, data)

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
        batch = self._batch  # once: another thread may read another tree
        place = batch.places.get(key)
        if place is None or batch.root != root or self._core.security.allow is not None:
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
                    found.append((following, load_plain(body), entry))  # type: ignore[arg-type]  # a Short
                except CannotLoad:  # the read of that key tells
                    continue
        self._loaded = batch, last
        return found

    def _in_batch(self, root: ObjectId | None, key: str) -> Entry | OneBlobEntry | None:
        batch = self._batch  # once, as above
        return batch.entries[batch.places[key]] if batch.root == root and key in batch.places else None

    def _read_on(self, root: ObjectId, key: str, batch: int) -> None:
        """Read the entries from this key on, with their objects, and expect the keys that follow."""
        items = list(islice(tree.scan(self._objects.nodes, root, start=key), batch + MOST_SKIPPED))
        after = items[self._read(root, items[:batch]) :][:MOST_SKIPPED]
        next_batch = min(4 * batch, LONGEST_BATCH)
        self._expected = _Expected(root, after[0][0], after[-1][0], next_batch) if after else _NOTHING

    def _read(self, root: ObjectId | None, items: Sequence[tuple[str, bytes]]) -> int:
        """Read the entries and objects of the first of these items; how many."""
        entries: list[Entry | OneBlobEntry] = []
        sizes: dict[ObjectId, int] = {}
        left = BATCH_BYTES
        for key, data in items:
            entry = OneBlobEntry.find(data) or self._core.parse_entry(key, data)
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
            bodies = self._fetch(sizes) if len(sizes) > 1 else {}
        except _DAMAGE:  # each key tells for itself
            bodies = {}
        self._batch = _Batch(root, keys, {key: i for i, key in enumerate(keys)}, entries, bodies)
        return len(entries)

    # Reader

    def blob(self, oid: ObjectId) -> bytes:
        """The body of this blob."""
        body = self._batch.bodies.get(oid)
        return self._fetch_one(oid) if body is None else bytes(body)

    def blobs(self, sizes: Mapping[ObjectId, int]) -> Mapping[ObjectId, bytes | memoryview]:
        """The bodies of these blobs."""
        return self._fetch(sizes)

    def indexes(self, ids: Sequence[ObjectId]) -> Mapping[ObjectId, bytes]:
        """The bodies of these index nodes."""
        return self._objects.indexes(ids)

    # From the store

    @spanned("read", lambda body, *_: {"objects": 1, "bytes": len(body)})
    def _fetch_one(self, oid: ObjectId) -> bytes:
        return self._objects.blob(oid)

    @spanned("read", lambda bodies, *_: {"objects": len(bodies), "bytes": sum(map(len, bodies.values()))})
    def _fetch(self, sizes: Mapping[ObjectId, int]) -> Mapping[ObjectId, bytes | memoryview]:
        return self._objects.blobs(sizes)
