"""All calls of managers: copies of arguments and results, and the errors of a store."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable
from copy import deepcopy
from enum import Enum
from typing import Any

import pytest
from agent_stores import AgentStore
from loops import in_a_loop
from pydantic import PrivateAttr

from vstate import CorruptObject, InvalidInput, Memory, StoreUnavailable, Unpicklable
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
from vstate.managers.record import Record
from vstate.patterns.copies import deep_copy
from vstate.testing import Faulty

Call = Callable[[Any, dict[str, Any]], Awaitable[object]]
"""A call of a manager with a dict, on its own or in a record; by `(manager, value)`."""

CALLS: list[tuple[type[Manager], Call, Callable[[Any], Awaitable[Any]]]] = [
    (StateManager, lambda m, d: m.save("k", d), lambda m: m.get("k")),
    (StateManager, lambda m, d: m.update("k", d), lambda m: m.get("k")),
    (
        AgentStateStore,
        lambda m, d: m.save_snapshot(AgentSnapshot(agent_id="a", memory_state=d)),
        lambda m: m.load_snapshot("a"),
    ),
    (
        AgentStateStore,
        lambda m, d: m.save_checkpoint(AgentCheckpoint(agent_id="a", checkpoint_id="c", state=d)),
        lambda m: m.latest_checkpoint("a"),
    ),
    (
        WorkflowStateManager,
        lambda m, d: m.create(WorkflowState(workflow_id="new", context=d)),
        lambda m: m.get("new"),
    ),
    (
        WorkflowStateManager,
        lambda m, d: m.update_step("w", StepState(step_number=1, result=d)),
        lambda m: m.get_step("w", 1),
    ),
    (WorkflowStateManager, lambda m, d: m.update_context("w", d), lambda m: m.get("w")),
    (
        WorkflowStateManager,
        lambda m, d: m.checkpoint(WorkflowCheckpoint(workflow_id="w", checkpoint_id="c", context=d)),
        lambda m: m.list_checkpoints("w"),
    ),
    (
        OrchestrationStateManager,
        lambda m, d: m.create_team(TeamState(team_id="new", **d)),
        lambda m: m.get_team("new"),
    ),
    (
        OrchestrationStateManager,
        lambda m, d: m.add_agent("t", AgentCoordinationState(agent_id="b", **d)),
        lambda m: m.get_team("t"),
    ),
    (OrchestrationStateManager, lambda m, d: m.enqueue_task("t", d), lambda m: m.get_queue_status("t")),
    (OrchestrationStateManager, lambda m, d: m.complete_task("t", "1", d), lambda m: m.get_queue_status("t")),
    (
        KnowledgeStateManager,
        lambda m, d: m.update_indexing_progress(IndexingProgress(knowledge_base_id="k", **d)),
        lambda m: m.get_indexing_progress("k"),
    ),
    (
        KnowledgeStateManager,
        lambda m, d: m.update_source_state(SourceState(knowledge_base_id="k", source_id="s", **d)),
        lambda m: m.get_sources("k"),
    ),
    (
        ToolStateManager,
        lambda m, d: m.start_execution(ToolExecution(execution_id="new", tool_name="t", parameters=d)),
        lambda m: m.get_execution("new"),
    ),
    (ToolStateManager, lambda m, d: m.complete_execution("e", d), lambda m: m.get_execution("e")),
    (
        ToolStateManager,
        lambda m, d: m.cache_result(ToolCacheEntry(tool_name="t", parameters_hash="h", result=d)),
        lambda m: m.get_cached_result("t", parameters_hash="h"),
    ),
    (
        ToolStateManager,
        lambda m, d: m.update_retry_state(RetryState(execution_id="r", **d)),
        lambda m: m.get_pending_retries(),
    ),
    (SpeechStateManager, lambda m, d: m.create_session(config=d), lambda m: m.list_active()),
    (
        SpeechStateManager,
        lambda m, d: m.update_stt_state(STTState(session_id="s", **d)),
        lambda m: m.get_stt_state("s"),
    ),
    (
        SpeechStateManager,
        lambda m, d: m.update_tts_state(TTSState(session_id="s", **d)),
        lambda m: m.get_tts_state("s"),
    ),
    (
        SpeechStateManager,
        lambda m, d: m.update_conversation_state(VoiceConversationState(session_id="s", **d)),
        lambda m: m.get_conversation_state("s"),
    ),
]


async def prepare(manager: Manager) -> None:
    """Create the objects that some of the calls need."""
    if isinstance(manager, WorkflowStateManager):
        await manager.create(WorkflowState(workflow_id="w"))
    if isinstance(manager, ToolStateManager):
        await manager.start_execution(ToolExecution(execution_id="e", tool_name="t"))
    if isinstance(manager, OrchestrationStateManager):
        await manager.create_team(TeamState(team_id="t"))
        await manager.add_agent("t", AgentCoordinationState(agent_id="a"))
        await manager.enqueue_task("t", {"id": "1"})
        await manager.assign_task("t", "1", "a")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "call", "look"), CALLS)
@in_a_loop
async def test_arguments_are_copied_at_the_call(
    kind: type[Manager], call: Call, look: Callable[[Any], Awaitable[Any]], local_store: AgentStore
) -> None:
    """Though the call first has to wait for another one."""
    async with kind(local_store()) as manager:
        await prepare(manager)
        begun, ends = threading.Event(), threading.Event()
        before = asyncio.create_task(manager.read(lambda part: (begun.set(), ends.wait(60))))
        await asyncio.to_thread(begun.wait, 60)
        inner = ["given"]
        given = {"own": {"inner": inner}}
        under_way = asyncio.create_task(call(manager, given))  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        inner[:] = ["edited"]
        assert not under_way.done()
        ends.set()
        await asyncio.gather(before, under_way)
        found = str(await look(manager))
        assert "given" in found
        assert "edited" not in found


@pytest.mark.parametrize(("kind", "call", "look"), CALLS)
@in_a_loop
async def test_a_value_that_cannot_be_copied_is_named(
    kind: type[Manager], call: Call, look: Callable[[Any], Awaitable[Any]], local_store: AgentStore
) -> None:
    """A manager stages nothing: a value is stored, or the error says that nothing is."""
    async with kind(local_store()) as manager:
        await prepare(manager)
        head = manager.state.head
        with pytest.raises(Unpicklable, match=r"lock.*\. Nothing was stored: replace these values"):
            await call(manager, {"own": threading.Lock()})
        await manager.read(lambda part: None)
        assert manager.state.head == head


@pytest.mark.parametrize(("kind", "call", "look"), CALLS)
@in_a_loop
async def test_a_result_is_a_copy_and_the_errors_of_a_store_come_out(
    kind: type[Manager], call: Call, look: Callable[[Any], Awaitable[Any]]
) -> None:
    """A program may edit a result. With a store that is down or damaged, nothing reads as absent."""
    memory = Memory()
    store = Faulty(memory)
    async with kind(store) as manager:
        await prepare(manager)
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: call(manager, {"own": {"inner": ["given"]}}),
            lambda: look(manager),
        ]
        for each in calls:
            store.fail_at = len(store.calls) + 1
            with pytest.raises(StoreUnavailable):
                await each()
        await calls[0]()
        found = await look(manager)
        before = deepcopy(found)
        assert _changed(found) > 0
        assert await look(manager) == before
    for key in list(memory.keys("o/")):
        memory.set(key, b"\0damage")
    with pytest.raises(CorruptObject):
        async with kind(memory) as manager:
            await look(manager)


@in_a_loop
async def test_a_wrong_id_or_status_raises() -> None:
    async with OrchestrationStateManager() as teams, WorkflowStateManager() as workflows:
        await teams.create_team(TeamState(team_id="t"))
        with pytest.raises(InvalidInput, match="a task's id is a text, not 5"):
            await teams.enqueue_task("t", {"id": 5})
        with pytest.raises(InvalidInput, match="'nope' is no WorkflowStatus; these are: pending, running"):
            await workflows.list_workflows("nope")


class Words(list[Any]):
    pass


class Table(dict[str, Any]):
    pass


class Mode(Enum):
    FAST = "fast"


class Note(Record):
    a: Any = None
    b: Any = None
    _seen: list[Any] = PrivateAttr(default_factory=list)


MUTABLE: list[Any] = [[1], {"k": 1}, [[1]], {"k": [1]}, {(1, Mode.FAST): 1}, ([1],), {1}, bytearray(b"1")]
MUTABLE += [Words([1]), Table(k=1), [Words()], {"k": Table()}, [Note(a=[1])], Note(a=[1], more=[1])]


@pytest.mark.parametrize("value", MUTABLE, ids=str)
def test_a_copy_of_a_record_shares_nothing(value: Any) -> None:
    """At any depth: later changes of the original are not in the copy."""
    owned = Note(a=value, more=deepcopy(value))
    owned._seen.append(deepcopy(value))
    before = deepcopy(owned)
    taken = deep_copy(owned)
    changed = 0
    for part in (owned.a, owned.more, owned._seen):
        changed += _changed(part)
    owned._seen.append(2)
    assert changed >= 4
    assert taken == before
    assert taken._seen == before._seen
    assert type(taken.a) is type(value)


def _changed(value: Any) -> int:
    """Change all mutable parts of a value, and count them."""
    match value:
        case Record():
            return sum(map(_changed, vars(value).values())) + _changed(value.model_extra)
        case dict():
            inner = sum(map(_changed, value.values()))
            value["new"] = 1
        case list():
            inner = sum(map(_changed, value))
            value.append("new")
        case tuple():
            return sum(map(_changed, value))
        case set():
            value.add("new")
            return 1
        case bytearray():
            value.append(0)
            return 1
        case _:
            return 0
    return inner + 1


def test_shared_parts_of_a_record_are_shared_in_its_copy() -> None:
    """One list in two fields, or the record itself, is one object in the copy too."""
    flat: list[Any] = [1]
    record = Note(a=flat, b=[flat], more=flat)
    record._seen = flat
    taken = deep_copy(record)
    assert taken.a is taken.b[0] is taken.more is taken._seen is not flat
    nested = [flat]
    taken = deep_copy(Note(a=nested, b=flat))
    assert taken.a[0] is taken.b
    record.a = record
    record.b = [record]
    taken = deep_copy(record)
    assert taken.a is taken.b[0] is taken is not record


class Counted(Note):
    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Counted:
        copy = super().__deepcopy__(memo)
        copy.b = "by its own rule"
        return copy


def test_a_record_with_its_own_rule_of_how_it_is_copied() -> None:
    """The copy follows that rule."""
    assert deep_copy(Counted(a=[1])).b == "by its own rule"


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}])
def test_a_part_added_during_the_copy_is_not_shared(value: Any) -> None:
    """At any line of the copying, in another thread."""
    inner: list[Any] = []

    def put(at: int) -> Any:
        own, lines = value.copy(), 0

        def trace(frame: Any, event: str, _: object) -> Any:
            nonlocal lines
            if frame.f_code is not deep_copy.__code__:
                return None
            if event == "line":
                lines += 1
                if lines == at:
                    own.append(inner) if isinstance(own, list) else own.update(new=inner)
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            copy = deep_copy(own)
            return lines, copy
        finally:
            sys.settrace(before)

    at = most = 1
    while at <= most:
        most, copy = put(at)
        assert all(item is not inner for item in (copy if isinstance(copy, list) else copy.values()))
        at += 1
    assert most >= 4
