"""VstateStorage: the storage of AgentScope 2's app, each session and each record a branch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial, partialmethod
from itertools import dropwhile, islice
from types import MappingProxyType
from typing import Any, Final, TypeVar

from vstate.aio.workers import awaited, in_thread
from vstate.display.chats import messages_in_words
from vstate.integrations import framework_of
from vstate.integrations.branches import BranchName, beginnings
from vstate.integrations.opening import AsyncOpened, Changes, KeepLike, Opening, StoreLike, summary
from vstate.patterns.paths import join_path, split_path
from vstate.state.base import ReadableState
from vstate.state.snapshot import Snapshot

with framework_of("agentscope2"):
    from agentscope.app import storage as app

    # The framework's own storages import these names too: the secrets in clear text, and a team's members.
    from agentscope.app.storage._utils import _dump_with_secrets, _ensure_team_members
    from agentscope.credential import CredentialBase
    from agentscope.message import Msg
    from agentscope.sop import SOPPhase, SOPRunState
    from agentscope.state import AgentState

_R = TypeVar("_R", bound=Any)
_Edit = Callable[[dict[str, Any]], dict[str, Any] | None]
"""The new fields of a record, made out of its old ones; None for no change."""

_RECORD, _MESSAGES, _PLACES = "record", "messages", "places"
_BOT: Final = "bot"  # the label of a channel with the id of its bot
_FOLDERS: Final[dict[type, str]] = {
    app.AgentRecord: "agents",
    app.ChannelRecord: "channels",
    app.CredentialRecord: "credentials",
    app.KnowledgeBaseRecord: "knowledge_bases",
    app.KnowledgeDocumentRecord: "documents",
    app.MCPRecord: "mcps",
    app.ScheduleRecord: "schedules",
    app.SessionRecord: "sessions",
    app.SkillRecord: "skills",
    app.SOPRecord: "sops",
    app.SOPRunRecord: "sop_runs",
    app.TeamRecord: "teams",
}
_IDS: Final[dict[type, tuple[str, ...]]] = {
    app.ChannelRecord: ("id",),
    app.KnowledgeDocumentRecord: ("user_id", "knowledge_base_id", "id"),
}
"""The fields with the ids of a record, where they are not those of its user and its own."""
_NAMED: Final = app.MCPRecord, app.SkillRecord  # a user has one of a name
_SECRET: Final = app.ChannelRecord, app.CredentialRecord, app.MCPRecord


def _is_free(document: dict[str, Any], node: str, at: datetime) -> bool:
    ends = document["lease_expires_at"]
    return not document["processing_node"] or not ends or datetime.fromisoformat(ends) < at


def _is_holder(document: dict[str, Any], node: str, at: datetime) -> bool:
    return bool(document["processing_node"] == node)


class VstateStorage(AsyncOpened, app.StorageBase):
    """The storage of AgentScope 2's app: `create_app(storage=VstateStorage("./agents"), …)`.

    - A session is the branch `agentscope2/sessions/USER/SESSION`. The key `record` has its record and state,
      `messages/NUMBER/ID` each message, and `places/ID` the key of the message. A change is a commit.
    - Any other record is the branch `agentscope2/KIND/USER/ID`; a document of a knowledge base is
      `agentscope2/documents/USER/BASE/ID`, and a channel `agentscope2/channels/ID`.
    - A deletion leaves nothing in the store. The deletion of an agent, a schedule, a team, a knowledge base
      or an SOP first deletes the records that belong to it: call it again if it was cut off.
    - Channels, credentials and MCPs hold secrets in clear text, so they have no history: when a change of one
      returns, the store has nothing of the old value.
    - The later one of two changes of a record wins. A message for a session that was deleted since this
      storage read it raises NotFound.

    `keep` is about sessions.
    """

    def __init__(self, store: StoreLike = None, *, keep: KeepLike = None) -> None:
        sessions = beginnings("agentscope2", "sessions")
        self._opening = Opening(store, keep=keep, prefix=("agentscope2",), branches=sessions)

    aclose = AsyncOpened.close

    def branch(self, user_id: str, session_id: str) -> BranchName:
        """The name of the branch of a session."""
        return self._opening.branch("sessions", user_id, session_id)

    @awaited
    def _list(self, /, kind: type[_R], *ids: str, **named: str) -> list[_R]:
        """The records whose ids begin with these, the oldest first."""
        ids = (_FOLDERS[kind], *ids, *named.values())
        found = [record for _, record in self._opening.read_all(lambda state: _record(kind, state), *ids)]
        return sorted(found, key=lambda record: record.created_at)

    @awaited
    def _get(self, /, kind: type[_R], *ids: str, **named: str) -> _R | None:
        branch = self._opening.branch(_FOLDERS[kind], *ids, *named.values())
        return self._opening.read(branch, partial(_record, kind))

    @awaited
    def _delete(self, /, kind: type, *ids: str, **named: str) -> bool:
        return self._opening.delete(self._opening.branch(_FOLDERS[kind], *ids, *named.values())) is not None

    async def _get_by_name(self, kind: type[_R], user_id: str, name: str) -> _R | None:
        return next((record for record in await self._list(kind, user_id) if record.name == name), None)

    async def _put(self, user_id: str, *given: Any, **named: Any) -> str:
        """Store a record of a user, and return its id."""
        (record,) = [*given, *named.values()]
        return await self._store(record.model_copy(update={"user_id": user_id}))

    async def _put_record(self, user_id: str, record: _R) -> _R:
        """Store a record of this user, and return it with its new `updated_at`."""
        if record.user_id != user_id:
            raise ValueError(f"record.user_id is {record.user_id!r}, and not {user_id!r}")
        await self._store(record)
        return await self._get(type(record), *_ids(record)) or record

    async def _store(self, record: Any, labels: Mapping[str, str] = MappingProxyType({})) -> str:
        """Store a record. One that replaces another keeps its `created_at`."""
        kind = type(record)
        data = {**record.model_dump(mode="json"), "updated_at": datetime.now().isoformat()}
        branch = self._opening.branch(_FOLDERS[kind], *_ids(record))
        other = await self._get_by_name(kind, record.user_id, record.name) if kind in _NAMED else None
        if other is not None and other.id != record.id:
            raise ValueError(f"the user has another record with the name {record.name!r}")

        def changes(state: ReadableState) -> Changes:
            created = state.get(_RECORD, data)["created_at"]
            return {_RECORD: {**data, "created_at": created}}, ()

        def put() -> None:
            self._opening.newest(branch)  # one that was deleted begins anew
            self._opening.commit(branch, changes, message=summary(f"put {record.id}"), labels=labels)
            if kind in _SECRET:
                self._opening.shorten(branch)

        await in_thread(put)
        return str(record.id)

    @awaited
    def _edit(self, kind: type[_R], edit: _Edit, *ids: str) -> _R | None:
        """Edit a record, and return it; None if nothing changes, or if there is no such record."""
        edited: dict[str, Any] = {}

        def changes(state: ReadableState) -> Changes | None:
            nonlocal edited
            data = state.get(_RECORD, {})
            new = edit(data) if data else None
            edited = {} if new is None else {**data, **new, "updated_at": datetime.now().isoformat()}
            return ({_RECORD: edited}, ()) if edited else None

        branch = self._opening.branch(_FOLDERS[kind], *ids)
        self._opening.commit(branch, changes, message=summary(f"edit {ids[-1]}"))
        return kind.model_validate(edited) if edited else None

    async def upsert_credential(self, user_id: str, credential_data: CredentialBase) -> str:
        """Store a credential. One without a name gets that of its type, with a number if that is taken."""
        if not credential_data.name:
            others = [each for each in await self.list_credentials(user_id) if each.id != credential_data.id]
            taken = {each.data["name"] for each in others if each.data["type"] == credential_data.type}
            base = credential_data.type.removesuffix("_credential").replace("_", " ").title()
            names = [base, *(f"{base} ({number})" for number in range(2, len(taken) + 2))]
            credential_data.name = next(name for name in names if name not in taken)
        data = _dump_with_secrets(credential_data)
        return await self._put(user_id, app.CredentialRecord(id=data["id"], user_id=user_id, data=data))

    list_credentials = partialmethod(_list, app.CredentialRecord)
    get_credential = partialmethod(_get, app.CredentialRecord)
    delete_credential = partialmethod(_delete, app.CredentialRecord)

    upsert_mcp = _put
    list_mcps = partialmethod(_list, app.MCPRecord)
    get_mcp = partialmethod(_get, app.MCPRecord)
    get_mcp_by_name = partialmethod(_get_by_name, app.MCPRecord)
    delete_mcp = partialmethod(_delete, app.MCPRecord)

    upsert_skill = _put
    list_skills = partialmethod(_list, app.SkillRecord)
    get_skill = partialmethod(_get, app.SkillRecord)
    get_skill_by_name = partialmethod(_get_by_name, app.SkillRecord)
    delete_skill = partialmethod(_delete, app.SkillRecord)

    upsert_agent = _put
    get_agent = partialmethod(_get, app.AgentRecord)

    async def list_agents(self, user_id: str) -> list[app.AgentRecord]:
        return [each for each in await self._list(app.AgentRecord, user_id) if each.source == "user"]

    async def delete_agent(self, user_id: str, agent_id: str) -> bool:
        for schedule in await self.list_schedules(user_id):
            if schedule.agent_id == agent_id:
                await self.delete_schedule(user_id, schedule.id)
        for session in await self.list_sessions(user_id, agent_id):
            await self.delete_session(user_id, agent_id, session.id)
        for team in await self.list_teams(user_id):
            await self._edit(app.TeamRecord, partial(_without_member, agent_id), user_id, team.id)
        return await self._delete(app.AgentRecord, user_id, agent_id)

    list_all_channels = partialmethod(_list, app.ChannelRecord)
    get_channel = partialmethod(_get, app.ChannelRecord)

    async def upsert_channel(self, record: app.ChannelRecord, platform_bot_id: str) -> str:
        return await self._store(record, {_BOT: platform_bot_id})

    async def list_channels(self, user_id: str) -> list[app.ChannelRecord]:
        return [each for each in await self.list_all_channels() if each.user_id == user_id]

    @awaited
    def get_channel_id_by_platform_bot_id(self, platform_bot_id: str) -> str | None:
        found = self._opening.sessions("channels", labels={_BOT: platform_bot_id})
        return next((id for _, id in found), None)

    async def delete_channel(self, channel_id: str, platform_bot_id: str) -> bool:
        return await self._delete(app.ChannelRecord, channel_id)

    upsert_schedule = _put
    list_schedules = partialmethod(_list, app.ScheduleRecord)
    list_all_schedules = partialmethod(_list, app.ScheduleRecord)
    get_schedule = partialmethod(_get, app.ScheduleRecord)

    async def delete_schedule(self, user_id: str, schedule_id: str) -> bool:
        for session in await self.list_sessions_by_schedule(user_id, schedule_id):
            await self.delete_session(user_id, session.agent_id, session.id)
        return await self._delete(app.ScheduleRecord, user_id, schedule_id)

    async def upsert_session(
        self,
        user_id: str,
        agent_id: str,
        config: app.SessionConfig,
        state: AgentState | None = None,
        session_id: str | None = None,
        origin: app.SessionOrigin | None = None,
        **source: Any,
    ) -> app.SessionRecord:
        new = {"config": config, **({} if state is None else {"state": state})}
        data = {name: part.model_dump(mode="json") for name, part in new.items()}
        if session_id:
            found = await self._edit(app.SessionRecord, lambda _: data, user_id, session_id)
            if found is not None:
                return found
        new |= {"origin": origin, **source, **({"id": session_id} if session_id else {})}
        record = app.SessionRecord(user_id=user_id, agent_id=agent_id, **new)
        await self._put(user_id, record)
        return record

    async def update_session_state(
        self, user_id: str, agent_id: str, session_id: str, state: AgentState
    ) -> None:
        data = {"state": state.model_dump(mode="json")}
        if await self._edit(app.SessionRecord, lambda _: data, user_id, session_id) is None:
            raise KeyError(f"user {user_id!r} has no session {session_id!r}")

    async def set_session_team_id(self, user_id: str, session_id: str, team_id: str | None) -> None:
        def edit(data: dict[str, Any]) -> dict[str, Any] | None:
            return None if data.get("team_id") == team_id else {"team_id": team_id}

        await self._edit(app.SessionRecord, edit, user_id, session_id)

    async def _list_sessions(
        self, field: str, user_id: str, *id: str, **named: str
    ) -> list[app.SessionRecord]:
        """The sessions of which a field, or one of the origin, has this value, the newest first."""
        found = reversed(await self._list(app.SessionRecord, user_id))
        return [
            each for each in found if {**dict(each.origin), **dict(each)}.get(field) in (*id, *named.values())
        ]

    list_sessions = partialmethod(_list_sessions, "agent_id")
    list_sessions_by_schedule = partialmethod(_list_sessions, "schedule_id")
    list_sessions_by_channel = partialmethod(_list_sessions, "channel_id")

    async def get_session(self, user_id: str, agent_id: str, session_id: str) -> app.SessionRecord | None:
        return await self._get(app.SessionRecord, user_id, session_id)

    async def delete_session(self, user_id: str, agent_id: str, session_id: str) -> bool:
        session = await self._get(app.SessionRecord, user_id, session_id)
        team = session and session.team_id and await self.get_team(user_id, session.team_id)
        if team and team.session_id == session_id:
            await self.delete_team(user_id, team.id)
        return await self._delete(app.SessionRecord, user_id, session_id)

    async def upsert_message(self, user_id: str, session_id: str, msg: Msg) -> None:
        branch, data = self.branch(user_id, session_id), msg.model_dump(mode="json")
        place = join_path(_PLACES, msg.id)

        def changes(state: ReadableState) -> Changes:
            if (key := state.get(place)) is not None:
                return {key: data}, ()
            last = next(iter(state.keys(f"{_MESSAGES}/", reverse=True)), None)
            number = 0 if last is None else int(split_path(last)[1]) + 1
            key = join_path(_MESSAGES, f"{number:010}", msg.id)
            return {key: data, place: key}, ()

        message = summary(messages_in_words([data], with_role=True) or msg.role)
        await in_thread(lambda: self._opening.commit(branch, changes, message=message))

    @awaited
    def delete_message(self, user_id: str, session_id: str, message_id: str) -> bool:
        place = join_path(_PLACES, message_id)

        def changes(state: ReadableState) -> Changes | None:
            key = state.get(place)
            return None if key is None else ({}, [key, place])

        message = summary(f"delete message {message_id}")
        return self._opening.commit(self.branch(user_id, session_id), changes, message=message) is not None

    @awaited
    def get_message(self, user_id: str, session_id: str, message_id: str) -> Msg | None:
        def look(state: Snapshot) -> Msg | None:
            key = state.get(join_path(_PLACES, message_id))
            return None if key is None else Msg.model_validate(state[key])

        return self._opening.read(self.branch(user_id, session_id), look)

    async def list_messages(
        self, user_id: str, session_id: str, limit: int = 50, before: str | None = None, **kwargs: Any
    ) -> tuple[list[Msg], bool]:
        if "offset" in kwargs:
            warnings.warn("`offset` does nothing: give a message's id as `before`", DeprecationWarning, 2)

        def look(state: Snapshot) -> tuple[list[Msg], bool]:
            keys = iter(state.keys(f"{_MESSAGES}/", reverse=True))
            if before is not None:
                end = state.get(join_path(_PLACES, before))
                keys = islice(dropwhile(lambda key: key != end, keys), 1, None)
            newest = [*islice(keys, limit + 1)]
            found = state.get_many(reversed(newest[:limit]))
            return [Msg.model_validate(data) for data in found.values()], len(newest) > limit

        branch = self.branch(user_id, session_id)
        return await in_thread(lambda: self._opening.read(branch, look) or ([], False))

    upsert_sop = upsert_sop_run = _put_record
    get_sop = partialmethod(_get, app.SOPRecord)
    get_sop_run = partialmethod(_get, app.SOPRunRecord)
    list_sops = partialmethod(_list, app.SOPRecord)

    async def delete_sop(self, user_id: str, sop_id: str) -> bool:
        for run in await self.list_sop_runs(user_id, sop_id):
            await self.delete_sop_run(user_id, run.id)
        return await self._delete(app.SOPRecord, user_id, sop_id)

    async def list_sop_runs(
        self, user_id: str, sop_id: str | None = None, phase: SOPPhase | None = None
    ) -> list[app.SOPRunRecord]:
        return [
            run
            for run in reversed(await self._list(app.SOPRunRecord, user_id))
            if sop_id in (None, run.sop_id) and phase in (None, run.state.phase)
        ]

    async def update_sop_run(
        self, user_id: str, sop_run_id: str, state: SOPRunState, sessions: dict[str, str] | None = None
    ) -> None:
        new = {"state": state.model_dump(mode="json"), **({} if sessions is None else {"sessions": sessions})}
        if await self._edit(app.SOPRunRecord, lambda _: new, user_id, sop_run_id) is None:
            raise KeyError(f"user {user_id!r} has no SOP run {sop_run_id!r}")

    async def delete_sop_run(self, user_id: str, sop_run_id: str) -> bool:
        run = await self.get_sop_run(user_id, sop_run_id)
        for session_id in run.sessions.values() if run else ():
            await self.delete_session(user_id, "", session_id)
        return await self._delete(app.SOPRunRecord, user_id, sop_run_id)

    upsert_team = upsert_knowledge_base = _put_record
    get_team = partialmethod(_get, app.TeamRecord)
    list_teams = partialmethod(_list, app.TeamRecord)

    async def delete_team(self, user_id: str, team_id: str) -> bool:
        if (team := await self.get_team(user_id, team_id)) is None:
            return False
        await self.set_session_team_id(user_id, team.session_id, None)
        for member in await _ensure_team_members(self, user_id, team):
            if member.role == "created":
                await self.delete_agent(member.owner_id, member.agent_id)
            else:
                await self.delete_session(user_id, member.agent_id, member.session_id)
        return await self._delete(app.TeamRecord, user_id, team_id)

    get_knowledge_base = partialmethod(_get, app.KnowledgeBaseRecord)
    list_knowledge_bases = partialmethod(_list, app.KnowledgeBaseRecord)

    async def delete_knowledge_base(self, user_id: str, knowledge_base_id: str) -> bool:
        for document in await self.list_knowledge_documents(user_id, knowledge_base_id):
            await self.delete_knowledge_document(user_id, knowledge_base_id, document.id)
        return await self._delete(app.KnowledgeBaseRecord, user_id, knowledge_base_id)

    async def upsert_knowledge_document(
        self, user_id: str, record: app.KnowledgeDocumentRecord
    ) -> app.KnowledgeDocumentRecord:
        if await self.get_knowledge_base(user_id, record.knowledge_base_id) is None:
            raise KeyError(f"user {user_id!r} has no knowledge base {record.knowledge_base_id!r}")
        return await self._put_record(user_id, record)

    get_knowledge_document = partialmethod(_get, app.KnowledgeDocumentRecord)
    list_knowledge_documents = partialmethod(_list, app.KnowledgeDocumentRecord)
    delete_knowledge_document = partialmethod(_delete, app.KnowledgeDocumentRecord)

    async def update_knowledge_document_status(
        self,
        user_id: str,
        knowledge_base_id: str,
        document_id: str,
        status: str,
        error: str | None = None,
        chunk_count: int | None = None,
    ) -> None:
        found = {"error": error, "chunk_count": chunk_count}
        new = {name: value for name, value in found.items() if value is not None}

        def edit(data: dict[str, Any]) -> dict[str, Any]:
            return {"status": status, "data": {**data["data"], **new}}

        await self._edit(app.KnowledgeDocumentRecord, edit, user_id, knowledge_base_id, document_id)

    async def _lease(
        self,
        may: Callable[[dict[str, Any], str, datetime], bool],
        user_id: str,
        knowledge_base_id: str,
        document_id: str,
        processing_node: str,
        lease_ttl: timedelta | None = None,
        now: datetime | None = None,
    ) -> bool:
        """Give a node the lease of a document, if it may have the lease; without a time, take it back."""
        at = now or datetime.now()
        node = None if lease_ttl is None else processing_node
        ends = None if lease_ttl is None else (at + lease_ttl).isoformat()

        def edit(data: dict[str, Any]) -> dict[str, Any] | None:
            new = {"processing_node": node, "lease_expires_at": ends}
            return new if may(data, processing_node, at) else None

        ids = user_id, knowledge_base_id, document_id
        return await self._edit(app.KnowledgeDocumentRecord, edit, *ids) is not None

    acquire_knowledge_document_lease = partialmethod(_lease, _is_free)
    renew_knowledge_document_lease = release_knowledge_document_lease = partialmethod(_lease, _is_holder)

    async def list_knowledge_documents_with_expired_lease(
        self, now: datetime | None = None
    ) -> list[app.KnowledgeDocumentRecord]:
        at = now or datetime.now()
        return [
            each
            for each in await self._list(app.KnowledgeDocumentRecord)
            if each.status not in ("ready", "error") and each.lease_expires_at and each.lease_expires_at < at
        ]

    async def list_knowledge_documents_pending_since(
        self, threshold: datetime
    ) -> list[app.KnowledgeDocumentRecord]:
        found = await self._list(app.KnowledgeDocumentRecord)
        return [each for each in found if each.status == "pending" and each.created_at < threshold]


def _without_member(agent_id: str, team: dict[str, Any]) -> dict[str, Any] | None:
    """The data of a team without an agent; None if the agent is no member."""
    data = team["data"]
    members = [each for each in data["members"] if each["agent_id"] != agent_id]
    ids = [each for each in data["member_ids"] if each != agent_id]
    new = {**data, "members": members, "member_ids": ids}
    return None if new == data else {"data": new}


def _ids(record: Any) -> list[str]:
    """The ids of the branch of a record, after its kind."""
    return [getattr(record, field) for field in _IDS.get(type(record), ("user_id", "id"))]


def _record(kind: Any, state: Snapshot) -> Any:
    """The record of a branch; None without one."""
    data = state.get(_RECORD)
    return None if data is None else kind.model_validate(data)
