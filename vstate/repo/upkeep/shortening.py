"""Shortening: a history is cut off, or its older part becomes one commit below the newest ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain, islice, takewhile

from vstate.arguments import check_count
from vstate.errors import InvalidInput
from vstate.objects.commit import Commit, dated, microseconds
from vstate.objects.ids import ObjectId
from vstate.repo.core import Core
from vstate.repo.history import History, shallow_row
from vstate.repo.idset import IdSet
from vstate.repo.names.refs import HEAD, HEADS, REMOTES, TAGS, ReflogEntry, ref_of_line
from vstate.repo.rules.keeps import UNSIGNED, Keep
from vstate.repo.upkeep.reach import Keeps

SQUASHED = "squashed"
"""In the info of a root that stands for an older history: the id of the commit with the same values."""


def check_limits(
    branch: str | Sequence[str] | None, keep_last: int | None, keep_since: str | timedelta | None
) -> Mapping[str, Keep]:
    """By branch, what these options of `gc` keep of its history; InvalidInput if they make no sense."""
    check_count("keep_last", keep_last, 1, none="None for all")
    is_given = keep_last is not None or keep_since is not None
    branches = (branch,) if isinstance(branch, str) else tuple(branch or ())
    if branch is not None and not is_given:
        raise InvalidInput("to cut a branch's history off, give keep_last or keep_since too")
    if is_given and not branches:
        raise InvalidInput("keep_last and keep_since cut the history of branches off: name them with branch")
    return dict.fromkeys(branches, Keep(since=keep_since, last=keep_last))


class Cut:
    """Which commits a plan of `gc` takes out of the histories of branches: those before an end, and those
    between commits that stay. A commit that another branch or a detached HEAD leads to keeps its parents.

    It takes them out of `history`, which is the plan's own. `rows` do so for everybody, once they are
    written: there, a commit has its nearest ancestors that stay for parents. `kept_by` are the branches that
    share commits with one of these, and `dropped` the parents that commits lose.
    """

    def __init__(
        self,
        repo: Core,
        history: History,
        limits: Mapping[str, Keep],
        now: datetime,
        keeps: Keeps,
        without: Collection[str],
    ) -> None:
        """`limits` tells what stays of a branch's history, `keeps` which commits a line of a reflog keeps.

        The refs in `without` count as absent.
        """
        if repo.security.trust is not None and any(keep.periods for keep in limits.values()):
            raise InvalidInput(UNSIGNED)
        self._repo = repo
        self._history = history
        self._keeps = keeps
        self._begin: dict[str, int] = {}  # by branch, the order of the oldest commit that is left
        self._cut_off = IdSet()
        self.kept_by: list[str] = []
        found = {HEADS + name: repo.newest(name) for name in limits if HEADS + name not in without}
        heads = {ref: head for ref, head in found.items() if head is not None}
        for oid, parents in history.shallow().items():  # a gc that was killed may have left the others
            commit = repo.objects.find_commit(oid)
            if commit is not None and any(history.is_ancestor(oid, head.oid) for head in heads.values()):
                for parent in {*commit.parent_ids}.difference(parents):
                    self._cut_off.add(parent)
        span, dropped = self._find_span(heads, limits, microseconds(now))
        shared = self._find_shared(span, {*heads, *without})
        gaps = {oid: span[oid] for oid in dropped.difference(shared)}
        for commit in history.ancestors(*(head.oid for head in heads.values())):
            if commit.oid not in span or commit.oid in gaps:
                self._cut_off.add(commit.oid)
        ends = self._find_ends(span, gaps, shared)
        left = chain.from_iterable(ends.values())
        self.dropped = [*{parent for oid in ends for parent in history.parents(span[oid])}.difference(left)]
        history.cut_off(ends)
        self.rows = dict(shallow_row(oid, left) for oid, left in ends.items())

    def _find_span(
        self, heads: Mapping[str, Commit], limits: Mapping[str, Keep], now: int
    ) -> tuple[dict[ObjectId, Commit], set[ObjectId]]:
        """The commits that are no older than the oldest one that a rule keeps; and those that none keeps.

        In a history that is thinned, those stay that tags name, and tracking refs: others know them.
        """
        history, refs = self._history, self._repo.refs
        named = {oid for ref, oid in refs.all().items() if ref.startswith((TAGS, REMOTES))}
        span: dict[ObjectId, Commit] = {}
        passed, chosen = set[ObjectId](), set[ObjectId]()
        for ref, head in heads.items():
            keep, dates = limits[ref.removeprefix(HEADS)], _dated(history.ancestors(head.oid), now)
            staying = [commit for commit, stays in keep.choose(dates, now) if stays]
            if keep.periods:
                inside = (oid for oid in named if history.is_ancestor(oid, head.oid))
                staying += history.commits(list(inside))
            self._begin[ref] = begin = min(commit.order for commit in staying)
            own = {commit.oid: commit for commit in _until(begin, history.ancestors(head.oid))}
            passed |= own.keys()
            chosen |= {commit.oid for commit in staying} if keep.periods else own.keys()
            starts = [head.oid]
            for key, line in refs.lines(ref).items():
                starts += self.keeps(key, line) or ()
            span |= {commit.oid: commit for commit in _until(begin, history.ancestors(*starts))}
        return span, passed - chosen

    def _find_ends(
        self, span: Mapping[ObjectId, Commit], gaps: Mapping[ObjectId, Commit], shared: Collection[ObjectId]
    ) -> dict[ObjectId, tuple[ObjectId, ...]]:
        """By commit, the parents that it will have, of those that stay and lose some."""
        history = self._history
        nearest: dict[ObjectId, Sequence[ObjectId]] = {oid: (oid,) for oid in span if oid not in gaps}

        def above(commit: Commit) -> tuple[ObjectId, ...]:
            found = (near for parent in history.parents(commit) for near in nearest.get(parent, ()))
            return tuple(dict.fromkeys(found))

        for commit in sorted(gaps.values(), key=lambda commit: commit.order):
            found = above(commit)
            nearest[commit.oid] = [
                one
                for one in found
                if not any(one != other and history.is_ancestor(one, other) for other in found)
            ]
        staying = (commit for oid, commit in span.items() if oid not in gaps and oid not in shared)
        ends = {commit.oid: above(commit) for commit in staying}
        return {oid: left for oid, left in ends.items() if left != history.parents(span[oid])}

    def keeps(self, key: str, line: ReflogEntry) -> Sequence[ObjectId] | None:
        """The commits that a line of a reflog keeps beside the cut; None if the line goes."""
        ref, kept = ref_of_line(key), self._keeps(key, line)
        if not kept:
            return kept
        if ref == HEAD:
            left = [oid for oid in kept if oid not in self._cut_off]
            return left if left or not kept else None
        begin = self._begin.get(ref)
        if begin is None:
            return kept
        found = map(self._repo.objects.find_commit, kept)
        late = [
            commit.oid
            for commit in found
            if commit is not None and commit.order >= begin and commit.oid not in self._cut_off
        ]
        return late if line.new is None or line.new in late else None

    def _find_shared(self, kept: dict[ObjectId, Commit], but: Collection[str]) -> set[ObjectId]:
        """Those of the commits that branches lead to, `but` for these refs.

        A tag does not count: it promises a commit and no history. Nor does a tracking ref: it only notes
        where a branch of another store was.
        """
        shared: set[ObjectId] = set()
        begin = min((commit.order for commit in kept.values()), default=0)
        for ref, oid in self._repo.refs.all().items():
            if ref not in but and not ref.startswith((TAGS, REMOTES)):
                above = _until(begin, self._history.ancestors(oid))
                found = {commit.oid for commit in above if commit.oid in kept}
                if found:
                    self.kept_by.append(ref.removeprefix(HEADS))
                    shared |= found
        return shared


def _dated(newest_first: Iterable[Commit], now: int) -> Iterator[tuple[Commit, int]]:
    """As `dated`. A commit of a clock that is ahead of this one is dated now: it takes nobody's place."""
    for commit, date in dated(newest_first, now):
        yield commit, now if microseconds(commit.time) > now else date


def _until(begin: int, newest_first: Iterable[Commit]) -> Iterator[Commit]:
    return takewhile(lambda commit: commit.order >= begin, newest_first)


def squash(repo: Core, branch: str, keep: int, *, message: str, seen: Commit | None) -> Commit:
    """As `Repository.squash` promises."""
    check_count("keep", keep, 0)
    while True:
        head = seen or repo.branch(branch)
        chain = list(islice(repo.history.first_parents(head.oid), keep + 1))
        last = chain[-1]
        is_short = len(chain) <= keep or not last.parent_ids
        if is_short and all(len(commit.parent_ids) < 2 for commit in chain):
            if seen is not None:
                repo.require_at(branch, seen)
            return head
        for commit in chain:
            repo.require_trusted(commit)
        if not is_short:
            text = message or f"Squash the history up to {last.short}"
            chain[-1] = replace(last, message=text, info={SQUASHED: last.id}, events=())
        made: list[Commit] = []
        for commit in reversed(chain):
            parents = tuple(before.oid for before in made[-1:])
            signed = repo.security.signed(replace(commit, parent_ids=parents, signature=None))
            made.append(Commit.decode(signed.oid, signed.body))  # so that its events name it
        action = f"squash: all but {keep}" if keep else "squash"
        if repo.publish(branch, made, {}, [], expected=head.oid, action=action, needs=[last.oid]):
            return made[-1]
        if seen is not None:
            raise repo.ref_moved(HEADS + branch, head.oid)
