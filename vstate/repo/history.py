"""History: walking from a commit to its ancestors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import heapify, heappop, heappush
from itertools import chain, count, islice, takewhile
from math import inf
from time import monotonic
from typing import NamedTuple

from vstate.errors import CorruptObject, CorruptStore, StorageError
from vstate.objects import tree
from vstate.objects.canonical import decode, encode
from vstate.objects.commit import Commit
from vstate.objects.ids import ID_BYTES, ObjectId
from vstate.repo.graph import Graph, segment_row
from vstate.repo.objects import NODE_CACHE, Objects
from vstate.repo.walk import BATCH, NewestFirst

SHALLOW = "shallow/"
"""Keys with this prefix name commits whose parents were removed. A value lists the parents that one has in
this store: those that are left, and in the place of the others the nearest ancestors that are."""

_SHOWN = 50
_GIVEN = 1024  # commits whose trees were read ahead

ROLLED_BACK = "rolled_back"
"""In a commit's info: `to`, the id of the commit that it went back to, None for an empty state, and `within`,
the beginning of the keys that it took back, if not all."""


class _Order(NamedTuple):
    """Commits that are looked at in order, each for one key, or for all keys (None)."""

    key: str | None
    given: frozenset[ObjectId] = frozenset()
    """Commits whose trees were read ahead."""
    following: frozenset[ObjectId] = frozenset()
    """The parents of these: with one of them, the walk goes on."""
    batch: int = 1


def rolled_back(to: Commit | None, within: str = "") -> dict[str, str | None]:
    """The value of `ROLLED_BACK` in the info of a rollback."""
    info: dict[str, str | None] = {"to": None if to is None else to.id}
    return {**info, "within": within} if within else info


ReadCommits = Callable[[Sequence[ObjectId], Callable[[Sequence[ObjectId]], list[ObjectId]]], list[Commit]]
"""Reads commits, in the order of their ids, and the next ones of a walk with them: of the next ones it reads
those that the function gives back."""


class History:
    """The commits of one store as a graph. Threads may share it.

    A commit is dated after its parents, so a walk by time, newest first, meets every commit after all its
    children. A history that `gc` cut off ends at commits without their parents. In one that it thinned, a
    commit has its nearest ancestors that stayed for parents. With `exact` it ends there: the rows that say so
    are not signed.
    """

    def __init__(self, objects: Objects, trail: ReadCommits | None = None, *, exact: bool = False) -> None:
        self._objects = objects
        self.trail = trail
        self._exact = exact
        self._shallow: dict[ObjectId, tuple[ObjectId, ...]] | None = None
        self._graph = Graph(objects.store)
        self.is_tip = self._graph.is_tip
        self.has_ranks = self._graph.has_ranks
        self._order = _Order(None)

    def commits(self, ids: Sequence[ObjectId]) -> list[Commit]:
        """Commits in the order of their ids, from memory if possible; CorruptObject if one is missing."""
        for oid in ids:
            if (
                not self._objects.is_in_memory(oid)
                and (found := self._graph.find(oid, self.shallow)) is not None
            ):
                segment, place = found
                with suppress(ValueError):  # which reading the object itself reports
                    self._objects.remember((), [segment.commit(place)])
        return self._read(ids)

    def _read(self, ids: Sequence[ObjectId]) -> list[Commit]:
        return self._objects.commits(ids) if self.trail is None else self.trail(ids, self._unindexed)

    def _unindexed(self, ids: Sequence[ObjectId]) -> list[ObjectId]:
        return self._graph.lacking(ids, self.shallow)

    def shallow(self) -> Mapping[ObjectId, tuple[ObjectId, ...]]:
        """The commits whose parents were removed, each with those that it has in this store."""
        return self._load_shallow() if self._shallow is None else self._shallow

    def parents(self, commit: Commit) -> tuple[ObjectId, ...]:
        """The ids of the parents that the commit has in this store."""
        shallow = self.shallow() if self._shallow is None else self._shallow
        left = shallow.get(commit.oid, commit.parent_ids)
        return tuple(oid for oid in left if oid in commit.parent_ids) if self._exact else left

    def is_shallow(self, commit: Commit) -> bool:
        """Whether parents of the commit were removed."""
        return self.parents(commit) != commit.parent_ids

    def before(self, commit: Commit) -> list[Commit]:
        """The parents that the commit has in this store; CorruptObject if one of them is missing.

        CorruptStore if a row names one that is no older.
        """
        try:
            found = self.commits(self.parents(commit))
        except CorruptObject:
            self._load_shallow()  # another process may have cut the history meanwhile
            found = self.commits(self.parents(commit))
        others = (parent for parent in found if parent.oid not in commit.parent_ids)
        if any(parent.order >= commit.order for parent in others):
            reason = f"{SHALLOW}{commit.id} names a parent that is not older than the commit"
            raise CorruptStore(self._objects.store.location, reason, repairable=True)
        return found

    def find(self, oid: ObjectId) -> Commit | None:
        """The commit of this id, None if the store holds no such commit; CorruptObject if it is damaged."""
        return self._objects.find_commit(oid)

    def reload(self) -> None:
        """Read again, at the next need, where histories were cut off."""
        self._shallow = None
        self._graph.forget()

    def cut_off(self, shallow: Mapping[ObjectId, tuple[ObjectId, ...]]) -> None:
        """Cut off, in this object only, all parents of these commits but the given ones."""
        self._shallow = {**self.shallow(), **shallow}
        self._graph.forget()

    def learn_ends(self, rows: Iterable[tuple[str, bytes]]) -> None:
        """Add the ends of histories of a room, if those of others are known. Else it reads no row."""
        if self._shallow is not None and (rows := [*rows]):
            self._shallow = {**self._shallow, **self._parse_ends(rows)}
            self._graph.forget()

    def _load_shallow(self) -> dict[ObjectId, tuple[ObjectId, ...]]:
        self._shallow = shallow = self._parse_ends(self._objects.store.items(SHALLOW))
        self._graph.forget()
        return shallow

    def _parse_ends(self, rows: Iterable[tuple[str, bytes]]) -> dict[ObjectId, tuple[ObjectId, ...]]:
        shallow = {}
        for key, value in rows:
            try:
                commit, kept = parse_shallow_row(key, value)
                shallow[commit] = kept
            except ValueError as error:
                reason = f"{key} names no parents: {error}"
                raise CorruptStore(self._objects.store.location, reason, repairable=True) from error
        return shallow

    # Walking

    def ancestors(
        self, *starts: ObjectId, until: Callable[[ObjectId], bool] | None = None
    ) -> Iterator[Commit]:
        """The commits and all their ancestors, newest first, each read when the iterator reaches it.

        The walk stops at the commits for which `until` is true: they, and commits reached only through them,
        are left out.
        """
        return self.outside(starts, (), until=until)

    def outside(
        self,
        starts: Sequence[ObjectId],
        excluded: Sequence[ObjectId],
        *,
        first_parent: bool = False,
        until: Callable[[ObjectId], bool] | None = None,
        heads: Iterable[Commit] = (),
    ) -> Iterator[Commit]:
        """The ancestors of `starts`, themselves included, that are no ancestors of `excluded`; newest first.

        With `first_parent`, those along first parents only. `until` as for `ancestors`. Ends once all that is
        left is excluded. `heads` are more starts, newest first, each read when the walk comes to its time.
        """
        queue = NewestFirst()
        hidden, met = set(excluded), set(excluded)
        wanted = 0  # in the queue, and not known to be excluded
        for commit in self._objects.commits(list(dict.fromkeys([*hidden, *starts]))):
            queue.push(commit)
            wanted += commit.oid not in met
            met.add(commit.oid)
        heads = iter(heads)
        head = next(heads, None)
        # The walk meets a commit after all its children, so by then it is known whether it is excluded.
        while wanted or head is not None:
            while head is not None and head.order >= queue.order:
                if head.oid not in met:
                    met.add(head.oid)
                    queue.push(head)
                    wanted += 1
                head = next(heads, None)
            if not queue:
                return
            commit = next(queue)
            is_hidden = commit.oid in hidden
            if not is_hidden:
                wanted -= 1
                if until is not None and until(commit.oid):
                    continue
                yield commit
            parents = self.before(commit)
            for parent in parents[:1] if first_parent and not is_hidden else parents:
                if parent.oid not in met:
                    met.add(parent.oid)
                    queue.push(parent)
                    wanted += not is_hidden
                elif is_hidden and parent.oid not in hidden:
                    wanted -= 1
                if is_hidden:
                    hidden.add(parent.oid)

    def names_before(self, start: ObjectId, most: int) -> list[ObjectId]:
        """The ids of so many commits before this one, along first parents, with the other parents of each.

        Fewer if the history ends, or a commit cannot be read.
        """
        names: list[ObjectId] = []
        at = [start]
        with suppress(StorageError):
            while at and len(names) < most:
                at = list(self.parents(self.commits(at[:1])[0]))
                names += at
        return names

    def first_parents(self, start: ObjectId) -> Iterator[Commit]:
        """The commit, its first parent, that commit's first parent, and so on."""
        commit: Commit | None = self._objects.commit(start)
        while commit is not None:
            yield commit
            commit = next(iter(self.before(commit)), None)

    def going_back(
        self, start: Commit, within: str = "", changed: Callable[[Commit | None, Commit], bool] | None = None
    ) -> Iterator[tuple[Commit, Commit | None]]:
        """The changes that rollbacks take back, newest first, each with the commit before it.

        A rollback of the keys that begin with `within`, or of more, is no change by itself: the walk goes on
        at the commit that it went back to. So each further rollback goes further back. `changed` tells for a
        commit and its first parent whether these keys differ, by default always.
        """
        at: Commit | None = start
        while at is not None:
            before = next(iter(self.before(at)), None)
            if changed is not None and not changed(before, at):
                at = before
                continue
            went_to = at.info.get(ROLLED_BACK)
            copied = "cherry_picked" in at.info or "reverted" in at.info
            if isinstance(went_to, dict) and not copied and within.startswith(str(went_to.get("within", ""))):
                target = self._find_target(went_to.get("to"))
                if target is not None or went_to.get("to") is None:
                    at = target
                    continue
            yield at, before
            at = before

    def _find_target(self, digits: object) -> Commit | None:
        """The commit that a rollback went back to; None if gc has removed it."""
        try:
            oid = ObjectId.parse(str(digits))
        except ValueError:
            return None
        return self._objects.find_current(oid)

    def changes_key(self, commit: Commit, key: str, *, first_parent: bool = False) -> bool:
        """Whether the commit's entry of the key differs from that in every parent, or in the first one."""
        if upcoming := self._upcoming(commit, key):
            roots = [each.root for each in upcoming if each.root is not None]
            with suppress(CorruptObject):  # perhaps of another commit alone
                tree.read_paths(self._objects.nodes, roots, key)
        node = self._objects.node
        parents = self.before(commit)[: 1 if first_parent else None]
        before = [tree.lookup(node, parent.root, key) for parent in parents] or [None]
        return tree.lookup(node, commit.root, key) not in before

    # Commits that are compared with their parents, in the order of a log

    def read_changes_ahead(self, commit: Commit) -> None:
        """Read the nodes that a comparison of the commit with its first parent needs, with those of the next
        commits, if commits are compared in order.
        """
        upcoming = self._upcoming(commit, None)
        if not upcoming:
            return
        roots = {each.oid: each.root for each in upcoming}
        pairs = []
        for each in map(self._objects.commit, roots):
            before = roots.get(each.parent_ids[0]) if each.parent_ids else None
            if each.root is not None and before is not None:
                pairs.append((before, each.root))
        with suppress(CorruptObject):  # perhaps of another commit alone
            tree.read_differences(self._objects.nodes, pairs, NODE_CACHE // 2)

    def _upcoming(self, commit: Commit, key: str | None) -> Sequence[Commit]:
        """This commit, and the next ones if a walk goes on with it; none if they were given before.

        From a store that is far away only. Each time four times as many commits.
        """
        order = self._order if self._order.key == key else _Order(key)
        if not self._objects.store.remote or commit.oid in order.given:
            return ()
        goes_on = commit.oid in order.following
        batch = min(4 * order.batch, BATCH) if goes_on else 1
        upcoming: list[Commit] = []
        with suppress(StorageError):
            upcoming.extend(islice(self.ancestors(commit.oid), batch + 1))
        # The last one is compared with a commit that is not among them.
        given = frozenset(each.oid for each in upcoming[:batch])
        following = frozenset(oid for each in upcoming[:batch] for oid in self.parents(each))
        if goes_on and len(order.given) < _GIVEN:
            given, following = given | order.given, following | order.following
        self._order = _Order(key, given, following, batch)
        return upcoming

    # Walking the graph alone

    def back(self, start: ObjectId, steps: int) -> tuple[ObjectId, int]:
        """Go back along first parents, so many steps at most; the commit, and the steps taken."""
        found = self._graph.find(start, self.shallow) if steps > 1 else None
        if found is None:
            return start, 0
        segment, place = found
        to = segment.back(place, steps)
        return ObjectId(segment.ids[to]), place - to

    def _dated(self, ids: Sequence[ObjectId]) -> list[tuple[int, ObjectId]]:
        """The commits with their times in microseconds; CorruptObject if one is missing."""
        times: dict[ObjectId, int] = {}
        for oid in ids:
            if (found := self._graph.find(oid, self.shallow)) is not None:
                times[oid] = found[0].times[found[1]]
        if len(times) < len(ids):
            for commit in self._read([oid for oid in ids if oid not in times]):
                times[commit.oid] = commit.order
        return [(times[oid], oid) for oid in ids]

    def _older(self, oid: ObjectId, since: int) -> list[tuple[int, ObjectId]]:
        """The parents of a commit, with their times in microseconds.

        Where each commit has one parent, that of the oldest commit later than `since`.
        """
        try:
            return self._dated(self._links(oid, since))
        except CorruptObject:
            self._load_shallow()  # another process may have cut the history meanwhile
            return self._dated(self._links(oid, since))

    def _links(self, oid: ObjectId, since: int) -> Sequence[ObjectId]:
        found = self._graph.find(oid, self.shallow)
        if found is None:
            (commit,) = self._read([oid])
            return self.parents(commit)
        segment, place = found
        return segment.parents(segment.oldest_after(place, since))

    def is_ancestor(self, ancestor: ObjectId, of: ObjectId) -> bool:
        """Whether `ancestor` is the commit `of` or one of its ancestors."""
        if ancestor == of:
            return True
        oldest = self._objects.commit(ancestor).order
        queue = [(-time, oid) for time, oid in self._dated([of])]
        seen = {of}
        while queue and -queue[0][0] >= oldest:
            _, oid = heappop(queue)
            for time, parent in self._older(oid, max(oldest, -queue[0][0] if queue else oldest)):
                if parent == ancestor:
                    return True
                if parent not in seen:
                    seen.add(parent)
                    heappush(queue, (-time, parent))
        return False

    def merge_bases(self, one: ObjectId, other: ObjectId) -> list[ObjectId]:
        """The merge bases: common ancestors that are no ancestors of another common one; newest first.

        Mostly one; none for unrelated histories; several after crosswise merges. Looks at the commits down to
        the oldest base. Behind a commit that has lost parents there is none but one of the two themselves:
        a removed commit may have been a base, or may have led to one.
        """
        if one == other:
            return [one]
        sides = {one: _ONE, other: _OTHER}
        order = count()
        queue = [(-time, next(order), oid) for time, oid in self._dated(list(sides))]
        heapify(queue)
        found = []
        # The walk meets a commit after all its children, so the commit's marks are complete then.
        open_sides = 2  # how many in the queue are not known to be below a common ancestor
        while queue and open_sides:
            _, _, oid = heappop(queue)
            marks = sides[oid]
            open_sides -= not marks & _BELOW
            if marks == _ONE | _OTHER:
                found.append(oid)
                marks |= _BELOW
            elif not marks & _BELOW and oid in self.shallow():
                pairs = (one, other), (other, one)
                return [first for first, second in pairs if self.is_ancestor(first, second)]
            if marks & _BELOW and not open_sides:
                break
            for time, parent in self._older(oid, -queue[0][0] if queue else 0):
                before = sides.get(parent)
                sides[parent] = (before or 0) | marks
                if before is None:
                    heappush(queue, (-time, next(order), parent))
                    open_sides += not marks & _BELOW
                elif not before & _BELOW and marks & _BELOW:
                    open_sides -= 1
        return found

    # Writing the graph

    def segment(self, tip: Commit, *, seconds: float = inf) -> dict[str, bytes]:
        """The row of the graph that ends at this commit, if one may end there. The commit may be new.

        No row if its commits cannot be read in so many seconds.
        """
        graph, shallow = self._graph, self.shallow()
        if not graph.is_tip(tip.oid) or tip.oid in shallow:
            return {}
        first = graph.is_tip(tip.oid, first=True)

        def ends_before(oid: ObjectId) -> bool:
            return self._is_known(oid) if first else graph.ends_before(tip.oid, oid) or oid in shallow

        end = monotonic() + seconds
        before = self.ancestors(*self.parents(tip), until=ends_before)
        row = segment_row(chain([tip], takewhile(lambda commit: monotonic() < end, before)))
        return row if monotonic() < end else {}

    def index(self, heads: Sequence[ObjectId]) -> None:
        """Write the rows of the graph that the histories of these commits lack.

        Of the later ranks, only those newer than the segments of the first rank.
        """
        graph = self._graph
        for first in (True, False) if graph.has_ranks else (True,):
            commits = self.ancestors(*heads, until=self._is_known)
            tips = graph.without_row(commit for commit in commits if graph.is_tip(commit.oid, first=first))
            for tip in reversed(tips):
                graph.write(self.segment(tip))

    def _is_known(self, oid: ObjectId) -> bool:
        """Whether a segment of the first rank has the commit, or history ends there."""
        return self._graph.find(oid, self.shallow, first=True) is not None or oid in self.shallow()


_ONE, _OTHER, _BELOW = 1, 2, 4  # an ancestor of one, of the other, and of a common ancestor


def shallow_row(commit: ObjectId, kept: Sequence[ObjectId]) -> tuple[str, bytes]:
    """The key and the value that cut off all parents of a commit but these."""
    return SHALLOW + commit.hex(), encode([bytes(parent) for parent in kept])


def parse_shallow_row(key: str, value: bytes) -> tuple[ObjectId, tuple[ObjectId, ...]]:
    """The commit and the parents it has left; ValueError if the row cannot be parsed."""
    found = decode(value)
    if not isinstance(found, list) or any(not isinstance(i, bytes) or len(i) != ID_BYTES for i in found):
        raise ValueError("not a list of ids")
    return ObjectId.parse(key.removeprefix(SHALLOW)), tuple(ObjectId(oid) for oid in found)


class Log(Iterator[Commit]):
    """An iterator of commits, newest first, each read when it is reached. `str()` shows the newest."""

    def __init__(self, walk: Callable[[], Iterator[Commit]]) -> None:
        self._walk = walk
        self._commits = walk()

    def __next__(self) -> Commit:
        return next(self._commits)

    def __str__(self) -> str:
        lines = [str(commit) for commit in islice(self._walk(), _SHOWN + 1)]
        return "\n".join([*lines[:_SHOWN], "…"] if len(lines) > _SHOWN else lines) or "no commits"

    def __repr__(self) -> str:
        return "<Log, an iterator of commits>"

    def _repr_html_(self) -> str:
        from html import escape  # only a notebook asks

        return f"<pre>{escape(str(self))}</pre>"
