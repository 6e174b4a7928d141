"""SpeechStateManager: sessions of speech, and what is heard, said and talked about in each."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import uuid4

from vstate.managers.manager import Manager
from vstate.managers.record import member, taken_dict
from vstate.managers.speech_records import (
    AudioSession,
    AudioSessionStatus,
    StreamingMode,
    STTState,
    TTSState,
    VoiceConversationState,
)
from vstate.managers.speech_sessions import R, Sessions, SessionState


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
        session = AudioSession.made(
            session_id=f"speech-{uuid4().hex}",
            session_type=session_type,
            streaming_mode=member(StreamingMode, streaming_mode),
            config=taken_dict({} if config is None else config, "config"),
        )
        await self.change(lambda part: Sessions(part).begin(session), f"session {session.session_id}: begun")
        return session.session_id

    async def get_session(self, session_id: str) -> AudioSession | None:
        """A session, ended or not; None if there is none of that id."""
        return await self.read(lambda part: Sessions(part).get(session_id))

    async def list_active(self) -> list[AudioSession]:
        """The sessions that have not ended and are not in ERROR, whatever has been heard or said: oldest first."""

        return await self.read(lambda part: Sessions(part).active())

    async def update_session_status(self, session_id: str, status: AudioSessionStatus | str) -> AudioSession:
        """Set the status of a session. Raises KeyNotFound, InvalidInput, and IllegalTransition if it has ended."""
        new = member(AudioSessionStatus, status)
        if new is AudioSessionStatus.COMPLETED:
            return await self.end_session(session_id)
        return await self._move(session_id, str(new), str(new), status=new)

    async def end_session(self, session_id: str, reason: str | None = None) -> AudioSession:
        """End a session. Raises KeyNotFound, and IllegalTransition if it has ended before."""
        final = {"status": AudioSessionStatus.COMPLETED, "ended_at": datetime.now(), "end_reason": reason}
        return await self._move(session_id, "end", "ended" + (f": {reason}" if reason else ""), **final)

    async def _move(self, session_id: str, event: str, done: str, **fields: Any) -> AudioSession:
        return await self.change(
            lambda part: Sessions(part).move(session_id, event, **fields), f"session {session_id}: {done}"
        )

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

    async def _update(self, state: SessionState, message: str) -> None:
        await self.change(lambda part: Sessions(part).update(state), message)

    async def _get(self, kind: type[R], session_id: str) -> R | None:
        return await self.read(lambda part: Sessions(part).states(kind).get(session_id))
