"""Export: writes commits and all their objects to a bundle."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO

from vstate.errors import CorruptObject, InvalidInput
from vstate.kv.base import batches_by_bytes
from vstate.kv.files import replacing
from vstate.objects.commit import Commit
from vstate.objects.ids import BLOB, COMMIT, ID_BYTES, INDEX, TREE, Kind, ObjectId
from vstate.repo.core import Core, Revision
from vstate.repo.exchange.bundle import (
    FRAME_BYTES,
    FRAME_OBJECTS,
    KIND_OF_CODE,
    BundleRef,
    BundleReport,
    File,
    Header,
    Writer,
)
from vstate.repo.exchange.difference import Difference, Needed, TransferProgress, new_commits, read_bodies
from vstate.repo.names.refs import HEAD, HEADS, TAGS, check_ref_name
from vstate.repo.objects import longest
from vstate.repo.sweeps import retry_after_sweep

_RECORD = 1 + ID_BYTES + 4  # of a plan: kind, id, length


def export(
    repo: Core,
    file: File,
    revs: Sequence[Revision],
    *,
    since: Sequence[Revision] = (),
    as_branch: str | None = None,
    progress: TransferProgress | None = None,
) -> BundleReport:
    """As `Repository.export` promises."""
    began = time.monotonic()
    progress = progress or (lambda step, count, total: None)
    repo.history.reload()  # another process may have cut histories off
    header, size = retry_after_sweep(repo, lambda: _write(repo, file, revs, since, as_branch, progress))
    return BundleReport(
        refs=[BundleRef(name, str(oid), "exported") for name, oid in sorted(header.refs.items())],
        objects=header.objects,
        written=header.objects,
        bytes=header.size,
        file_bytes=size,
        prerequisites=[str(oid) for oid in header.prerequisites],
        seconds=time.monotonic() - began,
    )


def _write(
    repo: Core,
    file: File,
    revs: Sequence[Revision],
    since: Sequence[Revision],
    as_branch: str | None,
    progress: TransferProgress,
) -> tuple[Header, int]:
    """Write the bundle of what refs lead to now; its header and the number of its bytes."""
    refs = _refs_to_export(repo, revs, as_branch)
    known = [repo.resolve(rev).oid for rev in since]
    plan = _Plan(repo, progress)
    plan.collect(refs.values(), known)
    header = Header(refs, sorted(set(known)), plan.shallow, plan.counts, plan.bytes)
    with _output(file) as output:
        writer = Writer(output, header)
        done = 0
        for items in plan.frames():
            writer.frame(items, read_bodies(repo.objects, items))
            done += len(items)
            progress("writing", done, header.objects)
        writer.finish()
    return header, writer.bytes


def _refs_to_export(repo: Core, revs: Sequence[Revision], as_branch: str | None) -> dict[str, ObjectId]:
    if isinstance(revs, str | Commit | ObjectId):
        revs = [revs]
    if not revs:
        raise InvalidInput("name a branch or a tag to export, or any revision together with as_branch")
    if as_branch is not None:
        if len(revs) > 1:
            raise InvalidInput("as_branch names one revision; export several by their own names")
        return {HEADS + check_ref_name(as_branch): repo.resolve(revs[0]).oid}
    refs = {}
    for rev in revs:
        commit = repo.resolve(rev)
        refs[_ref_of(repo, rev)] = commit.oid
    return refs


def _ref_of(repo: Core, rev: Revision) -> str:
    """The branch or tag that a revision names, in full."""
    if rev == HEAD and (branch := repo.refs.head().branch) is not None:
        return HEADS + branch
    if isinstance(rev, str):
        for ref in (rev, HEADS + rev, TAGS + rev):
            if ref.startswith((HEADS, TAGS)) and repo.refs.read(ref) is not None:
                return ref
    shown = rev if isinstance(rev, str) else str(rev.oid if isinstance(rev, Commit) else rev)
    raise InvalidInput(
        f"{shown!r} is no branch and no tag, so no ref would lead to it after an import; name its "
        "branch there with as_branch (vstate export --as NAME), or make a branch or a tag here"
    )


class _Plan:
    """The objects of a bundle in the order of writing. A plan takes 37 bytes an object.

    The header needs the totals, and it comes first: so the objects are found before the first one is written.
    """

    def __init__(self, repo: Core, progress: TransferProgress) -> None:
        self._repo = repo
        self._progress = progress
        self._records = bytearray()
        self.counts: dict[Kind, int] = dict.fromkeys((BLOB, INDEX, TREE, COMMIT), 0)
        self.bytes = 0
        self.shallow: dict[ObjectId, tuple[ObjectId, ...]] = {}

    def collect(self, tips: Iterable[ObjectId], known: Sequence[ObjectId]) -> None:
        """Find the objects that these commits need and known commits do not hold.

        Commits come from the oldest to the newest, each after the objects that no earlier one holds.
        """
        objects, history = self._repo.objects, self._repo.history
        difference = Difference(objects)
        difference.leave_out(map(objects.commit, known))
        ids = new_commits(tips, known, ours=history, theirs=history, read=objects.commits)
        for commit in map(objects.commit, ids or ()):
            for found in difference.needs([commit]):
                self._add(found)
            if history.is_shallow(commit):
                self.shallow[commit.oid] = history.parents(commit)
            self._progress("collecting", sum(self.counts.values()), None)

    def _add(self, found: Needed) -> None:
        if found.length > longest(found.kind):
            raise CorruptObject(
                str(found.oid), f"a {found.kind.name} of {found.length} bytes, which no object may have"
            )
        self._records += found.kind.code.encode() + found.oid + found.length.to_bytes(4, "big")
        self.counts[found.kind] += 1
        self.bytes += found.length

    def frames(self) -> Iterator[list[Needed]]:
        """The objects in order, divided into frames."""
        return batches_by_bytes(
            self._objects(), attrgetter("length"), most_bytes=FRAME_BYTES, most=FRAME_OBJECTS
        )

    def _objects(self) -> Iterator[Needed]:
        for begin in range(0, len(self._records), _RECORD):
            record = self._records[begin : begin + _RECORD]
            kind = KIND_OF_CODE[record[0]]
            yield Needed(kind, ObjectId(record[1:-4]), int.from_bytes(record[-4:], "big"))


@contextmanager
def _output(file: File) -> Iterator[BinaryIO]:
    """A file to write to. A path gets its new contents at once, durably, or keeps the old ones.

    A stream, a pipe or a device gets all bytes at the end.
    """
    if isinstance(file, str | os.PathLike):
        file = os.path.expanduser(file)
    path = Path(os.path.realpath(file)) if isinstance(file, str) else None
    if path is not None and (path.is_file() or not path.exists()):
        with replacing(path) as output:
            yield output
        return
    with tempfile.TemporaryFile() as spool:
        yield spool
        spool.seek(0)
        with open(file, "wb") if isinstance(file, str) else nullcontext(file) as output:
            shutil.copyfileobj(spool, output)
            output.flush()
