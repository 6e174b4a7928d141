"""The storage of AgentScope 2 on vstate: secrets without a history, cascades, and what is not there."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import zstandard
from conftest import Commands, Example

from vstate import Disk, KVStore, Memory, NotFound

pytest.importorskip("agentscope.app.storage", reason="AgentScope 2 is not installed")

from agentscope.app.storage import (
    AgentData,
    AgentRecord,
    ChatModelConfig,
    MCPRecord,
    ScheduleData,
    ScheduleOrigin,
    ScheduleRecord,
    SessionConfig,
    SkillRecord,
)
from agentscope.credential import DashScopeCredential
from agentscope.mcp import HttpMCPConfig, MCPClient
from agentscope.message import UserMsg
from agentscope.state import AgentState
from pydantic import SecretStr

from vstate.integrations.agentscope2 import VstateStorage


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


@pytest.fixture
def storage() -> VstateStorage:
    return VstateStorage()


def credential(key: str, **more: Any) -> DashScopeCredential:
    return DashScopeCredential(api_key=SecretStr(key), **more)


def mcp(token: str, **more: Any) -> MCPRecord:
    config = HttpMCPConfig(url="https://example.org/mcp", headers={"authorization": token})
    return MCPRecord(user_id="ann", client=MCPClient(name="m", is_stateful=False, mcp_config=config), **more)


def held(store: KVStore, text: str) -> bool:
    """Whether the bytes of a store have a text, also in what is compressed."""
    if isinstance(store, Disk):
        store.scrub()
        rows = [file.read_bytes() for file in Path(store.location).rglob("*.db*")]
    else:
        rows = [store.get(key) or b"" for key in store.keys()]  # noqa: SIM118
    return any(text.encode() in data for row in rows for data in [row, *unpacked(row)])


def unpacked(data: bytes) -> Iterator[bytes]:
    for begin in re.finditer(re.escape(zstandard.FRAME_HEADER), data):
        with suppress(zstandard.ZstdError):
            yield zstandard.ZstdDecompressor().decompressobj().decompress(data[begin.start() :])


def test_the_example_and_commands_of_the_docs(example: Example, commands: Commands) -> None:
    """The program of the page prints what it promises, and the commands read what it wrote."""
    example("AgentScope 2")
    log, diff = commands("AgentScope 2")
    assert "I bought two bottles." in log.splitlines()[0]
    assert "I bought two bottles." in diff


@pytest.mark.parametrize("make", [lambda path: Memory(), Disk], ids=["memory", "disk"])
@pytest.mark.parametrize("kind", ["credential", "mcp"])
def test_a_secret_leaves_the_store(make: Callable[[Path], KVStore], kind: str, tmp_path: Path) -> None:
    """After a change the bytes of the store have the new secret alone, and after a deletion none."""
    store = make(tmp_path / "s")
    storage = VstateStorage(store)
    run(storage.upsert_session("ann", "a", SessionConfig(workspace_id="w")))
    if kind == "credential":
        id = run(storage.upsert_credential("ann", credential("secret-one")))
        other = run(storage.upsert_credential("ann", credential("secret-other")))
        put = lambda key: run(storage.upsert_credential("ann", credential(key, id=id)))  # noqa: E731
        secret = lambda id: run(storage.get_credential("ann", id)).data["api_key"]  # noqa: E731
        delete = storage.delete_credential
    else:
        id = run(storage.upsert_mcp("ann", mcp("secret-one")))
        renamed = mcp("secret-other")
        renamed.client.name = "other"
        other = run(storage.upsert_mcp("ann", renamed))
        put = lambda key: run(storage.upsert_mcp("ann", mcp(key, id=id)))  # noqa: E731
        secret = lambda id: run(storage.get_mcp("ann", id)).client.mcp_config.headers["authorization"]  # noqa: E731
        delete = storage.delete_mcp
    assert held(store, "secret-one")
    for key in ("secret-two", "secret-three"):
        put(key)
    assert [held(store, f"secret-{word}") for word in ("one", "two", "three", "other")] == [
        False,
        False,
        True,
        True,
    ]
    assert (secret(id), secret(other)) == ("secret-three", "secret-other")
    assert run(delete("ann", id))
    assert not held(store, "secret-three")
    assert secret(other) == "secret-other"
    store.close()


def test_credentials_without_a_name_get_one(storage: VstateStorage) -> None:
    """It is that of the type, with the first number that is free, and a change keeps it."""
    for key in "abc":
        run(storage.upsert_credential("ann", credential(key)))
    found = run(storage.list_credentials("ann"))
    assert [each.data["name"] for each in found] == ["Dashscope", "Dashscope (2)", "Dashscope (3)"]
    run(storage.delete_credential("ann", found[1].id))
    run(storage.upsert_credential("ann", credential("d")))
    assert sorted(each.data["name"] for each in run(storage.list_credentials("ann")))[1] == "Dashscope (2)"


def test_a_message_that_streams_keeps_its_place(storage: VstateStorage) -> None:
    """A message that is replaced, or deleted, leaves the order of the others as it is."""
    first, second, third = (UserMsg(name="ann", content=text) for text in ("1", "2", "3"))
    for message in (first, second, third, UserMsg(name="ann", content="one", id=first.id)):
        run(storage.upsert_message("ann", "s", message))
    assert run(storage.delete_message("ann", "s", second.id))
    assert not run(storage.delete_message("ann", "s", second.id))
    run(storage.upsert_message("ann", "s", UserMsg(name="ann", content="4")))
    found, has_more = run(storage.list_messages("ann", "s", limit=2))
    assert ([message.get_text_content() for message in found], has_more) == (["3", "4"], True)
    assert run(storage.list_messages("ann", "s", limit=0)) == ([], True)
    assert run(storage.get_message("ann", "s", first.id)).get_text_content() == "one"


def test_a_run_that_goes_on_after_its_session_was_deleted(storage: VstateStorage) -> None:
    """Its messages and its state bring nothing back."""
    config = SessionConfig(workspace_id="w")
    run(storage.upsert_session("ann", "a", config, session_id="s"))
    run(storage.upsert_message("ann", "s", UserMsg(name="ann", content="hello")))
    assert run(storage.delete_session("ann", "a", "s"))
    with pytest.raises(NotFound):
        run(storage.upsert_message("ann", "s", UserMsg(name="ann", content="late")))
    with pytest.raises(NotFound):
        run(storage.update_session_state("ann", "a", "s", AgentState()))
    assert run(storage.get_session("ann", "a", "s")) is None
    with pytest.raises(KeyError):
        run(storage.update_session_state("ann", "a", "s", AgentState()))
    assert storage.repo.branch_names() == []
    run(storage.upsert_session("ann", "a", config, session_id="s"))
    assert run(storage.list_messages("ann", "s")) == ([], False)


def test_the_deletion_of_an_agent(storage: VstateStorage) -> None:
    """Its schedules and all their sessions go with it; the sessions of others stay."""
    agent = AgentRecord(user_id="ann", data=AgentData(name="helper"))
    model = ChatModelConfig(type="t", credential_id="c", model="m", parameters={})
    data = ScheduleData(name="daily", cron_expression="0 9 * * *", chat_model_config=model)
    schedule = ScheduleRecord(user_id="ann", agent_id=agent.id, data=data)
    run(storage.upsert_agent("ann", agent_record=agent))
    run(storage.upsert_schedule("ann", record=schedule))
    config = SessionConfig(workspace_id="w")
    origin = ScheduleOrigin(schedule_id=schedule.id)
    run(storage.upsert_session("ann", agent.id, config, origin=origin))
    run(storage.upsert_session("ann", agent.id, config))
    kept = run(storage.upsert_session("ann", "another", config))
    assert [each.id for each in run(storage.list_all_schedules())] == [schedule.id]
    assert len(run(storage.list_sessions_by_schedule("ann", schedule_id=schedule.id))) == 1
    assert run(storage.delete_agent("ann", agent_id=agent.id))
    assert storage.repo.branch_names() == [storage.branch("ann", kept.id)]


def test_names_and_times(storage: VstateStorage) -> None:
    """A record that replaces another keeps its time of creation. Two skills of a user have two names."""
    one = SkillRecord(user_id="ann", name="s")
    run(storage.upsert_skill("ann", one))
    run(storage.upsert_skill("ann", SkillRecord(id=one.id, user_id="ann", name="s", version="2")))
    found = run(storage.get_skill_by_name("ann", "s"))
    assert (found.created_at, found.version) == (one.created_at, "2")
    with pytest.raises(ValueError, match="another record with the name 's'"):
        run(storage.upsert_skill("ann", SkillRecord(user_id="ann", name="s")))
    run(storage.upsert_skill("bob", SkillRecord(user_id="bob", name="s")))


def test_what_is_not_there(storage: VstateStorage) -> None:
    """Teams, knowledge bases, channels and SOPs raise NotImplementedError."""
    for call in (storage.list_teams, storage.list_knowledge_bases, storage.list_channels, storage.list_sops):
        with pytest.raises(NotImplementedError):
            run(call("ann"))
