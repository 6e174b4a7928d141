"""Difference: the objects that some commits need and others do not hold, in the order to write them."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from vstate.errors import CorruptObject
from vstate.objects.commit import LATEST, Commit
from vstate.objects.ids import BLOB, COMMIT, INDEX, KINDS, TREE, Kind, Link, ObjectId
from vstate.objects.stream import is_single
from vstate.objects.tree import Node
from vstate.plural import counted
from vstate.repo.history import History
from vstate.repo.idset import IdSet
from vstate.repo.objects import IndexItems, Objects
from vstate.repo.walk import BATCH, Entries, NewestFirst, links_of

GROUP = 256
"""How many commits are compared at once."""

KEPT_BYTES = 64 * 1024 * 1024
"""How many bytes of bodies the walk keeps for the writer. The writer has to read further bodies again."""


TransferProgress = Callable[[str, int, int | None], None]
"""Called now and then with the step, the count so far, and the count at the end if that is known."""


class Needed(NamedTuple):
    """An object to write, the length of its body in bytes, and the body if it is at hand."""

    kind: Kind
    oid: ObjectId
    length: int
    body: bytes | None = None


ReadCommits = Callable[[Sequence[ObjectId]], Sequence[Commit | None]]
"""Commits by their ids, None for a missing or damaged one."""


def new_commits(
    tips: Iterable[ObjectId],
    known: Iterable[ObjectId],
    *,
    ours: History,
    theirs: History,
    read: ReadCommits,
    limit: int | None = None,
) -> list[ObjectId] | None:
    """The commits that `tips` lead to by the history `ours`, and `known` do not by `theirs`; oldest first.

    CorruptObject if a tip leads to a commit that is missing. Walks both histories from the newest commit on,
    and stops when `known` lead to all that is left: so the cost is that of the difference. None if there are
    more than `limit`.
    """
    queue = NewestFirst()
    reached: set[ObjectId] = set()  # from the tips
    shared: set[ObjectId] = set()  # from the known commits
    open_ends: set[ObjectId] = set()  # those in the queue that only the tips lead to

    def lead_to(ids: Iterable[ObjectId], *, known: bool) -> None:
        new = [oid for oid in dict.fromkeys(ids) if oid not in shared and (known or oid not in reached)]
        for oid, commit in zip(new, read(new) if new else (), strict=True):
            if commit is None:
                if not known:
                    raise CorruptObject(str(oid), "it is missing, damaged or no commit")
                continue  # the other store has lost it: a tip that needs it brings it
            if oid not in reached:
                queue.push(commit)
            (shared if known else reached).add(oid)
            (open_ends.discard if known else open_ends.add)(oid)

    lead_to(known, known=True)
    lead_to(tips, known=False)
    found: list[tuple[int, ObjectId]] = []
    while open_ends:
        commit = next(queue)
        if commit.oid in shared:
            lead_to(theirs.parents(commit), known=True)
        else:
            open_ends.discard(commit.oid)
            found.append((commit.order, commit.oid))
            if limit is not None and len(found) > limit:
                return None
            lead_to(ours.parents(commit), known=False)
    return [oid for _, oid in sorted(found)]


class _Child(NamedTuple):
    """A tree node to read, and the range of its keys: from `first` on, to before `before`."""

    oid: ObjectId
    first: str
    before: str | None


class _Kept:
    """The nodes that the walk has read and that are written after everything below them, by height."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._levels: dict[int, list[Needed]] = defaultdict(list)
        self._bytes = 0

    def add(self, height: int, oid: ObjectId, body: bytes) -> None:
        self._bytes += len(body)
        kept = body if self._bytes <= KEPT_BYTES else None
        self._levels[height].append(Needed(self._kind, oid, len(body), kept))

    def lowest_first(self) -> Iterator[Needed]:
        for height in sorted(self._levels):
            yield from self._levels[height]


class Difference:
    """Finds the objects that commits need and known commits do not hold, each object once; reads no blobs.

    Reads everything new from `objects`, and verifies it: CorruptObject if an object is damaged or missing.
    Reads known objects from `near`, a store that may be at hand. If a known object is damaged there, more
    counts as new.
    """

    def __init__(self, objects: Objects, near: Objects | None = None) -> None:
        self._objects = objects
        self._near = objects if near is None else near
        self._met = IdSet()
        self._entries = Entries()
        """Whether a needed tree has keys that expire: older programs would misread it."""

    def leave_out(self, commits: Iterable[Commit]) -> None:
        """Take the trees of these commits as known. Reads all of them: `beside`, in `needs`, costs less."""
        for _ in self._states(commits, ()):
            pass

    def needs(self, commits: Sequence[Commit], beside: Iterable[ObjectId] = ()) -> Iterator[Needed]:
        """The objects that these commits need and that the walk has not met before.

        First blobs, indexes and tree nodes, each from the lowest; then the commits, in their order. `beside`
        are roots of known trees, mostly those of the parents: the walk reads only where the trees differ. A
        known object under another key may be among the needed ones.
        """
        yield from self._states(commits, beside)
        for commit in commits:
            yield Needed(COMMIT, commit.oid, len(commit.body), commit.body)

    def groups(
        self, ids: Sequence[ObjectId], history: History, read: ReadCommits
    ) -> Iterator[tuple[Sequence[Commit], Iterator[Needed]]]:
        """The commits of these ids, oldest first, some at a time, with the objects that they need.

        Each group is compared with the trees of the commits before it: each level of all its trees takes one
        read. CorruptObject if a commit is not dated after its parents, on which the order of walks relies.
        """
        for start in range(0, len(ids), GROUP):
            commits = self._objects.commits(ids[start : start + GROUP])
            yield commits, self.needs(commits, _roots_before(commits, history, read))

    # Trees

    def _states(self, commits: Iterable[Commit], beside: Iterable[ObjectId]) -> Iterator[Needed]:
        met = self._met
        known = [_Child(root, "", None) for root in dict.fromkeys(beside)]
        for child in known:
            met.add(child.oid)
        roots = [c.root for c in commits if c.root is not None and met.add(c.root)]
        if not roots:
            return
        nodes = _Kept(TREE)
        # Only a root that was read tells its height; each level below is one lower.
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
                    continue
                for key, entry in self._entries.all(node):
                    for link in links_of(child.oid, entry):
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
                for key, entry in self._entries.new_items(node):
                    for link in links_of(child.oid, entry):
                        if not met.add(link.id):
                            continue
                        if is_single(link):
                            yield Needed(BLOB, link.id, link.length)
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
            nodes = self._objects.each_node([child.oid for child in batch])
            for child, (oid, node, body) in zip(batch, nodes, strict=True):
                if height is not None and node.height != height:
                    raise CorruptObject(str(oid), f"a node of height {node.height} in place of {height}")
                if height is not None and not _is_within(node, child):
                    raise CorruptObject(str(oid), "its keys are outside the range that the node above gives")
                if node.keys != sorted(set(node.keys)):
                    raise CorruptObject(str(oid), "its keys do not ascend")
                kept.add(node.height, oid, body)
                yield child, node

    def _near_nodes(
        self, children: Sequence[_Child], height: int | None = None
    ) -> Iterator[tuple[_Child, Node]]:
        for start in range(0, len(children), BATCH):
            batch = children[start : start + BATCH]
            try:
                nodes = self._near.nodes([child.oid for child in batch])
            except CorruptObject:
                continue  # objects below may be missing too
            for child, node in zip(batch, nodes, strict=True):
                if height is None or node.height == height:
                    yield child, node

    # Streams

    def _streams(self, roots: Mapping[ObjectId, int], beside: Sequence[ObjectId]) -> Iterator[Needed]:
        if not roots:
            return
        met = self._met
        indexes = _Kept(INDEX)
        new: dict[int, list[IndexItems]] = defaultdict(list)
        old: dict[int, list[IndexItems]] = defaultdict(list)
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
                        yield Needed(BLOB, oid, length)
                    else:
                        below[oid] = length
            waiting = below
            waiting_beside = [oid for oid in dict.fromkeys(below_beside) if below and oid not in unchanged]
        yield from indexes.lowest_first()

    def _read_indexes(
        self, lengths: Mapping[ObjectId, int], kept: _Kept, height: int | None = None
    ) -> Iterator[tuple[int, IndexItems]]:
        ids = list(lengths)
        for start in range(0, len(ids), BATCH):
            for oid, at, items, body in self._objects.each_index(ids[start : start + BATCH]):
                if height is not None and at != height:
                    raise CorruptObject(str(oid), f"an index of height {at} in place of {height}")
                length = sum(length for _, length in items)
                if length != lengths[oid]:
                    raise CorruptObject(
                        str(oid), f"an index of {counted(length, 'byte')}; the link to it says {lengths[oid]}"
                    )
                kept.add(at, oid, body)
                yield at, items

    def _near_indexes(self, ids: Sequence[ObjectId]) -> Iterator[tuple[int, IndexItems]]:
        for start in range(0, len(ids), BATCH):
            try:
                batch = list(self._near.each_index(ids[start : start + BATCH]))
            except CorruptObject:
                continue
            yield from ((height, items) for _, height, items, _ in batch)


def _roots_before(commits: Sequence[Commit], history: History, read: ReadCommits) -> list[ObjectId]:
    """The trees of the commits before these. CorruptObject as for `groups`."""
    parents = {commit.oid: history.parents(commit) for commit in commits}
    others = dict.fromkeys(oid for ids in parents.values() for oid in ids if oid not in parents)
    before = [commit for commit in read(list(others)) if commit is not None]
    times = {commit.oid: commit.order for commit in [*before, *commits]}
    for commit in commits:
        if commit.order > LATEST:
            raise CorruptObject(str(commit.oid), f"it is dated {commit.time:%Y}, too far ahead")
        for oid in parents[commit.oid]:
            if oid in times and times[oid] >= commit.order:
                raise CorruptObject(str(commit.oid), f"it is not dated after its parent {oid}")
    return [commit.root for commit in before if commit.root is not None]


def whole_commits(objects: Objects, ids: Sequence[ObjectId]) -> list[Commit | None]:
    """The commits, read at once if all are there; None for each that is missing, damaged or no commit."""
    try:
        return [*objects.commits(ids)] if len(ids) > 1 else [objects.find_commit(oid) for oid in ids]
    except CorruptObject:
        return [_whole_commit(objects, oid) for oid in ids]


def _whole_commit(objects: Objects, oid: ObjectId) -> Commit | None:
    try:
        return objects.find_commit(oid)
    except CorruptObject:
        return None


def read_bodies(objects: Objects, wanted: Sequence[Needed]) -> list[bytes]:
    """The bodies of these objects, one batch for each kind; CorruptObject if one has another length."""
    read: dict[ObjectId, bytes] = {}
    for kind in KINDS:
        lengths = {
            needed.oid: needed.length for needed in wanted if needed.kind is kind and needed.body is None
        }
        if lengths:
            read.update(objects.read_many(kind, lengths, longest=lengths))
    bodies = []
    for kind, oid, length, body in wanted:
        body = read[oid] if body is None else body
        if len(body) != length:
            raise CorruptObject(
                str(oid), f"a {kind.name} of {counted(len(body), 'byte')}; the link to it says {length}"
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
    """The known nodes whose range of keys overlaps that of a new node; the others need no comparison."""
    if not known or not new:
        return []
    ranges: list[tuple[str, str | None]] = []  # disjoint, ascending
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
