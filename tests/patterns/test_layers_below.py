"""The patterns over the layers below: tiers, leases, expiry, merge policies, rollback."""

from __future__ import annotations

import operator
from datetime import timedelta
from pathlib import Path

import pytest
from agent_stores import AgentStore
from clock import standing_still
from pydantic import BaseModel

from vstate import Versioned
from vstate.errors import LeaseHeld, MergeConflict
from vstate.kv import Disk, Memory, Tiered
from vstate.patterns import EventStream, Lifecycle, Records, Sequence, bound, scope


class Task(BaseModel):
    id: str
    status: str = "open"
    tags: list[str] = []
    tries: int = 0


JOB = Lifecycle({("open", "take"): "taken", ("taken", "finish"): "done"}, initial="open")


def test_tiered(tmp_path: Path) -> None:
    """Records and a stream on a fast tier before a Disk: the Disk alone has all of them afterwards."""
    with Tiered(Memory(), Disk(tmp_path)) as store:
        state = Versioned(store, branch="main")
        Records(scope(state, "tasks"), Task, key="id").put(Task(id="a/b"))
        EventStream(state, "log").extend(range(150))
        state.commit()
        assert EventStream[int](state, "log").fold(operator.add, 0) == sum(range(150))
        state.apply(lambda inner: EventStream(inner, "log").append(1))
    with Disk(tmp_path) as disk:
        state = Versioned(disk, branch="main")
        assert Records(scope(state, "tasks"), Task, key="id")["a/b"] == Task(id="a/b")
        assert EventStream[int](state, "log").fold(operator.add, 0) == sum(range(150)) + 1
        assert len(state.keys("log/folds/")) == 1


def test_a_lease_on_a_record(agent_store: AgentStore) -> None:
    """One worker holds the lease, the other gets an error; a commit under the lease moves both."""
    one = Versioned(agent_store(), branch="main")
    other = Versioned(agent_store(), branch="main")
    tasks = Records(scope(one, "tasks"), Task, key="id")
    one.apply(lambda inner: tasks.put(Task(id="a")))
    other.refresh()
    with one.lease("tasks/a", ttl=60) as lease:
        with pytest.raises(LeaseHeld), other.lease("tasks/a", ttl=60, wait=0):
            pass
        tasks.change("a", status=JOB.next(tasks["a"].status, "take"))
        EventStream(one, "log").append("taken")
        lease.commit("taken under a lease")
    other.refresh()
    assert Records(scope(other, "tasks"), Task, key="id")["a"].status == "taken"
    assert list(EventStream(other, "log")) == ["taken"]


def test_a_branch_and_its_events_expire(agent_store: AgentStore) -> None:
    """Single events and records by their keys, and all of a session by its branch."""
    with standing_still() as time:
        state = Versioned(agent_store(), branch="sessions/1", ttl=timedelta(hours=1))
        stream: EventStream[str] = EventStream(state, "log")
        state.expire(stream.append("short"), 60)
        stream.append("long")
        tasks = Records(scope(state, "tasks"), Task, key="id")
        tasks.put(Task(id="a"))
        tasks.expire("a", 60)
        state.commit()
        time.pass_(61)
        assert (list(stream), len(stream), tasks.get("a")) == (["long"], 1, None)
        stream.append("after")
        state.commit()
        assert list(stream) == ["long", "after"]
        time.pass_(3600)
        assert list(EventStream(Versioned(agent_store(), branch="sessions/1"), "log")) == []


def test_merge_policies(agent_store: AgentStore) -> None:
    """The fields of a record that both changed are merged by policy; a stream needs no policy."""
    state = Versioned(agent_store(), branch="main")
    tasks = Records(scope(state, "tasks"), Task, key="id")
    tasks.put(Task(id="a"))
    EventStream(state, "log").append("begin")
    state.commit()
    other = state.fork("other")
    tasks.change("a", status="taken")
    EventStream(state, "log").append("one")
    state.commit()
    Records(scope(other, "tasks"), Task, key="id").change("a", tries=3)
    EventStream(other, "log").append("other")
    other.commit()
    with pytest.raises(MergeConflict, match="tasks/a"):
        state.merge("other")
    state.set_policy("tasks/", "deep")
    state.merge("other")
    assert tasks["a"] == Task(id="a", status="taken", tries=3)
    assert sorted(EventStream(state, "log")) == ["begin", "one", "other"]
    # Also for a commit that lost a race.
    late = Versioned(agent_store(), branch="main")
    tasks.change("a", tags=["x"])
    EventStream(state, "log").append("two")
    state.commit()
    Records(scope(late, "tasks"), Task, key="id").change("a", tries=4)
    EventStream(late, "log").append("late")
    late.commit()
    assert Records(scope(late, "tasks"), Task, key="id")["a"] == Task(
        id="a", status="taken", tags=["x"], tries=4
    )
    assert len(EventStream(late, "log")) == 5


def test_rollback_undo_and_branches(agent_store: AgentStore) -> None:
    """Records, streams, life cycles and bounds follow the state wherever it moves."""
    state = Versioned(agent_store(), branch="main")
    bound(state, "recent", limit=2)
    for number in range(5):

        def step(inner: Versioned, number: int = number) -> None:
            Records(scope(inner, "tasks"), Task, key="id").put(Task(id=str(number)))
            EventStream(inner, "log").append(number)
            Sequence(inner, "recent").append(number)
            inner["last"] = number

        state.apply(step)
    JOB.fire(state, ("tasks", "3"), "take", field="status")
    tasks = Records(scope(state, "tasks"), Task, key="id")
    stream: EventStream[int] = EventStream(state, "log")
    assert stream.fold(operator.add, 0, every=2) == 10
    state.rollback(steps=3)
    assert (list(tasks), list(stream), list(Sequence(state, "recent"))) == (
        ["0", "1", "2"],
        [0, 1, 2],
        [1, 2],
    )
    assert stream.fold(operator.add, 0, every=2) == 3
    state.undo()
    assert (tasks["3"].status, stream.fold(operator.add, 0, every=2)) == ("taken", 10)
    branch = state.fork("what-if", at="HEAD~1")
    assert JOB.fire(branch, ("tasks", "3"), "take", field="status") == "taken"
    assert next(iter(state.log(key="tasks/3"))).message == "tasks/3: take"
