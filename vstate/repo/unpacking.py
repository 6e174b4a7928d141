"""Unpacking: the commits of a bundle, and all that they need, put into a store."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from vstate.errors import CorruptObject, InvalidInput, NotFound, UnsupportedFormat
from vstate.objects.ids import BLOB, ObjectId
from vstate.repo.bundle import Bundle, BundleRef, BundleReport, File, Outcome, Progress
from vstate.repo.history import History, shallow_row
from vstate.repo.objects import PREFIX, Objects
from vstate.repo.reach import Reach
from vstate.repo.refs import HEADS, TAGS, Sweep, check_ref_name
from vstate.repo.repository import FORMAT

if TYPE_CHECKING:
    from vstate.repo.repository import Repository


def load(repo: Repository, file: File, *, prefix: str = "", progress: Progress | None = None) -> BundleReport:
    """As `Repository.import_bundle` promises."""
    began = time.monotonic()
    progress = progress or (lambda what, count, total: None)
    with _input(file) as (source, name):
        bundle = Bundle(source, name, progress)
        work = _Import(repo, bundle, name, prefix, progress)
        work.run()
    return BundleReport(
        refs=work.refs,
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
        with open(name, "rb") as source:
            yield source, name
    elif file.seekable():
        yield file, "the file"
    else:
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(file, copy)
            yield copy, "the input"


class _Import:
    """One import. Objects first, then, once nothing is missing, the refs."""

    def __init__(self, repo: Repository, bundle: Bundle, name: str, prefix: str, progress: Progress) -> None:
        self._repo = repo
        self._bundle = bundle
        self._header = bundle.header
        self._name = name
        self._prefix = prefix
        self._progress = progress
        self._action = f"import: {os.path.basename(name)}"
        self.written = 0
        self.refs: list[BundleRef] = []

    def run(self) -> None:
        """Import everything."""
        if self._header.format > FORMAT:
            raise UnsupportedFormat(str(self._header.format), FORMAT)
        wanted = {self._renamed(name): oid for name, oid in self._header.refs.items()}
        self._check_prerequisites()
        while True:
            # Until refs lead to what is written, gc may take it away; but not without leaving a mark.
            sweep = self._repo.refs.sweep()
            self._write_objects()
            # Not the repository's own, which remember commits that gc may just have removed.
            objects = Objects(self._repo.store.uncached())
            history = History(objects)
            rows = self._shallow_rows(objects, history)
            self._check_connected(objects, history, wanted)
            self._repo.require_format(max(1, self._header.format))
            self.refs = []
            if all(self._move(history, name, oid, rows, sweep) for name, oid in sorted(wanted.items())):
                break
        self._repo.history.reload()

    def _renamed(self, name: str) -> str:
        kind, slash, rest = name.partition("/")
        if kind + slash not in (HEADS, TAGS):
            self._bundle.refuse(f"{name!r} is no name of a branch or a tag")
        return (
            kind + slash + check_ref_name(self._prefix + rest, "branch" if kind + slash == HEADS else "tag")
        )

    def _check_prerequisites(self) -> None:
        objects = Objects(self._repo.store.uncached())
        missing = [oid for oid in self._header.prerequisites if objects.find_commit(oid) is None]
        if missing:
            names = ", ".join(map(str, missing[:5])) + (
                f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            )
            raise NotFound(
                f"{self._name} continues from commit {names}, which is not here: import the bundle that holds it "
                "first, or export again with --since a commit that is here, or without --since",
                name=str(missing[0]),
            )

    def _write_objects(self) -> None:
        for frame in self._bundle.frames():
            keys = {PREFIX + item.oid.hex(): item.oid for item in frame.items}
            there = self._repo.store.present(keys)
            missing = {oid for key, oid in keys.items() if key not in there}
            if missing:
                objects = {oid: new for oid, new in frame.objects().items() if oid in missing}
                self._repo.store.set_many(self._repo.objects.stored(objects))
                self.written += len(objects)
            self._progress("importing", frame.end, self._bundle.bytes)

    def _shallow_rows(self, objects: Objects, history: History) -> dict[str, bytes]:
        """What to note of where the bundle's history ends, where ours does not go further."""
        cuts: dict[ObjectId, Sequence[ObjectId]] = {}
        for oid, left in self._header.shallow.items():
            commit = objects.find_commit(oid)
            if commit is None or not set(left) <= set(commit.parents):
                self._bundle.refuse("it says of a commit that it does not hold where its history ends")
            before = history.parents(commit)
            keys = [PREFIX + parent.hex() for parent in before]
            if len(self._repo.store.present(keys)) < len(keys):
                cuts[oid] = left
        history.cut_off({oid: tuple(left) for oid, left in cuts.items()})
        return dict(shallow_row(oid, left) for oid, left in cuts.items())

    def _check_connected(self, objects: Objects, history: History, wanted: Mapping[str, ObjectId]) -> None:
        """Make sure that all is here that the refs are going to lead to."""
        try:
            reach = Reach(objects, history)
            reach.leave_out(self._repo.refs.all().values())
        except CorruptObject:
            reach = Reach(objects, history)  # what we have is damaged, so nothing of it is relied on
        try:
            for kind, ids in reach.extend(wanted.values()):
                if kind is BLOB:
                    keys = {PREFIX + oid.hex(): oid for oid in ids}
                    for key in keys.keys() - self._repo.store.present(keys):
                        raise CorruptObject(str(keys[key]), "it is missing")
        except CorruptObject as error:
            raise InvalidInput(
                f"{self._name} is not imported: it needs {error.id}, which neither it nor the store holds whole "
                f"({error.reason}); export it again without --since, or see `vstate fsck`"
            ) from error

    def _move(
        self, history: History, name: str, oid: ObjectId, rows: Mapping[str, bytes], sweep: Sweep
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
            self.refs.append(BundleRef(name, str(oid), outcome, None if old is None else str(old)))
            return True

    def _outcome(self, history: History, name: str, old: ObjectId | None, new: ObjectId) -> Outcome:
        if old is None:
            return "created"
        if old == new:
            return "unchanged"
        if name.startswith(TAGS):
            return "diverged"
        if history.is_ancestor(old, new):
            return "moved"
        return "ahead" if history.is_ancestor(new, old) else "diverged"
