"""Difference: the objects that some commits need and others do not hold, in the order to write them."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from vstate.errors import CorruptObject
from vstate.objects.canonical import encode
from vstate.objects.commit import LATEST, Commit
from vstate.objects.ids import BLOB, COMMIT, INDEX, KINDS, TREE, Kind, ObjectId
from vstate.objects.stream import is_single
from vstate.objects.tree import Node, moments
from vstate.plural import counted
from vstate.repo.history import History
from vstate.repo.idset import IdSet
from vstate.repo.objects import IndexItems, Objects
from vstate.repo.upkeep.verifier import HIGHEST_NODE
from vstate.repo.walk import BATCH, Entries, NewestFirst, checked_links

GROUP = 256
"""How many commits are compared at once."""

_REMEMBERED = 20_000  # places of nodes

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

    @property
    def link(self) -> bytes:
        """The id and the length that a link says: a forger may say several of one blob."""
        return self.oid + encode(self.length)


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
    """A tree node or an index to read, and what the one above says of it; a root has no height.

    Of a node: its height, the number of its keys, its first key, the first key behind it, and its first
    expiry. Of an index: its height, and the length of the stream below.
    """

    oid: ObjectId
    height: int | None = None
    size: int = 0
    first: str = ""
    before: str | None = None
    earliest: int | None = None

    @property
    def place(self) -> bytes:
        """The id, and all that is said of it: a forger may lead to one node in several places."""
        return self.oid + encode(self[1:])


class _Kept:
    """The nodes that the walk has read and that are written after everything below them, by height."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._levels: dict[int, list[Needed]] = defaultdict(list)
        self._bytes = 0

    def add(self, height: int, oid: ObjectId, body: bytes) -> None:
        self._bytes += len(body)
        kept = body if self._bytes <= KEPT_BYTES else None
        self._levels[height].append(Needed(self.kind, oid, len(body), kept))

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
        self._lately: set[_Child] = set()  # of those met: most stood in the node before too
        self._entries = Entries()

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

    def _states(self, commits: Iterable[Commit], beside: Iterable[ObjectId]) -> Iterator[Needed]:
        met = self._met
        known = [_Child(root) for root in dict.fromkeys(beside)]
        self._know(known)
        roots = [_Child(c.root) for c in commits if c.root is not None]
        nodes, indexes = _Kept(TREE), _Kept(INDEX)
        streams: list[tuple[str, _Child]] = []
        streams_beside: dict[str, list[_Child]] = defaultdict(list)
        for is_new, child, leaf in self._descend(self._unmet(roots), known, nodes):
            for key, entry in self._entries.new_items(leaf) if is_new else self._entries.all(leaf):
                for link in checked_links(child.oid, entry):
                    if is_single(link):
                        blob = Needed(BLOB, *link)
                        if met.add(blob.link) and is_new:
                            yield blob
                        continue
                    stream = _Child(link.id, None, link.length)
                    if is_new:
                        streams += [(key, unmet) for unmet in self._unmet([stream])]
                    else:
                        streams_beside[key].append(stream)
                        self._know([stream])
        old = [stream for key in dict.fromkeys(key for key, _ in streams) for stream in streams_beside[key]]
        for is_new, _, items in self._descend([stream for _, stream in streams], old, indexes):
            for blob in (Needed(BLOB, *item) for item in items):
                if met.add(blob.link) and is_new:
                    yield blob
        yield from indexes.lowest_first()
        yield from nodes.lowest_first()

    def _know(self, children: Iterable[_Child]) -> None:
        """Note nodes or indexes that are known, in these places."""
        for child in self._unmet(children):
            self._met.add(child.oid)

    def _unmet(self, children: Iterable[_Child]) -> list[_Child]:
        """The children that the walk has not met in their places; it meets them now."""
        if len(self._lately) > _REMEMBERED:
            self._lately.clear()
        new = [child for child in children if child not in self._lately]
        self._lately.update(new)
        return [child for child in new if self._met.add(child.place)]

    # Levels, of trees and of streams

    def _descend(
        self, roots: Sequence[_Child], beside: Sequence[_Child], kept: _Kept
    ) -> Iterator[tuple[bool, _Child, Any]]:
        """The leaves, or the lowest indexes, below the roots, and those below known roots where they differ.

        Each with whether it is new. Of each height, all known ones come before the new ones.
        """
        if not roots:
            return
        is_tree = kept.kind is TREE
        lowest = 0 if is_tree else 1
        new = _by_height(self._read(roots, kept))
        old = _by_height(self._read_near(beside, kept.kind))
        waiting: Sequence[_Child] = ()
        waiting_beside: Sequence[_Child] = ()
        for height in range(max([*new, *old]), lowest - 1, -1):
            known: list[_Child] = []
            near = self._read_near(waiting_beside, kept.kind, height)
            for child, _, content, _ in chain(old[height], near):
                if height == lowest:
                    yield False, child, content
                else:
                    known += _children(child, height, content)
            self._know(known)
            below: list[_Child] = []
            shared: set[ObjectId] = set()
            for child, _, content, is_new in chain(new[height], self._read(waiting, kept)):
                if height > lowest:
                    children = _children(child, height, content)
                    # Of a node that stands elsewhere too, only the end of the last child is another one.
                    unmet = self._unmet(children if is_new else children[-1:])
                    below += unmet
                    shared |= {each.oid for each in children} - {each.oid for each in unmet}
                elif is_new:
                    yield True, child, content
            waiting = below
            if is_tree:
                waiting_beside = _overlapping(known, [*below, *(child for child, *_ in new[height - 1])])
            else:
                waiting_beside = [each for each in dict.fromkeys(known) if below and each.oid not in shared]

    def _read(self, children: Sequence[_Child], kept: _Kept) -> Iterator[_Found]:
        """The nodes or indexes with their heights; CorruptObject for one that does not fit its place."""
        for start in range(0, len(children), BATCH):
            batch = children[start : start + BATCH]
            for child, (height, content, body) in zip(
                batch, _read_all(self._objects, kept.kind, batch), strict=True
            ):
                if reason := _misfit(child, height, content):
                    raise CorruptObject(str(child.oid), reason)
                is_new = self._met.add(child.oid)
                if is_new:
                    kept.add(height, child.oid, body)
                yield child, height, content, is_new

    def _read_near(
        self, children: Sequence[_Child], kind: Kind, height: int | None = None
    ) -> Iterator[_Found]:
        """The same of known ones, without those that are damaged, and without a check."""
        for start in range(0, len(children), BATCH):
            batch = children[start : start + BATCH]
            try:
                if kind is TREE:  # some are in memory
                    contents = [(node.height, node) for node in self._near.nodes([c.oid for c in batch])]
                else:
                    contents = [(at, items) for at, items, _ in _read_all(self._near, kind, batch)]
            except CorruptObject:
                continue  # objects below may be missing too
            for child, (at, content) in zip(batch, contents, strict=True):
                if height is None or at == height:
                    yield child, at, content, False


_Found = tuple[_Child, int, Any, bool]
"""A node or an index that was read: its height, the Node or the items, and whether it is new to the walk."""


def _by_height(roots: Iterable[_Found]) -> dict[int, list[_Found]]:
    """The roots by their heights: only a root that was read tells it; each level below is one lower."""
    levels: dict[int, list[_Found]] = defaultdict(list)
    for found in roots:
        levels[found[1]].append(found)
    return levels


def _read_all(objects: Objects, kind: Kind, children: Sequence[_Child]) -> Iterator[tuple[int, Any, bytes]]:
    """The height, the node or the items, and the body of each."""
    ids = [child.oid for child in children]
    if kind is TREE:
        return ((node.height, node, body) for _, node, body in objects.each_node(ids))
    return ((height, items, body) for _, height, items, body in objects.each_index(ids))


def _misfit(child: _Child, height: int, content: Node | IndexItems) -> str:
    """The reason why a node, or the items of an index, cannot be in this place; "" if it fits."""
    if child.height not in (None, height):
        return f"it is at height {height}, in place of {child.height}"
    if not isinstance(content, Node):
        length = sum(length for _, length in content)
        fits = length == child.size
        return "" if fits else f"an index of {counted(length, 'byte')}; the link to it says {child.size}"
    keys = content.keys
    if keys != sorted(set(keys)):
        return "its keys do not ascend"
    if height > HIGHEST_NODE:
        return f"no node is at height {height}"
    if not height and moments(content.items) != content.expiries:
        return "it does not say when its keys expire"
    if child.height is None:
        return ""
    if keys[0] != child.first or (child.before is not None and keys[-1] >= child.before):
        return "its keys are outside the range that the node above gives"
    if content.size != child.size:
        return f"it has {counted(content.size, 'key')}; the node above says {child.size}"
    fits = content.earliest == child.earliest
    return "" if fits else "the node above does not say when its first key expires"


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


def _children(above: _Child, height: int, content: Node | IndexItems) -> list[_Child]:
    if not isinstance(content, Node):
        return [_Child(oid, height - 1, length) for oid, length in content]
    ends = [*content.keys[1:], above.before]
    due = content.expiries or [None] * len(ends)
    return [
        _Child(oid, height - 1, count, first, end, at)
        for oid, count, first, end, at in zip(
            content.children(), content.counts, content.keys, ends, due, strict=True
        )
    ]


def _overlapping(known: Sequence[_Child], new: Sequence[_Child]) -> list[_Child]:
    """The known nodes whose range of keys overlaps that of a new node; the others need no comparison."""
    if not known or not new:
        return []
    ranges: list[tuple[str, str | None]] = []  # disjoint, ascending
    for _, _, _, first, before, _ in sorted(new, key=lambda child: child.first):
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
