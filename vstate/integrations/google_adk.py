"""VstateSessionService: sessions of Google's Agent Development Kit, each a branch of the store."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final
from uuid import uuid4

from vstate.aio.workers import awaited, in_thread, shielded
from vstate.errors import AlreadyExists, NotFound, RefMoved
from vstate.integrations import framework_of
from vstate.integrations.branches import branch_of
from vstate.integrations.opening import AsyncOpened, KeepLike, Opening, StoreLike, summary
from vstate.objects.commit import Commit
from vstate.patterns.paths import join_path, split_path
from vstate.repo.writing import BranchChanges
from vstate.state.snapshot import Snapshot

with framework_of("google-adk"):
    from google.adk.errors import StaleSessionError
    from google.adk.errors.already_exists_error import AlreadyExistsError
    from google.adk.errors.session_not_found_error import SessionNotFoundError
    from google.adk.events import Event
    from google.adk.platform import time as clock
    from google.adk.sessions import BaseSessionService, Session, State
    from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse
    from pydantic_core import PydanticSerializationError, to_jsonable_python

_log = logging.getLogger("vstate")

_USERS: Final = ("adk", "users")
_APPS: Final = ("adk", "apps")
_ABOUT: Final = "session"
_EVENTS: Final = "events"
_STATE: Final = "state"
_UPDATED: Final = "updated"  # in the info of a commit: the time of ADK, in seconds


class _Events:
    """The index of a session's journal: its events, and where each id is."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.places: dict[str, int] = {}

    def add(self, record: dict[str, Any]) -> None:
        self.places[record["id"]] = len(self.records)
        self.records.append(record)


class VstateSessionService(AsyncOpened, BaseSessionService):
    """ADK's session service on a store: `Runner(session_service=VstateSessionService("./sessions"), ...)`.

    - A session is the branch `adk/sessions/APP/USER/SESSION`, with its events and its state, and each event
      is one commit. The states of users and apps are branches too. An event that changes them lands in one
      transaction with them. On a store without transactions, such as S3, they are written first. A call that
      is interrupted there, or overtaken by another writer at that moment, may leave them changed without the
      event or the session.
    - An event is appended once: the same event, appended again after a lost answer, is not doubled.
    - A session object that another writer overtook raises StaleSessionError: get the session again.
    - State and events are stored as JSON, as in ADK's own services, and reading them loads no class. Bytes
      are base64, as in events. An object without such a form becomes its text, with a warning in the log.
    - `delete_session` leaves nothing in the store. With `keep_history`, the reflog keeps it for 30 days.
    """

    def __init__(self, store: StoreLike = None, *, keep_history: bool = False, keep: KeepLike = None) -> None:
        self._opening = Opening(store, "google_adk", keep=keep, prefix=("adk", "sessions"))
        self._keep_history = keep_history
        self._journals = self._opening.chats(_Events, _EVENTS)

    # The calls of ADK

    @awaited
    def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """A new session; AlreadyExistsError if the id is taken. Without an id it gets a random one."""
        session_id = (session_id or "").strip() or str(uuid4())
        now = clock.get_time()
        own, others = _split(app_name, user_id, state or {})
        about = {"app_name": app_name, "user_id": user_id, "id": session_id, "created": now}
        branch = self._opening.branch(app_name, user_id, session_id)
        created = BranchChanges(
            branch,
            set={_ABOUT: about, **own, **self._opening.marks},
            expect=None,
            labels={"app": app_name, "user": user_id, **(branch.labels or {})},
            message="session created",
            info={_UPDATED: now},
            room=True,
        )
        try:
            if others and not self.repo.store.transactional:
                if self.repo.newest(branch) is not None:
                    raise _taken(session_id)
                for each in others:
                    self.repo.commit_many([each])
                others = []
            head, *_ = self.repo.commit_many([created, *others])
        except RefMoved:
            raise _taken(session_id) from None
        assert head is not None  # it has a key
        state = {**_state_of(Snapshot(self.repo, head)), **self._shared(app_name, user_id)}
        return _session(app_name, user_id, session_id, head, state, [])

    @awaited
    def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """The session with its events, or those that `config` chooses; None if there is no such session."""
        return self._get(app_name, user_id, session_id.strip(), config)

    @awaited
    def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """The sessions of a user, or of all users, without their events; the last updated one is last."""
        users = () if user_id is None else (user_id,)
        found = dict(self._opening.read_all(_with_state, app_name, *users))
        shared = {user: self._shared(app_name, user) for user in {user for _, user, _ in found}}
        sessions = [
            _session(app_name, user, id, head, {**own, **deepcopy(shared[user])}, [])
            for (_, user, id), (head, own) in found.items()
        ]
        sessions.sort(key=lambda each: (each.last_update_time, each.user_id, each.id))
        return ListSessionsResponse(sessions=sessions)

    @awaited
    def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete the session, if it exists. The states of its user and app stay."""
        branch = self._opening.branch(app_name, user_id, session_id.strip())
        self._journals.delete(branch, keep_history=self._keep_history)

    @awaited
    def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """The state of the user, without the prefix of its keys."""
        return self._state_at(branch_of(*_USERS, app_name, user_id))

    async def append_event(self, session: Session, event: Event) -> Event:
        """Append the event, and apply its change of state, as one commit.

        Raises SessionNotFoundError, and StaleSessionError if another writer has appended to the session
        since this object was read. The object is unchanged then.
        """
        if event.partial:
            return event

        async def append() -> Event:
            await in_thread(lambda: self._append(session, event))
            session.last_update_time = event.timestamp
            if any(known.id == event.id for known in session.events):
                return event  # appended again, after a lost answer
            return await super(VstateSessionService, self).append_event(session=session, event=event)

        # Shielded as a whole: an event that is stored is in the object too.
        return await shielded(append())

    # Beyond ADK

    @awaited
    def fork_session(
        self, *, app_name: str, user_id: str, session_id: str, new_session_id: str | None = None
    ) -> Session:
        """A copy of the session that goes its own way: one more ref, however many events there are.

        Raises SessionNotFoundError, and AlreadyExistsError if the new id is taken.
        """
        new = (new_session_id or "").strip() or str(uuid4())
        source, copy = (self._opening.branch(app_name, user_id, id) for id in (session_id.strip(), new))
        try:
            self._opening.copy(source, copy)
        except NotFound:
            raise SessionNotFoundError(f"Session {session_id} not found.") from None
        except AlreadyExists:
            raise _taken(new) from None
        found = self._get(app_name, user_id, new, None)
        if found is None:
            raise SessionNotFoundError(f"Session {new} was deleted.")
        return found

    # Reading

    def _get(self, app: str, user: str, session_id: str, config: GetSessionConfig | None) -> Session | None:
        branch = self._opening.branch(app, user, session_id)
        journal = self._journals[branch]
        while True:
            with journal.lock:
                records, head = journal.refresh().records, journal.head
                if head is None:
                    return None
                if config is not None and config.after_timestamp is not None:
                    records = [record for record in records if record["timestamp"] >= config.after_timestamp]
                if config is not None and config.num_recent_events is not None:
                    records = records[max(len(records) - config.num_recent_events, 0) :]
                events = [Event.model_validate(record) for record in records]
            own = self._opening.read(branch, _with_state, at=head, follows=False)
            if own is not None and own[0] == head:
                state = {**own[1], **self._shared(app, user)}
                return _session(app, user, session_id, head, state, events)

    def _shared(self, app: str, user: str) -> dict[str, Any]:
        """The states of the app and of the user, with the prefixes of their keys."""
        apps, users = (self._state_at(branch_of(*parts)) for parts in ((*_APPS, app), (*_USERS, app, user)))
        return {
            **{State.APP_PREFIX + key: value for key, value in apps.items()},
            **{State.USER_PREFIX + key: value for key, value in users.items()},
        }

    def _state_at(self, branch: str) -> dict[str, Any]:
        return self._opening.read(branch, _state_of, follows=False) or {}

    # Writing

    def _append(self, session: Session, event: Event) -> None:
        branch = self._opening.branch(session.app_name, session.user_id, session.id)
        delta = dict(event.actions.state_delta or {}) if event.actions else {}
        delta = {key: value for key, value in delta.items() if not key.startswith(State.TEMP_PREFIX)}
        own, others = _split(session.app_name, session.user_id, delta)
        record = _record(event, delta)
        journal = self._journals[branch]

        def plan(events: _Events) -> list[dict[str, Any]]:
            head = journal.head
            if head is None:
                raise SessionNotFoundError(f"Session {session.id} not found.")
            place = events.places.get(event.id)
            if place is not None and events.records[place] == record:
                return []
            if _is_stale(session, head):
                raise StaleSessionError(
                    f"Another writer has appended to session {session.id} since it was read: get it again."
                )
            return [record]

        with journal.lock:
            if journal.head is None or _is_stale(session, journal.head):
                journal.refresh()  # another process may have been here
            commit = journal.append(
                plan, message=_summary(event), beside=own, others=others, info={_UPDATED: event.timestamp}
            )
            head = commit or journal.head
            assert head is not None  # `plan` raises for a session that does not exist
            session._storage_update_marker = head.id


def _updated(head: Commit) -> float:
    """When the session was updated: by ADK's clock, or when another program moved the branch."""
    updated = head.info.get(_UPDATED)
    return updated if isinstance(updated, float | int) else head.time.timestamp()


def _is_stale(session: Session, head: Commit) -> bool:
    """Whether the object lacks something that the branch has. One that this service did not make has a time
    only.
    """
    marker = session._storage_update_marker
    return bool(_updated(head) > session.last_update_time if marker is None else marker != head.id)


def _with_state(stored: Snapshot) -> tuple[Commit, dict[str, Any]]:
    return stored.commit, _state_of(stored)


def _state_of(stored: Snapshot) -> dict[str, Any]:
    return {split_path(key)[1]: value for key, value in stored.items(f"{_STATE}/")}


def _session(
    app: str, user: str, session_id: str, head: Commit, state: dict[str, Any], events: list[Event]
) -> Session:
    session = Session(
        id=session_id, app_name=app, user_id=user, state=state, events=events, last_update_time=_updated(head)
    )
    session._storage_update_marker = head.id
    return session


def _split(app: str, user: str, state: Mapping[str, Any]) -> tuple[dict[str, Any], list[BranchChanges]]:
    """The keys of the session that a change of state sets, and the changes of the user's and app's states."""
    keys: dict[str, dict[str, Any]] = {"": {}, State.APP_PREFIX: {}, State.USER_PREFIX: {}}
    for key, value in _as_json(dict(state)).items():
        if not key.startswith(State.TEMP_PREFIX):
            prefix = next(
                (each for each in (State.APP_PREFIX, State.USER_PREFIX) if key.startswith(each)), ""
            )
            keys[prefix][join_path(_STATE, key.removeprefix(prefix))] = value
    branches = {State.APP_PREFIX: (*_APPS, app), State.USER_PREFIX: (*_USERS, app, user)}
    others = [
        BranchChanges(branch_of(*parts), set=keys[prefix], message=summary(f"state of {' '.join(parts[1:])}"))
        for prefix, parts in branches.items()
        if keys[prefix]
    ]
    return keys[""], others


def _as_json(state: dict[str, Any]) -> dict[str, Any]:
    """The state as JSON; as in ADK's own services, the text of a value that has no such form."""
    try:
        made = to_jsonable_python(state, bytes_mode="base64")
    except PydanticSerializationError as error:
        _log.warning("a value of a session's state is no JSON, and its text is stored: %s", error)
        made = to_jsonable_python(state, bytes_mode="base64", serialize_unknown=True)
    return dict(made)


def _record(event: Event, delta: dict[str, Any]) -> dict[str, Any]:
    """The event as plain data, with the change of state that is stored."""
    actions = event.actions.model_copy(update={"state_delta": {}})
    record = dict(event.model_copy(update={"actions": actions}).model_dump(mode="json", exclude_none=True))
    # By itself: None in a change removes a key, when a session is rewound.
    record["actions"]["state_delta"] = _as_json(delta)
    return record


def _summary(event: Event) -> str:
    """The message of the commit: who says what, or calls which functions."""
    said = []
    for part in (event.content.parts if event.content else None) or []:
        if part.text:
            said.append(part.text.strip().partition("\n")[0])
        elif part.function_call:
            said.append(f"{part.function_call.name}()")
    return summary(f"{event.author}: {' '.join(said)}" if said else f"{event.author}: event")


def _taken(session_id: str) -> AlreadyExistsError:
    return AlreadyExistsError(f"Session with id {session_id} already exists.")
