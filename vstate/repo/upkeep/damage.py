"""Damage: what is wrong with a store, and which keys of which commits that takes."""

from __future__ import annotations

import heapq
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
from vstate.repo.objects import Objects
from vstate.repo.upkeep.reach import IdSet
from vstate.values.entry import Entry

_REMEMBERED = 100_000  # entries, and nodes with damage below them


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that is not as it should be, and why.

    `kind` is `blob`, `index`, `tree` or `commit`, `id` the object's id in hex, that of the object which says
    something wrong about another if it is that; or `kind` is `ref`, `reflog`, `shallow`, `policy`, `remote`,
    `format`, `row` or `file` and `id` the key of the row, empty for the store's own file. `readable`: values
    can be read all the same. `known`: an earlier repair has seen to it.
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
    """What cannot be read any more: the value of `key` at `commit`, which `ref` leads to.

    `key` is None where the names of the keys are lost too, and `what` says how much that is.
    """

    ref: str
    commit: str
    key: str | None
    what: str = ""

    def __str__(self) -> str:
        return f"{self.ref} {self.commit[:10]}: {self.what if self.key is None else repr(self.key)}"


def link_key(oid: bytes, length: int, height: int | None = None) -> bytes:
    """A link to a blob or a stream as an IdSet takes it: the id, the length, and the height if it says that."""
    return oid + length.to_bytes(8, "big") + (b"" if height is None else bytes([height]))


def node_link_key(oid: bytes, height: int, first: str, count: int) -> bytes:
    """A link to a tree node as an IdSet takes it: the id, and what the node above says of the node."""
    return oid + encode([height, first, count])


class _Range(NamedTuple):
    """Keys whose names cannot be read: so many, from the first on, before another (None: to the end)."""

    first: str
    before: str | None
    size: int

    def __str__(self) -> str:
        keys = "1 key" if self.size == 1 else f"{self.size:,} keys"
        return f"{keys} from {self.first!r}" + (f" to before {self.before!r}" if self.before else " on")


class _Hurt(NamedTuple):
    """A tree node with damage below it: what is lost, one by one, and how many that are."""

    total: int
    parts: Sequence[str | _Range | bytes]  # a key, keys without names, or a child node of this kind


_GONE = _Hurt(1, ())
"""A tree node that cannot be read itself."""


class Loss:
    """Tells what of a commit's state cannot be read, when it is known which objects are `bad`.

    Each tree node and index is looked at once, however many commits share it. Nothing here raises
    CorruptObject: what cannot be read is lost.
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
        self._hurt: dict[bytes, _Hurt] = {}
        self._hurt_indexes: set[bytes] = set()
        self._whole_entries: set[bytes] = set()

    # States

    def commit(self, oid: ObjectId) -> Commit | None:
        """The commit, if it can be read; nothing is said about its state."""
        try:
            return None if oid in self.bad else self._objects.commit(oid)
        except (CorruptObject, CorruptStore):
            return None

    def is_whole(self, oid: ObjectId) -> bool:
        """Whether the commit and all that its own state needs can be read, whatever is behind it."""
        commit = self.commit(oid)
        return commit is not None and (commit.tree is None or self._look(commit.tree) is None)

    def first_parents(self, start: ObjectId, *, seen: IdSet) -> Iterator[Commit]:
        """The commit, its first parent, and so on, up to one that was seen or cannot be read."""
        oid: ObjectId | None = start
        while oid is not None and seen.add(oid) and (commit := self.commit(oid)) is not None:
            yield commit
            oid = next(iter(self._parents(commit)), None)

    def ancestors(
        self, *starts: ObjectId, seen: IdSet | None = None
    ) -> Iterator[tuple[ObjectId, Commit | None]]:
        """The commits and all before them, as far as they can be read, newest first; None for the others."""
        seen = IdSet() if seen is None else seen
        queue: list[tuple[float, int, Commit]] = []

        def push(oid: ObjectId) -> Iterator[tuple[ObjectId, None]]:
            if seen.add(oid):
                commit = self.commit(oid)
                if commit is None:
                    yield oid, None
                else:
                    heapq.heappush(queue, (-commit.time.timestamp(), len(seen), commit))

        for start in starts:
            yield from push(start)
        while queue:
            commit = heapq.heappop(queue)[2]
            yield commit.oid, commit
            for parent in self._parents(commit):
                yield from push(parent)

    def below(self, refs: Iterable[tuple[str, ObjectId]], limit: int) -> tuple[list[Lost], int]:
        """What is lost of the commits that these refs lead to, each under the first of them, newest first.

        The first `limit` of that, and how many there are in all.
        """
        lost: list[Lost] = []
        total = 0
        seen = IdSet()
        for ref, start in refs:
            for oid, commit in self.ancestors(start, seen=seen):
                if commit is None:
                    hurt, all_of_it = _GONE, "the commit itself, and what only it leads to"
                elif commit.tree is None or (found := self._look(commit.tree)) is None:
                    continue
                else:
                    hurt, all_of_it = found, "all keys"
                total += hurt.total
                if len(lost) < limit:
                    for key, what in self._listed(hurt, all_of_it):
                        lost.append(Lost(ref, str(oid), key, what))
                        if len(lost) == limit:
                            break
        return lost, total

    def _listed(self, hurt: _Hurt, what: str) -> Iterator[tuple[str | None, str]]:
        if hurt is _GONE:
            yield None, what
        for part in hurt.parts:
            if isinstance(part, str):
                yield part, ""
            elif isinstance(part, _Range):
                yield None, str(part)
            else:
                yield from self._listed(self._look(part) or _GONE, what)

    # Trees

    def _look(self, oid: bytes) -> _Hurt | None:
        """What is lost below a tree node; None if nothing is."""
        if oid in self._whole:
            return None
        hurt = self._hurt.get(oid)
        if hurt is None:
            node = self._node(oid)
            if node is None:
                return _GONE
            hurt = self._look_below(node) if node.height else self._look_inside(node)
            if not hurt.total:
                self._whole.add(oid)
                return None
            if len(self._hurt) > _REMEMBERED:
                self._hurt.clear()
            self._hurt[oid] = hurt
        return hurt

    def _node(self, oid: bytes) -> Node | None:
        try:
            return None if oid in self.bad else self._objects.node(oid)
        except (CorruptObject, CorruptStore):
            return None

    def _look_below(self, node: Node) -> _Hurt:
        parts: list[str | _Range | bytes] = []
        total = 0
        ends = [*node.keys[1:], None]
        for child, first, before, count in zip(node.children(), node.keys, ends, node.counts, strict=True):
            is_wrong = node_link_key(child, node.height - 1, first, count) in self._bad_links
            hurt = _GONE if is_wrong else self._look(child)
            if hurt is _GONE:
                parts.append(_Range(first, before, count))
            elif hurt is not None:
                parts.append(bytes(child))
            total += hurt.total if hurt is not None else 0
        return _Hurt(total, parts)

    def _look_inside(self, leaf: Node) -> _Hurt:
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
        return _Hurt(len(keys), keys)

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
        if oid in self._hurt_indexes:
            return True
        try:
            height, items = read_index(self._objects.read(INDEX, oid))
        except (ValueError, CorruptObject, CorruptStore):
            return True
        if any(self._is_link_lost(child, length, height=height - 1) for child, length in items):
            self._hurt_indexes.add(oid)
            return True
        self._whole.add(oid)
        return False
