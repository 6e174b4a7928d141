"""VstateStorage: the storage of AgentScope 2's app, each session and each record a branch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial, partialmethod
from typing import Any, Final, TypeVar

from vstate.aio.workers import in_thread
from vstate.display.chats import messages_in_words
from vstate.integrations import framework_of
from vstate.integrations.branches import BranchName, beginnings
from vstate.integrations.opening import AsyncOpened, Changes, KeepLike, Opening, StoreLike, summary
from vstate.objects.commit import Commit
from vstate.patterns.paths import join_path, split_path
from vstate.repo.sweeps import retry_after_sweep
from vstate.state.snapshot import Snapshot

with framework_of("agentscope2"):
    from agentscope.app import storage as app

    # The framework's own storages import these names too: the secrets in clear text, and a team's members.
    from agentscope.app.storage._utils import _dump_with_secrets, _ensure_team_members
    from agentscope.credential import CredentialBase
    from agentscope.message import Msg
    from agentscope.state import AgentState

_R = TypeVar("_R", bound=Any)
_T = TypeVar("_T")
_Change = Callable[[Snapshot | None], Changes | None]

_RECORD, _MESSAGES = "record", "messages"
_FOLDERS: Final[dict[type, str]] = {
    app.AgentRecord: "agents",
    app.CredentialRecord: "credentials",
    app.KnowledgeBaseRecord: "knowledge_bases",
    app.KnowledgeDocumentRecord: "documents",
    app.MCPRecord: "mcps",
    app.ScheduleRecord: "schedules",
    app.SessionRecord: "sessions",
    app.SkillRecord: "skills",
    app.TeamRecord: "teams",
}
_NAMED: Final = app.MCPRecord, app.SkillRecord  # a user has one of a name
_SECRET: Final = app.CredentialRecord, app.MCPRecord


class VstateStorage(AsyncOpened, app.StorageBase):
    """The storage of AgentScope 2's app: `create_app(storage=VstateStorage("./agents"), …)`.

    - A session is the branch `agentscope2/sessions/USER/SESSION`, with a key for its record and state, and
      one for each message. Any other record is the branch `agentscope2/KIND/USER/ID`. A change is a commit.
    - A deletion leaves nothing in the store. That of an agent, a schedule, a team or a knowledge base deletes
      what belongs to it first: call it again if it was cut off.
    - Credentials and MCPs hold secrets in clear text, so they have no history: when a change of one returns,
      the store has nothing of the old value.
    - The later one of two changes of a record wins. A message for a session that was deleted since this
      storage read it raises NotFound.

    `keep` is about sessions. Channels and SOPs raise NotImplementedError.
    """

    def __init__(self, store: StoreLike = None, *, keep: KeepLike = None) -> None:
        sessions = beginnings("agentscope2", "sessions")
        self._opening = Opening(store, keep=keep, prefix=("agentscope2",), branches=sessions)

    aclose = AsyncOpened.close

    def branch(self, user_id: str, session_id: str) -> BranchName:
        """The name of the branch of a session."""
        return self._opening.branch("sessions", user_id, session_id)

    async def _list(self, kind: type[_R], user_id: str | None) -> list[_R]:
        """The records of a user, or of all users, the oldest first."""

        def read() -> list[_R]:
            heads = self._opening.sessions(_FOLDERS[kind], *([] if user_id is None else [user_id]))
            found = [_record(kind, Snapshot(self.repo, head)) for head in heads.values()]
            return sorted(filter(None, found), key=lambda record: record.created_at)

        return await self._run(read)

    async def _get(self, kind: type[_R], user_id: str, *id: str, **named: str) -> _R | None:
        branch = self._opening.branch(_FOLDERS[kind], user_id, *id, *named.values())
        return await self._run(lambda: _record(kind, self._opening.state(branch)))

    async def _get_by_name(self, kind: type[_R], user_id: str, name: str) -> _R | None:
        return next((record for record in await self._list(kind, user_id) if record.name == name), None)

    async def _put(self, user_id: str, *given: Any, **named: Any) -> str:
        """Store a record. One that replaces another keeps its `created_at`."""
        (record,) = [*given, *named.values()]
        kind, now = type(record), datetime.now().isoformat()
        data = {**record.model_dump(mode="json"), "user_id": user_id, "updated_at": now}
        branch = self._opening.branch(_FOLDERS[kind], user_id, record.id)
        other = await self._get_by_name(kind, user_id, record.name) if kind in _NAMED else None
        if other is not None and other.id != record.id:
            raise ValueError(f"the user has another record with the name {record.name!r}")

        def changes(state: Snapshot | None) -> Changes:
            kept = {} if state is None else state.get(_RECORD, {})
            return {_RECORD: {**data, "created_at": kept.get("created_at", data["created_at"])}}, ()

        def put() -> None:
            self._opening.newest(branch)  # one that was deleted begins anew
            self._commit(branch, changes, f"put {record.id}")
            if kind in _SECRET:
                self._opening.shorten(branch)

        await self._run(put)
        return str(record.id)

    async def _put_record(self, user_id: str, record: _R) -> _R:
        """Store a record of this user, and return it with its new `updated_at`."""
        if record.user_id != user_id:
            raise ValueError(f"record.user_id is {record.user_id!r}, and not {user_id!r}")
        await self._put(user_id, record)
        return await self._get(type(record), user_id, record.id) or record

    async def _edit(
        self, kind: type[_R], user_id: str, id: str, edit: Callable[[dict[str, Any]], dict[str, Any] | None]
    ) -> _R | None:
        """Set the fields that a function makes out of a record; None if it makes none, or there is none."""
        branch, edited = self._opening.branch(_FOLDERS[kind], user_id, id), dict[str, Any]()

        def changes(state: Snapshot | None) -> Changes | None:
            nonlocal edited
            data = {} if state is None else dict(state.get(_RECORD, {}))
            new = edit(data) if data else None
            edited = {} if new is None else {**data, **new, "updated_at": datetime.now().isoformat()}
            return ({_RECORD: edited}, ()) if edited else None

        await self._run(lambda: self._commit(branch, changes, f"edit {id}"))
        return kind.model_validate(edited) if edited else None

    async def _delete(self, kind: type, user_id: str, *id: str, **named: str) -> bool:
        branch = self._opening.branch(_FOLDERS[kind], user_id, *id, *named.values())
        return await self._run(lambda: self._opening.delete(branch)) is not None

    async def _run(self, work: Callable[[], _T]) -> _T:
        return await in_thread(lambda: retry_after_sweep(self.repo, work))

    def _commit(self, branch: str, changes: _Change, message: str) -> None:
        def on_top(head: Commit | None) -> Changes | None:
            return changes(None if head is None else Snapshot(self.repo, head))

        self._opening.commit(branch, on_top, message=summary(message))

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
            await self._edit(app.TeamRecord, user_id, team.id, partial(_without_member, agent_id))
        return await self._delete(app.AgentRecord, user_id, agent_id)

    upsert_schedule = _put
    list_schedules = partialmethod(_list, app.ScheduleRecord)
    list_all_schedules = partialmethod(_list, app.ScheduleRecord, None)
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
            found = await self._edit(app.SessionRecord, user_id, session_id, lambda _: data)
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
        if await self._edit(app.SessionRecord, user_id, session_id, lambda _: data) is None:
            raise KeyError(f"user {user_id!r} has no session {session_id!r}")

    async def set_session_team_id(self, user_id: str, session_id: str, team_id: str | None) -> None:
        def edit(data: dict[str, Any]) -> dict[str, Any] | None:
            return None if data.get("team_id") == team_id else {"team_id": team_id}

        await self._edit(app.SessionRecord, user_id, session_id, edit)

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

        def changes(state: Snapshot | None) -> Changes:
            keys = _message_keys(state)
            number = int(split_path(next(reversed(keys.values())))[1]) + 1 if keys else 0
            return {keys.get(msg.id) or join_path(_MESSAGES, f"{number:010}", msg.id): data}, ()

        message = messages_in_words([data], with_role=True) or msg.role
        await self._run(lambda: self._commit(branch, changes, message))

    async def delete_message(self, user_id: str, session_id: str, message_id: str) -> bool:
        branch, found = self.branch(user_id, session_id), False

        def changes(state: Snapshot | None) -> Changes | None:
            nonlocal found
            found = message_id in (keys := _message_keys(state))
            return ({}, [keys[message_id]]) if found else None

        await self._run(lambda: self._commit(branch, changes, f"delete message {message_id}"))
        return found

    async def get_message(self, user_id: str, session_id: str, message_id: str) -> Msg | None:
        def read() -> Msg | None:
            state = self._opening.state(self.branch(user_id, session_id))
            key = _message_keys(state).get(message_id)
            return None if state is None or key is None else Msg.model_validate(state[key])

        return await self._run(read)

    async def list_messages(
        self, user_id: str, session_id: str, limit: int = 50, before: str | None = None, **kwargs: Any
    ) -> tuple[list[Msg], bool]:
        if "offset" in kwargs:
            warnings.warn("`offset` does nothing: give a message's id as `before`", DeprecationWarning, 2)

        def read() -> tuple[list[Msg], bool]:
            state = self._opening.state(self.branch(user_id, session_id))
            keys = _message_keys(state)
            end = len(keys) if before is None else [*keys, before].index(before) * (before in keys)
            begin = max(0, end - limit)
            found = {} if state is None else state.get_many([*keys.values()][begin:end])
            return [Msg.model_validate(data) for data in found.values()], begin > 0

        return await self._run(read)

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

    async def get_knowledge_document(
        self, user_id: str, knowledge_base_id: str, document_id: str
    ) -> app.KnowledgeDocumentRecord | None:
        found = await self._get(app.KnowledgeDocumentRecord, user_id, document_id)
        return found if found is not None and found.knowledge_base_id == knowledge_base_id else None

    async def list_knowledge_documents(
        self, user_id: str, knowledge_base_id: str
    ) -> list[app.KnowledgeDocumentRecord]:
        found = await self._list(app.KnowledgeDocumentRecord, user_id)
        return [each for each in found if each.knowledge_base_id == knowledge_base_id]

    async def delete_knowledge_document(self, user_id: str, knowledge_base_id: str, document_id: str) -> bool:
        found = await self.get_knowledge_document(user_id, knowledge_base_id, document_id)
        return found is not None and await self._delete(app.KnowledgeDocumentRecord, user_id, document_id)

    async def _edit_document(
        self,
        user_id: str,
        knowledge_base_id: str,
        document_id: str,
        edit: Callable[[dict[str, Any]], dict[str, Any] | None],
    ) -> bool:
        def checked(data: dict[str, Any]) -> dict[str, Any] | None:
            return edit(data) if data["knowledge_base_id"] == knowledge_base_id else None

        edited = await self._edit(app.KnowledgeDocumentRecord, user_id, document_id, checked)
        return edited is not None

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

        await self._edit_document(user_id, knowledge_base_id, document_id, edit)

    async def acquire_knowledge_document_lease(
        self,
        user_id: str,
        knowledge_base_id: str,
        document_id: str,
        processing_node: str,
        lease_ttl: timedelta,
        now: datetime | None = None,
    ) -> bool:
        at = now or datetime.now()

        def edit(data: dict[str, Any]) -> dict[str, Any] | None:
            ends = data["lease_expires_at"]
            if data["processing_node"] and ends and datetime.fromisoformat(ends) >= at:
                return None
            return _lease(processing_node, at + lease_ttl)

        return await self._edit_document(user_id, knowledge_base_id, document_id, edit)

    async def renew_knowledge_document_lease(
        self,
        user_id: str,
        knowledge_base_id: str,
        document_id: str,
        processing_node: str,
        lease_ttl: timedelta,
        now: datetime | None = None,
    ) -> bool:
        new = _lease(processing_node, (now or datetime.now()) + lease_ttl)
        edit = partial(_of_holder, processing_node, new)
        return await self._edit_document(user_id, knowledge_base_id, document_id, edit)

    async def release_knowledge_document_lease(
        self, user_id: str, knowledge_base_id: str, document_id: str, processing_node: str
    ) -> None:
        edit = partial(_of_holder, processing_node, _lease(None, None))
        await self._edit_document(user_id, knowledge_base_id, document_id, edit)

    async def list_knowledge_documents_with_expired_lease(
        self, now: datetime | None = None
    ) -> list[app.KnowledgeDocumentRecord]:
        at = now or datetime.now()
        return [
            each
            for each in await self._list(app.KnowledgeDocumentRecord, None)
            if each.status not in ("ready", "error") and each.lease_expires_at and each.lease_expires_at < at
        ]

    async def list_knowledge_documents_pending_since(
        self, threshold: datetime
    ) -> list[app.KnowledgeDocumentRecord]:
        found = await self._list(app.KnowledgeDocumentRecord, None)
        return [each for each in found if each.status == "pending" and each.created_at < threshold]


def _without_member(agent_id: str, team: dict[str, Any]) -> dict[str, Any] | None:
    """The data of a team without an agent; None if the agent is no member."""
    data = team["data"]
    members = [each for each in data["members"] if each["agent_id"] != agent_id]
    ids = [each for each in data["member_ids"] if each != agent_id]
    new = {**data, "members": members, "member_ids": ids}
    return None if new == data else {"data": new}


def _lease(node: str | None, ends: datetime | None) -> dict[str, Any]:
    return {"processing_node": node, "lease_expires_at": ends and ends.isoformat()}


def _of_holder(node: str, new: dict[str, Any], document: dict[str, Any]) -> dict[str, Any] | None:
    """The new lease of a document, if this node holds it."""
    return new if document["processing_node"] == node else None


def _record(kind: type[_R], state: Snapshot | None) -> _R | None:
    """The record of a branch; None without one."""
    data = None if state is None else state.get(_RECORD)
    return None if data is None else kind.model_validate(data)


def _message_keys(state: Snapshot | None) -> dict[str, str]:
    """The keys of the messages of a session by their ids, in order."""
    return {} if state is None else {split_path(key)[2]: key for key in state.keys(f"{_MESSAGES}/")}
