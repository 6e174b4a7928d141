"""WorkflowStateManager: workflows, their steps and checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from itertools import count
from typing import Any

from pydantic import Field

from vstate.arguments import check_count
from vstate.errors import InvalidInput, KeyNotFound
from vstate.managers.backends import DIRECTORY, Persistence
from vstate.managers.manager import Manager, Subject
from vstate.managers.record import Record, Word, member, seconds, taken_dict
from vstate.patterns.lifecycle import Lifecycle
from vstate.patterns.paths import scope
from vstate.patterns.records import Records
from vstate.state.namespace import Namespace

__all__ = ["StepState", "WorkflowCheckpoint", "WorkflowState", "WorkflowStateManager", "WorkflowStatus"]

_LATEST = "latest"


class WorkflowStatus(StrEnum):
    """Where a workflow is. Nothing leads out of COMPLETED and CANCELLED; out of FAILED, `retry` and `resume_from`."""

    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    WAITING = "waiting"
    """Running, and waiting for something from outside, such as a person."""


class WorkflowState(Record):
    """A workflow: where it is, and what it has in hand."""

    workflow_id: str
    status: WorkflowStatus = WorkflowStatus.PENDING
    total_steps: int = Field(default=0, ge=0)
    """0 if that is not known: then only `complete` completes it."""
    current_step: int = Field(default=0, ge=0)
    """The last step that is done, but none behind one that was begun and is not."""
    steps_before: int = Field(default=0, ge=0)
    """How many steps were done before it came here, and have no record of their own."""
    context: dict[str, Any] = Field(default_factory=dict)
    error: str | None = None
    """What failed, once the workflow has."""
    reason: str | None = None
    """Why it was cancelled."""

    def require_step(self, number: int) -> None:
        """InvalidInput for a step behind the last one, if it is known which that is."""
        if 0 < self.total_steps < number:
            raise InvalidInput(
                f"workflow {self.workflow_id!r} has {self.total_steps} steps, so there is no step {number}; one whose "
                "number of steps is not known has total_steps=0"
            )

    @property
    def progress(self) -> float:
        """Percent of the steps that are done: 0.0 if there are none."""
        return 100.0 * self.current_step / self.total_steps if self.total_steps else 0.0


class StepState(Record):
    """One step of a workflow. Steps are counted from 1."""

    step_number: int = Field(ge=1)
    name: str = ""
    status: Word = "pending"
    """"completed" or "skipped" if it is done, "failed" if it failed; any other word says that it is not over."""
    result: Any = None
    duration_ms: int | float | None = None
    error: str | None = None

    @property
    def title(self) -> str:
        """What a message calls it: its number, and its name if it has one."""
        return f"{self.step_number} {self.name!r}" if self.name else str(self.step_number)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do for it."""
        return self.status in ("completed", "skipped")

    @property
    def is_failed(self) -> bool:
        """Whether it failed."""
        return self.status == "failed"


class WorkflowCheckpoint(Record):
    """A workflow as it was after a step, to resume it from."""

    workflow_id: str
    checkpoint_id: str
    step: int = Field(default=0, ge=0)
    # In this order: a dict with the fields of a workflow is one.
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
        # What was under way when it was paused may still end.
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
    """Workflows: each moves through its statuses step by step, in as many processes as there are.

    - A workflow begins to run with its first step, fails with a step that failed, and completes when all of its
      steps are done. A move that its status does not allow raises IllegalTransition, and nothing has changed.
    - Each time that `checkpoint_interval` more steps are done, a checkpoint is made in the same commit; None: never.
    - A step is a record of its own, so one more costs the same at step 10 and step 10,000.
    - A step behind the last of `total_steps` raises InvalidInput; 0 of them says that their number is not known.
    - `get` and `get_step` give None for what is not there; every other method raises KeyNotFound.
    """

    part = "workflows"

    def __init__(
        self,
        persistence: Persistence = "memory",
        *,
        redis_url: str | None = None,
        path: str = DIRECTORY,
        checkpoint_interval: int | None = 5,
    ) -> None:
        check_count("checkpoint_interval", checkpoint_interval, 1, none="None for never")
        super().__init__(persistence, redis_url=redis_url, path=path)
        self._interval = checkpoint_interval

    async def create(self, workflow: WorkflowState) -> WorkflowState:
        """Keep a new workflow; AlreadyExists. One that begins with a later step has those before it behind it."""
        new = WorkflowState.of(workflow)
        new.require_step(new.current_step)
        new.steps_before = new.current_step
        return await self.change(
            lambda part: workflows(part).add(new), f"workflow {new.workflow_id}: created"
        )

    async def get(self, workflow_id: str) -> WorkflowState | None:
        """The workflow as it is now; None if there is none."""
        return await self.read(lambda part: workflows(part).get(workflow_id))

    async def get_status(self, workflow_id: str) -> WorkflowStatus:
        """Where the workflow is."""
        return await self.read(lambda part: workflows(part)[workflow_id].status)

    async def list_workflows(self, status: WorkflowStatus | str | None = None) -> list[WorkflowState]:
        """All workflows, or those in one status, in the order of their ids."""
        wanted = None if status is None else member(WorkflowStatus, status)
        return await self.read(
            lambda part: [found for found in workflows(part).values() if wanted in (None, found.status)]
        )

    # Steps

    async def update_step(self, workflow_id: str, step: StepState) -> WorkflowState:
        """Write what is known about a step now, and let the workflow follow: `current_step`, and its status.

        In a paused workflow a step may end, but none begins. Steps may be done in any order, and next to each other:
        `current_step` never passes one that was begun and is not done.
        """
        step = StepState.of(step)
        return await self._workflow(workflow_id).change(
            lambda workflow: workflow.update_step(step, self._interval), f"step {step.title} {step.status}"
        )

    async def get_step(self, workflow_id: str, step_number: int) -> StepState | None:
        """A step, None if nothing is known about it."""
        return await self._workflow(workflow_id).read(lambda workflow: workflow.step(step_number))

    async def list_steps(self, workflow_id: str) -> list[StepState]:
        """The steps that something is known about, in order."""
        return await self._workflow(workflow_id).read(lambda workflow: workflow.steps())

    async def update_context(self, workflow_id: str, values: Mapping[str, Any]) -> WorkflowState:
        """Set these keys of the workflow's context."""
        new = taken_dict(values, "context")
        return await self._workflow(workflow_id).change(
            lambda workflow: workflow.set_context(new), f"context {', '.join(map(str, new))}"
        )

    # Moves

    async def start(self, workflow_id: str) -> WorkflowState:
        """Run a pending workflow; its first step does so too."""
        return await self._move(workflow_id, "start", "started")

    async def pause(self, workflow_id: str) -> WorkflowState:
        """Let no further step begin until `resume`."""
        return await self._move(workflow_id, "pause", "paused")

    async def resume(self, workflow_id: str) -> WorkflowState:
        """Run a workflow that is paused, or waiting."""
        return await self._move(workflow_id, "resume", "resumed")

    async def retry(self, workflow_id: str) -> WorkflowState:
        """Run a workflow that failed, from the step that did."""
        return await self._move(workflow_id, "retry", "retried", error=None)

    async def complete(self, workflow_id: str) -> WorkflowState:
        """End a workflow well, whatever its steps: for one whose number of steps is not known before."""
        return await self._move(workflow_id, "complete", "completed")

    async def fail(self, workflow_id: str, error: str | None = None) -> WorkflowState:
        """End a workflow because of an error; `retry` and `resume_from` run it again."""
        return await self._move(workflow_id, "fail", _because("failed", error), error=error)

    async def cancel(self, workflow_id: str, reason: str | None = None) -> WorkflowState:
        """End a workflow that nobody wants any more."""
        return await self._move(workflow_id, "cancel", _because("cancelled", reason), reason=reason)

    async def _move(self, workflow_id: str, event: str, done: str, **fields: Any) -> WorkflowState:
        return await self._workflow(workflow_id).change(lambda workflow: workflow.move(event, **fields), done)

    # Checkpoints

    async def checkpoint(self, checkpoint: WorkflowCheckpoint) -> WorkflowCheckpoint:
        """Keep a checkpoint, in place of the one with its id.

        What it leaves out (`step`, `state`, `context`) is taken from the workflow as it is now.
        """
        checkpoint = WorkflowCheckpoint.of(checkpoint)
        return await self._workflow(checkpoint.workflow_id).change(
            lambda workflow: workflow.keep(checkpoint), f"checkpoint {checkpoint.checkpoint_id}"
        )

    async def list_checkpoints(self, workflow_id: str) -> list[WorkflowCheckpoint]:
        """The checkpoints, by step, and by time within one."""
        return await self._workflow(workflow_id).read(lambda workflow: workflow.checkpoints())

    async def resume_from(self, workflow_id: str, checkpoint_id: str = _LATEST) -> WorkflowState:
        """Run the workflow on from a checkpoint, by default the last one: with its state, context and step.

        The steps behind that are to be done again; what they were is in the history. KeyNotFound if there
        is no checkpoint.
        """

        def resume(workflow: Workflow) -> tuple[WorkflowState, str]:
            checkpoint = workflow.checkpoint(checkpoint_id)
            return workflow.resume_from(checkpoint), checkpoint.checkpoint_id

        state, _ = await self._workflow(workflow_id).change(
            resume, lambda resumed: f"resumed from checkpoint {resumed[1]}"
        )
        return state

    def _workflow(self, workflow_id: str) -> Subject[Workflow]:
        return self.about(f"workflow {workflow_id}", lambda part: Workflow(part, workflow_id))


def _because(done: str, reason: str | None) -> str:
    return done if reason is None else f"{done}: {reason}"


def workflows(part: Namespace) -> Records[WorkflowState]:
    """The workflows themselves."""
    return Records(part.namespace("state"), WorkflowState, key="workflow_id")


class Workflow:
    """One workflow, whose records are in this part of a state. KeyNotFound if there is none."""

    def __init__(self, part: Namespace, workflow_id: str) -> None:
        self._id = workflow_id
        self._workflows = workflows(part)
        self._steps = Records(
            scope(part, "steps", workflow_id),
            StepState,
            key=lambda step: _key(step.step_number),
            # Those that were begun and are not done.
            index={"open": lambda step: None if step.is_done else ()},
        )
        self._checkpoints = Records(
            scope(part, "checkpoints", workflow_id), WorkflowCheckpoint, key="checkpoint_id"
        )
        if workflow_id not in self._workflows:
            raise KeyNotFound(workflow_id, kind="workflow")

    # Reading

    @property
    def now(self) -> WorkflowState:
        """The workflow as it is."""
        return self._workflows[self._id]

    def step(self, step_number: int) -> StepState | None:
        """A step, None if nothing is known about it."""
        return self._steps.get(_key(step_number))

    def steps(self) -> list[StepState]:
        """The steps that something is known about, in order."""
        return list(self._steps.values())

    def checkpoints(self) -> list[WorkflowCheckpoint]:
        """The checkpoints, by step, and by time within one."""
        return sorted(self._checkpoints.values(), key=lambda made: (made.step, seconds(made.timestamp)))

    def checkpoint(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """The checkpoint of this id, for "latest" the last one unless one is called so; KeyNotFound."""
        if checkpoint_id != _LATEST or _LATEST in self._checkpoints:
            return self._checkpoints[checkpoint_id]
        made = self.checkpoints()
        if not made:
            raise KeyNotFound(self._id, kind="checkpoint to resume from in workflow")
        return made[-1]

    # Changing

    def move(self, event: str, **fields: Any) -> WorkflowState:
        """Go where the event leads, and set these fields; IllegalTransition."""
        return self._workflows.change(self._id, status=LIFE.next(self.now.status, event), **fields)

    def set_context(self, values: Mapping[Any, Any]) -> WorkflowState:
        """Set these keys of the context."""
        return self._workflows.change(self._id, context={**self.now.context, **values})

    def update_step(self, step: StepState, interval: int | None) -> WorkflowState:
        """Write a step, and let the workflow follow."""
        workflow = self.now
        workflow.require_step(step.step_number)
        before = workflow.current_step
        ends = step.is_done or step.is_failed
        workflow.status = LIFE.next(workflow.status, "end a step" if ends else "begin a step")
        self._steps.put(step)
        workflow.current_step = self._reached(before, step)
        if step.is_failed:
            workflow.status = LIFE.next(workflow.status, "fail")
            workflow.error = step.error or f"step {step.title} failed"
        elif 0 < workflow.total_steps <= workflow.current_step and self._are_all_done(workflow):
            workflow.status = LIFE.next(workflow.status, "complete")
        workflow = self._workflows.put(workflow)
        if interval is not None and workflow.current_step // interval > before // interval:
            self.keep(WorkflowCheckpoint(workflow_id=self._id, checkpoint_id=self._new_id(workflow)))
        return workflow

    def _reached(self, before: int, step: StepState) -> int:
        reached = before
        if step.is_done:
            reached = max(reached, step.step_number)
            while (following := self.step(reached + 1)) is not None and following.is_done:
                reached += 1
        first = next(self._steps.indexed("open"), None)
        return reached if first is None else min(reached, first.step_number - 1)

    def _are_all_done(self, workflow: WorkflowState) -> bool:
        # Next to each other, the last one may be done when an earlier one has not even begun.
        done = self._steps.count() - sum(1 for _ in self._steps.indexed("open"))
        return workflow.steps_before + done >= workflow.total_steps

    def keep(self, checkpoint: WorkflowCheckpoint) -> WorkflowCheckpoint:
        """Write a checkpoint; what it leaves out is as it is now."""
        workflow, given, made = self.now, checkpoint.model_fields_set, checkpoint.model_copy()
        if "step" not in given:
            made.step = workflow.current_step
        if checkpoint.state is None:
            made.state = workflow
        if "context" not in given:
            made.context = made.state.context if isinstance(made.state, WorkflowState) else workflow.context
        (made.state if isinstance(made.state, WorkflowState) else workflow).require_step(made.step)
        return self._checkpoints.put(made)

    def _new_id(self, workflow: WorkflowState) -> str:
        id = f"step-{workflow.current_step}"
        if id not in self._checkpoints:
            return id
        # The step was done again since; the checkpoint that was made then stays.
        return next(new for n in count(2) if (new := f"{id}-{n}") not in self._checkpoints)

    def resume_from(self, checkpoint: WorkflowCheckpoint) -> WorkflowState:
        """Go back to a checkpoint, and run from there; the steps behind it are to be done again."""
        workflow = self.now
        status = LIFE.next(workflow.status, "resume from a checkpoint")
        for begun in list(self._steps.indexed("open")):
            del self._steps[_key(begun.step_number)]
        for id in list(self._steps.ids()):
            if int(str(id)) > checkpoint.step:
                del self._steps[id]
        state = checkpoint.state
        restored = (state if isinstance(state, WorkflowState) else workflow).model_copy()
        if not isinstance(state, WorkflowState) or state.current_step != checkpoint.step:
            # The step is the program's word: all before it are done, with or without a record.
            restored.steps_before = checkpoint.step - self._steps.count()
        restored.workflow_id, restored.status, restored.error = self._id, status, None
        restored.current_step, restored.context = checkpoint.step, checkpoint.context
        return self._workflows.put(restored)


def _key(step_number: int) -> str:
    return f"{step_number:09}"
