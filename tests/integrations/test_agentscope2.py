"""VstateStorage of AgentScope 2: secrets have no history; a deletion takes the records that belong to one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import zstandard
from page import Commands, Example

from vstate import Disk, KVStore, Memory, NotFound

pytest.importorskip("agentscope.app.storage", reason="AgentScope 2 is not installed")

from agentscope.app.storage import (
    AgentData,
    AgentRecord,
    ChannelBinding,
    ChannelRecord,
    ChatModelConfig,
    EmbeddingModelConfig,
    KnowledgeBaseData,
    KnowledgeBaseRecord,
    KnowledgeDocumentData,
    KnowledgeDocumentRecord,
    MCPRecord,
    RoutingConfig,
    ScheduleData,
    ScheduleOrigin,
    ScheduleRecord,
    SessionConfig,
    SessionSettings,
    SkillRecord,
    SOPAgentRef,
    SOPData,
    SOPRecord,
    SOPRunRecord,
    SOPStepDataV1,
    TeamData,
    TeamMember,
    TeamRecord,
)
from agentscope.credential import DashScopeCredential
from agentscope.mcp import HttpMCPConfig, MCPClient
from agentscope.message import UserMsg
from agentscope.sop import SOPPhase, SOPRunState, SOPStepRunState
from agentscope.state import AgentState
from pydantic import SecretStr

from vstate.integrations.agentscope2 import VstateStorage
from vstate.state.snapshot import Snapshot


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


@pytest.fixture
def storage() -> VstateStorage:
    return VstateStorage()


def credential(key: str, **more: Any) -> DashScopeCredential:
    return DashScopeCredential(api_key=SecretStr(key), **more)


def mcp(token: str, name: str, **more: Any) -> MCPRecord:
    config = HttpMCPConfig(url="https://example.org/mcp", headers={"authorization": token})
    return MCPRecord(user_id="ann", client=MCPClient(name=name, is_stateful=False, mcp_config=config), **more)


def channel(secret: str, user: str = "ann", **more: Any) -> ChannelRecord:
    return ChannelRecord(
        channel_type="feishu",
        user_id=user,
        credentials={"app_secret": secret},
        routing=RoutingConfig(bindings=[ChannelBinding(agent_id="a")]),
        session=SessionSettings(chat_model_config={}),
        **more,
    )


def held(store: KVStore, text: str) -> bool:
    """Whether a text is in the bytes of a store, compressed or not."""
    if isinstance(store, Disk):
        store.scrub()
        rows = [file.read_bytes() for file in Path(store.location).rglob("*.db*")]
    else:
        rows = [store.get(key) or b"" for key in store.keys()]  # noqa: SIM118  a store is no dict
    return any(text.encode() in data for row in rows for data in [row, *unpacked(row)])


def unpacked(data: bytes) -> Iterator[bytes]:
    for begin in re.finditer(re.escape(zstandard.FRAME_HEADER), data):
        with suppress(zstandard.ZstdError):
            yield zstandard.ZstdDecompressor().decompressobj().decompress(data[begin.start() :])


def test_the_example_and_commands_of_the_docs(example: Example, commands: Commands) -> None:
    """The program of the page prints the lines of its comments. The commands show its session."""
    example("AgentScope 2")
    log, diff = commands("AgentScope 2")
    assert "I bought two bottles." in log.splitlines()[0]
    assert "I bought two bottles." in diff


@pytest.mark.parametrize("make", [lambda path: Memory(), Disk], ids=["memory", "disk"])
@pytest.mark.parametrize("kind", ["channel", "credential", "mcp"])
def test_a_secret_leaves_the_store(make: Callable[[Path], KVStore], kind: str, tmp_path: Path) -> None:
    """After a change the bytes of the store have the new secret alone, and after a deletion none."""
    store = make(tmp_path / "s")
    storage = VstateStorage(store)
    run(storage.upsert_session("ann", "a", SessionConfig(workspace_id="w")))

    def put(key: str, name: str = "m", **more: Any) -> str:
        if kind == "credential":
            return str(run(storage.upsert_credential("ann", credential(key, name=name, **more))))
        if kind == "mcp":
            return str(run(storage.upsert_mcp("ann", mcp(key, name, **more))))
        return str(run(storage.upsert_channel(channel(key, **more), name)))

    def secret(id: str) -> Any:
        if kind == "credential":
            return run(storage.get_credential("ann", id)).data["api_key"]
        if kind == "mcp":
            return run(storage.get_mcp("ann", id)).client.mcp_config.headers["authorization"]
        return run(storage.get_channel(id)).credentials["app_secret"]

    id, other = put("secret-one"), put("secret-other", "other")
    assert held(store, "secret-one")
    for key in ("secret-two", "secret-three"):
        put(key, id=id)
    kept = [word for word in ("one", "two", "three", "other") if held(store, f"secret-{word}")]
    assert kept == ["three", "other"]
    assert (secret(id), secret(other)) == ("secret-three", "secret-other")
    delete = getattr(storage, f"delete_{kind}")
    assert run(delete(id, "m") if kind == "channel" else delete("ann", id))
    assert not held(store, "secret-three")
    assert secret(other) == "secret-other"
    store.close()


def test_credentials_without_a_name_get_one(storage: VstateStorage) -> None:
    """The name is that of the type, with the first free number. A change of the credential keeps it."""
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
    assert run(storage.get_message("ann", "s", second.id)) is None
    run(storage.upsert_message("ann", "s", UserMsg(name="ann", content="4")))
    found, has_more = run(storage.list_messages("ann", "s", limit=2))
    assert ([message.get_text_content() for message in found], has_more) == (["3", "4"], True)
    found, has_more = run(storage.list_messages("ann", "s", limit=2, before=found[1].id))
    assert ([message.get_text_content() for message in found], has_more) == (["one", "3"], False)
    assert run(storage.list_messages("ann", "s", limit=0)) == ([], True)
    assert run(storage.get_message("ann", "s", first.id)).get_text_content() == "one"


def test_a_message_is_found_without_the_others(
    storage: VstateStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new message, one that streams, and a page of messages list no more keys in a longer session."""
    scan, seen = Snapshot._scan, list[str]()

    def counted(state: Snapshot, prefix: str, **options: Any) -> Iterator[str]:
        for key in scan(state, prefix, **options):
            seen.append(key)
            yield key

    messages = [UserMsg(name="ann", content=str(number)) for number in range(30)]
    for message in messages:
        run(storage.upsert_message("ann", "s", message))
    monkeypatch.setattr(Snapshot, "_scan", counted)
    run(storage.upsert_message("ann", "s", messages[7]))
    assert seen == []
    run(storage.upsert_message("ann", "s", UserMsg(name="ann", content="new")))
    assert len(seen) == 1
    found, has_more = run(storage.list_messages("ann", "s", limit=3))
    assert ([message.get_text_content() for message in found], has_more) == (["28", "29", "new"], True)
    assert len(seen) == 5


def test_a_run_that_goes_on_after_its_session_was_deleted(storage: VstateStorage) -> None:
    """The messages and the state of the run bring nothing of the session back."""
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
    """The schedules of the agent and all their sessions go too. The sessions of other agents stay."""
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


def test_channels(storage: VstateStorage) -> None:
    """A channel is found by its id, its user and its bot, and by its new bot after a change."""
    ours, theirs = channel("one"), channel("two", "bob")
    for each, bot in ((ours, "bot 1"), (theirs, "bot 2"), (ours, "bot/3")):
        assert run(storage.upsert_channel(each, bot)) == each.id
    assert run(storage.get_channel(theirs.id)).user_id == "bob"
    assert [each.id for each in run(storage.list_channels("ann"))] == [ours.id]
    assert [each.id for each in run(storage.list_all_channels())] == [ours.id, theirs.id]
    found = [
        run(storage.get_channel_id_by_platform_bot_id(bot)) for bot in ("bot 1", "bot 2", "bot/3", "bot 4")
    ]
    assert found == [None, theirs.id, ours.id, None]
    assert run(storage.delete_channel(ours.id, "bot/3"))
    assert not run(storage.delete_channel(ours.id, "bot/3"))
    assert run(storage.get_channel_id_by_platform_bot_id("bot/3")) is None


def test_the_runs_of_an_sop(storage: VstateStorage) -> None:
    """A run is updated and found by its SOP and its phase; it goes with its SOP, and its sessions with it."""

    async def work() -> None:
        step = SOPStepDataV1(
            subject="s", description="d", executor=SOPAgentRef(agent_id="a", session_key="k")
        )
        data = SOPData(name="n", steps=[step])
        sop = await storage.upsert_sop("ann", SOPRecord(user_id="ann", data=data))
        session = await storage.upsert_session("ann", "a", SessionConfig(workspace_id="w"))
        runs = [
            await storage.upsert_sop_run("ann", SOPRunRecord(user_id="ann", sop_id=id, definition=data))
            for id in (sop.id, sop.id, "another")
        ]
        state = SOPRunState(steps=[SOPStepRunState(phase=SOPPhase.RUNNING)])
        await storage.update_sop_run("ann", runs[0].id, state, {"k": session.id})
        await storage.update_sop_run("ann", runs[0].id, state)
        with pytest.raises(KeyError):
            await storage.update_sop_run("bob", runs[0].id, state)
        assert (await storage.get_sop_run("ann", runs[0].id)).sessions == {"k": session.id}
        for sop_id, phase, found in (
            (None, None, [2, 1, 0]),
            (sop.id, None, [1, 0]),
            (sop.id, SOPPhase.RUNNING, [0]),
        ):
            listed = await storage.list_sop_runs("ann", sop_id, phase)
            assert [each.id for each in listed] == [runs[number].id for number in found]
        assert [each.id for each in await storage.list_sops("ann")] == [sop.id]
        assert await storage.delete_sop("ann", sop.id)
        assert [each.id for each in await storage.list_sop_runs("ann")] == [runs[2].id]
        assert await storage.get_session("ann", "a", session.id) is None
        assert await storage.get_sop("ann", sop.id) is None

    run(work())


def test_a_team_goes_with_what_was_made_for_it(storage: VstateStorage) -> None:
    """The agents and sessions of the team go. Borrowed agents stay, and the leader may lead another team."""

    async def work() -> None:
        made, borrowed = (
            AgentRecord(user_id="ann", source=source, data=AgentData(name=source))
            for source in ("team", "user")
        )
        for each in (made, borrowed):
            await storage.upsert_agent("ann", each)
        sessions = [
            await storage.upsert_session("ann", owner, SessionConfig(workspace_id="w"))
            for owner in ("leader", made.id, borrowed.id, borrowed.id)
        ]
        members = [
            TeamMember(owner_id="ann", agent_id=made.id, session_id=sessions[1].id, role="created"),
            TeamMember(owner_id="ann", agent_id=borrowed.id, session_id=sessions[2].id, role="invited"),
        ]
        data = TeamData(name="t", members=members)
        team = await storage.upsert_team(
            "ann", TeamRecord(user_id="ann", session_id=sessions[0].id, data=data)
        )
        await storage.set_session_team_id("ann", sessions[0].id, team.id)
        with pytest.raises(ValueError, match="user_id"):
            await storage.upsert_team("bob", team)
        assert await storage.delete_team("ann", team.id)
        assert not await storage.delete_team("ann", team.id)
        assert [await storage.get_agent("ann", each.id) is not None for each in (made, borrowed)] == [0, 1]
        left = [await storage.get_session("ann", "x", each.id) for each in sessions]
        assert [each is not None for each in left] == [1, 0, 0, 1]
        assert left[0].team_id is None
        again = await storage.upsert_team("ann", team)
        await storage.set_session_team_id("ann", sessions[0].id, again.id)
        await storage.delete_agent("ann", borrowed.id)
        assert [each.agent_id for each in (await storage.get_team("ann", team.id)).data.members] == [made.id]
        await storage.delete_session("ann", "leader", sessions[0].id)
        assert await storage.list_teams("ann") == []

    run(work())


def test_one_worker_gets_a_document(tmp_path: Path) -> None:
    """Two openings of a store have workers: one worker leases the document. A deleted base has none left."""

    async def work() -> None:
        async with VstateStorage(tmp_path / "s") as one, VstateStorage(tmp_path / "s") as two:
            model = EmbeddingModelConfig(type="t", credential_id="c", model="m", dimensions=3)
            data = KnowledgeBaseData(name="k", embedding_model_config=model, collection_name="c")
            base = KnowledgeBaseRecord(user_id="ann", data=data)
            await one.upsert_knowledge_base("ann", base)
            about = KnowledgeDocumentData(filename="f", size=1, blob_uri="local://f")
            document = KnowledgeDocumentRecord(user_id="ann", knowledge_base_id=base.id, data=about)
            await one.upsert_knowledge_document("ann", document)
            with pytest.raises(KeyError):
                await one.upsert_knowledge_document("bob", document.model_copy(update={"user_id": "bob"}))
            ids, ttl = ("ann", base.id, document.id), timedelta(minutes=5)
            calls = [
                store.acquire_knowledge_document_lease(*ids, f"{n}", ttl)
                for n, store in enumerate([one, two] * 4)
            ]
            won = [str(n) for n, has in enumerate(await asyncio.gather(*calls)) if has]
            assert len(won) == 1
            await one.release_knowledge_document_lease(*ids, "another")
            assert not await one.acquire_knowledge_document_lease(*ids, "x", ttl)
            await one.release_knowledge_document_lease(*ids, won[0])
            assert await two.acquire_knowledge_document_lease(*ids, "x", ttl)
            late = datetime.now() + timedelta(hours=1)

            async def lists() -> list[bool]:
                """Whether the document is expired now and later, and pending since before and after it."""
                expired = two.list_knowledge_documents_with_expired_lease
                pending = two.list_knowledge_documents_pending_since
                found = [await expired(None), await expired(late + 2 * ttl)]
                found += [await pending(document.created_at), await pending(late)]
                return [document.id in [each.id for each in some] for some in found]

            assert await lists() == [False, True, False, True]
            assert await two.acquire_knowledge_document_lease(*ids, "y", ttl, late)
            await two.update_knowledge_document_status(*ids, "ready")
            assert await lists() == [False, False, False, False]
            await one.delete_knowledge_base("ann", base.id)
            assert await two.list_knowledge_documents("ann", base.id) == []
            assert two.repo.branch_names() == []

    run(work())
