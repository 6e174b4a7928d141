"""Alignment: the longest common subsequence for small inputs, bounded work for large ones."""

import time
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vstate.values.alignment import Aligner, common_ends

_FEW_VALUES = st.lists(st.integers(0, 3), max_size=16)
_MANY_VALUES = st.lists(st.integers(0, 12), max_size=60)


def _longest(old: Sequence[int], new: Sequence[int]) -> int:
    """The length of the longest common subsequence, by definition."""

    @lru_cache(None)
    def longest(row: int, column: int) -> int:
        if row == len(old) or column == len(new):
            return 0
        if old[row] == new[column]:
            return 1 + longest(row + 1, column + 1)
        return max(longest(row + 1, column), longest(row, column + 1))

    return longest(0, 0)


@given(_FEW_VALUES, _FEW_VALUES)
@pytest.mark.slow
def test_few_differences_give_a_longest_common_subsequence(old: list[int], new: list[int]) -> None:
    """No subsequence of both sides is longer than the matches."""
    assert len(Aligner(10**6).matches(old, new)) == _longest(tuple(old), tuple(new))


@given(_MANY_VALUES, _MANY_VALUES, st.integers(0, 3000))
@pytest.mark.slow
def test_matches_are_equal_items_in_order(old: list[int], new: list[int], steps: int) -> None:
    """Every match pairs equal items, and both indices ascend, however few steps there are."""
    matches = Aligner(steps).matches(old, new)
    assert all(old[row] == new[column] for row, column in matches)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(matches))


@given(_MANY_VALUES, _MANY_VALUES, st.integers(0, 3000))
@pytest.mark.slow
def test_pairs_have_every_item_once(old: list[int], new: list[int], steps: int) -> None:
    """Each index is in one pair, in ascending order on both sides."""
    pairs = list(Aligner(steps).pairs(old, new))
    assert [row for row, _ in pairs if row is not None] == list(range(len(old)))
    assert [column for _, column in pairs if column is not None] == list(range(len(new)))


def test_replaced_items_are_paired() -> None:
    """An item that took another's place is paired with it; other items were added or removed."""
    assert list(Aligner(100).pairs("abcd", "aBcxyd")) == [
        (0, 0),
        (1, 1),
        (2, 2),
        (None, 3),
        (None, 4),
        (3, 5),
    ]
    assert list(Aligner(100).pairs("ab", "")) == [(0, None), (1, None)]


def test_common_ends_do_not_overlap() -> None:
    """An item counts for one end only."""
    assert common_ends("aaa", "aa") == (2, 0)
    assert common_ends("abxcd", "abcd") == (2, 2)
    assert common_ends("", "a") == (0, 0)


def test_many_differences_are_anchored() -> None:
    """Items that occur once are matched, however many others differ."""
    old = [f"line {number}" for number in range(20_000)]
    new = [line if number % 2 else f"{line}!" for number, line in enumerate(old)]
    aligner = Aligner(100_000)
    assert len(aligner.matches(old, new)) == 10_000


def test_items_of_one_side_are_left_out() -> None:
    """Thousands of items that only one side has do not hide a short common subsequence."""
    old = [item for number in range(2000) for item in ("x", f"old {number}")]
    new = [item for number in range(2000) for item in ("x", f"new {number}")]
    assert len(Aligner(100_000).matches(old, new)) == 2000


@pytest.mark.slow
def test_the_work_is_bounded() -> None:
    """Many different ranges of repeated items take no longer than one, and then have no matches."""
    aligner = Aligner(300_000)
    began = time.process_time()
    for _ in range(20):
        aligner.matches(["x", "y"] * 5_000, ["y", "y", "x"] * 5_000)
    assert aligner.matches(["a", "x", "y"] * 2, ["b", "y", "x", "x"] * 2) == []
    assert aligner.left < 0
    assert time.process_time() - began < 5
