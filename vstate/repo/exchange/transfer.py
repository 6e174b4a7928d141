"""Transfer: copies the objects that commits need from one store to another that lacks them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import attrgetter

from vstate.errors import CorruptObject, Diverged
from vstate.kv.base import OBJECT_PREFIX, KVStore, batches_by_bytes
from vstate.objects.commit import Commit
from vstate.objects.ids import BLOB, COMMIT, Object, ObjectId
from vstate.repo.core import Core
from vstate.repo.exchange.difference import (
    Difference,
    Needed,
    TransferProgress,
    new_commits,
    read_bodies,
    whole_commits,
)
from vstate.repo.graph import graph_key, is_segment
from vstate.repo.history import SHALLOW, History, shallow_row
from vstate.repo.idset import IdSet
from vstate.repo.names.refs import SWEEP, Refs
from vstate.repo.objects import Objects
from vstate.repo.rooms import Room, mark_of
from vstate.repo.sweeps import Overtaken, arrival
from vstate.repo.upkeep.damage import Loss
from vstate.repo.upkeep.metadata import Metadata
from vstate.repo.upkeep.salvage import Salvage

BATCH_BYTES = 4 * 1024 * 1024
BATCH_OBJECTS = 1000
"""The largest batch that is looked for, read and written at once; a larger object is a batch of its own."""

FEW = 256
"""With so few new commits, refs of the target whose commits are not at hand are not looked at."""


class Ends:
    """The ends of histories in a store when commits arrive from a place that may have less of their history.

    `rows` are to be written with the ref if the commits that they cut off are still `absent`. `left` are the
    parents from then on, by commit.
    """

    def __init__(self, store: KVStore, history: History, known: Sequence[ObjectId]) -> None:
        self._store = store
        self._history = history
        self._known = known
        self._remnants = Remnants(store, history)
        self.rows: dict[str, bytes | None] = {}
        self.left: dict[ObjectId, tuple[ObjectId, ...]] = {}
        self.absent: set[ObjectId] = set()

    def note(self, commit: Commit, left: Collection[ObjectId]) -> None:
        """Note a commit that has these parents where it comes from."""
        cut = [oid for oid in commit.parent_ids if oid not in left]
        # The store may have older commits that only a reflog leads to: they stay part of the history. So do
        # those that stand for parents here.
        own = self._history.shallow().get(commit.oid, ())
        there = present(self._store, [*dict.fromkeys([*cut, *own])])
        here = [oid for oid in there if oid in self._known or oid not in self._remnants]
        parents = tuple(oid for oid in commit.parent_ids if oid in left or oid in here)
        if parents != commit.parent_ids:
            standing = [oid for oid in dict.fromkeys([*own, *left]) if oid in here or oid in left]
            others = [oid for oid in standing if oid not in parents]
            is_first = commit.parent_ids[0] not in parents  # then others stand for the first parent
            parents = (*others, *parents) if is_first else (*parents, *others)
        key, row = shallow_row(commit.oid, parents)
        if parents != commit.parent_ids:
            self.rows[key] = row
            self.absent.update(oid for oid in cut if oid not in there)
        elif self._history.is_shallow(commit):
            self.rows[key] = None
        if key in self.rows:
            self.left[commit.oid] = parents

    def rows_with(self, commits: Iterable[ObjectId]) -> tuple[dict[str, bytes], dict[str, None]]:
        """The rows to write in one transaction with new commits, and the rows that the transaction expects.

        A commit without its row counts as one with all its parents, also before a ref leads to it.
        """
        keys = [SHALLOW + oid.hex() for oid in commits]
        rows = {key: row for key in keys if (row := self.rows.get(key)) is not None}
        return rows, {OBJECT_PREFIX + oid.hex(): None for oid in self.absent} if rows else {}


@dataclass(slots=True)
class Copied:
    """The copied objects: their number, and the bytes of their stored form.

    `arrived` are the keys of the rows that name the commits until a ref leads to them.
    """

    ends: Ends
    arrived: list[str] = field(default_factory=list)
    objects: int = 0
    bytes: int = 0


class Transfer:
    """Copies the objects that commits of `source` need to `target`.

    Objects that a ref of the target leads to are whole there; they are neither looked at nor sent. Other
    objects may be left of an interrupted transfer, or about to be removed by gc, so the transfer looks
    for each of them. Its findings hold as long as `sweep` is the last sweep of the target: moving the ref has
    that as a condition.

    An object goes before those that refer to it, and commits go last, the oldest first. So after an
    interruption a commit is there with all its objects, or not at all. `near` is the one of the two stores
    that is at hand.

    With `since`, all commits between these and a tip are looked for, also those that refs of the target lead
    to, and an object that is there counts only if it is whole. One of these whose tree is damaged does not
    count.
    """

    def __init__(
        self,
        source: Core,
        target: Core,
        near: Core,
        progress: TransferProgress,
        since: Sequence[ObjectId] | None = None,
    ) -> None:
        self._source = source
        self.target = target
        self._progress = progress
        self.sweep = mark_of(target.store)
        # Not the repository's own, which remember commits that gc may just have removed.
        self._objects = Objects(target.store.uncached())
        self._history = History(self._objects)
        self._near_is_source = near is source
        stores = [source.objects, self._objects]
        self._places = stores if self._near_is_source else stores[::-1]
        self._known = present(target.store, [*dict.fromkeys(target.refs.all().values())])
        self._difference = Difference(source.objects, self._places[0])
        self._seen = self._looked_at = 0
        self._salvage = None if since is None else Salvage(target.store)
        if since is not None:
            for oid in since:
                self.copy(oid)  # perhaps no ref leads to it, or it is in another room
            self._known = [oid for oid in since if self._has_tree_of(oid)]

    @property
    def is_swept(self) -> bool:
        """Whether gc has swept the target since the transfer began."""
        return self.target.store.get(SWEEP) != self.sweep

    def copy(self, tip: ObjectId, branch: str | None = None) -> Copied:
        """Copy all objects that the commit needs; CorruptObject if the source lacks one, or has it damaged.

        `branch` is a ref in the source that leads to the commit, if there is one.
        """
        copied = Copied(Ends(self.target.store, self._history, self._known))
        if branch is not None:
            self._source.refs.mention(branch)
        ids = () if tip in self._known else self._new_commits(tip)
        limits = {"most_bytes": BATCH_BYTES, "most": BATCH_OBJECTS}
        if not ids:
            return copied
        self._require_not_erased(ids, branch)
        for commits, needed in self._difference.groups(ids, self._source.history, self._read):
            # An interruption may write only a part of a batch, so commits are not in one batch with their
            # objects.
            for are_commits, objects in groupby(needed, key=lambda item: item.kind is COMMIT):
                if are_commits:
                    for commit in commits:
                        copied.ends.note(commit, self._source.history.parents(commit))
                    self.target.stamp()
                for batch in batches_by_bytes(objects, attrgetter("length"), **limits):
                    self._send(batch, copied)
                    self._seen += len(batch)
                    self._progress("copying", self._seen, None)
            self._copy_segments(commits)
        if copied.ends.left:
            self._history.cut_off(copied.ends.left)  # the next tip may need what lies behind these ends
        self._known.append(tip)
        return copied

    def _require_not_erased(self, ids: Sequence[ObjectId], branch: str | None) -> None:
        """Raise Diverged if `erase` has replaced one of these commits in the target."""
        store = self.target.store
        replaced = Objects(store.whole() if isinstance(store, Room) else store).replaced()
        for old in filter(replaced.__contains__, ids):
            now = str(replaced[old])
            raise Diverged(branch or "", ours=str(old), theirs=now, erased_in=store.location)

    def _has_tree_of(self, oid: ObjectId) -> bool:
        """Whether the tree of a commit of the target can be read. New commits share most of it."""
        try:
            Difference(self._objects).leave_out([self._objects.commit(oid)])
        except CorruptObject:
            return False
        return True

    def _send(self, batch: Sequence[Needed], copied: Copied) -> None:
        """Write the objects of a batch that the target lacks."""
        store = self.target.store
        keyed = [(OBJECT_PREFIX + item.oid.hex(), item) for item in batch]
        there = self._there([key for key, _ in keyed])
        # A forged link may say another length of a blob that is there already.
        read_bodies(self._places[0], [item for key, item in keyed if key in there and item.kind is BLOB])
        missing = [item for key, item in keyed if key not in there]
        if not missing:
            return
        bodies = read_bodies(self._source.objects, missing)
        ends, gone = copied.ends.rows_with(item.oid for item in missing)
        objects = {item.oid: Object(item.kind, body) for item, body in zip(missing, bodies, strict=True)}
        rows, arrived = self._objects.stored(objects), arrival(store, objects)
        # An interrupted set_many may have written any part, for example a commit without its parent.
        if missing[0].kind is not COMMIT:
            store.set_many(rows)
        elif not store.transactional:
            for key, value in {**ends, **rows}.items():
                store.set(key, value)
        elif not store.transact({**rows, **ends, **arrived}, {SWEEP: self.sweep, **gone}):
            raise Overtaken(missing[0].oid)
        copied.arrived += arrived
        copied.objects += len(rows)
        copied.bytes += sum(map(len, rows.values()))

    def _there(self, keys: Sequence[str]) -> Set[str]:
        """The keys of these objects that the target has."""
        if self._salvage is None:
            return self.target.store.present(keys)
        rows = self._salvage.rows(keys)
        ids = {key: ObjectId.parse(key.removeprefix(OBJECT_PREFIX)) for key in keys}
        return {key for key in keys if self._salvage.kind_of_whole(ids[key], rows.get(key)) is not None}

    def _copy_segments(self, commits: Sequence[Commit]) -> None:
        """Copy the rows of the graph that end at these commits. `gc` drops them if the commits never land."""
        keys = [graph_key(commit.oid) for commit in commits if self._history.is_tip(commit.oid)]
        found = self._source.view.get_many(keys) if keys else {}
        if rows := {key: row for key, row in found.items() if is_segment(key, row)}:
            self.target.store.set_many(rows)

    # Commits

    def _new_commits(self, tip: ObjectId) -> Sequence[ObjectId]:
        """The commits that the target's refs do not lead to, oldest first."""
        known = self._known
        if self._near_is_source:
            # The target may have many branches that are unknown here. Mostly they are unrelated to the tip,
            # and their commits would have to be read one by one.
            at_hand = present(self._source.view, known)
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
        """The commits, from the store at hand if it has them; None for one that neither store has whole."""
        self._looked_at += len(ids)
        self._progress("finding commits", self._looked_at, None)
        found: dict[ObjectId, Commit] = {}
        for objects in self._places:
            missing = [oid for oid in ids if oid not in found]
            if len(missing) > 1:
                missing = present(objects.store, missing)
            elif missing and objects is self._source.objects:
                with suppress(CorruptObject):  # it reads ahead; the other store may have the commit
                    self._source.history.commits(missing)
            found |= {commit.oid: commit for commit in whole_commits(objects, missing) if commit is not None}
        return [found.get(oid) for oid in ids]


class Remnants:
    """Tells remnants from other commits of a store.

    A remnant is a commit that no ref and no reflog leads to, and that gc is removing piece by piece. It may
    lack objects: no history continues with it.
    """

    def __init__(self, store: KVStore, history: History) -> None:
        self._store = store
        self._history = history
        self._kept: IdSet | None = None

    def __contains__(self, oid: ObjectId) -> bool:
        """Whether a commit of the store is a remnant. The first call walks all histories of the store."""
        if self._kept is None:
            self._kept = self._find_kept()
        return oid not in self._kept

    def _find_kept(self) -> IdSet:
        salvage = Salvage(self._store)
        lines = Metadata(salvage, lambda damage: None).lines()
        logged = chain.from_iterable(line.commits for _, line in lines)
        kept = IdSet()
        loss = Loss(salvage.store, self._history.parents)
        for _ in loss.ancestors(*Refs(self._store).all().values(), *logged, seen=kept):
            pass
        return kept


def present(store: KVStore, ids: Sequence[ObjectId]) -> list[ObjectId]:
    """Those of the objects that the store has."""
    there = store.present([OBJECT_PREFIX + oid.hex() for oid in ids]) if ids else ()
    return [oid for oid in ids if OBJECT_PREFIX + oid.hex() in there]
