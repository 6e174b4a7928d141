"""All calls of managers: copies of arguments and results, and the errors of a store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from copy import deepcopy
from typing import Any, NamedTuple

import pytest
from edited import changed
from loops import in_a_loop

from vstate import CorruptObject, Memory, StoreUnavailable, Unpicklable
from vstate.managers import (
    AgentCheckpoint,
    AgentCoordinationState,
    AgentSnapshot,
    AgentStateStore,
    IndexingProgress,
    KnowledgeStateManager,
    Manager,
    OrchestrationStateManager,
    RetryState,
    SourceState,
    SpeechStateManager,
    StateManager,
    StepState,
    STTState,
    TeamState,
    ToolCacheEntry,
    ToolExecution,
    ToolStateManager,
    TTSState,
    VoiceConversationState,
    WorkflowCheckpoint,
    WorkflowState,
    WorkflowStateManager,
)
from vstate.testing import Faulty


class Call(NamedTuple):
    """A call of a manager with a dict, on its own or in a field of a record; and the call that reads it."""

    kind: type[Manager]
    words: str
    record: Any
    field: str
    look: str

    async def make(self, manager: Manager, value: dict[str, Any]) -> Any:
        """Make the call with this value."""
        if self.record is None:
            return await called(manager, self.words, value)
        needed = {name: id for name, id in IDS.items() if name in self.record.model_fields}
        return await called(manager, self.words, self.record(**needed, **{self.field: value}))

    async def prepare(self, manager: Manager) -> None:
        """Create the objects that the call needs."""
        if self.kind is WorkflowStateManager and self.words != "create":
            await called(manager, "create", WorkflowState(workflow_id="w"))
        if isinstance(manager, ToolStateManager):
            await manager.start_execution(ToolExecution(execution_id="e", tool_name="t"))
        if isinstance(manager, OrchestrationStateManager):
            await manager.create_team(TeamState(team_id="t"))
            await manager.add_agent("t", AgentCoordinationState(agent_id="busy"))
            await manager.enqueue_task("t", {"id": "1"})
            await manager.assign_task("t", "1", "busy")


async def called(manager: Manager, words: str, *more: Any) -> Any:
    """The result of the call that the words name, with their arguments and more."""
    name, *given = words.split()
    options = dict(word.split("=") for word in given if "=" in word)
    return await getattr(manager, name)(*(word for word in given if "=" not in word), *more, **options)


IDS: dict[str, Any] = {
    "agent_id": "a",
    "checkpoint_id": "c",
    "workflow_id": "w",
    "step_number": 1,
    "team_id": "new",
    "knowledge_base_id": "k",
    "source_id": "s",
    "execution_id": "new",
    "tool_name": "t",
    "parameters_hash": "h",
    "session_id": "s",
}
"""The fields that a record needs."""

ROWS: list[tuple[Any, ...]] = [
    (AgentStateStore, "save_snapshot", AgentSnapshot, "memory_state", "load_snapshot a"),
    (AgentStateStore, "save_checkpoint", AgentCheckpoint, "state", "latest_checkpoint a"),
    (WorkflowStateManager, "create", WorkflowState, "context", "get w"),
    (WorkflowStateManager, "update_step w", StepState, "result", "list_steps w"),
    (WorkflowStateManager, "checkpoint", WorkflowCheckpoint, "context", "list_checkpoints w"),
    (OrchestrationStateManager, "create_team", TeamState, "more", "get_team new"),
    (OrchestrationStateManager, "add_agent t", AgentCoordinationState, "more", "get_team t"),
    (KnowledgeStateManager, "update_indexing_progress", IndexingProgress, "more", "get_indexing_progress k"),
    (KnowledgeStateManager, "update_source_state", SourceState, "more", "get_sources k"),
    (ToolStateManager, "start_execution", ToolExecution, "parameters", "get_execution new"),
    (ToolStateManager, "cache_result", ToolCacheEntry, "result", "get_cached_result t parameters_hash=h"),
    (ToolStateManager, "update_retry_state", RetryState, "more", "get_pending_retries"),
    (SpeechStateManager, "update_stt_state", STTState, "more", "get_stt_state s"),
    (SpeechStateManager, "update_tts_state", TTSState, "more", "get_tts_state s"),
    (
        SpeechStateManager,
        "update_conversation_state",
        VoiceConversationState,
        "x",
        "get_conversation_state s",
    ),
    (StateManager, "save k", None, "", "get k"),
    (StateManager, "update k", None, "", "get k"),
    (WorkflowStateManager, "update_context w", None, "", "get w"),
    (OrchestrationStateManager, "enqueue_task t", None, "", "get_queue_status t"),
    (OrchestrationStateManager, "complete_task t 1", None, "", "get_queue_status t"),
    (ToolStateManager, "complete_execution e", None, "", "get_execution e"),
    (SpeechStateManager, "create_session voice_conversation none", None, "", "list_active"),
]
CALLS = [Call(*row) for row in ROWS]

each_call = pytest.mark.parametrize("call", CALLS, ids=lambda call: call.words)


@pytest.mark.slow
@each_call
@in_a_loop
async def test_arguments_are_copied_at_the_call(call: Call) -> None:
    """Though the call first has to wait for another one."""
    async with call.kind() as manager:
        await call.prepare(manager)
        begun, ends = threading.Event(), threading.Event()
        before = asyncio.create_task(manager.read(lambda part: (begun.set(), ends.wait(60))))
        await asyncio.to_thread(begun.wait, 60)
        inner = ["given"]
        given = {"own": {"inner": inner}}
        under_way = asyncio.create_task(call.make(manager, given))
        await asyncio.sleep(0.01)
        inner[:] = ["edited"]
        assert not under_way.done()
        ends.set()
        await asyncio.gather(before, under_way)
        found = str(await called(manager, call.look))
        assert "given" in found
        assert "edited" not in found


@each_call
@in_a_loop
async def test_a_value_that_cannot_be_copied_is_named(call: Call) -> None:
    """A manager stages nothing: a value is stored, or the error says that nothing is."""
    async with call.kind() as manager:
        await call.prepare(manager)
        head = manager.state.head
        with pytest.raises(Unpicklable, match=r"lock.*\. Nothing was stored: replace these values"):
            await call.make(manager, {"own": threading.Lock()})
        await manager.read(lambda part: None)
        assert manager.state.head == head


@each_call
@in_a_loop
async def test_a_result_is_a_copy_and_the_errors_of_a_store_come_out(call: Call) -> None:
    """A program may edit a result. With a store that is down or damaged, nothing reads as absent."""
    memory = Memory()
    store = Faulty(memory)
    async with call.kind(store) as manager:
        await call.prepare(manager)
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: call.make(manager, {"own": {"inner": ["given"]}}),
            lambda: called(manager, call.look),
        ]
        for each in calls:
            store.fail_at = len(store.calls) + 1
            with pytest.raises(StoreUnavailable):
                await each()
        await calls[0]()
        found = await called(manager, call.look)
        before = deepcopy(found)
        assert changed(found) > 0
        assert await called(manager, call.look) == before
    for key in list(memory.keys("o/")):
        memory.set(key, b"\0damage")
    with pytest.raises(CorruptObject):
        async with call.kind(memory) as manager:
            await called(manager, call.look)


@pytest.mark.parametrize("call", [call for call in CALLS if call.record], ids=lambda call: call.words)
@in_a_loop
async def test_another_object_than_a_record_is_refused_by_name(call: Call) -> None:
    """And for a dict, which many programs have, the way to make a record of it."""
    record, other = call.record.__name__, IndexingProgress if call.record is SourceState else SourceState
    async with call.kind() as manager:
        for given, kind in (
            ({"agent_id": "a"}, rf"dict: make a record by {record}\(\*\*value\)"),
            (None, "NoneType"),
            (other(knowledge_base_id="k", source_id="s"), other.__name__),
        ):
            with pytest.raises(TypeError, match=f"expected a {record}, not a {kind}$"):
                await called(manager, call.words, given)
        assert manager.state.head is None
