"""Verifier: checks every object that some commits need against its id, its format and the links to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise
from typing import Any, NamedTuple, TypeVar

from blake3 import blake3

from vstate.errors import CorruptObject
from vstate.kv.base import OBJECT_PREFIX
from vstate.objects.canonical import encode
from vstate.objects.commit import Commit, microseconds
from vstate.objects.ids import BLOB, COMMIT, INDEX, KINDS, TREE, Kind, ObjectId
from vstate.objects.stream import is_single, read_index
from vstate.objects.tree import Node, moments
from vstate.plural import counted
from vstate.repo.idset import IdList, IdSet
from vstate.repo.upkeep.conformance import entry_fault, index_faults, is_canonical, key_faults, may_end
from vstate.repo.upkeep.damage import Damage, link_key, node_link_key
from vstate.repo.upkeep.salvage import Lengths, Row, Salvage
from vstate.repo.walk import BATCH, Batch, Below, Entries, batches, depth_first
from vstate.values.entry import Entry

READ_BYTES = 1024 * 1024
"""How many bytes of blobs are read at once: so few that hashing finds them in the core's cache."""

_TASK_BYTES = 4 * READ_BYTES  # one task of a reading thread

READERS = 2
"""How many threads read and hash blobs."""

_REMEMBERED = 100_000  # recent links, times of commits
_HIGHEST_NODE = 12  # no key has a level above it


class _Source(NamedTuple):
    """The origin of a link: the kind and the id of an object, or the kind and the key of a row."""

    kind: str
    name: ObjectId | str


class _CommitLink(NamedTuple):
    """A commit to check. `child` is the commit that names it as a parent, if one does."""

    oid: ObjectId
    source: _Source
    child: Commit | None

    @property
    def commit(self) -> ObjectId | None:
        """The commit that the link stands in."""
        return None if self.child is None else self.child.oid


class _NodeLink(NamedTuple):
    """A tree node to check, and the fields that the node above it gives; None where a root is free.

    Like any object below a commit, it is checked for the first `commit` that leads to it.
    """

    commit: ObjectId
    oid: ObjectId
    source: _Source
    height: int | None
    first: str | None
    before: str | None
    size: int | None
    earliest: int | None


class _StreamLink(NamedTuple):
    """An index or a blob to check, and the fields that the object above gives.

    `height` is 0 for a blob, and None for the root of a stream.
    """

    commit: ObjectId
    oid: ObjectId
    kind: Kind
    source: _Source
    length: int
    height: int | None
    last: bool


_Link = TypeVar("_Link", bound=_CommitLink | _NodeLink | _StreamLink)


class Verifier:
    """Checks all objects that commits need, each object once.

    Reports each damage to `found`, and goes on. Afterwards these attributes tell which objects are damaged:

    - `bad`: ids of objects that cannot be read or relied on;
    - `malformed`: those of them whose content matches their id and encodes no object;
    - `bad_links`: links that differ from the object that they lead to;
    - `inconsistent`: objects that can be read, and that have bad links or fields that cannot be true;
    - `cut`: the lost parents, by commit.

    With `read_ends`, which reads the ends of histories again, `gc` may run meanwhile. An object that it
    removes is no damage. Then `skipped` is true: objects below that one may not have been checked.

    With `whole_blobs=False` it checks only whether blobs are present. Links to blobs that are `known`, in the
    form of `link_key`, need no check. Takes a few batches of memory and some 30 bytes an object.
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
        next_commits: Callable[[ObjectId], Sequence[ObjectId]] = lambda oid: (),
        read_ends: Callable[[], None] | None = None,
    ) -> None:
        self._salvage = salvage
        self._read_ends = read_ends
        self.skipped = False
        self._next_commits = next_commits
        self._ahead: Mapping[str, Row] = {}  # commits that come next
        self._roots: list[_NodeLink] = []  # of trees, still to be read
        self._known = IdSet() if known is None else known
        self._parents = parents
        self._found = found
        self._whole_blobs = whole_blobs
        self._readers = readers
        self._reading: deque[tuple[list[_StreamLink], Future[Lengths]]] = deque()
        self._progress = progress
        self.reached = IdSet()
        self.counts = dict.fromkeys(KINDS, 0)
        self.bytes = 0
        self.bad = IdList()
        self.bad_links = IdSet()
        self.malformed = IdSet()
        self.inconsistent = IdList()
        self.cut: dict[ObjectId, list[ObjectId]] = {}
        # A link is checked once. Most links of a node stood in its last version too: looking them up among
        # the recent ones costs less than a hash.
        self._links = IdSet()
        self._recent: set[tuple[Any, ...]] = set()
        self._entries = Entries()
        self._key_lists: set[int] = set()
        self.ahead = 0
        """How many commits are dated more than a day after now, or come after such a commit."""
        self._tomorrow = microseconds(datetime.now(UTC) + timedelta(days=1))
        self._orders: dict[ObjectId, int] = {}
        self._trusting = False

    def extend(self, roots: Iterable[tuple[str, ObjectId]]) -> None:
        """Check all objects that these commits need; each comes with the key of the row that leads to it."""
        self._walk([(COMMIT, [_CommitLink(oid, _Source("ref", row), None) for row, oid in roots])])

    def trust(self, roots: Iterable[tuple[str, ObjectId]]) -> None:
        """Take all objects that these commits need as checked, so that `extend` checks only further ones.

        This reads the commits and their ancestors, and the trees and indexes of the commits themselves.
        `extend` still checks an object that only an ancestor holds.
        """
        self._trusting = True
        try:
            self.extend(roots)
        finally:
            self._trusting = False

    def mark_bad(self, kind: str, oid: bytes, reason: str) -> None:
        """Report an object that cannot be read or relied on."""
        if self.bad.add(oid):
            self._found(Damage(oid.hex(), kind, reason))

    def _mark_malformed(self, kind: Kind, oid: bytes, reason: str) -> None:
        """Report an object whose content matches its id and encodes no object."""
        self.malformed.add(oid)
        self.mark_bad(kind.name, oid, reason)

    def _mark_inconsistent(self, kind: Kind, oid: ObjectId, reason: str) -> None:
        """Report an object that can be read, as can the objects below it, and that cannot be relied on."""
        self.inconsistent.add(oid)
        self.mark_bad(kind.name, oid, reason)

    def _mark_bad_link(self, source: _Source, reason: str) -> None:
        """Report a link that differs from the object that it leads to."""
        if isinstance(source.name, ObjectId):
            self.inconsistent.add(source.name)
        self._found(Damage(str(source.name), source.kind, reason))

    def _note_fault(self, kind: Kind, oid: bytes, reason: str) -> None:
        """Report an object that breaks a rule of the format and can be read all the same."""
        self._found(Damage(oid.hex(), kind.name, reason, readable=True))

    # Walking

    def _walk(self, start: Sequence[Batch]) -> None:
        below: Below = {COMMIT: self._commits, TREE: self._nodes, INDEX: self._indexes, BLOB: self._blobs}
        for _ in depth_first(start, below):
            self._progress(len(self.reached))
        while self._reading:
            self._finish_reading(*self._reading.popleft())

    def _is_unchecked(self, link: tuple[Any, ...]) -> bool:
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

    def _body(self, kind: Kind, oid: ObjectId, row: Row, source: _Source) -> bytes | memoryview | None:
        """The verified body of an object; None, after a report, if the object cannot be read."""
        try:
            body = self._salvage.body(kind, oid, row)
        except CorruptObject as error:
            self._note_unreadable(kind, oid, row, source, error)
            return None
        self._count(kind, oid, len(body))
        return body

    def _count(self, kind: Kind, oid: ObjectId, length: int) -> None:
        """Count an object that is whole."""
        if self.reached.add(oid):
            self.counts[kind] += 1
            self.bytes += length

    def _note_unreadable(
        self, kind: Kind, oid: ObjectId, row: Row, source: _Source, error: CorruptObject
    ) -> None:
        other = self._salvage.kind_of_whole(oid, row)
        if other is None:
            self.reached.add(oid)
            self.mark_bad(kind.name, oid, error.reason)
        else:
            reason = f"{oid}, which it names, is no {kind.name} but a {other.name}"
            self._found(Damage(str(source.name), source.kind, reason))

    # Objects that gc removes meanwhile

    def _read_linked(self, links: list[_Link]) -> tuple[list[_Link], Mapping[str, Row]]:
        """The rows of linked objects, and the links that are left by `_without_removed`."""
        rows = self._read({link.oid for link in links if link.oid not in self.bad})
        there = {link.oid for link in links if OBJECT_PREFIX + link.oid.hex() in rows}
        return self._without_removed(links, there), rows

    def _without_removed(self, links: list[_Link], there: set[ObjectId]) -> list[_Link]:
        """The links, without those to objects that `gc` has removed since the link was read.

        `gc` removes a commit before the commit's objects. So an object is lost if it is missing while its
        commit is there, before the look and after it. Objects that are back join those that are `there`.
        """
        missing = [link for link in links if link.oid not in there and link.oid not in self.bad]
        if not missing or self._read_ends is None:
            return links
        needed = self._needed(missing)
        there |= self._salvage.are_there(link.oid for link in needed)
        lost = set(map(id, self._needed([link for link in needed if link.oid not in there])))
        left = [link for link in links if link.oid in there or link.oid in self.bad or id(link) in lost]
        self.skipped = self.skipped or len(left) < len(links)
        return left

    def _needed(self, links: Sequence[_Link]) -> list[_Link]:
        """Those of the links that refs still lead to, as far as commits and the ends of histories tell."""
        commits = self._salvage.are_there(link.commit for link in links if link.commit is not None)
        refs = self._salvage.rows([str(link.source.name) for link in links if link.commit is None])
        if self._read_ends is not None and any(isinstance(link, _CommitLink) for link in links):
            self._read_ends()

        def is_needed(link: _Link) -> bool:
            if link.commit is None:
                row = refs.get(str(link.source.name))
                return row == str(link.oid).encode() if isinstance(row, bytes) else row is not None
            child = link.child if isinstance(link, _CommitLink) else None
            return link.commit in commits and (child is None or link.oid in self._parents(child))

        return [link for link in links if is_needed(link)]

    # Commits

    def _commits(self, links: list[_CommitLink]) -> list[Batch]:
        parents: list[_CommitLink] = []
        # Not by `reached`: an object of another kind may be stored under the id of a commit.
        new = {link.oid: link for link in links if self._links.add(link.oid + COMMIT.code.encode())}
        rows = self._read_commits(list(new))
        found = [link for link in links if link.oid in new]
        left = self._without_removed(found, {oid for oid in new if OBJECT_PREFIX + oid.hex() in rows})
        for oid, link in {link.oid: link for link in left}.items():
            body = self._body(COMMIT, oid, rows.get(OBJECT_PREFIX + oid.hex()), link.source)
            commit = None if body is None else self._commit(oid, bytes(body))
            if commit is not None:
                above = _Source(COMMIT.name, oid)
                parents += [_CommitLink(parent, above, commit) for parent in self._parents(commit)]
                checks_tree = link.child is None or not self._trusting
                if checks_tree and commit.root is not None and self._is_unchecked((commit.root,)):
                    self._roots.append(_NodeLink(oid, commit.root, above, None, None, None, None, None))
        for link in [*left, *(link for link in links if link.oid not in new)]:
            if link.child is not None:
                self._check_parent(link, link.child)
        # Mostly a commit has one parent: the trees of many commits are read together.
        if parents and len(self._roots) < BATCH:
            return [(COMMIT, parents)]
        roots, self._roots = self._roots, []
        return [(COMMIT, parents), (TREE, roots)]

    def _read_commits(self, ids: Sequence[ObjectId]) -> Mapping[str, Row]:
        """The rows of these commits. If they are not there yet, the next commits are read with them."""
        if any(OBJECT_PREFIX + oid.hex() not in self._ahead for oid in ids):
            self._ahead = self._read(
                dict.fromkeys([*ids, *chain.from_iterable(map(self._next_commits, ids))])
            )
        return self._ahead

    def _commit(self, oid: ObjectId, body: bytes) -> Commit | None:
        try:
            commit = Commit.decode(oid, body)
        except ValueError as error:
            self._mark_malformed(COMMIT, oid, str(error))
            return None
        if not is_canonical(body):
            self._note_fault(COMMIT, oid, "it is not encoded canonically")
        if len(self._orders) > _REMEMBERED:
            self._orders.clear()
        self._orders[oid] = commit.order
        if commit.order > self._tomorrow:
            self.ahead += 1
        return commit

    def _check_parent(self, link: _CommitLink, child: Commit) -> None:
        oid = link.oid
        order = self._orders.get(oid)
        if order is None:
            row = None if oid in self.bad else self._salvage.row(OBJECT_PREFIX + oid.hex())
            try:
                order = Commit.decode(oid, bytes(self._salvage.body(COMMIT, oid, row))).order
            except (CorruptObject, ValueError):
                if row is None and not self._without_removed([link], set()):
                    return
                self.cut.setdefault(child.oid, []).append(oid)
                return
        if order >= child.order:
            self._note_fault(COMMIT, child.oid, f"it is not dated after its parent {oid}")

    # Trees

    def _nodes(self, links: list[_NodeLink]) -> list[Batch]:
        links, rows = self._read_linked(links)
        nodes: dict[ObjectId, Node | None] = {}
        children: list[_NodeLink] = []
        parts: list[_StreamLink] = []
        for link in links:
            oid = link.oid
            if oid not in nodes:
                nodes[oid] = None
                if oid not in self.bad:
                    new = oid not in self.reached
                    body = self._body(TREE, oid, rows.get(OBJECT_PREFIX + oid.hex()), link.source)
                    nodes[oid] = None if body is None else self._node(oid, bytes(body), check=new)
            node = nodes[oid]
            if node is not None:
                # Also if the link is bad: reading a key goes through it.
                children += self._below(link, node, link.before if self._fits(link, node) else None)
                if not node.height:
                    parts += self._linked(link, node)
        return [*_by_kind(parts), (TREE, children)]

    def _node(self, oid: ObjectId, body: bytes, *, check: bool) -> Node | None:
        """The node, if it is one."""
        try:
            node = Node.decode(body)
        except ValueError as error:
            self._mark_malformed(TREE, oid, str(error))
            return None
        if not check:
            return node
        if node.body != body:
            self._note_fault(TREE, oid, "it is not encoded canonically")
        if not node.height and moments(node.items) != node.expiries:
            self._note_fault(TREE, oid, "it does not say when its keys expire")
        # Most versions of a node differ in values only. As in an IdSet, the hash is keyed.
        keys = hash((node.height, *node.keys))
        if keys in self._key_lists:
            return node
        if any(a >= b for a, b in pairwise(node.keys)):
            self._mark_inconsistent(TREE, oid, "its keys do not ascend")
            return node
        if node.height > _HIGHEST_NODE:
            self._mark_inconsistent(TREE, oid, f"no node is at height {node.height}")
            return node
        faults = list(key_faults(node))
        for fault in faults:
            self._note_fault(TREE, oid, fault)
        if len(self._key_lists) > _REMEMBERED:
            self._key_lists.clear()
        if not faults:
            self._key_lists.add(keys)
        return node

    def _fits(self, link: _NodeLink, node: Node) -> bool:
        """Whether the node fits the link to it. A wrong size counts as a fault: the node can be read."""
        if link.height is None:
            if node.height and len(node.keys) == 1:
                self._note_fault(TREE, link.oid, "it is the root, and has one node below it only")
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
            self._mark_bad_link(link.source, f"its node {link.oid} {wrong}")
        elif node.count != link.size:
            reason = f"its node {link.oid} has {counted(node.count, 'key')}, not {link.size}"
            self._note_fault(TREE, _id(link.source), reason)
        elif node.earliest != link.earliest:
            reason = f"it does not say when the first key below its node {link.oid} expires"
            self._note_fault(TREE, _id(link.source), reason)
        return not wrong

    def _below(self, link: _NodeLink, node: Node, before: str | None) -> Iterator[_NodeLink]:
        if not node.height:
            return
        commit, above = link.commit, _Source(TREE.name, link.oid)
        recent = self._recent
        ends = [*node.keys[1:], before]
        below = (node.height - 1,) * len(ends)
        due = node.expiries or (None,) * len(ends)
        for fields in zip(node.items, below, node.keys, ends, node.counts, due, strict=True):
            if fields not in recent and self._is_unchecked(fields):
                item, *says = fields
                yield _NodeLink(commit, ObjectId(item), above, *says)

    def _linked(self, link: _NodeLink, leaf: Node) -> Iterator[_StreamLink]:
        oid = link.oid
        above = _Source(TREE.name, oid)
        for key, item in self._entries.new_items(leaf):
            try:
                entry = Entry.decode(item)
            except ValueError as error:
                self._found(Damage(str(oid), TREE.name, f"the entry of {key!r}: {error}"))
                continue
            if fault := entry_fault(entry, item):
                self._note_fault(TREE, oid, f"the entry of {key!r} {fault}")
            for part in entry.links:
                height = 0 if is_single(part) else None
                yield from self._parts(link.commit, above, [part], height, last=True)

    # Streams

    def _parts(
        self,
        commit: ObjectId,
        source: _Source,
        links: Sequence[tuple[ObjectId, int]],
        height: int | None,
        *,
        last: bool,
    ) -> Iterator[_StreamLink]:
        end = len(links) - 1
        for i, (oid, length) in enumerate(links):
            if height == 0:
                link = link_key(oid, length)
                if link not in self._known and self._links.add(link):
                    yield _StreamLink(commit, oid, BLOB, source, length, 0, False)
            elif self._is_unchecked((oid, length, height, last and i == end)):
                yield _StreamLink(commit, oid, INDEX, source, length, height, last and i == end)

    def _indexes(self, links: list[_StreamLink]) -> list[Batch]:
        links, rows = self._read_linked(links)
        parts: list[_StreamLink] = []
        for link in links:
            oid = link.oid
            if oid in self.bad:
                continue
            new = oid not in self.reached
            body = self._body(INDEX, oid, rows.get(OBJECT_PREFIX + oid.hex()), link.source)
            if body is not None:
                parts += self._check_index(link, bytes(body), check=new)
        return _by_kind(parts)

    def _check_index(self, link: _StreamLink, body: bytes, *, check: bool) -> Iterator[_StreamLink]:
        oid = link.oid
        try:
            height, items = read_index(body)
        except ValueError as error:
            self._mark_malformed(INDEX, oid, str(error))
            return
        total = sum(length for _, length in items)
        # Also if the link is bad: reading a value goes through it.
        if link.height is not None and height != link.height:
            self.bad_links.add(link_key(oid, link.length, link.height))
            self._mark_bad_link(link.source, f"its index {oid} is at height {height}, not {link.height}")
        if total != link.length:
            self._wrong_length(link, total)
        for fault in index_faults(height, items, body) if check else ():
            self._note_fault(INDEX, oid, fault)
        if not may_end(items) and not link.last:
            self._note_fault(INDEX, oid, "it ends before its last item would end it")
        if link.height is None and len(items) == 1:
            self._note_fault(INDEX, oid, "it is the root of a stream, and has one item only")
        yield from self._parts(link.commit, _Source(INDEX.name, oid), items, height - 1, last=link.last)

    def _wrong_length(self, link: _StreamLink, actual: int) -> None:
        """Report an object that is whole and has another length than the link to it says."""
        reason = f"its {link.kind.name} {link.oid} has {counted(actual, 'byte')}, not {link.length}"
        self.bad_links.add(link_key(link.oid, link.length))
        self._mark_bad_link(link.source, reason)

    # Blobs

    def _blobs(self, links: list[_StreamLink]) -> list[Batch]:
        if self._trusting:
            return []
        for batch in batches(links, _TASK_BYTES):
            if not self._whole_blobs:
                self._look_for(batch)
                continue
            batch = [link for link in batch if link.oid not in self.bad]
            self._reading.append((batch, self._readers.submit(self._lengths, batch)))
            if len(self._reading) > READERS:
                self._finish_reading(*self._reading.popleft())
        return []

    def _lengths(self, batch: list[_StreamLink]) -> Lengths:
        found: Lengths = {}
        for part in batches(batch, READ_BYTES):
            found.update(self._salvage.lengths(BLOB, [link.oid for link in part]))
        return found

    def _finish_reading(self, batch: list[_StreamLink], lengths: Future[Lengths]) -> None:
        found = lengths.result()
        if bad := [link for link in batch if not isinstance(found[link.oid], int)]:
            left, _ = self._read_linked(bad)
            found |= self._lengths(left)  # again: a writer may have brought one back
            removed = {link.oid for link in bad} - {link.oid for link in left}
            batch = [link for link in batch if link.oid not in removed]
        for link in batch:
            oid = link.oid
            if oid in self.bad:
                continue
            length = found[oid]
            if isinstance(length, int):
                self._count(BLOB, oid, length)
                if length != link.length:
                    self._wrong_length(link, length)
            else:
                self._note_unreadable(
                    BLOB, oid, self._salvage.row(OBJECT_PREFIX + oid.hex()), link.source, length
                )
                self.bad_links.add(link_key(oid, link.length))
        self._progress(len(self.reached))

    def _look_for(self, links: list[_StreamLink]) -> None:
        there = self._salvage.are_there(link.oid for link in links)
        for link in self._without_removed(links, there):
            if self.reached.add(link.oid):
                if link.oid in there:
                    self.counts[BLOB] += 1
                    self.bytes += link.length
                else:
                    self.mark_bad(BLOB.name, link.oid, "it is missing")


def _by_kind(links: Iterable[_StreamLink]) -> list[Batch]:
    indexes: list[_StreamLink] = []
    blobs: list[_StreamLink] = []
    for link in links:
        (blobs if link.kind is BLOB else indexes).append(link)
    return [(INDEX, indexes), (BLOB, blobs)]


def _id(source: _Source) -> ObjectId:
    assert isinstance(source.name, ObjectId)  # only objects link to nodes with a place in a tree
    return source.name
