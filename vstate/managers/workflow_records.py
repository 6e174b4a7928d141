"""The records of workflows: the workflow itself, its steps, and its checkpoints."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import Field

from vstate.errors import InvalidInput
from vstate.managers.record import Record, Word


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
