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
    first = WorkflowStateManager(local_store(), checkpoint_interval=5)
    async with first as manager, WorkflowStateManager(local_store()) as other:
        fields = {"status": WorkflowStatus.PENDING, "total_steps": 10, "current_step": 0, "context": {}}
        await manager.create(WorkflowState(workflow_id="w", **fields))
        fetched = StepState(
            step_number=1, name="fetch", status="completed", result={"n": 1}, duration_ms=5400
        )
        await manager.update_step(workflow_id="w", step=fetched)
        found = present(await other.get("w"))
        assert (found.current_step, found.total_steps, found.progress) == (1, 10, 10.0)
        assert await other.get_status("w") is WorkflowStatus.RUNNING
        made = WorkflowCheckpoint(
            workflow_id="w",
            checkpoint_id="cp",
            step=1,
            state=found,
            context={"k": "v"},
            timestamp=datetime.now(),
        )
        await manager.checkpoint(made)
        assert await other.list_checkpoints("w") == [made]
        await run(manager, 2, 3)
        resumed = await manager.resume_from(workflow_id="w", checkpoint_id="cp")
        assert (resumed.current_step, resumed.context) == (1, {"k": "v"})
        await manager.pause("w")
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


# Steps


STATUSES = {"": "completed", ">": "running", "s": "skipped", "!": "failed"}

Story = tuple[dict[str, int], str, str]

STORIES: dict[str, Story] = {
    "the last step completes it": ({"total_steps": 2}, "1 2", "running 1, completed 2"),
    "a failed step fails it, retry runs it again": (
        {"total_steps": 4},
        "1 2 3! retry 4 3",
        "running 1, running 2, failed 2, running 2, running 2, completed 4",
    ),
    "their number is unknown": (
        {"total_steps": 0, "current_step": 9},
        "12 complete",
        "running 12, completed 12",
    ),
    "a step under way may end in a pause, also the last one": (
        {"total_steps": 2},
        "1> pause 1 2",
        "running 0, paused 0, paused 1, completed 2",
    ),
    "the current step is the last done one, but never past one begun and not done": (
        {"total_steps": 9},
        "1> 1 2s 3> 4> 5 3 4 7 5> 5 9",
        "running 0, running 1, running 2, running 2, running 2, running 2, running 3, running 5, running 7, "
        "running 4, running 5, running 9",
    ),
    "a step done before others does not complete it": (
        {"total_steps": 4},
        "1 2 4 3",
        "running 1, running 2, running 4, completed 4",
    ),
    "nor does a checkpoint made of such steps": (
        {"total_steps": 4},
        "1 2 4 back@step-4 4 3",
        "running 1, running 2, running 4, running 4, running 4, completed 4",
    ),
    "it began at a later step": (
        {"total_steps": 5, "current_step": 3},
        "4 5",
        "running 4, completed 5",
    ),
    "or it resumes there": (
        {"total_steps": 5},
        "2 mark@3 back@mark 4 5",
        "running 2, running 2, running 3, running 4, completed 5",
    ),
    "later steps are done again after a resume": (
        {"total_steps": 6},
        "1 2 3 4 5! back@step-2 3 4 6 5",
        "running 1, running 2, running 3, running 4, failed 4, running 2, running 3, running 4, running 6, "
        "completed 6",
    ),
}
"""Steps of a workflow, with its fields, and its status and current step after each. Checkpoints come after
every two steps."""


@pytest.mark.parametrize("name", STORIES)
@in_a_loop
async def test_a_story(name: str) -> None:
    fields, told, expected = STORIES[name]
    found = []
    async with WorkflowStateManager(checkpoint_interval=2) as manager:
        await manager.create(WorkflowState.model_validate({"workflow_id": "w", **fields}))
        for word in told.split():
            verb, _, argument = word.partition("@")
            if verb == "back":
                await manager.resume_from("w", argument)
            elif verb == "mark":
                made = WorkflowCheckpoint(workflow_id="w", checkpoint_id="mark", step=int(argument))
                await manager.checkpoint(made)
            elif verb.isalpha():
                await getattr(manager, verb)("w")
            else:
                number = verb.rstrip(">s!")
                await manager.update_step("w", step(int(number), STATUSES[verb[len(number) :]]))
            workflow = present(await manager.get("w"))
            found.append(f"{workflow.status} {workflow.current_step}")
    assert ", ".join(found) == expected


@in_a_loop
async def test_the_error_of_a_failed_step(manager: WorkflowStateManager) -> None:
    """The workflow has it, or else the name of the step; a new try has none."""
    await manager.create(WorkflowState(workflow_id="w"))
    failed = await manager.update_step("w", step(1, "failed", name="load", error="no such file"))
    assert (failed.error, failed.progress) == ("no such file", 0.0)
    assert (await manager.retry("w")).error is None
    assert (await manager.update_step("w", step(1, "failed", name="load"))).error == "step 1 'load' failed"
    messages = [commit.message async for commit in manager.state.log()]
    assert messages == [
        "workflow w: step 1 'load' failed",
        "workflow w: retried",
        "workflow w: step 1 'load' failed",
        "workflow w: created",
    ]


@in_a_loop
async def test_steps_and_context_are_kept(manager: WorkflowStateManager) -> None:
    """Each step by its number, in order of number, as it was written; the keys of the context are merged."""
    await manager.create(WorkflowState(workflow_id="w", context={"a": [1]}))
    for number in (10, 9, 2):
        await manager.update_step("w", step(number, ToolExecutionStatus.COMPLETED, result=number, tries=2))
    assert [found.step_number for found in await manager.list_steps("w")] == [2, 9, 10]
    found = present(await manager.get_step("w", 9))
    assert (found.status, found.result, found.model_extra) == ("completed", 9, {"tries": 2})
    assert await manager.get_step("w", 3) is None
    with pytest.raises(ValueError, match="step_number"):
        step(0)
    assert (await manager.update_context("w", {"b": (2, 3)})).context == {"a": [1], "b": (2, 3)}


@in_a_loop
async def test_a_step_that_cannot_be_is_refused(manager: WorkflowStateManager) -> None:
    """A step after the last one, if their number is known: the workflow would never complete."""
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
    """One after every so many steps, in the same commit; a resume takes its state and context."""
    async with WorkflowStateManager(local_store(), checkpoint_interval=2) as manager:
        await manager.create(WorkflowState(workflow_id="w", total_steps=6, context={"n": 0}, owner="me"))
        await run(manager, 1)
        await manager.update_step("w", step(2, "running"))
        assert await checkpoints(manager) == []
        head = manager.state.head
        await run(manager, 2)
        assert present(manager.state.head).parents == (present(head).id,)
        [made] = await manager.list_checkpoints("w")
        assert isinstance(made.state, WorkflowState)
        assert (made.checkpoint_id, made.state.current_step, made.context) == ("step-2", 2, {"n": 0})
        await manager.update_context("w", {"n": 2})
        await run(manager, 3, 4)
        resumed = await manager.resume_from("w", "step-2")
        assert (resumed.context, resumed.model_extra) == ({"n": 0}, {"owner": "me"})
        assert [found.step_number for found in await manager.list_steps("w")] == [1, 2]
        await run(manager, 3, 4)
        assert await checkpoints(manager) == ["step-2", "step-4", "step-4-2"]


@in_a_loop
async def test_a_checkpoint_of_ones_own(manager: WorkflowStateManager) -> None:
    """Any dict is a state; missing parts come from the workflow; the same id again replaces it."""
    await manager.create(WorkflowState(workflow_id="w", context={"goal": "win"}))
    await run(manager, 1)
    mine = {"cursor": (3, 4), "seen": {"a"}}
    await manager.checkpoint(WorkflowCheckpoint(workflow_id="w", checkpoint_id="c", state=mine))
    [made] = await manager.list_checkpoints("w")
    assert (made.step, made.state, made.context) == (1, mine, {"goal": "win"})
    await run(manager, 2)
    resumed = await manager.resume_from("w", "c")
    assert (resumed.current_step, resumed.context) == (1, {"goal": "win"})
    await manager.checkpoint(WorkflowCheckpoint(workflow_id="w", checkpoint_id="c", step=7))
    assert [made.step for made in await manager.list_checkpoints("w")] == [7]


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
