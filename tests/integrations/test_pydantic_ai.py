"""Conversations of Pydantic AI on vstate: saves, branches, forks, races and deletions."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from loops import in_a_loop

from vstate import Memory
from vstate.repo import Repository

pytest.importorskip("pydantic_ai.conversation_store", reason="pydantic-ai-slim is not installed")

from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict, ConversationEntry, ConversationRecord
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.test import TestModel

from vstate.integrations.pydantic_ai import VstateConversationStore


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def turn(text: str) -> list[Any]:
    return [ModelRequest(parts=[UserPromptPart(text)]), ModelResponse(parts=[TextPart(f"{text}?")])]


async def saved(
    store: VstateConversationStore, id: str, *texts: str, scope: str | None = None
) -> Conversation:
    conversation = Conversation(conversation_id=id)
    for text in texts:
        conversation.messages.extend(turn(text))
        await store.save(conversation, scope=scope)
    return conversation


def words(conversation: Conversation | None) -> list[str]:
    assert conversation is not None
    parts: list[Any] = [message.parts[0] for message in conversation.messages]
    return [part.content for part in parts]


@in_a_loop
async def test_a_conversation_branches_forks_and_lists() -> None:
    """Histories that were left stay, a fork has the messages of its source, and scopes are apart."""
    backend = Memory()
    store = VstateConversationStore(backend)
    first = await saved(store, "a", "x", "y", "z", scope="ann")
    tip = (await store.load_entries("a"))[-1].id  # type: ignore[index]  # it is there
    shorter = await store.branch("a", at=2, expected_revision=first.revision)
    shorter.messages.extend(turn("w"))
    await store.save(shorter)
    assert words(await store.load("a")) == ["x", "x?", "w", "w?"]
    assert words(await store.load("a", limit=3)) == ["x?", "w", "w?"]
    assert await store.load("a", limit=0) == Conversation(
        messages=[], usage=shorter.usage, conversation_id="a", revision=shorter.revision
    )
    fresh = VstateConversationStore(backend)  # it has no hints
    fork = await fresh.fork("a", from_entry=tip, new_conversation_id="b", scope="bob")
    assert words(fork) == ["x", "x?", "y", "y?", "z", "z?"]
    await saved(fresh, "c", "other")
    assert [each.conversation_id for each in await store.list_conversations()] == ["c", "b", "a"]
    assert [each.conversation_id for each in await store.list_conversations(limit=1)] == ["c"]
    assert [each.conversation_id for each in await store.list_conversations(scope="ann")] == ["a"]
    assert await store.load("a", scope="bob") is None
    await store.delete("a")
    assert words(await fresh.load("b")) == words(fork)
    assert (await VstateConversationStore(backend).read_entry(tip)).id == tip
    fork.messages.extend(turn("on"))
    await fresh.save(fork)
    assert words(await store.load("b"))[-2:] == ["on", "on?"]
    with pytest.raises(UserError):
        await store.fork("a")
    with pytest.raises(KeyError):
        await store.read_entry("none")
    assert await store.read_history(None) == []


@in_a_loop
async def test_a_writer_that_was_overtaken_changes_nothing() -> None:
    """Stale saves, a second creation, and an entry that nobody has raise ConversationConflict."""
    backend = Memory()
    store, other = VstateConversationStore(backend), VstateConversationStore(backend)
    await saved(store, "a", "x")
    late, quick = await other.load("a"), await store.load("a")
    assert late is not None
    assert quick is not None
    quick.messages.extend(turn("quick"))
    await store.save(quick)
    head = Repository(backend).branch("pydantic_ai/a")
    late.messages.extend(turn("late"))
    with pytest.raises(ConversationConflict):
        await other.save(late)
    with pytest.raises(ConversationConflict):
        await saved(other, "a", "new")
    with pytest.raises(ConversationConflict):
        await other.delete_record("a", expected_revision="old")
    for source in (None, "a", "gone"):
        record = ConversationRecord(conversation_id="b", head_id="no such entry", forked_from=source)
        with pytest.raises(ConversationConflict):
            await store.write_record(record, expected_revision=None)
    entry = ConversationEntry(parent_id="no such entry", message=turn("x")[0])
    record = ConversationRecord(conversation_id="b", head_id=entry.id)
    with pytest.raises(ConversationConflict):
        await store.write_record(record, new_entries=[entry], expected_revision=None)
    entry = ConversationEntry(parent_id=None, message=turn("x")[0])
    record = ConversationRecord(conversation_id="b", head_id="no such entry")
    with pytest.raises(ConversationConflict):
        await store.write_record(record, new_entries=[entry], expected_revision=None)
    assert Repository(backend).branch("pydantic_ai/a") == head
    assert await store.load("b") is None


def test_a_save_at_the_moment_of_a_deletion_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deletion gets ConversationConflict."""
    backend = Memory()
    store, other = VstateConversationStore(backend), VstateConversationStore(backend)
    asyncio.run(saved(store, "a", "x"))
    quick, delete = asyncio.run(other.load("a")), store.repo.delete_branch
    assert quick is not None
    quick.messages.extend(turn("quick"))
    read = quick.revision or ""

    def delete_late(*args: Any, **options: Any) -> Any:
        asyncio.run(other.save(quick))
        return delete(*args, **options)

    monkeypatch.setattr(store.repo, "delete_branch", delete_late)
    with pytest.raises(ConversationConflict):
        asyncio.run(store.delete_record("a", expected_revision=read))
    assert words(asyncio.run(store.load("a"))) == ["x", "x?", "quick", "quick?"]


def test_the_example_of_the_page(example: Any, commands: Any) -> None:
    """Two turns of an agent are one conversation."""
    names = example("Pydantic AI", agent=Agent(TestModel(custom_output_text="hello")))
    for prompt in ("one", "two"):
        run(names["turn"](prompt))
    assert words(run(names["store"].load("ann"))) == ["one", "hello", "two", "hello"]
    commands("Pydantic AI")
