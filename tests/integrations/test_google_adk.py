"""Sessions of Google's ADK on vstate: histories, shared states, races, kills."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from loops import in_a_loop

from vstate import Disk, Memory, StoreUnavailable, Versioned
from vstate.testing import Faulty

pytest.importorskip("google.adk.sessions", reason="google-adk is not installed")

from google.adk.agents import BaseAgent
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types

from vstate.integrations.google_adk import VstateSessionService

ANN = {"app_name": "chat", "user_id": "ann@example/1"}
BOB = {"app_name": "chat", "user_id": "bob."}


def said(text: str, author: str = "user", **delta: Any) -> Event:
    content = types.Content(role=author, parts=[types.Part(text=text)])
    return Event(
        author=author,
        content=content,
        invocation_id=f"turn {text}",
        actions=EventActions(state_delta={key.replace("__", ":"): value for key, value in delta.items()}),
    )


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def test_another_process_finds_the_same_session(tmp_path: Path) -> None:
    """A session that is read again is equal to the object that the events were appended to."""

    async def write() -> Any:
        async with VstateSessionService(tmp_path / "s") as service:
            session = await service.create_session(**ANN, session_id=" one ", state={"a": 1, "user:b": [2]})
            assert session.id == "one"
            image = types.Part.from_bytes(data=b"\0\xff", mime_type="image/png")
            await service.append_event(session, said("hello", a=None, app__c={"d": 1.5}, temp__e=9))
            await service.append_event(
                session, Event(author="model", content=types.Content(role="model", parts=[image]))
            )
            assert session.state == {"a": None, "user:b": [2], "app:c": {"d": 1.5}, "temp:e": 9}
            return session

    async def read() -> Any:
        async with VstateSessionService(tmp_path / "s") as service:
            assert await service.get_session(**BOB, session_id="one") is None
            assert await service.get_user_state(**ANN) == {"b": [2]}
            assert (await service.create_session(**BOB)).state == {"app:c": {"d": 1.5}}
            return await service.get_session(**ANN, session_id="one")

    session, found = run(write()), run(read())
    del session.state["temp:e"]
    assert found == session
    assert "temp:e" not in found.events[0].actions.state_delta


@in_a_loop
async def test_a_listing_is_that_of_the_user_in_the_order_of_updates() -> None:
    """Sessions of one user or of all, with states and without events; a deleted one leaves no word."""
    store = Memory()
    service = VstateSessionService(store)
    for who, name in ((ANN, "x"), (BOB, "x"), (ANN, "y")):
        await service.create_session(**who, session_id=name, state={"n": f"{who['user_id']} {name}"})
    await service.create_session(app_name="chat2", user_id="ann@example/1")
    session = await service.get_session(**ANN, session_id="x")
    await service.append_event(session, said("late"))
    found = (await service.list_sessions(app_name="chat")).sessions
    assert [(each.user_id, each.id) for each in found] == [
        (BOB["user_id"], "x"),
        (ANN["user_id"], "y"),
        (ANN["user_id"], "x"),
    ]
    assert not any(each.events for each in found)
    assert found[0].state == {"n": "bob. x"}
    assert [each.id for each in (await service.list_sessions(**ANN)).sessions] == ["y", "x"]
    await service.delete_session(**BOB, session_id="x")
    await service.delete_session(**BOB, session_id="x")
    assert (await service.list_sessions(**BOB)).sessions == []
    assert not any(b"bob. x" in row for _, row in store.items())
    with pytest.raises(AlreadyExistsError):
        await service.create_session(**ANN, session_id="x")


@in_a_loop
async def test_the_events_that_are_asked_for() -> None:
    """The last ones, those since a time, and both."""
    service = VstateSessionService()
    session = await service.create_session(**ANN, session_id="x")
    for i in range(1, 6):
        await service.append_event(session, Event(author="user", timestamp=i))
    for config, times in [
        (GetSessionConfig(num_recent_events=2), [4, 5]),
        (GetSessionConfig(num_recent_events=0), []),
        (GetSessionConfig(after_timestamp=3), [3, 4, 5]),
        (GetSessionConfig(after_timestamp=3, num_recent_events=9), [3, 4, 5]),
        (GetSessionConfig(after_timestamp=9), []),
    ]:
        found = await service.get_session(**ANN, session_id="x", config=config)
        assert [event.timestamp for event in found.events] == times


@in_a_loop
async def test_a_writer_that_was_overtaken_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    """A stale object raises; a deleted session is not found; the object that is read again goes on."""
    store = Disk(tmp_path / "s", durability="process")
    here, there = VstateSessionService(store), VstateSessionService(store)
    old = await here.create_session(**ANN, session_id="x", state={"app:n": 0})
    await there.append_event(await there.get_session(**ANN, session_id="x"), said("first", app__n=1))
    with pytest.raises(StaleSessionError):
        await here.append_event(old, said("second", app__n=2))
    assert (old.events, old.state) == ([], {"app:n": 0})
    new = await here.get_session(**ANN, session_id="x")
    assert new.state == {"app:n": 1}
    await here.append_event(new, said("second", app__n=2))
    await there.delete_session(**ANN, session_id="x")
    with pytest.raises(SessionNotFoundError):
        await here.append_event(new, said("third"))


def test_an_event_that_is_appended_again_is_there_once() -> None:
    """Each call of the store may fail, before or after its work: the event is there with all states or not
    at all, and is appended again.
    """

    async def check(after: bool) -> int:
        fail_at = 0
        while True:
            fail_at += 1
            memory = Memory()
            service = VstateSessionService(memory)
            await service.create_session(**ANN, session_id="x", state={"user:n": 0})
            faulty = Faulty(memory, after=after)
            service = VstateSessionService(faulty)
            session = await service.get_session(**ANN, session_id="x")
            faulty.calls.clear()
            faulty.fail_at = fail_at
            event = said("hello", user__n=1, k=2)
            with suppress(StoreUnavailable):
                await service.append_event(session, event)
            calls, faulty.fail_at = len(faulty.calls), None
            kept = await VstateSessionService(memory).get_session(**ANN, session_id="x")
            whole = {"user:n": 0}, {"user:n": 1, "k": 2}
            assert kept.state == whole[len(kept.events)]
            await service.append_event(session, event)
            assert [each.id for each in session.events] == [event.id]
            found = await VstateSessionService(memory).get_session(**ANN, session_id="x")
            assert (found.events, found.state) == (session.events, {"user:n": 1, "k": 2})
            if calls < fail_at:
                return calls

    assert run(check(False)) > 1
    assert run(check(True)) > 1


@in_a_loop
async def test_a_store_without_transactions_writes_the_shared_states_first() -> None:
    """A stored event has all of its effects, also after an interruption. A stale event has none."""
    memory = Memory()
    service = VstateSessionService(Faulty(memory, atomic=False))
    session = await service.create_session(**ANN, session_id="x", state={"app:n": 1, "own": 2})
    old = session.model_copy(deep=True)
    await service.append_event(session, said("hello", app__n=2, user__m=3))
    with pytest.raises(StaleSessionError):
        await service.append_event(old, said("late", app__n=9))
    with pytest.raises(AlreadyExistsError):
        await service.create_session(**ANN, session_id="x", state={"app:n": 9})
    found = await VstateSessionService(memory).get_session(**ANN, session_id="x")
    assert found.state == {"app:n": 2, "user:m": 3, "own": 2}


class _Echo(BaseAgent):
    """An agent that repeats the user's words, and counts them in its state."""

    async def _run_async_impl(self, context: Any) -> Any:
        words = context.user_content.parts[0].text
        count = context.session.state.get("count", 0) + 1
        yield said(f"you said {words}", self.name, count=count).model_copy(
            update={"invocation_id": context.invocation_id}
        )


def test_an_agent_runs_is_rewound_and_forked(tmp_path: Path) -> None:
    """ADK's runner rewinds a session; a fork goes its own way; the log tells of it without ADK."""

    async def ask(runner: Runner, session: str, words: str) -> str:
        message = types.Content(role="user", parts=[types.Part(text=words)])
        invocation = ""
        async for event in runner.run_async(user_id="ann", session_id=session, new_message=message):
            invocation = event.invocation_id
        return invocation

    async def check() -> None:
        async with VstateSessionService(tmp_path / "s") as service:
            runner = Runner(app_name="chat", agent=_Echo(name="echo"), session_service=service)
            await service.create_session(app_name="chat", user_id="ann", session_id="x")
            await ask(runner, "x", "one")
            second = await ask(runner, "x", "two")
            place = {"app_name": "chat", "user_id": "ann", "session_id": "x"}
            copy = await service.fork_session(**place, new_session_id="y")
            await runner.rewind_async(user_id="ann", session_id="x", rewind_before_invocation_id=second)
            assert (await service.get_session(**place)).state == {"count": 1}
            await ask(runner, "y", "three")
            found = await service.get_session(**{**place, "session_id": copy.id})
            assert (found.state, len(found.events)) == ({"count": 3}, 6)

    run(check())
    with Versioned(tmp_path / "s", branch="adk/sessions/chat/ann/y") as state:
        assert [commit.message for commit in state.log()][:2] == ["echo: you said three", "user: three"]
        assert state["state/count"] == 3


def test_the_example_of_the_page(example: Any, commands: Any) -> None:
    """A runner of ADK keeps its events in the service."""
    names = example("Google ADK", agent=_Echo(name="echo"))

    async def ask() -> None:
        await names["service"].create_session(
            app_name="chat", user_id="ann", session_id="s1", state={"plan": "greet"}
        )
        message = types.Content(role="user", parts=[types.Part(text="hello")])
        async for _ in names["runner"].run_async(user_id="ann", session_id="s1", new_message=message):
            pass

    run(ask())
    with Versioned("sessions", branch="adk/sessions/chat/ann/s1") as state:
        assert next(commit.message for commit in state.log()) == "echo: you said hello"
    branches, _, blame = commands("Google ADK")
    assert "adk/sessions/chat/ann/s1" in branches
    assert "session created" in blame
