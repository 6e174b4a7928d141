"""Ctrl-C at any moment of a commit that shrinks: the commit has happened, or the next one does it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from raising import interrupted
from soak import sized

from vstate import Versioned
from vstate.patterns import Sequence, bound

MOMENTS = sized(30, 300)


def add(state: Any) -> None:
    state["plain"].extend([4, 5])
    Sequence(state, "items").extend([4, 5])
    state["other"] = 1


def prepared() -> Versioned:
    state = Versioned(branch="main")
    bound(state, "plain", limit=3)
    bound(state, "items", limit=3)
    bound(state, "texts", limit=2, shrink=lambda texts: [*texts[:1], texts[-1]])
    state["plain"] = [1, 2, 3]
    state["texts"] = ["a", "b"]
    Sequence(state, "items").extend([1, 2, 3])
    state.commit()
    return state


def updated(state: Versioned) -> None:
    def function(inner: Any) -> None:
        add(inner)
        inner["texts"].append("c")

    state.apply(function)


def contents(state: Versioned) -> tuple[list[int], list[int], list[str], int | None]:
    fresh = Versioned(state.store, branch="main")
    return fresh["plain"], list(Sequence(fresh, "items")), fresh["texts"], fresh.get("other")


BEFORE = ([1, 2, 3], [1, 2, 3], ["a", "b"], None)
AFTER = ([3, 4, 5], [3, 4, 5], ["a", "c"], 1)


@pytest.mark.slow
@pytest.mark.parametrize("update", [False, True], ids=["commit", "update"])
def test_an_interruption_at_each_moment(update: bool) -> None:
    """Each commit is whole and within the limit; the same handle goes on, and ends with the same result."""
    operation = updated if update else Versioned.commit

    def begun() -> Versioned:
        state = prepared()
        if not update:
            add(state)
            state["texts"].append("c")
        return state

    number = 0
    for _ in range(2):  # the first call of a process takes more steps
        state = begun()
        number, _ = interrupted(lambda state=state: operation(state), None)  # type: ignore[misc]
        assert contents(state) == AFTER
    outcomes = set()
    moments = random.Random(1).sample(range(1, number + 1), min(number, MOMENTS))
    # At the last ones the commit has happened; a collection of garbage makes a run a few steps longer.
    for moment in sorted({*moments, *range(number - 30, number + 20)}):
        state = begun()
        _, interruption = interrupted(lambda state=state: operation(state), moment)  # type: ignore[misc]
        found = contents(state)
        assert found in (BEFORE, AFTER), moment
        if interruption is not None:
            outcomes.add(found == AFTER)
        if update:
            assert not state.has_uncommitted
            if found == BEFORE:
                updated(state)
        else:
            state.commit()
        assert contents(state) == AFTER, moment
        assert state["plain"] == AFTER[0]
        assert state.repo.fsck().ok
    assert outcomes == {False, True}
