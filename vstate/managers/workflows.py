"""WorkflowStateManager: workflows, their steps and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vstate.arguments import check_count
from vstate.managers.manager import Manager, Subject
from vstate.managers.persistence import DIRECTORY, Persistence
from vstate.managers.record import member, taken_dict
from vstate.managers.workflow import LATEST, Workflow, workflows
from vstate.managers.workflow_records import StepState, WorkflowCheckpoint, WorkflowState, WorkflowStatus


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

    async def resume_from(self, workflow_id: str, checkpoint_id: str = LATEST) -> WorkflowState:
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
