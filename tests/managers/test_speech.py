"""SpeechStateManager: sessions of speech, each with one end."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import pytest
from agent_stores import AgentStore
from loops import in_a_loop
from present import present

from vstate import IllegalTransition, InvalidInput, KeyNotFound
from vstate.errors import InvalidRecord
from vstate.managers import (
    AudioSessionStatus,
    SpeechStateManager,
    StreamingMode,
    STTState,
    ToolExecutionStatus,
    TranscriptionStatus,
    TTSState,
    VoiceConversationState,
)


@pytest.fixture
def manager() -> SpeechStateManager:
    return SpeechStateManager()


@in_a_loop
async def test_the_documented_calls(local_store: AgentStore) -> None:
    """The calls in the documentation of agenticaiframework, on every store, and for another manager."""
    first = SpeechStateManager(persistence=local_store())
    async with first as manager, SpeechStateManager(local_store()) as other:
        config = {"stt_model": "whisper-1", "language": "en"}
        session = await manager.create_session(
            session_type="voice_conversation", streaming_mode=StreamingMode.BIDIRECTIONAL, config=config
        )
        await manager.update_session_status(session_id=session, status=AudioSessionStatus.ACTIVE)
        begun = present(await other.get_session(session))
        assert (begun.status, begun.streaming_mode, begun.config) == ("active", "bidirectional", config)
        status = TranscriptionStatus.TRANSCRIBING
        heard = STTState(session_id=session, status=status, audio_received_bytes=1024, interim_transcript="I")
        await manager.update_stt_state(heard)
        assert await other.get_stt_state(session) == heard
        said = TTSState(session_id=session, text_queue=["hi"], audio_generated_bytes=2048, is_speaking=True)
        await manager.update_tts_state(said)
        assert await other.get_tts_state(session) == said
        conversation = VoiceConversationState(
            session_id=session, turn_count=5, current_speaker="user", stt_state=heard, tts_state=said
        )
        await manager.update_conversation_state(conversation)
        assert await other.get_conversation_state(session) == conversation
        await manager.end_session(session_id=session, reason="user_ended")
        ended = present(await other.get_session(session))
        assert (ended.status, ended.end_reason) == (AudioSessionStatus.COMPLETED, "user_ended")
        assert ended.ended_at is not None


@pytest.mark.parametrize("by_status", [False, True])
@in_a_loop
async def test_nothing_happens_after_the_end(manager: SpeechStateManager, by_status: bool) -> None:
    """States, another status and another end raise; reads of the ended session still work."""
    session = await manager.create_session()
    await manager.update_conversation_state(VoiceConversationState(session_id=session, turn_count=1))
    if by_status:
        await manager.update_session_status(session, AudioSessionStatus.COMPLETED)
    else:
        await manager.end_session(session, "bye")
    for late in (
        manager.update_conversation_state(VoiceConversationState(session_id=session, turn_count=2)),
        manager.update_stt_state(STTState(session_id=session)),
        manager.update_tts_state(TTSState(session_id=session)),
        manager.update_session_status(session, "active"),
        manager.end_session(session),
    ):
        with pytest.raises(IllegalTransition, match=r"^in the status 'completed' '.*' is not possible"):
            await late
    assert present(await manager.get_conversation_state(session)).turn_count == 1
    assert await manager.get_stt_state(session) is None
    assert len([commit async for commit in manager.state.log()]) == 3


@in_a_loop
async def test_list_active(manager: SpeechStateManager) -> None:
    """A session is active until its end, even with a PENDING transcription; oldest first."""
    sessions = [await manager.create_session() for _ in range(4)]
    await manager.update_stt_state(STTState(session_id=sessions[0]))
    await manager.update_session_status(sessions[1], AudioSessionStatus.ERROR)
    await manager.update_session_status(sessions[2], AudioSessionStatus.LISTENING)
    await manager.end_session(sessions[3])
    assert present(await manager.get_stt_state(sessions[0])).status is TranscriptionStatus.PENDING
    assert [active.session_id for active in await manager.list_active()] == [sessions[0], sessions[2]]
    await manager.update_session_status(sessions[1], AudioSessionStatus.ACTIVE)
    assert [active.session_id for active in await manager.list_active()] == sessions[:3]


@in_a_loop
async def test_a_state_begins_its_session(manager: SpeechStateManager) -> None:
    """A state with a new id begins the session; any text is an id, and ids never mix."""
    ids = ["call/1", "call", "call:1", "call_1", "../1", "", "ä %2f"]
    for number, id in enumerate(ids):
        await manager.update_stt_state(STTState(session_id=id, audio_received_bytes=number))
    assert [session.session_id for session in await manager.list_active()] == ids
    for number, id in enumerate(ids):
        assert present(await manager.get_stt_state(id)).audio_received_bytes == number
    await manager.end_session("call")
    assert "call/1" in [session.session_id for session in await manager.list_active()]
    with pytest.raises(KeyNotFound, match=r"^no AudioSession"):
        await manager.end_session("nobody's")
    assert await manager.get_session("nobody's") is None


@in_a_loop
async def test_records_keep_unknown_fields(manager: SpeechStateManager) -> None:
    """Extra fields come back; an invalid state raises, and is not written."""
    state: Any = STTState(session_id="s", provider="openai", words=[{"word": "hi"}])
    await manager.update_stt_state(state)
    state.words.append("mine")
    kept: Any = await manager.get_stt_state("s")
    assert (kept.provider, kept.words) == ("openai", [{"word": "hi"}])
    with pytest.raises(InvalidRecord, match="audio_received_bytes"):
        await manager.update_stt_state(STTState.model_construct(session_id="s", audio_received_bytes="many"))
    with pytest.raises(InvalidInput, match="'sleeping' is no AudioSessionStatus; these are: idle, active"):
        await manager.update_session_status("s", "sleeping")
    with pytest.raises(InvalidInput, match="'both' is no StreamingMode"):
        await manager.create_session(streaming_mode="both")


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (AudioSessionStatus, "IDLE ACTIVE LISTENING PROCESSING SPEAKING PAUSED COMPLETED ERROR"),
        (StreamingMode, "NONE REALTIME CHUNKED CONTINUOUS BIDIRECTIONAL"),
        (TranscriptionStatus, "PENDING TRANSCRIBING IN_PROGRESS COMPLETED FAILED PARTIAL"),
        (ToolExecutionStatus, "PENDING RUNNING COMPLETED FAILED TIMEOUT RETRYING CANCELLED"),
    ],
)
def test_members(kind: type[StrEnum], names: str) -> None:
    """The names in the documentation and the package of agenticaiframework."""
    assert {member.name for member in kind} == set(names.split())
    assert all(member.value == member.name.lower() for member in kind)
