"""Difference: what commits need that others do not hold, in the order in which it is to be written."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, count
from typing import NamedTuple, TypeVar

from vstate.errors import CorruptObject
from vstate.objects.commit import Commit
from vstate.objects.ids import BLOB, COMMIT, INDEX, KINDS, TREE, Kind, Link, ObjectId
from vstate.objects.stream import is_single, read_index
from vstate.objects.tree import Node
from vstate.repo.history import History
from vstate.repo.objects import Objects
from vstate.repo.upkeep.reach import BATCH, IdSet
from vstate.values.entry import Entry

_T = TypeVar("_T")

KEPT_BYTES = 64 * 1024 * 1024
"""The bodies that the walk read and keeps for who writes them; those beyond have to be read again."""

_REMEMBERED_ENTRIES = 100_000
_ATOM = b"\x92\x00"  # how the entry of an atom begins


class Found(NamedTuple):
    """An object that is needed, the length of its body in bytes, and the body if the walk has it at hand."""

    kind: Kind
    oid: ObjectId
    length: int
    body: bytes | None = None


def new_commits(
    tips: Iterable[ObjectId],
    known: Iterable[ObjectId],
    *,
    ours: History,
    theirs: History,
    read: Callable[[Sequence[ObjectId]], Sequence[Commit | None]],
    limit: int | None = None,
) -> list[ObjectId] | None:
    """The commits that `tips` lead to, by `ours`, and `known` do not, by `theirs`; oldest first.

    `read` gives commits by their ids, None for one that nobody has; CorruptObject if `tips` need it. Walks
    both from the newest on, and stops when all that is left is known: so it costs what the two differ by.
    None if there are more than `limit`.
    """
    queue: list[tuple[float, int, Commit]] = []
    number = count()
    reached: set[ObjectId] = set()  # from the tips
    shared: set[ObjectId] = set()  # from what is known
    open_ends: set[ObjectId] = set()  # those in the queue that only the tips lead to

    def lead_to(ids: Iterable[ObjectId], *, known: bool) -> None:
        new = [oid for oid in dict.fromkeys(ids) if oid not in shared and (known or oid not in reached)]
        for oid, commit in zip(new, read(new) if new else (), strict=True):
            if commit is None and not known:
                raise CorruptObject(str(oid), "it is missing or damaged")
            if commit is None:
                continue  # lost there: whoever needs it has to bring it
            if oid not in reached:
                heapq.heappush(queue, (-commit.time.timestamp(), next(number), commit))
            (shared if known else reached).add(oid)
            (open_ends.discard if known else open_ends.add)(oid)

    lead_to(known, known=True)
    lead_to(tips, known=False)
    found: list[tuple[datetime, ObjectId]] = []
    # A commit is dated after its parents: every one is met after all that lead to it.
    while open_ends:
        commit = heapq.heappop(queue)[2]
        if commit.oid in shared:
            lead_to(theirs.parents(commit), known=True)
        else:
            open_ends.discard(commit.oid)
            found.append((commit.time, commit.oid))
            if limit is not None and len(found) > limit:
                return None
            lead_to(ours.parents(commit), known=False)
    return [oid for _, oid in sorted(found)]


class _Child(NamedTuple):
    """A tree node that is to be read, and which keys are in it: from the first on, to before another."""

    oid: ObjectId
    first: str
    before: str | None


class _Kept:
    """What the walk read and is to be written after what is below it, by height."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._levels: dict[int, list[Found]] = defaultdict(list)
        self._bytes = 0

    def add(self, height: int, oid: ObjectId, body: bytes) -> None:
        self._bytes += len(body)
        kept = body if self._bytes <= KEPT_BYTES else None
        self._levels[height].append(Found(self._kind, oid, len(body), kept))

    def lowest_first(self) -> Iterator[Found]:
        for height in sorted(self._levels):
            yield from self._levels[height]


class Difference:
    """Finds what commits need and what is known does not hold, each object once; reads no blobs.

    Everything new is read from `objects`, and verified: CorruptObject for what is damaged or missing. What is
    known is read from `near`, which may have it at hand; if that is damaged, more counts as new.
    """

    def __init__(self, objects: Objects, near: Objects | None = None) -> None:
        self._objects = objects
        self._near = objects if near is None else near
        self._met = IdSet()
        self._entries: set[bytes] = set()
        self.expiring = False  # whether what is needed has keys that expire: older programs would misread it

    def leave_out(self, commits: Iterable[Commit]) -> None:
        """Take all that these commits themselves hold as known. Reads it whole: see `needs` for less."""
        for _ in self._states(commits, ()):
            pass

    def needs(self, commits: Sequence[Commit], beside: Iterable[ObjectId] = ()) -> Iterator[Found]:
        """What these commits need that was not met before: blobs, indexes, tree nodes, each from the lowest,
        and then the commits, in their order.

        `beside` are the roots of trees that are known, mostly the parents': only where they differ from the
        commits' own is anything read. What is known and stands under another key may be met all the same.
        """
        yield from self._states(commits, beside)
        for commit in commits:
            yield Found(COMMIT, commit.oid, len(commit.body), commit.body)

    # Trees

    def _states(self, commits: Iterable[Commit], beside: Iterable[ObjectId]) -> Iterator[Found]:
        met = self._met
        known = [_Child(root, "", None) for root in dict.fromkeys(beside)]
        for child in known:
            met.add(child.oid)
        roots = [c.tree for c in commits if c.tree is not None and met.add(c.tree)]
        if not roots:
            return
        nodes = _Kept(TREE)
        # The heights of roots show when they are read; below them each level is one lower.
        new: dict[int, list[tuple[_Child, Node]]] = defaultdict(list)
        old: dict[int, list[tuple[_Child, Node]]] = defaultdict(list)
        for child, node in self._read_nodes([_Child(root, "", None) for root in roots], nodes):
            new[node.height].append((child, node))
        for child, node in self._near_nodes(known):
            old[node.height].append((child, node))
        waiting: list[_Child] = []
        waiting_beside: list[_Child] = []
        streams: list[tuple[str, Link]] = []
        streams_beside: dict[str, list[ObjectId]] = defaultdict(list)
        for height in range(max([*new, *old]), -1, -1):
            below_beside: list[_Child] = []
            for child, node in chain(old[height], self._near_nodes(waiting_beside, height)):
                if height:
                    below_beside += _children(child, node)
                else:
                    for key, link in self._links(child.oid, node, again=True):
                        met.add(link.id)
                        if not is_single(link):
                            streams_beside[key].append(link.id)
            for child in below_beside:
                met.add(child.oid)
            below: list[_Child] = []
            for child, node in chain(new[height], self._read_nodes(waiting, nodes, height)):
                if height:
                    below += [child for child in _children(child, node) if met.add(child.oid)]
                    continue
                for key, link in self._links(child.oid, node):
                    if not met.add(link.id):
                        continue
                    if is_single(link):
                        yield Found(BLOB, link.id, link.length)
                    else:
                        streams.append((key, link))
            lower_roots = [child for child, _ in new.get(height - 1, ())]
            waiting, waiting_beside = below, _overlapping(below_beside, [*below, *lower_roots])
        yield from self._streams(
            {link.id: link.length for _, link in streams},
            [oid for key in dict.fromkeys(key for key, _ in streams) for oid in streams_beside[key]],
        )
        yield from nodes.lowest_first()

    def _read_nodes(
        self, children: Sequence[_Child], kept: _Kept, height: int | None = None
    ) -> Iterator[tuple[_Child, Node]]:
        for start in range(0, len(children), BATCH):
            batch = children[start : start + BATCH]
            bodies = self._objects.read_each(TREE, [child.oid for child in batch])
            for child, (_, body) in zip(batch, bodies, strict=True):
                node = _decoded(Node.decode, child.oid, body)
                if height is not None and node.height != height:
                    raise CorruptObject(
                        str(child.oid), f"a node of height {node.height} in place of {height}"
                    )
                if height is not None and not _is_within(node, child):
                    raise CorruptObject(str(child.oid), "its keys are not those that the node above it says")
                kept.add(node.height, child.oid, body)
                self.expiring = self.expiring or node.expiries is not None
                yield child, node

    def _near_nodes(
        self, children: Sequence[_Child], height: int | None = None
    ) -> Iterator[tuple[_Child, Node]]:
        for start in range(0, len(children), BATCH):
            batch = children[start : start + BATCH]
            try:
                nodes = self._near.nodes([child.oid for child in batch])
            except CorruptObject:
                continue  # what is below may be missing too
            for child, node in zip(batch, nodes, strict=True):
                if height is None or node.height == height:
                    yield child, node

    def _links(self, oid: ObjectId, leaf: Node, *, again: bool = False) -> Iterator[tuple[str, Link]]:
        """The links of a leaf's entries that were not looked at before, or `again` of all; with their keys."""
        # Most entries of a node stood in its last version too.
        entries = self._entries
        if len(entries) > _REMEMBERED_ENTRIES:
            entries.clear()
        for key, item in zip(leaf.keys, leaf.items, strict=True):
            assert isinstance(item, bytes)  # a node that was read holds no other
            if item.startswith(_ATOM) or (item in entries and not again):
                continue
            entries.add(item)
            for link in _decoded(Entry.decode, oid, item).links:
                yield key, link

    # Streams

    def _streams(self, roots: Mapping[ObjectId, int], beside: Sequence[ObjectId]) -> Iterator[Found]:
        if not roots:
            return
        met = self._met
        indexes = _Kept(INDEX)
        new: dict[int, list[list[tuple[ObjectId, int]]]] = defaultdict(list)
        old: dict[int, list[list[tuple[ObjectId, int]]]] = defaultdict(list)
        for height, items in self._read_indexes(roots, indexes):
            new[height].append(items)
        for height, items in self._near_indexes(beside):
            old[height].append(items)
        waiting: Mapping[ObjectId, int] = {}
        waiting_beside: list[ObjectId] = []
        for height in range(max([*new, *old]), 0, -1):
            below_beside: list[ObjectId] = []
            for items in chain(
                old[height], (items for at, items in self._near_indexes(waiting_beside) if at == height)
            ):
                below_beside += [oid for oid, _ in items]
            for oid in below_beside:
                met.add(oid)
            unchanged: set[ObjectId] = set()
            below: dict[ObjectId, int] = {}
            for items in chain(
                new[height], (items for _, items in self._read_indexes(waiting, indexes, height))
            ):
                for oid, length in items:
                    if not met.add(oid):
                        unchanged.add(oid)
                    elif height == 1:
                        yield Found(BLOB, oid, length)
                    else:
                        below[oid] = length
            waiting = below
            waiting_beside = [oid for oid in dict.fromkeys(below_beside) if below and oid not in unchanged]
        yield from indexes.lowest_first()

    def _read_indexes(
        self, lengths: Mapping[ObjectId, int], kept: _Kept, height: int | None = None
    ) -> Iterator[tuple[int, list[tuple[ObjectId, int]]]]:
        ids = list(lengths)
        for start in range(0, len(ids), BATCH):
            for oid, body in self._objects.read_many(INDEX, ids[start : start + BATCH]).items():
                at, items = _decoded(read_index, oid, body)
                if height is not None and at != height:
                    raise CorruptObject(str(oid), f"an index of height {at} in place of {height}")
                length = sum(length for _, length in items)
                if length != lengths[oid]:
                    raise CorruptObject(
                        str(oid), f"an index of {length} bytes, which is said to have {lengths[oid]}"
                    )
                kept.add(at, oid, body)
                yield at, items

    def _near_indexes(self, ids: Sequence[ObjectId]) -> Iterator[tuple[int, list[tuple[ObjectId, int]]]]:
        for start in range(0, len(ids), BATCH):
            try:
                bodies = self._near.read_many(INDEX, ids[start : start + BATCH])
            except CorruptObject:
                continue
            for oid, body in bodies.items():
                yield _decoded(read_index, oid, body)


def read_bodies(objects: Objects, wanted: Sequence[Found]) -> list[bytes]:
    """The bodies of these objects, one batch for each kind; CorruptObject if one has another length."""
    read: dict[ObjectId, bytes] = {}
    for kind in KINDS:
        lengths = {found.oid: found.length for found in wanted if found.kind is kind and found.body is None}
        if lengths:
            read.update(objects.read_many(kind, lengths, longest=lengths))
    bodies = []
    for kind, oid, length, body in wanted:
        body = read[oid] if body is None else body
        if len(body) != length:
            raise CorruptObject(
                str(oid), f"a {kind.name} of {len(body)} bytes, which is said to have {length}"
            )
        bodies.append(body)
    return bodies


def _children(above: _Child, node: Node) -> list[_Child]:
    ends = [*node.keys[1:], above.before]
    return [_Child(oid, key, end) for oid, key, end in zip(node.children(), node.keys, ends, strict=True)]


def _is_within(node: Node, child: _Child) -> bool:
    keys = node.keys
    return bool(keys) and keys[0] == child.first and (child.before is None or keys[-1] < child.before)


def _overlapping(known: Sequence[_Child], new: Sequence[_Child]) -> list[_Child]:
    """The known nodes among whose keys a new node has some; with the others there is nothing to compare."""
    if not known or not new:
        return []
    ranges: list[tuple[str, str | None]] = []  # apart from one another, ascending
    for _, first, before in sorted(new, key=lambda child: child.first):
        if ranges and (ranges[-1][1] is None or first <= ranges[-1][1]):
            last = ranges[-1][1]
            if last is not None and (before is None or before > last):
                ranges[-1] = (ranges[-1][0], before)
        else:
            ranges.append((first, before))
    firsts = [first for first, _ in ranges]
    found = {}
    for child in known:
        # The last range that begins before this node ends.
        at = len(firsts) if child.before is None else bisect_left(firsts, child.before)
        end = ranges[at - 1][1] if at else ""
        if end is None or end > child.first:
            found[child.oid] = child
    return list(found.values())


def _decoded(decode: Callable[[bytes], _T], oid: ObjectId, body: bytes) -> _T:
    try:
        return decode(body)
    except ValueError as error:
        raise CorruptObject(str(oid), str(error)) from error
