"""VstateStorage: the storage of AgentScope 2's app, each session and each record a branch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import datetime
from functools import partialmethod
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

    # The framework's own storages import this name too. It gives the secrets in clear text.
    from agentscope.app.storage._utils import _dump_with_secrets
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
    app.MCPRecord: "mcps",
    app.ScheduleRecord: "schedules",
    app.SessionRecord: "sessions",
    app.SkillRecord: "skills",
}
_NAMED: Final = app.MCPRecord, app.SkillRecord  # a user has one of a name
_SECRET: Final = app.CredentialRecord, app.MCPRecord


class VstateStorage(AsyncOpened, app.StorageBase):
    """The storage of AgentScope 2's app: `create_app(storage=VstateStorage("./agents"), …)`.

    - A session is the branch `agentscope2/sessions/USER/SESSION`, with a key for its record and state, and
      one for each message. Any other record is the branch `agentscope2/KIND/USER/ID`. A change is a commit.
    - A deletion leaves nothing in the store. That of an agent or a schedule deletes its sessions first: call
      it again if it was cut off.
    - Credentials and MCPs hold secrets in clear text, so they have no history: when a change of one returns,
      the store has nothing of the old value.
    - The later one of two changes of a record wins. A message for a session that was deleted since this
      storage read it raises NotFound.

    `keep` is about sessions. Teams, knowledge bases, channels and SOPs raise NotImplementedError.
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
        if session_id and (found := await self._edit(user_id, session_id, **new)):
            return found
        new |= {"origin": origin, **source, **({"id": session_id} if session_id else {})}
        record = app.SessionRecord(user_id=user_id, agent_id=agent_id, **new)
        await self._put(user_id, record)
        return record

    async def _edit(self, user_id: str, session_id: str, **new: Any) -> app.SessionRecord | None:
        """Replace parts of a session; None if it is not there."""
        branch, edited = self.branch(user_id, session_id), {}
        data = {name: part.model_dump(mode="json") for name, part in new.items()}

        def changes(state: Snapshot | None) -> Changes | None:
            nonlocal edited
            if state is None or _RECORD not in state:
                return None
            edited = {**state[_RECORD], **data, "updated_at": datetime.now().isoformat()}
            return {_RECORD: edited}, ()

        await self._run(lambda: self._commit(branch, changes, f"set {', '.join(new)}"))
        return app.SessionRecord.model_validate(edited) if edited else None

    async def update_session_state(
        self, user_id: str, agent_id: str, session_id: str, state: AgentState
    ) -> None:
        if await self._edit(user_id, session_id, state=state) is None:
            raise KeyError(f"user {user_id!r} has no session {session_id!r}")

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

    async def _absent(self, *args: Any, **named: Any) -> Any:
        raise NotImplementedError("VstateStorage has no teams and no knowledge bases")

    set_session_team_id = upsert_team = get_team = list_teams = delete_team = _absent
    upsert_knowledge_base = get_knowledge_base = list_knowledge_bases = delete_knowledge_base = _absent
    upsert_knowledge_document = get_knowledge_document = list_knowledge_documents = _absent
    delete_knowledge_document = update_knowledge_document_status = _absent
    acquire_knowledge_document_lease = renew_knowledge_document_lease = _absent
    release_knowledge_document_lease = list_knowledge_documents_with_expired_lease = _absent
    list_knowledge_documents_pending_since = _absent


def _record(kind: type[_R], state: Snapshot | None) -> _R | None:
    """The record of a branch; None without one."""
    data = None if state is None else state.get(_RECORD)
    return None if data is None else kind.model_validate(data)


def _message_keys(state: Snapshot | None) -> dict[str, str]:
    """The keys of the messages of a session by their ids, in order."""
    return {} if state is None else {split_path(key)[2]: key for key in state.keys(f"{_MESSAGES}/")}
