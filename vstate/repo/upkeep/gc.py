"""gc: removes the objects that no ref and no reflog leads to, and cuts histories short."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile

from blake3 import blake3

from vstate.errors import CorruptObject, InvalidInput, StoreFull
from vstate.kv.base import OBJECT_PREFIX, KVStore, batches
from vstate.objects import expiry
from vstate.objects.commit import LAST_ORDER, Commit, dated, microseconds
from vstate.objects.ids import COMMIT, ObjectId
from vstate.plural import counted
from vstate.repo.core import Core
from vstate.repo.graph import GRAPH, read_segment
from vstate.repo.history import SHALLOW, History, shallow_row
from vstate.repo.idset import IdSet
from vstate.repo.names.dates import parse_age
from vstate.repo.names.refs import (
    FOREVER,
    HEAD,
    HEADS,
    KEEP,
    REFLOG,
    REMOTES,
    SWEEP,
    TAGS,
    ReflogEntry,
    parse_keep,
)
from vstate.repo.objects import DAMAGED, INCONSISTENT, TRASH, in_trash, kind_of
from vstate.repo.packer import pack_objects
from vstate.repo.sweeps import arrivals, retry_after_sweep
from vstate.repo.upkeep.metadata import noted, object_id
from vstate.repo.upkeep.reach import Reach

KEEP_REFLOG = "30d"
GRACE = "1h"
IDLE = "branch: idle"

_READ = 256
MOST_DELETED = 1000
"""Objects that are deleted in one transaction, for which others wait some 10 ms."""

UpkeepProgress = Callable[[str, int], None]
"""Called now and then with the name of the step, and the number of objects so far."""


@dataclass(frozen=True, slots=True)
class GcReport:
    """The results of `gc`, or with `dry_run` those of a real run. Bytes are those of the stored form.

    `live` and `removed` count objects. `waiting` are the unreachable objects that a store without
    transactions keeps for the grace period. `shallow` counts the commits whose parents were cut off.
    `kept_by` are the branches that share commits with a branch to cut: these commits keep their history.
    `expired` are the branches that no commit has reached for longer than their `ttl`, and that `gc` has
    deleted. `size_before` and `size_after` are the bytes of the store's files; None for a store without, and
    after a dry run.
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

    def __str__(self) -> str:
        would = "would remove" if self.dry_run else "removed"
        parts = [f"{would} {counted(self.removed, 'object')} of {counted(self.removed_bytes, 'byte')}"]
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


@dataclass(frozen=True, slots=True)
class HistoryLimit:
    """The new end of the history of branches: after `keep_last` commits, or at the age `keep_since`."""

    branches: tuple[str, ...]
    keep_last: int | None = None
    keep_since: str | timedelta | None = None


def collect(
    repo: Core,
    *,
    keep_reflog: str | timedelta = KEEP_REFLOG,
    cut: HistoryLimit | None = None,
    grace: str | timedelta = GRACE,
    dry_run: bool = False,
    progress: UpkeepProgress | None = None,
) -> GcReport:
    """As `Repository.gc` promises."""
    began = time.monotonic()
    now = datetime.now(UTC)

    size_before = repo.store.size()
    idle = [ref for ref in _idle_branches(repo, expiry.now()) if dry_run or _ended(repo, ref)]
    swept: list[Collector] = []  # each attempt removes something, and the last one the rest

    def attempt() -> tuple[Collector, dict[str, bytes]]:
        age = parse_age(keep_reflog)
        # No age keeps nothing, not even a line that a clock a year ahead dated.
        oldest = microseconds(now - age) if age else LAST_ORDER
        collector = Collector(repo, oldest, progress, without=idle if dry_run else ())
        shallow = {} if cut is None else collector.cut(cut, now)
        collector.mark()
        swept.append(collector)
        if dry_run:
            collector.find_garbage()
        else:
            if shallow:
                collector.shorten(shallow)
            collector.sweep(parse_age(grace))
        return collector, shallow

    collector, shallow = retry_after_sweep(repo, attempt)
    if not dry_run:
        collector.pack()
        repo.store.release()
    return GcReport(
        live=len(collector.reach),
        removed=sum(each.removed for each in swept),
        removed_bytes=sum(each.removed_bytes for each in swept),
        waiting=collector.waiting,
        reflog_lines=sum(len(each.expired) for each in swept),
        shallow=len(shallow),
        kept_by=tuple(collector.kept_by),
        dry_run=dry_run,
        seconds=time.monotonic() - began,
        expired=tuple(ref.removeprefix(HEADS) for ref in idle),
        size_before=size_before,
        size_after=None if dry_run else repo.store.size(),
    )


def _idle_branches(repo: Core, now: int) -> list[str]:
    """The branches that no commit has reached for as long as they are kept."""
    idle = []
    for key, row in repo.store.items(KEEP + HEADS):
        ref = key.removeprefix(KEEP)
        with suppress(ValueError):  # fsck reports the damaged row; the branch stays
            kept = parse_keep(row)
            if kept != FOREVER and (moved := _last_move(repo, ref)) is not None and moved + kept <= now:
                idle.append(ref)
    return sorted(idle)


def _last_move(repo: Core, ref: str) -> int | None:
    """When the branch was last moved, in microseconds; None if it is gone."""
    head = repo.refs.read(ref)
    if head is None:
        return None
    line = next(repo.refs.reflog(ref), None)  # an old line may be gone
    return microseconds(repo.objects.commit(head).time if line is None else line.time)


def _ended(repo: Core, ref: str) -> bool:
    """Delete an idle branch with its reflog; False if a commit has reached it meanwhile."""
    head = repo.refs.read(ref)
    rows = repo.policies.rows_without(ref.removeprefix(HEADS))
    return head is not None and repo.refs.end(ref, rows, expected=head, action=IDLE)


class Collector:
    """One run of gc: `mark` walks from all that stays, `sweep` removes the rest."""

    def __init__(
        self,
        repo: Core,
        oldest: int,
        progress: UpkeepProgress | None = None,
        *,
        without: Collection[str] = (),
        head_log: bool = True,
    ) -> None:
        self._repo = repo
        self._store = repo.store
        self._oldest = oldest
        self._progress = progress or (lambda step, count: None)
        self.history = History(repo.objects, repo.history.trail)
        self.lost = _known_to_be_lost(repo.store)
        self.reach = Reach(repo.objects, self.history, self.lost)
        self._exclusive = True  # until the store proves unable to keep others out
        self.without = without
        """Refs that keep nothing, nor do their reflogs."""
        self._head_log = head_log
        self.lines_of_head: dict[str, ReflogEntry] = {}
        """The lines of HEAD that `mark` left out; all of them, without `head_log`."""
        self._refs: dict[str, ObjectId] = {}
        self._lines = IdSet()  # the reflog lines that this run has read
        self._ends: dict[str, bytes] = {}  # the rows with the ends of histories
        self._begin: dict[str, int] = {}  # by branch, the order of the oldest commit that a cut leaves
        self._cut_off = IdSet()
        self.kept_by: list[str] = []
        self.expired: list[str] = []
        self.removed = self.removed_bytes = self.waiting = 0

    # Cutting

    def cut(self, cut: HistoryLimit, now: datetime) -> dict[str, bytes]:
        """Cut the histories of branches, for this run; the rows that cut them for everybody.

        A commit that another branch or a detached HEAD leads to keeps its parents; `kept_by` names that.
        """
        heads = {HEADS + name: self._repo.branch(name) for name in cut.branches}
        kept: dict[ObjectId, Commit] = {}
        for ref, head in heads.items():
            commits = self.history.ancestors(head.oid)
            if cut.keep_last is not None:
                *_, oldest = islice(commits, cut.keep_last)
            else:
                begin = microseconds(now - parse_age(cut.keep_since or timedelta()))
                oldest = head
                for commit, date in dated(commits, microseconds(now)):
                    if date < begin:
                        break
                    oldest = commit
            self._begin[ref] = oldest.order
            starts = [head.oid]
            for line in self._repo.refs.reflog(ref):
                starts += self._kept(ref, line) or ()
            kept |= {c.oid: c for c in _until(oldest.order, self.history.ancestors(*starts))}
        for commit in self.history.ancestors(*(head.oid for head in heads.values())):
            if commit.oid not in kept:
                self._cut_off.add(commit.oid)
        shared = self._shared(kept, heads)
        shallow = {}
        for oid, commit in kept.items():
            before = self.history.parents(commit)
            left = tuple(parent for parent in before if parent in kept)
            if left != before and oid not in shared:
                shallow[oid] = left
        self.history.cut_off(shallow)
        return dict(shallow_row(oid, left) for oid, left in shallow.items())

    def shorten(self, shallow: Mapping[str, bytes]) -> None:
        """Cut the histories for everybody. An import may bring the rest back at any time."""
        self._store.set_many(shallow)
        self._repo.history.reload()
        self._ends |= shallow

    def _shared(self, kept: Mapping[ObjectId, Commit], heads: Collection[str]) -> set[ObjectId]:
        """Those of the commits that other branches lead to.

        A tag does not count: it promises a commit and no history. Nor does a tracking ref: it only notes
        where a branch of another store was.
        """
        shared: set[ObjectId] = set()
        begin = min(commit.order for commit in kept.values())
        for ref, oid in self._repo.refs.all().items():
            if ref not in heads and not ref.startswith((TAGS, REMOTES)):
                above = _until(begin, self.history.ancestors(oid))
                found = {commit.oid for commit in above if commit.oid in kept}
                if found:
                    self.kept_by.append(ref.removeprefix(HEADS))
                    shared |= found
        return shared

    # Marking

    def mark(self) -> None:
        """Walk from every ref, and from every line of the reflog that stays."""
        self._ends = dict(self._store.items(SHALLOW))
        logged: list[ObjectId] = []
        deletions: list[str] = []
        for key, value in self._store.items(REFLOG):
            ref = _ref_of(key)
            if ref in self.without:
                continue
            self._lines.add(_line_id(key))
            line = self._repo.refs.parse_line(key, value)
            if ref == HEAD and not self._head_log:
                self.lines_of_head[key] = line
                continue
            kept = self._kept(ref, line)
            if kept is not None:
                logged += kept
            elif line.new is not None:
                self.expired.append(key)
            else:
                deletions.append(key)
        # Lines of deletions go last: fsck takes a deleted ref without such a line for a lost one.
        self.expired += deletions
        self._refs = self._all_refs()
        self._extend(self._refs.values())
        self.extend_where_present(logged)

    def _all_refs(self) -> dict[str, ObjectId]:
        return {ref: oid for ref, oid in self._repo.refs.all().items() if ref not in self.without}

    def _kept(self, ref: str, line: ReflogEntry) -> list[ObjectId] | None:
        """The commits that a line of the reflog keeps; None if the line goes."""
        if line.order < self._oldest:
            return None
        ids = [oid for oid in (line.old, line.new) if oid is not None]
        if ref == HEAD:
            left = [oid for oid in ids if oid not in self._cut_off]
            return left if left or not ids else None
        begin = self._begin.get(ref)
        if begin is None:
            return ids
        found = map(self._repo.objects.find_commit, ids)
        late = [commit.oid for commit in found if commit is not None and commit.order >= begin]
        return late if line.new is None or line.new in late else None

    def extend_where_present(self, commits: Iterable[ObjectId]) -> None:
        """Walk from those of the commits that are still there: a gc may have removed the others long ago."""
        unknown = [oid for oid in commits if oid not in self.reach]
        self._extend(
            oid for oid in unknown if self._repo.objects.is_stored(oid) or TRASH + oid.hex() in self._store
        )

    def _extend(self, roots: Iterable[ObjectId]) -> None:
        for _ in self.reach.extend(roots):
            self._progress("marking", len(self.reach))

    def catch_up(self) -> None:
        """Walk from all commits that refs have been at since the last look.

        Reads all new lines, also those of refs that stand still: a ref may have gone and come back.
        """
        refs = self._all_refs()
        logged: list[ObjectId] = []
        for key in self._store.keys(REFLOG):
            if _ref_of(key) in self.without:
                continue
            value = self._store.get(key) if self._lines.add(_line_id(key)) else None
            if value is not None:
                line = self._repo.refs.parse_line(key, value)
                logged += [oid for oid in (line.old, line.new) if oid is not None]
        # After the refs: an import writes the ends of histories in the transaction that moves the ref.
        self._follow_histories()
        self._extend(oid for ref, oid in refs.items() if self._refs.get(ref) != oid)
        self._refs = refs
        self.extend_where_present(logged)

    def _follow_histories(self) -> None:
        """Read the ends of histories again, and walk on where an import has continued a history."""
        ends = dict(self._store.items(SHALLOW))
        before, self._ends = self._ends, ends
        if ends != before:
            self.history.reload()
        for key, row in before.items():
            oid = ObjectId.parse(key.removeprefix(SHALLOW))
            # Another process removes the row of a commit after the commit. Then no history goes on there.
            if ends.get(key) != row and oid in self.reach and self._repo.objects.is_stored(oid):
                self.extend_where_present(self.history.parents(self._repo.objects.commit(oid)))

    # Sweeping

    def sweep(self, grace: timedelta) -> None:
        """Remove the unreachable objects: commits first, from the newest on, then their objects.

        So a commit that is there has all its objects.
        """
        for lines in batches(self.expired, MOST_DELETED):
            self._store.delete_many(lines)
        commits = self.find_garbage()
        found = self.removed > 0
        self.removed = self.removed_bytes = 0
        newest_first = (oid for _, oid in sorted(commits, reverse=True))
        garbage = self._garbage() if found else ()
        self.remove(newest_first)
        self.remove(garbage)
        if self._exclusive and arrivals(self._store)[0]:
            self._remove(())  # of commits that refs lead to by now
        self._see_to_trash(grace)
        self._forget_rows()
        self._forget_segments()
        self.history.index([*self._refs.values()])

    def remove(self, ids: Iterable[ObjectId]) -> None:
        """Remove those that are still unreachable, a thousand at a time."""
        for some in batches(ids, MOST_DELETED):
            self._exclusive = self._exclusive and self._remove(some)
            if not self._exclusive:
                self._set_aside(some)

    def _garbage(self) -> Iterator[ObjectId]:
        for oid in map(object_id, self._store.keys(OBJECT_PREFIX)):
            if oid is not None and oid not in self.reach:
                yield oid

    def find_garbage(self, but: Reach | Collection[ObjectId] = ()) -> list[tuple[int, ObjectId]]:
        """Count the unreachable objects that are not in `but`; the commits among them, with their times."""
        commits = []
        for ids in batches((oid for oid in self._garbage() if oid not in but), _READ):
            self._progress("finding garbage", self.removed)
            for key, value in self._store.get_many([OBJECT_PREFIX + oid.hex() for oid in ids]).items():
                self.removed += 1
                self.removed_bytes += len(value)
                if kind_of(value) is COMMIT:
                    commits.append(self._dated(ObjectId.parse(key.removeprefix(OBJECT_PREFIX))))
        return commits

    def _dated(self, oid: ObjectId) -> tuple[int, ObjectId]:
        try:
            return self._repo.objects.commit(oid).order, oid
        except CorruptObject:  # nothing leads to it, so its damage does not matter
            return 0, oid

    def _remove(self, ids: Sequence[ObjectId]) -> bool:
        """Delete those that are still unreachable, while nobody else writes; False if the store cannot."""
        sizes: dict[str, int] = {}

        def plan() -> Mapping[str, bytes | None]:
            self.catch_up()
            arrived, commits = arrivals(self._store)
            keys = [OBJECT_PREFIX + oid.hex() for oid in (*commits, *ids) if oid not in self.reach]
            sizes.update({key: len(value) for key, value in self._store.get_many(keys).items()})
            return {SWEEP: new_mark(), **dict.fromkeys([*arrived, *keys])}

        if not self._store.exclusively(plan):
            return False
        self.removed += len(sizes)
        self.removed_bytes += sum(sizes.values())
        self._progress("removing", self.removed)
        return True

    def _set_aside(self, ids: Sequence[ObjectId]) -> None:
        """Move garbage to the trash, where readers still find it, in a store with other writers."""
        self.catch_up()
        self._mark_sweep()
        wanted = [OBJECT_PREFIX + oid.hex() for oid in ids if oid not in self.reach]
        found = self._store.get_many(wanted)
        self._store.set_many(
            {TRASH + key.removeprefix(OBJECT_PREFIX): in_trash(value) for key, value in found.items()}
        )
        self._store.delete_many(list(found))
        # A writer may have found one of them before the look, and moved a ref to it afterwards.
        self.catch_up()
        back = {
            key: value
            for key, value in found.items()
            if ObjectId.parse(key.removeprefix(OBJECT_PREFIX)) in self.reach
        }
        self._store.set_many(back)
        self._store.delete_many([TRASH + key.removeprefix(OBJECT_PREFIX) for key in back])

    def pack(self) -> None:
        """Have the store pack all objects but the newest commits and the nodes of their trees."""
        if not self._store.keeps_packs:
            return
        with suppress(StoreFull, CorruptObject):  # also where a ref moved meanwhile: the next gc packs then
            commits = self._repo.objects.commits(list(dict.fromkeys(self._refs.values())))
            pack_objects(self._store, self._repo.objects, commits)

    def _mark_sweep(self) -> None:
        self._store.set(SWEEP, new_mark())

    def _see_to_trash(self, grace: timedelta) -> None:
        """Put back the objects that a ref leads to again, and delete those whose grace period is over."""
        limit = time.time() - grace.total_seconds()
        for batch in batches(self._store.items(TRASH), _READ):
            if any(_waits_since(value) <= limit for _, value in batch):
                # Before the look: a writer that then moves a ref to an object in the trash sees the mark.
                self._mark_sweep()
            self.catch_up()
            back, gone = {}, []
            for key, value in batch:
                digits = key.removeprefix(TRASH)
                if ObjectId.parse(digits) in self.reach:
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

    def _forget_rows(self) -> None:
        """Drop the ends of histories of removed commits, and the notes on lost objects that nothing leads to.

        Notes that others make meanwhile stay.
        """

        def plan() -> Mapping[str, bytes | None]:
            cut = [
                key
                for key in self._store.keys(SHALLOW)
                if OBJECT_PREFIX + key.removeprefix(SHALLOW) not in self._store
            ]
            lost = [key for key, oid in _moved_aside(self._store) if oid not in self.reach.lost]
            return dict.fromkeys([*cut, *lost])

        if not self._store.exclusively(plan):
            self._store.delete_many(plan())

    def _forget_segments(self) -> None:
        """Drop the rows of the graph that are damaged, or that hold a commit that is gone."""
        stale = []
        for key, row in self._store.items(GRAPH):
            try:
                others = [oid for oid in read_segment(key, row).ids if oid not in self.reach]
            except ValueError:
                stale.append(key)
                continue
            # Others may have made commits since the walk.
            objects = [OBJECT_PREFIX + oid.hex() for oid in others]
            if len(self._store.present(objects)) < len(objects):
                stale.append(key)
        self._store.delete_many(stale)
        self.history.reload()


def _known_to_be_lost(store: KVStore) -> IdSet:
    """The objects that `fsck` has noted as lost. A writer may have brought some back."""
    lost = IdSet()
    for _, oid in _moved_aside(store):
        lost.add(oid)
    return lost


def _moved_aside(store: KVStore) -> Iterator[tuple[str, ObjectId]]:
    for key in store.keys(DAMAGED):
        digits = noted(key)
        if digits is not None and not key.startswith(INCONSISTENT):
            yield key, ObjectId.parse(digits)


def _until(begin: int, newest_first: Iterable[Commit]) -> Iterator[Commit]:
    return takewhile(lambda commit: commit.order >= begin, newest_first)


def new_mark() -> bytes:
    """A value for the key `SWEEP` that it never had."""
    return os.urandom(8).hex().encode()


def _waits_since(trash: bytes) -> int:
    return int.from_bytes(trash[:8], "big")


def _ref_of(line: str) -> str:
    return line.removeprefix(REFLOG).rpartition(":")[0]


def _line_id(key: str) -> bytes:
    return blake3(key.encode()).digest()


def check_cut(
    branch: str | Sequence[str] | None, keep_last: int | None, keep_since: str | timedelta | None
) -> HistoryLimit | None:
    """The cut that these options of `gc` ask for; InvalidInput if they contradict each other."""
    if keep_last is None and keep_since is None:
        if branch is not None:
            raise InvalidInput("to cut a branch's history off, give keep_last or keep_since too")
        return None
    if keep_last is not None and keep_since is not None:
        raise InvalidInput("give keep_last or keep_since, not both")
    branches = (branch,) if isinstance(branch, str) else tuple(branch or ())
    if not branches:
        raise InvalidInput("keep_last and keep_since cut the history of branches off: name them with branch")
    if keep_last is not None and keep_last < 1:
        raise InvalidInput(f"keep_last is a number of commits from 1 on, not {keep_last}")
    return HistoryLimit(branches, keep_last, keep_since)
