"""HistoryModel: branches, tags, merges, undo and gc, modelled with plain dicts."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Values = dict[str, Any]

COUNTERS = ("n/a", "n/b")
"""Keys that always hold a number."""

ABSENT = object()


@dataclass
class Branch:
    """The position of a branch, its earlier positions, and the moves that were undone."""

    at: str
    moves: list[str | None] = field(default_factory=list)
    undone: list[tuple[str, str | None]] = field(default_factory=list)

    def move(self, to: str) -> None:
        if to != self.at:
            self.moves.append(self.at)
            self.undone.clear()
            self.at = to


class HistoryModel:
    """Commits by id with their values and parents; branches and tags by name."""

    def __init__(self) -> None:
        self.values: dict[str, Values] = {}
        self.parents: dict[str, tuple[str, ...]] = {}
        self.times: dict[str, Any] = {}
        self.branches: dict[str, Branch] = {}
        self.tags: dict[str, str] = {}
        self.gone: list[str] = []

    def add(self, commit: Any, values: Mapping[str, Any]) -> str:
        """Add a commit of vstate that holds these values."""
        self.values[commit.id] = copy.deepcopy(dict(values))
        self.parents[commit.id] = tuple(str(oid) for oid in commit.parent_ids)
        self.times[commit.id] = commit.time
        return str(commit.id)

    def create(self, name: str, at: str) -> None:
        self.branches[name] = Branch(at, [None])

    # History

    def ancestors(self, *starts: str) -> set[str]:
        found: set[str] = set()
        left = list(starts)
        while left:
            commit = left.pop()
            if commit not in found:
                found.add(commit)
                left += self.parents[commit]
        return found

    def history(self, start: str) -> list[str]:
        """The ancestors of a commit in the order of their making."""
        found = self.ancestors(start)
        return [commit for commit in self.values if commit in found]

    def bases(self, one: str, other: str) -> set[str]:
        """The common ancestors that are no ancestors of another common ancestor."""
        common = self.ancestors(one) & self.ancestors(other)
        below = {before for commit in common for before in self.ancestors(*self.parents[commit])}
        return common - below

    def merged(
        self, ours: str, theirs: str, base: str, policy: Mapping[str, str]
    ) -> tuple[Values, list[str]]:
        """The values of a merge, and the keys that both sides changed and no policy resolves."""
        mine, yours, before = (self.values[commit] for commit in (ours, theirs, base))
        result: Values = {}
        conflicts = []
        for key in mine.keys() | yours.keys():
            a, b, o = (side.get(key, ABSENT) for side in (mine, yours, before))
            chosen = policy.get(key[:2], policy.get("", ""))
            if b == o:
                new = a
            elif a == o:
                new = b
            elif chosen == "counter":
                new = a + b - o
            elif a == b or chosen == "ours":
                new = a
            elif chosen == "theirs":
                new = b
            else:
                conflicts.append(key)
                continue
            if new is not ABSENT:
                result[key] = new
        return copy.deepcopy(result), sorted(conflicts)

    # Upkeep

    def collect(self) -> None:
        """Forget the unreachable commits, and all reflogs."""
        live = self.ancestors(*(branch.at for branch in self.branches.values()), *self.tags.values())
        for commit in [commit for commit in self.values if commit not in live]:
            self.gone.append(commit)
            del self.values[commit], self.parents[commit], self.times[commit]
        for branch in self.branches.values():
            branch.moves.clear()
            branch.undone.clear()

    def cut(self, name: str, keep_last: int) -> None:
        """Cut the history of a branch, but no commit that another branch reaches."""
        history = sorted(self.ancestors(self.branches[name].at), key=lambda c: self.times[c], reverse=True)
        begin = self.times[history[:keep_last][-1]]
        kept = {commit for commit in history if self.times[commit] >= begin}
        others = [branch.at for other, branch in self.branches.items() if other != name]
        shared = kept & self.ancestors(*others)
        for commit in kept - shared:
            self.parents[commit] = tuple(parent for parent in self.parents[commit] if parent in kept)
