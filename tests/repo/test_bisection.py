"""Bisection: the first bad commit, on a line and on any graph, in few tests."""

from __future__ import annotations

import math

import pytest
from graphs import GRAPHS, Parents, ancestors, built, line
from hypothesis import given, settings
from hypothesis import strategies as st

from vstate import Commit
from vstate.errors import InvalidInput, NotFound


@pytest.mark.slow
@settings(max_examples=100)
@given(GRAPHS, st.data())
def test_the_first_bad_commit_of_any_history(graph: Parents, data: st.DataObject) -> None:
    """The result is bad, all its parents are good, and no commit was tested twice."""
    repo, commits = built(graph)
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
    repo, commits = line(count)
    for first in range(1, count, max(count // 20, 1)):
        tested: list[int] = []

        def good(commit: Commit, first: int = first, tested: list[int] = tested) -> bool:
            tested.append(int(commit.message))
            return tested[-1] < first

        assert repo.bisect(good, commits[0], commits[-1]) == commits[first]
        assert len(tested) <= math.log2(count) + 3
        assert tested[:2] == [0, count - 1]


@pytest.mark.parametrize(
    ("graph", "bad", "ends", "first"),
    [
        ([[], [0], [1], [2], [1], [4], [5], [3, 6], [7]], {5, 6, 7, 8}, (0, 8), 5),
        ([[], [0], [1], [0], [3], [2, 4], [5]], {4, 5, 6}, (2, 6), 4),
        ([[], [0], [0], [1, 2], [3]], {3, 4}, (0, 4), 3),
        ([[], [0], [1], [2, 0]], {3}, (1, 3), 3),
    ],
    ids=["the second parent", "a branch older than good", "the merge itself", "a parent before good"],
)
def test_the_side_of_a_merge_that_went_wrong(
    graph: Parents, bad: set[int], ends: tuple[int, int], first: int
) -> None:
    """The first bad commit is found on the side that brought the bad in; none before good is tested."""
    repo, commits = built(graph)
    start, last = ends
    tested: set[int] = set()

    def good(commit: Commit) -> bool:
        tested.add(int(commit.message))
        return int(commit.message) not in bad

    assert repo.bisect(good, commits[start], commits[last]) == commits[first]
    assert not tested & (ancestors(graph, start) - {start})


def test_what_is_left_is_reported() -> None:
    """Each report says how many commits may still be the first bad one; the last says none."""
    repo, commits = line(18)
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
    repo, commits = built([[], [0], [1], [0]])
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
    repo, commits = built([[], [0], [1]])
    with pytest.raises(InvalidInput, match=r"does not hold at .*, .* give an older commit as good"):
        repo.bisect(lambda commit: False, commits[0], commits[2])


def test_an_exception_of_the_predicate_goes_through() -> None:
    repo, commits = built([[], [0]])
    with pytest.raises(ZeroDivisionError):
        repo.bisect(lambda commit: bool(1 / 0), commits[0], commits[1])
