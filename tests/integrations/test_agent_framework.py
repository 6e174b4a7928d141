"""Workflows and chats of Microsoft's Agent Framework on vstate: round trips, races, kills."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from loops import in_a_loop

from vstate import Disk, Memory

pytest.importorskip("agent_framework", reason="agent-framework-core is not installed")

from agent_framework import (
    BaseChatClient,
    ChatResponse,
    Message,
    WorkflowCheckpoint,
    WorkflowCheckpointException,
    WorkflowContext,
    executor,
)

from vstate.integrations.agent_framework import VstateCheckpointStorage, VstateHistoryProvider


@dataclass
class Order:
    """A class of the program."""

    lines: list[str]


ORDER = f"{Order.__module__}:{Order.__qualname__}"


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def checkpoint(id: str, second: int = 0, **fields: Any) -> WorkflowCheckpoint:
    at = datetime(2026, 1, 1, 12, 0, second, tzinfo=UTC).isoformat()
    options = {"workflow_name": "ship it/now", "graph_signature_hash": "hash", "timestamp": at}
    return WorkflowCheckpoint(checkpoint_id=id, **{**options, **fields})


@in_a_loop
async def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    """Values of any allowed class, in the order of the state; a second save takes the place of the first."""
    state = {"z": 1, "a": [Order(["tea"]), {1, 2}], "": None, "_executor_state": {"x/y": b"\0"}}
    saved = checkpoint("one/1", state=state, iteration_count=3, metadata={"k": [1.5]})
    async with VstateCheckpointStorage(tmp_path / "s", allowed_checkpoint_types=[ORDER]) as storage:
        assert await storage.save(saved) == "one/1"
        state["z"] = 2  # the storage has a copy
    async with VstateCheckpointStorage(tmp_path / "s", allowed_checkpoint_types=[ORDER]) as storage:
        found = await storage.load("one/1")
        assert found == checkpoint("one/1", state={**state, "z": 1}, iteration_count=3, metadata={"k": [1.5]})
        assert list(found.state) == list(state)
        await storage.save(checkpoint("one/1", state={"a": 0}))
        assert (await storage.load("one/1")).state == {"a": 0}
        assert await storage.delete("one/1") is True
        assert await storage.delete("one/1") is False
        with pytest.raises(WorkflowCheckpointException):
            await storage.load("one/1")


@in_a_loop
async def test_a_class_that_is_not_allowed_is_neither_saved_nor_loaded() -> None:
    """The framework's rules hold: a save is refused, and a list leaves the checkpoint out."""
    store = Memory()
    await VstateCheckpointStorage(store, allowed_checkpoint_types=[ORDER]).save(
        checkpoint("a", state={"order": Order([])})
    )
    strict = VstateCheckpointStorage(store)
    await strict.save(checkpoint("b"))
    with pytest.raises(WorkflowCheckpointException):
        await strict.save(checkpoint("c", state={"order": Order([])}))
    with pytest.raises(WorkflowCheckpointException):
        await strict.load("a")
    assert await strict.list_checkpoint_ids(workflow_name="ship it/now") == ["b"]


@in_a_loop
async def test_lists_are_of_one_workflow_by_time() -> None:
    """The latest is the newest by its time, whatever the order of the saves."""
    storage = VstateCheckpointStorage()
    assert await storage.get_latest(workflow_name="ship it/now") is None
    for id, second in (("a", 3), ("a-b", 1), ("c", 2)):
        await storage.save(checkpoint(id, second, state={"id": id}))
    await storage.save(checkpoint("other", 9, workflow_name="ship it"))
    assert await storage.list_checkpoint_ids(workflow_name="ship it/now") == ["a-b", "c", "a"]
    latest = await storage.get_latest(workflow_name="ship it/now")
    assert (latest.checkpoint_id, latest.state) == ("a", {"id": "a"})
    await storage.delete("a")
    assert (await storage.get_latest(workflow_name="ship it/now")).checkpoint_id == "c"


@in_a_loop
async def test_a_long_part_that_did_not_change_is_stored_once(tmp_path: Path) -> None:
    """Twenty checkpoints over 1 MB of state take little more than one."""
    document = os.urandom(500_000).hex()
    with Disk(tmp_path / "s") as disk:
        storage = VstateCheckpointStorage(disk)
        for n in range(20):
            await storage.save(checkpoint(f"c{n}", n, state={"document": document, "step": n}))
        assert disk.size() < 2_500_000 + 4_200_000  # and the log


@in_a_loop
async def test_messages_are_added_once_and_sessions_are_apart() -> None:
    """A replay of the transcript adds its new messages. An edit of a returned message changes nothing."""
    store = Memory()
    provider, other = VstateHistoryProvider(store), VstateHistoryProvider(store, "audit")
    said = [Message(role=role, contents=[text]) for role, text in (("user", "a"), ("assistant", "b"))]
    await provider.save_messages("s", said)
    await provider.save_messages("s", [*said, Message(role="user", contents=["cinnamon"])])
    await other.save_messages("s", said[:1])
    await provider.save_messages(None, said[1:])
    await provider.save_messages("s", [])
    found = await provider.get_messages("s")
    found[0].contents[0].text = "edited"
    found[0].additional_properties["k"] = 1
    assert [m.text for m in await provider.get_messages("s")] == ["a", "b", "cinnamon"]
    assert [m.text for m in await VstateHistoryProvider(store).get_messages("s")] == ["a", "b", "cinnamon"]
    assert [m.text for m in await other.get_messages("s")] == ["a"]
    assert [m.text for m in await provider.get_messages(None)] == ["b"]
    excluded = Message(role="user", contents=["d"], additional_properties={"_excluded": True})
    await provider.save_messages("s", [excluded, Message(role="user", contents=["e"])])
    assert len(await provider.get_messages("s")) == 5
    strict = VstateHistoryProvider(store, skip_excluded=True)
    assert [m.text for m in await strict.get_messages("s")] == ["a", "b", "cinnamon", "e"]


class Script(BaseChatClient):  # type: ignore[misc]  # the framework need not be there for the check
    """A client that gives one answer."""

    def _inner_get_response(self, *, messages: Any, options: Any, stream: bool = False, **more: Any) -> Any:
        async def answer() -> ChatResponse:
            return ChatResponse(messages=Message(role="assistant", contents=[f"answer {len(messages)}"]))

        return answer()


def test_the_example_of_the_page(example: Any, commands: Any) -> None:
    """A workflow has its checkpoints, and an agent its chat."""

    @executor(id="first")
    async def first(n: int, context: WorkflowContext[int, int]) -> None:
        await context.yield_output(n + 1)

    names = example("Microsoft Agent Framework", first=first, client=Script())

    async def check() -> None:
        result = await names["workflow"].run(message=1)
        assert result.get_outputs() == [2]
        assert await names["storage"].list_checkpoint_ids(workflow_name="count")
        session = names["agent"].create_session(session_id="ann")
        answers = [(await names["agent"].run(words, session=session)).text for words in ("one", "two")]
        assert answers == ["answer 1", "answer 3"]

    run(check())
    commands("Microsoft Agent Framework")
