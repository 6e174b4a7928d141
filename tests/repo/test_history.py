"""History: its order, the commits that touched a key, and lazy diffs."""

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest

from vstate import InvalidInput, Memory, Versioned, events
from vstate.repo import core
from vstate.repo.compare.details import details
from vstate.testing import Faulty


def test_newest_first_with_limit() -> None:
    """The log runs from the newest commit to the first, and stops at the limit."""
    state = Versioned()
    for i in range(5):
        state["k"] = i
        state.commit(f"c{i}")
    assert [commit.message for commit in state.log()] == ["c4", "c3", "c2", "c1", "c0"]
    assert [commit.message for commit in state.log("HEAD~1", limit=2)] == ["c3", "c2"]
    assert list(state.log(limit=0)) == []


@pytest.mark.parametrize("limit", [-1, 1.5, "2"])
def test_a_limit_that_makes_no_sense(limit: Any) -> None:
    """A bad limit raises InvalidInput in the call itself, before the first commit and after."""
    state = Versioned()
    calls = [
        lambda: state.log(limit=limit),
        lambda: events(state, limit=limit),
        lambda: Versioned().log(limit=limit),
        lambda: state.diff().details("k", limit=limit),
        lambda: details(1, 2, limit=limit),
    ]
    state["k"] = 1
    state.commit()
    for call in calls:
        with pytest.raises(InvalidInput, match="limit is a whole number from 0 on"):
            call()


def test_merges_come_after_both_sides() -> None:
    """In a history with merges, each commit appears once, and before all its parents."""
    store = Memory()
    handles = [Versioned(store) for _ in range(3)]
    for turn in range(4):
        for i, handle in enumerate(handles):
            handle[f"k{i}"] = turn
            handle.commit(f"{turn}/{i}")
    log = list(handles[-1].log())
    assert len(log) == len({commit.id for commit in log})
    place = {commit.oid: i for i, commit in enumerate(log)}
    assert any(len(commit.parent_ids) == 2 for commit in log)
    for commit in log:
        assert all(place[parent] > place[commit.oid] for parent in commit.parent_ids)
    final = Versioned(store)
    assert dict(final) == {"k0": 3, "k1": 3, "k2": 3}


class Backwards(datetime):
    """A clock that goes back one hour at each reading."""

    ticks = 0

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:
        cls.ticks += 1
        return datetime(2024, 1, 1, tzinfo=UTC) - timedelta(hours=cls.ticks)


def test_a_clock_that_goes_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log keeps the order of commits, whatever the clock says, and each date is as the clock said."""
    monkeypatch.setattr(core, "datetime", Backwards)
    store = Memory()
    a, b = Versioned(store), Versioned(store)
    for i in range(3):
        a["a"] = i
        a.commit(f"a{i}")
        b["b"] = i
        b.commit(f"b{i}")
    log = list(Versioned(store).log())
    assert [c.order for c in log] == sorted((c.order for c in log), reverse=True)
    assert [c.time for c in log] != sorted((c.time for c in log), reverse=True)
    place = {commit.oid: i for i, commit in enumerate(log)}
    assert all(place[parent] > place[c.oid] for c in log for parent in c.parent_ids)


def test_log_of_a_key() -> None:
    """log(key=) yields the commits that set, changed or deleted the key, and no others."""
    state = Versioned()
    state["other"] = 0
    state.commit("before")
    state["k"] = 1
    state.commit("added")
    state["other"] = 1
    state.commit("elsewhere")
    state["k"] = 2
    state.commit("changed")
    del state["k"]
    state.commit("deleted")
    state["other"] = 2
    state.commit("after")
    assert [c.message for c in state.log(key="k")] == ["deleted", "changed", "added"]
    assert [c.message for c in state.log(key="k", limit=1)] == ["deleted"]
    assert list(state.log(key="never")) == []


def test_log_of_a_key_through_a_merge() -> None:
    """A merge that takes a key from one side did not change it."""
    store = Memory()
    a, b = Versioned(store), Versioned(store)
    a["a"] = 1
    a.commit("set a")
    b["b"] = 1
    merge = b.commit("set b")
    assert merge is not None
    assert len(merge.parent_ids) == 2
    assert [c.message for c in b.log(key="a")] == ["set a"]
    assert [c.message for c in b.log(key="b")] == ["set b"]


@pytest.mark.slow
def test_a_diff_reads_no_value() -> None:
    """A diff of 1 key among 20,000 reads few nodes, and values only on demand; kinds are right."""
    faulty = Faulty(Memory())
    state = Versioned(faulty)
    state.update({f"k{i:05}": "v" * 200 + str(i) for i in range(20_000)})
    state.commit()
    state["k00500"] = "w" * 200
    state["new"] = [1]
    del state["k00001"]
    state.commit()
    fresh = Versioned(faulty)
    fresh.checkout("HEAD")
    faulty.calls.clear()
    diff = fresh.diff("HEAD~1", "HEAD")
    assert len(faulty.calls) < 20
    before = len(faulty.calls)
    assert (diff.added, diff.modified, diff.removed) == (["new"], ["k00500"], ["k00001"])
    assert str(diff)
    assert len(faulty.calls) == before
    assert diff["k00500"].old == "v" * 200 + "500"
    assert diff["k00500"].new == "w" * 200
    assert len(faulty.calls) <= before + 2
    assert diff["new"].old is None
    assert diff["k00001"].new is None


def test_equal_states_have_no_diff() -> None:
    """A state that changed and changed back has an empty, false diff, without reading a node."""
    state = Versioned()
    state["k"] = [1]
    state.commit()
    state["k"] = [2]
    state.commit()
    state["k"] = [1]
    state.commit()
    assert not state.diff("HEAD~2", "HEAD")
    assert state.checkout("HEAD").commit.root == state.checkout("HEAD~2").commit.root
