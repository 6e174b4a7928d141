"""Workflow: one workflow with its steps and checkpoints, as it is changed inside of an update."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

from vstate.errors import KeyNotFound
from vstate.managers.record import seconds
from vstate.managers.workflow_life import LIFE
from vstate.managers.workflow_records import StepState, WorkflowCheckpoint, WorkflowState
from vstate.patterns.paths import scope
from vstate.patterns.records import Records
from vstate.state.namespace import Namespace

LATEST = "latest"


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
        if checkpoint_id != LATEST or LATEST in self._checkpoints:
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
