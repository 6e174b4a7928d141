"""Histories of any shape, as lists of numbers."""

from __future__ import annotations

from hypothesis import strategies as st

from vstate import Commit, Memory
from vstate.repo import Repository

Parents = list[list[int]]

GRAPHS = st.lists(st.lists(st.integers(0, 40), max_size=3), min_size=2, max_size=30).map(
    lambda rows: [list(dict.fromkeys(p % i for p in row)) if i else [] for i, row in enumerate(rows)]
)
"""For each commit the numbers of its parents, which come before it: any directed graph without cycles."""


def built(graph: Parents) -> tuple[Repository, list[Commit]]:
    """The commits of the graph in a repository of their own."""
    repo, commits = Repository(Memory()), list[Commit]()
    for i, parents in enumerate(graph):
        commit = repo.build_commit(None, [commits[p] for p in parents], message=str(i))
        assert repo.publish(f"b{i}", [commit], {}, [], expected=None, action="test")
        commits.append(commit)
    return Repository(repo.store), commits


def line(count: int) -> tuple[Repository, list[Commit]]:
    """So many commits in a row."""
    return built([[i - 1] if i else [] for i in range(count)])


def ancestors(graph: Parents, start: int) -> set[int]:
    return {start}.union(*(ancestors(graph, parent) for parent in graph[start]))
