"""Journal: records that are only appended, many in one key, and the index that a program makes of them."""

from __future__ import annotations

import pickle
import re
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import accumulate, chain, takewhile
from operator import attrgetter, is_
from threading import get_ident, main_thread
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

from vstate.errors import CannotLoad, CorruptObject, InvalidInput, RefMoved, StorageError, StoreUnavailable
from vstate.forks import new_lock, renew_in_child
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.patterns.fields import path_to
from vstate.patterns.paths import Id, path_of
from vstate.repo.core import Advance, Guard
from vstate.repo.repository import Repository
from vstate.repo.rules.labels import Label
from vstate.repo.writing import BranchChanges, commit_series
from vstate.values.entry import PICKLE, OneBlobEntry, read_parts, read_together
from vstate.values.growth import NOT_JOINED, Unread
from vstate.values.opcodes import load_only_plain

SEGMENT_BYTES = 8 * 1024
"""A segment takes records up to this size, and then is one object. A longer record has a segment alone.

Longer segments make reading quicker, and each append longer.
"""

MOST_TOGETHER = 64
"""So many calls that wait for one journal land together at the most."""

_DIGITS = 12  # of the position of a segment's first record
_NUMBER = re.compile(f"[0-9]{{{_DIGITS}}}")


FIRST_SEGMENTS = 4
"""So many segments, the newest ones, are read first into an index that may begin there."""


class Index(Protocol):
    """A program's own view of a journal, such as a dict of its records by name."""

    def add(self, record: Any) -> None:
        """Take the next record. The index keeps no later change of it."""


@runtime_checkable
class PartIndex(Index, Protocol):
    """An index that may begin with the newest records. If a call needs more, it raises `Unread`."""

    @staticmethod
    def width(record: Any) -> int:
        """How far the position of the next record is from that of this one; 1 for other indexes."""

    def begin(self, position: int) -> None:
        """Begin with the record at this position."""

    def fill(self, position: int, records: Iterable[Any]) -> None:
        """Take what is needed of earlier records, which begin at this position."""


@lru_cache  # it takes as long as a read
def _may_begin_late(kind: type) -> bool:
    return issubclass(kind, PartIndex)


class Records(list[Any]):
    """The index that is a list of all records."""

    add = list.append


I = TypeVar("I", bound=Index)  # noqa: E741  # the index
T = TypeVar("T")


class _Segment(NamedTuple):
    """The records under one key, their size in bytes, and its entry in the tree, once it has one."""

    key: str
    entry: bytes
    size: int
    records: tuple[Any, ...]

    @property
    def position(self) -> int:
        """The position of the first record."""
        return int(self.key[-_DIGITS:])


_SIZE = attrgetter("size")
_RECORDS = attrgetter("records")


class _Made(NamedTuple):
    """The changes of a call for its branch, their commit, and the segments that it has."""

    own: BranchChanges
    advance: Advance
    segments: Sequence[_Segment]


_ADVANCE = attrgetter("advance")


@dataclass(slots=True, eq=False)
class _Call(Generic[I]):
    """A change that a thread wants to land: `plan` makes the new records, or all of them `anew`.

    - `context`: the context variables of the caller, for another thread.
    - `shared`: another thread may land it with its own. The caller takes that back before it leaves. Not in
      the main thread, where a signal may end any call, and not beside the changes of other branches.
    - `tried`: the commits that were made for it. One may be on the branch, or come there yet, although
      landing it has failed.
    - `commit`: the commit that has landed.
    - `done`: it has landed, or it changes nothing.
    """

    plan: Callable[[I], Iterable[Any] | None]
    anew: bool
    message: str
    fresh: bool
    beside: Mapping[str, Any] = field(default_factory=dict)
    others: Sequence[BranchChanges] = ()
    info: Mapping[str, Any] | None = None
    context: Context = field(default_factory=copy_context)
    shared: bool = False
    tried: list[Commit] = field(default_factory=list)
    commit: Commit | None = None
    done: bool = False


class Journal(Generic[I]):
    """Records of plain data in order, on a branch, without a working tree.

    - `append` makes one small commit, which writes the last segment anew, 8 KB at most. `refresh` reads only
      the segments that changed.
    - Every commit holds the whole journal, so each verb of the branch works: rollback, merge, gc, push, diff.
    - Calls of threads that wait for one another land together, a commit each: one transaction and one fsync.
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
        room: bool = False,
    ) -> None:
        """The journal under the keys `name/…` of a branch, which need not exist yet. Reads nothing.

        `make_index` makes an empty index. With a lease as `guard`, writes raise LeaseLost once it is lost.
        `labels` gives the labels of the branch for each commit, and `marks` are keys that the first one sets.
        With `room`, a branch that the first commit makes gets a room of its own: see `BranchChanges`.
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
        self.size = 0
        """About how many bytes the records take in memory."""
        self._segments: tuple[_Segment, ...] = ()
        self._before: Sequence[tuple[str, bytes]] = []
        """The keys before those of the segments, and their entries: these were not read."""
        self._aside: Mapping[str, _Segment] = {}
        """Some of them, which were read for the index."""
        self._width: Callable[[Any], int] = getattr(self.index, "width", lambda record: 1)
        self._labels_of = labels
        self._marks = marks
        self._room = room
        self._labelled: tuple[ObjectId | None, Mapping[str, Label] | None] = None, None
        self._waiting: deque[_Call[I]] = deque()
        renew_in_child(self, Journal._renew)

    def _renew(self) -> None:
        self._waiting.clear()  # those threads are in the parent

    @property
    def labels(self) -> Mapping[str, Label] | None:
        """The labels that the head set, None if it set none."""
        with self.lock:
            if self.head is None:
                return None
            if self._labelled[0] != self.head.oid:
                self._labelled = self.head.oid, self.repo.labels_at(self.branch, self.head.oid)
            return self._labelled[1]

    def refresh(self) -> I:
        """The index of the newest commit of the branch; an empty one if the branch does not exist.

        Raises CorruptObject for damage, and CannotLoad for a record that is no plain data.
        """

        def whole(index: I) -> I:
            if self._before:
                raise Unread
            return index

        return self.find(whole)

    def find(self, look: Callable[[I], T]) -> T:
        """What a function finds in the index of the newest commit of the branch.

        For a `PartIndex` it reads the newest records first, and others only if the function needs them. So
        the function may be called again. Raises as `refresh`.
        """
        with self.lock:
            while True:
                head = self.repo.newest(self.branch, self.head)
                try:
                    if head is not self.head and head != self.head:
                        self._move(head)
                    return self._used(look)
                except CorruptObject:
                    if head == self.repo.newest(self.branch):
                        raise

    def _follow(self) -> None:
        self.find(lambda index: None)

    def _used(self, look: Callable[[I], T]) -> T:
        """The result of a function of the index, for which more is read until it is enough."""
        while True:
            try:
                return look(self.index)
            except Unread as lacking:
                if not self._before:
                    raise
                self._read_before(lacking.spans)

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
        `Repository.commit_many`. A store without transactions has the changes of `others` first.

        `plan` gets the index as this journal knows it; the first time, or with `fresh`, that of the newest
        commit. If the branch has moved meanwhile, it is called again with the new one. Raises InvalidInput
        for a record that is no plain data.
        """
        return self._change(_Call(plan, False, message, fresh, beside, tuple(others), info))

    def rewrite(self, plan: Callable[[I], Iterable[Any] | None], *, message: str = "") -> Commit | None:
        """Replace all records by those that `plan` makes out of the newest index; None keeps them all.

        Segments with equal records stay as they are. History keeps the old records until it is squashed.
        """
        return self._change(_Call(plan, True, message, fresh=True))

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
            segments = self._divided(list(plan(self.refresh())))
            changes = BranchChanges(
                branch,
                set={s.key: list(s.records) for s in segments if not s.entry},
                delete=self._gone(segments),
                base=self.head,
                labels=labels,
                message=message,
            )
            (commit,) = self.repo.commit_many([changes], guard=self.guard)
            if commit is None:
                raise InvalidInput(f"branch {branch!r} would begin with no record and no history")
            return commit

    # Writing

    def _change(self, call: _Call[I]) -> Commit | None:
        """The commit of a call, which this thread lands, or another one with its own."""
        call.shared = not call.others and get_ident() != main_thread().ident
        try:
            if call.shared:
                self._waiting.append(call)
            with self.lock:
                while not call.done:
                    self._write(call)
            return call.commit
        finally:
            # First, and without a call before it: no thread takes the change of a caller that has gone.
            call.shared = False
            if not call.done:
                with self.lock:  # a thread that has taken the change ends
                    pass

    def _write(self, first: _Call[I]) -> None:
        """Land a change, with those of the calls that wait beside it. None is `done` if the race is lost."""
        landed = next(filter(self._has_landed, first.tried), None)
        if landed is not None:  # the thread that took the call has failed
            first.commit, first.done = landed, True
            return
        if first.fresh or self.head is None:
            self._follow()
            first.fresh = False
        known = self.head, self._segments, self._before
        try:
            if not self._land(first):
                self._follow()
        except BaseException as error:
            self._take(*known)  # the index may be ahead of the branch
            if not isinstance(error, CorruptObject):
                raise
            self._follow()  # gc may have removed the tree of a commit that the branch has left
            if self.head == known[0]:
                raise

    def _land(self, first: _Call[I]) -> bool:
        """Land a change, and those that wait, as one commit each, in one move; False if the race is lost."""
        made = [(first, self._used(partial(self._made, first)))]
        for call in self._joining(first) if first.shared else ():
            if (last := made[-1][1]) is not None:
                self.repo.objects.remember(last.advance.nodes, last.advance.commits)
                self._go(last)
            with suppress(Exception):  # its own thread meets the error
                made.append((call, call.context.run(self._used, partial(self._made, call))))
        series = []
        for call, each in made:
            if each is not None:
                series.append(each)
                call.tried.append(each.advance.commits[-1])  # it may be there from now on
        landed = self._publish(series, first.others)
        if landed and series:
            self._go(series[-1])
        for call, each in made:
            call.done = landed
            if each is not None:
                commit = call.tried.pop()
                call.commit = commit if landed else None
        if not landed:
            self._waiting.extend(call for call, _ in made[1:])
        return landed

    def _publish(self, series: Sequence[_Made], others: Sequence[BranchChanges]) -> bool:
        """Move the branch to commits that stand on the head; False if it is elsewhere."""
        if not series:
            return self.repo.newest(self.branch) == self.head
        if others and not self.repo.store.transactional:
            if self.repo.newest(self.branch) != self.head:
                return False  # before the others change
            for each in others:
                self.repo.commit_many([each], guard=self.guard)
            others = ()
        if not others:
            return commit_series(self.repo, list(map(_ADVANCE, series)), self.guard) != ()
        (made,) = series
        try:
            self.repo.commit_many([made.own, *others], guard=self.guard)
        except RefMoved as error:
            if error.ref != made.own.ref:
                raise  # one of the others; its changes are not made again
            return False
        return True

    def _joining(self, first: _Call[I]) -> Iterator[_Call[I]]:
        """The calls of threads that wait for this one."""
        for _ in range(MOST_TOGETHER):
            if not self._waiting:
                return
            call = self._waiting.popleft()
            if call is not first and call.shared and not call.done:
                yield call

    def _has_landed(self, commit: Commit) -> bool:
        try:
            return self.repo.has_landed(self.branch, commit.oid)
        except StorageError as error:
            raise StoreUnavailable(
                f"another thread failed while it committed to branch {self.branch!r} together with this one, "
                "which may or may not have happened: read the branch again before you retry",
                outcome_unknown=True,
            ) from error

    def _made(self, call: _Call[I], index: I) -> _Made | None:
        """The commit of a call on top of the head; None if it changes nothing."""
        if call.anew and self._before:
            raise Unread
        planned = call.plan(index)
        if planned is None or (not (records := list(planned)) and not call.anew):
            return None
        labels = None if self._labels_of is None else self._labels_of(self, records)
        segments = self._divided(records) if call.anew else self._appended(records)
        new = {**call.beside, **{s.key: list(s.records) for s in segments if not s.entry}}
        own = BranchChanges(
            self.branch,
            set=new if self.head or not new else {**self._marks, **new},
            delete=self._gone(segments) if call.anew else (),
            expect=self.head,
            message=call.message,
            labels=labels,
            info=call.info,
            room=self._room,
        )
        advance = own.on(self.repo, None if self.head is None else self.head.oid)
        if advance is None:
            return None
        found = [s if s.entry else s._replace(entry=own.entries[s.key] or b"") for s in segments]
        return _Made(own, advance, found)

    def _go(self, made: _Made) -> None:
        """Take the index to a commit, unless it is there: it may have been read further back meanwhile."""
        head = made.advance.commits[-1]
        if head is self.head:
            return
        self._labelled = head.oid, made.own.labels
        self._take(head, made.segments, self._before)

    def _gone(self, segments: Iterable[_Segment]) -> set[str]:
        """The keys that the journal has, and these segments have not."""
        return {segment.key for segment in self._segments} - {segment.key for segment in segments}

    def _appended(self, records: Sequence[Any]) -> tuple[_Segment, ...]:
        """The segments with these records behind them."""
        if not self._segments:
            return self._cut(0, records)
        *before, last = self._segments
        sizes = list(map(_size, records))
        fitting = bisect_right(list(accumulate(sizes)), SEGMENT_BYTES - last.size)
        if fitting:
            size = last.size + sum(sizes[:fitting])
            last = last._replace(entry=b"", size=size, records=(*last.records, *records[:fitting]))
        more = () if fitting == len(records) else self._cut(self._end(last), records[fitting:])
        return (*before, last, *more)

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
        return (*kept, *self._cut(self._end(kept[-1]) if kept else 0, records[end:]))

    def _end(self, segment: _Segment) -> int:
        """The position behind a segment."""
        return segment.position + sum(map(self._width, segment.records))

    def _require_joined(self, segments: Iterable[_Segment], ends: Iterable[int]) -> None:
        """Raise InvalidInput if records name others by their positions, and a segment does not end there."""
        if not _may_begin_late(type(self.index)):
            return
        for segment, end in zip(segments, ends, strict=False):
            if self._end(segment) != end:
                raise InvalidInput(NOT_JOINED.format(segment.key))

    def _cut(self, position: int, records: Sequence[Any]) -> tuple[_Segment, ...]:
        """Records as segments, from this position on."""
        segments: list[_Segment] = []
        size = SEGMENT_BYTES
        for record in records:
            own = _size(record)
            if size + own > SEGMENT_BYTES:
                segments.append(_Segment(f"{self._prefix}{position:0{_DIGITS}}", b"", 0, ()))
                size = 0
            size += own
            position += self._width(record)
            segments[-1] = segments[-1]._replace(size=size, records=(*segments[-1].records, record))
        known = {segment.key: segment for segment in self._segments}
        return tuple(
            known[new.key] if new.key in known and _are_same(known[new.key].records, new.records) else new
            for new in segments
        )

    # Reading

    def _move(self, head: Commit | None) -> None:
        if head is None:
            self._take(None, (), [])
            return
        self.repo.require_trusted(head)
        known = {segment.key: segment for segment in self._segments}
        before, rows = self._before, list(tree.scan(self.repo.objects.nodes, head.root, self._prefix))
        if self.head is None or len(rows) <= len(before) or rows[: len(before)] != before:
            before, known = [], {}
        if not known and _may_begin_late(type(self.index)):
            before = rows[:-FIRST_SEGMENTS]
        rows = rows[len(before) :]
        changed = [(key, data) for key, data in rows if key not in known or known[key].entry != data]
        known.update((segment.key, segment) for segment in self._read(changed))
        segments = [known[key] for key, _ in rows]
        self._require_joined(segments, [segment.position for segment in segments[1:]])
        self._take(head, segments, before)

    def _read_before(self, spans: Sequence[tuple[int, int]]) -> None:
        """Read the segments with these positions; without one, some more before the first of the segments."""
        before, aside = self._before, self._aside
        if not spans:
            count = 3 * len(self._segments)
            before, rows = before[:-count], before[-count:]
            found = [*(aside[key] for key, _ in rows if key in aside)]
            found += self._read([row for row in rows if row[0] not in aside])
            segments = [*sorted(found), *self._segments]
            self._require_joined(segments[: len(rows)], [s.position for s in segments[1:]])
            self._take(self.head, segments, before)
            return
        positions = [*(int(key[-_DIGITS:]) for key, _ in before), self._segments[0].position]
        lacking: dict[str, bytes] = {}
        for start, end in spans:
            lacking.update(before[max(bisect_right(positions, start) - 1, 0) : bisect_left(positions, end)])
        found = list(self._read([row for row in lacking.items() if row[0] not in aside]))
        if not found:
            raise Unread(*spans)  # no segment has them
        self._require_joined(found, [positions[bisect_right(positions, s.position)] for s in found])
        for segment in found:
            cast(PartIndex, self.index).fill(segment.position, segment.records)
            self.size += segment.size
        self._aside = {**aside, **{segment.key: segment for segment in found}}

    def _read(self, rows: Sequence[tuple[str, bytes]]) -> Iterable[_Segment]:
        reader = self.repo.objects
        for key, _ in rows:
            if not _NUMBER.fullmatch(key, len(self._prefix)):
                reason = f"a segment of a journal is named by {_DIGITS} digits; another program set this key"
                raise CannotLoad(key, reason, key=key)
        found = [(*row, OneBlobEntry.find(row[1]) or self.repo.parse_entry(*row)) for row in rows]
        if len(found) == 1:  # in a shorter way
            read: Iterable[list[bytes | bytearray]] = [read_parts(found[0][2], reader)[0]]
        else:
            read = read_together([entry for _, _, entry in found], reader)
        for (key, data, entry), parts in zip(found, read, strict=True):
            if entry.codec != PICKLE or len(parts) != 1:
                raise CannotLoad(key, "a segment of a journal is one pickle", key=key)
            try:
                records = load_only_plain(parts[0])
            except CannotLoad as error:
                raise CannotLoad(error.name, error.reason, key=key) from error
            if type(records) is not list:
                raise CannotLoad(key, "a segment of a journal is a list", key=key)
            yield _Segment(key, data, entry.size, tuple(records))

    def _take(
        self,
        head: Commit | None,
        segments: Sequence[_Segment],
        before: Sequence[tuple[str, bytes]],
    ) -> None:
        """Go to this commit. The index takes the new records, or is made anew if old ones are gone."""
        same = len(list(takewhile(bool, map(is_, self._segments, segments))))
        old = [*chain.from_iterable(map(_RECORDS, self._segments[same:]))]
        new = [*chain.from_iterable(map(_RECORDS, segments[same:]))]
        aside = self._aside if before is self._before else {}
        if before is self._before and _are_same(new[: len(old)], old):
            index, new = self.index, new[len(old) :]
            size = self.size + sum(map(_SIZE, segments[same:])) - sum(map(_SIZE, self._segments[same:]))
        else:
            index, new = self._make_index(), [*chain.from_iterable(map(_RECORDS, segments))]
            size = sum(map(_SIZE, (*segments, *aside.values())))
            if before:
                cast(PartIndex, index).begin(segments[0].position)
                for segment in aside.values():
                    cast(PartIndex, index).fill(segment.position, segment.records)
        # Until the last line, an exception leaves an index that the next call makes anew: the list is none
        # that it could know.
        self._segments, self._before, self.head, self.size = (), [], None, 0
        for record in new:
            index.add(record)
        self._aside, self.size = aside, size
        self.index, self._segments, self._before, self.head = index, tuple(segments), before, head


LabelsOf = Callable[[Journal[I], Sequence[Any]], Mapping[str, Label] | None]
"""A function of a journal and of the records that it gets; None leaves the labels of the branch."""


class Journals(Generic[I]):
    """The journals of many branches of one store: those that were used last stay in memory."""

    def __init__(
        self, make: Callable[[str], Journal[I]], *, most: int = 64, most_bytes: int = 128 * 1024 * 1024
    ) -> None:
        """`make` makes the journal of a branch. So many stay in memory, with so many bytes of records.

        The bytes are counted with each new journal. The journal that was used last always stays.
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
                size = sum(map(_SIZE, self._used.values()))
                while len(self._used) > self._most or (size > self._most_bytes and len(self._used) > 1):
                    size -= self._used.popitem(last=False)[1].size
            self._used.move_to_end(branch)
            return journal

    def drop(self, branch: str) -> None:
        """Free the memory of the branch's journal."""
        with self._lock:
            self._used.pop(branch, None)


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
