"""Verifier: every object that some commits need, checked against its id, its form and what links to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

from blake3 import blake3

from vstate.errors import CorruptObject
from vstate.kv.base import OBJECT_PREFIX
from vstate.objects.canonical import encode
from vstate.objects.commit import Commit
from vstate.objects.ids import BLOB, COMMIT, INDEX, KINDS, TREE, Kind, ObjectId
from vstate.objects.stream import is_single, read_index
from vstate.objects.tree import Node, moments
from vstate.repo.upkeep.conformance import entry_fault, index_faults, is_canonical, key_faults, may_end
from vstate.repo.upkeep.damage import Damage, link_key, node_link_key
from vstate.repo.upkeep.reach import BATCH, IdSet
from vstate.repo.upkeep.salvage import Lengths, Row, Salvage
from vstate.values.entry import Entry

READ_BYTES = 1024 * 1024
"""How many bytes of blobs are read at once: what is hashed right away is still in the core's cache."""

_HANDED_BYTES = 4 * READ_BYTES  # how many a thread is told to read

READERS = 2
"""How many threads read and hash blobs."""

_REMEMBERED = 100_000  # links and entries that were seen lately, times of commits
_HIGHEST_NODE = 12  # no key has a level above it
_HIGHEST_INDEX = 64


class _Above(NamedTuple):
    """What links to an object: the kind and the id of another one, or the kind and the key of a row."""

    kind: str
    name: ObjectId | str


class _Parent(NamedTuple):
    """A commit that is to be checked, and the one that it is a parent of, if it was found so."""

    oid: ObjectId
    above: _Above
    child: Commit | None


class _Child(NamedTuple):
    """A tree node that is to be checked, and what the one above it says: None for what a root is free in."""

    oid: ObjectId
    above: _Above
    height: int | None
    first: str | None
    before: str | None
    size: int | None
    earliest: int | None


class _Part(NamedTuple):
    """An index (`height` None: at any) or blob (0) to be checked, and what the object above says of it."""

    oid: ObjectId
    kind: Kind
    above: _Above
    length: int
    height: int | None
    last: bool


class Verifier:
    """Checks all that the commits need which it is extended with, each object once.

    What is wrong goes to `found`, and the work goes on. `bad` are then the ids of the objects that cannot
    be read or relied on, `nonsense` those of them whose content matches their id and means nothing,
    `bad_links` the links to something else than there is, `misleading` the objects that have such links or say
    other things that cannot be, and can be read all the same; `cut` the parents that are lost, by commit.
    `whole_blobs=False` only looks whether blobs are there; the links to blobs that are `known` need no look, as
    `link_key` has them. Memory stays within a few batches and some 30
    bytes an object.
    """

    def __init__(
        self,
        salvage: Salvage,
        parents: Callable[[Commit], Sequence[ObjectId]],
        found: Callable[[Damage], None],
        *,
        whole_blobs: bool,
        readers: Executor,
        progress: Callable[[int], None],
        known: IdSet | None = None,
    ) -> None:
        self._salvage = salvage
        self._known = IdSet() if known is None else known
        self._parents = parents
        self._found = found
        self._whole_blobs = whole_blobs
        self._readers = readers
        self._reading: deque[tuple[list[_Part], Future[Lengths]]] = deque()
        self._progress = progress
        self.reached = IdSet()
        self.counts = dict.fromkeys(KINDS, 0)
        self.bytes = 0
        self.signed = False  # whether a commit was met that has a signature
        self.expiring = False  # whether a key was met that expires
        self.bad = IdSet()
        self.bad_ids = bytearray()  # the same, to go through: 32 bytes each
        self.bad_links = IdSet()
        self.nonsense = IdSet()
        self.misleading = IdSet()
        self.misleading_ids = bytearray()  # the same, to go through
        self.cut: dict[ObjectId, list[ObjectId]] = {}
        # A link is checked once too. Most of a node's links stood in its last version: those are met again
        # among the recent ones, which costs less than a hash.
        self._links = IdSet()
        self._recent: set[tuple[Any, ...]] = set()
        self._entries: set[bytes] = set()
        self._key_lists: set[int] = set()
        self._times: dict[ObjectId, datetime] = {}
        self._trusting = False

    def extend(self, roots: Iterable[tuple[str, ObjectId]]) -> None:
        """Check what these commits need, each named with the row that leads to it."""
        self._walk([(COMMIT, [_Parent(oid, _Above("ref", row), None) for row, oid in roots])])

    def trust(self, roots: Iterable[tuple[str, ObjectId]]) -> None:
        """Take all that these commits need as checked, so that `extend` looks only at what is new besides.

        Of that, all commits are checked here, and what these commits themselves hold but for the blobs. What only
        an earlier one holds is checked when it is met again.
        """
        self._trusting = True
        try:
            self.extend(roots)
        finally:
            self._trusting = False

    def lose(self, kind: str, oid: bytes, reason: str) -> None:
        """Note that an object cannot be read or relied on."""
        if self.bad.add(oid):
            self.bad_ids += oid
            self._found(Damage(oid.hex(), kind, reason))

    def _refuse(self, kind: Kind, oid: bytes, reason: str) -> None:
        """Note that an object means nothing, though its content matches its id."""
        self.nonsense.add(oid)
        self.lose(kind.name, oid, reason)

    def _distrust(self, kind: Kind, oid: ObjectId, reason: str) -> None:
        """Note that an object cannot be relied on, though it can be read, and what it leads to."""
        self._mislead(oid)
        self.lose(kind.name, oid, reason)

    def _blame(self, above: _Above, reason: str) -> None:
        """Note that of what an object leads to, one thing is not what it says."""
        if isinstance(above.name, ObjectId):
            self._mislead(above.name)
        self._found(Damage(str(above.name), above.kind, reason))

    def _mislead(self, oid: ObjectId) -> None:
        if self.misleading.add(oid):
            self.misleading_ids += oid

    # Walking

    def _walk(self, stack: list[tuple[Kind, list[Any]]]) -> None:
        # Depth first, a batch at a time, so that what is still to be read stays small.
        steps: dict[Kind, Callable[[list[Any]], list[tuple[Kind, list[Any]]]]]
        steps = {COMMIT: self._commits, TREE: self._nodes, INDEX: self._indexes, BLOB: self._blobs}
        while stack:
            kind, links = stack.pop()
            if not links:
                continue
            if kind is not BLOB and len(links) > BATCH:
                stack.append((kind, links[BATCH:]))
                links = links[:BATCH]
            stack += steps[kind](links)
            self._progress(len(self.reached))
        while self._reading:
            self._take_in(*self._reading.popleft())

    def _is_new(self, link: tuple[Any, ...]) -> bool:
        """Whether this link has not been checked yet."""
        if link in self._recent:
            return False
        if len(self._recent) > _REMEMBERED:
            self._recent.clear()
        self._recent.add(link)
        return self._links.add(blake3(encode(link)).digest())

    # Reading

    def _read(self, ids: Iterable[ObjectId]) -> Mapping[str, Row]:
        return self._salvage.rows([OBJECT_PREFIX + oid.hex() for oid in ids])

    def _body(self, kind: Kind, oid: ObjectId, row: Row, above: _Above) -> bytes | memoryview | None:
        """The verified body of an object; None, and the damage noted, if there is none."""
        try:
            body = self._salvage.body(kind, oid, row)
        except CorruptObject as error:
            self._not_whole(kind, oid, row, above, error)
            return None
        self._whole(kind, oid, len(body))
        return body

    def _whole(self, kind: Kind, oid: ObjectId, length: int) -> None:
        if self.reached.add(oid):
            self.counts[kind] += 1
            self.bytes += length

    def _not_whole(self, kind: Kind, oid: ObjectId, row: Row, above: _Above, error: CorruptObject) -> None:
        other = self._salvage.kind_of_whole(oid, row)
        if other is None:
            self.reached.add(oid)
            self.lose(kind.name, oid, error.reason)
        else:
            reason = f"{oid}, which it names, is no {kind.name} but a {other.name}"
            self._found(Damage(str(above.name), above.kind, reason))

    def _malformed(self, kind: Kind, oid: bytes, reason: str) -> None:
        self._found(Damage(oid.hex(), kind.name, reason, readable=True))

    # Commits

    def _commits(self, links: list[_Parent]) -> list[tuple[Kind, list[Any]]]:
        parents: list[_Parent] = []
        roots: list[_Child] = []
        # Not by `reached`: a commit's id may name an object of another kind, which is no commit for it.
        new = {link.oid: link for link in links if self._links.add(link.oid + COMMIT.code.encode())}
        rows = self._read(new)
        for oid, link in new.items():
            body = self._body(COMMIT, oid, rows.get(OBJECT_PREFIX + oid.hex()), link.above)
            commit = None if body is None else self._commit(oid, bytes(body))
            if commit is not None:
                above = _Above(COMMIT.name, oid)
                parents += [_Parent(parent, above, commit) for parent in self._parents(commit)]
                looks = link.child is None or not self._trusting
                if looks and commit.tree is not None and self._is_new((commit.tree,)):
                    roots.append(_Child(commit.tree, above, None, None, None, None, None))
        for link in links:
            if link.child is not None:
                self._check_parent(link.oid, link.child)
        return [(COMMIT, parents), (TREE, roots)]

    def _commit(self, oid: ObjectId, body: bytes) -> Commit | None:
        try:
            commit = Commit.decode(oid, body)
        except ValueError as error:
            self._refuse(COMMIT, oid, str(error))
            return None
        if not is_canonical(body):
            self._malformed(COMMIT, oid, "it is not encoded canonically")
        if len(self._times) > _REMEMBERED:
            self._times.clear()
        self._times[oid] = commit.time
        self.signed = self.signed or commit.signature is not None
        return commit

    def _check_parent(self, oid: ObjectId, child: Commit) -> None:
        time = self._times.get(oid)
        if time is None:
            row = None if oid in self.bad else self._salvage.row(OBJECT_PREFIX + oid.hex())
            try:
                time = Commit.decode(oid, bytes(self._salvage.body(COMMIT, oid, row))).time
            except (CorruptObject, ValueError):
                self.cut.setdefault(child.oid, []).append(oid)
                return
        if time >= child.time:
            self._malformed(COMMIT, child.oid, f"it is not dated after its parent {oid}")

    # Trees

    def _nodes(self, links: list[_Child]) -> list[tuple[Kind, list[Any]]]:
        rows = self._read({link.oid for link in links if link.oid not in self.bad})
        nodes: dict[ObjectId, Node | None] = {}
        children: list[_Child] = []
        parts: list[_Part] = []
        for link in links:
            oid = link.oid
            if oid not in nodes:
                nodes[oid] = None
                if oid not in self.bad:
                    new = oid not in self.reached
                    body = self._body(TREE, oid, rows.get(OBJECT_PREFIX + oid.hex()), link.above)
                    nodes[oid] = None if body is None else self._node(oid, bytes(body), check=new)
            node = nodes[oid]
            if node is not None:
                # What is below is looked at also where the link is wrong: whoever reads goes there.
                children += self._below(oid, node, link.before if self._fits(link, node) else None)
                if not node.height:
                    parts += self._linked(oid, node)
        return [*_by_kind(parts), (TREE, children)]

    def _node(self, oid: ObjectId, body: bytes, *, check: bool) -> Node | None:
        """The node, if it is one."""
        try:
            node = Node.decode(body)
        except ValueError as error:
            self._refuse(TREE, oid, str(error))
            return None
        if not check:
            return node
        if node.body != body:
            self._malformed(TREE, oid, "it is not encoded canonically")
        self.expiring = self.expiring or node.expiries is not None
        if not node.height and moments(node.items) != node.expiries:
            self._malformed(TREE, oid, "it does not say when its keys expire")
        # Most versions of a node differ in values only. As in an IdSet, the hash is keyed.
        keys = hash((node.height, *node.keys))
        if keys in self._key_lists:
            return node
        if any(a >= b for a, b in pairwise(node.keys)):
            self._distrust(TREE, oid, "its keys do not ascend")
            return node
        if not 0 <= node.height <= _HIGHEST_NODE:
            self._distrust(TREE, oid, f"no node is at height {node.height}")
            return node
        faults = list(key_faults(node))
        for fault in faults:
            self._malformed(TREE, oid, fault)
        if len(self._key_lists) > _REMEMBERED:
            self._key_lists.clear()
        if not faults:
            self._key_lists.add(keys)
        return node

    def _fits(self, link: _Child, node: Node) -> bool:
        """Whether the node is what the one above it says; its size apart, without which it can be read."""
        if link.height is None:
            if node.height and len(node.keys) == 1:
                self._malformed(TREE, link.oid, "it is the root, and has one node below it only")
            return True
        wrong = ""
        if node.height != link.height:
            wrong = f"is at height {node.height}, not {link.height}"
        elif node.keys[0] != link.first:
            wrong = f"does not begin with {link.first!r}"
        elif link.before is not None and node.keys[-1] >= link.before:
            wrong = f"has keys from {link.before!r} on"
        if wrong:
            assert link.first is not None  # it is no root
            assert link.size is not None
            self.bad_links.add(node_link_key(link.oid, link.height, link.first, link.size))
            self._blame(link.above, f"its node {link.oid} {wrong}")
        elif node.count != link.size:
            reason = f"its node {link.oid} has {node.count} keys, not {link.size}"
            self._malformed(TREE, _id(link.above), reason)
        elif node.earliest != link.earliest:
            reason = f"it does not say when the first key below its node {link.oid} expires"
            self._malformed(TREE, _id(link.above), reason)
        return not wrong

    def _below(self, oid: ObjectId, node: Node, before: str | None) -> Iterator[_Child]:
        if not node.height:
            return
        above = _Above(TREE.name, oid)
        recent = self._recent
        ends = [*node.keys[1:], before]
        below = (node.height - 1,) * len(ends)
        due = node.expiries or (None,) * len(ends)
        for link in zip(node.items, below, node.keys, ends, node.counts, due, strict=True):
            if link not in recent and self._is_new(link):
                item, *says = link
                yield _Child(ObjectId(item), above, *says)

    def _linked(self, oid: ObjectId, leaf: Node) -> Iterator[_Part]:
        above = _Above(TREE.name, oid)
        known = self._entries
        if len(known) > _REMEMBERED:
            known.clear()
        for key, item in zip(leaf.keys, leaf.items, strict=True):
            if item in known:
                continue
            assert isinstance(item, bytes)  # a node that was read holds no other
            known.add(item)
            try:
                entry = Entry.decode(item)
            except ValueError as error:
                self._found(Damage(str(oid), TREE.name, f"the entry of {key!r}: {error}"))
                continue
            if fault := entry_fault(entry, item):
                self._malformed(TREE, oid, f"the entry of {key!r} {fault}")
            for link in entry.links:
                yield from self._parts(above, [link], 0 if is_single(link) else None, last=True)

    # Streams

    def _parts(
        self, above: _Above, links: Sequence[tuple[ObjectId, int]], height: int | None, *, last: bool
    ) -> Iterator[_Part]:
        end = len(links) - 1
        for i, (oid, length) in enumerate(links):
            if height == 0:
                link = link_key(oid, length)
                if link not in self._known and self._links.add(link):
                    yield _Part(oid, BLOB, above, length, 0, False)
            elif self._is_new((oid, length, height, last and i == end)):
                yield _Part(oid, INDEX, above, length, height, last and i == end)

    def _indexes(self, links: list[_Part]) -> list[tuple[Kind, list[Any]]]:
        rows = self._read({link.oid for link in links if link.oid not in self.bad})
        parts: list[_Part] = []
        for link in links:
            oid = link.oid
            if oid in self.bad:
                continue
            new = oid not in self.reached
            body = self._body(INDEX, oid, rows.get(OBJECT_PREFIX + oid.hex()), link.above)
            if body is not None:
                parts += self._check_index(link, bytes(body), check=new)
        return _by_kind(parts)

    def _check_index(self, link: _Part, body: bytes, *, check: bool) -> Iterator[_Part]:
        oid = link.oid
        try:
            height, items = read_index(body)
        except ValueError as error:
            self._refuse(INDEX, oid, str(error))
            return
        total = sum(length for _, length in items)
        if height > _HIGHEST_INDEX:
            self._refuse(INDEX, oid, f"no index is at height {height}")
            return
        # What is below is looked at also where the link is wrong: whoever reads goes there.
        if link.height is not None and height != link.height:
            self.bad_links.add(link_key(oid, link.length, link.height))
            self._blame(link.above, f"its index {oid} is at height {height}, not {link.height}")
        if total != link.length:
            self._wrong_length(link, total)
        for fault in index_faults(height, items, body) if check else ():
            self._malformed(INDEX, oid, fault)
        if not may_end(items) and not link.last:
            self._malformed(INDEX, oid, "it ends before its last item would end it")
        if link.height is None and len(items) == 1:
            self._malformed(INDEX, oid, "it is the root of a stream, and has one item only")
        yield from self._parts(_Above(INDEX.name, oid), items, height - 1, last=link.last)

    def _wrong_length(self, link: _Part, actual: int) -> None:
        """An object is whole, but what links to it says another length: that cannot be read."""
        reason = f"its {link.kind.name} {link.oid} has {actual} bytes, not {link.length}"
        self.bad_links.add(link_key(link.oid, link.length))
        self._blame(link.above, reason)

    # Blobs

    def _blobs(self, links: list[_Part]) -> list[tuple[Kind, list[Any]]]:
        if self._trusting:
            return []
        for batch in _batches(links, _HANDED_BYTES):
            if not self._whole_blobs:
                self._look_for(batch)
                continue
            batch = [link for link in batch if link.oid not in self.bad]
            self._reading.append((batch, self._readers.submit(self._lengths, batch)))
            if len(self._reading) > READERS:
                self._take_in(*self._reading.popleft())
        return []

    def _lengths(self, batch: list[_Part]) -> Lengths:
        found: Lengths = {}
        for part in _batches(batch, READ_BYTES):
            found.update(self._salvage.lengths(BLOB, [link.oid for link in part]))
        return found

    def _take_in(self, batch: list[_Part], lengths: Future[Lengths]) -> None:
        found = lengths.result()
        for link in batch:
            oid = link.oid
            if oid in self.bad:
                continue
            length = found[oid]
            if isinstance(length, int):
                self._whole(BLOB, oid, length)
                if length != link.length:
                    self._wrong_length(link, length)
            else:
                self._not_whole(BLOB, oid, self._salvage.row(OBJECT_PREFIX + oid.hex()), link.above, length)
                self.bad_links.add(link_key(oid, link.length))
        self._progress(len(self.reached))

    def _look_for(self, links: list[_Part]) -> None:
        there = self._salvage.are_there(link.oid for link in links)
        for link in links:
            if self.reached.add(link.oid):
                if link.oid in there:
                    self.counts[BLOB] += 1
                    self.bytes += link.length
                else:
                    self.lose(BLOB.name, link.oid, "it is missing")


def _by_kind(parts: list[_Part]) -> list[tuple[Kind, list[Any]]]:
    return [(kind, [part for part in parts if part.kind is kind]) for kind in (INDEX, BLOB)]


def _batches(links: Iterable[_Part], most: int) -> Iterator[list[_Part]]:
    batch: list[_Part] = []
    size = 0
    for link in links:
        if batch and (size + link.length > most or len(batch) == BATCH):
            yield batch
            batch, size = [], 0
        batch.append(link)
        size += link.length
    if batch:
        yield batch


def _id(above: _Above) -> ObjectId:
    assert isinstance(above.name, ObjectId)  # what has a place in a tree or a stream is below an object
    return above.name
