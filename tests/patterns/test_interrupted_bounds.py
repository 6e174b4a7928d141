"""Ctrl-C at any moment of a commit that shrinks: the commit has happened, or the next one does it."""

from __future__ import annotations

import random

import pytest
from raising import interrupted
from soak import sized

from vstate import Versioned
from vstate.patterns import Sequence, bound

MOMENTS = sized(30, 300)


BEFORE = ([1, 2, 3], [1, 2, 3], ["a", "b"], None)
AFTER = ([3, 4, 5], [3, 4, 5], ["a", "c"], 1)


def prepared() -> Versioned:
    """A state with three bounds, and changes that go over each of them."""
    state = Versioned(branch="main")
    for key in ("plain", "items"):
        bound(state, key, limit=3)
    bound(state, "texts", limit=2, shrink=lambda texts: [*texts[:1], texts[-1]])
    state.update(plain=[1, 2, 3], texts=["a", "b"])
    Sequence(state, "items").extend([1, 2, 3])
    state.commit()
    state["plain"].extend([4, 5])
    Sequence(state, "items").extend([4, 5])
    state["texts"].append("c")
    state["other"] = 1
    return state


def contents(state: Versioned) -> tuple[list[int], list[int], list[str], int | None]:
    fresh = Versioned(state.store, branch="main")
    return fresh["plain"], list(Sequence(fresh, "items")), fresh["texts"], fresh.get("other")


@pytest.mark.slow
def test_an_interruption_at_each_moment() -> None:
    """Each commit is whole and within the limit; the same handle goes on, and ends with the same result."""
    number = 0
    for _ in range(2):  # the first call of a process takes more steps
        state = prepared()
        number, _ = interrupted(state.commit, None)
        assert contents(state) == AFTER
    outcomes = set()
    moments = random.Random(1).sample(range(1, number + 1), min(number, MOMENTS))
    # At the last ones the commit has happened; a collection of garbage makes a run a few steps longer.
    for moment in sorted({*moments, *range(number - 30, number + 20)}):
        state = prepared()
        _, interruption = interrupted(state.commit, moment)
        found = contents(state)
        assert found in (BEFORE, AFTER), moment
        if interruption is not None:
            outcomes.add(found == AFTER)
        state.commit()
        assert contents(state) == AFTER, moment
        assert state["plain"] == AFTER[0]
        assert state.repo.fsck().ok
    assert outcomes == {False, True}
