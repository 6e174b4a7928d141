"""Ahead: the entries of a tree by key; keys that are asked for in order are read in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from vstate.errors import CorruptObject, CorruptStore
from vstate.kv.base import batches
from vstate.objects import tree
from vstate.objects.ids import ObjectId
from vstate.objects.stream import is_single
from vstate.repo.compare.reading import BATCH_BYTES, FIRST_BATCH, LONGEST_BATCH, MOST_SKIPPED
from vstate.repo.core import Core
from vstate.values.entry import Entry


class _Expected(NamedTuple):
    """The keys of which one comes next if the tree is read in order, and the size of the batch then."""

    root: ObjectId | None
    first: str
    last: str
    batch: int


class _Batch(NamedTuple):
    """The entries of one tree that were read ahead and not asked for yet, and their objects."""

    root: ObjectId | None
    entries: dict[str, Entry]
    bodies: Mapping[ObjectId, bytes | memoryview]


_NOTHING = _Expected(None, "", "", 0)
_DAMAGE = (CorruptObject, CorruptStore)


class Ahead:
    """Finds entries, and reads the objects that they need, as a `Reader`.

    When two keys are asked for in order, the entries and objects of the next keys come in one call of the
    store. A value is loaded only when its key is asked for. Threads may share it.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._objects = core.objects
        self._expected = _NOTHING
        self._batch = _Batch(None, {}, {})

    def find(self, root: ObjectId | None, key: str) -> Entry | None:
        """The entry of a key in the tree of this root, None if absent; CorruptObject."""
        if (entry := self._take(root, key)) is not None:
            return entry
        expected = self._expected
        if expected.first <= key <= expected.last and expected.root == root and root is not None:
            try:
                self._read(root, key, expected.batch)
            except _DAMAGE:  # perhaps of another key alone
                self._expected = _NOTHING
            if (entry := self._take(root, key)) is not None:
                return entry
        found = tree.find(self._objects.node, root, key)
        if found is None:
            return None
        leaf, i = found
        if i + 1 < len(leaf.keys):
            last = leaf.keys[min(i + MOST_SKIPPED, len(leaf.keys) - 1)]
            self._expected = _Expected(root, leaf.keys[i + 1], last, FIRST_BATCH)
        return self._core.parse_entry(key, leaf.items[i])  # type: ignore[arg-type]  # a leaf's are bytes

    def in_batches(
        self, root: ObjectId | None, keys: Iterable[str], *, known: Callable[[str], bool] = lambda key: False
    ) -> Iterator[list[str]]:
        """The keys, a batch at a time; `find` and the objects of a batch then take no call of the store.

        Nothing is read for `known` keys.
        """
        for some in batches(keys, LONGEST_BATCH):
            unknown = [key for key in some if not known(key)]
            found = tree.lookup_many(self._objects.nodes, root, unknown) if len(unknown) > 1 else {}
            entries: dict[str, Entry] = {}
            batch: list[str] = []
            left = BATCH_BYTES
            for key in some:
                if key in found:
                    entry = self._core.parse_entry(key, found[key])
                    left -= entry.size
                    if left < 0 and entries:
                        self._fetch(root, entries)
                        yield batch
                        entries, batch, left = {}, [], BATCH_BYTES - entry.size
                    entries[key] = entry
                batch.append(key)
            self._fetch(root, entries)
            yield batch

    def _take(self, root: ObjectId | None, key: str) -> Entry | None:
        batch = self._batch  # once: another thread may read another tree
        return batch.entries.pop(key, None) if batch.root == root else None

    def _read(self, root: ObjectId, key: str, batch: int) -> None:
        """Read the entries from this key on, with their objects, and expect the keys that follow."""
        entries: dict[str, Entry] = {}
        left = BATCH_BYTES
        scan = tree.scan(self._objects.nodes, root, start=key)
        after: list[str] = []
        for at, data in islice(scan, batch):
            entry = self._core.parse_entry(at, data)
            left -= entry.size
            if left < 0 and entries:
                after = [at]
                break
            entries[at] = entry
        after += [at for at, _ in islice(scan, MOST_SKIPPED)]
        self._fetch(root, entries)
        next_batch = min(4 * batch, LONGEST_BATCH)
        self._expected = _Expected(root, after[0], after[-1], next_batch) if after else _NOTHING

    def _fetch(self, root: ObjectId | None, entries: dict[str, Entry]) -> None:
        sizes = {
            link.id: link.length for entry in entries.values() for link in entry.links if is_single(link)
        }
        try:
            bodies = self._objects.blobs(sizes) if len(sizes) > 1 else {}
        except _DAMAGE:  # each key tells for itself
            bodies = {}
        self._batch = _Batch(root, entries, bodies)

    # Reader

    def blob(self, oid: ObjectId) -> bytes:
        """The body of this blob."""
        body = self._batch.bodies.get(oid)
        return self._objects.blob(oid) if body is None else bytes(body)

    def blobs(self, sizes: Mapping[ObjectId, int]) -> Mapping[ObjectId, bytes | memoryview]:
        """The bodies of these blobs."""
        return self._objects.blobs(sizes)

    def indexes(self, ids: Sequence[ObjectId]) -> Mapping[ObjectId, bytes]:
        """The bodies of these index nodes."""
        return self._objects.indexes(ids)
