"""ReflogPrefetch: commits by id. A walk along parents reads the next ones ahead, by the names in reflogs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from vstate.errors import CorruptStore
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.repo.names.refs import REFLOG, Refs
from vstate.repo.objects import LONGEST_CACHED, Objects

ALONE = 4
"""So many commits of a walk are read one by one, before a reflog is asked for the next ones."""

ALONE_BEFORE_SCAN = 32
"""The same in a store that finds a branch's lines only by a scan of all reflogs."""

FIRST_BATCH = 64
LONGEST_BATCH = 1024
"""How many lines of a reflog are followed at first, and at most; each time four times as many."""

BATCH_BYTES = 4 * 1024 * 1024
"""The commits of a batch together are no longer than this, if they are as long as the ones before."""

MOST_REFS = 3
"""In the reflogs of so many branches the walk looks for its next commit."""

_SLACK = 5 * 10**7  # nanoseconds
MOST_KEYS = 3000  # of one stretch of a reflog; if it has more, a shorter one is listed
_STRETCHES = 4
_WHOLE, _SHORTEST = 16, 5  # hex digits of a line's time that may vary within a stretch: 5 are a millisecond
_EXPECTED = 4096


class _Walk:
    """A walk from commit to parent, as seen from the commits that were not in memory."""

    def __init__(self, alone: int) -> None:
        self.alone = 0
        """How many commits in a row were read without help."""
        self.patience = self.shortest_patience = alone
        """A reflog is asked when `alone` is as large. It doubles each time that no reflog helps."""
        self.batch = FIRST_BATCH
        self.began: Commit | None = None
        self.count = 0
        """The commits that were read, since the one where it `began`."""
        self.ref: str | None = None
        self.keys: list[str] = []
        """The lines of the reflog of `ref` that are listed and not followed, oldest first."""
        self.digits = _WHOLE
        self.longest = 1
        self.since = 0
        """The time, in nanoseconds, where the walk is known to end."""


class ReflogPrefetch:
    """The commits of one store. Threads may share it.

    Only a commit names its parents, so a walk costs a round trip a commit. But the reflog of a branch names
    the commits in order. After the first few, a walk takes the next ones from there, a batch at a time. A
    line is a hint only: each commit is verified, and a line that helps nothing costs a little time.
    """

    def __init__(self, objects: Objects, refs: Refs) -> None:
        self._objects = objects
        self._refs = refs
        self._expected: dict[ObjectId, tuple[_Walk, Commit]] = {}

    def commits(
        self, ids: Sequence[ObjectId], unindexed: Callable[[Sequence[ObjectId]], list[ObjectId]]
    ) -> list[Commit]:
        """Commits in the order of the ids, from memory if possible; CorruptObject as for `Objects.commit`.

        Of the commits that the reflog names, only the `unindexed` ones are read ahead.
        """
        objects = self._objects
        missing = [oid for oid in ids if not objects.is_in_memory(oid)]
        if not missing:
            return objects.commits(ids)
        walks, named = [], list[ObjectId]()
        for oid in missing:
            walk, child = self._expected.pop(oid, (None, None))
            if walk is None or child is None:
                walk = _Walk(ALONE if objects.store.ordered else ALONE_BEFORE_SCAN)
            walk.alone += 1
            if child is not None and walk.alone >= walk.patience:
                named += self._follow(walk, child, oid)
            walks.append(walk)
        ahead = self._read([*missing, *unindexed(named)]) if named else []
        commits = objects.commits(ids)
        for walk in walks:
            self._expect(walk, [*commits, *ahead])
        return commits

    def expect(self, start: Commit, since: Commit) -> None:
        """A walk from `start` goes back to the time of `since`: its commits come in one batch if they can."""
        # An unordered store lists all reflogs: not for a few commits.
        walk = _Walk(1 if self._objects.store.ordered else ALONE_BEFORE_SCAN)
        walk.batch = LONGEST_BATCH
        walk.since = since.order * 1000
        length = start.order * 1000 + _SLACK - walk.since
        walk.digits = min(max(-(-length.bit_length() // 4), _SHORTEST), _WHOLE)
        self._expect(walk, [start])

    def _expect(self, walk: _Walk, commits: Iterable[Commit]) -> None:
        """Take these commits as a part of the walk, which goes on at those of their parents not in memory."""
        if len(self._expected) > _EXPECTED:
            self._expected.clear()
        for commit in commits:
            walk.began = walk.began or commit
            walk.count += 1
            walk.longest = max(walk.longest, len(commit.body))
            for parent in commit.parent_ids:
                if not self._objects.is_in_memory(parent):
                    self._expected[parent] = walk, commit

    def _read(self, ids: Sequence[ObjectId]) -> list[Commit]:
        """Read commits into memory, and their parents: a commit that lost a race has no line of its own."""
        commits = self._objects.read_ahead(ids)
        parents = {oid for commit in commits for oid in commit.parent_ids if not self._is_in_memory(oid)}
        return [*commits, *self._objects.read_ahead(list(parents))] if len(parents) > 1 else commits

    def _is_in_memory(self, oid: ObjectId) -> bool:
        return self._objects.is_in_memory(oid)

    # The reflog

    def _follow(self, walk: _Walk, child: Commit, wanted: ObjectId) -> list[ObjectId]:
        """The commits that come next by a reflog which names the one that is wanted; none if none does."""
        count = min(walk.batch, BATCH_BYTES // walk.longest)
        before = walk.ref, walk.digits
        refs = dict.fromkeys([*filter(None, [walk.ref]), *self._refs.recent()])
        for ref in islice(refs, MOST_REFS) if walk.longest <= LONGEST_CACHED else ():
            if ref != walk.ref or not walk.keys:
                walk.ref, walk.keys = ref, self._list(walk, ref, child)
            keys, walk.keys = walk.keys[-count:], walk.keys[:-count]
            named = dict.fromkeys(self._named(keys))
            if wanted in named:
                walk.alone = walk.patience = walk.shortest_patience
                walk.batch = min(4 * walk.batch, LONGEST_BATCH)
                return [oid for oid in named if not self._is_in_memory(oid)]
            walk.keys, walk.digits = [], before[1]
        walk.ref = before[0]
        walk.patience *= 2
        return []

    def _list(self, walk: _Walk, ref: str, child: Commit) -> list[str]:
        """The keys of lines of a reflog up to the time of a commit, in order: all, or enough for a batch.

        A store lists keys from the oldest on. So a long reflog is listed by stretches of time, newest first.
        """
        prefix = f"{REFLOG}{ref}:"
        most = MOST_KEYS if self._objects.store.ordered else None
        # A line is dated a little after its commit, and the child's line names its parents too.
        time = child.order * 1000
        if time <= walk.since:
            walk.since = 0  # the walk goes further than it was known to
        while True:
            until = time + min(_SLACK, 1 << 4 * (walk.digits - 1))
            found: list[str] = []
            last, first = until >> 4 * walk.digits, walk.since >> 4 * walk.digits
            for stretch in range(last, max(last - _STRETCHES, first - 1), -1):
                begin = prefix + (f"{stretch:0{_WHOLE - walk.digits}x}" if walk.digits < _WHOLE else "")
                page = sorted(islice(self._objects.store.keys(begin), most))
                found = page + found
                if len(found) >= walk.batch or len(page) == most:
                    break
            if len(page) != most or walk.digits == _SHORTEST:
                break
            walk.digits = self._estimate(walk, child) if walk.digits == _WHOLE else walk.digits - 1
        if len(found) < walk.batch // 4 and walk.digits < _WHOLE - 1:
            walk.digits += 1
        begin, end = f"{prefix}{walk.since:016x}", f"{prefix}{until:016x}"
        return [key for key in found if begin <= key < end]

    def _estimate(self, walk: _Walk, child: Commit) -> int:
        """The digits of the longest stretch with two batches at most, at the pace of the walk so far."""
        assert walk.began is not None  # a commit of the walk was read before this one
        nanoseconds = 2 * walk.batch * 1000 * (walk.began.order - child.order) // walk.count
        return min(max(nanoseconds.bit_length() // 4, _SHORTEST), _WHOLE - 1)

    def _named(self, keys: Sequence[str]) -> Iterator[ObjectId]:
        """The commits that these lines of a reflog name, newest first."""
        lines = self._objects.store.get_many(keys) if keys else {}
        for key in reversed(keys):
            if key in lines:
                try:
                    line = self._refs.parse_line(key, lines[key])
                except CorruptStore:
                    continue
                yield from filter(None, (line.new, line.old))
