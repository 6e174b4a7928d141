"""WorkflowStateManager: statuses, steps, checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from agent_stores import AgentStore
from loops import in_a_loop
from present import present

from vstate import AlreadyExists, IllegalTransition, InvalidInput, KeyNotFound
from vstate.kv import Memory
from vstate.managers import (
    StepState,
    ToolExecutionStatus,
    WorkflowCheckpoint,
    WorkflowState,
    WorkflowStateManager,
    WorkflowStatus,
)
from vstate.testing import Faulty

OPEN = ("pending", "running", "waiting", "paused")

LEGAL = {
    "start": {"pending": "running"},
    "pause": dict.fromkeys(("pending", "running", "waiting"), "paused"),
    "resume": dict.fromkeys(("paused", "waiting"), "running"),
    "retry": {"failed": "running"},
    "complete": dict.fromkeys(("running", "waiting", "paused"), "completed"),
    "fail": dict.fromkeys(OPEN, "failed"),
    "cancel": dict.fromkeys(OPEN, "cancelled"),
    "begin": dict.fromkeys(("pending", "running", "waiting"), "running"),
    "end": {**dict.fromkeys(("pending", "running", "waiting"), "running"), "paused": "paused"},
    "break": dict.fromkeys(OPEN, "failed"),
    "go back": dict.fromkeys((*OPEN, "failed"), "running"),
}


@pytest.fixture
def manager() -> WorkflowStateManager:
    return WorkflowStateManager()


def step(number: int, status: str = "completed", **fields: Any) -> StepState:
    return StepState(step_number=number, status=status, **fields)


async def run(manager: WorkflowStateManager, *numbers: int, id: str = "w") -> WorkflowState:
    """Complete these steps."""
    for number in numbers:
        workflow = await manager.update_step(id, step(number))
    return workflow


async def checkpoints(manager: WorkflowStateManager, id: str = "w") -> list[str]:
    return [made.checkpoint_id for made in await manager.list_checkpoints(id)]


@in_a_loop
async def test_the_documented_calls(local_store: AgentStore) -> None:
    """The calls in the documentation of agenticaiframework, on every store, and for a second manager."""
    async with WorkflowStateManager(local_store(), checkpoint_interval=5) as manager:
        workflow = WorkflowState(
            workflow_id="w", status=WorkflowStatus.PENDING, total_steps=10, current_step=0, context={}
        )
        await manager.create(workflow)
        await manager.update_step(
            workflow_id="w",
            step=StepState(
                step_number=1, name="fetch", status="completed", result={"n": 1}, duration_ms=5400
            ),
        )
        async with WorkflowStateManager(local_store()) as other:
            found = present(await other.get("w"))
            assert (found.current_step, found.total_steps, found.progress) == (1, 10, 10.0)
            assert await other.get_status("w") is WorkflowStatus.RUNNING
        await manager.checkpoint(
            WorkflowCheckpoint(
                workflow_id="w",
                checkpoint_id="cp",
                step=1,
                state=found,
                context={"k": "v"},
                timestamp=datetime.now(),
            )
        )
        [made] = await manager.list_checkpoints("w")
        assert (made.checkpoint_id, made.state, made.context) == ("cp", found, {"k": "v"})
        await run(manager, 2, 3)
        resumed = await manager.resume_from(workflow_id="w", checkpoint_id="cp")
        assert (resumed.current_step, resumed.context) == (1, {"k": "v"})
        await manager.pause("w")
        assert await manager.get_status("w") is WorkflowStatus.PAUSED
        await manager.resume("w")
        cancelled = await manager.cancel(workflow_id="w", reason="no longer needed")
        assert (cancelled.status, cancelled.reason) == (WorkflowStatus.CANCELLED, "no longer needed")


# Statuses


@pytest.mark.parametrize("event", LEGAL)
@pytest.mark.parametrize("status", WorkflowStatus)
@in_a_loop
async def test_moves(manager: WorkflowStateManager, status: WorkflowStatus, event: str) -> None:
    """Each status allows its moves; others raise IllegalTransition, and change nothing."""
    await manager.create(WorkflowState(workflow_id="w", status=status, total_steps=10, error="before"))
    await manager.checkpoint(WorkflowCheckpoint(workflow_id="w", checkpoint_id="cp"))
    calls: dict[str, Callable[[], Any]] = {
        "begin": lambda: manager.update_step("w", step(1, "running")),
        "end": lambda: manager.update_step("w", step(1)),
        "break": lambda: manager.update_step("w", step(1, "failed")),
        "go back": lambda: manager.resume_from("w"),
    }
    call = calls.get(event) or (lambda: getattr(manager, event)("w"))
    head = manager.state.head
    if status in LEGAL[event]:
        assert (await call()).status == LEGAL[event][status]
    else:
        with pytest.raises(IllegalTransition) as raised:
            await call()
        assert raised.value.status == status
        assert (await manager.get_status("w"), manager.state.head) == (status, head)


@in_a_loop
async def test_the_last_step_completes_and_a_failed_one_fails(manager: WorkflowStateManager) -> None:
    """Pending until the first step, then running; its end follows from the steps."""
    for id in ("good", "bad", "open"):
        await manager.create(WorkflowState(workflow_id=id, total_steps=0 if id == "open" else 2))
    statuses = [(await run(manager, n, id="good")).status for n in (1, 2)]
    assert statuses == ["running", "completed"]
    failed = await manager.update_step("bad", step(1, "failed", name="load", error="no such file"))
    assert (failed.status, failed.error, failed.current_step) == ("failed", "no such file", 0)
    assert (await run(manager, 1, 2, 3, id="open")).status == "running"
    assert (await manager.complete("open")).status == "completed"
    silent = await manager.create(WorkflowState(workflow_id="silent"))
    assert (silent.error, silent.progress) == (None, 0.0)
    assert (
        await manager.update_step("silent", step(3, "failed", name="load"))
    ).error == "step 3 'load' failed"


@in_a_loop
async def test_a_failed_step_is_done_again(manager: WorkflowStateManager) -> None:
    """`retry` runs the workflow again; only the failed step is left to do."""
    await manager.create(WorkflowState(workflow_id="w", total_steps=4))
    await run(manager, 1, 2)
    await manager.update_step("w", step(3, "failed"))
    again = await manager.retry("w")
    assert (again.status, again.error, again.current_step) == ("running", None, 2)
    assert (await run(manager, 4)).current_step == 2
    assert (await run(manager, 3)).status == "completed"


@in_a_loop
async def test_a_paused_workflow(manager: WorkflowStateManager) -> None:
    """A step under way may end, also the last one, and no step begins."""
    await manager.create(WorkflowState(workflow_id="w", total_steps=2))
    await manager.update_step("w", step(1, "running"))
    await manager.pause("w")
    with pytest.raises(IllegalTransition, match="begin a step"):
        await manager.update_step("w", step(2, "running"))
    assert (await run(manager, 1)).status == "paused"
    assert (await run(manager, 2)).status == "completed"


# Steps


@in_a_loop
async def test_current_step_follows(manager: WorkflowStateManager) -> None:
    """To the last done step, but never past one begun and not done; steps may be skipped or unknown."""
    await manager.create(WorkflowState(workflow_id="w", total_steps=9))

    async def reached(number: int, status: str = "completed") -> int:
        return (await manager.update_step("w", step(number, status))).current_step

    assert await reached(1, "running") == 0
    assert await reached(1, ToolExecutionStatus.COMPLETED) == 1
    assert await reached(2, "skipped") == 2
    assert await reached(3, "running") == 2
    assert await reached(4, "running") == 2
    assert await reached(5) == 2
    assert await reached(3) == 3
    assert await reached(4) == 5
    assert await reached(7) == 7
    assert await reached(5, "running") == 4
    assert await reached(5) == 5
    assert await reached(9) == 9
    assert await manager.get_status("w") == "running", "6 and 8 are still to come"
    assert (await reached(6), await reached(8)) == (9, 9)
    assert await manager.get_status("w") == "completed"


@in_a_loop
async def test_a_workflow_that_began_elsewhere(manager: WorkflowStateManager) -> None:
    """One that starts at a later step, or resumes there, completes with the rest."""
    for id, at in (("w", 3), ("v", 0)):
        await manager.create(WorkflowState(workflow_id=id, total_steps=5, current_step=at))
    await manager.update_step("v", step(2))
    await manager.checkpoint(WorkflowCheckpoint(workflow_id="v", checkpoint_id="c", step=3))
    await manager.resume_from("v", "c")
    for id in ("w", "v"):
        assert [(await run(manager, n, id=id)).status for n in (4, 5)] == ["running", "completed"]


@in_a_loop
async def test_a_step_that_has_not_begun_is_not_forgotten() -> None:
    """Steps done ahead of others do not complete the workflow, nor does a checkpoint made of them."""
    async with WorkflowStateManager(checkpoint_interval=4) as manager:
        await manager.create(WorkflowState(workflow_id="w", total_steps=4))
        assert (await run(manager, 1, 2, 4)).status == "running"
        assert await checkpoints(manager) == ["step-4"]
        assert (await manager.resume_from("w")).status == "running"
        assert (await run(manager, 4)).status == "running"
        assert (await run(manager, 3)).status == "completed"


@in_a_loop
async def test_steps_are_kept(manager: WorkflowStateManager) -> None:
    """Each by its number, in order of number, as it was written; numbers begin at 1."""
    await manager.create(WorkflowState(workflow_id="w"))
    for number in (10, 9, 2):
        await manager.update_step("w", step(number, result={"n": number}, tries=2))
    assert [found.step_number for found in await manager.list_steps("w")] == [2, 9, 10]
    found = present(await manager.get_step("w", 9))
    assert (found.result, found.model_extra) == ({"n": 9}, {"tries": 2})
    assert await manager.get_step("w", 3) is None
    with pytest.raises(ValueError, match="step_number"):
        step(0)


@in_a_loop
async def test_the_context(manager: WorkflowStateManager) -> None:
    """Its keys are merged."""
    await manager.create(WorkflowState(workflow_id="w", context={"a": [1]}))
    assert (await manager.update_context("w", {"b": (2, 3)})).context == {"a": [1], "b": (2, 3)}


@in_a_loop
async def test_workflows_by_status(manager: WorkflowStateManager) -> None:
    """All, or those with one status, in order of id; ids with slashes or equal beginnings never mix."""
    for id in ("b", "a/b", "a", ""):
        await manager.create(WorkflowState(workflow_id=id, total_steps=5))
    with pytest.raises(AlreadyExists):
        await manager.create(WorkflowState(workflow_id="a"))
    await run(manager, 1, id="a/b")
    await run(manager, 1, id="a")
    assert [w.workflow_id for w in await manager.list_workflows()] == ["", "a", "a/b", "b"]
    assert [w.workflow_id for w in await manager.list_workflows(WorkflowStatus.RUNNING)] == ["a", "a/b"]
    assert [w.workflow_id for w in await manager.list_workflows("pending")] == ["", "b"]
    assert await manager.list_workflows("failed") == []
    with pytest.raises(ValueError, match="done"):
        await manager.list_workflows("done")


@in_a_loop
async def test_an_unknown_workflow(manager: WorkflowStateManager) -> None:
    """None for an unknown workflow, or KeyNotFound."""
    assert await manager.get("w") is None
    for call in (
        manager.get_status("w"),
        manager.update_step("w", step(1)),
        manager.get_step("w", 1),
        manager.list_steps("w"),
        manager.update_context("w", {}),
        manager.pause("w"),
        manager.checkpoint(WorkflowCheckpoint(workflow_id="w", checkpoint_id="c")),
        manager.list_checkpoints("w"),
        manager.resume_from("w", "c"),
    ):
        with pytest.raises(KeyNotFound, match=r"^no (workflow|WorkflowState) 'w'$"):
            await call
    await manager.create(WorkflowState(workflow_id="w"))
    with pytest.raises(KeyNotFound, match=r"^no checkpoint to resume from in workflow 'w'$"):
        await manager.resume_from("w", "latest")
    with pytest.raises(KeyNotFound, match=r"^no WorkflowCheckpoint 'c'$") as caught:
        await manager.resume_from("w", "c")
    assert caught.value.key == "c"
    assert await manager.state.contains("workflows/steps/w/000000001") is False


# Checkpoints


@in_a_loop
async def test_checkpoints_by_themselves(local_store: AgentStore) -> None:
    """One after every so many steps, in the same commit, complete for a resume."""
    async with WorkflowStateManager(local_store(), checkpoint_interval=5) as manager:
        await manager.create(WorkflowState(workflow_id="w", total_steps=12, context={"goal": "win"}))
        await run(manager, *range(1, 5))
        assert await checkpoints(manager) == []
        await manager.update_step("w", step(5, "running"))
        assert await checkpoints(manager) == []
        head = manager.state.head
        await run(manager, 5)
        [made] = await manager.list_checkpoints("w")
        assert (made.checkpoint_id, made.step, made.context) == ("step-5", 5, {"goal": "win"})
        assert isinstance(made.state, WorkflowState)
        assert (made.state.current_step, made.state.status) == (5, "running")
        assert present(manager.state.head).parents == (present(head).id,)
        await run(manager, *range(6, 13))
        assert await checkpoints(manager) == ["step-5", "step-10"]


@in_a_loop
async def test_the_order_of_checkpoints(local_store: AgentStore) -> None:
    """By step, then by time, with or without a zone; never by text, where step 8 comes after step 12."""
    async with WorkflowStateManager(local_store(), checkpoint_interval=None) as manager:
        await manager.create(WorkflowState(workflow_id="w", total_steps=13))
        now = datetime.now()
        for id, number, at in (
            ("b8", 8, now.astimezone(UTC) + timedelta(seconds=2)),
            ("c8", 8, now),
            ("c12", 12, now),
            ("c9", 9, now + timedelta(days=1)),
            ("d12", 12, now - timedelta(hours=1)),
        ):
            await manager.checkpoint(
                WorkflowCheckpoint(workflow_id="w", checkpoint_id=id, step=number, timestamp=at)
            )
        assert await checkpoints(manager) == ["c8", "b8", "c9", "d12", "c12"]
        assert [made.timestamp for made in await manager.list_checkpoints("w")][:1] == [now]
        assert (await manager.resume_from("w")).current_step == 12


@in_a_loop
async def test_resuming_from_a_checkpoint(local_store: AgentStore) -> None:
    """State, context and step are those of the checkpoint; the later steps have to be done again."""
    async with WorkflowStateManager(local_store(), checkpoint_interval=2) as manager:
        await manager.create(WorkflowState(workflow_id="w", total_steps=6, context={"n": 0}, owner="me"))
        await run(manager, 1)
        await manager.update_context("w", {"n": 1})
        await run(manager, 2)
        await manager.update_context("w", {"n": 2})
        await run(manager, 3, 4)
        await manager.update_step("w", step(5, "failed"))
        resumed = await manager.resume_from("w", "step-2")
        assert (resumed.status, resumed.error, resumed.current_step) == ("running", None, 2)
        assert (resumed.context, resumed.model_extra) == ({"n": 1}, {"owner": "me"})
        assert [found.step_number for found in await manager.list_steps("w")] == [1, 2]
        assert (await run(manager, 3, 4)).current_step == 4
        assert await checkpoints(manager) == ["step-2", "step-4", "step-4-2"]
        assert (await run(manager, 6)).current_step == 6, "step 5 is not begun any more"
        assert (await run(manager, 5)).status == "completed"


@in_a_loop
async def test_a_checkpoint_of_ones_own(manager: WorkflowStateManager) -> None:
    """Any dict is a state; missing parts come from the workflow; the same id again replaces it."""
    await manager.create(WorkflowState(workflow_id="w", context={"goal": "win"}))
    await run(manager, 1)
    mine = {"cursor": (3, 4), "seen": {"a"}}
    await manager.checkpoint(WorkflowCheckpoint(workflow_id="w", checkpoint_id="c", state=mine))
    mine["seen"].clear()
    [made] = await manager.list_checkpoints("w")
    assert (made.step, made.state, made.context) == (
        1,
        {"cursor": (3, 4), "seen": {"a"}},
        {"goal": "win"},
    )
    await run(manager, 2)
    resumed = await manager.resume_from("w", "c")
    assert (resumed.current_step, resumed.context) == (1, {"goal": "win"})
    await manager.checkpoint(WorkflowCheckpoint(workflow_id="w", checkpoint_id="c", step=7))
    assert [made.step for made in await manager.list_checkpoints("w")] == [7]
    commits = await manager.history("checkpoints/w/c")
    assert len(commits) == 2


# Cost, writers beside each other


@pytest.mark.slow
@in_a_loop
async def test_the_cost_of_a_step_does_not_grow_with_their_number() -> None:
    """The same calls of the store, and a few nodes of the tree, not the 2,000 steps before it."""
    calls = []
    for before in (10, 2_000):
        store = Faulty(Memory())
        async with WorkflowStateManager(store, checkpoint_interval=None) as manager:
            await manager.create(WorkflowState(workflow_id="w", total_steps=20_000))

            def fill(part: Any, before: int = before) -> None:
                for n in range(1, before + 1):
                    part[f"steps/w/{n:09}"] = step(n).model_dump()
                part["state/w"]["current_step"] = before

            await manager.change(fill, "many steps")
            size, made = sum(len(value) for _, value in store.store.items()), len(store.calls)
            assert (await run(manager, *range(before + 1, before + 21))).current_step == before + 20
            calls.append(len(store.calls) - made)
            assert (sum(len(value) for _, value in store.store.items()) - size) / 20 < 12_000
            assert len(await manager.list_steps("w")) == before + 20
    assert calls[0] == calls[1]


@in_a_loop
async def test_the_messages_of_commits() -> None:
    """Each commit names the workflow and the change, and the checkpoint that was the last one then."""
    async with WorkflowStateManager(checkpoint_interval=2) as manager:
        await manager.create(WorkflowState(workflow_id="report", total_steps=4))
        await manager.update_step("report", step(1, name="fetch"))
        await manager.pause("report")
        await manager.resume("report")
        await manager.update_step("report", step(2))
        await manager.update_step("report", step(3, "running", name="write"))
        await manager.update_step("report", step(3, "failed", name="write", error="no ink"))
        await manager.resume_from("report")
        messages = [commit.message async for commit in manager.state.log()]
        assert [message.removeprefix("workflow report: ") for message in messages[::-1]] == [
            "created",
            "step 1 'fetch' completed",
            "paused",
            "resumed",
            "step 2 completed",
            "step 3 'write' running",
            "step 3 'write' failed",
            "resumed from checkpoint step-2",
        ]


@in_a_loop
async def test_a_step_that_cannot_be_is_refused(manager: WorkflowStateManager) -> None:
    """A step after the last one, unless their number is unknown: the workflow would never complete."""
    await manager.create(WorkflowState(workflow_id="w", total_steps=2))
    head = manager.state.head
    two = WorkflowState(workflow_id="w", total_steps=2)
    for call in (
        run(manager, 5),
        manager.create(WorkflowState(workflow_id="v", total_steps=2, current_step=9)),
        manager.checkpoint(WorkflowCheckpoint(workflow_id="w", checkpoint_id="c", step=3)),
        manager.checkpoint(WorkflowCheckpoint(workflow_id="w", checkpoint_id="c", step=3, state=two)),
    ):
        with pytest.raises(InvalidInput, match=r"'.' has 2 steps, so .* no step [539]: .*total_steps=0"):
            await call
    assert manager.state.head == head
    assert (await run(manager, 1, 2)).status == "completed"
    await manager.create(WorkflowState(workflow_id="free", current_step=9))
    assert (await run(manager, 12, id="free")).current_step == 12
