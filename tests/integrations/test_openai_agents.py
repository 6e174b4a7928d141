"""VstateSession: sessions of the OpenAI Agents SDK. The tests of its own sessions run in `make suites`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from loops import in_a_loop
from stored import stored_bytes

pytest.importorskip("agents", reason="openai-agents is not installed: pip install '.[openai-agents]'")

from agents import Agent, Model, ModelResponse, Usage, set_tracing_disabled
from agents.memory import Session
from openai.types.responses import ResponseOutputMessage, ResponseOutputText

from vstate import Disk, InvalidInput, Memory, Versioned
from vstate.integrations.openai_agents import VstateSession


def says(text: str) -> list[dict[str, Any]]:
    """A turn: the message of the user, and the answer."""
    return [
        {"role": "user", "content": text},
        {"type": "message", "role": "assistant", "content": text.upper()},
    ]


class Counted(Memory):
    """Counts the transactions."""

    writes = 0

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        self.writes += 1
        return super().transact(writes, expected)


COUNTS = dict.fromkeys(["requests", "input_tokens", "output_tokens", "total_tokens"], 0)


def run_with(**usage: Any) -> Any:
    """The result of a run with this usage."""
    details: Any = {"input_tokens_details": SimpleNamespace(cached_tokens=1), "output_tokens_details": None}
    used = SimpleNamespace(**(COUNTS | usage), **details)
    return SimpleNamespace(context_wrapper=SimpleNamespace(usage=used))


async def texts(session: VstateSession, **options: Any) -> list[str]:
    """The messages of the user on a branch."""
    return [turn["content"] for turn in await session.get_conversation_turns(**options)]


@in_a_loop
async def test_items_come_back_exactly_and_belong_to_the_caller() -> None:
    """Items keep the order of their keys; an edit of one that was added or read changes nothing stored."""
    session = VstateSession("ann", Memory())
    assert isinstance(session, Session)
    item = {"type": "z", "b": 1, "a": [{"y": 1.5, "x": None}]}
    await session.add_items([item, *says("hi")])
    item["a"].append("edited")  # type: ignore[attr-defined]  # it is a list
    found = await session.get_items()
    assert repr(found) == repr([{"type": "z", "b": 1, "a": [{"y": 1.5, "x": None}]}, *says("hi")])
    found[0]["a"].clear()
    assert len((await session.get_items())[0]["a"]) == 1
    assert [len(await session.get_items(limit)) for limit in (0, 2, 9, -1)] == [0, 2, 3, 3]
    assert len(await VstateSession("ann", session.repo.store, session_settings={"limit": 1}).get_items()) == 1
    with pytest.raises(InvalidInput, match="plain data"):
        await session.add_items([{"role": "user", "content": object()}])
    assert await session.pop_item() == says("hi")[1]


@in_a_loop
async def test_a_branch_from_a_turn_shares_the_items_before_it() -> None:
    """A branch is one commit on top of its source, and both go on alone; its name is never used again."""
    session = VstateSession("ann", Memory())
    for text in ("one", "two", "three"):
        await session.add_items(says(text))
    await session.store_run_usage(run_with(requests=2, total_tokens=30))
    before = session.repo.newest("openai/ann/main")
    assert await session.create_branch_from_content("TWO", "other") == "other"
    made = session.repo.newest("openai/ann/other")
    assert before is not None
    assert made is not None
    assert made.parents == (before.id,)
    await session.add_items(says("deux"))
    assert await texts(session) == ["one", "deux"]
    assert await texts(session, branch_id="main") == ["one", "two", "three"]
    assert await session.get_turn_usage() == []
    assert await session.get_session_usage() == COUNTS | {"requests": 2, "total_tokens": 30, "total_turns": 1}
    with pytest.raises(InvalidInput, match="force"):
        await session.delete_branch("other")
    await session.delete_branch("other", force=True)
    assert session.current_branch == "main"
    for taken in ("other", "main"):
        with pytest.raises(InvalidInput, match="already been used"):
            await session.create_branch_from_turn(2, taken)


@in_a_loop
async def test_a_branch_without_a_name_gets_one_that_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name has the second, and a number if that is taken. That takes one commit, and no list of all."""
    store = Counted()
    session = VstateSession("ann", store)
    await session.add_items(says("one"))
    monkeypatch.setattr("vstate.integrations.openai_agents.time", SimpleNamespace(time=lambda: 17.5))
    monkeypatch.setattr(session, "_branches", None)
    for end, writes in (("", 2), ("_2", 1), ("_3", 1)):  # the first one marks the room
        await session.switch_to_branch("main")
        before = store.writes
        assert await session.create_branch_from_turn(1) == f"branch_from_turn_1_17{end}"
        assert store.writes - before == writes
    await session.switch_to_branch("main")
    await session.create_branch_from_turn(1, "branch_from_turn_1_17_5")
    await session.switch_to_branch("main")
    assert await session.create_branch_from_turn(1) == "branch_from_turn_1_17_6"


@in_a_loop
async def test_tools_are_counted_in_the_order_of_the_turns() -> None:
    """Turn 10 comes after turn 9, and the tools of a turn are in order of name."""
    session = VstateSession("ann", Memory())
    for number in range(1, 12):
        calls = [{"type": "function_call", "name": name} for name in ("b", "a", "b")]
        await session.add_items([says(str(number))[0], *calls])
    expected = [(name, count, turn) for turn in range(1, 12) for name, count in (("a", 1), ("b", 2))]
    assert await session.get_tool_usage() == expected


@in_a_loop
async def test_usage_goes_with_its_turn() -> None:
    """Popping the last item of a turn drops its usage; a turn that has gone gets none."""
    session = VstateSession("ann", Memory())
    await session.store_run_usage(run_with(requests=9))
    for number in (1, 2):
        await session.add_items(says(str(number)))
        await session.store_run_usage(run_with(requests=number))
    details = {"input_tokens_details": {"cached_tokens": 1}, "output_tokens_details": None}
    assert await session.get_turn_usage(2) == COUNTS | {"requests": 2} | details
    await session.pop_item()
    assert await session.get_turn_usage(2) != {}
    await session.pop_item()
    assert await session.get_turn_usage(2) == {}
    await session.add_items(says("again"))
    assert await session.get_turn_usage(2) == {}


@in_a_loop
async def test_a_session_that_another_object_cleared_goes_on_with_main() -> None:
    """An object on a branch that is gone adds to main, pops from main and reads main; nothing comes back."""
    mine, other = (VstateSession("ann", store) for store in [Memory()] * 2)
    for text in ("one", "two"):
        await mine.add_items(says(text))
    await mine.create_branch_from_turn(2, "side")
    await other.clear_session()
    assert await mine.get_items() == []
    await other.add_items(says("new"))
    await mine.add_items(says("mine"))
    assert mine.current_branch == "main"
    assert await texts(other) == ["new", "mine"]
    assert await other.get_items(branch_id="side") == []
    with pytest.raises(InvalidInput, match="does not exist"):
        await other.switch_to_branch("side")


@in_a_loop
async def test_a_cancelled_call_has_ended_when_the_cancellation_comes_out() -> None:
    """Calls that are cancelled, waiting or at work, have happened; the next one goes on."""
    session = VstateSession("ann", Memory())
    calls = [asyncio.create_task(session.add_items(says(str(number)))) for number in range(6)]
    await asyncio.sleep(0)
    for call in calls:
        call.cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    found = await texts(VstateSession("ann", session.repo.store))
    assert sorted(found) == [str(number) for number in range(6)]
    await session.add_items(says("next"))
    assert await texts(session) == [*found, "next"]


@pytest.mark.slow
@in_a_loop
async def test_a_branch_of_a_long_session_is_short(tmp_path: Path) -> None:
    """A branch of 100 turns takes some 700 bytes of rows, and `vstate log` shows its steps."""
    with Disk(tmp_path, durability="process") as store:
        session = VstateSession("ann", store)
        for number in range(100):
            await session.add_items(says(f"question {number} about something or other"))
    before = stored_bytes(tmp_path)
    with Disk(tmp_path, durability="process") as store:
        session = VstateSession("ann", store)
        for number in range(20):
            await session.switch_to_branch("main")
            await session.create_branch_from_turn(80 + number, f"side-{number}")
    assert (stored_bytes(tmp_path) - before) / 20 <= 750
    with Versioned(tmp_path, branch="openai/ann/side-7") as state:
        log = [commit.message for commit in state.log(limit=2)]
    assert log == ["branch from turn 87", "add user, assistant"]


class Script(Model):
    """A model that gives one answer."""

    async def get_response(self, *given: Any, **more: Any) -> ModelResponse:
        text = ResponseOutputText(type="output_text", text="On its way.", annotations=[])
        message = ResponseOutputMessage(
            id="m", type="message", role="assistant", status="completed", content=[text]
        )
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    def stream_response(self, *given: Any, **more: Any) -> Any:
        raise NotImplementedError


def test_the_example_of_the_page(example: Any, commands: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of an agent is in its session."""
    set_tracing_disabled(True)
    loop = asyncio.new_event_loop()
    monkeypatch.setattr(asyncio.get_event_loop_policy(), "get_event_loop", lambda: loop)  # else it stays open
    names = example("OpenAI Agents SDK", agent=Agent(name="helper", model=Script()))
    loop.close()
    assert names["result"].final_output == "On its way."
    with Versioned("chats", branch="openai/ann/main") as state:
        assert [commit.message for commit in state.log()] == ["add assistant", "add user"]
    assert "On its way." in commands("OpenAI Agents SDK")[1]
