"""Forgetting: a branch goes at once, with its reflog and every object that nothing else leads to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice

from vstate.errors import InvalidInput, StorageError
from vstate.kv.base import OBJECT_PREFIX, batches
from vstate.objects.commit import Commit
from vstate.objects.ids import COMMIT, ObjectId
from vstate.repo.core import Core
from vstate.repo.graph import GRAPH
from vstate.repo.history import SHALLOW
from vstate.repo.idset import IdList
from vstate.repo.names.refs import HEAD, HEADS, REF, REFLOG, SWEEP, ReflogEntry, ref_of_line
from vstate.repo.rooms import GONE, Room, new_mark
from vstate.repo.sweeps import arrivals, retry_after_sweep, unfinished
from vstate.repo.upkeep.gc import MOST_DELETED, Sweep, newest_first
from vstate.repo.upkeep.reach import Marks, Reach


def forget(repo: Core, name: str) -> Commit:
    """As `Repository.delete_branch` promises with `forget`."""

    def tried() -> tuple[Commit, _Forgetting | None, bool]:
        head = repo.branch(name)
        if (last := _forget_room(repo, name)) is not None:
            return last, None, True
        work = _Forgetting(repo, name, head)
        work.look()
        return head, work, work.remove_at_once()

    last, work, done = retry_after_sweep(repo, tried)
    if work is not None:
        if not done:
            work.remove_in_steps()
        work.note()
        last = work.last
    repo.history.reload()
    with suppress(StorageError):  # what was deleted is gone; its bytes go from the files later then
        repo.store.release()
    return last


def _require_not_head(repo: Core, name: str) -> None:
    if repo.refs.head().branch == name:
        raise InvalidInput(f"HEAD is on branch {name!r}; switch to another branch before deleting it")


def _forget_room(repo: Core, name: str) -> Commit | None:
    """Forget a branch with its room, in one transaction; its newest commit, None if it shares the room, or
    has many rows.
    """
    ref = HEADS + name
    if repo.rooms is None or not (number := repo.rooms.room_of(ref)):
        return None
    room = Room(repo.store, number)
    last: Commit | None = None

    def rows() -> Mapping[str, bytes | None]:
        nonlocal last
        last = None
        _require_not_head(repo, name)
        keys = list(islice(room.own_keys(), MOST_DELETED + 1))
        # The reflog of a branch that was deleted may keep objects too.
        others = [key for key in keys if key.startswith(REF) and key != REF + ref]
        others += [key for key in keys if key.startswith(REFLOG) and ref_of_line(key) != ref]
        if others or REF + ref not in keys or len(keys) > MOST_DELETED:
            return {}
        last = repo.branch(name)
        rows = repo.refs.rows_of_end(ref, last.oid)
        return {**dict.fromkeys([*keys, GONE + ref]), **rows, **repo.policies.rows_without(name)}

    return last if room.exclusively(rows) else None


class _Forgetting:
    """One branch to forget. `_own` are the objects that the branch leads to, and nothing else does. `last` is
    its newest commit.
    """

    def __init__(self, whole: Core, name: str, head: Commit) -> None:
        self.last = head
        self._whole = whole
        self._repo = repo = whole.home(HEADS + name)
        self._store = repo.store
        self._name = name
        self._ref = HEADS + name
        self._marks = Marks(repo, without=[self._ref])
        self._own = Reach(repo.objects, self._marks.history, self._marks.lost, but=self._marks.reach)
        self._commits: dict[ObjectId, int] = {}
        self._noted: list[str] = []
        self._unfinished: dict[str, bytes] = {}
        self._others = IdList()
        self._lines: list[str] = []
        self._lines_of_head: dict[str, ReflogEntry] = {}

    def look(self) -> None:
        """Find what stays, and what goes. Writes nothing."""
        _require_not_head(self._whole, self._name)
        self._marks.begin(self._keeps)
        self._walk()
        self._read_lines_of_head()
        if self._store.transactional:
            # What the branch held alone may be held by a commit that no ref leads to: that one goes first.
            self._noted = arrivals(self._store)[0]
            self._commits |= self._marks.find_garbage(but=self._own)[0]

    def remove_at_once(self) -> bool:
        """Forget the branch in one transaction; False if the store has none, or the objects are many."""
        few = len(self._commits) + len(self._others) <= MOST_DELETED
        return few and self._store.exclusively(self._all_at_once)

    def note(self) -> None:
        """Keep nothing of the branch in memory."""
        self._whole.objects.drop(chain(self._commits, self._others))

    # What goes

    def _keeps(self, key: str, line: ReflogEntry) -> Sequence[ObjectId] | None:
        """The commits that a line of a reflog keeps. `_read_lines_of_head` looks at those of HEAD."""
        ref = ref_of_line(key)
        if ref == HEAD:
            self._lines_of_head[key] = line
        return None if ref in (HEAD, self._ref) else line.commits

    def _walk(self) -> None:
        """Find the objects of the branch and of its reflog."""
        head = self._repo.newest(self._name)
        self.last = head or self.last
        roots = [None if head is None else head.oid]
        self._lines = []
        for key, line in self._repo.refs.lines(self._ref).items():
            self._lines.append(key)
            roots += line.commits
        self._marks.leave_out(self._lines)
        keys = {OBJECT_PREFIX + oid.hex(): oid for oid in roots if oid is not None}
        there = self._store.uncached().present(keys)
        for kind, ids in self._own.extend(oid for key, oid in keys.items() if key in there):
            if kind is COMMIT:
                self._commits |= {commit.oid: commit.order for commit in self._repo.objects.commits(ids)}
            else:
                for oid in ids:
                    self._others.add(oid)

    def _read_lines_of_head(self) -> None:
        """Leave the lines of HEAD that name commits of this branch alone. The others keep their commits."""
        for key, line in [*self._lines_of_head.items()]:
            left = [oid for oid in line.commits if oid not in self._own]
            if left or not line.commits:
                del self._lines_of_head[key]
            self._marks.extend_where_present(left)

    def _rows(self) -> Iterator[str]:
        """The keys of the rows that go, besides the objects."""
        yield from self._lines
        yield from self._lines_of_head
        yield from self._unfinished
        gone = [oid.hex() for oid in self._commits if oid not in self._marks]
        ends = [prefix + digits for prefix in (SHALLOW, GRAPH) for digits in gone]
        yield from self._store.present(ends)

    # Removing

    def _all_at_once(self) -> Mapping[str, bytes | None]:
        """The rows to delete, while nobody else writes. RefMoved if the branch is in another room by now."""
        _require_not_head(self._whole, self._name)
        now = self._repo.refs.read(self._ref)
        if now is None and self._whole.refs.read(self._ref) is not None:
            raise self._whole.ref_moved(self._ref, None)
        self._walk()  # the branch may have moved
        self._marks.catch_up()
        arrived, commits = arrivals(self._store)
        ids = chain(commits, self._commits, self._others)
        gone = (oid for oid in ids if oid not in self._marks)
        return {
            SWEEP: new_mark(),
            **dict.fromkeys(arrived),
            **(unfinished(self._store) if arrived else {}),  # `gc` looks for what those commits held
            **self._repo.refs.rows_of_end(self._ref, now),
            **self._repo.policies.rows_without(self._name),
            **dict.fromkeys(self._rows()),
            **dict.fromkeys(OBJECT_PREFIX + oid.hex() for oid in gone),
        }

    def remove_in_steps(self) -> None:
        """Delete the branch with its reflog, then its objects. If this is cut short, `gc` removes them."""
        while (now := self._repo.refs.read(self._ref)) is not None:
            self._walk()  # the branch may have moved
            self._unfinished = unfinished(self._store)
            rows = self._repo.policies.rows_without(self._name) | self._unfinished
            if self._repo.refs.end(self._ref, rows, expected=now):
                break
        if self._store.transactional:
            self._remove_garbage()
        else:
            # Two processes that remove objects at once could take each other's for damage: gc does it alone.
            self._store.delete_many(self._lines_of_head)

    def _remove_garbage(self) -> None:
        """Remove the objects of the branch, and its rows."""
        self._marks.without = frozenset()  # a new branch may have the name by now
        sweep = Sweep(self._repo)
        sweep.remove(self._marks, newest_first(self._commits), [*self._noted, *self._unfinished])
        sweep.remove(self._marks, self._others, self._unfinished)
        for rows in batches(self._rows(), MOST_DELETED):
            self._store.delete_many(rows)
