"""Transcripts of the Claude Agent SDK on vstate: its conformance suite, batches sent again, forks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vstate import AlreadyExists, Memory, NotFound

pytest.importorskip("claude_agent_sdk", reason="claude-agent-sdk is not installed")

from claude_agent_sdk import InMemorySessionStore, fork_session_via_store, get_session_messages_from_store
from claude_agent_sdk.testing import run_session_store_conformance

from vstate.integrations.claude_agent import VstateSessionStore
from vstate.readers.shown import Shown

Run = Callable[[Coroutine[Any, Any, Any]], Any]
KEY: Any = {"project_key": "-home-ann", "session_id": "one"}
SUB: Any = {**KEY, "subpath": "subagents/agent-1"}


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def said(text: str, role: str = "user", **more: Any) -> Any:
    return {"type": role, "message": {"role": role, "content": text}, **more}


def test_the_conformance_suite(tmp_path: Path) -> None:
    """The SDK's fourteen contracts hold, in memory and on a disk."""
    places = iter(range(100))
    for make in (VstateSessionStore, lambda: VstateSessionStore(tmp_path / str(next(places)))):
        run(run_session_store_conformance(make))


batches = st.lists(
    st.tuples(
        st.sampled_from([KEY, SUB, {**KEY, "session_id": "two"}]),
        st.lists(st.fixed_dictionaries({"n": st.integers(0, 3)}, optional={"uuid": st.sampled_from("abc")})),
        st.booleans(),
    ),
    max_size=12,
)


@given(batches)
def test_batches_that_are_sent_again(sent: list[tuple[Any, list[Any], bool]]) -> None:
    """An entry with a uuid is there once in its transcript. All else is as in the SDK's own."""
    ours, theirs = VstateSessionStore(), InMemorySessionStore()
    seen = set()
    for key, entries, is_again in sent:
        new = []
        for entry in entries:
            named = (key["session_id"], key.get("subpath"), entry.get("uuid"))
            if named[2] is None or named not in seen:
                new.append(entry)
            seen.add(named)
        run(ours.append(key, entries))
        if is_again:
            run(ours.append(key, [entry for entry in entries if "uuid" in entry]))
        if new:
            run(theirs.append(key, new))
    for key in (KEY, SUB, {**KEY, "session_id": "two"}):
        assert run(ours.load(key)) == run(theirs.load(key))
        assert sorted(run(ours.list_subkeys(key))) == sorted(run(theirs.list_subkeys(key)))
    found, expected = (
        {each["session_id"]: each["data"] for each in run(store.list_session_summaries("-home-ann"))}
        for store in (ours, theirs)
    )
    assert found == expected


def test_what_the_caller_does_with_entries() -> None:
    """A change of a given or returned entry changes no stored one."""
    store, given_ = VstateSessionStore(), [said("hello", uuid="a")]
    run(store.append(KEY, given_))
    given_[0]["message"]["content"] = "edited"
    run(store.load(KEY))[0]["message"]["content"] = "edited"
    assert run(store.load(KEY)) == [said("hello", uuid="a")]


def test_a_session_in_the_log(example: Any, commands: Any) -> None:
    """It has a commit for each batch, with the speaker and the text, or the number of other entries."""
    store = example("Claude Agent SDK")["store"]
    for printed in commands("Claude Agent SDK"):
        assert "Sort the list." in printed
    branch = store.branch({"project_key": "-home-ann-shop", "session_id": "s1"})
    assert [commit.message for commit in store.repo.log(branch)] == [
        "assistant: “Done.”",
        "user: “Sort the list.”",
    ]
    key = {"project_key": "-home-ann-shop", "session_id": "s1"}
    run(store.append({**key, "subpath": "subagents/agent-1"}, [said("Sorted.")]))
    run(store.append(key, [{"type": "title"}, {"type": "tag"}]))
    shown = Shown(store.repo)
    assert [shown.resolve(commit.oid).message for commit in store.repo.log(branch)][:2] == [
        "2 entries",
        "subagents/agent-1: user: “Sorted.”",
    ]


def test_a_session_that_was_deleted() -> None:
    """A run that began before the deletion writes nothing. A fork keeps its entries. Nothing else is left."""
    base = Memory()
    store, other = VstateSessionStore(base), VstateSessionStore(base)
    run(store.append(KEY, [said("the secret", uuid="a")]))
    run(store.append(SUB, [said("of the subagent")]))
    run(store.fork_session(KEY, "two"))
    with pytest.raises(AlreadyExists):
        run(store.fork_session(KEY, "two"))
    with pytest.raises(NotFound):
        run(store.fork_session({**KEY, "session_id": "no"}, "three"))
    run(other.delete(KEY))
    with pytest.raises(NotFound):
        run(store.append(KEY, [said("late")]))
    assert run(store.load(KEY)) is None
    assert run(store.load({**SUB, "session_id": "two"})) == [said("of the subagent")]
    assert [each["session_id"] for each in run(store.list_sessions("-home-ann"))] == ["two"]
    run(store.append(KEY, [said("anew")]))  # it has read that the session is gone
    assert run(store.load(KEY)) == [said("anew")]


def test_the_helpers_of_the_sdk(tmp_path: Path) -> None:
    """Messages of a session by the SDK's own function, and its fork, whose entries have ids of their own."""
    from claude_agent_sdk import project_key_for_directory

    store = VstateSessionStore(tmp_path / "s")
    directory = str(tmp_path)
    session = "11111111-1111-4111-8111-111111111111"
    key: Any = {"project_key": project_key_for_directory(directory), "session_id": session}
    ids = [f"22222222-2222-4222-8222-22222222222{n}" for n in range(2)]
    run(store.append(key, [said("hello", uuid=ids[0], parentUuid=None, sessionId=session)]))
    run(store.append(key, [said("hi", "assistant", uuid=ids[1], parentUuid=ids[0], sessionId=session)]))
    messages = run(get_session_messages_from_store(store, session, directory))
    assert [each.message["content"] for each in messages] == ["hello", "hi"]
    fork = run(fork_session_via_store(store, session, directory))
    copied = run(get_session_messages_from_store(store, fork.session_id, directory))
    assert [each.message for each in copied] == [each.message for each in messages]
