"""ReflogPrefetch: commits by id. A walk along parents reads the next ones ahead, by the names in reflogs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, takewhile

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
MOST_KEYS = 3000
"""So many lines of a reflog are listed at once. Of a longer one, the lines of a shorter time are listed."""
_ALL, _SHORTEST = 16, 5  # hex digits of a line's time that may vary in a stretch: 5 are a millisecond
_EXPECTED = 4096


class ReflogPrefetch:
    """The commits of one store. Threads may share it.

    Only a commit names its parents, so a walk costs a round trip a commit. But the reflog of a branch names
    the commits in order. After the first few, a walk takes the next ones from there, a batch at a time. A
    line is a hint only: each commit is verified, and a line that helps nothing costs a little time.
    """

    def __init__(self, objects: Objects, refs: Refs) -> None:
        self._objects = objects
        self._refs = refs
        self._children: dict[ObjectId, Commit] = {}
        """The parents at which a walk goes on if it does, each with the child that was read."""
        self._begin()

    def _begin(self) -> None:
        self._first: Commit | None = None
        self._alone = 0  # so many commits in a row were read without help
        # A reflog is asked when `_alone` is as large. It doubles each time that no reflog helps.
        self._patience = ALONE if self._objects.store.ordered else ALONE_BEFORE_SCAN
        self._batch = FIRST_BATCH
        self._digits = _ALL
        self._keys: dict[str, list[str]] = {}  # of each reflog, the lines that are listed and not followed

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
        children = [child for oid in missing if (child := self._children.pop(oid, None)) is not None]
        if not children:
            self._begin()
        self._alone += 1
        ahead: list[Commit] = []
        if children and self._alone >= self._patience:
            named = self._follow(max(children, key=lambda child: child.order), missing)
            ahead = self._read([*missing, *unindexed(named)]) if named else []
        commits = objects.commits(ids)
        self._first = self._first or commits[0]
        if len(self._children) > _EXPECTED:
            self._children.clear()
        for commit in (*commits, *ahead):
            self._children.update((oid, commit) for oid in commit.parent_ids if not objects.is_in_memory(oid))
        return commits

    def _read(self, ids: Sequence[ObjectId]) -> list[Commit]:
        """Read commits into memory, and their parents: a commit that lost a race has no line of its own."""
        commits = self._objects.prefetch(ids)
        parents = {oid for commit in commits for oid in commit.parent_ids}
        missing = [oid for oid in parents if not self._objects.is_in_memory(oid)]
        return commits + self._objects.prefetch(missing) if len(missing) > 1 else commits

    # The reflog

    def _follow(self, child: Commit, wanted: Sequence[ObjectId]) -> list[ObjectId]:
        """The commits that come next by a reflog which names a wanted one; none if none does."""
        if len(child.body) > LONGEST_CACHED:
            return []
        count = min(self._batch, BATCH_BYTES // len(child.body))
        for ref in islice(dict.fromkeys(self._refs.recent()), MOST_REFS):
            keys = self._keys.pop(ref, None) or self._list(ref, child)
            named = dict.fromkeys(self._named(keys[-count:]))
            if not named.keys().isdisjoint(wanted):
                self._refs.mention(ref)
                self._keys[ref] = keys[:-count]
                self._alone = self._patience = ALONE
                self._batch = min(4 * self._batch, LONGEST_BATCH)
                return list(named)
        self._patience *= 2
        return []

    def _list(self, ref: str, child: Commit) -> list[str]:
        """The keys of lines of a reflog up to the time of a commit, in order; only the last if it has many.

        A store lists keys from the oldest on. So a long reflog is listed by stretches of time.
        """
        prefix = f"{REFLOG}{ref}:"
        most = MOST_KEYS if self._objects.store.ordered else None
        # A line is dated a little after its commit, and the child's line names its parents too.
        until = child.order * 1000 + _SLACK
        while True:
            times = (f"{time:016x}" for time in (until, until - 16**self._digits))
            begins = dict.fromkeys(prefix + time[: _ALL - self._digits] for time in times)
            pages = (list(islice(self._objects.store.keys(begin), most)) for begin in begins)
            # The newest lines of a full page are not among those listed.
            found = list(takewhile(lambda page: len(page) != most, pages))
            if any(found) or len(found) == len(begins):
                break
            self._digits = self._estimate(child) if self._digits == _ALL else self._digits - 1
        keys = sorted(key for page in found for key in page if key < f"{prefix}{until:016x}")
        if len(keys) < self._batch // 4 and self._digits < _ALL - 1:
            self._digits += 1
        return keys

    def _estimate(self, child: Commit) -> int:
        """The digits of the longest stretch with two batches at most, at the pace of the walk so far."""
        first = self._first or child
        nanoseconds = 2 * self._batch * 1000 * (first.order - child.order) // self._alone
        return min(max(nanoseconds.bit_length() // 4, _SHORTEST), _ALL - 1)

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
