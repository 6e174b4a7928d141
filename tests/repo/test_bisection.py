"""Bisection: the first bad commit, on a line and on any graph, in few tests."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vstate import Commit, Memory
from vstate.errors import InvalidInput, NotFound
from vstate.repo import Repository

Parents = list[list[int]]

# For each commit the numbers of its parents among the commits before it: any directed graph without cycles.
GRAPHS = st.lists(st.lists(st.integers(0, 40), max_size=3), min_size=2, max_size=30).map(
    lambda rows: [list(dict.fromkeys(p % i for p in row)) if i else [] for i, row in enumerate(rows)]
)


def build(graph: Parents) -> tuple[Repository, list[Commit]]:
    """The commits of the graph in a repository of their own."""
    repo, commits = Repository(Memory()), list[Commit]()
    for i, parents in enumerate(graph):
        commit = repo.build_commit(None, [commits[p] for p in parents], message=str(i))
        assert repo.publish(f"b{i}", [commit], {}, [], expected=None, action="test")
        commits.append(commit)
    return repo, commits


def ancestors(graph: Parents, start: int) -> set[int]:
    return {start}.union(*(ancestors(graph, parent) for parent in graph[start]))


@pytest.mark.slow
@settings(max_examples=300)
@given(GRAPHS, st.data())
def test_the_first_bad_commit_of_any_history(graph: Parents, data: st.DataObject) -> None:
    """The result is bad, all its parents are good, and no commit was tested twice."""
    repo, commits = build(graph)
    culprits = data.draw(st.sets(st.integers(0, len(graph) - 1), min_size=1, max_size=3))
    bad = {i for i in range(len(graph)) if ancestors(graph, i) & culprits}
    pairs = [(g, b) for b in sorted(bad) for g in sorted(ancestors(graph, b) - bad)]
    if not pairs:
        return
    start, end = data.draw(st.sampled_from(pairs))
    tested: list[int] = []

    def good(commit: Commit) -> bool:
        tested.append(int(commit.message))
        return tested[-1] not in bad

    found = int(repo.bisect(good, commits[start], commits[end]).message)
    assert found in bad & ancestors(graph, end)
    assert not bad & set(graph[found])
    assert len(tested) == len(set(tested))
    assert not set(tested) & (ancestors(graph, start) - {start})


@pytest.mark.parametrize("count", [2, 3, 4, 5, 10, 63, 64, 65, 200])
def test_the_number_of_tests_on_a_line(count: int) -> None:
    """Of n commits in a row, log2(n) + 3 are tested at the most, good and bad among them."""
    repo, commits = build([[i - 1] if i else [] for i in range(count)])
    for first in range(1, count, max(count // 20, 1)):
        tested: list[int] = []

        def good(commit: Commit, first: int = first, tested: list[int] = tested) -> bool:
            tested.append(int(commit.message))
            return tested[-1] < first

        assert repo.bisect(good, commits[0], commits[-1]) == commits[first]
        assert len(tested) <= math.log2(count) + 3
        assert tested[:2] == [0, count - 1]


def test_the_side_of_a_merge_that_went_wrong() -> None:
    """The bad came in by the second parent of a merge: the first bad commit is on that side."""
    graph = [[], [0], [1], [2], [1], [4], [5], [3, 6], [7]]
    repo, commits = build(graph)
    bad = {5, 6, 7, 8}
    found = repo.bisect(lambda commit: int(commit.message) not in bad, commits[0], commits[8])
    assert found == commits[5]


def test_a_side_that_began_before_good() -> None:
    """Good is on the main line, the bad on a branch that left it earlier."""
    graph = [[], [0], [1], [0], [3], [2, 4], [5]]
    repo, commits = build(graph)
    assert (
        repo.bisect(lambda commit: int(commit.message) not in {4, 5, 6}, commits[2], commits[6]) == commits[4]
    )


def test_a_merge_that_is_bad_itself() -> None:
    """Both parents are good."""
    graph = [[], [0], [0], [1, 2], [3]]
    repo, commits = build(graph)
    assert repo.bisect(lambda commit: int(commit.message) < 3, commits[0], commits[4]) == commits[3]


def test_what_is_left_is_reported() -> None:
    """Each report says how many commits may still be the first bad one; the last says none."""
    repo, commits = build([[i - 1] if i else [] for i in range(18)])
    reports: list[tuple[str, bool, int]] = []
    repo.bisect(
        lambda commit: int(commit.message) < 7,
        commits[0],
        commits[-1],
        report=lambda commit, good, left: reports.append((commit.message, good, left)),
    )
    assert reports == [
        ("0", True, 16), ("17", False, 16), ("9", False, 8), ("5", True, 3), ("7", False, 1), ("6", True, 0),
    ]  # fmt: skip


def test_what_has_to_hold_before() -> None:
    """Good has to be good and before bad, and bad has to be bad; the error names the remedy."""
    repo, commits = build([[], [0], [1], [0]])
    calls: list[str] = []

    def good(commit: Commit) -> bool:
        calls.append(commit.message)
        return commit.message in "01"

    with pytest.raises(InvalidInput, match="exchange the two"):
        repo.bisect(good, commits[2], commits[0])
    with pytest.raises(InvalidInput, match="is not before bad"):
        repo.bisect(good, commits[3], commits[2])
    with pytest.raises(InvalidInput, match="are the same commit"):
        repo.bisect(good, commits[2], "b2")
    with pytest.raises(NotFound):
        repo.bisect(good, "nowhere", "b2")
    assert calls == []
    with pytest.raises(
        InvalidInput, match=f"still holds at {commits[1].short}, .* give a newer commit as bad"
    ):
        repo.bisect(good, commits[0], commits[1])
    assert calls == ["0", "1"]
    repo, commits = build([[], [0], [1]])
    with pytest.raises(InvalidInput, match=r"does not hold at .*, .* give an older commit as good"):
        repo.bisect(lambda commit: False, commits[0], commits[2])


def test_an_exception_of_the_predicate_goes_through() -> None:
    repo, commits = build([[], [0]])
    with pytest.raises(ZeroDivisionError):
        repo.bisect(lambda commit: bool(1 / 0), commits[0], commits[1])
