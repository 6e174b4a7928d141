"""Damage: the faults of a store, and the keys of commits that are lost by them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vstate.errors import CorruptObject, CorruptStore
from vstate.kv.base import KVStore
from vstate.objects.canonical import encode
from vstate.objects.commit import Commit
from vstate.objects.ids import INDEX, ObjectId
from vstate.objects.stream import is_single, read_index
from vstate.objects.tree import Node
from vstate.plural import counted
from vstate.repo.idset import IdSet
from vstate.repo.objects import Objects
from vstate.repo.walk import NewestFirst
from vstate.values.entry import Entry

_REMEMBERED = 100_000  # entries, and nodes with damage below them


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged object, row or file, and the reason.

    For an object, `kind` is `blob`, `index`, `tree` or `commit`, and `id` the object's id in hex; for a bad
    link it is the id of the object with the link. For a row, `kind` is `ref`, `reflog`, `shallow`, `graph`,
    `policy`, `labels`, `remote`, `format` or `row`, and `id` its key. For the store's own file, `kind` is
    `file` and `id` is empty. `readable`: values can be read all the same. `known`: an earlier repair has
    dealt with it.
    """

    id: str
    kind: str
    reason: str
    readable: bool = False
    known: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.id}: {self.reason}" if self.id else self.reason


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
        return f"{self.ref} {self.commit[:10]}: {self.what if self.key is None else repr(self.key)}"


def link_key(oid: bytes, length: int, height: int | None = None) -> bytes:
    """A link to a blob or a stream, for an IdSet: the id, the length, and the height if it is known."""
    return oid + length.to_bytes(8, "big") + (b"" if height is None else bytes([height]))


def node_link_key(oid: bytes, height: int, first: str, count: int) -> bytes:
    """A link to a tree node, for an IdSet: the id, and the fields that the node above gives."""
    return oid + encode([height, first, count])


class _Range(NamedTuple):
    """`size` keys whose names cannot be read, from `first` on, to before `before` (None: to the end)."""

    first: str
    before: str | None
    size: int

    def __str__(self) -> str:
        keys = counted(self.size, "key")
        return f"{keys} from {self.first!r}" + (f" to before {self.before!r}" if self.before else " on")


class _LossBelow(NamedTuple):
    """The losses below a tree node: their number, and where they are."""

    total: int
    places: Sequence[str | _Range | bytes]
    """Keys, ranges of keys without names, and the ids of child nodes with losses below them."""


_GONE = _LossBelow(1, ())
"""A tree node that cannot be read itself."""


class Loss:
    """Tells which keys of commits are lost, given the objects and the links that are bad.

    Visits each tree node and each index once, however many commits share it. Never raises CorruptObject: an
    object that cannot be read is lost.
    """

    def __init__(
        self,
        store: KVStore,
        parents: Callable[[Commit], Sequence[ObjectId]],
        bad: IdSet,
        bad_links: IdSet,
    ) -> None:
        self._objects = Objects(store)
        self._parents = parents
        self.bad = bad
        self._bad_links = bad_links
        self._whole = IdSet()  # tree nodes and indexes with no damage below them
        self._losses: dict[bytes, _LossBelow] = {}
        self._lost_indexes: set[bytes] = set()
        self._whole_entries: set[bytes] = set()

    # Commits

    def commit(self, oid: ObjectId) -> Commit | None:
        """The commit; None if the commit itself cannot be read."""
        try:
            return None if oid in self.bad else self._objects.commit(oid)
        except (CorruptObject, CorruptStore):
            return None

    def is_whole(self, oid: ObjectId) -> bool:
        """Whether the commit and its own state can be read. The commits before it do not count."""
        commit = self.commit(oid)
        return commit is not None and (commit.root is None or self._below_node(commit.root) is None)

    def first_parents(self, start: ObjectId, *, seen: IdSet) -> Iterator[Commit]:
        """The commit, its first parent, and so on, up to a commit that is in `seen` or cannot be read."""
        oid: ObjectId | None = start
        while oid is not None and seen.add(oid) and (commit := self.commit(oid)) is not None:
            yield commit
            oid = next(iter(self._parents(commit)), None)

    def ancestors(
        self, *starts: ObjectId, seen: IdSet | None = None
    ) -> Iterator[tuple[ObjectId, Commit | None]]:
        """The commits and all before them, newest first; None in place of a commit that cannot be read."""
        seen = IdSet() if seen is None else seen
        queue = NewestFirst()

        def push(oid: ObjectId) -> Iterator[tuple[ObjectId, None]]:
            if seen.add(oid):
                commit = self.commit(oid)
                if commit is None:
                    yield oid, None
                else:
                    queue.push(commit)

        for start in starts:
            yield from push(start)
        for commit in queue:
            yield commit.oid, commit
            for parent in self._parents(commit):
                yield from push(parent)

    def below(self, refs: Iterable[tuple[str, ObjectId]], limit: int) -> tuple[list[Lost], int]:
        """The losses of the commits that these refs lead to, newest commit first, and their total number.

        Lists the first `limit` losses. A commit that several refs lead to counts for the first of them.
        """
        lost: list[Lost] = []
        total = 0
        seen = IdSet()
        for ref, start in refs:
            for oid, commit in self.ancestors(start, seen=seen):
                if commit is None:
                    losses, all_of_it = _GONE, "the commit itself, and all that only it leads to"
                elif commit.root is None or (found := self._below_node(commit.root)) is None:
                    continue
                else:
                    losses, all_of_it = found, "all keys"
                total += losses.total
                if len(lost) < limit:
                    for key, description in self._listed(losses, all_of_it):
                        lost.append(Lost(ref, str(oid), key, description))
                        if len(lost) == limit:
                            break
        return lost, total

    def _listed(self, losses: _LossBelow, all_of_it: str) -> Iterator[tuple[str | None, str]]:
        if losses is _GONE:
            yield None, all_of_it
        for place in losses.places:
            if isinstance(place, str):
                yield place, ""
            elif isinstance(place, _Range):
                yield None, str(place)
            else:
                yield from self._listed(self._below_node(place) or _GONE, all_of_it)

    # Trees

    def _below_node(self, oid: bytes) -> _LossBelow | None:
        """The losses below a tree node; None if there are none."""
        if oid in self._whole:
            return None
        losses = self._losses.get(oid)
        if losses is None:
            node = self._node(oid)
            if node is None:
                return _GONE
            losses = self._below_inner_node(node) if node.height else self._inside_leaf(node)
            if not losses.total:
                self._whole.add(oid)
                return None
            if len(self._losses) > _REMEMBERED:
                self._losses.clear()
            self._losses[oid] = losses
        return losses

    def _node(self, oid: bytes) -> Node | None:
        try:
            return None if oid in self.bad else self._objects.node(oid)
        except (CorruptObject, CorruptStore):
            return None

    def _below_inner_node(self, node: Node) -> _LossBelow:
        places: list[str | _Range | bytes] = []
        total = 0
        ends = [*node.keys[1:], None]
        for child, first, before, count in zip(node.children(), node.keys, ends, node.counts, strict=True):
            is_wrong = node_link_key(child, node.height - 1, first, count) in self._bad_links
            losses = _GONE if is_wrong else self._below_node(child)
            if losses is _GONE:
                places.append(_Range(first, before, count))
            elif losses is not None:
                places.append(bytes(child))
            total += losses.total if losses is not None else 0
        return _LossBelow(total, places)

    def _inside_leaf(self, leaf: Node) -> _LossBelow:
        keys: list[str | _Range | bytes] = []
        if len(self._whole_entries) > _REMEMBERED:
            self._whole_entries.clear()
        for key, item in zip(leaf.keys, leaf.items, strict=True):
            assert isinstance(item, bytes)  # a node that was read holds no other
            if item not in self._whole_entries:
                if self._is_lost(item):
                    keys.append(key)
                else:
                    self._whole_entries.add(item)
        return _LossBelow(len(keys), keys)

    # Values

    def _is_lost(self, entry: bytes) -> bool:
        try:
            links = Entry.decode(entry).links
            return any(self._is_link_lost(*link, height=0 if is_single(link) else None) for link in links)
        except ValueError:
            return True

    def _is_link_lost(self, oid: ObjectId, length: int, *, height: int | None) -> bool:
        if oid in self.bad or link_key(oid, length) in self._bad_links:
            return True
        if height == 0:
            return False
        if height is not None and link_key(oid, length, height) in self._bad_links:
            return True
        return self._is_index_lost(oid)

    def _is_index_lost(self, oid: ObjectId) -> bool:
        if oid in self._whole:
            return False
        if oid in self._lost_indexes:
            return True
        try:
            height, items = read_index(self._objects.read(INDEX, oid))
        except (ValueError, CorruptObject, CorruptStore):
            return True
        if any(self._is_link_lost(child, length, height=height - 1) for child, length in items):
            self._lost_indexes.add(oid)
            return True
        self._whole.add(oid)
        return False
