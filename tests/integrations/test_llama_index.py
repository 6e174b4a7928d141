"""Chats and states of workflows of LlamaIndex on vstate: round trips, races, interruptions."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import pytest
from loops import in_a_loop

from vstate import InvalidInput, Memory, RefMoved

pytest.importorskip("llama_index.core", reason="llama-index-core is not installed")

from llama_index.core.llms import ChatMessage, ImageBlock, MessageRole, TextBlock
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.schema import ImageDocument
from llama_index.core.storage.chat_store import SimpleChatStore
from pydantic import BaseModel
from workflows.context.serializers import JsonSerializer, PickleSerializer
from workflows.context.state_store import DictState
from workflows.context.state_store_integration import StateRecord, StateStorage, StateStoreFacade

from vstate.integrations.llama_index import VstateChatStore, VstateStateStorage

KEYS = ["ann", "a/b", "a%2Fb", "", "HEAD", "é x"]


def said(text: str, **more: Any) -> ChatMessage:
    return ChatMessage(content=text, **more)


def test_a_chat_does_as_the_chat_store_of_the_framework(tmp_path: Path) -> None:
    """Each method gives what SimpleChatStore gives, for each key, also from a handle of another process."""
    blocks = [TextBlock(text="see"), ImageBlock(image=b"\x89PNG", image_mimetype="image/png")]
    answer = ChatMessage(role=MessageRole.ASSISTANT, blocks=blocks, additional_kwargs={"n": [1, None]})
    peer = SimpleChatStore()
    with VstateChatStore(tmp_path / "s") as ours, VstateChatStore(tmp_path / "s") as other:
        for key in KEYS:
            for store in (peer, ours):
                store.set_messages(key, [said(f"{key} {n}") for n in range(4)])
                store.add_message(key, answer)
            assert other.get_messages(key) == peer.get_messages(key)
            for idx in (1, 9, -1):
                assert other.delete_message(key, idx) == peer.delete_message(key, idx)
            assert ours.delete_last_message(key) == peer.delete_last_message(key)
            assert ours.get_messages(key) == other.get_messages(key) == peer.get_messages(key)
        assert sorted(ours.get_keys()) == sorted(peer.get_keys())
        for key in KEYS[1:]:
            assert ours.delete_messages(key) == peer.delete_messages(key)
        assert ours.get_keys() == other.get_keys() == peer.get_keys()
        assert other.get_messages("a/b") == []
        assert other.delete_messages("a/b") is other.delete_message("a/b", 0) is None
        log = [commit.message for commit in ours.repo.log(ours.branch("ann"), limit=3)]
        assert log == ["delete message -1", "delete message -1", "delete message 1"]


def test_a_message_that_could_not_be_loaded_changes_nothing() -> None:
    """One bad message among good ones: none is stored, and the store goes on."""
    store = VstateChatStore()
    store.add_message("ann", said("one"))
    loads_as_a_dict = ImageDocument(image="iVBORw0KGgo=")  # which has no image to resolve
    for kwargs in ({"x": object()}, {"x": {1: object()}}, {"images": [loads_as_a_dict]}):
        with pytest.raises(InvalidInput, match="role 'user' cannot be stored"):
            store.set_messages("ann", [said("two"), said("bad", additional_kwargs=kwargs)])
        with pytest.raises(InvalidInput):
            store.add_message("ann", said("bad", additional_kwargs=kwargs))
    store.add_message("ann", said("two"))
    assert store.get_messages("ann") == [said("one"), said("two")]


class Count(BaseModel):
    """A typed state."""

    count: int = 0
    words: list[str] = []


@in_a_loop
async def test_a_state_lives_on_in_another_process(tmp_path: Path) -> None:
    """Typed states and dicts come back from another handle; clear, and a copy of another run."""
    with VstateStateStorage("run/1", tmp_path / "s") as storage:
        assert isinstance(storage, StateStorage)
        state = StateStoreFacade(storage, Count)
        assert (await state.get_state()) == Count()
        await state.set("count", 3)
        async with state.edit_state() as edited:
            edited.words.append("é")
    with VstateStateStorage("run/1", tmp_path / "s") as storage:
        state = StateStoreFacade(storage, Count)
        assert (await state.get_state()) == Count(count=3, words=["é"])
        handle = await state.serialize_for_handoff(JsonSerializer())
    with VstateStateStorage("run/2", tmp_path / "s") as storage:
        state = StateStoreFacade(storage, Count)
        state.add_seed(handle, JsonSerializer())
        assert await state.get("count") == 3
        await state.clear()
        assert (await state.get_state()) == Count()
        await storage.copy_from_handle("never saved")
        assert await storage.load() is None
    with VstateStateStorage("run/3", tmp_path / "s") as storage:
        untyped = StateStoreFacade(storage, DictState)
        await untyped.set("user", {"name": "Ann"})
        assert await untyped.get("user.name") == "Ann"
        assert storage.parse_own_handle({"store_type": "sqlite", "run_id": "run/3"}) is None


@pytest.mark.parametrize("text", ["", "plain", '{"a":1}', '{"a": 1, "a": 2}', "1e400", '"\\u00e9"', "null"])
@in_a_loop
async def test_the_text_of_a_state_comes_back_exactly(text: str) -> None:
    """The text of any serializer is the same after a save, whether it is JSON or not."""
    storage = VstateStateStorage("r", Memory())
    record = StateRecord(data=text, state_type="T", state_module="m")
    await storage.save(record)
    assert await storage.load() == record


@in_a_loop
async def test_a_change_on_an_old_state_is_refused() -> None:
    """A worker that edits while another one saves gets RefMoved, and the other's state stays."""
    store = Memory()
    slow = StateStoreFacade(VstateStateStorage("r", store), Count)
    fast = StateStoreFacade(VstateStateStorage("r", store), Count)
    for start in (0, 1):  # on an empty branch, and on one with a state
        with pytest.raises(RefMoved):
            async with slow.edit_state() as state:
                await fast.set("count", start + 1)
                state.count += 10
        assert await slow.get("count") == start + 1
    async with slow.edit_state() as state:
        state.count += 10
    assert await fast.get("count") == 12


class MyState(BaseModel):
    """The state of a workflow."""

    count: int = 0


def test_the_example_of_the_page(example: Any, commands: Any) -> None:
    """A memory and a state are on their branches."""
    names = example("LlamaIndex", MyState=MyState)
    names["memory"].put(said("hello"))

    async def count() -> None:
        async with names["state"].edit_state() as state:
            state.count += 1

    asyncio.run(count())
    again = example("LlamaIndex", MyState=MyState)
    assert [message.content for message in again["memory"].get()] == ["hello"]
    assert asyncio.run(again["state"].get_state()).count == 1
    asyncio.run(count())
    assert "count" in commands("LlamaIndex")[1]


@pytest.mark.parametrize("serializer", [JsonSerializer(), PickleSerializer()], ids=["json", "pickle"])
def test_a_memory_in_the_context_of_a_workflow(serializer: JsonSerializer, tmp_path: Path) -> None:
    """It comes back with the chat, and what it gets then is in the store. One in memory is no JSON."""

    def memory(store: VstateChatStore) -> ChatMemoryBuffer:
        return ChatMemoryBuffer.from_defaults(chat_store=store, chat_store_key="ann")

    kept = memory(VstateChatStore(tmp_path / "s"))
    kept.put(ChatMessage(content="one"))
    for again in (
        serializer.deserialize(serializer.serialize(kept)),
        ChatMemoryBuffer.from_dict(kept.to_dict()),
        ChatMemoryBuffer.from_string(kept.to_string()),
        pickle.loads(pickle.dumps(kept)),
        kept.model_copy(deep=True),
    ):
        again.put(ChatMessage(content="more"))
    told = [message.content for message in VstateChatStore(tmp_path / "s").get_messages("ann")]
    assert told == ["one", *["more"] * 5]
    with pytest.raises(ValueError, match="serialize"):
        JsonSerializer().serialize(memory(VstateChatStore()))
