"""Transfer: what commits need, copied from one store to another as far as that lacks it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vstate.errors import CorruptObject, CorruptStore
from vstate.kv.base import OBJECT_PREFIX, KVStore
from vstate.objects.commit import Commit
from vstate.objects.ids import COMMIT, Kind, NewObjects, Object, ObjectId
from vstate.repo.core import EXPIRY_FORMAT, SIGNED_COMMITS, Core
from vstate.repo.exchange.difference import Difference, Found, new_commits, read_bodies
from vstate.repo.history import SHALLOW_FORMAT, History, shallow_row
from vstate.repo.names.refs import REFLOG
from vstate.repo.objects import Objects

if TYPE_CHECKING:
    from vstate.repo.exchange.bundle import Progress

BATCH_BYTES = 4 * 1024 * 1024
BATCH_OBJECTS = 1000
"""At most so much is asked for, read and written at once; an object that is larger has a batch to itself."""

GROUP = 256
"""So many commits are looked into side by side: each level of their trees is one read of the other store."""

FEW = 256
"""With so few new commits nobody asks what the refs lead to whose commits are not at hand."""


AHEAD_AFTER = 32
"""After so many commits that were read one by one from far away, more are read before it is known that they
are needed, so many at a time:"""
AHEAD = 256


@dataclass(slots=True)
class Copied:
    """What was copied: how many objects, and bytes of their stored form; the rows that say where histories
    end, to be written with the ref if the commits that they cut off are `absent` still; and the format that a
    store needs for all of it.
    """

    rows: dict[str, bytes | None] = field(default_factory=dict)
    absent: set[ObjectId] = field(default_factory=set)
    format: int = 1
    objects: int = 0
    bytes: int = 0


class Transfer:
    """Copies to `target` what commits of `source` need.

    What a ref of the target leads to is whole there, and neither looked at nor sent; anything else may be
    what an interrupted transfer left, or about to be removed by gc, so each object is asked for by itself.
    All that was found holds as long as `sweep` is the last one there: whoever moves a ref makes that a
    condition.

    Objects come before those that refer to them, commits last and oldest first: what an interruption leaves
    there of a commit is nothing, or all of it. `near` is the one of the two whose store is at hand.
    """

    def __init__(self, source: Core, target: Core, near: Core, progress: Progress) -> None:
        self._source = source
        self._target = target
        self._progress = progress
        self.sweep = target.refs.sweep()
        # Not the repository's own, which remember what gc may just have removed.
        self._objects = Objects(target.store.uncached())
        self._history = History(self._objects)
        self._near_is_source = near is source
        stores = [source.objects, self._objects]
        self._places = stores if self._near_is_source else stores[::-1]
        self._known = _present(target.store, [*dict.fromkeys(target.refs.all().values())])
        self._difference = Difference(source.objects, self._places[0])
        self._seen = self._looked_at = 0
        self._ahead: _Ahead | None = None

    def copy(self, tip: ObjectId, branch: str | None = None) -> Copied:
        """Copy all that the commit needs. CorruptObject if something of it is damaged or missing in the
        source.

        `branch` is the ref in the source that leads to it, if there is one.
        """
        copied = Copied()
        self._ahead = None if branch is None or self._near_is_source else _Ahead(self._source, branch)
        ids = () if tip in self._known else self._new_commits(tip)
        if not ids:
            return copied
        with ThreadPoolExecutor(1) as threads:
            sender = _Sender(self._source.objects, self._target.store, self._objects.stored, threads, copied)
            for start in range(0, len(ids), GROUP):
                commits = self._source.objects.commits(ids[start : start + GROUP])
                noted = False
                for found in self._difference.needs(commits, self._beside(commits)):
                    if found.kind is COMMIT and not noted:
                        # All that the commits hold has been seen, and none of them is there yet.
                        self._note(commits, copied)
                        noted = True
                    sender.add(found)
                    self._seen += 1
                    self._progress("copying", self._seen, None)
                # What comes next may have to be compared with what is on its way.
                sender.finish()
        self._known.append(tip)
        return copied

    def _note(self, commits: Sequence[Commit], copied: Copied) -> None:
        """See to it that these commits' histories end in the target as they do in the source, or go on, and that
        older programs refuse the target if they would misread the commits.
        """
        for commit in commits:
            self._note_end(commit, copied)
            if commit.signature is not None:
                copied.format = max(copied.format, SIGNED_COMMITS)
        if self._difference.expiring:
            copied.format = max(copied.format, EXPIRY_FORMAT)
        self._target.require_format(copied.format)

    def _note_end(self, commit: Commit, copied: Copied) -> None:
        left = self._source.history.parents(commit)
        cut = [oid for oid in commit.parents if oid not in left]
        # The target may have more of the history, to which nothing but a reflog leads: that is not to be cut off.
        there = _present(self._target.store, cut)
        key, row = shallow_row(commit.oid, [oid for oid in commit.parents if oid in left or oid in there])
        if len(there) < len(cut):
            copied.rows[key] = row
            copied.absent.update(oid for oid in cut if oid not in there)
            copied.format = max(copied.format, SHALLOW_FORMAT)
        elif self._history.is_shallow(commit):
            copied.rows[key] = None

    # Commits

    def _new_commits(self, tip: ObjectId) -> Sequence[ObjectId]:
        """The commits that the target's refs do not lead to, oldest first."""
        known = self._known
        if self._near_is_source:
            # The target may have many branches that nobody here has seen. Mostly they have nothing to do with
            # it, and their commits would have to be read one after the other.
            at_hand = _present(self._source.store, known)
            if len(at_hand) < len(known):
                found = self._beyond(tip, at_hand, limit=FEW)
                if found is not None:
                    return found
        return self._beyond(tip, known) or ()

    def _beyond(
        self, tip: ObjectId, known: Sequence[ObjectId], *, limit: int | None = None
    ) -> list[ObjectId] | None:
        return new_commits(
            [tip], known, ours=self._source.history, theirs=self._history, read=self._read, limit=limit
        )

    def _read(self, ids: Sequence[ObjectId]) -> list[Commit | None]:
        """Commits, from the store at hand if it has them; None for those that neither has whole."""
        self._looked_at += len(ids)
        self._progress("finding commits", self._looked_at, None)
        found: dict[ObjectId, Commit] = {}
        for objects in self._places:
            missing = [oid for oid in ids if oid not in found]
            if len(missing) > 1:
                missing = _present(objects.store, missing)
            elif missing and self._ahead is not None and objects is self._source.objects:
                self._ahead.expect(missing[0])
            found |= {commit.oid: commit for commit in _whole_commits(objects, missing)}
        return [found.get(oid) for oid in ids]

    def _beside(self, commits: Sequence[Commit]) -> list[ObjectId]:
        """The trees of the commits before these. CorruptObject if a commit is not dated after one before it: it
        would not have been met, and would not be written, in its order.
        """
        parents = {commit.oid: self._source.history.parents(commit) for commit in commits}
        others = dict.fromkeys(oid for ids in parents.values() for oid in ids if oid not in parents)
        before = [commit for commit in self._read(list(others)) if commit is not None]
        times = {commit.oid: commit.time for commit in [*before, *commits]}
        for commit in commits:
            for oid in parents[commit.oid]:
                if oid in times and times[oid] >= commit.time:
                    raise CorruptObject(str(commit.oid), f"it is not dated after its parent {oid}")
        return [commit.tree for commit in before if commit.tree is not None]


class _Ahead:
    """Reads commits of a branch before they are asked for, as its reflog names them, into the memory of
    `Objects`.

    Only a commit names the one before it: a long history would be read one commit after the other. The reflog
    need not know them all, and is not relied on.
    """

    def __init__(self, repo: Core, ref: str) -> None:
        self._repo = repo
        self._ref = ref
        self._asked = 0
        self._keys: list[str] | None = None
        self._in_vain = 0

    def expect(self, oid: ObjectId) -> None:
        """This commit is about to be read, unless it is in memory."""
        if self._repo.objects.is_in_memory(oid):
            return
        self._asked += 1
        if self._asked <= AHEAD_AFTER or self._in_vain > 2:
            return
        if self._keys is None:
            self._keys = sorted(self._repo.store.keys(f"{REFLOG}{self._ref}:"))  # the newest is the last
        keys, self._keys = self._keys[-AHEAD:], self._keys[:-AHEAD]
        ids = dict.fromkeys(self._named(keys))
        self._in_vain += oid not in ids
        for _ in _whole_commits(self._repo.objects, _present(self._repo.store, list(ids))):
            pass

    def _named(self, keys: Sequence[str]) -> Iterator[ObjectId]:
        lines = self._repo.store.get_many(keys)
        for key in reversed(keys):
            if key in lines:
                try:
                    new = self._repo.refs.parse_line(key, lines[key]).new
                except CorruptStore:
                    continue
                if new is not None:
                    yield new


class _Sender:
    """Writes objects to a store, a batch at a time, of which one is on its way while the next is read."""

    def __init__(
        self,
        source: Objects,
        target: KVStore,
        pack: Callable[[NewObjects], Mapping[str, bytes]],
        threads: ThreadPoolExecutor,
        copied: Copied,
    ) -> None:
        self._source = source
        self._target = target
        self._pack = pack
        self._threads = threads
        self._copied = copied
        self._batch: list[Found] = []
        self._size = 0
        self._writing: Future[None] | None = None

    def add(self, found: Found) -> None:
        """Send an object; what it refers to has been given before."""
        batch = self._batch
        full = self._size + found.length > BATCH_BYTES or len(batch) == BATCH_OBJECTS
        # A batch may be written in part only: no commit without what it holds.
        if batch and (full or (found.kind is COMMIT) != (batch[-1].kind is COMMIT)):
            self._flush()
        self._batch.append(found)
        self._size += found.length

    def finish(self) -> None:
        """Send what is left; all of it is there then."""
        self._flush()
        self._wait()

    def _flush(self) -> None:
        batch = {OBJECT_PREFIX + found.oid.hex(): found for found in self._batch}
        self._batch, self._size = [], 0
        there = self._target.present(batch) if batch else batch.keys()
        missing = [found for key, found in batch.items() if key not in there]
        if not missing:
            return
        objects: NewObjects = {}
        for found, body in zip(missing, read_bodies(self._source, missing), strict=True):
            objects[found.oid] = Object(found.kind, body)
        rows = self._pack(objects)
        self._wait()
        self._writing = self._threads.submit(self._write, rows, missing[0].kind)

    def _write(self, rows: Mapping[str, bytes], kind: Kind) -> None:
        # Of a set_many that is interrupted any part may be there, a commit without the one before it too.
        if kind is not COMMIT:
            self._target.set_many(rows)
        elif self._target.transactional:
            self._target.transact(rows, {})
        else:
            for key, value in rows.items():
                self._target.set(key, value)
        self._copied.objects += len(rows)
        self._copied.bytes += sum(map(len, rows.values()))

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()


def _present(store: KVStore, ids: Sequence[ObjectId]) -> list[ObjectId]:
    there = store.present([OBJECT_PREFIX + oid.hex() for oid in ids]) if ids else ()
    return [oid for oid in ids if OBJECT_PREFIX + oid.hex() in there]


def _whole_commits(objects: Objects, ids: Sequence[ObjectId]) -> Iterator[Commit]:
    try:
        yield from objects.commits(ids) if len(ids) > 1 else filter(None, map(objects.find_commit, ids))
    except CorruptObject:
        for oid in ids:
            try:
                yield from filter(None, [objects.find_commit(oid)])
            except CorruptObject:
                pass
