"""gc: a plan of what stays and what goes, and a sweep that removes what goes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from math import inf
from types import MappingProxyType

from vstate.errors import CorruptObject, CorruptStore, StoreFull
from vstate.kv.base import OBJECT_PREFIX, RELEASE_SECONDS, KVStore, TransactionalStore, batches, split_room
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
from vstate.repo.packer import newest_objects, pack_objects
from vstate.repo.rooms import GONE, Room, entry, new_mark, prefix_of
from vstate.repo.rules.keeps import Keep, KeepRules, find_rule
from vstate.repo.sweeps import arrivals, retry_after_sweep, unfinished
from vstate.repo.upkeep.metadata import object_id
from vstate.repo.upkeep.reach import Marks, Reach, UpkeepProgress, notes_on_lost
from vstate.repo.upkeep.shortening import Cut
from vstate.repo.walk import BATCH
from vstate.values.inspection import size_text

KEEP_REFLOG = "30d"
GRACE = "1h"

NEXT = "gc/next"
"""The key whose value says where the next step of a round through all rooms begins: the number of a room, how
many this round has done, and how many the last one did; in decimal digits, with a space between two."""

_SHARE = 0.75  # of the time for rooms; the rest is for giving room back

_QUIET = (OBJECT_PREFIX, GRAPH, SHALLOW, SWEEP)
"""What the keys of rows begin with that may be in a room without garbage, besides refs and reflogs."""

_MOST_LOOSE = 4096  # objects to pack that wait for others

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
        return f"{counted(self.objects, 'object')}, {size_text(self.bytes)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class GcReport:
    """The results of `gc`, or with `dry_run` those of a real run. Bytes are those of the stored form.

    `live` and `removed` count objects. `waiting` are the unreachable objects that a store without
    transactions keeps for the grace period. `shallow` counts the commits that lost parents.
    `kept_by` are the branches that share commits with a branch to cut: these commits keep their history.
    `expired` are the branches that a rule of `keep` lets go, and that `gc` has deleted. `rooms` counts the
    rooms that were collected. `rooms_left` counts those that `seconds` left for the next calls, by the last
    round through all rooms; None in the first round. `size_before` and `size_after` are the bytes of the
    store's files; None for a store without, and after a dry run. After a dry run, `garbage` tells why the
    objects would go; after a real one it is empty.
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
    rooms: int = 1
    rooms_left: int | None = 0
    expired: tuple[str, ...] = ()
    size_before: int | None = None
    size_after: int | None = None
    garbage: tuple[Garbage, ...] = ()

    def __str__(self) -> str:
        return "\n".join([*self.lines(), f"({self.seconds:.2f} s)"])

    def lines(self) -> Iterator[str]:
        """The report for people, line by line."""
        removed = "would remove" if self.dry_run else "removed"
        yield f"{removed} {counted(self.removed, 'object')}, {size_text(self.removed_bytes)}"
        yield from (f"  {part}" for part in self.garbage)
        if self.size_before is not None and self.size_after is not None:
            yield f"the files took {size_text(self.size_before)} and take {size_text(self.size_after)}"
        if self.expired:
            branches = "the idle branch" if len(self.expired) == 1 else "the idle branches"
            yield f"{removed} {branches} {', '.join(self.expired)}"
        if self.reflog_lines:
            yield f"{removed} {counted(self.reflog_lines, 'reflog line')}"
        if self.shallow:
            yield f"{removed} the history behind {counted(self.shallow, 'commit')}"
        if self.kept_by:
            yield f"kept history that is shared; to cut it too, name {', '.join(self.kept_by)} as well"
        if self.waiting:
            yield f"{counted(self.waiting, 'object')} must wait for the grace period: run gc again after it"
        if self.rooms_left != 0:
            left = "some" if self.rooms_left is None else f"some {self.rooms_left:,}"
            yield f"{counted(self.rooms, 'room')} done, {left} left: run it again to go on"
        yield f"{counted(self.live, 'object')} in use"


def collect(
    repo: Core,
    *,
    keep_reflog: str | timedelta = KEEP_REFLOG,
    limits: Mapping[str, Keep] = MappingProxyType({}),
    grace: str | timedelta = GRACE,
    seconds: float | None = None,
    dry_run: bool = False,
    progress: UpkeepProgress | None = None,
) -> GcReport:
    """As `Repository.gc` promises."""
    began = time.monotonic()
    size_before = repo.store.size()
    work = Collector(repo, keep_reflog, limits, grace, dry_run, progress)
    left: int | None = 0
    if seconds is None:
        work.collect_from(0)
    else:
        _, left = step(work, began + seconds * _SHARE)
    if not dry_run:
        repo.history.reload()
        repo.store.release(RELEASE_SECONDS if seconds is None else began + seconds - time.monotonic())
    if work.damage is not None:
        raise work.damage
    counts = work.counts
    return GcReport(
        live=counts["live"],
        removed=counts["removed"],
        removed_bytes=counts["removed_bytes"],
        waiting=counts["waiting"],
        reflog_lines=counts["reflog_lines"],
        shallow=counts["shallow"],
        kept_by=tuple(work.kept_by),
        dry_run=dry_run,
        seconds=time.monotonic() - began,
        expired=tuple(sorted(ref.removeprefix(HEADS) for ref in work.expired)),
        size_before=size_before,
        size_after=None if dry_run else repo.store.size(),
        garbage=tuple(Garbage(reason, *found) for reason, found in work.garbage.items()),
        rooms=counts["rooms"],
        rooms_left=left,
    )


def step(work: Collector, until: float, least: int = 0) -> tuple[int | None, int | None]:
    """Collect rooms until that moment, from where the last step ended. Without its row a round begins anew.
    Rooms with numbers below `least` are left out.

    The number of the next one as `collect_from`; and how many are left, which the round before tells, so None
    in the first round.
    """
    store = work.repo.store
    try:
        begin, done, most = map(int, (store.get(NEXT) or b"").decode("ascii").split())
    except ValueError:
        begin = done = most = 0
    after = work.collect_from(max(begin, least), until)
    done += work.counts["rooms"]
    row = (0, 0, done) if after is None else (after, done, most)
    if not work.dry_run:
        store.set(NEXT, " ".join(map(str, row)).encode())
    if after is None:
        return None, 0
    return after, max(1, most - done) if most else None


class Collector:
    """Collects the garbage of a repository, one room after the other, and adds the results up.

    A small room, of at most MOST_DELETED rows, is collected in a copy while nobody else writes, and what
    changed there is one transaction. A quiet one is left alone: it has no garbage. Any other room, and all of
    a store without transactions, is swept in steps. A damaged room stays as it is: `damage` is the first
    error. `counts` has the numbers of a GcReport, by its names.
    """

    def __init__(
        self,
        repo: Core,
        keep_reflog: str | timedelta = KEEP_REFLOG,
        limits: Mapping[str, Keep] = MappingProxyType({}),
        grace: str | timedelta = GRACE,
        dry_run: bool = False,
        progress: UpkeepProgress | None = None,
    ) -> None:
        self.repo = repo
        self.dry_run = dry_run
        self._keep_reflog = age = parse_age(keep_reflog)
        self._grace = parse_age(grace)
        self._progress = progress or (lambda step, count: None)
        self._limits = _by_room(repo, limits)
        self._rules = KeepRules(repo.store).read()
        # Lines whose places begin with less go. No age asks for a look at everything.
        self._oldest = f"{microseconds(datetime.now(UTC) - age) * 1000:016x}" if age else None
        self._packs = repo.store.keeps_packs and not dry_run
        self._until = inf
        self._loose: list[str] = []
        self.counts = Counter[str]()
        self.kept_by: list[str] = []
        self.expired: list[str] = []
        self.garbage: dict[str, tuple[int, int]] = {}
        self.damage: CorruptObject | CorruptStore | None = None

    def collect_from(self, begin: int, until: float = inf) -> int | None:
        """Collect the rooms from this number on, ascending, until that moment, but at least one.

        The number of the next one, or of one that has more to sweep; None at the end. The rooms of the limit
        come first.
        """
        self._until = until
        after = None
        for number, keys in self._rooms_from(begin):
            if self.counts["rooms"] and time.monotonic() >= until:
                after = number
                break
            self._progress("rooms", self.counts["rooms"])
            self.counts["rooms"] += 1
            try:
                if not self.collect(number, keys):
                    after = number
                    break
            except (CorruptObject, CorruptStore) as error:
                self.damage = self.damage or error
        self.pack()
        return after

    def _rooms_from(self, begin: int) -> Iterator[tuple[int, Sequence[str] | None]]:
        yield from ((number, None) for number in self._limits)
        if not begin and 0 not in self._limits:
            yield 0, None
        if self.repo.rooms is not None:
            for number, keys in self.repo.rooms.listed(begin, MOST_DELETED):
                if number not in self._limits:
                    yield number, keys

    def collect(self, number: int, keys: Sequence[str] | None = None) -> bool:
        """Collect the garbage of one room; False if there was no time for all of it.

        `keys` are those of the room, if they are known, and of a room that is not small some.
        """
        idle = self._end_idle_branches(number) if self._rules else []
        if number and (idle or keys is None):
            keys = self._keys(number)
        if keys is None or len(keys) > MOST_DELETED:
            return self._sweep_room(number, idle)
        heads = (key.removeprefix(REF + HEADS) for key in keys if key.startswith(REF + HEADS))
        if not (idle or self._limits_of(number, heads)) and self._is_quiet(keys):
            self.counts["live"] += sum(key.startswith(OBJECT_PREFIX) for key in keys)
            if self._packs:
                self._note_loose(number, RoomCopy(self.repo.store, prefix_of(number), keys))
            return True
        return (not self.dry_run and self._collect_copy(number)) or self._sweep_room(number, idle)

    def _lifetimes(self, branches: Iterable[str]) -> dict[str, timedelta]:
        """By ref, after how long without a move these branches go; of those that do."""
        ages = ((name, find_rule(self._rules, name).idle) for name in branches if self._rules)
        return {HEADS + name: age for name, age in ages if age is not None}

    def _limits_of(self, number: int, branches: Iterable[str]) -> Mapping[str, Keep]:
        """What stays of the histories of these branches of a room, of those that are to be cut off."""
        rules = ((name, find_rule(self._rules, name)) for name in branches if self._rules)
        return {**{name: keep for name, keep in rules if keep.shortens}, **self._limits.get(number, {})}

    def _is_quiet(self, keys: Iterable[str]) -> bool:
        """Whether a room with these keys has refs and no garbage: no line of a reflog goes, nothing has
        arrived without a ref, and no removal was cut short.
        """
        if self._oldest is None:
            return False
        has_refs = False
        for key in keys:
            if key.startswith(REFLOG):
                if key.rpartition(":")[2] < self._oldest:
                    return False
            elif key.startswith(REF):
                has_refs = True
            elif not key.startswith(_QUIET):
                return False
        return has_refs

    def _keys(self, number: int) -> list[str]:
        return list(islice(Room(self.repo.store, number).own_keys(), MOST_DELETED + 1))

    def _end_idle_branches(self, number: int) -> list[str]:
        """Delete the branches of a room that were idle for as long as they are kept; not in a dry run."""
        repo = self.repo
        room = self._room(number)
        found = retry_after_sweep(
            repo, lambda: _idle_branches(repo, self._lifetimes(room.refs.list(HEADS)), expiry.now())
        )
        idle = [ref for ref, head in found.items() if self.dry_run or _ended(repo, ref, head)]
        self.expired += idle
        return idle

    def _room(self, number: int, copy: KVStore | None = None) -> Core:
        return self.repo if self.repo.rooms is None else self.repo.room(number, copy)

    def _collect_copy(self, number: int) -> bool:
        """Collect a small room; False if it has grown meanwhile, or cannot be changed at once."""
        store, prefix = self.repo.store, prefix_of(number)
        found: tuple[RoomCopy, Plan, Sweep] | None = None

        def changes() -> Mapping[str, bytes | None]:
            nonlocal found
            found, keys = None, self._keys(number)
            if len(keys) > MOST_DELETED:
                return {}
            copy = RoomCopy(store, prefix, keys)
            room = self._room(number, copy)
            plan, sweep = self._plan(room, number), Sweep(room)
            sweep.execute(plan, self._grace)
            found = copy, plan, sweep
            rows = copy.changes if _is_named(copy) else dict.fromkeys(keys)
            return {prefix + key: row for key, row in rows.items()} | self._gone(copy, number, plan)

        if not store.exclusively(changes) or found is None:
            return False
        copy, plan, sweep = found
        self._count(plan, sweep.counts)
        if self._packs:
            self._note_loose(number, copy)
        return True

    def _sweep_room(self, number: int, idle: Collection[str]) -> bool:
        """Collect a room in steps; False if there was no time for all of it."""
        room = self._room(number)
        if self.dry_run:
            self._foresee(retry_after_sweep(room, lambda: self._plan(room, number, idle)), idle)
            return True
        sweep = Sweep(room, self._progress)  # each attempt removes something, and the last one the rest
        sweep.until = self._until

        def swept() -> Plan:
            plan = self._plan(room, number)
            sweep.execute(plan, self._grace)
            return plan

        plan = retry_after_sweep(room, swept)
        self._count(plan, sweep.counts)
        if gone := self._gone(room.store, number, plan):
            self.repo.store.transact(gone, dict.fromkeys(gone, entry(number)))
        if not sweep.is_whole:
            return False
        if room.store.keeps_packs:
            with suppress(StoreFull, CorruptObject):  # also where a ref moved meanwhile: the next gc packs
                pack_objects(room.store, room.objects, plan.marks.refs.values())
        if number and not _is_named(room.store):
            self._collect_copy(number)  # the rest of the room goes too
        return True

    def _plan(self, room: Core, number: int, without: Collection[str] = ()) -> Plan:
        progress = None if isinstance(room.store, RoomCopy) else self._progress
        heads = [name for name in room.refs.list(HEADS) if HEADS + name not in without]
        limits, timed = self._limits_of(number, heads), self._lifetimes(heads)
        return Plan(room, self._keep_reflog, limits, without, progress, timed)

    def _count(self, plan: Plan, counts: Mapping[str, int]) -> None:
        self.counts.update({"live": len(plan.marks), **counts})
        self.kept_by += [] if plan.cut is None else plan.cut.kept_by

    def _foresee(self, plan: Plan, idle: Collection[str]) -> None:
        """Count what a plan would remove, and why."""
        garbage = plan.garbage()
        for part in garbage:
            objects, size = self.garbage.get(part.reason, (0, 0))
            self.garbage[part.reason] = objects + part.objects, size + part.bytes
        counts = {
            "removed": sum(part.objects for part in garbage),
            "removed_bytes": sum(part.bytes for part in garbage),
            "reflog_lines": sum(ref_of_line(key) not in idle for key in plan.lines),
            "shallow": len(plan.ends),
        }
        self._count(plan, counts)

    def _gone(self, room: KVStore, number: int, plan: Plan) -> dict[str, bytes | None]:
        """The notes on deleted refs of a room that no line of a reflog is about any more, to delete."""
        refs = {ref_of_line(key) for key in plan.lines} if number else ()
        ended = [ref for ref in refs if next(iter(room.keys(f"{REFLOG}{ref}:")), None) is None]
        return {GONE + ref: None for ref in ended if self.repo.store.get(GONE + ref) == entry(number)}

    def _note_loose(self, number: int, copy: KVStore) -> None:
        """Note the objects of a small room for packing, without the newest ones."""
        room, prefix = self._room(number, copy), prefix_of(number)
        with suppress(CorruptObject):  # the next gc packs
            kept = newest_objects(room.objects, room.refs.all().values())
            for key in copy.keys(OBJECT_PREFIX):
                oid = object_id(key)
                if oid is not None and oid not in kept:
                    self._loose.append(prefix + key)
        if len(self._loose) > _MOST_LOOSE:
            self.pack()

    def pack(self) -> None:
        """Have the store pack the objects that are seldom read of the small rooms collected so far."""
        keys, self._loose = self._loose, []
        plain = self.repo.objects.plain
        if keys:
            with suppress(StoreFull):
                self.repo.store.pack(lambda key, value: plain(split_room(key)[1], value), keys)


def _is_named(room: KVStore) -> bool:
    """Whether a room has a ref or a reflog."""
    return any(True for prefix in (REF, REFLOG) for _ in room.keys(prefix))


def _by_room(repo: Core, limits: Mapping[str, Keep]) -> dict[int, dict[str, Keep]]:
    """The limits for the branches of each room that has some."""
    found: dict[int, dict[str, Keep]] = {}
    for name, keep in limits.items():
        repo.branch(name)  # raises if it is absent
        room = 0 if repo.rooms is None else repo.rooms.room_of(HEADS + name)
        found.setdefault(room, {})[name] = keep
    return found


def _idle_branches(repo: Core, kept: Mapping[str, timedelta], now: int) -> dict[str, ObjectId]:
    """The branches, other than HEAD's, that no commit has reached for as long as they are kept, and where
    they are.
    """
    idle, of_head = {}, repo.refs.head().branch if kept else None
    for ref, age in sorted(kept.items()):
        head = repo.refs.read(ref)  # before its last move: a commit that comes between makes it look busy
        if head is not None and ref != f"{HEADS}{of_head}":
            move = next(repo.refs.reflog(ref), None) or repo.objects.commit(head)  # an old line may be gone
            if microseconds(move.time) + age // timedelta(microseconds=1) <= now:
                idle[ref] = head
    return idle


def _ended(repo: Core, ref: str, head: ObjectId) -> bool:
    """Delete an idle branch with its reflog; False if a commit, or HEAD, has reached it meanwhile."""
    rows = repo.policies.rows_without(ref.removeprefix(HEADS)) | unfinished(repo.home(ref).store)
    return repo.refs.end(ref, rows, expected=head, but_head=True)


class Plan:
    """What `gc` keeps, what it removes, and why. Making a plan writes nothing.

    `marks` are the objects that stay, and all others are garbage. `lines` are the keys of the reflog lines
    that go. `ends` are the rows that cut histories off; for `marks` they are cut off already. The branches
    `without` count as absent. Of the refs that are `timed`, the last line stays, which tells their last move.
    """

    def __init__(
        self,
        repo: Core,
        age: timedelta,
        limits: Mapping[str, Keep],
        without: Collection[str],
        progress: UpkeepProgress | None,
        timed: Iterable[str],
    ) -> None:
        """`age` is that of the lines that go."""
        began, now = time.monotonic(), datetime.now(UTC)
        self._repo = repo
        # No age keeps nothing, not even a line that a clock a year ahead dated.
        self._oldest = microseconds(now - age) if age else LAST_ORDER
        self._without = without
        lines = (max(repo.store.keys(f"{REFLOG}{ref}:"), default="") for ref in timed)
        self._last_lines = frozenset(lines)
        self.marks = Marks(repo, without=without, progress=progress)
        keeps = self._keeps
        self.cut = None
        if limits:
            self.cut = Cut(repo, self.marks.history, limits, now, keeps, without)
            keeps = self.cut.keeps
        self.ends: Mapping[str, bytes] = {} if self.cut is None else self.cut.rows
        self.lines = self.marks.begin(keeps)
        self.seconds = time.monotonic() - began

    def _keeps(self, key: str, line: ReflogEntry) -> Sequence[ObjectId] | None:
        """The commits that a line of a reflog keeps; None if it is too old, or is of an absent branch."""
        if ref_of_line(key) in self._without:
            return None
        if line.order >= self._oldest:
            return line.commits
        return () if key in self._last_lines else None

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
            "taken out of a history": () if self.cut is None else self.cut.dropped,
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

    A kill or a failure between two batches leaves garbage, and no commit without its objects. `counts` has
    some numbers of a GcReport, by its names.
    """

    def __init__(self, repo: Core, progress: UpkeepProgress | None = None) -> None:
        self._repo = repo
        self._store = repo.store
        self._progress = progress or (lambda step, count: None)
        self._exclusive = True  # until the store proves unable to keep others out
        self.until = inf
        """When to leave the rest to another sweep. It removes for as long, at least, as the plan took."""
        self.is_whole = True
        self.counts = Counter[str]()
        self.removed: set[str] | None = None
        """The keys of the removed objects, if it begins as a set."""

    def execute(self, plan: Plan, grace: timedelta) -> None:
        """Carry out a plan: remove the lines that go, end the histories, and remove the objects that go.

        The lines go first. After a kill before the ends, the next plan finds the same ends.
        """
        marks = plan.marks
        self.until = max(self.until, time.monotonic() + plan.seconds)
        if plan.lines and (begun := unfinished(self._store)):
            self._store.set_many(begun)
        for lines in batches(plan.lines, MOST_DELETED):
            self._store.delete_many(lines)
            self.counts["reflog_lines"] += len(lines)
        if plan.ends:
            marks.cut_off(plan.ends)
            self.counts["shallow"] += len(plan.ends)
        self.remove_garbage(marks, grace)
        if self.is_whole:
            marks.history.index([*marks.refs.values()])

    def remove_garbage(self, marks: Marks, grace: timedelta = timedelta.max) -> None:
        """Remove all objects that do not stay, and the rows about them.

        Commits go first, from the newest on, then their objects: a commit that is there has all its objects.
        """
        noted = arrivals(self._store)[0]  # before the look, so that it finds their commits
        commits, objects = marks.find_garbage()
        if objects:
            begun = unfinished(self._store)
            if begun:
                self._store.set_many(begun)
            noted += begun
            self._remove(marks, sorted(commits, key=commits.__getitem__, reverse=True), noted)
            if objects > len(commits) and self.is_whole:
                self._remove(marks, marks.garbage(), noted)
        if not self.is_whole:
            return
        if self._exclusive and arrivals(self._store)[0]:
            self._delete(marks, ())  # of commits that refs lead to by now
        self._see_to_trash(marks, grace)
        _forget_rows(self._store, marks)
        _forget_segments(self._store, marks)

    def _remove(self, marks: Marks, ids: Iterable[ObjectId], noted: Collection[str]) -> None:
        """Remove those that are still unreachable, a thousand at a time.

        With each thousand go the commits that have arrived meanwhile without a ref. The rows `noted` are left
        to the end: their commits are among the ids, in an order that keeps each commit whole.
        """
        for count, some in enumerate(batches(ids, MOST_DELETED)):
            if count and time.monotonic() > self.until:
                self.is_whole = False
                return
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
        self._note(found)
        self.counts["removed"] += len(found)
        self.counts["removed_bytes"] += sum(map(len, found.values()))
        self._progress("removing", self.counts["removed"])
        return True

    def _note(self, keys: Iterable[str]) -> None:
        if self.removed is not None:
            self.removed |= set(keys)

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
        self.counts["waiting"] = 0
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
                    self.counts["removed"] += 1
                    self.counts["removed_bytes"] += len(value) - 8
                    self._note([OBJECT_PREFIX + digits])
                    gone.append(key)
                else:
                    self.counts["waiting"] += 1
            self._store.set_many(back)
            self._store.delete_many(gone)


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


class RoomCopy(TransactionalStore):
    """A small room in memory, with these keys, and the changes that were made to it. The store never changes.

    It reads each row once: objects at their first use, and all other rows at once.
    """

    remote = False

    def __init__(self, store: KVStore, prefix: str, keys: Iterable[str]) -> None:
        self._store = store
        self._prefix = prefix
        self._rows: dict[str, bytes | None] = dict.fromkeys(keys)  # None: not read yet
        self.changes: dict[str, bytes | None] = {}
        """The rows that were written here, None for a deletion."""
        self._read([key for key in self._rows if not key.startswith(OBJECT_PREFIX)])

    @property
    def location(self) -> str:
        """Where the store is."""
        return self._store.location

    def _read(self, keys: Iterable[str]) -> None:
        names = {self._prefix + key: key for key in keys if self._rows.get(key, b"") is None}
        found = self._store.get_many(list(names)) if names else {}
        for name, key in names.items():
            if (row := found.get(name)) is None:
                del self._rows[key]  # it was deleted after the keys were listed
            else:
                self._rows[key] = row

    def get(self, key: str) -> bytes | None:
        self._read([key])
        return self._rows.get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        keys = list(keys)
        self._read(keys)
        return {key: row for key in keys if (row := self._rows.get(key)) is not None}

    def keys(self, prefix: str = "") -> Iterator[str]:
        return iter([key for key in self._rows if key.startswith(prefix)])

    def present(self, keys: Iterable[str]) -> Set[str]:
        return self._rows.keys() & set(keys)

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        if any(self.get(key) != row for key, row in expected.items()):
            return False
        for key, row in writes.items():
            if row is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = row
        self.changes |= writes
        return True

    def exclusively(self, plan: Callable[[], Mapping[str, bytes | None]]) -> bool:
        return self.transact(plan(), {})
