"""merge, cherry_pick, revert and merge policies: the merge of two branches, key by key."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from present import present

from vstate import (
    ABSENT,
    InvalidInput,
    KVStore,
    MergeConflict,
    Versioned,
)
from vstate.repo.rules.policies import encode_policies


def pair(
    values: dict[str, Any], store: KVStore | None = None, **policies: Any
) -> tuple[Versioned, Versioned]:
    """A state on main with these values, and one on a branch that begins there."""
    state = Versioned(store)
    state.update(values)
    for prefix, policy in policies.items():
        state.set_policy(prefix, policy)
    state.commit("base")
    return state, state.fork("side")


def commit(state: Versioned, **values: Any) -> None:
    state.update(values)
    assert state.commit() is not None


def test_each_side_keeps_its_own_keys() -> None:
    """Keys that one side changed get that side's value, in a commit with two parents."""
    main, side = pair({"a": 1, "b": 2, "gone": 3, "same": 4})
    commit(main, a=10, mine=1)
    commit(side, b=20, theirs=2)
    del side["gone"]
    side.commit()
    ours, theirs = present(main.head), present(side.head)
    result = main.merge("side")
    assert dict(main) == {"a": 10, "b": 20, "mine": 1, "same": 4, "theirs": 2}
    assert result.strategy == "merge"
    assert result.merged_keys == ("b", "gone", "theirs")
    assert result.conflicts == {}
    assert result.commit == main.head
    assert present(main.head).parent_ids == (ours.oid, theirs.oid)
    assert present(main.head).message == "Merge side into main"
    assert dict(Versioned(main.store)) == dict(main)


def test_fast_forward_and_up_to_date() -> None:
    """A branch without commits of its own moves to the other's commit. A branch that has all of it stays."""
    main, side = pair({"a": 1})
    held = main["a"]
    commit(side, a=2)
    forward = main.merge("side")
    assert (forward.strategy, forward.commit, forward.merged_keys) == ("fast-forward", side.head, ("a",))
    assert held == 1
    assert main["a"] == 2
    again = main.merge("side")
    assert (again.strategy, again.commit, again.merged_keys) == ("up-to-date", side.head, ())


def test_a_conflict_changes_nothing_and_carries_the_values() -> None:
    """MergeConflict has base, ours and theirs for each key; branch, values and files stay as they were."""
    main, side = pair({"k": [1], "other": 1, "gone": 1})
    commit(main, k=[1, 2], gone=2)
    commit(side, k=[1, 3], other=2)
    del side["gone"]
    side.commit()
    before = main.head
    with pytest.raises(MergeConflict) as raised:
        main.merge("side")
    error = raised.value
    assert error.keys == ("gone", "k")
    conflict = error.conflicts["k"]
    assert (conflict.base, conflict.ours, conflict.theirs) == ([1], [1, 2], [1, 3])
    assert error.conflicts["gone"].theirs is ABSENT
    assert "set_policy" in str(error)
    assert main.head == before
    assert dict(main) == {"k": [1, 2], "other": 1, "gone": 2}
    assert not main.has_uncommitted
    again = pickle.loads(pickle.dumps(error))
    assert again.conflicts["k"].theirs == [1, 3]


def test_a_merge_without_a_fast_forward_makes_a_commit() -> None:
    """Its first parent is the branch, so the work of the other branch is one step along first parents."""
    main, side = pair({"a": 1})
    before = main.head
    commit(side, a=2, b=3)
    result = main.merge("side", fast_forward=False)
    assert (result.strategy, result.merged_keys) == ("merge", ("a", "b"))
    assert present(main.head).parents == (present(before).id, present(side.head).id)
    assert dict(main) == {"a": 2, "b": 3}
    assert main.merge("side", fast_forward=False).strategy == "up-to-date"


def test_a_criss_cross_whose_bases_disagree_is_a_conflict() -> None:
    """A key that the two bases resolved differently has no base: only equal values merge."""
    main, side = pair({"k": 0})
    commit(main, k=1)
    commit(side, k=2)
    main_before, side_before = present(main.head), present(side.head)
    main.merge(side_before, policy="ours")
    side.merge(main_before, policy="ours")
    with pytest.raises(MergeConflict) as raised:
        main.merge("side")
    assert raised.value.conflicts["k"].base is ABSENT
    assert main.merge("side", policy="theirs").conflicts == {"k": "theirs"}
    assert main["k"] == 2


# Policies


CASES: list[tuple[str, Any, Any, Any, Any]] = [
    ("ours", 1, 2, 3, 2),
    ("theirs", 1, 2, 3, 3),
    ("counter", 10, 12, 15, 17),
    ("union", {1, 2}, {1, 2, 3}, {2, 4}, {2, 3, 4}),
    ("append", ["a"], ["a", "b"], ["a", "c"], ["a", "b", "c"]),
    ("deep", {"a": {"x": 1}}, {"a": {"x": 2}}, {"a": {"x": 1, "y": 1}}, {"a": {"x": 2, "y": 1}}),
    ("text", "1\n2\n3\n", "one\n2\n3\n", "1\n2\nthree\n", "one\n2\nthree\n"),
]


@pytest.mark.parametrize("way", ["merge", "race"])
@pytest.mark.parametrize(("policy", "change", "merged"), [("counter", 1, 2), ("append", [7], [7, 7])])
def test_equal_changes_add_up(policy: str, change: Any, merged: Any, way: str) -> None:
    """Two steps of a counter add up, even if both sides come to the same number. So do two appended items."""
    base: Any = 0 if policy == "counter" else []
    main, side = pair({"k": base, "gone": base}, **{"": policy})
    other = side if way == "merge" else Versioned(main.store, branch="main")
    for state in (other, main):
        state["k"] = change
        del state["gone"]
        if state is other or way == "merge":
            state.commit()
    if way == "merge":
        main.merge("side")
    else:
        with pytest.raises(MergeConflict):
            main.refresh()
        main.commit()
    assert dict(main) == {"k": merged}


def test_policies_hold_across_a_criss_cross() -> None:
    """After crosswise merges nothing counts or stands twice."""
    main, side = pair({"n": 10, "log": ["base"]}, n="counter", log="append")

    def step(state: Versioned, by: int, item: str) -> None:
        state["n"] += by
        state["log"].append(item)
        state.commit()

    step(main, 1, "o1")
    step(side, 2, "t1")
    ours, theirs = present(main.head), present(side.head)
    main.merge(theirs)
    side.merge(ours)
    step(main, 10, "o2")
    step(side, 20, "t2")
    main.merge("side")
    assert main["n"] == 43
    assert main["log"] == ["base", "o1", "t1", "o2", "t2"]


@pytest.mark.parametrize(("policy", "base", "ours", "theirs", "merged"), CASES)
@pytest.mark.parametrize("way", ["merge", "race"])
def test_policies(policy: str, base: Any, ours: Any, theirs: Any, merged: Any, way: str) -> None:
    """Each policy does the same in a merge and for a commit that lost a race."""
    main, side = pair({"ns/k": base, "plain": 0}, **{"ns/": policy})
    if way == "merge":
        commit(main, **{"ns/k": ours})
        commit(side, **{"ns/k": theirs})
        assert main.merge("side").conflicts == {"ns/k": policy}
    else:
        racing = Versioned(main.store, branch="main")
        commit(racing, **{"ns/k": theirs})
        main["ns/k"] = ours
        assert len(present(main.commit("late")).parent_ids) == 2
        if policy == "append":
            merged = ["a", "c", "b"]  # theirs was committed first here
    assert main["ns/k"] == merged
    assert Versioned(main.store)["ns/k"] == merged


def test_newest_takes_the_later_commit_of_the_key() -> None:
    """It is the time of the commit that changed the key, not of the newest commit of the branch."""
    main, side = pair({"k": 0, "j": 0}, k="newest", j="newest")
    commit(side, k="early")
    commit(main, k="late")
    commit(main, j="early")
    commit(side, j="late")
    main.merge("side")
    assert (main["k"], main["j"]) == ("late", "late")


def longest(base: Any, ours: Any, theirs: Any) -> Any:
    """A policy of this module."""
    if "stop" in (ours, theirs):
        raise RuntimeError("no more")
    return max((ours, theirs), key=lambda value: 0 if value is ABSENT else len(value))


def remove(base: Any, ours: Any, theirs: Any) -> Any:
    return ABSENT


def no_opinion(base: Any, ours: Any, theirs: Any) -> Any:
    return NotImplemented


limits = list[Exception]()


def limited(base: Any, ours: Any, theirs: Any) -> Any:
    """A policy that a time limit or a lack of memory interrupts."""
    while limits:
        raise limits.pop()
    return max(ours, theirs)


@pytest.mark.parametrize("error", [TimeoutError("out of time"), MemoryError()])
def test_an_error_that_is_not_the_policys_own_is_no_conflict(error: Exception) -> None:
    """It comes out of the merge, or of the commit that lost a race, as it is; then both work."""
    main, side = pair({"k": 0}, k=limited)
    racing = Versioned(main.store)
    racing["k"] = 3
    commit(main, k=1)
    commit(side, k=2)
    before = main.head
    for act in (lambda: main.merge("side"), racing.commit):
        limits[:] = [error]
        with pytest.raises(type(error)) as caught:
            act()
        assert caught.value is error
    assert (main.head, racing["k"], racing.has_uncommitted) == (before, 3, True)
    main.merge("side")
    racing.commit()
    assert racing["k"] == 3


def test_a_function_is_a_policy() -> None:
    """It is stored by its name, gets ABSENT for a missing side, deletes with ABSENT, and may give up.

    NotImplemented is no value: it decides nothing.
    """
    values = {"k": "", "gone": "1", "bad": "", "open": 0}
    main, side = pair(values, k=longest, gone=remove, bad=longest, open=no_opinion)
    assert main.policies()["k"].endswith("test_merge:longest")
    commit(main, k="long", gone="2")
    commit(side, k="longer", gone="3")
    result = main.merge("side")
    assert main["k"] == "longer"
    assert "gone" not in main
    assert result.conflicts == {"k": "longest", "gone": "remove"}
    commit(main, bad="stop")
    commit(side, bad="x")
    with pytest.raises(MergeConflict, match="RuntimeError: no more"):
        main.merge("side")
    commit(main, bad="x", open=1)
    commit(side, open=2)
    with pytest.raises(MergeConflict, match="NotImplemented"):
        main.merge("side")
    assert main["open"] == 1


class Rules:
    """Methods of objects have a module and a name too, under which another function is found."""

    def method(self, base: Any, ours: Any, theirs: Any) -> Any:
        return ours

    @staticmethod
    def static(base: Any, ours: Any, theirs: Any) -> Any:
        return theirs

    @classmethod
    def of_class(cls, base: Any, ours: Any, theirs: Any) -> Any:
        return theirs

    def __call__(self, base: Any, ours: Any, theirs: Any) -> Any:
        return ours


def in_main(base: Any, ours: Any, theirs: Any) -> Any:
    return ours


in_main.__module__ = "__main__"


@functools.wraps(longest)
def hidden(base: Any, ours: Any, theirs: Any) -> Any:
    """It says that it is `longest`."""


NO_POLICIES: list[Any] = ["best", lambda base, ours, theirs: ours, 7, Rules().method, Rules()]
NO_POLICIES += [functools.partial(longest), in_main, hidden]


@pytest.mark.parametrize("policy", NO_POLICIES)
def test_what_is_no_policy_is_refused(policy: Any) -> None:
    """An unknown name, a function that cannot be imported, and any other object."""
    main, _ = pair({"k": 1})
    with pytest.raises((InvalidInput, TypeError)):
        main.set_policy("k", policy)
    assert main.policies() == {}
    if policy == "best":
        with pytest.raises(InvalidInput, match="counter"):
            main.merge("side", policy=policy)


@pytest.mark.parametrize("policy", [longest, Rules.static, Rules.of_class])
def test_a_function_is_imported_by_name_in_another_handle(policy: Any) -> None:
    """Another process finds it by its name, also in a class."""
    main, side = pair({"k": ""}, k=policy)
    commit(main, k="aa")
    commit(side, k="bbb")
    fresh = Versioned(main.store, branch="main")
    fresh.merge("side")
    assert fresh["k"] == "bbb"


def test_a_missing_function_is_named_in_the_conflict() -> None:
    main, side = pair({"k": ""})
    main.store.set("policy/heads/main", encode_policies({"k": f"{__name__}:longast"}) or b"")
    commit(main, k="cccc")
    commit(side, k="dd")
    with pytest.raises(MergeConflict, match="longast"):
        Versioned(main.store, branch="main").merge("side")


# cherry-pick and revert


def test_cherry_pick_takes_one_commit() -> None:
    """Only the changes of that commit arrive, with its message and its origin."""
    main, side = pair({"a": 1, "b": 1})
    commit(side, a=2)
    side["b"] = 2
    picked = present(side.commit("wanted", by="side"))
    kept = main["a"]
    assert (kept, main["b"]) == (1, 1)
    made = present(main.cherry_pick(picked))
    assert dict(main) == {"a": 1, "b": 2}
    assert (made.message, made.info) == ("wanted", {"by": "side", "cherry_picked": picked.id})
    assert len(made.parent_ids) == 1
    assert main.cherry_pick(picked) is None


def test_revert_takes_one_commit_back() -> None:
    """Later changes to other keys stay; a key changed since is a conflict; the first commit can go too."""
    state = Versioned()
    commit(state, a=1, keep=1)
    state["a"] = 2
    state["new"] = 1
    bad = present(state.commit("bad"))
    commit(state, keep=2)
    made = present(state.revert(bad))
    assert dict(state) == {"a": 1, "keep": 2}
    assert made.message == f"Revert {bad.short} bad"
    assert state.revert(bad) is None
    with pytest.raises(MergeConflict, match="reverting"):
        state.revert("HEAD~3")
    state.revert("HEAD~3", policy="theirs")
    assert dict(state) == {}


# Against a model

KEYS = st.sampled_from("abcdef")
EDITS = st.lists(st.tuples(KEYS, st.none() | st.integers(0, 2)), max_size=6)


def apply(state: dict[str, Any] | Versioned, edits: list[tuple[str, int | None]]) -> None:
    for key, value in edits:
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value


def expected(base: dict[str, Any], ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any] | None:
    """A three-way merge of dicts; None where it is in conflict."""
    merged = {}
    for key in base.keys() | ours.keys() | theirs.keys():
        b, o, t = (side.get(key, ABSENT) for side in (base, ours, theirs))
        if o != t and o != b and t != b:
            return None
        value = t if o == b else o
        if value is not ABSENT:
            merged[key] = value
    return merged


@settings(max_examples=40)
@given(EDITS, EDITS, EDITS)
@pytest.mark.slow
def test_merges_are_as_the_model_says(base: Any, ours: Any, theirs: Any) -> None:
    """For any base and any changes on both sides: the model's result, from either side, or a conflict."""
    main = Versioned()
    main["always"] = 1
    apply(main, base)
    main.commit()
    side = main.fork("side")
    before = dict(main)
    apply(main, ours)
    main.commit()
    apply(side, theirs)
    side.commit()
    model = expected(before, dict(main), dict(side))
    if model is None:
        with pytest.raises(MergeConflict):
            main.merge("side")
        with pytest.raises(MergeConflict):
            side.merge("main")
    else:
        mirrored = Versioned(main.store, branch="mirror")
        mirrored.merge("side")
        mirrored.merge("main")
        main.merge("side")
        assert dict(main) == model
        assert dict(mirrored) == model
        if main.head != side.head:
            assert (main.head and main.head.root) == (mirrored.head and mirrored.head.root)
