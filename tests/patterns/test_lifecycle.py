"""Lifecycle: a table of states, and events that move along it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum
from types import SimpleNamespace
from typing import Any

import pytest
from agent_stores import AgentStore
from pydantic import BaseModel

from vstate import Live, Versioned, aio
from vstate.errors import IllegalTransition, InvalidInput, KeyNotFound, ReadOnly, UncommittedChanges
from vstate.patterns import Lifecycle, Records, scope


class Status(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class Event(Enum):
    START = "start"
    FINISH = "finish"


JOB: Lifecycle[Status] = Lifecycle(
    {
        (Status.PENDING, Event.START): Status.RUNNING,
        (Status.RUNNING, Event.FINISH): Status.DONE,
        (Status.RUNNING, "fail"): Status.FAILED,
        (Status.FAILED, "retry"): Status.PENDING,
    },
    initial=Status.PENDING,
)

DOOR = Lifecycle({("open", "close"): "shut", ("shut", "open"): "open"}, initial="open")


class Job(BaseModel):
    id: str
    status: Status = Status.PENDING
    tries: int = 0


def test_the_table_answers() -> None:
    """A member equals its value in calls; results are as in the table."""
    assert JOB.next("pending", "start") is Status.RUNNING
    assert JOB.next(Status.RUNNING, Event.FINISH) is Status.DONE
    assert JOB.allowed("running") == ["finish", "fail"]
    assert JOB.allowed(Status.DONE) == []
    assert JOB.states == (Status.PENDING, Status.RUNNING, Status.DONE, Status.FAILED)
    assert (JOB.initial, JOB.final) == (Status.PENDING, (Status.DONE,))
    with pytest.raises(IllegalTransition) as raised:
        JOB.next(Status.RUNNING, Event.START)
    assert (raised.value.status, raised.value.event, raised.value.allowed) == (
        "running",
        "start",
        ("finish", "fail"),
    )
    with pytest.raises(IllegalTransition, match="nothing is possible"):
        JOB.next("done", "start")
    with pytest.raises(IllegalTransition):
        JOB.next("nonsense", "start")
    with pytest.raises(InvalidInput, match="pending, running"):
        JOB.allowed("nonsense")
    assert repr(JOB) == "<Lifecycle from 'pending', 4 states, 4 transitions>"
    assert str(DOOR) == "Lifecycle from 'open'\n  open  close  -> shut\n  shut  open   -> open"
    for table, initial, reason in (
        ({("a", Event.START): "b", ("a", "start"): "c"}, "a", "two transitions"),
        (
            {(Status.PENDING, "go"): Status.DONE, ("done", "go"): Status.PENDING},
            Status.DONE,
            "as 'done': write one of them",
        ),
        ({("a", "go"): "b"}, "c", "initial"),
    ):
        with pytest.raises(InvalidInput, match=reason):
            Lifecycle(table, initial=initial)  # type: ignore[arg-type]


def test_firing_is_one_commit(local_store: AgentStore) -> None:
    """An absent key is in the initial state; each move is a commit, or part of a transaction; an illegal one
    changes nothing, and uncommitted changes raise.
    """
    state = Versioned(local_store(), branch="main")
    assert JOB.fire(state, "job", Event.START) is Status.RUNNING
    assert JOB.fire(state, "job", "finish", message="well done") is Status.DONE
    with pytest.raises(IllegalTransition):
        JOB.fire(state, "job", Event.START)
    again = Versioned(local_store(), branch="main")
    assert again["job"] is Status.DONE
    assert JOB.status(again, "job") is Status.DONE
    assert JOB.status(again, "other") is Status.PENDING
    assert JOB.status(again.checkout("HEAD~1"), "job") is Status.RUNNING
    assert [commit.message for commit in again.log()] == ["well done", "job: start"]
    again.rollback(steps=1)
    assert JOB.fire(again, "job", "fail") is Status.FAILED
    with again.transaction("both"):
        again["x"] = 1
        JOB.fire(again, "job", "retry")
    assert [commit.message for commit in again.log(limit=2)] == ["both", "job: fail"]
    with pytest.raises(IllegalTransition), again.transaction():
        again["x"] = 2
        JOB.fire(again, "job", "retry")
    assert again["x"] == 1
    again["x"] = 3
    with pytest.raises(UncommittedChanges):
        JOB.fire(again, "job", "start")


@pytest.mark.parametrize("kind", [Versioned, Live])
def test_texts_tuples_and_parts_of_a_state(kind: Any) -> None:
    """A tuple is a path, fire works on a namespace, and a stored text stays a text."""
    state = kind()
    inner = scope(state, "house", "1")
    assert DOOR.fire(inner, ("front", "a/b"), "close") == "shut"
    state["job"] = "pending"
    state.commit()
    assert JOB.fire(state, "job", "start") is Status.RUNNING
    assert type(state["job"]) is str
    assert dict(state) == {"house/1/front/a%2fb": "shut", "job": "running"}
    state["job"] = [1]
    state.commit()
    with pytest.raises(InvalidInput, match="no state"):
        JOB.status(state, "job")
    with pytest.raises(IllegalTransition):
        JOB.fire(state, "job", "start")


@dataclass
class Task:
    name: str
    status: Status


def test_a_field_moves(local_store: AgentStore) -> None:
    """A field of a dict, of an object, of a record by key, and of Records by id; other fields stay."""
    state = Versioned(local_store(), branch="main")
    records = Records(scope(state, "jobs"), Job, key="id")
    with state.transaction():
        state["dict"] = {"name": "n"}
        state["object"] = Task("t", Status.PENDING)
        records.put(Job(id="a/b", tries=3))
    for key in ("dict", "object", ("jobs", "a/b")):
        assert JOB.fire(state, key, "start", field="status") is Status.RUNNING
    assert state["dict"] == {"name": "n", "status": "running"}
    assert state["object"] == Task("t", Status.RUNNING)
    assert JOB.fire(records, "a/b", "finish", field="status") is Status.DONE
    assert records["a/b"] == Job(id="a/b", status=Status.DONE, tries=3)
    assert JOB.status(state, ("jobs", "a/b"), field="status") is Status.DONE
    assert JOB.status(records, "a/b", field="status") is Status.DONE
    with pytest.raises(IllegalTransition):
        JOB.fire(records, "a/b", "start", field="status")
    for what in (state, records):
        with pytest.raises(KeyNotFound):
            JOB.fire(what, "none", "start", field="status")
    with pytest.raises(KeyNotFound):
        JOB.status(records, "none", field="status")
    for call in (lambda: JOB.fire(records, "a/b", "retry"), lambda: JOB.status(records, "a/b")):
        with pytest.raises(InvalidInput, match="field="):
            call()
    assert not state.has_uncommitted


class Racing(Lifecycle[Status]):
    """Finishes a job, and calls a function between its first read and its commit."""

    def __init__(self, race: Callable[[], Status]) -> None:
        super().__init__({(Status.RUNNING, "finish"): Status.DONE}, initial=Status.RUNNING)
        self.races = [race]

    def next(self, status: Any, event: Any) -> Status:
        after = super().next(status, event)
        if self.races:
            self.races.pop()()
        return after


def test_two_handles_that_have_both_read() -> None:
    """The one that read before the other committed runs again, and raises; a field of a record is alike."""
    one = Versioned(branch="main")
    other = Versioned(one.store, branch="main")
    JOB.fire(one, "job", "start")
    with pytest.raises(IllegalTransition) as raised:
        Racing(lambda: JOB.fire(one, "job", "fail")).fire(other, "job", "finish")
    assert (raised.value.status, other["job"]) == ("failed", Status.FAILED)
    ours, theirs = (Records(scope(state, "jobs"), Job, key="id") for state in (one, other))
    one.apply(lambda _: ours.put(Job(id="a", status=Status.RUNNING)))
    with pytest.raises(IllegalTransition, match="failed"):
        Racing(lambda: JOB.fire(ours, "a", "fail", field="status")).fire(
            theirs, "a", "finish", field="status"
        )
    other["x"] = 1
    with pytest.raises(UncommittedChanges):
        JOB.fire(theirs, "a", "retry", field="status")


@pytest.mark.parametrize(
    "job", [{"status": "pending"}, SimpleNamespace(status="pending")], ids=["dict", "object"]
)
def test_a_field_moves_in_the_object_that_the_program_holds(job: Any) -> None:
    """An edit through the object after the move is found."""
    state = Versioned()
    state["job"] = job
    state.commit()
    JOB.fire(state, "job", "start", field="status")
    assert state["job"] is job
    if isinstance(job, dict):
        job["n"] = 1
    else:
        job.n = 1
    assert state.commit("edited") is not None


def test_awaited(local_store: AgentStore) -> None:
    """A state of vstate.aio is awaited, in a namespace, a transaction, and beside other tasks too."""

    async def main() -> list[Any]:
        async with aio.Versioned(local_store(), branch="main") as state:
            assert await JOB.fire(state, "job", "start") is Status.RUNNING
            async with state.transaction():
                assert await JOB.fire(state.namespace("inner"), "job", Event.START) is Status.RUNNING
            fired = [JOB.fire(state, "job", event) for event in ("finish", "fail", "finish", "fail")]
            return await asyncio.gather(*fired, return_exceptions=True)

    results = asyncio.run(main())
    assert len([result for result in results if isinstance(result, Status)]) == 1
    assert len([result for result in results if isinstance(result, IllegalTransition)]) == 3
    state = Versioned(local_store(), branch="main")
    assert state["inner/job"] is Status.RUNNING
    assert state["job"] in (Status.DONE, Status.FAILED)


def test_wrong_arguments_of_fire_raise() -> None:
    """A snapshot is read-only, a dict is no state, and None is no key."""
    life = Lifecycle({("new", "pay"): "paid"}, initial="new")
    state = Versioned()
    life.fire(state, "order", "pay")
    with pytest.raises(ReadOnly, match="a move writes, and this is a snapshot"):
        life.fire(state.checkout("HEAD"), "order", "pay")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="is not a state: give a Versioned"):
        life.fire({}, "order", "pay")  # type: ignore[call-overload]
    for key in (None, 5, b"k"):
        with pytest.raises(TypeError, match="an id is a str or a tuple of them, not"):
            life.fire(state, key, "pay")  # type: ignore[call-overload]
