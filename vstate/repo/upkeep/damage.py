"""Damage: the faults of a store, and the keys of commits that are lost by them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from vstate.errors import CorruptObject, CorruptStore
from vstate.kv.base import KVStore
from vstate.objects.commit import Commit
from vstate.objects.ids import INDEX, ObjectId
from vstate.objects.stream import is_single, read_index
from vstate.objects.tree import Node
from vstate.plural import counted
from vstate.repo.idset import IdSet
from vstate.repo.objects import Objects
from vstate.repo.walk import NewestFirst
from vstate.values.entry import Entry

LISTED = 1000
"""How many damages, and how many losses, a report lists. It counts the others."""

_Place = tuple[str | None, str]
"""A lost key and an empty text, or None and a description of the lost keys."""

_GONE: Sequence[_Place] = [(None, "the commit itself, and all that only it leads to")]


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged object, row or file, and the reason.

    For an object, `kind` is `blob`, `index`, `tree` or `commit`, and `id` the object's id in hex; for a bad
    link it is the id of the object with the link. For a row, `kind` is `ref`, `reflog`, `shallow`, `format`,
    `row`, or a kind of `_PARSERS` in `vstate/repo/upkeep/metadata.py`, and `id` its key. For the store's own
    file, `kind` is `file` and `id` is empty. `readable`: values can be read all the same.
    `known`: an earlier repair has dealt with it.
    """

    id: str
    kind: str
    reason: str
    readable: bool = False
    known: bool = False

    def __str__(self) -> str:
        notes = ["no value is lost"] * self.readable + ["known from an earlier repair"] * self.known
        what = f"{self.kind} {self.id}: {self.reason}" if self.id else self.reason
        return what + (f" ({'; '.join(notes)})" if notes else "")


@dataclass(frozen=True, slots=True)
class Lost:
    """The lost value of `key` at `commit`, which `ref` leads to.

    If the names of keys are lost too, `key` is None, and `what` describes the loss.
    """

    ref: str
    commit: str
    key: str | None
    what: str = ""

    def __str__(self) -> str:
        loss = self.what if self.key is None else f"the value of {self.key!r}"
        return f"{self.ref} {self.commit[:10]}  {loss}"


class Loss:
    """Tells which keys of commits are lost, given the objects that are bad.

    Reads each whole tree node and index once, and damaged ones for each commit that needs them. Never raises
    CorruptObject: an object that cannot be read is lost.
    """

    def __init__(
        self, store: KVStore, parents: Callable[[Commit], Sequence[ObjectId]], bad: IdSet | None = None
    ) -> None:
        self._objects = Objects(store)
        self._parents = parents
        self._bad = IdSet() if bad is None else bad
        self._whole = IdSet()  # tree nodes and indexes with no damage below them

    # Commits

    def commit(self, oid: ObjectId) -> Commit | None:
        """The commit; None if the commit itself cannot be read."""
        try:
            return None if oid in self._bad else self._objects.commit(oid)
        except (CorruptObject, CorruptStore):
            return None

    def is_whole(self, oid: ObjectId) -> bool:
        """Whether the commit and its own state can be read. The commits before it do not count."""
        commit = self.commit(oid)
        return commit is not None and next(self._of_commit(commit), None) is None

    def lost_parents(self, commit: Commit) -> list[ObjectId]:
        """The parents of the commit that cannot be read."""
        return [oid for oid in self._parents(commit) if self.commit(oid) is None]

    def ancestors(
        self, *starts: ObjectId, seen: IdSet | None = None, first_parents: bool = False
    ) -> Iterator[tuple[ObjectId, Commit | None]]:
        """The commits and all before them, newest first; None in place of a commit that cannot be read.

        Those that are in `seen` already are left out.
        """
        seen = IdSet() if seen is None else seen
        queue = NewestFirst()
        ids: Sequence[ObjectId] = starts
        while True:
            for oid in filter(seen.add, ids):
                if (commit := self.commit(oid)) is None:
                    yield oid, None
                else:
                    queue.push(commit)
            if not queue:
                return
            commit = next(queue)
            yield commit.oid, commit
            ids = self._parents(commit)[: 1 if first_parents else None]

    def below(self, refs: Iterable[tuple[str, ObjectId]]) -> tuple[list[Lost], int, dict[ObjectId, Commit]]:
        """The losses of the commits that these refs lead to, newest commit first, and their total number.

        Lists the first `LISTED` losses. A commit that several refs lead to counts for the first of them. The
        last result has, by id, the commits with parents that cannot be read.
        """
        lost: list[Lost] = []
        total = 0
        cut: dict[ObjectId, Commit] = {}
        seen = IdSet()
        for ref, start in refs:
            for oid, commit in self.ancestors(start, seen=seen):
                if commit is not None and self.lost_parents(commit):
                    cut[oid] = commit
                for key, what in _GONE if commit is None else self._of_commit(commit):
                    total += 1
                    if total <= LISTED:
                        lost.append(Lost(ref, str(oid), key, what))
        return lost, total, cut

    # Trees

    def _of_commit(self, commit: Commit) -> Iterator[_Place]:
        if commit.root is not None:
            yield from self._below(commit.root, "all keys")

    def _below(self, oid: bytes, what: str) -> Iterator[_Place]:
        """The losses below a tree node, or `what` is lost if the node itself cannot be read."""
        if oid in self._whole:
            return
        try:
            node = None if oid in self._bad else self._objects.node(oid)
        except (CorruptObject, CorruptStore):
            node = None
        if node is None:
            yield None, what
            return
        is_whole = True
        for place in self._children(node) if node.height else self._values(node):
            is_whole = False
            yield place
        if is_whole:
            self._whole.add(oid)

    def _children(self, node: Node) -> Iterator[_Place]:
        ends = [*node.keys[1:], None]
        for child, first, before, count in zip(node.children(), node.keys, ends, node.counts, strict=True):
            end = f" to before {before!r}" if before else " on"
            yield from self._below(child, f"{counted(count, 'key')} from {first!r}{end}")

    def _values(self, leaf: Node) -> Iterator[_Place]:
        for key, entry in zip(leaf.keys, leaf.items, strict=True):
            if self._is_entry_lost(entry):  # type: ignore[arg-type]  # bytes, in a leaf
                yield key, ""

    def _is_entry_lost(self, entry: bytes) -> bool:
        try:
            return any(self._is_lost(link.id, is_blob=is_single(link)) for link in Entry.decode(entry).links)
        except ValueError:
            return True

    def _is_lost(self, oid: ObjectId, *, is_blob: bool) -> bool:
        """Whether a part of a value is lost."""
        if oid in self._bad:
            return True
        if is_blob or oid in self._whole:
            return False
        try:
            height, ids, _ = read_index(self._objects.read(INDEX, oid))
        except (ValueError, CorruptObject, CorruptStore):
            return True
        if any(self._is_lost(child, is_blob=height == 1) for child in ids):
            return True
        self._whole.add(oid)
        return False
