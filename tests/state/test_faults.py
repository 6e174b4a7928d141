"""Failures of the store: whatever call fails, the mapping stays as it was and a retry succeeds."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vstate import Disk, Memory, Versioned
from vstate.errors import CorruptStore, InvalidInput, StoreFull, StoreUnavailable
from vstate.repo import Repository
from vstate.testing import Faulty


def commit(state: Versioned) -> None:
    state["k"].append(2)
    del state["gone"]
    state["new"] = {"x": "y" * 5000}
    state.commit("m")


def merge(state: Versioned) -> None:
    other = Versioned(state.store.store, branch="main")  # type: ignore[attr-defined]
    if "theirs" not in other:
        other["theirs"] = 1
        other.commit("theirs")
    commit(state)


def refresh(state: Versioned) -> None:
    other = Versioned(state.store.store, branch="main")  # type: ignore[attr-defined]
    if "theirs" not in other:
        other["theirs"] = 1
        other.commit("theirs")
    state.refresh()


def refresh_to_another_branch(state: Versioned) -> None:
    Repository(state.store.store).checkout("side")  # type: ignore[attr-defined]
    state.refresh()


def transaction(state: Versioned) -> None:
    with state.transaction("t"):
        commit_in_place(state)


def commit_in_place(state: Versioned) -> None:
    state["k"].append(2)
    state["gone"] = "still here"


OPERATIONS: dict[str, Callable[[Versioned], Any]] = {
    "commit": commit,
    "merge": merge,
    "refresh": refresh,
    "refresh to another branch": refresh_to_another_branch,
    "transaction": transaction,
    "rollback": lambda state: state.rollback(),
    "reset": lambda state: state.reset("HEAD~1"),
    "switch": lambda state: state.switch("side"),
    "switch to a new branch": lambda state: state.switch("made", create=True),
    "tag": lambda state: state.tag("t1"),
    "fork": lambda state: state.fork("f1"),
}


def prepare() -> tuple[Memory, Faulty, Versioned]:
    memory = Memory()
    state = Versioned(memory)
    state["k"], state["gone"], state["long"] = [0], [1], "z" * 40_000
    state.commit("zero")
    state.create_branch("side")
    state["k"].append(1)
    state.commit("one")
    faulty = Faulty(memory)
    return memory, faulty, Versioned(faulty)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_failing_call_leaves_the_mapping_as_it_was(name: str, after: bool) -> None:
    """An operation whose store fails at any one call raises; branch, head and staged changes stay; a retry works."""
    _, faulty, state = prepare()
    dict(state)
    faulty.calls.clear()
    OPERATIONS[name](state)
    total = len(faulty.calls)
    expected = (state.branch, copy.deepcopy(dict(state)))
    for fail_at in range(1, total + 1):
        memory, faulty, state = prepare()
        dict(state)
        place = (state.branch, state.head)
        before = copy.deepcopy(dict(state))
        faulty.calls.clear()
        faulty.fail_at = fail_at
        faulty.after = after
        raised = False
        try:
            OPERATIONS[name](state)
        except StoreUnavailable:
            raised = True
        faulty.fail_at = None
        if raised:
            assert (state.branch, state.head) == place, f"call {fail_at}: {faulty.calls}"
            if name in ("commit", "merge"):
                assert dict(state).keys() - {"theirs"} == {"k", "long", "new"}
                assert state.status().removed == ["gone"]
                state.commit("m")
            elif name == "transaction":
                state.commit("t")
                if state["k"] == before["k"]:  # it failed before the end, and was undone
                    transaction(state)
            elif name == "fork" or (after and name in ("rollback", "reset", "switch to a new branch", "tag")):
                continue  # it may have happened: what to do next is up to the program
            else:
                assert dict(state) == before
                OPERATIONS[name](state)
        assert (state.branch, dict(state)) == expected, f"call {fail_at}: {faulty.calls}"
        fresh = Versioned(memory, branch=state.branch)
        assert dict(fresh) == expected[1]


def test_a_quota_reached_in_the_middle_of_a_commit(tmp_path: Path) -> None:
    """A commit past size_limit raises StoreFull, writes nothing and keeps all staged; a smaller one succeeds."""
    noise = random.Random(1)
    with Disk(tmp_path / "s", size_limit=400_000) as disk:
        state = Versioned(disk)
        state["small"] = [1]
        state.commit("fits")
        head = state.head
        keys = set(disk.keys())
        state["small"].append(2)
        state["big"] = noise.randbytes(1_000_000)
        for _ in range(2):
            with pytest.raises(StoreFull):
                state.commit("too big")
            assert state.head == head
            assert set(disk.keys()) == keys
            assert state.status().added == ["big"]
            assert state["small"] == [1, 2]
        state["big"] = "smaller"
        assert state.commit("fits again") is not None
        assert dict(Versioned(disk)) == {"small": [1, 2], "big": "smaller"}


def test_a_full_store_through_the_faulty_one() -> None:
    """StoreFull raised by a store goes to the caller as it is, with everything staged."""
    memory = Memory()
    faulty = Faulty(memory, error=StoreFull)
    state = Versioned(faulty)
    state["k"] = [1]
    faulty.calls.clear()
    faulty.fail_at = 1
    with pytest.raises(StoreFull):
        state.commit()
    assert list(memory.keys()) == []
    assert state.commit() is not None


def test_what_cannot_be_a_store(tmp_path: Path) -> None:
    """A path that is a file, a database that is none and a directory of nobody's are refused with advice."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidInput, match="a file is in its way"):
        Versioned(tmp_path / "file")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "vstate.db").write_bytes(b"no database at all" * 1000)
    with pytest.raises(CorruptStore):
        Versioned(tmp_path / "damaged")
    with pytest.raises(InvalidInput):
        Versioned(5)  # type: ignore[arg-type]
