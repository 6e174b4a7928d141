"""Import of a bundle: its commits, and the objects that they need, go into a store."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial
from typing import BinaryIO

from vstate.errors import CorruptObject, InvalidInput, NotFound, UnsupportedFormat
from vstate.kv.base import OBJECT_PREFIX
from vstate.objects.ids import BLOB, COMMIT, ObjectId
from vstate.repo.core import FORMAT, Core
from vstate.repo.exchange.bundle import FRAME_BYTES, Bundle, BundleRef, BundleReport, File, Outcome
from vstate.repo.exchange.difference import (
    Difference,
    Needed,
    TransferProgress,
    new_commits,
    read_bodies,
    whole_commits,
)
from vstate.repo.exchange.transfer import Remnants
from vstate.repo.history import SHALLOW, History, shallow_row
from vstate.repo.idset import IdSet
from vstate.repo.names.refs import HEADS, SWEEP, TAGS, check_ref_name
from vstate.repo.objects import Objects
from vstate.repo.sweeps import arrival
from vstate.repo.upkeep.salvage import Salvage
from vstate.repo.walk import batches


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

    If a try fails and gc has swept meanwhile, the import tries again. Otherwise the next try relies on less
    of the store. The first try relies on every object that is present. The second reads each of them. The
    third continues no history with commits that no ref and no reflog leads to: they may lack objects.
    """

    def __init__(
        self, repo: Core, bundle: Bundle, name: str, prefix: str, progress: TransferProgress
    ) -> None:
        self._repo = repo
        self._bundle = bundle
        self._header = bundle.header
        self._name = name
        self._prefix = prefix
        self._progress = progress
        self._action = f"import: {os.path.basename(name)}"
        self._bundled = IdSet()  # the commits of the bundle, if a history ends there or here
        self._salvage = Salvage(repo.store)
        self._written = IdSet()  # links to the blobs of this import, which need no second reading
        self._reads_present = self._distrusts_garbage = False
        self._arrived: list[str] = []
        self.written = 0
        self.refs: dict[str, BundleRef] = {}

    def run(self) -> None:
        """Import everything."""
        if self._header.format != FORMAT:
            is_older = self._header.format < FORMAT
            raise UnsupportedFormat(str(self._header.format), FORMAT, is_older=is_older)
        wanted = {self._renamed(name): oid for name, oid in self._header.refs.items()}
        while not self._try(wanted, self._repo.refs.sweep()):
            pass
        if not any(ref.outcome == "diverged" for ref in self.refs.values()):  # refs lead to the commits now
            self._repo.store.delete_many(self._arrived)
        self._repo.history.reload()

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
                if self._distrusts_garbage:
                    raise
                self._reads_present, self._distrusts_garbage = True, self._reads_present
            return False
        rows: dict[str, bytes | None] = {}
        for oid, left in ends.items():
            key, row = shallow_row(oid, left)
            rows[key] = None if left == objects.commit(oid).parent_ids else row
        self._repo.stamp()
        if not all(self._move(history, name, oid, rows, sweep) for name, oid in sorted(wanted.items())):
            return False
        if rows and not any(ref.outcome in ("created", "moved") for ref in self.refs.values()):
            return self._repo.store.transact(rows, {SWEEP: sweep})  # no ref took them along
        return True

    def _renamed(self, name: str) -> str:
        kind, slash, rest = name.partition("/")
        if kind + slash not in (HEADS, TAGS):
            self._bundle.refuse(f"{name!r} is no name of a branch or a tag")
        noun = "branch" if kind + slash == HEADS else "tag"
        return kind + slash + check_ref_name(self._prefix + rest, noun)

    def _check_prerequisites(self) -> None:
        objects = Objects(self._repo.store.uncached())
        missing = [oid for oid in self._header.prerequisites if objects.find_commit(oid) is None]
        if missing:
            names = ", ".join(map(str, missing[:5]))
            if len(missing) > 5:
                names += f" and {len(missing) - 5} more"
            raise NotFound(
                f"{self._name} continues from commit {names}, which is not here; import the bundle that "
                "holds it first, or export again with --since a commit that is here, or without --since",
                name=str(missing[0]),
            )

    def _write_objects(self, sweep: bytes | None) -> bool:
        """Write the missing objects; False, with no further frame written, if gc has swept since.

        Others take a commit that is there for a sign that all its objects are there.
        """
        has_ends = bool(self._header.shallow) or any(self._repo.store.keys(SHALLOW))
        for frame in self._bundle.frames():
            keys = {OBJECT_PREFIX + item.oid.hex(): item.oid for item in frame.items}
            for item in frame.items if has_ends else ():
                if item.kind is COMMIT:
                    self._bundled.add(item.oid)
            there = self._whole(keys) if self._reads_present else self._repo.store.present(keys)
            missing = {oid for key, oid in keys.items() if key not in there}
            if missing:
                objects = {oid: new for oid, new in frame.objects().items() if oid in missing}
                arrived = arrival(self._repo.store, objects)
                rows = self._repo.objects.stored(objects) | arrived
                if not self._repo.store.transact(rows, {SWEEP: sweep}):
                    return False
                self._arrived += arrived
                self.written += len(objects)
                for oid, (kind, body) in objects.items():
                    if kind is BLOB:
                        self._written.add(_link(Needed(kind, oid, len(body))))
            self._progress("importing", frame.end, self._bundle.bytes)
        return True

    def _whole(self, keys: Mapping[str, ObjectId]) -> Set[str]:
        rows = self._salvage.rows(list(keys))
        return {
            key for key, oid in keys.items() if self._salvage.kind_of_whole(oid, rows.get(key)) is not None
        }

    # Ends of histories

    def _ends_of_histories(self, objects: Objects, history: History) -> dict[ObjectId, tuple[ObjectId, ...]]:
        """The commits whose parents change in this store, each with its parents from now on.

        Where the bundle's history ends and ours goes no further, ours ends too. Where ours ends and the
        bundle brings the rest, ours goes on.
        """
        remnants = Remnants(self._repo.store, history)
        ends: dict[ObjectId, tuple[ObjectId, ...]] = {}
        for oid, left in self._header.shallow.items():
            commit = objects.find_commit(oid)
            if commit is None or not set(left) <= set(commit.parent_ids):
                self._bundle.refuse("it ends a history at a commit that is missing or has other parents")
            if not self._are_here(history.parents(commit), remnants):
                ends[oid] = tuple(left)
        for oid in history.shallow():
            if oid in self._bundled and oid not in ends:
                commit = objects.commit(oid)
                if history.is_shallow(commit) and self._are_here(commit.parent_ids, remnants):
                    ends[oid] = commit.parent_ids
        return ends

    def _are_here(self, ids: Sequence[ObjectId], remnants: Remnants) -> bool:
        if self._distrusts_garbage and any(oid in remnants for oid in ids if oid not in self._bundled):
            return False
        keys = [OBJECT_PREFIX + oid.hex() for oid in ids]
        return len(self._repo.store.present(keys)) == len(set(keys))

    # Checking

    def _check_connected(
        self,
        objects: Objects,
        history: History,
        wanted: Mapping[str, ObjectId],
        ends: Mapping[ObjectId, tuple[ObjectId, ...]],
    ) -> None:
        """Check that every object that the refs and continued histories will reach is present and intact."""
        known, difference = self._known(objects)
        history.cut_off(ends)
        tips = [*wanted.values(), *(parent for left in ends.values() for parent in left)]
        read = partial(whole_commits, objects)
        try:
            ids = new_commits(tips, known, ours=history, theirs=History(objects), read=read)
            for _, needed in difference.groups(ids or (), history, read):
                blobs = (item for item in needed if item.kind is BLOB and _link(item) not in self._written)
                for batch in batches(blobs, FRAME_BYTES):
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
        sweep: bytes | None,
    ) -> bool:
        """Move a ref ahead to the bundle's commit, if ours allows; False if gc has swept meanwhile."""
        refs = self._repo.refs
        while True:
            old = refs.read(name)
            outcome = self._outcome(history, name, old, oid)
            moving = outcome in ("created", "moved")
            if moving and not refs.publish(
                name, rows, expected=old, new=oid, action=self._action, expecting={SWEEP: sweep}
            ):
                if refs.sweep() != sweep:
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
        try:
            if history.is_ancestor(old, new):
                return "moved"
            return "ahead" if history.is_ancestor(new, old) else "diverged"
        except CorruptObject:  # in the history of our ref
            return "diverged"


def _link(blob: Needed) -> bytes:
    """A link to a blob, for an IdSet."""
    return blob.oid + blob.length.to_bytes(8, "big")
