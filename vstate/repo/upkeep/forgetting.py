"""Forgetting: a branch goes at once, with its reflog and every object that nothing else leads to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain

from vstate.errors import CorruptObject, InvalidInput
from vstate.kv.base import OBJECT_PREFIX, batches
from vstate.objects.commit import Commit, microseconds
from vstate.objects.ids import COMMIT, ObjectId
from vstate.repo.core import EXPIRY_FORMAT, Core
from vstate.repo.graph import GRAPH
from vstate.repo.history import SHALLOW
from vstate.repo.idset import IdList
from vstate.repo.names.refs import HEAD, HEADS, LABELS, LIFETIME, REF, REMOTES, SWEEP, TAGS, read_lifetime
from vstate.repo.upkeep.gc import MOST_DELETED, Collector, new_mark
from vstate.repo.upkeep.reach import Reach

FORGOTTEN = "branch: forgotten"

MOST_KNOWN = 10_000
"""Objects that are deleted in one transaction if the store knows them: others wait some 100 ms."""

_EVER = datetime.min.replace(tzinfo=UTC)


def forget(repo: Core, name: str) -> Commit:
    """As `Repository.delete_branch` promises with `forget`."""
    asks = True
    while True:
        sweep = repo.refs.sweep()
        try:
            head = repo.branch(name)
            work = _Forgetting(repo, name, asks_store=asks)
            work.look()
        except CorruptObject:
            if repo.refs.sweep() == sweep:
                raise
            continue  # another process has just removed a branch that this one was looking at
        if work.remove():
            return head
        asks = False


class _Forgetting:
    """One branch to forget. `_own` are the objects that the branch leads to, and nothing else does.

    A store that keeps account of sharing knows most of these, and a look at a few other branches settles the
    rest: a value in many branches is in one of the first. Otherwise the collector marks all that other refs
    reach.
    """

    def __init__(self, repo: Core, name: str, *, asks_store: bool) -> None:
        self._repo = repo
        self._store = repo.store
        self._name = name
        self._ref = HEADS + name
        self._collector = collector = Collector(repo, _EVER, without=self._ref)
        self._own = Reach(repo.objects, collector.history, collector.lost, but=collector.reach)
        self._commits: dict[ObjectId, datetime] = {}
        self._others = IdList()
        self._lines: list[str] = []
        self._lines_of_head: list[str] = []
        self._asks_store = asks_store
        self._is_done = False

    def look(self) -> None:
        """Find what stays, and what goes. Writes nothing."""
        self._require_not_head()
        self._asks_store = self._asks_store and self._is_known_to_store()
        if not self._asks_store:
            self._collector.mark()
            self._walk(self._roots())
        self._read_lines_of_head()

    def remove(self) -> bool:
        """Forget the branch. False, with nothing written, if the store does not know enough.

        In one transaction if the store has transactions, and the objects are few.
        """
        count = len(self._commits) + len(self._others)
        if count <= (MOST_KNOWN if self._asks_store else MOST_DELETED):
            self._store.exclusively(self._all_at_once)
        if not self._is_done:
            if self._asks_store:
                return False
            self._in_steps()
        self._repo.refs.lifetimes.note(self._ref, None, None)
        self._repo.objects.drop(chain(self._commits, self._others))
        self._repo.history.reload()
        return True

    def _require_not_head(self) -> None:
        if self._repo.refs.head().branch == self._name:
            raise InvalidInput(
                f"HEAD is on branch {self._name!r}; switch to another branch before deleting it"
            )

    # What goes

    def _roots(self, until: int | None = None) -> list[ObjectId]:
        """The commits that the branch and its reflog name, or only the lines before `until`."""
        roots = [self._repo.refs.read(self._ref)] if until is None else []
        self._lines = []
        for key, line in self._repo.refs.lines(self._ref).items():
            if until is None or microseconds(line.time) < until:
                self._lines.append(key)
                roots += [line.old, line.new]
        keys = {_key(oid): oid for oid in roots if oid is not None}
        there = self._store.uncached().present(keys)
        return [oid for key, oid in keys.items() if key in there]

    def _walk(self, roots: Iterable[ObjectId]) -> None:
        """Find the objects that these commits lead to, and that the collector has not marked."""
        for kind, ids in self._own.extend(roots):
            if kind is COMMIT:
                self._commits |= {commit.oid: commit.time for commit in self._repo.objects.commits(ids)}
            else:
                for oid in ids:
                    self._others.add(oid)

    def _gone(self) -> list[ObjectId]:
        return [oid for oid in chain(self._commits, self._others) if oid not in self._collector.reach]

    def _read_lines_of_head(self) -> None:
        """A line of HEAD that names commits of this branch alone goes. The others keep their commits."""
        reach = self._collector.reach
        for key, line in self._repo.refs.lines(HEAD).items():
            named = [oid for oid in (line.old, line.new) if oid is not None]
            left = [oid for oid in named if oid not in self._own or oid in reach]
            if named and not left:
                self._lines_of_head.append(key)
            if not self._asks_store:
                self._collector.extend_where_present(left)

    # Asking the store

    def _is_known_to_store(self) -> bool:
        """Whether the store, and a look at some other refs, tell which objects the branch alone leads to.

        From its newest commit back, the branch alone leads to the commits that the store knows as such, down
        to the first other one. If another ref leads to that one, it keeps all below. See the proof in
        docs/architecture.md.
        """
        if not self._store.keeps_account:
            return False
        roots, others = self._roots(), self._look_at_others()
        if not self._are_kept(self._first_shared(roots), others):
            return False
        self._walk(roots)
        return self._are_kept(self._doubts(), others)

    def _first_shared(self, roots: Sequence[ObjectId]) -> list[ObjectId]:
        found: list[ObjectId] = []
        seen: set[ObjectId] = set()
        while roots:
            seen.update(roots)
            alone = self._unshared(roots)
            found += [oid for oid in roots if oid not in alone]
            # Also those that were cut off: another branch may stand on them.
            parents = [p for commit in self._repo.objects.commits(list(alone)) for p in commit.parent_ids]
            roots = [oid for oid in dict.fromkeys(parents) if oid not in seen]
        return found

    def _doubts(self) -> list[ObjectId]:
        """The objects that perhaps do not belong to the lines of the branch's own commits."""
        gone = self._gone()
        lines = self._unshared(gone)
        own = {lines.get(oid) for oid in gone if oid in self._commits}
        return [oid for oid in gone if oid not in lines or lines[oid] not in own]

    def _unshared(self, ids: Sequence[ObjectId]) -> dict[ObjectId, int]:
        keys = {_key(oid): oid for oid in ids}
        return {keys[key]: line for key, line in self._store.unshared(keys).items()}

    def _are_kept(self, ids: Iterable[ObjectId], others: Iterator[None]) -> bool:
        """Whether other refs lead to all of these; looks at as many as it takes."""
        for oid in ids:
            while oid not in self._collector.reach:
                try:
                    next(others)
                except StopIteration:
                    return False
        return True

    def _look_at_others(self) -> Iterator[None]:
        for key in self._store.keys(REF):
            ref = key.removeprefix(REF)
            if ref.startswith((HEADS, TAGS, REMOTES)) and ref != self._ref:
                oid = self._repo.refs.read(ref)
                if oid is not None:
                    self._collector.extend([oid])
                    yield

    def _newest_first(self) -> list[ObjectId]:
        return sorted(self._commits, key=self._commits.__getitem__, reverse=True)

    def _rows(self) -> Iterator[str]:
        """The keys of the rows that go, besides the objects."""
        yield from self._lines
        yield from self._lines_of_head
        gone = [oid.hex() for oid in self._commits if oid not in self._collector.reach]
        ends = [prefix + digits for prefix in (SHALLOW, GRAPH) for digits in gone]
        yield from self._store.present(ends)

    # Removing

    def _all_at_once(self) -> Mapping[str, bytes | None]:
        """The rows to delete, while nobody else writes."""
        self._is_done = False
        self._require_not_head()
        self._walk(self._roots())  # the branch may have moved
        if not self._asks_store:
            self._collector.catch_up()
        elif self._doubts():
            return {}  # somebody has come to share an object
        self._is_done = True
        return {
            SWEEP: new_mark(),
            **dict.fromkeys([REF + self._ref, LIFETIME + self._ref, LABELS + self._ref]),
            **self._repo.policies.rows_without(self._name),
            **dict.fromkeys(self._rows()),
            **dict.fromkeys(map(_key, self._gone())),
        }

    def _in_steps(self) -> None:
        """Delete the branch so that its reflog keeps nothing, then the rest. `gc` can do the rest too."""
        self._repo.require_format(EXPIRY_FORMAT)
        while (now := self._repo.refs.read(self._ref)) is not None:
            policies = self._repo.policies.rows_without(self._name)
            if self._repo.refs.end(self._ref, policies, expected=now, action=FORGOTTEN):
                break
        ended = self._store.get(LIFETIME + self._ref)
        self._walk(self._roots(read_lifetime(ended).since))
        self._collector.without = None  # a new branch may have the name by now
        self._collector.leave_out(self._lines)
        self._collector.remove(self._newest_first())
        self._collector.remove(self._others)
        for rows in batches(self._rows(), MOST_DELETED):
            self._store.delete_many(rows)
        self._store.compare_and_swap(LIFETIME + self._ref, ended, None)


def _key(oid: ObjectId) -> str:
    return OBJECT_PREFIX + oid.hex()
