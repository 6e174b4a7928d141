"""Sessions: those of speech, with what is heard, said and talked about in each, as they are changed inside of an update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from vstate.errors import IllegalTransition
from vstate.managers.record import Record, moment
from vstate.managers.speech_records import (
    AudioSession,
    AudioSessionStatus,
    STTState,
    TTSState,
    VoiceConversationState,
)
from vstate.patterns.records import Records
from vstate.state.namespace import Namespace

R = TypeVar("R", bound=Record)

SessionState = STTState | TTSState | VoiceConversationState

_KINDS: Mapping[type[Record], str] = {
    STTState: "stt",
    TTSState: "tts",
    VoiceConversationState: "conversations",
}
_INACTIVE = (AudioSessionStatus.COMPLETED, AudioSessionStatus.ERROR)


class Sessions:
    """All sessions, whose records are in this part of a state. Whatever changes one that is no more raises KeyNotFound,
    and IllegalTransition if it has ended.
    """

    def __init__(self, part: Namespace) -> None:
        self._part = part
        self._sessions = Records(
            part.namespace("sessions"),
            AudioSession,
            key="session_id",
            index={"active": lambda of: None if of.status in _INACTIVE else moment(of.created_at)},
        )

    def get(self, session_id: str) -> AudioSession | None:
        """A session, ended or not; None if there is none of that id."""
        return self._sessions.get(session_id)

    def active(self) -> list[AudioSession]:
        """Those that have not ended and are not in ERROR, oldest first."""
        return list(self._sessions.indexed("active"))

    def begin(self, session: AudioSession) -> AudioSession:
        """Keep a new session."""
        return self._sessions.put(session)

    def move(self, session_id: str, event: str, **fields: Any) -> AudioSession:
        """Set these fields of a session that goes on."""
        return self._sessions.put(self._going_on(session_id, event).model_copy(update=fields))

    def states(self, kind: type[R]) -> Records[R]:
        """What is heard, or said, or talked about, by session."""
        return Records(self._part.namespace(_KINDS[kind]), kind, key="session_id")

    def update(self, state: SessionState) -> None:
        """Write what is heard, or said, or talked about in a session, which begins now if there is none."""
        if state.session_id in self._sessions:
            self._going_on(state.session_id, "update")
        else:
            self.begin(AudioSession(session_id=state.session_id))
        self.states(type(state)).put(state)

    def _going_on(self, session_id: str, event: str) -> AudioSession:
        session = self._sessions[session_id]
        if session.status is AudioSessionStatus.COMPLETED:
            raise IllegalTransition(session.status, event)
        return session
