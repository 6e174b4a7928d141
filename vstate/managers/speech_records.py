"""What a SpeechStateManager keeps: sessions, and what is being heard, said and talked about in each."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum, auto
from typing import Any

from pydantic import Field

from vstate.managers.record import Record


class AudioSessionStatus(StrEnum):
    """What a session is at. COMPLETED is final."""

    IDLE = auto()
    ACTIVE = auto()
    LISTENING = auto()
    PROCESSING = auto()
    SPEAKING = auto()
    PAUSED = auto()
    COMPLETED = auto()
    ERROR = auto()


class StreamingMode(StrEnum):
    """How audio comes and goes."""

    NONE = auto()
    REALTIME = auto()
    CHUNKED = auto()
    CONTINUOUS = auto()
    BIDIRECTIONAL = auto()


class TranscriptionStatus(StrEnum):
    """How far a transcription is."""

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
    """Speech to text: what has been heard in a session."""

    session_id: str
    status: TranscriptionStatus = TranscriptionStatus.PENDING
    audio_received_bytes: int = 0
    transcription_progress: float = 0.0
    interim_transcript: str = ""


class TTSState(Record):
    """Text to speech: what is being said in a session."""

    session_id: str
    text_queue: list[str] = Field(default_factory=list)
    audio_generated_bytes: int = 0
    audio_played_bytes: int = 0
    is_speaking: bool = False


class VoiceConversationState(Record):
    """The turns of a session, with the state of both directions at the last one."""

    session_id: str
    turn_count: int = 0
    current_speaker: str | None = None
    stt_state: STTState | None = None
    tts_state: TTSState | None = None
    transcript: list[dict[str, Any]] = Field(default_factory=list)
