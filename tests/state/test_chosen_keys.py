"""commit(keys=): a commit of chosen keys, whose other changes stay; and names that no info may have."""

from __future__ import annotations

from typing import Any

import pytest
from loops import in_a_loop

from vstate import InvalidInput, KeyNotFound, Live, Memory, MergeConflict, Versioned, aio


def started(**values: Any) -> Versioned:
    """A state with these values committed."""
    state = Versioned(Memory(), branch="main")
    state.update(values)
    state.commit("begin")
    return state


def committed(state: Versioned) -> dict[str, Any]:
    """The values that the newest commit of the branch has."""
    return dict(state.checkout("main"))


@pytest.mark.parametrize("keys", [[], ["same"], iter(["same"])])
def test_no_change_is_no_commit(keys: Any):
    """Chosen keys without a change make no commit, and an event makes one that leaves the changes."""
    state = started(same=1)
    state["other"] = 1
    assert state.commit("none", keys=keys) is None
    state.record("seen")
    made = state.commit("an event", keys=[])
    assert made is not None
    assert [event.kind for event in made.events] == ["seen"]
    assert state.status().added == ["other"]


def test_wrong_keys_are_refused():
    """A key that is nowhere, a single text and a number: each error leaves everything staged."""
    state = started()
    state["a"] = 1
    for keys, error in ((["b"], KeyNotFound), ("a", TypeError), ([1], TypeError)):
        with pytest.raises(error):
            state.commit("x", keys=keys)  # type: ignore[arg-type]  # wrong on purpose
    assert state.status().added == ["a"]


def test_a_lost_race_keeps_the_other_changes():
    """Others' keys are merged; one that is changed here and not chosen is a conflict, as in a refresh."""
    state = started(a=1, b=[1], c=1)
    other = Versioned(state.store, branch="main")
    other["c"] = 2
    other.commit("other")
    state["a"] = 2
    state["b"].append(2)
    state.commit("mine", keys=["a"])
    assert committed(state) == {"a": 2, "b": [1], "c": 2}
    assert dict(state) == {"a": 2, "b": [1, 2], "c": 2}
    other.refresh()
    other["b"] = ["theirs"]
    other.commit("other")
    state["a"] = 3
    with pytest.raises(MergeConflict) as conflict:
        state.commit("mine", keys=["a"])
    assert list(conflict.value.keys) == ["b"]
    assert state.status().modified == ["a", "b"]


@in_a_loop
async def test_awaited():
    """An awaited state, its namespaces and its leases take keys as well."""
    store = Memory()
    async with aio.Versioned(store, branch="main") as state:
        part = state.namespace("part")
        state["a"] = part["b"] = part["c"] = 1
        await state.commit("a", keys=["a"])
        await part.commit("b", keys=["b"])
        async with state.lease("writer") as lease:
            await lease.commit("c", keys=["part/c"])
    state = Versioned(store, branch="main")
    assert [(commit.message, len(state.checkout(commit))) for commit in state.log()] == [
        ("c", 3),
        ("b", 2),
        ("a", 1),
    ]


NAMES = ["parent", "parents", "branch", "attempts", "set", "delete", "events", "info", "labels"]
CALLS = {
    "commit": lambda state, info: state.commit("x", **info),
    "transaction": lambda state, info: state.transaction("x", **info).__enter__(),
    "apply": lambda state, info: state.apply(lambda now: None, **info),
    "namespace": lambda state, info: state.namespace("n").commit("x", **info),
}


@pytest.mark.parametrize("kind", [Versioned, Live])
@pytest.mark.parametrize("call", CALLS)
def test_info_has_no_name_of_an_argument(kind: type[Versioned | Live], call: str):
    """A name that is an argument elsewhere is refused, before anything is done, and the error names it."""
    state = kind()
    state["a"] = 1
    for name in NAMES if call != "apply" else [*NAMES[:3], "keys", "on_race"]:
        with pytest.raises(InvalidInput, match=f"'{name}' is an argument of other calls"):
            CALLS[call](state, {name: 1})
    assert state["a"] == 1
