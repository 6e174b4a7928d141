"""Packing: what some commits need, written to a bundle."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from vstate.errors import CorruptObject, InvalidInput, NotFound
from vstate.objects.commit import Commit
from vstate.objects.ids import BLOB, COMMIT, ID_BYTES, INDEX, TREE, Kind, ObjectId
from vstate.objects.stream import is_single, read_index
from vstate.objects.tree import Node
from vstate.repo.bundle import (
    FRAME_BYTES,
    FRAME_OBJECTS,
    BundleRef,
    BundleReport,
    File,
    Header,
    Item,
    Progress,
    Writer,
)
from vstate.repo.commits import SIGNED_COMMITS
from vstate.repo.history import SHALLOW_FORMAT
from vstate.repo.objects import longest
from vstate.repo.reach import BATCH, IdSet
from vstate.repo.refs import HEAD, HEADS, TAGS, check_ref_name
from vstate.values.entry import Entry

if TYPE_CHECKING:
    from vstate.repo.repository import Repository, Revision

_T = TypeVar("_T")

_CODES = {kind.code: kind for kind in (BLOB, INDEX, TREE, COMMIT)}
_ATTEMPTS = 20
_RECORD = 1 + ID_BYTES + 4  # of a plan: kind, id, length


def export(
    repo: Repository,
    file: File,
    revs: Sequence[Revision],
    *,
    since: Sequence[Revision] = (),
    as_branch: str | None = None,
    progress: Progress | None = None,
) -> BundleReport:
    """As `Repository.export` promises."""
    began = time.monotonic()
    progress = progress or (lambda what, count, total: None)
    for _ in range(_ATTEMPTS):
        sweep = repo.refs.sweep()
        repo.history.reload()  # another process may have cut histories off
        try:
            refs = _refs_to_export(repo, revs, as_branch)
            known = [repo.resolve(rev).oid for rev in since]
            plan = _Plan(repo, progress)
            plan.collect(refs.values(), known)
            header = Header(
                format=plan.format,
                refs=refs,
                prerequisites=sorted(set(known)),
                shallow=plan.shallow,
                counts=plan.counts,
                size=plan.bytes,
            )
            with _output(file) as output:
                writer = Writer(output, header)
                done = 0
                for items in plan.frames():
                    writer.frame(items, _bodies(repo, items))
                    done += len(items)
                    progress("writing", done, header.objects)
                writer.finish()
        except CorruptObject:
            if repo.refs.sweep() == sweep:
                raise
            continue  # gc has taken away what it was about to export: what there is now, then
        return BundleReport(
            refs=[BundleRef(name, str(oid), "exported") for name, oid in sorted(refs.items())],
            objects=header.objects,
            written=header.objects,
            bytes=header.size,
            file_bytes=writer.bytes,
            prerequisites=[str(oid) for oid in header.prerequisites],
            seconds=time.monotonic() - began,
        )
    raise NotFound(
        "gc keeps removing some of what is to be exported: export again when it has ended", name=""
    )


def _refs_to_export(repo: Repository, revs: Sequence[Revision], as_branch: str | None) -> dict[str, ObjectId]:
    if isinstance(revs, str | Commit | ObjectId):
        revs = [revs]
    if not revs:
        raise InvalidInput("name what to export: a branch, a tag, or any revision together with as_branch")
    if as_branch is not None:
        if len(revs) > 1:
            raise InvalidInput("as_branch names one revision; export several by their own names")
        return {HEADS + check_ref_name(as_branch): repo.resolve(revs[0]).oid}
    refs = {}
    for rev in revs:
        commit = repo.resolve(rev)
        refs[_ref_of(repo, rev)] = commit.oid
    return refs


def _ref_of(repo: Repository, rev: Revision) -> str:
    """The branch or tag that a revision names, in full."""
    if rev == HEAD and (branch := repo.refs.head().branch) is not None:
        return HEADS + branch
    if isinstance(rev, str):
        for ref in (rev, HEADS + rev, TAGS + rev):
            if ref.startswith((HEADS, TAGS)) and repo.refs.read(ref) is not None:
                return ref
    shown = rev if isinstance(rev, str) else str(rev.oid if isinstance(rev, Commit) else rev)
    raise InvalidInput(
        f"{shown!r} is no branch and no tag, so nothing would lead to it where the bundle is imported: give "
        "it a name there with as_branch (vstate export --as NAME), or make a branch or a tag"
    )


class _Plan:
    """What goes into a bundle, in the order in which it is written: 37 bytes an object."""

    def __init__(self, repo: Repository, progress: Progress) -> None:
        self._repo = repo
        self._progress = progress
        self._reached = IdSet()
        self._records = bytearray()
        self.counts: dict[Kind, int] = dict.fromkeys((BLOB, INDEX, TREE, COMMIT), 0)
        self.bytes = 0
        self.format = 1
        self.shallow: dict[ObjectId, tuple[ObjectId, ...]] = {}

    def collect(self, tips: Iterable[ObjectId], known: Sequence[ObjectId]) -> None:
        """Find what these commits need and those that are known do not: what each holds that no earlier one
        does, from the oldest to the newest.
        """
        for commit in self._repo.history.ancestors(*known):
            self._reached.add(commit.oid)
        for oid in known:
            self._add_state(self._repo.objects.commit(oid))
        self._records.clear()
        self.counts = dict.fromkeys(self.counts, 0)
        self.bytes = 0
        # A commit is dated after its parents.
        for _, oid in sorted(self._new_commits(tips)):
            commit = self._repo.objects.commit(oid)
            self._add_state(commit)
            self._add(COMMIT, oid, len(commit.body))
            if self._repo.history.is_shallow(commit):
                self.shallow[oid] = self._repo.history.parents(commit)
                self.format = max(self.format, SHALLOW_FORMAT)
            if commit.signature is not None:
                self.format = max(self.format, SIGNED_COMMITS)
            self._progress("collecting", sum(self.counts.values()), None)

    def _new_commits(self, tips: Iterable[ObjectId]) -> Iterator[tuple[float, ObjectId]]:
        waiting = [oid for oid in tips if self._reached.add(oid)]
        while waiting:
            commit = self._repo.objects.commit(waiting.pop())
            yield commit.time.timestamp(), commit.oid
            waiting += [oid for oid in self._repo.history.parents(commit) if self._reached.add(oid)]

    def _add(self, kind: Kind, oid: bytes, length: int) -> None:
        if length > longest(kind):
            raise CorruptObject(oid.hex(), f"a {kind.name} that is said to have {length} bytes")
        self._records += kind.code.encode() + oid + length.to_bytes(4, "big")
        self.counts[kind] += 1
        self.bytes += length

    def _add_state(self, commit: Commit) -> None:
        """Add what is new of a commit's tree: blobs, then indexes and nodes, the lowest first."""
        if commit.tree is None or not self._reached.add(commit.tree):
            return
        nodes: dict[int, list[tuple[ObjectId, int]]] = {}
        streams: list[ObjectId] = []
        waiting = [commit.tree]
        while waiting:
            ids, waiting = waiting[-BATCH:], waiting[:-BATCH]
            for oid, body in self._repo.objects.read_each(TREE, ids):
                node = _decoded(Node.decode, oid, body)
                nodes.setdefault(node.height, []).append((oid, len(body)))
                waiting += filter(self._reached.add, node.children())
                if not node.height:
                    streams += self._add_blobs(oid, node)
        self._add_streams(streams)
        for _, level in sorted(nodes.items()):
            for oid, length in level:
                self._add(TREE, oid, length)

    def _add_blobs(self, oid: ObjectId, leaf: Node) -> Iterator[ObjectId]:
        """Add the new values that are one blob; the indexes of the longer ones."""
        for item in leaf.items:
            assert isinstance(item, bytes)  # a node that was read holds no other
            for link in _decoded(Entry.decode, oid, item).links:
                if not self._reached.add(link.id):
                    continue
                if is_single(link):
                    self._add(BLOB, link.id, link.length)
                else:
                    yield link.id

    def _add_streams(self, waiting: list[ObjectId]) -> None:
        indexes: dict[int, list[tuple[ObjectId, int]]] = {}
        while waiting:
            ids, waiting = waiting[-BATCH:], waiting[:-BATCH]
            for oid, body in self._repo.objects.read_each(INDEX, ids):
                height, items = _decoded(read_index, oid, body)
                indexes.setdefault(height, []).append((oid, len(body)))
                for child, length in items:
                    if not self._reached.add(child):
                        continue
                    if height == 1:
                        self._add(BLOB, child, length)
                    else:
                        waiting.append(child)
        for _, level in sorted(indexes.items()):
            for oid, length in level:
                self._add(INDEX, oid, length)

    def frames(self) -> Iterator[list[Item]]:
        """The objects in order, as many at a time as go into a frame."""
        items: list[Item] = []
        size = 0
        for begin in range(0, len(self._records), _RECORD):
            record = self._records[begin : begin + _RECORD]
            length = int.from_bytes(record[-4:], "big")
            if items and (size + length > FRAME_BYTES or len(items) == FRAME_OBJECTS):
                yield items
                items, size = [], 0
            items.append(Item(_CODES[chr(record[0])], ObjectId(record[1:-4]), length))
            size += length
        if items:
            yield items


def _bodies(repo: Repository, items: Sequence[Item]) -> list[bytes]:
    found: dict[ObjectId, bytes] = {}
    for kind in _CODES.values():
        ids = [item.oid for item in items if item.kind is kind]
        if ids:
            found.update(repo.objects.read_many(kind, ids))
    for kind, oid, length in items:
        if len(found[oid]) != length:
            raise CorruptObject(
                str(oid), f"a {kind.name} of {len(found[oid])} bytes, which is said to have {length}"
            )
    return [found[item.oid] for item in items]


def _decoded(decode: Callable[[bytes], _T], oid: ObjectId, body: bytes) -> _T:
    try:
        return decode(body)
    except ValueError as error:
        raise CorruptObject(str(oid), str(error)) from error


@contextmanager
def _output(file: File) -> Iterator[BinaryIO]:
    """A file to write to. A path gets its contents all at once, and durably, or keeps what it has; a stream, a pipe
    or a device gets all of it at the end.
    """
    mode = stat.S_IFREG | (0o666 & ~_umask())
    if isinstance(file, str | os.PathLike):
        path = os.path.realpath(file)
        with suppress(FileNotFoundError):
            mode = os.stat(path).st_mode
    if not isinstance(file, str | os.PathLike) or not stat.S_ISREG(mode):
        with tempfile.TemporaryFile() as spool:
            yield spool
            spool.seek(0)
            with open(path, "wb") if isinstance(file, str | os.PathLike) else nullcontext(file) as output:
                shutil.copyfileobj(spool, output)
                output.flush()
        return
    directory, name = os.path.split(path)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{name[:100]}.", suffix=".tmp", dir=directory)
    try:
        with open(descriptor, "wb") as output:
            yield output
            output.flush()
            os.fsync(output.fileno())
        os.chmod(temporary, stat.S_IMODE(mode))
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    if hasattr(os, "O_DIRECTORY"):
        place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(place)
        finally:
            os.close(place)


def _umask() -> int:
    # There is no other way to ask; another thread that makes a file in between makes it private.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
