"""Agents of Strands on vstate: sessions, snapshots and storages come back, also after a kill."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from loops import in_a_loop

from vstate import Disk, InvalidInput, Memory, Versioned

pytest.importorskip("strands", reason="strands-agents is not installed")

from strands import Agent
from strands.models import Model
from strands.session import RepositorySessionManager, SnapshotSessionManager
from strands.types.exceptions import SessionException, StorageError
from strands.types.session import Session, SessionAgent, SessionMessage, SessionType

from vstate.integrations.strands import VstateSessionRepository, VstateStorage


class Script(Model):
    """A model that says what it is told to say."""

    stateful = False

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)

    def update_config(self, **config: Any) -> None: ...

    def get_config(self) -> dict[str, Any]:
        return {"model_id": "script"}

    async def structured_output(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        raise NotImplementedError
        yield

    async def stream(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockDelta": {"delta": {"text": self.texts.pop(0)}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


def agent(manager: Any, *texts: str) -> Agent:
    return Agent(model=Script(*texts), agent_id="helper", session_manager=manager, callback_handler=None)


def said(agent: Agent) -> list[str]:
    return [message["content"][0]["text"] for message in agent.messages]


def with_agent(store: Any, session_id: str = "ann") -> VstateSessionRepository:
    repository = VstateSessionRepository(store)
    repository.create_session(Session(session_id, SessionType.AGENT))
    repository.create_agent(session_id, SessionAgent("helper", {}, {}))
    return repository


def message(number: int, text: str = "hello", **more: Any) -> SessionMessage:
    content: Any = {"role": "user", "content": [{"text": text}], **more}
    return SessionMessage(content, number)


def test_an_agent_goes_on_where_it_was_and_a_copy_has_the_turns_before(tmp_path: Path) -> None:
    """The messages come back in another repository; a branch of a session is a session of its own."""
    with VstateSessionRepository(tmp_path) as repository:
        helper = agent(RepositorySessionManager("ann", repository), "hello Ann", "bye Ann")
        helper("I am Ann")
        repository.repo.create_branch(repository.branch("copy"), repository.branch("ann"))
        helper("bye")
    with VstateSessionRepository(tmp_path) as repository:
        helper = agent(RepositorySessionManager("ann", repository))
        assert said(helper) == ["I am Ann", "hello Ann", "bye", "bye Ann"]
        copy = agent(RepositorySessionManager("copy", repository), "again")
        assert said(copy) == ["I am Ann", "hello Ann"]
        copy("once more")
        found = repository.read_session("copy")
        assert found is not None
        assert found.session_id == "copy"
        assert len(repository.list_messages("ann", "helper")) == 4
    with Versioned(tmp_path, branch="strands/sessions/ann") as state:
        told = [commit.message for commit in state.log()][:2]
    assert told == ["assistant: message 3 of helper", "user: message 2 of helper"]


def test_a_message_comes_back_as_it_was(tmp_path: Path) -> None:
    """Bytes, surrogates, nesting, ids with any character; pages; the time of creation stays at an update."""
    content: Any = [{"image": {"format": "png", "source": {"bytes": b"\0\xff"}}}, {"text": "a\ud800"}]
    with VstateSessionRepository(tmp_path) as repository:
        repository.create_session(Session("ann/1 %", SessionType.AGENT))
        repository.create_agent("ann/1 %", SessionAgent("a/b", {"k": [1, 1.0, None]}, {"removed": 0}))
        for number in (2, 0, 11, 1):
            sent = SessionMessage({"role": "user", "content": content}, number)
            repository.create_message("ann/1 %", "a/b", sent)
        found = repository.read_message("ann/1 %", "a/b", 11)
        assert found is not None
        assert found.to_message()["content"] == content
        redacted = message(11, "[gone]")
        redacted.created_at = "never"
        repository.update_message("ann/1 %", "a/b", redacted)
        page = repository.list_messages("ann/1 %", "a/b", limit=2, offset=1)
        assert [each.message_id for each in page] == [1, 2]
        last = repository.list_messages("ann/1 %", "a/b", offset=3)
        assert [(each.created_at, each.to_message()["content"]) for each in last] == [
            (found.created_at, [{"text": "[gone]"}])
        ]
        read = repository.read_agent("ann/1 %", "a/b")
        assert read is not None
        assert repr(read.state) == "{'k': [1, 1.0, None]}"


def test_what_is_absent_or_there_already_is_refused() -> None:
    """No call makes a session, an agent or a message come back that was deleted, or loses one."""
    with with_agent(Memory()) as repository:
        repository.create_message("ann", "helper", message(0))
        for call, words in [
            (lambda: repository.create_session(Session("ann", SessionType.AGENT)), "already exists"),
            (lambda: repository.create_agent("ann", SessionAgent("helper", {}, {})), "exists already"),
            (lambda: repository.create_message("ann", "helper", message(0, "other")), "exists already"),
            (lambda: repository.create_message("ann", "nobody", message(0)), "does not exist"),
            (lambda: repository.update_message("ann", "helper", message(1)), "does not exist"),
            (lambda: repository.update_agent("ann", SessionAgent("nobody", {}, {})), "does not exist"),
            (lambda: repository.list_messages("ann", "nobody"), "does not exist"),
            (lambda: repository.delete_session("bob"), "does not exist"),
        ]:
            with pytest.raises(SessionException, match=words):
                call()
        others: list[Any] = ["../0", -1, True, None]
        for number in others:
            with pytest.raises(InvalidInput, match="must be an integer"):
                repository.read_message("ann", "helper", number)
        repository.delete_session("ann")
        with pytest.raises(SessionException, match="does not exist"):
            repository.create_message("ann", "helper", message(1))
        assert repository.read_session("ann") is None
        assert repository.read_message("ann", "helper", 0) is None


def test_a_snapshot_is_stored_as_its_parts(tmp_path: Path) -> None:
    """An agent comes back from its snapshot, whose messages `diff` tells apart."""

    async def run() -> None:
        async with VstateStorage(tmp_path, branch="strands/ann") as storage:
            helper = agent(SnapshotSessionManager("ann", storage=storage), "hello Ann", "bye Ann")
            await helper.invoke_async("I am Ann")
            await helper.invoke_async("bye")
            (key,) = await storage.list("session/")
            data = await storage.read(key)
            assert data is not None
            assert data.startswith(b'{"')
        async with VstateStorage(tmp_path, branch="strands/ann") as storage:
            assert await storage.read(key) == data
            helper = agent(SnapshotSessionManager("ann", storage=storage))
            assert said(helper) == ["I am Ann", "hello Ann", "bye", "bye Ann"]

    asyncio.run(run())
    with Versioned(tmp_path, branch="strands/ann") as state:
        (key,) = state
        assert state[key]["data"]["messages"][3]["content"] == [{"text": "bye Ann"}]


@pytest.mark.parametrize(
    "data",
    [
        *(
            b"",
            b"\0\xff",
            b"7",
            b'"text"',
            b"null",
            b'{"a": 1}',
            b'{"a":1}',
            b'{"a": 1, "a": 2}',
            b"[1.0, 1e2]",
        ),
        *(b'["\\ud800"]', '["ä"]'.encode(), b"[NaN]", b"[" * 100_000),
    ],
    ids=lambda data: repr(data[:12]),
)
@in_a_loop
async def test_bytes_come_back_unchanged(data: bytes, tmp_path: Path) -> None:
    """Whatever the bytes look like, they are the same after the way through a store."""
    async with VstateStorage(Disk(tmp_path)) as storage:
        await storage.write("//a//b/", bytearray(data))
        assert await storage.read("a/b") == data
        await storage.delete("a/b")
        await storage.delete("a/b")
        assert await storage.read("a/b") is None


@in_a_loop
async def test_a_storage_raises_the_errors_of_the_framework(tmp_path: Path) -> None:
    """A key that is refused, and a store that is closed, are a StorageError that says why."""
    storage = VstateStorage(tmp_path)
    for key, words in [("", "not be empty"), ("a/../b", r"'\.\.'"), ("a\ud800", "surrogate")]:
        with pytest.raises(StorageError, match=words):
            await storage.write(key, b"")
    assert await storage.list() == []
    await storage.close()
    with pytest.raises(StorageError, match="is closed"):
        await storage.read("a")


def test_the_examples_of_the_page(example: Any, commands: Any) -> None:
    """An agent with a session, and one with a storage and snapshots."""
    example("Strands Agents", model=Script("It rains."))
    with Versioned("chats", branch="strands/sessions/ann") as state:
        assert next(commit.message for commit in state.log()) == "assistant: message 1 of default"
    example("Strands Agents", 1, model=Script("It rains."))["agent"]("What is the weather in Ghent?")
    with Versioned("agent", branch="strands/ann") as state:
        (snapshot,) = (state[key] for key in state)
    assert len(snapshot["data"]["messages"]) == 2
    commands("Strands Agents")
