"""Branches: those of a store that somebody looks at first, newest first, with names that people read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import nlargest
from itertools import islice
from typing import Final, NamedTuple

from vstate.objects.commit import Commit
from vstate.plural import counted
from vstate.repo.names.refs import shown_ref
from vstate.repo.repository import Repository

MOST_COUNTED: Final = 100  # commits of a branch
_MOST_KINDS: Final = 3


class Branch(NamedTuple):
    """A branch and its newest commit; `title` is the name as people read it."""

    name: str
    title: str
    commit: Commit

    def count(self, repo: Repository) -> int:
        """The number of its commits, at most `MOST_COUNTED`."""
        return sum(1 for _ in islice(repo.history.ancestors(self.commit.oid), MOST_COUNTED))


def newest(repo: Repository, most: int, *, containing: str = "") -> tuple[list[Branch], Sequence[str]]:
    """Of the branches with a text in their names: those with the newest commits, and the names of all."""
    names = repo.branch_names()
    if containing:
        wanted = containing.casefold()
        names = [name for name in names if wanted in name.casefold() or wanted in shown_ref(name).casefold()]
        commits = repo.branches(names).items()
        found = nlargest(most, commits, key=lambda item: (item[1].order, item[0]))
    else:
        found = list(islice(repo.newest_branches(), most))
    return [Branch(name, shown_ref(name), commit) for name, commit in found], names


def summary(names: Sequence[str]) -> str:
    """How many branches there are, and of which kinds: `3,000 branches: 2,990 in users/, 10 in jobs/`."""
    kinds = Counter(name.partition("/")[0] + "/" for name in names if "/" in name)
    number = counted(len(names), "branch")
    if [*kinds.values()] == [len(names)]:
        return f"{number} in {next(iter(kinds))}"
    parts = [f"{number:,} in {kind}" for kind, number in kinds.most_common(_MOST_KINDS)]
    return ": ".join([number, *[", ".join(parts)][: len(kinds)]])
