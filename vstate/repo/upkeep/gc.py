"""gc: a plan of what stays and what goes, and a sweep that removes what goes."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain

from vstate.errors import CorruptObject, StoreFull
from vstate.kv.base import OBJECT_PREFIX, KVStore, batches
from vstate.objects import expiry
from vstate.objects.commit import LAST_ORDER, microseconds
from vstate.objects.ids import ObjectId
from vstate.plural import counted
from vstate.repo.core import Core
from vstate.repo.graph import GRAPH, read_segment
from vstate.repo.history import SHALLOW
from vstate.repo.names.dates import parse_age
from vstate.repo.names.refs import HEADS, REF, REFLOG, SWEEP, ReflogEntry, ref_of_line
from vstate.repo.objects import TRASH, in_trash
from vstate.repo.packer import pack_objects
from vstate.repo.rooms import GONE, Room, new_mark
from vstate.repo.sweeps import arrivals, retry_after_sweep
from vstate.repo.upkeep.reach import Marks, Reach, UpkeepProgress, notes_on_lost
from vstate.repo.upkeep.shortening import Cut, HistoryLimit
from vstate.repo.walk import BATCH

KEEP_REFLOG = "30d"
GRACE = "1h"

MOST_DELETED = 1000
"""Objects that are deleted in one transaction, for which others wait some 10 ms."""

UNREACHABLE = "nothing leads to them"


@dataclass(frozen=True, slots=True)
class Garbage:
    """How many objects are garbage for one reason, and the bytes of their stored form."""

    reason: str
    objects: int
    bytes: int

    def __str__(self) -> str:
        return f"{counted(self.objects, 'object')} of {counted(self.bytes, 'byte')}: {self.reason}"


@dataclass(frozen=True, slots=True)
class GcReport:
    """The results of `gc`, or with `dry_run` those of a real run. Bytes are those of the stored form.

    `live` and `removed` count objects. `waiting` are the unreachable objects that a store without
    transactions keeps for the grace period. `shallow` counts the commits whose parents were cut off.
    `kept_by` are the branches that share commits with a branch to cut: these commits keep their history.
    `expired` are the branches that no commit has reached for longer than their `ttl`, and that `gc` has
    deleted. `size_before` and `size_after` are the bytes of the store's files; None for a store without, and
    after a dry run. After a dry run, `garbage` tells why the objects would go; after a real one it is empty.
    """

    live: int
    removed: int
    removed_bytes: int
    waiting: int
    reflog_lines: int
    shallow: int
    kept_by: tuple[str, ...]
    dry_run: bool
    seconds: float
    expired: tuple[str, ...] = ()
    size_before: int | None = None
    size_after: int | None = None
    garbage: tuple[Garbage, ...] = ()

    def __str__(self) -> str:
        would = "would remove" if self.dry_run else "removed"
        parts = [f"{would} {counted(self.removed, 'object')} of {counted(self.removed_bytes, 'byte')}"]
        if self.garbage:
            parts[0] += f" ({'; '.join(map(str, self.garbage))})"
        if self.expired:
            parts.append(f"{counted(len(self.expired), 'branch')} that were idle")
        if self.reflog_lines:
            parts.append(f"{self.reflog_lines:,} reflog lines")
        if self.shallow:
            parts.append(f"cut the history off at {counted(self.shallow, 'commit')}")
        if self.kept_by:
            parts.append(f"{', '.join(self.kept_by)} kept history that they share")
        if self.waiting:
            parts.append(f"{self.waiting:,} wait for the grace period to end")
        if self.size_before is not None and self.size_after is not None:
            parts.append(f"the files took {self.size_before:,} bytes and take {self.size_after:,}")
        return f"{', '.join(parts)}; {counted(self.live, 'object')} in use ({self.seconds:.2f} s)"


def collect(
    repo: Core,
    *,
    keep_reflog: str | timedelta = KEEP_REFLOG,
    limit: HistoryLimit | None = None,
    grace: str | timedelta = GRACE,
    dry_run: bool = False,
    progress: UpkeepProgress | None = None,
) -> GcReport:
    """As `Repository.gc` promises."""
    began = time.monotonic()
    size_before = repo.store.size()
    found = retry_after_sweep(repo, lambda: _idle_branches(repo, expiry.now()))
    idle = [ref for ref, head in found.items() if dry_run or _ended(repo, ref, head)]
    total = _Total()
    for room, own in _rooms(repo, limit):
        if dry_run or not _vacated(room):
            total.add(*_collect(room, keep_reflog, own, idle if dry_run else (), grace, dry_run, progress))
            if not dry_run:
                _vacated(room)
    if not dry_run:
        _forget_gone(repo.view)
        repo.history.reload()
        repo.store.release()
    garbage = [Garbage(reason, *counts) for reason, counts in total.garbage.items()]
    return GcReport(
        live=total.live,
        removed=total.removed + sum(part.objects for part in garbage),
        removed_bytes=total.removed_bytes + sum(part.bytes for part in garbage),
        waiting=total.waiting,
        reflog_lines=total.lines,
        shallow=total.ends,
        kept_by=tuple(total.kept_by),
        dry_run=dry_run,
        seconds=time.monotonic() - began,
        expired=tuple(ref.removeprefix(HEADS) for ref in idle),
        size_before=size_before,
        size_after=None if dry_run else repo.store.size(),
        garbage=tuple(garbage),
    )


class _Total:
    """The sums of the results of several rooms."""

    def __init__(self) -> None:
        self.live = self.removed = self.removed_bytes = self.waiting = self.lines = self.ends = 0
        self.kept_by: list[str] = []
        self.garbage: dict[str, tuple[int, int]] = {}

    def add(self, plan: Plan, sweep: Sweep, garbage: Iterable[Garbage], lines: int, ends: int) -> None:
        self.live += len(plan.marks)
        self.removed += sweep.removed
        self.removed_bytes += sweep.removed_bytes
        self.waiting += sweep.waiting
        self.lines += lines
        self.ends += ends
        self.kept_by += [] if plan.cut is None else plan.cut.kept_by
        for part in garbage:
            objects, size = self.garbage.get(part.reason, (0, 0))
            self.garbage[part.reason] = objects + part.objects, size + part.bytes


def _rooms(repo: Core, limit: HistoryLimit | None) -> Iterator[tuple[Core, HistoryLimit | None]]:
    """Each room, with the limit for those of its branches that have one."""
    if repo.rooms is None:
        yield repo, limit
        return
    rooms = repo.rooms
    branches: dict[int, list[str]] = {}
    for name in () if limit is None else limit.branches:
        repo.branch(name)  # raises if it is absent
        branches.setdefault(rooms.room_of(HEADS + name), []).append(name)
    for number in chain([0], rooms.all()):
        own = branches.get(number)
        yield repo.room(number), replace(limit, branches=tuple(own)) if limit and own else None


def _forget_gone(store: KVStore) -> None:
    """Drop the notes on deleted refs that no line of a reflog is about any more."""
    for key, row in [*store.items(GONE)]:
        ref = key.removeprefix(GONE)
        if next(iter(store.keys(f"{REFLOG}{ref}:")), None) is None:
            store.compare_and_swap(key, row, None)


def _vacated(room: Core) -> bool:
    """Delete what is left in a room that has no ref and no reflog any more; False if it has."""
    store = room.store
    if not isinstance(store, Room) or not store.transactional:
        return False

    def left() -> Mapping[str, bytes | None]:
        has_refs = any(True for prefix in (REF, REFLOG) for _ in store.keys(prefix))
        return {} if has_refs else dict.fromkeys(store.own_keys())

    return bool(left()) and store.exclusively(left) and not store.own_keys()


def _collect(
    repo: Core,
    keep_reflog: str | timedelta,
    limit: HistoryLimit | None,
    without: Collection[str],
    grace: str | timedelta,
    dry_run: bool,
    progress: UpkeepProgress | None,
) -> tuple[Plan, Sweep, Iterable[Garbage], int, int]:
    """Collect the garbage of one room: the plan, what was done, and the numbers of lines and ends that go."""
    sweep = Sweep(repo, progress)  # each attempt removes something, and the last one the rest

    def attempt() -> Plan:
        plan = Plan(repo, keep_reflog, limit, without, progress)
        if not dry_run:
            sweep.execute(plan, parse_age(grace))
        return plan

    plan = retry_after_sweep(repo, attempt)
    if dry_run:
        lines = sum(ref_of_line(key) not in without for key in plan.lines)
        return plan, sweep, plan.garbage(), lines, len(plan.ends)
    _pack(repo, plan.marks)
    return plan, sweep, (), sweep.lines, sweep.ends


def _idle_branches(repo: Core, now: int) -> dict[str, ObjectId]:
    """The branches, other than HEAD's, that no commit has reached for as long as they are kept, and where
    they are.
    """
    idle, of_head = {}, repo.refs.head().branch
    for ref, kept in sorted(repo.refs.kept().items()):
        head = repo.refs.read(ref)  # before its last move: a commit that comes between makes it look busy
        if head is not None and ref != f"{HEADS}{of_head}" and _last_move(repo, ref, head) + kept <= now:
            idle[ref] = head
    return idle


def _last_move(repo: Core, ref: str, head: ObjectId) -> int:
    """When the branch was last moved, in microseconds."""
    line = next(repo.refs.reflog(ref), None)  # an old line may be gone
    return microseconds(repo.objects.commit(head).time if line is None else line.time)


def _ended(repo: Core, ref: str, head: ObjectId) -> bool:
    """Delete an idle branch with its reflog; False if a commit has reached it meanwhile."""
    return repo.refs.end(ref, repo.policies.rows_without(ref.removeprefix(HEADS)), expected=head)


class Plan:
    """What `gc` keeps, what it removes, and why. Making a plan writes nothing.

    `marks` are the objects that stay, and all others are garbage. `lines` are the keys of the reflog lines
    that go. `ends` are the rows that cut histories off; for `marks` they are cut off already. The branches
    `without` count as absent.
    """

    def __init__(
        self,
        repo: Core,
        keep_reflog: str | timedelta,
        limit: HistoryLimit | None = None,
        without: Collection[str] = (),
        progress: UpkeepProgress | None = None,
    ) -> None:
        now, age = datetime.now(UTC), parse_age(keep_reflog)
        self._repo = repo
        # No age keeps nothing, not even a line that a clock a year ahead dated.
        self._oldest = microseconds(now - age) if age else LAST_ORDER
        self._without = without
        self.marks = Marks(repo, without=without, progress=progress)
        keeps = self._keeps
        self.cut = None
        if limit is not None:
            self.cut = Cut(repo, self.marks.history, limit, now, keeps)
            keeps = self.cut.keeps
        self.ends: Mapping[str, bytes] = {} if self.cut is None else self.cut.rows
        self.lines = self.marks.begin(keeps)

    def _keeps(self, key: str, line: ReflogEntry) -> Sequence[ObjectId] | None:
        """The commits that a line of a reflog keeps; None if it is too old, or is of an absent branch."""
        return None if line.order < self._oldest or ref_of_line(key) in self._without else line.commits

    def garbage(self) -> list[Garbage]:
        """How many objects are garbage, by the reason why. An object of two reasons counts for the first."""
        causes = self._causes()
        reached = {reason: self._below(commits) for reason, commits in causes.items()}
        found = dict.fromkeys([*causes, UNREACHABLE], (0, 0))
        for oid, stored in self.marks.garbage_rows():
            reason = next((reason for reason, reach in reached.items() if oid in reach), UNREACHABLE)
            objects, size = found[reason]
            found[reason] = objects + 1, size + len(stored)
        return [Garbage(reason, *counts) for reason, counts in found.items() if counts[0]]

    def _causes(self) -> Mapping[str, Sequence[ObjectId]]:
        """By reason, commits that do not stay for it."""
        refs = self._repo.refs.all()
        idle = [refs[ref] for ref in self._without if ref in refs]
        logged: list[ObjectId] = []
        for keys in batches(sorted(self.lines, reverse=True), BATCH):
            for key, row in self._repo.store.get_many(keys).items():
                line = self._repo.refs.parse_line(key, row)
                (idle if ref_of_line(key) in self._without else logged).extend(line.commits)
        return {
            "of branches that were idle": idle,
            "before the new end of a history": () if self.cut is None else self.cut.dropped,
            "named by lines of a reflog that go": logged,
            "left by an import or a push that did not end": arrivals(self._repo.store)[1],
        }

    def _below(self, commits: Iterable[ObjectId]) -> Reach:
        """The garbage that these commits need, as far as it can be read."""
        marks = self.marks
        reach = Reach(self._repo.objects, marks.history, marks.lost, but=marks.reach)
        for oid in commits:
            if oid not in marks and oid not in reach and self._repo.objects.is_stored(oid):
                with suppress(CorruptObject):
                    for _ in reach.extend([oid]):
                        pass
        return reach


class Sweep:
    """Removes objects that are garbage still, a batch at a time, and counts them. Others may write meanwhile.

    A kill or a failure between two batches leaves garbage, and no commit without its objects.
    """

    def __init__(self, repo: Core, progress: UpkeepProgress | None = None) -> None:
        self._repo = repo
        self._store = repo.store
        self._progress = progress or (lambda step, count: None)
        self._exclusive = True  # until the store proves unable to keep others out
        self.removed = self.removed_bytes = self.waiting = self.lines = self.ends = 0

    def execute(self, plan: Plan, grace: timedelta) -> None:
        """Carry out a plan: end the histories, and remove the lines and the objects that go.

        Commits go first, from the newest on, then their objects: a commit that is there has all its objects.
        """
        marks = plan.marks
        if plan.ends:
            marks.cut_off(plan.ends)
            self.ends += len(plan.ends)
        noted = arrivals(self._store)[0]  # before the look, so that it finds their commits
        commits, objects = marks.find_garbage()
        for lines in batches(plan.lines, MOST_DELETED):
            self._store.delete_many(lines)
            self.lines += len(lines)
        self.remove(marks, newest_first(commits), noted)
        if objects > len(commits):
            self.remove(marks, marks.garbage())
        if self._exclusive and arrivals(self._store)[0]:
            self._delete(marks, ())  # of commits that refs lead to by now
        self._see_to_trash(marks, grace)
        _forget_rows(self._store, marks)
        _forget_segments(self._store, marks)
        marks.history.index([*marks.refs.values()])

    def remove(self, marks: Marks, ids: Iterable[ObjectId], noted: Collection[str] = ()) -> None:
        """Remove those that are still unreachable, a thousand at a time.

        With each thousand go the commits that have arrived meanwhile without a ref. The rows `noted` are
        left, because their commits are among the ids, in an order that keeps each commit whole.
        """
        for some in batches(ids, MOST_DELETED):
            self._exclusive = self._exclusive and self._delete(marks, some, noted)
            if not self._exclusive:
                self._set_aside(marks, some)

    def _delete(self, marks: Marks, ids: Sequence[ObjectId], noted: Collection[str] = ()) -> bool:
        """Delete those that are still unreachable, while nobody else writes; False if the store cannot."""
        found: dict[str, bytes] = {}

        def deletions() -> Mapping[str, bytes | None]:
            nonlocal found
            marks.catch_up()
            arrived, commits = arrivals(self._store, but=noted)
            found = self._store.get_many(
                [OBJECT_PREFIX + oid.hex() for oid in (*commits, *ids) if oid not in marks]
            )
            return {SWEEP: new_mark(), **dict.fromkeys([*arrived, *found])}

        if not self._store.exclusively(deletions):
            return False
        self.removed += len(found)
        self.removed_bytes += sum(map(len, found.values()))
        self._progress("removing", self.removed)
        return True

    def _set_aside(self, marks: Marks, ids: Sequence[ObjectId]) -> None:
        """Move garbage to the trash, where readers still find it, in a store with other writers."""
        marks.catch_up()
        self._store.set(SWEEP, new_mark())
        found = self._store.get_many([OBJECT_PREFIX + oid.hex() for oid in ids if oid not in marks])
        self._store.set_many(
            {TRASH + key.removeprefix(OBJECT_PREFIX): in_trash(value) for key, value in found.items()}
        )
        self._store.delete_many(list(found))
        # A writer may have found one of them before the look, and moved a ref to it afterwards.
        marks.catch_up()
        back = {
            key: value
            for key, value in found.items()
            if ObjectId.parse(key.removeprefix(OBJECT_PREFIX)) in marks
        }
        self._store.set_many(back)
        self._store.delete_many([TRASH + key.removeprefix(OBJECT_PREFIX) for key in back])

    def _see_to_trash(self, marks: Marks, grace: timedelta) -> None:
        """Put back the objects that a ref leads to again, and delete those whose grace period is over."""
        limit = time.time() - grace.total_seconds()
        self.waiting = 0
        for batch in batches(self._store.items(TRASH), BATCH):
            if any(_waits_since(value) <= limit for _, value in batch):
                # Before the look: a writer that then moves a ref to an object in the trash sees the mark.
                self._store.set(SWEEP, new_mark())
            marks.catch_up()
            back, gone = {}, []
            for key, value in batch:
                digits = key.removeprefix(TRASH)
                if ObjectId.parse(digits) in marks:
                    back[OBJECT_PREFIX + digits] = value[8:]
                    gone.append(key)
                elif _waits_since(value) <= limit:
                    self.removed += 1
                    self.removed_bytes += len(value) - 8
                    gone.append(key)
                else:
                    self.waiting += 1
            self._store.set_many(back)
            self._store.delete_many(gone)


def newest_first(commits: Mapping[ObjectId, int]) -> list[ObjectId]:
    """The commits, each given with its order, so that none comes after one before it."""
    return sorted(commits, key=commits.__getitem__, reverse=True)


def _pack(repo: Core, marks: Marks) -> None:
    """Have the store pack all objects but the newest commits and the nodes of their trees."""
    if not repo.store.keeps_packs:
        return
    with suppress(StoreFull, CorruptObject):  # also where a ref moved meanwhile: the next gc packs then
        commits = repo.objects.commits(list(dict.fromkeys(marks.refs.values())))
        pack_objects(repo.store, repo.objects, commits)


def _forget_rows(store: KVStore, marks: Marks) -> None:
    """Drop the ends of histories of removed commits, and the notes on lost objects that nothing leads to.

    Notes that others make meanwhile stay.
    """

    def deletions() -> Mapping[str, bytes | None]:
        cut = [key for key in store.keys(SHALLOW) if OBJECT_PREFIX + key.removeprefix(SHALLOW) not in store]
        lost = [key for key, oid in notes_on_lost(store) if oid not in marks.reach.lost]
        return dict.fromkeys([*cut, *lost])

    if not store.exclusively(deletions):
        store.delete_many(deletions())


def _forget_segments(store: KVStore, marks: Marks) -> None:
    """Drop the rows of the graph that are damaged, or that hold a commit that is gone."""
    stale = []
    for key, row in store.items(GRAPH):
        try:
            others = [oid for oid in read_segment(key, row).ids if oid not in marks]
        except ValueError:
            stale.append(key)
            continue
        # Others may have made commits since the walk.
        objects = [OBJECT_PREFIX + oid.hex() for oid in others]
        if len(store.present(objects)) < len(objects):
            stale.append(key)
    store.delete_many(stale)
    marks.history.reload()


def _waits_since(trash: bytes) -> int:
    return int.from_bytes(trash[:8], "big")
