"""VstateSessionRepository and VstateStorage: sessions and keyed bytes of Strands Agents."""

from __future__ import annotations

import builtins
import copy
import dataclasses
import json
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from vstate.aio.workers import in_thread
from vstate.arguments import check_count, check_text
from vstate.errors import InvalidInput, NotFound, RefMoved, VStateError
from vstate.integrations import framework_of
from vstate.integrations.opening import AsyncOpened, Changes, KeepLike, Opened, Opening, StoreLike, summary
from vstate.kv.memory import Memory
from vstate.patterns.fields import exact
from vstate.patterns.paths import join_path
from vstate.repo.names.refs import check_ref_name
from vstate.state.base import ReadableState
from vstate.state.live import Live
from vstate.state.snapshot import Snapshot

with framework_of("strands"):
    from strands.session import SessionRepository
    from strands.storage import Storage

    # The framework's own storages import these names too. They say which storage is lost with its process,
    # which view is scoped, and which keys are one.
    from strands.storage.storage import _EPHEMERAL, _NAMESPACED, _normalize_key, _normalize_prefix
    from strands.types.exceptions import SessionException, StorageError
    from strands.types.session import Session, SessionAgent, SessionMessage

if TYPE_CHECKING:
    from strands.multiagent import MultiAgentBase
    from strands.storage.search.types import SearchStrategy
    from strands.storage.storage import StorageSearchResult

_T = TypeVar("_T")

_SESSION: Final = "session"
_AGENTS: Final = "agents"
_AGENT: Final = "agent"
_MESSAGES: Final = "messages"
_MULTI_AGENTS: Final = "multi_agents"
_DIGITS: Final = 10
"""Of a message's number in its key, so that the keys are in the order of the numbers."""


class VstateSessionRepository(Opened, SessionRepository):
    """Sessions of Strands: `RepositorySessionManager("ann", VstateSessionRepository("./chats"))`.

    - A session is the branch `strands/sessions/ID`. Each call that changes it is one commit. So a message
      that was stored survives a crash, and a copy of a session is a branch of it.
    - Session, agents and messages are plain data, each under a key of its own, and come back equal.

    If two threads or processes append the same message number, one gets
    SessionException, and no message is lost. Raises SessionException for a session, agent or message that is
    absent or exists already.
    """

    def __init__(self, store: StoreLike = None, *, keep: KeepLike = None) -> None:
        self._opening = Opening(store, "strands", keep=keep, prefix=("strands", "sessions"))

    def branch(self, session_id: str) -> str:
        """The name of a session's branch. Raises InvalidInput for an empty id."""
        return self._opening.branch(check_text("session_id", session_id, empty=False))

    # Sessions

    def create_session(self, session: Session, **kwargs: Any) -> Session:
        """Store a new session; SessionException if there is one with its id."""
        branch, about = self.branch(session.session_id), _plain(session, _SESSION)
        try:
            self._opening.commit_on(branch, None, {_SESSION: about}, message="session created")
        except RefMoved as error:
            raise SessionException(f"Session {session.session_id} already exists") from error
        return session

    def read_session(self, session_id: str, **kwargs: Any) -> Session | None:
        """The session, None if there is none. In a copy it has the id of the copy."""
        about = self._read(session_id, _SESSION)
        return None if about is None else Session.from_dict({**about, "session_id": session_id})

    def delete_session(self, session_id: str, *, keep_history: bool = False, **kwargs: Any) -> None:
        """Delete a session with its agents and messages; SessionException if there is none.

        The store has nothing of it afterwards. With `keep_history`, the reflog keeps it for 30 days.
        """
        if self._opening.delete(self.branch(session_id), keep_history=keep_history) is None:
            raise _absent(session_id)

    # Agents

    def create_agent(self, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None:
        """Store a new agent of a session; SessionException if the session has one with its id."""
        id = session_agent.agent_id
        self._put(session_id, _agent_key(id), session_agent, f"agent {id}")

    def read_agent(self, session_id: str, agent_id: str, **kwargs: Any) -> SessionAgent | None:
        """The agent, None if the session or the agent is absent."""
        about = self._read(session_id, _agent_key(agent_id))
        return None if about is None else SessionAgent.from_dict(about)

    def update_agent(self, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None:
        """Replace an agent, which keeps its `created_at`; SessionException if it is absent."""
        id = session_agent.agent_id
        self._put(session_id, _agent_key(id), session_agent, f"agent {id} updated", replaces=True)

    # Messages

    def create_message(
        self, session_id: str, agent_id: str, session_message: SessionMessage, **kwargs: Any
    ) -> None:
        """Append a message; SessionException if its agent is absent, or has a message of this number."""
        number, role = session_message.message_id, session_message.message["role"]
        message = f"{role}: message {number} of {agent_id}"
        key, needs = _message_key(agent_id, number), _agent_key(agent_id)
        self._put(session_id, key, session_message, message, needs=needs)

    def read_message(
        self, session_id: str, agent_id: str, message_id: int, **kwargs: Any
    ) -> SessionMessage | None:
        """The message, None if it is absent."""
        about = self._read(session_id, _message_key(agent_id, message_id))
        return None if about is None else SessionMessage.from_dict(about)

    def update_message(
        self, session_id: str, agent_id: str, session_message: SessionMessage, **kwargs: Any
    ) -> None:
        """Replace a message, which keeps its `created_at`; SessionException if it is absent.

        The history keeps the old message until the branch is squashed.
        """
        number = session_message.message_id
        message = f"message {number} of {agent_id} updated"
        self._put(session_id, _message_key(agent_id, number), session_message, message, replaces=True)

    def list_messages(
        self, session_id: str, agent_id: str, limit: int | None = None, offset: int = 0, **kwargs: Any
    ) -> list[SessionMessage]:
        """At most `limit` messages of an agent from number `offset` on; SessionException if it is absent."""
        check_count("limit", limit, 0, none="None for all")
        check_count("offset", offset, 0)

        def look(state: Snapshot) -> list[SessionMessage] | None:
            if _agent_key(agent_id) not in state:
                return None
            keys = state.keys(join_path(_AGENTS, agent_id, _MESSAGES) + "/")
            found = state.get_many(islice(keys, offset, None if limit is None else offset + limit))
            return [SessionMessage.from_dict(about) for about in found.values()]

        messages = self._opening.read(self.branch(session_id), look)
        if messages is None:
            raise SessionException(f"Agent {agent_id} in session {session_id} does not exist")
        return messages

    # Multi-agents

    def create_multi_agent(self, session_id: str, multi_agent: MultiAgentBase, **kwargs: Any) -> None:
        """Store the state of a new multi-agent; SessionException if the session has one with its id."""
        id = multi_agent.id
        self._put(session_id, join_path(_MULTI_AGENTS, id), multi_agent, f"multi-agent {id}")

    def read_multi_agent(self, session_id: str, multi_agent_id: str, **kwargs: Any) -> dict[str, Any] | None:
        """The state of a multi-agent, None if it is absent."""
        found = self._read(session_id, join_path(_MULTI_AGENTS, multi_agent_id))
        return None if found is None else dict(found)

    def update_multi_agent(self, session_id: str, multi_agent: MultiAgentBase, **kwargs: Any) -> None:
        """Replace the state of a multi-agent; SessionException if it is absent."""
        key, message = join_path(_MULTI_AGENTS, multi_agent.id), f"multi-agent {multi_agent.id} updated"
        self._put(session_id, key, multi_agent, message, replaces=True)

    # Keys

    def _read(self, session_id: str, key: str) -> Any:
        return self._opening.read(self.branch(session_id), lambda state: state.get(key))

    def _put(
        self,
        session_id: str,
        key: str,
        record: SessionAgent | SessionMessage | MultiAgentBase,
        message: str,
        *,
        replaces: bool = False,
        needs: str | None = None,
    ) -> None:
        """Set a new key of a session, or replace one that is there.

        The session must have the key `needs`. An agent or a message that is replaced keeps its `created_at`.
        """

        def changes(stored: ReadableState) -> Changes:
            if not stored:
                raise _absent(session_id)
            if needs is not None and needs not in stored:
                raise SessionException(f"{needs} in session {session_id} does not exist")
            if (key in stored) != replaces:
                how = "does not exist" if replaces else "exists already"
                raise SessionException(f"{key} in session {session_id} {how}")
            if not isinstance(record, SessionAgent | SessionMessage):
                return {key: exact(record.serialize_state(), key)}, ()
            value = _plain(record, key)
            return {key: {**value, "created_at": stored[key]["created_at"]} if replaces else value}, ()

        try:
            self._opening.commit(self.branch(session_id), changes, message=summary(message))
        except NotFound as error:
            raise _absent(session_id) from error


class VstateStorage(AsyncOpened, Storage[str, str]):
    """Bytes by key, for `Agent(storage=…)`, snapshots and offloaded context: `VstateStorage("./agent")`.

    - Each write or deletion is one commit of the branch. So give each agent or user a `branch` of its own.
    - Bytes that are a JSON object or list are stored as that, if it gives the same bytes again. So
      `vstate diff` shows the messages in a snapshot.
    - A `search_strategy` is told of each write, and answers `search`; without one, words are compared.

    Of two writes of one key the later one wins. The errors of `vstate` come as StorageError.
    """

    _namespaced: object = None
    _ephemeral: object = None

    def __init__(
        self,
        store: StoreLike = None,
        *,
        branch: str = "strands/storage",
        search_strategy: SearchStrategy[VstateStorage] | None = None,
    ) -> None:
        self.branch = check_ref_name(branch)
        self._opening = Opening(store)
        self._search_strategy = search_strategy
        self._prefix = ""
        if isinstance(self.repo.store, Memory):
            self._ephemeral = _EPHEMERAL

    async def write(self, key: str, data: bytes) -> None:
        """Store the data under the key, in place of the data there. Slashes at the ends do not count."""
        name, data = _normalize_key(key), bytes(data)
        full = self._prefix + name
        value = {full: _opened(data)}
        message = summary(f"write {full}")
        await _stored(lambda: self.repo.commit(self.branch, set=value, message=message))
        if self._search_strategy is not None:
            try:
                await self._search_strategy.index(self, name, data)
            except Exception as error:  # a strategy is the program's own
                raise StorageError(f"{key!r} is written, and the search strategy failed: {error}") from error

    async def read(self, key: str) -> bytes | None:
        """The data under the key, None if there is none."""
        full = self._prefix + _normalize_key(key)
        return await _stored(lambda: _packed(self._state().get(full)))

    async def delete(self, key: str) -> None:
        """Delete the key, if it is there. The history keeps the data until the branch is squashed."""
        full = self._prefix + _normalize_key(key)
        message = summary(f"delete {full}")
        await _stored(lambda: self.repo.commit(self.branch, delete=[full], message=message))

    async def list(self, query: str = "") -> builtins.list[str]:
        """The keys that begin with the query, sorted."""
        begin, skipped = self._prefix + _normalize_prefix(query), len(self._prefix)
        found = await _stored(lambda: [*self._state().keys(begin)])
        return [key[skipped:] for key in found]

    async def search(self, query: str) -> builtins.list[StorageSearchResult]:
        """The keys that match the query, best first."""
        if self._search_strategy is None:
            found: builtins.list[StorageSearchResult] = await super().search(query)
        else:
            found = await self._search_strategy.search(self, query)
        return found

    def namespace(self, prefix: str) -> VstateStorage:
        """The keys under a prefix, as a storage over the same branch. Only the whole storage is closed."""
        scoped = copy.copy(self)
        below = _normalize_prefix(prefix).strip("/")
        scoped._prefix = f"{self._prefix}{below}/" if below else self._prefix
        scoped._opening = self._opening.of_another()
        scoped._namespaced = _NAMESPACED
        return scoped

    def _state(self) -> ReadableState:
        head = self.repo.newest(self.branch)
        return Live() if head is None else Snapshot(self.repo, head)


def _agent_key(agent_id: str) -> str:
    return join_path(_AGENTS, agent_id, _AGENT)


def _message_key(agent_id: str, message_id: int) -> str:
    if type(message_id) is not int or not 0 <= message_id < 10**_DIGITS:
        raise InvalidInput(f"message_id=<{message_id}> | message id must be an integer from 0 on")
    return join_path(_AGENTS, agent_id, _MESSAGES, f"{message_id:0{_DIGITS}}")


def _absent(session_id: str) -> SessionException:
    return SessionException(f"Session {session_id} does not exist")


def _plain(record: Session | SessionAgent | SessionMessage, key: str) -> dict[str, Any]:
    """A record as plain data. `to_dict` copies a value by its own class, so its fields are plain before."""
    return dict(dataclasses.replace(record, **exact(vars(record), key)).to_dict())


async def _stored(call: Callable[[], _T]) -> _T:
    """The result of a call, in a thread; the framework's StorageError for an error of vstate."""
    try:
        return await in_thread(call)
    except VStateError as error:
        raise StorageError(str(error)) from error


def _opened(data: bytes) -> Any:
    """The object or list of a JSON text that gives the same bytes again; else the bytes."""
    if data[:1] in (b"{", b"["):
        try:
            found = json.loads(data)
            if _packed(found) == data:
                return found
        except (ValueError, RecursionError):
            pass
    return data


def _packed(value: Any) -> bytes | None:
    """The bytes that `_opened` was given."""
    if value is None or isinstance(value, bytes):
        return value
    return json.dumps(value, ensure_ascii=False).encode()
