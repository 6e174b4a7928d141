"""Import of a bundle: its commits, and the objects that they need, go into a store."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import BinaryIO, NoReturn

from vstate.errors import CorruptObject, InvalidInput, NotFound
from vstate.kv.base import OBJECT_PREFIX, batches, batches_by_bytes
from vstate.objects.commit import Commit
from vstate.objects.ids import BLOB, COMMIT, NewObjects, ObjectId
from vstate.repo.core import Core
from vstate.repo.exchange.bundle import FRAME_BYTES, Bundle, BundleRef, BundleReport, File, Outcome
from vstate.repo.exchange.difference import (
    Difference,
    Needed,
    TransferProgress,
    new_commits,
    read_bodies,
    whole_commits,
)
from vstate.repo.exchange.transfer import Ends, Transfer
from vstate.repo.history import SHALLOW, History
from vstate.repo.idset import IdSet
from vstate.repo.names.refs import HEADS, SWEEP, TAGS, check_ref_name
from vstate.repo.objects import Objects
from vstate.repo.rooms import mark_of
from vstate.repo.sweeps import arrival
from vstate.repo.upkeep.salvage import Salvage
from vstate.repo.walk import BATCH


def load(
    repo: Core, file: File, *, prefix: str = "", progress: TransferProgress | None = None
) -> BundleReport:
    """As `Repository.import_bundle` promises."""
    began = time.monotonic()
    progress = progress or (lambda step, count, total: None)
    with _input(file) as (source, name):
        bundle = Bundle(source, name, progress)
        work = _Import(repo, bundle, name, prefix, progress)
        work.run()
    return BundleReport(
        refs=list(work.refs.values()),
        objects=bundle.header.objects,
        written=work.written,
        bytes=bundle.header.size,
        file_bytes=bundle.bytes,
        prerequisites=[str(oid) for oid in bundle.header.prerequisites],
        seconds=time.monotonic() - began,
    )


@contextmanager
def _input(file: File) -> Iterator[tuple[BinaryIO, str]]:
    """A file that can be read at any place, and its name for messages."""
    if isinstance(file, str | os.PathLike):
        name = os.path.expanduser(file)
        if not os.path.exists(name):
            raise NotFound(f"no file {name}", name=name)
        with open(name, "rb") as source, _seekable(source) as read:
            yield read, name
    else:
        with _seekable(file) as read:
            yield read, "the file" if read is file else "the input"


@contextmanager
def _seekable(file: BinaryIO) -> Iterator[BinaryIO]:
    """The file itself, or a copy of a pipe. A pipe may have a name: a shell's `<(command)`."""
    if file.seekable():
        yield file
    else:
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(file, copy)
            yield copy


class _Import:
    """One import: first the objects, then the refs, once all objects are there and whole.

    If gc sweeps meanwhile, the import begins anew. The first try relies on every object that is present. If
    it fails, a second one reads each of them.
    """

    def __init__(
        self, target: Core, bundle: Bundle, name: str, prefix: str, progress: TransferProgress
    ) -> None:
        self._target = target
        self._room = self._choose_room(bundle)
        self._repo = repo = target if target.rooms is None else target.room(self._room)
        self._bundle = bundle
        self._header = bundle.header
        self._name = name
        self._prefix = prefix
        self._progress = progress
        self._action = f"import: {os.path.basename(name)}"
        self._bundled = IdSet()  # the commits of the bundle, if a history ends there or here
        self._salvage = Salvage(repo.store)
        self._written = IdSet()  # links to the blobs of this import, which need no second reading
        self._newest: set[ObjectId] = set()  # the written commits that are no parents of others
        self._reads_present = False
        self._arrived: list[str] = []
        self.written = 0
        self.refs: dict[str, BundleRef] = {}

    def _choose_room(self, bundle: Bundle) -> int:
        """The room for the objects: that of the history that they continue, or of a ref of the bundle."""
        rooms = self._target.rooms
        if rooms is None:
            return 0
        found = (rooms.room_of_object(OBJECT_PREFIX + oid.hex()) for oid in bundle.header.prerequisites)
        refs = map(rooms.room_of, bundle.header.refs)
        return next((number for number in chain(found, refs) if number), 0)

    def run(self) -> None:
        """Import everything."""
        wanted = {self._renamed(name): oid for name, oid in self._header.refs.items()}
        while not self._try(wanted, mark_of(self._repo.store)):
            pass
        if not any(ref.outcome == "diverged" for ref in self.refs.values()):  # refs lead to the commits now
            self._repo.store.delete_many(self._arrived)
        self._target.history.reload()

    def _try(self, wanted: Mapping[str, ObjectId], sweep: bytes | None) -> bool:
        """Write the missing objects and move the refs; False if the import has to try again."""
        self._check_prerequisites()
        if not self._write_objects(sweep):
            return False
        # Not the repository's own, which remember commits that gc may just have removed.
        objects = Objects(self._repo.store.uncached())
        history = History(objects)
        try:
            ends = self._ends_of_histories(objects, history)
            self._check_connected(objects, history, wanted, ends)
        except (InvalidInput, CorruptObject):
            if self._repo.refs.sweep() == sweep:
                if self._reads_present:
                    raise
                self._reads_present = True
            return False
        self._repo.stamp()
        expecting = {SWEEP: sweep, **{OBJECT_PREFIX + oid.hex(): None for oid in ends.absent}}
        if not all(self._move(history, *ref, ends.rows, expecting) for ref in sorted(wanted.items())):
            return False
        if ends.rows and not any(ref.outcome in ("created", "moved") for ref in self.refs.values()):
            return self._repo.store.transact(ends.rows, expecting)  # no ref took them along
        return True

    def _renamed(self, name: str) -> str:
        kind, slash, rest = name.partition("/")
        if kind + slash not in (HEADS, TAGS):
            self._bundle.refuse(f"{name!r} is no name of a branch or a tag")
        noun = "branch" if kind + slash == HEADS else "tag"
        return kind + slash + check_ref_name(self._prefix + rest, noun)

    def _check_prerequisites(self) -> None:
        objects = Objects(self._repo.store.uncached())
        for oid in self._header.prerequisites if self._target.rooms else ():
            if not objects.is_stored(oid) and self._target.objects.is_stored(oid):  # in another room
                Transfer(self._target, self._repo, self._target, self._progress).copy(oid)
        missing = [
            oid
            for some in batches(self._header.prerequisites, BATCH)
            for oid, commit in zip(some, whole_commits(objects, some), strict=True)
            if commit is None
        ]
        if missing:
            names = ", ".join(map(str, missing[:5]))
            if len(missing) > 5:
                names += f" and {len(missing) - 5} more"
            raise NotFound(
                f"{self._name} continues from commit {names}, which is not here, or not whole; import the "
                "bundle that holds it first, or export again with --since a commit that is here, or without "
                "--since",
                name=str(missing[0]),
            )

    def _write_objects(self, sweep: bytes | None) -> bool:
        """Write the missing objects; False, with no further frame written, if gc has swept since.

        Others take a commit that is there for a sign that all its objects are there.
        """
        has_ends = bool(self._header.shallow) or any(self._repo.store.keys(SHALLOW))
        ends = Ends(self._repo.store, History(Objects(self._repo.store.uncached())), self._bundled)
        for frame in self._bundle.frames():
            keys = {OBJECT_PREFIX + item.oid.hex(): item.oid for item in frame.items}
            for item in frame.items if has_ends else ():
                if item.kind is COMMIT:
                    self._bundled.add(item.oid)
            there = self._whole(keys) if self._reads_present else self._repo.store.present(keys)
            missing = {oid for key, oid in keys.items() if key not in there}
            if missing:
                objects = {oid: new for oid, new in frame.objects().items() if oid in missing}
                self._note(objects)
                arrived = arrival(self._repo.store, objects)
                self._note_ends(ends, objects)
                rows, gone = ends.rows_with(objects)
                rows |= self._repo.objects.stored(objects) | arrived
                if not self._repo.store.transact(rows, {SWEEP: sweep, **gone}):
                    return False
                self._arrived += arrived
                self.written += len(objects)
            self._progress("importing", frame.end, self._bundle.bytes)
        return True

    def _note_ends(self, ends: Ends, objects: NewObjects) -> None:
        """Note the ends of histories among commits that are about to be written."""
        commits = {
            oid: Commit.decode(oid, bytes(body)) for oid, (kind, body) in objects.items() if kind is COMMIT
        }
        stored = Objects(self._repo.store.uncached())
        for oid in self._header.shallow.keys() & commits:
            left = self._header.shallow[oid]
            self._require_end(commits[oid], left, lambda oid: commits.get(oid) or stored.find_commit(oid))
            ends.note(commits[oid], left)

    def _whole(self, keys: Mapping[str, ObjectId]) -> Set[str]:
        rows = self._salvage.rows(list(keys))
        return {
            key for key, oid in keys.items() if self._salvage.kind_of_whole(oid, rows.get(key)) is not None
        }

    def _note(self, objects: NewObjects) -> None:
        """Note the blobs, which need no second reading, and the newest commits, which are checked last."""
        for oid, (kind, body) in objects.items():
            if kind is BLOB:
                self._written.add(Needed(kind, oid, len(body)).link)
            elif kind is COMMIT:
                try:
                    parents = Commit.decode(oid, bytes(body)).parent_ids
                except ValueError as error:
                    self._bundle.refuse(f"{oid} is no commit: {error}")
                self._newest.add(oid)
                if oid not in self._header.shallow:
                    self._newest.difference_update(parents)

    # Checking

    def _ends_of_histories(self, objects: Objects, history: History) -> Ends:
        """The ends of the histories whose commits are in the bundle.

        Where the bundle's history ends and ours goes no further, ours ends too. Where ours ends and the
        bundle brings the rest, ours goes on.
        """
        ends = Ends(self._repo.store, history, self._bundled)
        for oid, left in self._header.shallow.items():
            commit = objects.find_commit(oid) if oid in self._bundled else None
            if commit is None:
                self._refuse_end()
            self._require_end(commit, left, objects.find_commit)
            ends.note(commit, left)
        for oid in history.shallow():
            if oid in self._bundled and oid not in self._header.shallow:
                commit = objects.commit(oid)
                ends.note(commit, [parent for parent in commit.parent_ids if parent in self._bundled])
        return ends

    def _require_end(
        self, commit: Commit, left: Sequence[ObjectId], find: Callable[[ObjectId], Commit | None]
    ) -> None:
        """Refuse the bundle if it gives a commit a parent that is absent, or no older than it."""
        others = map(find, {*left} - {*commit.parent_ids})
        if any(other is None or other.order >= commit.order for other in others):
            self._refuse_end()

    def _refuse_end(self) -> NoReturn:
        self._bundle.refuse("it ends a history at a commit that is missing or has other parents")

    def _check_connected(
        self,
        objects: Objects,
        history: History,
        wanted: Mapping[str, ObjectId],
        ends: Ends,
    ) -> None:
        """Check that every object that the refs and continued histories will reach is present and intact.

        The same goes for written commits that no ref leads to: a commit that is there is a sign for others
        that all its objects are.
        """
        known, difference = self._known(objects)
        history.cut_off(ends.left)
        tips = [*wanted.values(), *self._newest, *chain.from_iterable(ends.left.values())]
        read = partial(whole_commits, objects)
        try:
            ids = new_commits(tips, known, ours=history, theirs=History(objects), read=read)
            for _, needed in difference.groups(ids or (), history, read):
                blobs = (item for item in needed if item.kind is BLOB and item.link not in self._written)
                for batch in batches_by_bytes(
                    blobs, attrgetter("length"), most_bytes=FRAME_BYTES, most=BATCH
                ):
                    read_bodies(objects, batch)
        except CorruptObject as error:
            raise InvalidInput(
                f"{self._name} is not imported: its commits need an object that is whole neither there "
                f"nor in the store: object {error.id}: {error.reason}; export it again without --since, or "
                "see `vstate fsck`"
            ) from error

    def _known(self, objects: Objects) -> tuple[Sequence[ObjectId], Difference]:
        """The commits of our refs whose trees can be read, and a difference from these."""
        ours = [*dict.fromkeys(self._repo.refs.all().values())]

        def beyond(commits: Sequence[ObjectId]) -> Difference:
            difference = Difference(objects)
            difference.leave_out(objects.commits(commits))
            return difference

        def is_whole(oid: ObjectId) -> bool:
            try:
                beyond([oid])
            except CorruptObject:
                return False
            return True

        try:
            return ours, beyond(ours)
        except CorruptObject:
            ours = [*filter(is_whole, ours)]  # some of our refs lead to damage
            return ours, beyond(ours)

    # Refs

    def _move(
        self,
        history: History,
        name: str,
        oid: ObjectId,
        rows: Mapping[str, bytes | None],
        expecting: Mapping[str, bytes | None],
    ) -> bool:
        """Move a ref ahead to the bundle's commit, if ours allows; False if an expected row has changed."""
        while True:
            old = self._target.refs.read(name)
            outcome = self._outcome(history, name, old, oid)
            moving = outcome in ("created", "moved")
            if moving and old is not None and not self._is_here(name):
                if not self._target.move(name, expected=old, to=oid, action=self._action):
                    continue
            elif moving and not self._repo.refs.publish(
                name, rows, expected=old, new=oid, action=self._action, expecting=expecting
            ):
                if self._repo.refs.sweep() != expecting[SWEEP] or self._target.refs.read(name) == old:
                    return False
                continue
            if outcome != "unchanged" or name not in self.refs:  # an earlier try may have moved the ref
                self.refs[name] = BundleRef(name, str(oid), outcome, None if old is None else str(old))
            return True

    def _outcome(self, history: History, name: str, old: ObjectId | None, new: ObjectId) -> Outcome:
        if old is None:
            return "created"
        if old == new:
            return "unchanged"
        if name.startswith(TAGS):
            return "diverged"
        ours = history
        if not self._is_here(name):
            ours = History(Objects(self._target.home(name).store.uncached()))
        with suppress(CorruptObject):  # in the history of our ref, or our commit is in another room
            if history.is_ancestor(old, new):
                return "moved"
        with suppress(CorruptObject):
            if ours.is_ancestor(new, old):
                return "ahead"
        return "diverged"

    def _is_here(self, name: str) -> bool:
        """Whether a ref lies in the room that the objects come into."""
        rooms = self._target.rooms
        return rooms is None or rooms.room_of(name) == self._room
