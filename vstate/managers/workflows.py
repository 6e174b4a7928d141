"""WorkflowStateManager: workflows, their steps and checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from itertools import count
from typing import Any, Unpack

from pydantic import Field

from vstate.arguments import check_count
from vstate.errors import InvalidInput, KeyNotFound
from vstate.managers.backends import Persistence, Where
from vstate.managers.manager import Entity, Manager
from vstate.managers.record import Record, StatusText, dict_copy, kept, member, record_copy, timestamp
from vstate.patterns.lifecycle import Lifecycle
from vstate.plural import counted
from vstate.state.namespace import Namespace

__all__ = ["StepState", "WorkflowCheckpoint", "WorkflowState", "WorkflowStateManager", "WorkflowStatus"]

_LATEST = "latest"


class WorkflowStatus(StrEnum):
    """The status of a workflow. COMPLETED and CANCELLED are final. `retry` and `resume_from` leave FAILED."""

    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    WAITING = "waiting"
    """Running, and waiting for something outside, such as a person."""


class WorkflowState(Record):
    """A workflow: its status, its current step, and its context."""

    workflow_id: str
    status: WorkflowStatus = WorkflowStatus.PENDING
    total_steps: int = Field(default=0, ge=0)
    """0 if the number is unknown: then only `complete` completes the workflow."""
    current_step: int = Field(default=0, ge=0)
    """The last done step; never after a step that is begun and not done."""
    steps_before: int = Field(default=0, ge=0)
    """The number of steps that were done before `create`, and have no record."""
    context: dict[str, Any] = Field(default_factory=dict)
    error: str | None = None
    """The reason of a failure."""
    reason: str | None = None
    """The reason of a cancellation."""

    def require_step(self, number: int) -> None:
        """Raise InvalidInput for a step after the last one, if the number of steps is known."""
        if 0 < self.total_steps < number:
            raise InvalidInput(
                f"workflow {self.workflow_id!r} has {counted(self.total_steps, 'step')}, so there is "
                f"no step {number}: create it with more steps, "
                "or with total_steps=0 if their number is unknown"
            )

    @property
    def progress(self) -> float:
        """The percentage of steps that are done; 0.0 without steps."""
        return 100.0 * self.current_step / self.total_steps if self.total_steps else 0.0


class StepState(Record):
    """One step of a workflow. Steps are counted from 1."""

    step_number: int = Field(ge=1)
    name: str = ""
    status: StatusText = "pending"
    """"completed" and "skipped" mean done, "failed" means failed. With any other text the step goes on."""
    result: Any = None
    duration_ms: int | float | None = None
    error: str | None = None

    @property
    def title(self) -> str:
        """The number of the step, and its name if it has one."""
        return f"{self.step_number} {self.name!r}" if self.name else str(self.step_number)

    @property
    def is_done(self) -> bool:
        """Whether the step is completed or skipped."""
        return self.status in ("completed", "skipped")

    @property
    def is_failed(self) -> bool:
        """Whether the step failed."""
        return self.status == "failed"


class WorkflowCheckpoint(Record):
    """A workflow as it was after a step, from which it can resume."""

    workflow_id: str
    checkpoint_id: str
    step: int = Field(default=0, ge=0)
    # In this order: a dict with the fields of a workflow becomes a WorkflowState.
    state: WorkflowState | dict[str, Any] | None = Field(default=None, union_mode="left_to_right")
    context: dict[str, Any] = Field(default_factory=dict)
    timestamp: datetime = Field(default_factory=datetime.now)


_PENDING, _RUNNING, _PAUSED = WorkflowStatus.PENDING, WorkflowStatus.RUNNING, WorkflowStatus.PAUSED
_WAITING, _FAILED = WorkflowStatus.WAITING, WorkflowStatus.FAILED


def _moves(event: str, statuses: Iterable[WorkflowStatus], to: WorkflowStatus) -> dict[Any, WorkflowStatus]:
    return {(status, event): to for status in statuses}


LIFE = Lifecycle(
    {
        **_moves("start", [_PENDING], _RUNNING),
        **_moves("begin a step", [_PENDING, _RUNNING, _WAITING], _RUNNING),
        # A step that was under way at the pause may still end.
        **_moves("end a step", [_PENDING, _RUNNING, _WAITING], _RUNNING),
        **_moves("end a step", [_PAUSED], _PAUSED),
        **_moves("pause", [_PENDING, _RUNNING, _WAITING], _PAUSED),
        **_moves("resume", [_PAUSED, _WAITING], _RUNNING),
        **_moves("retry", [_FAILED], _RUNNING),
        **_moves("resume from a checkpoint", [_PENDING, _RUNNING, _WAITING, _PAUSED, _FAILED], _RUNNING),
        **_moves("complete", [_RUNNING, _WAITING, _PAUSED], WorkflowStatus.COMPLETED),
        **_moves("fail", [_PENDING, _RUNNING, _WAITING, _PAUSED], _FAILED),
        **_moves("cancel", [_PENDING, _RUNNING, _WAITING, _PAUSED], WorkflowStatus.CANCELLED),
    },
    initial=_PENDING,
)


class WorkflowStateManager(Manager):
    """Workflows, moved through their statuses step by step by any number of processes.

    - A workflow starts with its first step, fails with a failed step, and completes when all steps are done.
      A move that its status forbids raises IllegalTransition, and changes nothing.
    - After every `checkpoint_interval` steps, the same commit also writes a checkpoint; None: never.
    - A step is a record of its own, so one more costs the same at step 10 and at step 10,000.
    - A step after the last of `total_steps` raises InvalidInput. 0 means that the number is unknown.
    - `get` and `get_step` return None for a missing workflow or step; every other method raises KeyNotFound.
    """

    part = "workflows"

    def __init__(
        self,
        persistence: Persistence = "memory",
        *,
        checkpoint_interval: int | None = 5,
        **where: Unpack[Where],
    ) -> None:
        check_count("checkpoint_interval", checkpoint_interval, 1, none="None for never")
        super().__init__(persistence, **where)
        self._interval = checkpoint_interval

    async def create(self, workflow: WorkflowState) -> WorkflowState:
        """Create a workflow. Steps up to its `current_step` count as done. Raises AlreadyExists."""
        new = record_copy(WorkflowState, workflow)
        new.require_step(new.current_step)
        new.steps_before = new.current_step
        return await self.change(
            lambda part: workflows(part).add(new), f"workflow {new.workflow_id}: created"
        )

    async def get(self, workflow_id: str) -> WorkflowState | None:
        """The workflow as it is now, or None."""
        return await self.read(lambda part: workflows(part).get(workflow_id))

    async def get_status(self, workflow_id: str) -> WorkflowStatus:
        """The status of a workflow."""
        return await self.read(lambda part: workflows(part)[workflow_id].status)

    async def list_workflows(self, status: WorkflowStatus | str | None = None) -> list[WorkflowState]:
        """All workflows, or those with one status, in order of id."""
        wanted = None if status is None else member(WorkflowStatus, status)
        return await self.read(
            lambda part: [found for found in workflows(part).values() if wanted in (None, found.status)]
        )

    # Steps

    async def update_step(self, workflow_id: str, step: StepState) -> WorkflowState:
        """Write a step, and update `current_step` and the status of the workflow.

        In a paused workflow a step may end, but none begins. Steps may be done in any order, and
        concurrently: `current_step` never passes a step that is begun and not done.
        """
        step = record_copy(StepState, step)
        return await self._workflow(workflow_id).change(
            lambda workflow: workflow.update_step(step, self._interval), f"step {step.title} {step.status}"
        )

    async def get_step(self, workflow_id: str, step_number: int) -> StepState | None:
        """A step, or None if it has no record."""
        return await self._workflow(workflow_id).read(lambda workflow: workflow.steps.get(_key(step_number)))

    async def list_steps(self, workflow_id: str) -> list[StepState]:
        """The steps with records, in order."""
        return await self._workflow(workflow_id).read(lambda workflow: list(workflow.steps.values()))

    async def update_context(self, workflow_id: str, values: Mapping[str, Any]) -> WorkflowState:
        """Set these keys of the context of a workflow."""
        new = dict_copy(values, "context")
        return await self._workflow(workflow_id).change(
            lambda workflow: workflow.put(context={**workflow.state.context, **new}),
            f"context {', '.join(map(str, new))}",
        )

    # Moves

    async def start(self, workflow_id: str) -> WorkflowState:
        """Start a pending workflow. Its first step does so too."""
        return await self._move(workflow_id, "start", "started")

    async def pause(self, workflow_id: str) -> WorkflowState:
        """Pause a workflow: no step begins until `resume`."""
        return await self._move(workflow_id, "pause", "paused")

    async def resume(self, workflow_id: str) -> WorkflowState:
        """Resume a workflow that is paused or waiting."""
        return await self._move(workflow_id, "resume", "resumed")

    async def retry(self, workflow_id: str) -> WorkflowState:
        """Resume a failed workflow at its failed step."""
        return await self._move(workflow_id, "retry", "retried", error=None)

    async def complete(self, workflow_id: str) -> WorkflowState:
        """Complete a workflow, whatever its steps: for workflows with an unknown number of steps."""
        return await self._move(workflow_id, "complete", "completed")

    async def fail(self, workflow_id: str, error: str | None = None) -> WorkflowState:
        """Fail a workflow. `retry` and `resume_from` run it again."""
        return await self._move(workflow_id, "fail", _because("failed", error), error=error)

    async def cancel(self, workflow_id: str, reason: str | None = None) -> WorkflowState:
        """Cancel a workflow for good."""
        return await self._move(workflow_id, "cancel", _because("cancelled", reason), reason=reason)

    async def _move(self, workflow_id: str, event: str, done: str, **fields: Any) -> WorkflowState:
        return await self._workflow(workflow_id).change(
            lambda workflow: workflow.put(status=LIFE.next(workflow.state.status, event), **fields), done
        )

    # Checkpoints

    async def checkpoint(self, checkpoint: WorkflowCheckpoint) -> WorkflowCheckpoint:
        """Write a checkpoint, replacing any with its id.

        If it lacks `step`, `state` or `context`, these come from the workflow as it is now.
        """
        checkpoint = record_copy(WorkflowCheckpoint, checkpoint)
        return await self._workflow(checkpoint.workflow_id).change(
            lambda workflow: workflow.put_checkpoint(checkpoint), f"checkpoint {checkpoint.checkpoint_id}"
        )

    async def list_checkpoints(self, workflow_id: str) -> list[WorkflowCheckpoint]:
        """The checkpoints by step, then time."""
        return await self._workflow(workflow_id).read(lambda workflow: workflow.ordered_checkpoints())

    async def resume_from(self, workflow_id: str, checkpoint_id: str = _LATEST) -> WorkflowState:
        """Resume a workflow from a checkpoint, by default the last one: with its state, context and step.

        The records of later steps are deleted, and history keeps them. Raises KeyNotFound without a
        checkpoint.
        """

        def resume(workflow: Workflow) -> tuple[WorkflowState, str]:
            checkpoint = workflow.checkpoint(checkpoint_id)
            return workflow.resume_from(checkpoint), checkpoint.checkpoint_id

        state, _ = await self._workflow(workflow_id).change(
            resume, lambda resumed: f"resumed from checkpoint {resumed[1]}"
        )
        return state

    def _workflow(self, workflow_id: str) -> Entity[Workflow]:
        return Entity(self, f"workflow {workflow_id}", lambda part: Workflow(part, workflow_id))


def _because(done: str, reason: str | None) -> str:
    return done if reason is None else f"{done}: {reason}"


def _key(step_number: int) -> str:
    return f"{step_number:09}"


workflows = kept("state", WorkflowState, key="workflow_id")
"""The records of the workflows, without steps and checkpoints."""
_steps = kept(
    "steps",
    StepState,
    key=lambda step: _key(step.step_number),
    index={"open": lambda step: None if step.is_done else ()},  # begun and not done
)
_checkpoints = kept("checkpoints", WorkflowCheckpoint, key="checkpoint_id")


class Workflow:
    """One workflow in this part of a state, for use inside an update. Raises KeyNotFound if there is none."""

    def __init__(self, part: Namespace, workflow_id: str) -> None:
        self._id = workflow_id
        self._workflows = workflows(part)
        state = self._workflows.get(workflow_id)
        if state is None:
            raise KeyNotFound(workflow_id, kind="workflow")
        self.state = state
        self.steps = _steps(part, workflow_id)
        self.checkpoints = _checkpoints(part, workflow_id)

    def put(self, **fields: Any) -> WorkflowState:
        return self._workflows.change(self._id, **fields)

    def ordered_checkpoints(self) -> list[WorkflowCheckpoint]:
        return sorted(
            self.checkpoints.values(),
            key=lambda checkpoint: (checkpoint.step, timestamp(checkpoint.timestamp)),
        )

    def checkpoint(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """The checkpoint with this id. "latest" is the last one, unless that is an id. Raises KeyNotFound."""
        if checkpoint_id != _LATEST or _LATEST in self.checkpoints:
            return self.checkpoints[checkpoint_id]
        checkpoints = self.ordered_checkpoints()
        if not checkpoints:
            raise KeyNotFound(self._id, kind="checkpoint to resume from in workflow")
        return checkpoints[-1]

    def update_step(self, step: StepState, interval: int | None) -> WorkflowState:
        workflow = self.state
        workflow.require_step(step.step_number)
        before = workflow.current_step
        ends = step.is_done or step.is_failed
        workflow.status = LIFE.next(workflow.status, "end a step" if ends else "begin a step")
        self.steps.put(step)
        workflow.current_step = self._current_step(before, step)
        if step.is_failed:
            workflow.status = LIFE.next(workflow.status, "fail")
            workflow.error = step.error or f"step {step.title} failed"
        elif 0 < workflow.total_steps <= workflow.current_step and self._is_complete(workflow):
            workflow.status = LIFE.next(workflow.status, "complete")
        workflow = self._workflows.put(workflow)
        if interval is not None and workflow.current_step // interval > before // interval:
            self.put_checkpoint(
                WorkflowCheckpoint(workflow_id=self._id, checkpoint_id=self._new_id(workflow))
            )
        return workflow

    def _current_step(self, before: int, step: StepState) -> int:
        reached = before
        if step.is_done:
            reached = max(reached, step.step_number)
            while (following := self.steps.get(_key(reached + 1))) is not None and following.is_done:
                reached += 1
        first = next(self.steps.indexed("open"), None)
        return reached if first is None else min(reached, first.step_number - 1)

    def _is_complete(self, workflow: WorkflowState) -> bool:
        # Steps run concurrently: the last one may be done before an earlier one has begun.
        done = self.steps.count() - sum(1 for _ in self.steps.indexed("open"))
        return workflow.steps_before + done >= workflow.total_steps

    def put_checkpoint(self, checkpoint: WorkflowCheckpoint) -> WorkflowCheckpoint:
        """Write a checkpoint, with missing parts from the workflow as it is now."""
        workflow, fields, new = self.state, checkpoint.model_fields_set, checkpoint.model_copy()
        if "step" not in fields:
            new.step = workflow.current_step
        if checkpoint.state is None:
            new.state = workflow
        if "context" not in fields:
            new.context = new.state.context if isinstance(new.state, WorkflowState) else workflow.context
        (new.state if isinstance(new.state, WorkflowState) else workflow).require_step(new.step)
        return self.checkpoints.put(new)

    def _new_id(self, workflow: WorkflowState) -> str:
        id = f"step-{workflow.current_step}"
        if id not in self.checkpoints:
            return id
        # The step was done again. Its earlier checkpoint stays.
        return next(new for n in count(2) if (new := f"{id}-{n}") not in self.checkpoints)

    def resume_from(self, checkpoint: WorkflowCheckpoint) -> WorkflowState:
        """Go back to a checkpoint, and run from there. Deletes the records of later steps."""
        workflow = self.state
        status = LIFE.next(workflow.status, "resume from a checkpoint")
        for begun in list(self.steps.indexed("open")):
            del self.steps[_key(begun.step_number)]
        for id in list(self.steps.ids()):
            if int(str(id)) > checkpoint.step:
                del self.steps[id]
        state = checkpoint.state
        restored = (state if isinstance(state, WorkflowState) else workflow).model_copy()
        if not isinstance(state, WorkflowState) or state.current_step != checkpoint.step:
            # The program chose the step: all steps before it count as done, with or without a record.
            restored.steps_before = checkpoint.step - self.steps.count()
        restored.workflow_id, restored.status, restored.error = self._id, status, None
        restored.current_step, restored.context = checkpoint.step, checkpoint.context
        return self._workflows.put(restored)
