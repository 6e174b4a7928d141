"""Unpacking: the commits of a bundle, and all that they need, put into a store."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import BinaryIO

from vstate.errors import CorruptObject, InvalidInput, NotFound, UnsupportedFormat
from vstate.kv.base import OBJECT_PREFIX
from vstate.objects.ids import BLOB, ObjectId
from vstate.repo.core import FORMAT, Core
from vstate.repo.exchange.bundle import Bundle, BundleRef, BundleReport, File, Outcome, Progress
from vstate.repo.history import SHALLOW, History, shallow_row
from vstate.repo.names.refs import HEADS, REF, SWEEP, TAGS, Sweep, check_ref_name
from vstate.repo.objects import Objects
from vstate.repo.upkeep.damage import Damage, link_key
from vstate.repo.upkeep.reach import IdSet
from vstate.repo.upkeep.salvage import Salvage
from vstate.repo.upkeep.verifier import READERS, Verifier


def load(repo: Core, file: File, *, prefix: str = "", progress: Progress | None = None) -> BundleReport:
    """As `Repository.import_bundle` promises."""
    began = time.monotonic()
    progress = progress or (lambda what, count, total: None)
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
    """A file that can be read anywhere, and what to call it."""
    if isinstance(file, str | os.PathLike):
        name = os.fspath(file)
        if not os.path.exists(name):
            raise NotFound(f"no file {name}", name=name)
        with open(name, "rb") as source, _seekable(source) as read:
            yield read, name
    else:
        with _seekable(file) as read:
            yield read, "the file" if read is file else "the input"


@contextmanager
def _seekable(file: BinaryIO) -> Iterator[BinaryIO]:
    """The file itself, or a copy of a pipe, which may have a name, too: a shell's `<(command)`."""
    if file.seekable():
        yield file
    else:
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(file, copy)
            yield copy


class _Import:
    """One import. Objects first, then, once all is there and whole, the refs."""

    def __init__(self, repo: Core, bundle: Bundle, name: str, prefix: str, progress: Progress) -> None:
        self._repo = repo
        self._bundle = bundle
        self._header = bundle.header
        self._name = name
        self._prefix = prefix
        self._progress = progress
        self._action = f"import: {os.path.basename(name)}"
        self._ends = {key.removeprefix(SHALLOW) for key in repo.store.keys(SHALLOW)}
        self._brought: set[ObjectId] = set()  # commits of the bundle where a history of ours ends
        self._salvage = Salvage(repo.store)
        self._written = IdSet()  # links to the blobs that need not be read again
        self._wary = False  # whether what is there already is read before it is relied on
        self.written = 0
        self.refs: dict[str, BundleRef] = {}

    def run(self) -> None:
        """Import everything."""
        if self._header.format > FORMAT:
            raise UnsupportedFormat(str(self._header.format), FORMAT)
        wanted = {self._renamed(name): oid for name, oid in self._header.refs.items()}
        self._check_prerequisites()
        while not self._try(wanted, self._repo.refs.sweep()):
            pass  # gc has taken away some of what no ref led to yet, or some of what was there is damaged
        self._repo.history.reload()

    def _try(self, wanted: Mapping[str, ObjectId], sweep: Sweep) -> bool:
        """Write what is missing and move the refs; False if that has to be done once more."""
        if not self._write_objects(sweep):
            return False
        # Not the repository's own, which remember commits that gc may just have removed.
        objects = Objects(self._repo.store.uncached())
        history = History(objects)
        try:
            ends = self._ends_of_histories(objects, history)
            self._check_connected(history, wanted, ends)
        except (InvalidInput, CorruptObject):
            if self._repo.refs.sweep() != sweep:
                return False
            if not self._wary:
                self._wary = True
                return False
            raise
        rows: dict[str, bytes | None] = {}
        for oid, left in ends.items():
            key, row = shallow_row(oid, left)
            rows[key] = None if left == objects.commit(oid).parents else row
        self._repo.require_format(max(1, self._header.format))
        if not all(self._move(history, name, oid, rows, sweep) for name, oid in sorted(wanted.items())):
            return False
        if rows and not any(ref.outcome in ("created", "moved") for ref in self.refs.values()):
            return self._repo.store.transact(rows, {SWEEP: sweep.mark})  # no ref took them along
        return True

    def _renamed(self, name: str) -> str:
        kind, slash, rest = name.partition("/")
        if kind + slash not in (HEADS, TAGS):
            self._bundle.refuse(f"{name!r} is no name of a branch or a tag")
        what = "branch" if kind + slash == HEADS else "tag"
        return kind + slash + check_ref_name(self._prefix + rest, what)

    def _check_prerequisites(self) -> None:
        objects = Objects(self._repo.store.uncached())
        missing = [oid for oid in self._header.prerequisites if objects.find_commit(oid) is None]
        if missing:
            names = ", ".join(map(str, missing[:5]))
            if len(missing) > 5:
                names += f" and {len(missing) - 5} more"
            raise NotFound(
                f"{self._name} continues from commit {names}, which is not here: import the bundle that holds "
                "it first, or export again with --since a commit that is here, or without --since",
                name=str(missing[0]),
            )

    def _write_objects(self, sweep: Sweep) -> bool:
        """Write what is missing; False if gc has swept since.

        Not a frame more is written then: others take a commit that is there for a sign that all it holds is.
        """
        for frame in self._bundle.frames():
            keys = {OBJECT_PREFIX + item.oid.hex(): item.oid for item in frame.items}
            if self._ends:
                self._brought.update(oid for oid in keys.values() if str(oid) in self._ends)
            there = self._whole(keys) if self._wary else self._repo.store.present(keys)
            missing = {oid for key, oid in keys.items() if key not in there}
            if missing:
                objects = {oid: new for oid, new in frame.objects().items() if oid in missing}
                if not self._repo.store.transact(self._repo.objects.stored(objects), {SWEEP: sweep.mark}):
                    return False
                self.written += len(objects)
                for oid, (kind, body) in objects.items():
                    if kind is BLOB:
                        self._written.add(link_key(oid, len(body)))
            self._progress("importing", frame.end, self._bundle.bytes)
        return True

    def _whole(self, keys: Mapping[str, ObjectId]) -> Set[str]:
        rows = self._salvage.rows(list(keys))
        return {
            key for key, oid in keys.items() if self._salvage.kind_of_whole(oid, rows.get(key)) is not None
        }

    def _ends_of_histories(self, objects: Objects, history: History) -> dict[ObjectId, tuple[ObjectId, ...]]:
        """The commits whose parents change in this store, with those that they have then.

        Where the bundle's history ends and ours goes no further, ours ends too. Where ours ends and the
        bundle brings the rest, it goes on.
        """
        ends: dict[ObjectId, tuple[ObjectId, ...]] = {}
        for oid, left in self._header.shallow.items():
            commit = objects.find_commit(oid)
            if commit is None or not set(left) <= set(commit.parents):
                self._bundle.refuse("it says of a commit that it does not hold where its history ends")
            if not self._are_here(history.parents(commit)):
                ends[oid] = tuple(left)
        for oid in self._brought:
            commit = objects.commit(oid)
            if oid not in ends and history.is_shallow(commit) and self._are_here(commit.parents):
                ends[oid] = commit.parents
        return ends

    def _are_here(self, ids: Sequence[ObjectId]) -> bool:
        keys = [OBJECT_PREFIX + oid.hex() for oid in ids]
        return len(self._repo.store.present(keys)) == len(set(keys))

    def _check_connected(
        self,
        history: History,
        wanted: Mapping[str, ObjectId],
        ends: Mapping[ObjectId, tuple[ObjectId, ...]],
    ) -> None:
        """Make sure that all is here, and is what it should be, that the refs, and histories that go on, are
        going to lead to.
        """
        with ThreadPoolExecutor(READERS) as readers:
            verifier = self._trusting_ours(history, readers)
            history.cut_off(ends)
            continued = [(oid.hex(), parent) for oid, left in ends.items() for parent in left]
            verifier.extend([*((REF + name, oid) for name, oid in wanted.items()), *continued])

    def _trusting_ours(self, history: History, readers: Executor) -> Verifier:
        """A verifier that goes no further than to what our refs lead to."""
        ours = {oid: REF + name for name, oid in self._repo.refs.all().items()}

        def trusting(*commits: ObjectId) -> Verifier:
            verifier = self._verifier(history, readers)
            verifier.trust([(ours[oid], oid) for oid in commits])
            return verifier

        def is_whole(oid: ObjectId) -> bool:
            try:
                trusting(oid)
            except InvalidInput:
                return False
            return True

        try:
            return trusting(*ours)
        except InvalidInput:
            # Some of what is here is damaged. Only what is not is relied on.
            return trusting(*filter(is_whole, ours))

    def _verifier(self, history: History, readers: Executor) -> Verifier:
        """One that raises InvalidInput for the first thing that keeps values from being read."""

        def found(damage: Damage) -> None:
            if not damage.readable:
                raise InvalidInput(
                    f"{self._name} is not imported: its commits need what neither it nor the store holds whole: "
                    f"{damage}; export it again without --since, or see `vstate fsck`"
                )

        return Verifier(
            self._salvage,
            history.parents,
            found,
            whole_blobs=True,
            readers=readers,
            progress=lambda count: None,
            known=self._written,
        )

    def _move(
        self, history: History, name: str, oid: ObjectId, rows: Mapping[str, bytes | None], sweep: Sweep
    ) -> bool:
        """Put a ref where the bundle has it, if that loses nothing; False if gc has swept meanwhile."""
        refs = self._repo.refs
        while True:
            old = refs.read(name)
            outcome = self._outcome(history, name, old, oid)
            moving = outcome in ("created", "moved")
            if moving and not refs.publish(
                name, rows, expected=old, new=oid, action=self._action, sweep=sweep
            ):
                if refs.sweep() != sweep:
                    return False
                continue
            if outcome != "unchanged" or name not in self.refs:  # it may have been moved at the last try
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
        except CorruptObject:  # of what we have
            return "diverged"
