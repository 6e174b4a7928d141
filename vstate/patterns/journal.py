"""Journal: records that are only appended, many in one key, and the index that a program makes of them."""

from __future__ import annotations

import pickle
import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, takewhile
from operator import is_
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from vstate.errors import CannotLoad, CorruptObject, InvalidInput, RefMoved
from vstate.forks import new_lock
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.objects.stream import BLOB_BYTES
from vstate.patterns.fields import path_to
from vstate.patterns.paths import Id, path_of
from vstate.repo.core import Guard
from vstate.repo.names.refs import HEADS
from vstate.repo.repository import Repository
from vstate.repo.rules.labels import Label
from vstate.repo.writing import BranchChanges
from vstate.values.entry import PICKLE, read_parts
from vstate.values.opcodes import load_only_plain

SEGMENT_BYTES = 8 * 1024
"""A segment takes records up to this size, and then is one object. A longer record has a segment alone.

Longer segments make reading quicker, and each append longer.
"""

_DIGITS = 12  # of the number of a segment's first record
_NUMBER = re.compile(f"[0-9]{{{_DIGITS}}}")


class Index(Protocol):
    """A program's own view of a journal, such as a dict of its records by name."""

    def add(self, record: Any) -> None:
        """Take the next record. The index keeps no later change of it."""


class Records(list[Any]):
    """The index that is a list of all records."""

    add = list.append


I = TypeVar("I", bound=Index)  # noqa: E741  # the index


class _Segment(NamedTuple):
    """The records under one key, their size in bytes, and the entry of the key in the tree."""

    key: str
    entry: bytes
    size: int
    records: tuple[Any, ...]


_Change = tuple[tuple[_Segment, ...], list[Any]]
"""All segments as they shall be, and the records that are new."""


class Journal(Generic[I]):
    """Records of plain data in order, on a branch, without a working tree.

    - `append` makes one small commit, which writes the last segment anew, 8 KB at most. `refresh` reads only
      the segments that changed.
    - Every commit holds the whole journal, so each verb of the branch works: rollback, merge, gc, push, diff.
    - A function makes the records out of the index. If another writer was faster, it is called again with
      the new index. So records that another writer removed stay removed.
    - Records are None, bool, int, float, str, bytes, and lists, tuples, dicts and sets of these. They
      come back with their types and the order of their keys, and reading one runs no code.

    Threads may share a journal. Records and the index that come out must not be changed.
    """

    def __init__(
        self,
        repo: Repository,
        branch: str,
        make_index: Callable[[], I] = Records,  # type: ignore[assignment]  # I is Records then
        *,
        name: Id = "journal",
        guard: Guard | None = None,
        labels: LabelsOf[I] | None = None,
        marks: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """The journal under the keys `name/…` of a branch, which need not exist yet. Reads nothing.

        `make_index` makes an empty index. With a lease as `guard`, writes raise LeaseLost once it is lost.
        `labels` gives the labels of the branch for each commit, and `marks` are keys that the first one sets.
        """
        self.repo = repo
        self.branch = branch
        self.guard = guard
        self.lock = new_lock()
        """Held during each call. Hold it while you read an index that other threads may add to."""
        self._prefix = path_of(name) + "/"
        self._make_index = make_index
        self.head: Commit | None = None
        """The commit that the index is of; None before the first one."""
        self.index = make_index()
        """The index as the last call left it."""
        self._segments: tuple[_Segment, ...] = ()
        self._labels_of = labels
        self._marks = marks
        self._labelled: tuple[ObjectId | None, Mapping[str, Label] | None] = None, None

    @property
    def labels(self) -> Mapping[str, Label] | None:
        """The labels that the head set, None if it set none."""
        with self.lock:
            if self.head is None:
                return None
            if self._labelled[0] != self.head.oid:
                self._labelled = self.head.oid, self.repo.labels_at(self.branch, self.head.oid)
            return self._labelled[1]

    @property
    def size(self) -> int:
        """About how many bytes the records take in memory."""
        return sum(segment.size for segment in self._segments)

    def refresh(self) -> I:
        """The index of the newest commit of the branch; an empty one if the branch does not exist.

        Raises CorruptObject for damage, and CannotLoad for a record that is no plain data.
        """
        with self.lock:
            while (head := self.repo.newest(self.branch)) is not self.head and head != self.head:
                try:
                    self._move(head)
                except CorruptObject:
                    if head == self.repo.newest(self.branch):
                        raise
            return self.index

    def append(
        self,
        plan: Callable[[I], Iterable[Any]],
        *,
        message: str = "",
        fresh: bool = False,
        beside: Mapping[str, Any] = MappingProxyType({}),
        others: Iterable[BranchChanges] = (),
        info: Mapping[str, Any] | None = None,
    ) -> Commit | None:
        """Commit the records that `plan` makes out of the index; None, and no commit, if it makes none.

        The same transaction sets the keys `beside` the journal, and makes the changes of `others`: see
        `Repository.commit_many`.

        `plan` gets the index as this process knows it, or with `fresh` that of the newest commit. If the
        branch has moved meanwhile, it is called again with the new one. Raises InvalidInput for a record
        that is no plain data.
        """

        def changes(index: I) -> _Change | None:
            records = list(plan(index))
            return (self._appended(records), records) if records else None

        return self._change(changes, message, fresh, beside=beside, others=tuple(others), info=info)

    def rewrite(self, plan: Callable[[I], Iterable[Any] | None], *, message: str = "") -> Commit | None:
        """Replace all records by those that `plan` makes out of the newest index; None keeps them all.

        Segments with equal records stay as they are. History keeps the old records until it is squashed.
        """

        def changes(index: I) -> _Change | None:
            made = plan(index)
            if made is None:
                return None
            records = list(made)
            return self._divided(records), records

        return self._change(changes, message, fresh=True)

    def fork(
        self,
        branch: str,
        plan: Callable[[I], Iterable[Any]],
        *,
        message: str = "",
        labels: Mapping[str, Label] | None = None,
    ) -> Commit:
        """Begin another branch with the records that `plan` makes out of the newest index, as one commit.

        The commit goes on top of this journal's newest one. Segments with equal records are shared. Raises
        RefMoved if the branch exists.
        """
        with self.lock:
            made, gone = self._difference(self._divided(list(plan(self.refresh()))))
            changes = BranchChanges(
                branch, set=made, delete=gone, base=self.head, labels=labels, message=message
            )
            (commit,) = self.repo.commit_many([changes], guard=self.guard)
            if commit is None:
                raise InvalidInput(f"branch {branch!r} would begin with no record and no history")
            return commit

    # Writing

    def _commit(
        self,
        segments: Sequence[_Segment],
        records: Sequence[Any],
        message: str,
        *,
        beside: Mapping[str, Any] = MappingProxyType({}),
        others: Sequence[BranchChanges] = (),
        info: Mapping[str, Any] | None = None,
    ) -> Commit | None:
        """Commit these segments, with these new records, on top of the known ones, and go there; RefMoved."""
        made, gone = self._difference(segments)
        new = {**beside, **made}
        labels = None if self._labels_of is None else self._labels_of(self, records)
        own = BranchChanges(
            self.branch,
            set=new if self.head or not new else {**self._marks, **new},
            delete=gone,
            expect=self.head,
            message=message,
            labels=labels,
            info=info,
        )
        commit, *_ = self.repo.commit_many([own, *others], guard=self.guard)
        if commit is not None:
            self._labelled = commit.oid, labels
            found = [s if s.entry else s._replace(entry=own.entries[s.key] or b"") for s in segments]
            self._take(commit, found)
        return commit

    def _difference(self, segments: Iterable[_Segment]) -> tuple[dict[str, Any], Iterable[str]]:
        """The keys to set, and the keys to delete, that make the journal these segments."""
        same = {segment.key: segment for segment in self._segments}
        made = {s.key: list(s.records) for s in segments if same.pop(s.key, None) is not s}
        return made, same

    def _change(
        self,
        changes: Callable[[I], _Change | None],
        message: str,
        fresh: bool,
        *,
        beside: Mapping[str, Any] = MappingProxyType({}),
        others: Sequence[BranchChanges] = (),
        info: Mapping[str, Any] | None = None,
    ) -> Commit | None:
        with self.lock:
            if fresh:
                self.refresh()
            while True:
                change = changes(self.index)
                if change is None:
                    head = self.head
                    self.refresh()
                    if self.head == head:
                        return None
                    continue
                try:
                    return self._commit(*change, message, beside=beside, others=others, info=info)
                except RefMoved as error:
                    if error.ref != HEADS + self.branch:
                        raise  # one of the others; its changes are not made again
                    self.refresh()

    def _appended(self, records: Sequence[Any]) -> tuple[_Segment, ...]:
        *before, last = self._segments or [_Segment("", b"", SEGMENT_BYTES, ())]
        sizes = list(map(_size, records))
        fitting = bisect_right(list(accumulate(sizes)), SEGMENT_BYTES - last.size)
        if fitting:
            size = last.size + sum(sizes[:fitting])
            last = last._replace(entry=b"", size=size, records=(*last.records, *records[:fitting]))
        if not last.key:
            return self._cut(0, records)
        if fitting == len(records):
            return (*before, last)
        number = int(last.key[-_DIGITS:]) + len(last.records)
        return (*before, last, *self._cut(number, records[fitting:]))

    def _divided(self, records: Sequence[Any]) -> tuple[_Segment, ...]:
        """All records of a journal as segments. The full ones at the start stay, as far as they are equal."""
        kept: list[_Segment] = []
        end = 0
        for segment in self._segments:
            after = end + len(segment.records)
            same = tuple(records[end:after])
            if not _are_same(segment.records, same):
                if same and after > len(records) and _are_same(segment.records[: len(same)], same):
                    # Shorter than it was, so it fits; its size is exact again once it is read.
                    return (*kept, segment._replace(entry=b"", records=same))
                break
            kept.append(segment)
            end = after
        if kept and end < len(records):  # the last one may have room for the next record
            end -= len(kept.pop().records)
        number = int(kept[-1].key[-_DIGITS:]) + len(kept[-1].records) if kept else 0
        return (*kept, *self._cut(number, records[end:]))

    def _cut(self, number: int, records: Sequence[Any]) -> tuple[_Segment, ...]:
        """Records as segments; the first one is record `number` of the journal."""
        segments: list[_Segment] = []
        size = SEGMENT_BYTES
        for place, record in enumerate(records, number):
            own = _size(record)
            if size + own > SEGMENT_BYTES:
                segments.append(_Segment(f"{self._prefix}{place:0{_DIGITS}}", b"", 0, ()))
                size = 0
            size += own
            segments[-1] = segments[-1]._replace(size=size, records=(*segments[-1].records, record))
        known = {segment.key: segment for segment in self._segments}
        return tuple(
            known[new.key] if new.key in known and _are_same(known[new.key].records, new.records) else new
            for new in segments
        )

    # Reading

    def _move(self, head: Commit | None) -> None:
        if head is None:
            self._take(None, ())
            return
        self.repo.require_trusted(head)
        known = {segment.key: segment for segment in self._segments}
        objects = self.repo.objects
        rows = list(tree.scan(objects.nodes, head.root, self._prefix))
        changed = [(key, data) for key, data in rows if key not in known or known[key].entry != data]
        known.update((segment.key, segment) for segment in self._read(changed))
        self._take(head, [known[key] for key, _ in rows])

    def _read(self, rows: Sequence[tuple[str, bytes]]) -> Iterable[_Segment]:
        entries = [(key, data, self.repo.parse_entry(key, data)) for key, data in rows]
        links = {link.id: link.length for _, _, entry in entries for link in entry.links}
        single = {oid: length for oid, length in links.items() if length <= BLOB_BYTES}
        reader = _Read(self.repo.objects, self.repo.objects.blobs(single))
        for key, data, entry in entries:
            if not _NUMBER.fullmatch(key, len(self._prefix)):
                reason = f"a segment of a journal is named by {_DIGITS} digits; another program set this key"
                raise CannotLoad(key, reason, key=key)
            parts, _ = read_parts(entry, reader)
            if entry.codec != PICKLE or len(parts) != 1:
                raise CannotLoad(key, "a segment of a journal is one pickle", key=key)
            try:
                records = load_only_plain(parts[0])
            except CannotLoad as error:
                raise CannotLoad(error.name, error.reason, key=key) from error
            if type(records) is not list:
                raise CannotLoad(key, "a segment of a journal is a list", key=key)
            yield _Segment(key, data, entry.size, tuple(records))

    def _take(self, head: Commit | None, segments: Sequence[_Segment]) -> None:
        """Go to this commit. The index takes the new records, or is made anew if old ones are gone."""
        # A segment that did not change is the same object, also in a new tuple.
        same = len(list(takewhile(bool, map(is_, self._segments, segments))))
        before = [record for segment in self._segments[same:] for record in segment.records]
        after = [record for segment in segments[same:] for record in segment.records]
        if _are_same(after[: len(before)], before):
            index, new = self.index, after[len(before) :]
        else:
            index, new = self._make_index(), [record for segment in segments for record in segment.records]
        # Until the last line, an exception leaves an index that the next call makes anew.
        self.index, self._segments, self.head = self._make_index(), (), None
        for record in new:
            index.add(record)
        self.index, self._segments, self.head = index, tuple(segments), head


LabelsOf = Callable[[Journal[I], Sequence[Any]], Mapping[str, Label] | None]
"""A function of a journal and of the records that it gets; None leaves the labels of the branch."""


class Journals(Generic[I]):
    """The journals of many branches of one store: those that were used last stay in memory."""

    def __init__(
        self, make: Callable[[str], Journal[I]], *, most: int = 64, most_bytes: int = 128 * 1024 * 1024
    ) -> None:
        """`make` makes the journal of a branch. So many stay in memory, with so many bytes of records.

        The journal that was used last always stays.
        """
        self._make = make
        self._most = most
        self._most_bytes = most_bytes
        self._lock = new_lock()
        self._used: OrderedDict[str, Journal[I]] = OrderedDict()

    def __getitem__(self, branch: str) -> Journal[I]:
        with self._lock:
            journal = self._used.get(branch)
            if journal is None:
                journal = self._used[branch] = self._make(branch)
                sizes = [other.size for other in self._used.values()]
                while len(sizes) > self._most or (len(sizes) > 1 and sum(sizes) > self._most_bytes):
                    self._used.popitem(last=False)
                    sizes.pop(0)
            self._used.move_to_end(branch)
            return journal

    def drop(self, branch: str) -> None:
        """Free the memory of the branch's journal."""
        with self._lock:
            self._used.pop(branch, None)


class _Read:
    """A reader with the blobs that were read at once."""

    def __init__(self, objects: Any, bodies: Any) -> None:
        self._bodies = bodies
        self.blobs = objects.blobs
        self.indexes = objects.indexes
        self._blob = objects.blob

    def blob(self, oid: Any) -> bytes:
        body = self._bodies.get(oid)
        return self._blob(oid) if body is None else bytes(body)


def _are_same(ones: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether these records are the same, types and order included; 1, 1.0 and True are three records."""
    if len(ones) != len(others):
        return False
    return all(map(is_, ones, others)) or all(
        one is other or (one == other and pickle.dumps(one, 5) == pickle.dumps(other, 5))
        for one, other in zip(ones, others, strict=True)
    )


def _size(record: Any) -> int:
    """The bytes of a record by itself; InvalidInput, with the path, if it is no plain data."""
    try:
        data = pickle.dumps(record, 5)
        load_only_plain(data)
        return len(data)
    except Exception as error:  # the pickling of any class may raise anything
        raise InvalidInput(
            "a record of a journal is plain data: None, bool, int, float, str, bytes, and lists, tuples, "
            f"dicts and sets of these; record{path_to(record, _check_plain)} of {record!r:.80} is not"
        ) from error


def _check_plain(part: Any) -> None:
    load_only_plain(pickle.dumps(part, 5))
