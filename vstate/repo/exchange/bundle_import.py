"""Import of a bundle: its commits, and the objects that they need, go into a store.

It is a sync whose source is the bundle. So what holds for a push beside gc, and for one that was interrupted,
holds for an import.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import BinaryIO

from vstate.errors import CorruptObject, InvalidInput, NotFound
from vstate.kv.base import batches
from vstate.objects.ids import ObjectId
from vstate.repo.core import Core
from vstate.repo.exchange.bundle import Bundle, BundleRef, BundleReport, File, Outcome
from vstate.repo.exchange.difference import TransferProgress, whole_commits
from vstate.repo.exchange.sync import Sync, SyncRef, Wanted
from vstate.repo.names.refs import HEADS, TAGS, check_ref_name
from vstate.repo.objects import Objects
from vstate.repo.walk import BATCH


def load(
    repo: Core, file: File, *, prefix: str = "", progress: TransferProgress | None = None
) -> BundleReport:
    """As `Repository.import_bundle` promises."""
    began = time.monotonic()
    progress = progress or (lambda step, count, total: None)
    with _input(file) as (opened, name):
        bundle = Bundle(opened, name, repo.view.uncached(), progress)
        header = bundle.header
        wanted = {_renamed(bundle, ref, prefix): oid for ref, oid in sorted(header.refs.items())}
        _require(repo, header.prerequisites, name)
        source = Core(bundle, all_rooms=False)
        work = Sync(
            source,
            repo,
            near=source,
            action=f"import: {os.path.basename(name)}",
            progress=progress,
            since=header.prerequisites,
        )
        try:
            work.run(lambda: [Wanted(ref, oid, "leave") for ref, oid in wanted.items()])
        except CorruptObject as error:
            _require(repo, header.prerequisites, name)  # gc may have removed one meanwhile
            raise InvalidInput(
                f"{name} is not imported: its commits need an object that is whole neither there nor in the "
                f"store: object {error.id}: {error.reason}; export it again without --since, or see "
                "`vstate fsck`"
            ) from error
        refs = [_told(source, ref, wanted[ref.name]) for ref in work.done.values()]
    return BundleReport(
        refs=refs,
        objects=header.objects,
        written=sum(ref.objects for ref in work.done.values()),
        bytes=header.size,
        file_bytes=bundle.bytes,
        prerequisites=[str(oid) for oid in header.prerequisites],
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


def _renamed(bundle: Bundle, ref: str, prefix: str) -> str:
    """The name here of a ref of the bundle."""
    for kind, noun in ((HEADS, "branch"), (TAGS, "tag")):
        if ref.startswith(kind):
            return kind + check_ref_name(prefix + ref.removeprefix(kind), noun)
    bundle.refuse(f"{ref!r} is no name of a branch or a tag")


def _require(repo: Core, prerequisites: Sequence[ObjectId], name: str) -> None:
    """Raise NotFound unless the store has these commits."""
    objects = Objects(repo.view.uncached())
    missing = [
        oid
        for some in batches(prerequisites, BATCH)
        for oid, commit in zip(some, whole_commits(objects, some), strict=True)
        if commit is None
    ]
    if missing:
        names = ", ".join(map(str, missing[:5]))
        if len(missing) > 5:
            names += f" and {len(missing) - 5} more"
        raise NotFound(
            f"{name} continues from commit {names}, which is not here, or not whole; import the bundle that "
            "holds it first, or export again with --since a commit that is here, or without --since",
            name=str(missing[0]),
        )


def _told(source: Core, ref: SyncRef, oid: ObjectId) -> BundleRef:
    """The outcome for a ref of the bundle, which names this commit."""
    outcome: Outcome = "diverged"
    if ref.status in ("created", "moved", "unchanged"):
        outcome = ref.status
    elif ref.name.startswith(HEADS):
        with suppress(CorruptObject):
            if source.history.is_ancestor(oid, ObjectId.parse(str(ref.old))):
                outcome = "ahead"
    return BundleRef(ref.name, str(oid), outcome, ref.old)
