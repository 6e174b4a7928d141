"""SpeechStateManager: sessions of speech, and what is heard, said and talked about in each."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar
from uuid import uuid4

from vstate.errors import IllegalTransition
from vstate.managers.manager import Manager
from vstate.managers.record import Record, member, seconds, taken_dict
from vstate.managers.speech_records import (
    AudioSession,
    AudioSessionStatus,
    StreamingMode,
    STTState,
    TTSState,
    VoiceConversationState,
)
from vstate.patterns.paths import join_path, split_path
from vstate.patterns.records import Records
from vstate.state.namespace import Namespace

R = TypeVar("R", bound=Record)

_KINDS: Mapping[type[Record], str] = {
    STTState: "stt",
    TTSState: "tts",
    VoiceConversationState: "conversations",
}
_INACTIVE = (AudioSessionStatus.COMPLETED, AudioSessionStatus.ERROR)


class SpeechStateManager(Manager):
    """Sessions of speech: `SpeechStateManager(persistence)`.

    A session begins with `create_session`, or with the first state that is written for it, and ends with
    `end_session`, or the status COMPLETED. Whatever would change it after that raises IllegalTransition; what it was
    can be read for ever. States are written whole: the last one counts.
    """

    part = "speech"

    # Sessions

    async def create_session(
        self,
        session_type: str = "voice_conversation",
        streaming_mode: StreamingMode | str = StreamingMode.NONE,
        config: Mapping[str, Any] | None = None,
    ) -> str:
        """Begin a session that is IDLE, and give back its id, which nobody else has. Raises InvalidInput."""
        session = AudioSession(
            session_id=f"speech-{uuid4().hex}",
            session_type=session_type,
            streaming_mode=member(StreamingMode, streaming_mode),
            config=taken_dict({} if config is None else config, "config"),
        )
        await self.change(lambda speech: _write(speech, session), f"session {session.session_id}: begun")
        return session.session_id

    async def get_session(self, session_id: str) -> AudioSession | None:
        """A session, ended or not; None if there is none of that id."""
        return await self.read(lambda speech: _sessions(speech).get(session_id))

    async def list_active(self) -> list[AudioSession]:
        """The sessions that have not ended and are not in ERROR, whatever has been heard or said: oldest first."""

        def look(speech: Namespace) -> list[AudioSession]:
            found = [_sessions(speech)[id] for _, id in map(split_path, speech.keys("active/"))]
            return sorted(found, key=lambda session: seconds(session.created_at))

        return await self.read(look)

    async def update_session_status(self, session_id: str, status: AudioSessionStatus | str) -> AudioSession:
        """Set the status of a session. Raises KeyNotFound, InvalidInput, and IllegalTransition if it has ended."""
        new = member(AudioSessionStatus, status)
        if new is AudioSessionStatus.COMPLETED:
            return await self.end_session(session_id)

        def update(speech: Namespace) -> AudioSession:
            return _write(speech, _going_on(speech, session_id, new).model_copy(update={"status": new}))

        return await self.change(update, f"session {session_id}: {new}")

    async def end_session(self, session_id: str, reason: str | None = None) -> AudioSession:
        """End a session. Raises KeyNotFound, and IllegalTransition if it has ended before."""

        def end(speech: Namespace) -> AudioSession:
            session = _going_on(speech, session_id, "end")
            final = {"status": AudioSessionStatus.COMPLETED, "ended_at": datetime.now(), "end_reason": reason}
            return _write(speech, session.model_copy(update=final))

        return await self.change(end, f"session {session_id}: ended" + (f": {reason}" if reason else ""))

    # What happens in a session

    async def update_stt_state(self, state: STTState) -> None:
        """Write what has been heard. Raises IllegalTransition if the session has ended."""
        state = STTState.of(state)
        await self._update(state, f"session {state.session_id}: hearing, {state.status}")

    async def get_stt_state(self, session_id: str) -> STTState | None:
        """What has been heard in a session; None if nothing was written."""
        return await self._get(STTState, session_id)

    async def update_tts_state(self, state: TTSState) -> None:
        """Write what is being said. Raises IllegalTransition if the session has ended."""
        state = TTSState.of(state)
        await self._update(
            state, f"session {state.session_id}: {'speaking' if state.is_speaking else 'silent'}"
        )

    async def get_tts_state(self, session_id: str) -> TTSState | None:
        """What is being said in a session; None if nothing was written."""
        return await self._get(TTSState, session_id)

    async def update_conversation_state(self, state: VoiceConversationState) -> None:
        """Write the turns of a session. Raises IllegalTransition if the session has ended."""
        state = VoiceConversationState.of(state)
        await self._update(state, f"session {state.session_id}: turn {state.turn_count}")

    async def get_conversation_state(self, session_id: str) -> VoiceConversationState | None:
        """The turns of a session; None if nothing was written."""
        return await self._get(VoiceConversationState, session_id)

    async def _update(self, state: STTState | TTSState | VoiceConversationState, message: str) -> None:
        def update(speech: Namespace) -> None:
            if state.session_id not in _sessions(speech):
                _write(speech, AudioSession(session_id=state.session_id))
            _going_on(speech, state.session_id, "update")
            _states(speech, type(state)).put(state)

        await self.change(update, message)

    async def _get(self, kind: type[R], session_id: str) -> R | None:
        return await self.read(lambda speech: _states(speech, kind).get(session_id))


def _sessions(speech: Namespace) -> Records[AudioSession]:
    return Records(speech.namespace("sessions"), AudioSession, key="session_id")


def _states(speech: Namespace, kind: type[R]) -> Records[R]:
    return Records(speech.namespace(_KINDS[kind]), kind, key="session_id")


def _write(speech: Namespace, session: AudioSession) -> AudioSession:
    """Write a session, and whether it is active: listing those does not read all that ever were."""
    active, key = speech.namespace("active"), join_path(session.session_id)
    if session.status not in _INACTIVE:
        active[key] = None
    else:
        active.pop(key, None)
    return _sessions(speech).put(session)


def _going_on(speech: Namespace, session_id: str, event: str) -> AudioSession:
    session = _sessions(speech)[session_id]
    if session.status is AudioSessionStatus.COMPLETED:
        raise IllegalTransition(session.status, event)
    return session
