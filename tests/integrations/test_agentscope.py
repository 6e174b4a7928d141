"""Sessions of AgentScope on vstate, with AgentScope's own agents."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from loops import in_a_loop

from vstate import InvalidInput, Memory

pytest.importorskip("agentscope", reason="AgentScope is not installed")

from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.memory import InMemoryMemory
from agentscope.message import Msg, TextBlock
from agentscope.model import ChatModelBase, ChatResponse
from agentscope.module import StateModule

from vstate.integrations.agentscope import VstateSession


class Model(ChatModelBase):
    """A model that counts its answers."""

    def __init__(self) -> None:
        super().__init__("counting", stream=False)
        self.answers = 0

    async def __call__(self, *args: Any, **kwargs: Any) -> ChatResponse:
        self.answers += 1
        return ChatResponse(content=[TextBlock(type="text", text=f"answer {self.answers}")])


def agent() -> ReActAgent:
    made = ReActAgent("Friday", "Help.", Model(), OpenAIChatFormatter(), memory=InMemoryMemory())
    made.set_console_output_enabled(False)
    return made


class Note(StateModule):
    """A module with one value."""

    def __init__(self, text: Any = "") -> None:
        super().__init__()
        self.text = text
        self.register_state("text", lambda value: value, lambda value: value)


@in_a_loop
async def test_a_session_is_that_of_its_user() -> None:
    """A session without a user is apart; an absent one is refused if that is asked for."""
    session = VstateSession(Memory())
    for user in ("", "sessions", "ann"):
        await session.save_session_state("s1", user, note=Note(user))
    assert await session.delete_session("s1", "sessions") is True
    assert await session.delete_session("s1", "sessions") is False
    with pytest.raises(ValueError, match="there is no session"):
        await session.load_session_state("s1", "sessions", allow_not_exist=False, note=Note())
    for user in ("", "ann"):
        note = Note()
        await session.load_session_state("s1", user, allow_not_exist=False, note=note)
        assert note.text == user
    with pytest.raises(InvalidInput):
        await session.save_session_state("", note=Note())


@in_a_loop
async def test_a_module_that_is_not_named_stays(caplog: pytest.LogCaptureFixture) -> None:
    """Saves of other modules keep it, also at once; a load of an absent module warns."""
    store = Memory()
    await asyncio.gather(
        *(
            VstateSession(store).save_session_state("s1", **{f"m{number}": Note(number)})
            for number in range(8)
        )
    )
    notes = {f"m{number}": Note() for number in range(9)}
    with caplog.at_level(logging.WARNING, "vstate"):
        await VstateSession(store).load_session_state("s1", **notes)
    assert [note.text for note in notes.values()] == [*range(8), ""]
    assert "'m8'" in caplog.text


@in_a_loop
async def test_a_save_or_load_that_fails_changes_nothing() -> None:
    """One bad module among good ones: the stored session, and all modules, are as they were."""
    session = VstateSession(Memory())
    await session.save_session_state("s1", a=Note("old"), b=Note("old"))
    with pytest.raises(TypeError, match="b"):
        await session.save_session_state("s1", a=Note("new"), b=Note(object()))
    good, bad = Note("kept"), Note("kept")
    bad.register_state("text", None, lambda value: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        await session.load_session_state("s1", a=good, b=bad)
    assert good.text == bad.text == "kept"
    await session.load_session_state("s1", a=good)
    assert good.text == "old"


def test_the_example_of_the_page(example: Any, commands: Any) -> None:
    """An agent goes on in another call with the memory of the first one."""
    turn = example("AgentScope")["turn"]
    asyncio.run(turn(agent(), Msg("ann", "hello", "user")))
    again = agent()
    asyncio.run(turn(again, Msg("ann", "again", "user")))
    told = asyncio.run(again.memory.get_memory())
    assert [message.get_text_content() for message in told] == ["hello", "answer 1", "again", "answer 1"]
    commands("AgentScope")
