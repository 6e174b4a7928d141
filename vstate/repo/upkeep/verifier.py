"""Verifier: checks every object that some commits need against its id, its format and the links to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from vstate.errors import CorruptObject, CorruptStore
from vstate.kv.base import OBJECT_PREFIX, batches_by_bytes
from vstate.objects.canonical import encode
from vstate.objects.commit import Commit, microseconds
from vstate.objects.ids import BLOB, COMMIT, INDEX, KINDS, TREE, Kind, ObjectId
from vstate.objects.stream import is_single, read_index
from vstate.objects.tree import Node, moments
from vstate.plural import counted
from vstate.repo.idset import IdList, IdSet
from vstate.repo.names.refs import REFLOG
from vstate.repo.upkeep.damage import Damage
from vstate.repo.upkeep.metadata import Metadata
from vstate.repo.upkeep.salvage import Row
from vstate.repo.walk import BATCH, Batch, Entries, depth_first
from vstate.values.entry import Entry

_READ_BYTES = 1024 * 1024
"""How many bytes of blobs are read at once: so few that hashing finds them in the core's cache."""

_REMEMBERED = 100_000  # times of commits
HIGHEST_NODE = 12
"""No key has a level above it."""


_T = TypeVar("_T")


class _Link(NamedTuple):
    """A link to an object to check.

    `source` is the kind and the id of the object that the link stands in, or the kind and the key of a row.
    `commit` is None if a row names a commit. For a parent it is the child, and for any other object the first
    commit that leads to it. `says` is what stands there of a node: height, first key, first key behind it,
    number of keys, first expiry; nothing of a root. Of a part of a value: length, and height, which is 0 for
    a blob and None for the root of a stream.
    """

    oid: ObjectId
    source: tuple[str, str]
    commit: Commit | None = None
    says: tuple[Any, ...] = ()

    @property
    def length(self) -> int:
        """The length in bytes of a part of a value, by the link to it."""
        return int(self.says[0])


class Verifier:
    """Checks all objects that commits need, each object once.

    Reports each damage to `found`, and goes on. Afterwards these attributes tell which objects are damaged:

    - `bad`: ids of objects that cannot be read or relied on;
    - `malformed`: those of them whose content matches their id and encodes no object;
    - `inconsistent`: those of them that can be read, and have a link that differs from the object below.

    `gc` may run meanwhile. An object that it removes is no damage. Then `skipped` is true: objects below that
    one may not have been checked.

    With `whole_blobs=False` it checks only whether blobs are present. Of a commit that it reads, it reads the
    `next_commits` too. Takes a few batches of memory and some 30 bytes an object.
    """

    def __init__(
        self,
        metadata: Metadata,
        found: Callable[[Damage], None],
        *,
        whole_blobs: bool,
        progress: Callable[[int], None],
        next_commits: Callable[[ObjectId], Sequence[ObjectId]],
    ) -> None:
        self._metadata = metadata
        self._salvage = metadata.salvage
        self._found = found
        self._whole_blobs = whole_blobs
        self._progress = progress
        self._next_commits = next_commits
        self.skipped = False
        self.reached = IdSet()
        self.counts = dict.fromkeys(KINDS, 0)
        self.bytes = 0
        self.bad = IdList()
        self.malformed = IdSet()
        self.inconsistent = IdList()
        self._links = IdSet()  # each is checked once
        self._entries = Entries()
        self._ahead: Mapping[str, Row] = {}  # commits that come next
        self._roots: list[_Link] = []  # of trees, still to be read
        self._orders: dict[ObjectId, int] = {}
        self._tomorrow = microseconds(datetime.now(UTC) + timedelta(days=1))
        self.ahead = 0
        """How many commits are dated more than a day after now, or come after such a commit."""

    def extend(self, roots: Iterable[tuple[str, ObjectId]]) -> None:
        """Check all objects that these commits need; each comes with the key of the row that leads to it."""
        start = [(COMMIT, [_Link(oid, ("ref", row)) for row, oid in roots])]
        below = {COMMIT: self._commits, TREE: self._nodes, INDEX: self._indexes, BLOB: self._blobs}
        for _ in depth_first(start, below):
            self._progress(len(self.reached))

    # Reports

    def mark_bad(self, kind: str, oid: ObjectId, reason: str) -> None:
        """Report an object that cannot be read or relied on."""
        self.reached.add(oid)
        if self.bad.add(oid):
            self._found(Damage(str(oid), kind, reason))

    def _mark_bad_link(self, link: _Link, reason: str) -> None:
        """Report a link that differs from the object that it leads to."""
        kind, name = link.source
        self._found(Damage(name, kind, reason))
        if kind in (TREE.name, INDEX.name):
            self.inconsistent.add(ObjectId.parse(name))
            self.bad.add(ObjectId.parse(name))

    def _note_fault(self, oid: str, kind: Kind, reason: str) -> None:
        """Report an object that breaks a rule of the format, and can be read all the same."""
        self._found(Damage(oid, kind.name, reason, readable=True))

    def _note_unreadable(self, kind: Kind, link: _Link, error: CorruptObject) -> None:
        row = self._salvage.stored(link.oid)
        other = self._salvage.kind_of_whole(link.oid, row)
        if row is None and not self._is_needed(kind, link):
            self.skipped = True
        elif other is None or other is kind:
            self.mark_bad(kind.name, link.oid, error.reason)
        elif not link.source[1].startswith(REFLOG):  # a repair may log an id of no commit
            self._mark_bad_link(link, f"{link.oid}, which it names, is no {kind.name} but a {other.name}")

    def _is_needed(self, kind: Kind, link: _Link) -> bool:
        """Whether a ref still leads to a missing object, as far as commits and the ends of histories tell.

        `gc` removes a commit before the commit's objects, and a commit that only a reflog names.
        """
        if link.commit is None:
            row = self._salvage.row(link.source[1])
            return row == link.oid.hex().encode() if isinstance(row, bytes) else row is not None
        if kind is COMMIT:
            self._metadata.read_ends()
            if link.oid not in self._metadata.parents(link.commit):
                return False
        return self._salvage.stored(link.commit.oid) is not None

    # Objects

    def _rows(self, ids: Iterable[ObjectId]) -> Mapping[str, Row]:
        return self._salvage.rows([OBJECT_PREFIX + oid.hex() for oid in ids if oid not in self.bad])

    def _read(
        self, kind: Kind, link: _Link, rows: Mapping[str, Row], decode: Callable[[bytes], _T]
    ) -> _T | None:
        """The object; None, after a report, if it cannot be read."""
        oid = link.oid
        if oid in self.bad:
            return None
        try:
            body = bytes(self._salvage.body(kind, oid, rows.get(OBJECT_PREFIX + oid.hex())))
        except CorruptObject as error:
            self._note_unreadable(kind, link, error)
            return None
        self._count(kind, oid, len(body))
        try:
            return decode(body)
        except ValueError as error:
            self.malformed.add(oid)
            self.mark_bad(kind.name, oid, str(error))
            return None

    def _count(self, kind: Kind, oid: ObjectId, length: int) -> None:
        """Count an object that is whole."""
        if self.reached.add(oid):
            self.counts[kind] += 1
            self.bytes += length

    def _is_new(self, oid: bytes, *says: Any) -> bool:
        """Whether this link has not been checked yet."""
        return self._links.add(oid + encode(says))

    # Commits

    def _commits(self, links: list[_Link]) -> list[Batch]:
        # Not by `reached`: an object of another kind may be stored under the id of a commit.
        new = {link.oid: link for link in links if self._links.add(link.oid + COMMIT.code.encode())}
        if any(OBJECT_PREFIX + oid.hex() not in self._ahead for oid in new):  # read the next ones with them
            self._ahead = self._rows(
                dict.fromkeys([*new, *chain.from_iterable(map(self._next_commits, new))])
            )
        parents: list[_Link] = []
        for oid, link in new.items():
            commit = self._read(COMMIT, link, self._ahead, partial(Commit.decode, oid))
            if commit is None:
                continue
            if len(self._orders) > _REMEMBERED:
                self._orders.clear()
            self._orders[oid] = commit.order
            self.ahead += commit.order > self._tomorrow
            source = COMMIT.name, commit.id
            parents += [_Link(parent, source, commit) for parent in self._metadata.parents(commit)]
            if commit.root is not None and self._is_new(commit.root):
                self._roots.append(_Link(commit.root, source, commit))
        for link in links:
            if link.commit is not None:
                self._check_order(link.oid, link.commit)
        # Mostly a commit has one parent: the trees of many commits are read together.
        if parents and len(self._roots) < BATCH:
            return [(COMMIT, parents)]
        roots, self._roots = self._roots, []
        return [(COMMIT, parents), (TREE, roots)]

    def _check_order(self, parent: ObjectId, child: Commit) -> None:
        """Check that a commit is dated after its parent, if that can be read: walks rely on it."""
        order = self._orders.get(parent)
        if order is None and parent not in self.bad:
            with suppress(CorruptObject, CorruptStore):
                order = self._salvage.objects.commit(parent).order
        if order is not None and order >= child.order:
            reason = f"it is not dated after its parent {parent}"
            if parent in child.parent_ids:
                self._note_fault(child.id, COMMIT, reason)
            else:
                self._metadata.refuse_end(child.oid, reason)

    # Trees

    def _nodes(self, links: list[_Link]) -> list[Batch]:
        rows = self._rows({link.oid for link in links})
        children: list[_Link] = []
        parts: list[_Link] = []
        for link in links:
            is_new = link.oid not in self.reached
            node = self._read(TREE, link, rows, _decode_node)
            if node is None:
                continue
            # Also if the link is bad: reading a key goes through it.
            before = link.says[2] if link.says and self._fits(link, node) else None
            if node.height:
                children += self._children(link, node, before)
                continue
            parts += self._values(link, node)
            if is_new and moments(node.items) != node.expiries:
                self._note_fault(str(link.oid), TREE, "it does not say when its keys expire")
        return [*_by_kind(parts), (TREE, children)]

    def _fits(self, link: _Link, node: Node) -> bool:
        """Whether a reader that comes by the link finds the keys of the node."""
        height, first, before, size, earliest = link.says
        wrong = ""
        if node.height != height:
            wrong = f"is at height {node.height}, not {height}"
        elif node.keys[0] != first:
            wrong = f"does not begin with {first!r}"
        elif before is not None and node.keys[-1] >= before:
            wrong = f"has keys from {before!r} on"
        elif node.size != size:
            reason = f"its node {link.oid} has {counted(node.size, 'key')}, not {size}"
            self._note_fault(link.source[1], TREE, reason)
        elif node.earliest != earliest:
            reason = f"it does not say when the first key below its node {link.oid} expires"
            self._note_fault(link.source[1], TREE, reason)
        if wrong:
            self._mark_bad_link(link, f"its node {link.oid} {wrong}")
        return not wrong

    def _children(self, link: _Link, node: Node, before: str | None) -> Iterator[_Link]:
        source = TREE.name, str(link.oid)
        ends = [*node.keys[1:], before]
        below = (node.height - 1,) * len(ends)
        due = node.expiries or (None,) * len(ends)
        for fields in zip(node.items, below, node.keys, ends, node.counts, due, strict=True):
            if self._is_new(*fields):
                yield _Link(ObjectId(fields[0]), source, link.commit, fields[1:])

    def _values(self, link: _Link, leaf: Node) -> Iterator[_Link]:
        for key, item in self._entries.new_items(leaf):
            try:
                links = list(Entry.decode(item).links)
            except ValueError as error:
                self._found(Damage(str(link.oid), TREE.name, f"the entry of {key!r}: {error}"))
                continue
            for part in links:
                yield from self._parts(link, TREE, [part], 0 if is_single(part) else None)

    # Streams

    def _parts(
        self, above: _Link, kind: Kind, links: Iterable[tuple[ObjectId, int]], height: int | None
    ) -> Iterator[_Link]:
        source = kind.name, str(above.oid)
        for oid, length in links:
            if self._is_new(oid, length, height):
                yield _Link(oid, source, above.commit, (length, height))

    def _indexes(self, links: list[_Link]) -> list[Batch]:
        rows = self._rows({link.oid for link in links})
        parts: list[_Link] = []
        for link in links:
            if (found := self._read(INDEX, link, rows, read_index)) is None:
                continue
            height, ids, lengths = found
            _, said = link.says
            if said is not None and height != said:
                self._mark_bad_link(link, f"its index {link.oid} is at height {height}, not {said}")
            self._check_length(INDEX, link, sum(lengths))
            # Also if the link is bad: reading a value goes through it.
            parts += self._parts(link, INDEX, zip(ids, lengths, strict=True), height - 1)
        return _by_kind(parts)

    def _check_length(self, kind: Kind, link: _Link, length: int) -> None:
        if length != link.length:
            reason = f"its {kind.name} {link.oid} has {counted(length, 'byte')}, not {link.length}"
            self._mark_bad_link(link, reason)

    def _blobs(self, links: list[_Link]) -> list[Batch]:
        for some in batches_by_bytes(links, attrgetter("length"), most_bytes=_READ_BYTES, most=BATCH):
            keys = [OBJECT_PREFIX + link.oid.hex() for link in some]
            rows = self._salvage.rows(keys) if self._whole_blobs else {}
            there = set() if self._whole_blobs else self._salvage.present(keys)
            for key, link in zip(keys, some, strict=True):
                try:
                    length = link.length
                    if key not in there:
                        length = len(self._salvage.body(BLOB, link.oid, rows.get(key)))
                except CorruptObject as error:
                    if link.oid not in self.bad:
                        self._note_unreadable(BLOB, link, error)
                    continue
                self._count(BLOB, link.oid, length)
                self._check_length(BLOB, link, length)
        return []


def _by_kind(links: Iterable[_Link]) -> list[Batch]:
    indexes: list[_Link] = []
    blobs: list[_Link] = []
    for link in links:
        (blobs if link.says[1] == 0 else indexes).append(link)
    return [(INDEX, indexes), (BLOB, blobs)]


def _decode_node(body: bytes) -> Node:
    """The node; ValueError if it is none, or if a search for a key would go wrong in it."""
    node = Node.decode(body)
    if node.keys != sorted(set(node.keys)):
        raise ValueError("its keys do not ascend")
    if node.height > HIGHEST_NODE:
        raise ValueError(f"no node is at height {node.height}")
    return node
