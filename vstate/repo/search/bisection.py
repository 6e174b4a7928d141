"""Bisection: the first bad commit after a good one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from vstate.arguments import called
from vstate.errors import InvalidInput
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.repo.history import History
from vstate.repo.objects import Objects

Predicate = Callable[[Commit], object]
"""Whether a commit is good."""

Report = Callable[[Commit, bool, int], None]
"""Called after each test with the commit, whether it is good, and the number of commits that are left on the
current line of first parents."""


def bisect(
    objects: Objects,
    history: History,
    predicate: Predicate,
    good: Commit,
    bad: Commit,
    *,
    report: Report | None = None,
) -> Commit:
    """As `Repository.bisect` promises."""
    if good.oid == bad.oid:
        raise InvalidInput(f"good and bad are the same commit {good.short}: give an older one as good")
    if not history.is_ancestor(good.oid, bad.oid):
        hint = "give a commit before bad as good"
        if history.is_ancestor(bad.oid, good.oid):
            hint = "good comes after bad: exchange the two"
        raise InvalidInput(f"good, {good.short}, is not before bad, {bad.short}; {hint}")
    search = _Search(objects, history, predicate, report)
    left = len(search.line(bad.oid, [good.oid])) - 1
    if not search.test(good.oid, if_good=left, if_bad=left):
        raise InvalidInput(
            f"it does not hold at {good.short}, which should be good: give an older commit as good"
        )
    if search.test(bad.oid, if_good=left, if_bad=left):
        raise InvalidInput(f"it still holds at {bad.short}, which should be bad: give a newer commit as bad")
    return search.first_bad(bad.oid)


class _Search:
    """The results so far; no commit is tested twice."""

    def __init__(
        self, objects: Objects, history: History, predicate: Predicate, report: Report | None
    ) -> None:
        self._objects = objects
        self._history = history
        self._predicate = predicate
        self._report = report
        self._known: dict[ObjectId, bool] = {}

    def test(self, oid: ObjectId, *, if_good: int = 0, if_bad: int = 0) -> bool:
        """Whether a commit is good. The two numbers go into the report: the commits left in either case."""
        if oid not in self._known:
            commit = self._objects.commit(oid)
            good = self._known[oid] = bool(called("the predicate of bisect", self._predicate, commit))
            if self._report is not None:
                self._report(commit, good, if_good if good else if_bad)
        return self._known[oid]

    def first_bad(self, bad: ObjectId) -> Commit:
        """The first bad commit on the line of first parents of `bad`, or on another side of a merge."""
        while True:
            line = self.line(bad, self._good())
            # line[low] is bad; line[high] is good, or past the end of the line.
            low, high = 0, len(line)
            while high - low > 1:
                middle = (low + high) // 2
                if self.test(line[middle], if_good=middle - low - 1, if_bad=high - middle - 1):
                    high = middle
                else:
                    low = middle
            first = self._objects.commit(line[low])
            for parent in self._history.parents(first)[1:]:
                is_good = any(self._history.is_ancestor(parent, good) for good in self._good())
                if not is_good and not self.test(parent):
                    bad = parent
                    break
            else:
                return first

    def line(self, bad: ObjectId, good: Iterable[ObjectId]) -> list[ObjectId]:
        """The first parents from `bad` on, up to a good commit or an ancestor of one."""
        return [commit.oid for commit in self._history.outside([bad], [*good], first_parent=True)]

    def _good(self) -> list[ObjectId]:
        return [oid for oid, good in self._known.items() if good]
