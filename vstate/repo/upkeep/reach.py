"""Reach: every object that some commits need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from vstate.objects.ids import BLOB, COMMIT, INDEX, TREE, ObjectId
from vstate.objects.stream import is_single
from vstate.repo.history import History
from vstate.repo.idset import IdSet
from vstate.repo.objects import Objects
from vstate.repo.walk import BATCH, Batch, Entries, depth_first, links_of


class Reach:
    """The ids of all commits, trees, indexes and blobs that some commits need.

    Reads and verifies each object once, in batches, except the blobs; takes a few batches of memory and some
    15 bytes an object. Raises CorruptObject if an object is damaged or missing, because nobody knows then
    which objects it needs. Only the `lost` objects, which `fsck` has noted as such, may be missing. The walk
    stops at objects that are in the Reach `but`, and leaves them out.
    """

    def __init__(
        self, objects: Objects, history: History, lost: IdSet | None = None, *, but: Reach | None = None
    ) -> None:
        self._objects = objects
        self._history = history
        self._ids = IdSet()
        self._entries = Entries()
        self._roots: list[ObjectId] = []  # of trees, still to be read
        self._lost = lost or IdSet()
        self.lost = IdSet()
        """The lost objects that the walk met."""
        self._but = but
        self._add_commit = self._ids.add if but is None else self._add_outside
        self._add = self._add_unless_lost if lost else self._add_commit

    def __contains__(self, oid: bytes) -> bool:
        return oid in self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def _add_outside(self, oid: bytes) -> bool:
        return not (self._but is not None and oid in self._but) and self._ids.add(oid)

    def _add_unless_lost(self, oid: bytes) -> bool:
        # A lost object may have been written again, also while the walk goes on.
        if oid in self._lost and not self._objects.is_stored(ObjectId(oid)):
            self.lost.add(oid)
            return False
        return self._add_commit(oid)

    def extend(self, commits: Iterable[ObjectId]) -> Iterator[Batch]:
        """Walk from more commits; the ids that are new, by kind, in batches. Run it to its end."""
        new = [oid for oid in commits if self._add_commit(oid)]
        below = {COMMIT: self._below_commits, TREE: self._below_nodes, INDEX: self._below_indexes}
        return depth_first([(COMMIT, new)], below)

    def _below_commits(self, ids: Sequence[ObjectId]) -> list[Batch]:
        parents = []
        for commit in self._history.commits(ids):
            if commit.root is not None and self._add(commit.root):
                self._roots.append(commit.root)
            parents += [oid for oid in self._history.parents(commit) if self._add_commit(oid)]
        # Mostly a commit has one parent: the trees of many commits are read together.
        if parents and len(self._roots) < BATCH:
            return [(COMMIT, parents)]
        roots, self._roots = self._roots, []
        return [(COMMIT, parents), (TREE, roots)]

    def _below_nodes(self, ids: Sequence[ObjectId]) -> list[Batch]:
        add = self._add
        children: list[ObjectId] = []
        indexes: list[ObjectId] = []
        blobs: list[ObjectId] = []
        for oid, node, _ in self._objects.each_node(ids):
            if node.height:
                children += filter(add, node.children())
                continue
            for entry in self._entries.new(node):
                for link in links_of(oid, entry):
                    if add(link.id):
                        (blobs if is_single(link) else indexes).append(link.id)
        return [(BLOB, blobs), (INDEX, indexes), (TREE, children)]

    def _below_indexes(self, ids: Sequence[ObjectId]) -> list[Batch]:
        add = self._add
        indexes: list[ObjectId] = []
        blobs: list[ObjectId] = []
        for _, height, items, _ in self._objects.each_index(ids):
            (blobs if height == 1 else indexes).extend(child for child, _ in items if add(child))
        return [(BLOB, blobs), (INDEX, indexes)]
