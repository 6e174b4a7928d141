"""The records of teams: the team, its agents, and its tasks."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import Field

from vstate.managers.record import Record, Word


class AgentCoordinationStatus(StrEnum):
    """What an agent does. A status may be any other text too; IDLE and AVAILABLE alone mean that it is free."""

    IDLE = "idle"
    AVAILABLE = "available"
    ASSIGNED = "assigned"
    WORKING = "working"
    WAITING = "waiting"
    BLOCKED = "blocked"
    COMPLETED = "completed"
    FAILED = "failed"

    @classmethod
    def is_free(cls, status: str) -> bool:
        """Whether an agent in this status takes a task."""
        return status in (cls.IDLE, cls.AVAILABLE)


class AgentCoordinationState(Record):
    """An agent of a team."""

    agent_id: str
    status: Word = "idle"
    capabilities: list[str] = Field(default_factory=list)
    current_task: str | None = None

    @property
    def is_available(self) -> bool:
        """Whether a task can be assigned to it."""
        return AgentCoordinationStatus.is_free(self.status) and self.current_task is None


class TaskQueueState(Record):
    """The tasks of a team by status, each as a dict: what was enqueued, and what became of it.

    Pending ones are in the order in which they are to be done, the others in the order in which they came to be so.
    """

    pending: list[Any] = Field(default_factory=list)
    in_progress: list[Any] = Field(default_factory=list)
    completed: list[Any] = Field(default_factory=list)
    failed: list[Any] = Field(default_factory=list)

    @property
    def total_tasks(self) -> int:
        """How many there are."""
        return len(self.pending) + len(self.in_progress) + len(self.completed) + len(self.failed)

    @property
    def completion_rate(self) -> float:
        """How many of them are completed, between 0 and 1; 0.0 if there are none."""
        return len(self.completed) / self.total_tasks if self.total_tasks else 0.0


class TeamState(Record):
    """A team with all that belongs to it."""

    team_id: str
    agents: dict[str, AgentCoordinationState] = Field(default_factory=dict)
    task_queue: TaskQueueState = Field(default_factory=TaskQueueState)

    @property
    def available_agents(self) -> list[AgentCoordinationState]:
        """The agents to which a task can be assigned."""
        return [agent for agent in self.agents.values() if agent.is_available]

    @property
    def busy_agents(self) -> list[AgentCoordinationState]:
        """The other agents."""
        return [agent for agent in self.agents.values() if not agent.is_available]


class StoredTeam(Record):
    """What is kept of a team in one place: all but its agents and tasks, each of which is a record of its own."""

    team_id: str


class TaskStatus(StrEnum):
    """Where a task is."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"


class Task(Record):
    """What is kept of a task: as it was enqueued, and what became of it."""

    task_id: str
    status: TaskStatus = TaskStatus.PENDING
    place: str
    """Where it is among the pending ones, as a text that sorts."""
    task: dict[Any, Any]
    created_at: datetime
    assigned_to: str | None = None
    assigned_at: datetime | None = None
    ended_at: datetime | None = None
    result: Any = None
    error: str | None = None

    def as_dict(self) -> dict[Any, Any]:
        """The task as it was enqueued, with `id`, `status`, and what else is known of it."""
        known: dict[str, Any] = {"created_at": self.created_at}
        if self.assigned_to is not None:
            known |= {"assigned_to": self.assigned_to, "assigned_at": self.assigned_at}
        if self.status is TaskStatus.COMPLETED:
            known |= {"completed_at": self.ended_at, "result": self.result}
        if self.error is not None:
            known |= {"error": self.error}
        if self.status is TaskStatus.FAILED:
            known |= {"failed_at": self.ended_at}
        return {**self.task, "id": self.task_id, "status": self.status.value, **known}
