"""Steps of the Pydantic AI harness on vstate: the answers of its SQLite store, deletions, races and kills."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from running import Fork
from stored import stored_bytes

from vstate import Disk, Memory, NotFound
from vstate.kv.base import OBJECT_PREFIX
from vstate.repo import Repository

pytest.importorskip("pydantic_ai_harness.step_persistence", reason="pydantic-ai-harness is not installed")

from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai_harness.step_persistence import (
    ContinuableSnapshot,
    RunRecord,
    SqliteStepStore,
    StepEvent,
    ToolEffectRecord,
)

from vstate.integrations.pydantic_ai_harness import VstateStepStore

START = datetime(2026, 1, 2, 3, 4, 5, 678, UTC)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def said(*texts: Any) -> list[Any]:
    return [ModelRequest(parts=[UserPromptPart(text, timestamp=START)], timestamp=START) for text in texts]


def snapshot(*texts: Any, **more: Any) -> ContinuableSnapshot:
    fields = {"run_id": "r", "step_index": len(texts), "timestamp": START, **more}
    return ContinuableSnapshot(messages=said(*texts), **fields)


def effect(status: Any, call: str = "c", **more: Any) -> ToolEffectRecord:
    fields = {"run_id": "r", "tool_name": "pay", "started_at": START, **more}
    return ToolEffectRecord(tool_call_id=call, status=status, **fields)


# The same answers as the SQLite store of the harness

RUNS = st.sampled_from(["r", "s"])
MAYBE = st.sampled_from([None, "a", "b"])
WHEN = st.integers(0, 5).map(lambda n: START + timedelta(seconds=n))
MESSAGES = st.lists(
    st.sampled_from(
        [
            *said("x", "y"),
            *(
                ModelResponse(parts=[ToolCallPart("t", {"n": n}, "i")], timestamp=START)
                for n in (1, True, 1.0)
            ),
            ModelResponse(parts=[TextPart("z")], timestamp=START),
        ]
    ),
    max_size=4,
)
CALLS = st.one_of(
    st.builds(
        RunRecord,
        run_id=RUNS,
        conversation_id=MAYBE,
        parent_run_id=MAYBE,
        agent_name=MAYBE,
        metadata=st.dictionaries(st.sampled_from("kl"), st.text(max_size=2)),
        started_at=st.integers(0, 10**9).map(lambda n: START + timedelta(microseconds=n)),
    ),
    st.builds(
        StepEvent,
        run_id=RUNS,
        kind=st.sampled_from(["run_started", "tool_call_failed"]),
        step_index=st.integers(0, 3),
        timestamp=WHEN,
        error=MAYBE,
        metadata=st.dictionaries(st.sampled_from("kl"), st.text(max_size=2)),
        idempotency_key=MAYBE,
    ),
    st.builds(
        ContinuableSnapshot,
        run_id=RUNS,
        step_index=st.integers(0, 3),
        messages=MESSAGES,
        timestamp=WHEN,
        state=st.sampled_from(["complete", "interrupted"]),
        idempotency_key=st.sampled_from([None, "1:1:complete", "0:1:complete", "2:2:interrupted"]),
    ),
    st.builds(
        ToolEffectRecord,
        tool_call_id=st.sampled_from("cd"),
        tool_name=st.sampled_from("tu"),
        run_id=RUNS,
        status=st.sampled_from(["started", "completed", "failed"]),
        started_at=WHEN,
        ended_at=st.none() | WHEN,
        idempotency_key=MAYBE,
        effect_summary=MAYBE,
    ),
)
WRITES: dict[type, str] = {
    RunRecord: "register_run",
    StepEvent: "append_event",
    ContinuableSnapshot: "save_snapshot",
    ToolEffectRecord: "record_tool_effect",
}


async def write(store: Any, record: Any) -> bool:
    """Whether the store has taken the record."""
    try:
        await getattr(store, WRITES[type(record)])(record)
    except Exception:
        return False
    return True


async def answers(store: Any) -> list[Any]:
    """The results of all calls of the harness that read."""
    found: list[Any] = []
    for run_id in ("r", "s", "none"):
        found += [await store.get_run(run_id=run_id), await store.list_events(run_id=run_id)]
        for open_too in (False, True):
            options = {"run_id": run_id, "include_interrupted": open_too}
            found += [await store.latest_snapshot(**options), await store.list_snapshots(**options)]
        found += [await store.get_tool_effect(run_id=run_id, tool_call_id=call) for call in "cde"]
        unresolved = await store.list_unresolved_tool_effects(run_id=run_id)
        found.append(sorted(unresolved, key=lambda each: each.tool_call_id))
    for parent in (None, "a", "no"):
        for conversation in (None, "b", "no"):
            found.append(await store.list_runs(parent_run_id=parent, conversation_id=conversation))
    return found


@given(st.lists(CALLS, max_size=15), st.sampled_from([None, 1, 2, 3]))
@settings(deadline=None, max_examples=30)  # each is a file of SQLite
def test_the_answers_are_those_of_the_sqlite_store(records: list[Any], most: int | None) -> None:
    """Both stores answer alike after any calls: the handle that wrote, and one that is opened later."""

    async def both() -> None:
        backend = Memory()
        ours = VstateStepStore(backend, max_snapshots_per_run=most)
        theirs = SqliteStepStore(database=Path(directory) / "s.db", max_snapshots_per_run=most)
        for record in records:
            assert await write(ours, record) == await write(theirs, record)
        expected = await answers(theirs)
        for store in (ours, VstateStepStore(backend)):
            found = await answers(store)
            assert found == expected
            assert repr(found).replace("TzInfo(0)", "UTC") == repr(expected).replace(
                "TzInfo(0)", "UTC"
            ).replace("datetime.timezone.utc", "UTC")

    with TemporaryDirectory() as directory:
        run(both())


# Beyond the SQLite store: bounds, copies, deletions, races


def test_a_registration_that_is_sent_again() -> None:
    """The same registration changes nothing; another one, also of another handle, is refused."""
    backend = Memory()
    first, second = VstateStepStore(backend), VstateStepStore(backend)
    record = RunRecord(run_id="r", registration_id="one", started_at=START)
    for store in (first, second):
        run(store.register_run(record))
        for other in (replace(record, registration_id="two"), replace(record, registration_id=None)):
            with pytest.raises(ValueError, match="registered already"):
                run(store.register_run(other))
    assert len([*first.repo.log("pydantic_ai_harness/r")]) == 1


@pytest.mark.parametrize("most", [0, -1, 1.5, True, "2"])
def test_a_bound_of_no_snapshots_is_refused(most: Any) -> None:
    """The error names the setting."""
    with pytest.raises(ValueError, match="max_snapshots_per_run"):
        VstateStepStore(max_snapshots_per_run=most)


def test_a_record_that_cannot_be_stored() -> None:
    """The call raises, and the run goes on without the record."""
    store = VstateStepStore()
    with pytest.raises(ValueError, match="object"):
        run(store.save_snapshot(replace(snapshot(), messages=said(object()))))
    assert run(store.list_snapshots(run_id="r")) == []


def test_messages_are_stored_once(tmp_path: Path) -> None:
    """60 snapshots of a history that grows take the room of the history, and some more for each."""
    with Disk(tmp_path / "s", durability="process") as backend:
        store, texts = VstateStepStore(backend), []
        for number in range(60):
            texts.append(f"{number} {Path(__file__).read_text()[number * 20 : number * 20 + 400]}")
            run(store.save_snapshot(snapshot(*texts)))
        assert len(run(store.list_snapshots(run_id="r"))) == 60
    assert stored_bytes(tmp_path / "s") < 400_000  # the messages of each snapshot take 1.2 MB


def test_what_the_caller_does_with_messages() -> None:
    """A change of a given or returned message changes no stored snapshot."""
    store, given_ = VstateStepStore(), snapshot("x")
    arguments = {"deep": {"n": 1}}
    given_.messages.append(ModelResponse(parts=[ToolCallPart("t", arguments, "i")], timestamp=START))
    run(store.save_snapshot(given_))
    arguments["deep"]["n"] = 2
    found = run(store.latest_snapshot(run_id="r"))
    assert found.messages[1].parts[0].args == {"deep": {"n": 1}}
    found.messages[1].parts[0].args["deep"]["n"] = 3
    assert run(store.latest_snapshot(run_id="r")).messages[1].parts[0].args == {"deep": {"n": 1}}


def test_a_run_in_the_log(example: Any, commands: Any) -> None:
    """The log of the page has a commit for each step, and names its event, message or tool."""
    store = example("Pydantic AI harness")["store"]
    log, messages = commands("Pydantic AI harness")
    assert "tool add started" in log
    assert "3 messages · add(a=0, b=0)" in log
    assert "What is 2 + 2?" in messages
    (record,) = run(store.list_runs(conversation_id="ann"))
    assert run(store.list_unresolved_tool_effects(run_id=record.run_id)) == []


def test_a_copy_of_a_run() -> None:
    """A branch of a run is a run, and its records have the new id. A run without a record is in no list."""
    store = VstateStepStore()
    run(store.register_run(RunRecord(run_id="r", conversation_id="talk", started_at=START)))
    run(store.append_event(StepEvent(run_id="r", kind="run_started", step_index=0)))
    run(store.append_event(StepEvent(run_id="unregistered", kind="run_started", step_index=0)))
    store.repo.create_branch(
        "pydantic_ai_harness/copy", "pydantic_ai_harness/r", like="pydantic_ai_harness/r"
    )
    assert [each.run_id for each in run(store.list_runs(conversation_id="talk"))] == ["copy", "r"]
    assert [each.run_id for each in run(store.list_events(run_id="copy"))] == ["copy"]
    assert [each.run_id for each in run(store.list_runs())] == ["copy", "r"]


def test_a_run_that_was_deleted() -> None:
    """A run that began before the deletion writes nothing. No object of the deleted run is left."""
    backend = Memory()
    store, other = VstateStepStore(backend), VstateStepStore(backend)
    run(store.register_run(RunRecord(run_id="r")))
    run(store.save_snapshot(snapshot("the secret")))
    assert run(other.delete_run("r"))
    assert not run(other.delete_run("r"))
    for late in (StepEvent(run_id="r", kind="run_failed", step_index=1), snapshot("late"), effect("started")):
        with pytest.raises(NotFound):
            run(getattr(store, WRITES[type(late)])(late))
    assert not list(store.repo.view.keys(OBJECT_PREFIX))
    assert run(store.get_run(run_id="r")) is None
    run(store.register_run(RunRecord(run_id="r")))  # it has read that the run is gone


def test_tools_that_run_beside_one_another(tmp_path: Path) -> None:
    """Effects and events of many tasks and of two handles are all there, and each call ends once."""

    async def calls(store: VstateStepStore, name: str) -> None:
        async def tool(call: str) -> None:
            await store.record_tool_effect(effect("started", call))
            await store.append_event(
                StepEvent(run_id="r", kind="tool_call_completed", step_index=1, error=call)
            )
            await store.record_tool_effect(effect("completed", call))

        await asyncio.gather(*(tool(f"{name}{n}") for n in range(20)))

    async def both() -> None:
        await asyncio.gather(*(calls(VstateStepStore(tmp_path), name) for name in "ab"))

    run(both())
    store = VstateStepStore(tmp_path)
    names = {f"{name}{n}" for name in "ab" for n in range(20)}
    assert {each.error for each in run(store.list_events(run_id="r"))} == names
    assert run(store.list_unresolved_tool_effects(run_id="r")) == []
    assert all(
        run(store.get_tool_effect(run_id="r", tool_call_id=name)).status == "completed" for name in names
    )


@pytest.mark.slow
def test_a_tool_that_was_killed_is_unresolved(tmp_path: Path) -> None:
    """The effect of a tool is durable as "started" before the tool runs; those that ended are resolved."""

    def work() -> None:
        async def tools() -> None:
            store = VstateStepStore(tmp_path)
            for number in count():
                await store.record_tool_effect(effect("started", str(number)))
                print(number, flush=True)  # the tool runs
                await store.record_tool_effect(effect("completed", str(number)))

        asyncio.run(tools())

    with Fork(work) as process:
        printed = process.killed_after(5)
    store = VstateStepStore(tmp_path)
    ran = [run(store.get_tool_effect(run_id="r", tool_call_id=line.strip())) for line in printed]
    assert [each.status for each in ran[:-1]] == ["completed"] * (len(ran) - 1)
    assert ran[-1].status in ("started", "completed")
    assert len(run(store.list_unresolved_tool_effects(run_id="r"))) <= 1
    assert Repository(Disk(tmp_path)).fsck().ok
