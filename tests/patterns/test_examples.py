"""Each pattern in a minimal program."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from vstate import Versioned, aio
from vstate.errors import IllegalTransition, InvalidRecord
from vstate.patterns import EventStream, Lifecycle, Records, Sequence, bound, scope


class Task(BaseModel):
    id: str
    title: str
    done: bool = False


def test_records(tmp_path: Path) -> None:
    """Typed records, validated on write and read, with all of their history."""
    state = Versioned(tmp_path / "state", branch="main")
    tasks = Records(state.namespace("tasks"), Task, key="id")
    tasks.put(Task(id="t1", title="Write the report"))
    state.commit("first task")
    state.apply(lambda _: tasks.change("t1", done=True), message="done")
    with pytest.raises(InvalidRecord):
        tasks.change("t1", title=None)
    assert [commit.message for commit in state.log(key="tasks/t1")] == ["done", "first task"]


class TaskOfToday(BaseModel):
    id: str
    title: str
    status: str


def test_records_that_changed_their_shape(tmp_path: Path) -> None:
    """Today's program reads yesterday's records; the stored record changes only by put."""
    state = Versioned(tmp_path / "state", branch="main")
    Records(state.namespace("tasks"), Task, key="id").put(Task(id="t1", title="Write", done=True))
    state.commit()

    def with_status(task: dict[str, Any]) -> dict[str, Any]:
        task["status"] = "done" if task.pop("done") else "open"
        return task

    tasks = Records(state.namespace("tasks"), TaskOfToday, key="id", version=2, migrate={1: with_status})
    assert tasks["t1"].status == "done"
    assert state["tasks/t1"] == {"id": "t1", "title": "Write", "done": True}


def test_an_event_stream(tmp_path: Path) -> None:
    """The balance of an account follows from its events."""
    state = Versioned(tmp_path / "state", branch="main")
    account: EventStream[dict[str, int]] = EventStream(state, "account")

    def balance(so_far: int, event: dict[str, int]) -> int:
        return so_far + event["amount"]

    state.apply(lambda _: account.extend([{"amount": 100}, {"amount": -30}]), message="opened")
    assert account.fold(balance, 0) == 70
    state.apply(lambda _: account.append({"amount": -1000}), message="by mistake")
    state.rollback(steps=1)
    assert account.fold(balance, 0) == 70


class Status(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"


LIFE = Lifecycle(
    {(Status.PENDING, "start"): Status.RUNNING, (Status.RUNNING, "finish"): Status.DONE},
    initial=Status.PENDING,
)


def test_a_lifecycle(tmp_path: Path) -> None:
    """A job moves only as the table allows."""
    state = Versioned(tmp_path / "state", branch="main")
    assert LIFE.fire(state, "job", "start") is Status.RUNNING
    with pytest.raises(IllegalTransition, match="possible are: finish"):
        LIFE.fire(state, "job", "start")

    async def finish() -> Status:
        async with aio.Versioned(tmp_path / "state", branch="main") as same:
            return await LIFE.fire(same, "job", "finish")

    assert asyncio.run(finish()) is Status.DONE


def test_a_bound(tmp_path: Path) -> None:
    """The working memory has a limit of tokens; older messages are summarised, and history has them."""
    state = Versioned(tmp_path / "state", branch="main")

    def tokens(messages: list[str]) -> int:
        return sum(len(message.split()) for message in messages)

    def summarise(messages: list[str]) -> list[str]:
        return [f"({len(messages) - 1} earlier messages)", messages[-1]]

    bound(state, "messages", limit=8, cost=tokens, shrink=summarise)
    state["messages"] = ["Hello there", "Hello, how can I help?"]
    before = state.commit()
    state["messages"].append("Tell me about trees")
    state.commit()
    assert state["messages"] == ["(2 earlier messages)", "Tell me about trees"]
    assert state.checkout(before)["messages"] == ["Hello there", "Hello, how can I help?"]


def test_scopes_and_sequences(tmp_path: Path) -> None:
    """Each session of each user has its own part of the state, whatever its name contains."""
    state = Versioned(tmp_path / "state", branch="main")
    for user in ("ann", "ann/bob"):
        Sequence(scope(state, "users", user), "seen").extend(["home", "help"])
    state.commit()
    assert Sequence(scope(state, "users", "ann"), "seen").last(1) == ["help"]
    assert len(scope(state, "users", "ann")) == 2
