"""The merge bases of two commits, against a brute-force search."""

from __future__ import annotations

import pytest
from graphs import GRAPHS, Parents, ancestors, built
from hypothesis import given
from hypothesis import strategies as st


@given(GRAPHS, st.data())
@pytest.mark.slow
def test_merge_bases_are_the_best_common_ancestors(graph: Parents, data: st.DataObject) -> None:
    """Merge bases are the common ancestors that are ancestors of no other common ancestor."""
    repo, commits = built(graph)
    numbers = {commit.oid: i for i, commit in enumerate(commits)}
    one, other = (data.draw(st.integers(0, len(graph) - 1)) for _ in range(2))
    common = ancestors(graph, one) & ancestors(graph, other)
    best = {c for c in common if not any(c in ancestors(graph, d) for d in common - {c})}
    found = repo.history.merge_bases(commits[one].oid, commits[other].oid)
    assert {numbers[oid] for oid in found} == best
    assert found == sorted(found, key=lambda oid: -numbers[oid])


@given(GRAPHS, st.data())
@pytest.mark.slow
def test_ancestors_leave_out_known_commits(graph: Parents, data: st.DataObject) -> None:
    """Every ancestor once, newest first, except those reached only through the excluded commits."""
    repo, commits = built(graph)
    start, without = (data.draw(st.integers(0, len(graph) - 1)) for _ in range(2))

    def reached(at: int) -> set[int]:
        return set() if at == without else {at}.union(*(reached(parent) for parent in graph[at]))

    found = [
        int(c.message)
        for c in repo.history.ancestors(commits[start].oid, until=lambda oid: oid == commits[without].oid)
    ]
    assert set(found) == reached(start)
    assert len(found) == len(set(found))
    assert all(
        c.time >= d.time
        for c, d in zip([commits[i] for i in found], [commits[i] for i in found][1:], strict=False)
    )


@given(GRAPHS, st.data())
@pytest.mark.slow
def test_commits_outside_of_others(graph: Parents, data: st.DataObject) -> None:
    """The ancestors of some commits that others lack, each once, newest first; also by first parents."""
    repo, commits = built(graph)
    numbers = st.lists(st.integers(0, len(graph) - 1), max_size=3)
    starts, excluded = data.draw(numbers), data.draw(numbers)
    hidden = set[int]().union(*(ancestors(graph, number) for number in excluded))
    firsts = [parents[:1] for parents in graph]
    for first_parent, way in ((False, graph), (True, firsts)):
        found = repo.history.outside(
            [commits[number].oid for number in starts],
            [commits[number].oid for number in excluded],
            first_parent=first_parent,
        )
        wanted = set[int]().union(*(ancestors(way, number) for number in starts)) - hidden
        assert [int(commit.message) for commit in found] == sorted(wanted, reverse=True)
