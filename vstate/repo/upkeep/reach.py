"""Reach: every object that some commits need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from vstate.errors import CorruptObject
from vstate.objects.ids import BLOB, COMMIT, INDEX, TREE, Kind, ObjectId
from vstate.objects.stream import is_single, read_index
from vstate.objects.tree import Node
from vstate.repo.history import History
from vstate.repo.objects import Objects
from vstate.values.entry import Entry

BATCH = 256
"""How many objects are read at once: of the largest, tree nodes of some 4 KB, that is 1 MB."""

_BUCKETS = 1 << 16
_REST = 14  # bytes that are kept of an id, besides the two that are the number of its bucket
_REMEMBERED_ENTRIES = 100_000
_ATOM = b"\x92\x00"  # how the entry of an atom begins


class IdSet:
    """A set of ids in some 15 bytes each: 10 million take 140 MB, where a Python set takes 1.3 GB.

    An id is kept as its first 8 bytes and Python's hash of all of it: that two of n ids agree in these has a
    probability of n**2 / 2**129. The hash is keyed with what only this process knows. So nobody can name
    an object that is not there by an id that passes for one that is.
    """

    def __init__(self) -> None:
        # Bytes, one id behind the other, and not bytearrays, whose slack is more than copying them costs.
        self._buckets = [b""] * _BUCKETS
        self._count = 0

    def add(self, oid: bytes) -> bool:
        """Put the id in; whether it was not there."""
        number = oid[0] << 8 | oid[1]
        bucket, rest = self._buckets[number], _rest(oid)
        if bucket and _stands_in(bucket, rest):
            return False
        self._buckets[number] = bucket + rest
        self._count += 1
        return True

    def __contains__(self, oid: bytes) -> bool:
        bucket = self._buckets[oid[0] << 8 | oid[1]]
        return bool(bucket) and _stands_in(bucket, _rest(oid))

    def __len__(self) -> int:
        return self._count


def _rest(oid: bytes) -> bytes:
    return oid[2:8] + hash(oid).to_bytes(8, "big", signed=True)


def _stands_in(bucket: bytes, rest: bytes) -> bool:
    at = bucket.find(rest)
    while at % _REST:  # between two ids, or nowhere
        if at < 0:
            return False
        at = bucket.find(rest, at + 1)
    return True


class Reach:
    """The ids of all that the commits it was extended with need: commits, trees, indexes and blobs.

    Reads and verifies all of it but the blobs, in batches, each object once; memory stays within a few
    batches and some 15 bytes an object. Raises CorruptObject where something is damaged or missing: what it
    leads to is not known then. Only `lost`, of which `fsck` has noted that they are, may be missing.
    """

    def __init__(self, objects: Objects, history: History, lost: IdSet | None = None) -> None:
        self._objects = objects
        self._history = history
        self._ids = IdSet()
        self._entries: set[bytes] = set()
        self._lost = lost or IdSet()
        self.lost = IdSet()
        """Those of the lost objects that the walk met."""
        self._add = self._add_unless_lost if lost else self._ids.add

    def __contains__(self, oid: bytes) -> bool:
        return oid in self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def _add_unless_lost(self, oid: bytes) -> bool:
        # One that has been written again is walked from like any other, also when that happens meanwhile.
        if oid in self._lost and not self._objects.is_stored(ObjectId(oid)):
            self.lost.add(oid)
            return False
        return self._ids.add(oid)

    def leave_out(self, commits: Iterable[ObjectId]) -> None:
        """Take these commits, all before them, and what these commits themselves hold, as reached already.

        What only an earlier one holds may be met again: it is not looked for.
        """
        roots = []
        for commit in self._history.ancestors(*commits):
            self._ids.add(commit.oid)
        for oid in commits:
            tree = self._objects.commit(oid).tree
            if tree is not None and self._add(tree):
                roots.append(tree)
        for _ in self._walk([(TREE, roots)]):
            pass

    def extend(self, commits: Iterable[ObjectId]) -> Iterator[tuple[Kind, list[ObjectId]]]:
        """Walk from more commits; the newly reached ids, by kind, in batches. Run it to its end."""
        new = [oid for oid in commits if self._ids.add(oid)]
        yield from self._walk([(COMMIT, new)])

    def _walk(self, stack: list[tuple[Kind, list[ObjectId]]]) -> Iterator[tuple[Kind, list[ObjectId]]]:
        # Depth first, a batch at a time, so that what is still to be read stays small.
        while stack:
            kind, ids = stack.pop()
            if not ids:
                continue
            if len(ids) > BATCH:
                stack.append((kind, ids[BATCH:]))
                ids = ids[:BATCH]
            yield kind, ids
            if kind is COMMIT:
                stack += self._below_commits(ids)
            elif kind is TREE:
                stack += self._below_nodes(ids)
            elif kind is INDEX:
                stack += self._below_indexes(ids)

    def _below_commits(self, ids: list[ObjectId]) -> Sequence[tuple[Kind, list[ObjectId]]]:
        parents, roots = [], []
        for commit in self._objects.commits(ids):
            if commit.tree is not None and self._add(commit.tree):
                roots.append(commit.tree)
            parents += [oid for oid in self._history.parents(commit) if self._ids.add(oid)]
        return [(COMMIT, parents), (TREE, roots)]

    def _below_nodes(self, ids: list[ObjectId]) -> Sequence[tuple[Kind, list[ObjectId]]]:
        add = self._add
        children: list[ObjectId] = []
        blobs: list[ObjectId] = []
        indexes: list[ObjectId] = []
        if len(self._entries) > _REMEMBERED_ENTRIES:
            self._entries.clear()
        for oid, body in self._objects.read_each(TREE, ids):
            try:
                node = Node.decode(body)
                if node.height:
                    children += filter(add, node.children())
                    continue
                for link in self._links(node.items):
                    if add(link.id):
                        (blobs if is_single(link) else indexes).append(link.id)
            except ValueError as error:
                raise CorruptObject(str(oid), str(error)) from error
        return [(BLOB, blobs), (INDEX, indexes), (TREE, children)]

    def _links(self, items: Iterable[Any]) -> Iterator[Any]:
        # Most entries of a node stood in its last version too.
        known = self._entries
        for item in items:
            if item not in known and not item.startswith(_ATOM):
                known.add(item)
                yield from Entry.decode(item).links

    def _below_indexes(self, ids: list[ObjectId]) -> Sequence[tuple[Kind, list[ObjectId]]]:
        add = self._add
        indexes: list[ObjectId] = []
        blobs: list[ObjectId] = []
        for oid, body in self._objects.read_each(INDEX, ids):
            try:
                height, items = read_index(body)
            except ValueError as error:
                raise CorruptObject(str(oid), str(error)) from error
            (blobs if height == 1 else indexes).extend(child for child, _ in items if add(child))
        return [(BLOB, blobs), (INDEX, indexes)]
