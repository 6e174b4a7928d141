"""Reach: every object that some commits need; and the objects of a store that stay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from vstate.errors import CorruptObject
from vstate.kv.base import OBJECT_PREFIX, KVStore, batches
from vstate.objects.ids import BLOB, COMMIT, INDEX, TREE, ObjectId
from vstate.objects.stream import is_single
from vstate.repo.core import Core
from vstate.repo.history import SHALLOW, History
from vstate.repo.idset import IdSet
from vstate.repo.names.refs import REFLOG, SWEEP, ReflogEntry
from vstate.repo.objects import DAMAGED, INCONSISTENT, TRASH, Objects, kind_of
from vstate.repo.upkeep.metadata import noted, object_id
from vstate.repo.walk import BATCH, Batch, Entries, depth_first, links_of

_TOGETHER = 2048
"""How much garbage is read at once: a pack is unpacked for each read that meets it."""


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


UpkeepProgress = Callable[[str, int], None]
"""Called now and then with the name of the step, and the number of objects so far."""

Keeps = Callable[[str, ReflogEntry], Sequence[ObjectId] | None]
"""Given the key of a reflog line and the line, the commits that the line keeps; None if the line goes."""


class Marks:
    """The objects that stay: those that refs, and lines of reflogs, lead to.

    `begin` walks from all refs. Others may write meanwhile, and `catch_up` walks to what refs lead to by now.
    The refs in `without` keep nothing.
    """

    def __init__(
        self, repo: Core, *, without: Iterable[str] = (), progress: UpkeepProgress | None = None
    ) -> None:
        self._repo = repo
        self._store = repo.store
        self._progress = progress or (lambda step, count: None)
        self.history = History(repo.objects, repo.history.trail)
        self.lost = _known_to_be_lost(repo.store)
        self.reach = Reach(repo.objects, self.history, self.lost)
        self.without = frozenset(without)
        self.refs: dict[str, ObjectId] = {}
        """The refs as they were at the last look."""
        self._lines = IdSet()  # the reflog lines that were read
        self._ends: dict[str, bytes] = {}  # the rows with the ends of histories
        self._sweep = repo.store.get(SWEEP)

    def __contains__(self, oid: bytes) -> bool:
        return oid in self.reach

    def __len__(self) -> int:
        return len(self.reach)

    def begin(self, keeps: Keeps) -> list[str]:
        """Walk from every ref, and from every line of a reflog that stays; the keys of the lines that go."""
        self._ends = dict(self._store.items(SHALLOW))
        logged: list[ObjectId] = []
        gone: list[str] = []
        for key, value in self._store.items(REFLOG):
            self._lines.add(_line_id(key))
            line = self._repo.refs.parse_line(key, value)
            kept = keeps(key, line)
            if kept is None:
                gone.append(key)
            else:
                logged += (oid for oid in kept if not self._is_cut_off(oid, line))
        self.refs = self._read_refs()
        self._extend(self.refs.values())
        self.extend_where_present(logged)
        # The oldest of each ref first: fsck compares a ref with the lines that are left, and takes an absent
        # ref whose last line is no deletion for a lost one.
        return sorted(gone)

    def _is_cut_off(self, oid: ObjectId, line: ReflogEntry) -> bool:
        """Whether a cut took this commit out of the line's history, and it is in the trash alone."""
        if line.new is None or (left := self.history.shallow().get(line.new)) is None:
            return False
        if oid in left or self._repo.objects.is_stored(oid):
            return False
        commit = self._repo.objects.find_commit(line.new)
        return commit is not None and oid in commit.parent_ids

    def catch_up(self) -> None:
        """Walk from all commits that refs have been at since the last look.

        Reads all new lines, also those of refs that stand still: a ref may have gone and come back.
        """
        refs = self._read_refs()
        logged: list[ObjectId] = []
        for key in self._store.keys(REFLOG):
            value = self._store.get(key) if self._lines.add(_line_id(key)) else None
            if value is not None:
                logged += self._repo.refs.parse_line(key, value).commits
        # After the refs: an import writes the ends of histories in the transaction that moves the ref.
        self._follow_histories()
        self._extend(oid for ref, oid in refs.items() if self.refs.get(ref) != oid)
        self.refs = refs
        self.extend_where_present(logged)

    def cut_off(self, ends: Mapping[str, bytes]) -> None:
        """Write the ends of histories, at which this walk has ended already.

        CorruptObject if another gc has removed objects since this object was made: perhaps those that a row
        names.
        """
        if not self._store.transact(ends, {SWEEP: self._sweep}):
            raise CorruptObject(
                next(iter(ends)).removeprefix(SHALLOW), "another gc has removed what it needs"
            )
        self._repo.history.reload()
        self._ends |= ends

    def extend_where_present(self, commits: Iterable[ObjectId]) -> None:
        """Walk from those of the commits that are still there: a gc may have removed the others long ago."""
        unknown = [oid for oid in commits if oid not in self.reach]
        self._extend(
            oid for oid in unknown if self._repo.objects.is_stored(oid) or TRASH + oid.hex() in self._store
        )

    def garbage(self) -> Iterator[ObjectId]:
        """The objects of the store that do not stay, in no order."""
        for oid in map(object_id, self._store.keys(OBJECT_PREFIX)):
            if oid is not None and oid not in self.reach:
                yield oid

    def garbage_rows(self) -> Iterator[tuple[ObjectId, bytes]]:
        """The same with their stored forms."""
        found = 0
        for ids in batches(self.garbage(), _TOGETHER):
            self._progress("finding garbage", found)
            found += len(ids)
            keys = {OBJECT_PREFIX + oid.hex(): oid for oid in ids}
            for key, stored in self._store.get_many(keys).items():
                yield keys[key], stored

    def find_garbage(self) -> tuple[dict[ObjectId, int], int]:
        """The commits among the garbage, each with its order, and how many objects are garbage."""
        commits: dict[ObjectId, int] = {}
        count = 0
        for oid, stored in self.garbage_rows():
            count += 1
            if kind_of(stored) is COMMIT:
                commits[oid] = 0
                with suppress(CorruptObject):  # nothing leads to it, so its damage does not matter
                    commits[oid] = self._repo.objects.decoded_commit(oid, stored).order
        return commits, count

    def _read_refs(self) -> dict[str, ObjectId]:
        refs = self._repo.refs.all()
        return {ref: oid for ref, oid in refs.items() if ref not in self.without}

    def _extend(self, roots: Iterable[ObjectId]) -> None:
        for _ in self.reach.extend(roots):
            self._progress("marking", len(self.reach))

    def _follow_histories(self) -> None:
        """Read the ends of histories again, and walk on where an import has continued a history."""
        ends = dict(self._store.items(SHALLOW))
        before, self._ends = self._ends, ends
        if ends != before:
            self.history.reload()
        for key, row in before.items():
            oid = ObjectId.parse(key.removeprefix(SHALLOW))
            # Another process removes the row of a commit after the commit. Then no history goes on there.
            if ends.get(key) != row and oid in self.reach and self._repo.objects.is_stored(oid):
                self.extend_where_present(self.history.parents(self._repo.objects.commit(oid)))


def notes_on_lost(store: KVStore) -> Iterator[tuple[str, ObjectId]]:
    """The keys of the notes of `fsck` on lost objects, each with the id of the object."""
    for key in store.keys(DAMAGED):
        digits = noted(key)
        if digits is not None and not key.startswith(INCONSISTENT):
            yield key, ObjectId.parse(digits)


def _known_to_be_lost(store: KVStore) -> IdSet:
    """The objects that `fsck` has noted as lost. A writer may have brought some back."""
    lost = IdSet()
    for _, oid in notes_on_lost(store):
        lost.add(oid)
    return lost


def _line_id(key: str) -> bytes:
    """The key backwards: a set of ids wants bytes first that differ."""
    return key[::-1].encode()
