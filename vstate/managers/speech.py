"""SpeechStateManager: sessions of speech, and the state of listening, speaking and conversation in each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum, auto
from typing import Any, TypeVar
from uuid import uuid4

from pydantic import Field

from vstate.errors import IllegalTransition
from vstate.managers.manager import Manager
from vstate.managers.record import Record, dict_copy, index_time, kept, make_record, member, record_copy
from vstate.patterns.records import Records
from vstate.state.namespace import Namespace

__all__ = [
    "AudioSession",
    "AudioSessionStatus",
    "STTState",
    "SpeechStateManager",
    "StreamingMode",
    "TTSState",
    "TranscriptionStatus",
    "VoiceConversationState",
]


class AudioSessionStatus(StrEnum):
    """The status of a session. COMPLETED is final."""

    IDLE = auto()
    ACTIVE = auto()
    LISTENING = auto()
    PROCESSING = auto()
    SPEAKING = auto()
    PAUSED = auto()
    COMPLETED = auto()
    ERROR = auto()


class StreamingMode(StrEnum):
    """How audio is transferred."""

    NONE = auto()
    REALTIME = auto()
    CHUNKED = auto()
    CONTINUOUS = auto()
    BIDIRECTIONAL = auto()


class TranscriptionStatus(StrEnum):
    """The status of a transcription."""

    PENDING = auto()
    TRANSCRIBING = auto()
    IN_PROGRESS = auto()
    PARTIAL = auto()
    COMPLETED = auto()
    FAILED = auto()


class AudioSession(Record):
    """A session of speech, from `create_session` to `end_session`."""

    session_id: str
    session_type: str = "voice_conversation"
    streaming_mode: StreamingMode = StreamingMode.NONE
    status: AudioSessionStatus = AudioSessionStatus.IDLE
    config: dict[str, Any] = Field(default_factory=dict)
    created_at: datetime = Field(default_factory=datetime.now)
    ended_at: datetime | None = None
    end_reason: str | None = None


class STTState(Record):
    """Speech to text: the audio received in a session, and its transcript so far."""

    session_id: str
    status: TranscriptionStatus = TranscriptionStatus.PENDING
    audio_received_bytes: int = 0
    transcription_progress: float = 0.0
    interim_transcript: str = ""


class TTSState(Record):
    """Text to speech: the text to speak in a session, and the audio so far."""

    session_id: str
    text_queue: list[str] = Field(default_factory=list)
    audio_generated_bytes: int = 0
    audio_played_bytes: int = 0
    is_speaking: bool = False


class VoiceConversationState(Record):
    """The conversation of a session, with the state of both directions at its last turn."""

    session_id: str
    turn_count: int = 0
    current_speaker: str | None = None
    stt_state: STTState | None = None
    tts_state: TTSState | None = None
    transcript: list[dict[str, Any]] = Field(default_factory=list)


R = TypeVar("R", bound=Record)

_INACTIVE = (AudioSessionStatus.COMPLETED, AudioSessionStatus.ERROR)


class SpeechStateManager(Manager):
    """Sessions of speech: `SpeechStateManager(persistence)`.

    A session begins with `create_session`, or with the first state that is written for it. It ends with
    `end_session`, or with the status COMPLETED. Later changes of it raise IllegalTransition; reads still
    work. A write replaces the whole state.
    """

    part = "speech"

    # Sessions

    async def create_session(
        self,
        session_type: str = "voice_conversation",
        streaming_mode: StreamingMode | str = StreamingMode.NONE,
        config: Mapping[str, Any] | None = None,
    ) -> str:
        """Begin a session with the status IDLE, and return its new id. Raises InvalidInput."""
        session = make_record(
            AudioSession,
            session_id=f"speech-{uuid4().hex}",
            session_type=session_type,
            streaming_mode=member(StreamingMode, streaming_mode),
            config=dict_copy({} if config is None else config, "config"),
        )
        await self.change(lambda part: _sessions(part).put(session), f"session {session.session_id}: begun")
        return session.session_id

    async def get_session(self, session_id: str) -> AudioSession | None:
        """The session with this id, ended or not; or None."""
        return await self.read(lambda part: _sessions(part).get(session_id))

    async def list_active(self) -> list[AudioSession]:
        """The sessions that have not ended and are not in ERROR, oldest first."""
        return await self.read(lambda part: list(_sessions(part).indexed("active")))

    async def update_session_status(self, session_id: str, status: AudioSessionStatus | str) -> AudioSession:
        """Set the status of a session. Raises KeyNotFound, InvalidInput, IllegalTransition if it ended."""
        new = member(AudioSessionStatus, status)
        if new is AudioSessionStatus.COMPLETED:
            return await self.end_session(session_id)
        return await self._move(session_id, str(new), str(new), status=new)

    async def end_session(self, session_id: str, reason: str | None = None) -> AudioSession:
        """End a session. Raises KeyNotFound, and IllegalTransition if it has ended."""
        final = {"status": AudioSessionStatus.COMPLETED, "ended_at": datetime.now(), "end_reason": reason}
        return await self._move(session_id, "end", f"ended: {reason}" if reason else "ended", **final)

    async def _move(self, session_id: str, event: str, done: str, **fields: Any) -> AudioSession:
        def move(part: Namespace) -> AudioSession:
            session = _require_not_ended(part, session_id, event)
            return _sessions(part).put(session.model_copy(update=fields))

        return await self.change(move, f"session {session_id}: {done}")

    # States in a session

    async def update_stt_state(self, state: STTState) -> None:
        """Write the state of listening. Raises IllegalTransition if the session has ended."""
        state = record_copy(STTState, state)
        await self._update(_stt, state.session_id, state, f"hearing, {state.status}")

    async def get_stt_state(self, session_id: str) -> STTState | None:
        """The state of listening in a session, or None."""
        return await self.read(lambda part: _stt(part).get(session_id))

    async def update_tts_state(self, state: TTSState) -> None:
        """Write the state of speaking. Raises IllegalTransition if the session has ended."""
        state = record_copy(TTSState, state)
        await self._update(_tts, state.session_id, state, "speaking" if state.is_speaking else "silent")

    async def get_tts_state(self, session_id: str) -> TTSState | None:
        """The state of speaking in a session, or None."""
        return await self.read(lambda part: _tts(part).get(session_id))

    async def update_conversation_state(self, state: VoiceConversationState) -> None:
        """Write the conversation of a session. Raises IllegalTransition if the session has ended."""
        state = record_copy(VoiceConversationState, state)
        await self._update(_conversations, state.session_id, state, f"turn {state.turn_count}")

    async def get_conversation_state(self, session_id: str) -> VoiceConversationState | None:
        """The conversation of a session, or None."""
        return await self.read(lambda part: _conversations(part).get(session_id))

    async def _update(
        self, states: Callable[..., Records[R]], session_id: str, state: R, message: str
    ) -> None:
        def update(part: Namespace) -> None:
            if session_id in _sessions(part):
                _require_not_ended(part, session_id, "update")
            else:  # the session begins now
                _sessions(part).put(AudioSession(session_id=session_id))
            states(part).put(state)

        await self.change(update, f"session {session_id}: {message}")


def _active_since(session: AudioSession) -> int | None:
    """The place of a session in the index of active ones."""
    return None if session.status in _INACTIVE else index_time(session.created_at)


_sessions = kept("sessions", AudioSession, key="session_id", index={"active": _active_since})
_stt = kept("stt", STTState, key="session_id")
_tts = kept("tts", TTSState, key="session_id")
_conversations = kept("conversations", VoiceConversationState, key="session_id")


def _require_not_ended(part: Namespace, session_id: str, event: str) -> AudioSession:
    """The session. Raises KeyNotFound for a missing one, and IllegalTransition for one that has ended."""
    session = _sessions(part)[session_id]
    if session.status is AudioSessionStatus.COMPLETED:
        raise IllegalTransition(session.status, event)
    return session
