"""TaskQueue: the tasks of one team, for use inside an update."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import uuid4

from pydantic import Field

from vstate.errors import IllegalTransition, InvalidInput, quoted
from vstate.managers.record import Record
from vstate.patterns.lifecycle import Lifecycle
from vstate.patterns.records import Records
from vstate.state.namespace import Namespace

__all__ = ["TaskQueueState", "TaskStatus"]


PRIORITIES = {"critical": 2.0, "urgent": 2.0, "high": 1.0, "normal": 0.0, "medium": 0.0, "low": -1.0}

_SIGN = 1 << 63
_ALL_BITS = (1 << 64) - 1
_EPOCH = datetime.fromtimestamp(0, UTC)


class TaskStatus(StrEnum):
    """The status of a task."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"


class Task(Record):
    """A task as it was enqueued, and its progress since."""

    task_id: str
    status: TaskStatus = TaskStatus.PENDING
    place: str
    """The place among the pending tasks, as a text that sorts."""
    task: dict[Any, Any]
    created_at: datetime
    assigned_to: str | None = None
    assigned_at: datetime | None = None
    ended_at: datetime | None = None
    result: Any = None
    error: str | None = None

    def is_by(self, agent_id: str) -> bool:
        """Whether the task is in progress by the agent."""
        return self.status is TaskStatus.IN_PROGRESS and self.assigned_to == agent_id

    def as_dict(self) -> dict[Any, Any]:
        """The task as it was enqueued, with `id`, `status`, and the known facts of its progress."""
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


class TaskQueueState(Record):
    """The tasks of a team by status, each as the dict that `Task.as_dict` makes.

    Pending tasks are in the order of their turns, other tasks in the order in which they reached their
    status.
    """

    pending: list[Any] = Field(default_factory=list)
    in_progress: list[Any] = Field(default_factory=list)
    completed: list[Any] = Field(default_factory=list)
    failed: list[Any] = Field(default_factory=list)

    @property
    def total_tasks(self) -> int:
        """The number of tasks."""
        return len(self.pending) + len(self.in_progress) + len(self.completed) + len(self.failed)

    @property
    def completion_rate(self) -> float:
        """The completed part of the tasks, between 0 and 1; 0.0 without tasks."""
        return len(self.completed) / self.total_tasks if self.total_tasks else 0.0


_PENDING, _IN_PROGRESS = TaskStatus.PENDING, TaskStatus.IN_PROGRESS

_LIFE = Lifecycle(
    {
        (_PENDING, "assign"): _IN_PROGRESS,
        (_IN_PROGRESS, "complete"): TaskStatus.COMPLETED,
        (_IN_PROGRESS, "fail"): TaskStatus.FAILED,
        (_IN_PROGRESS, "requeue"): _PENDING,
    },
    initial=_PENDING,
)


class TaskQueue:
    """The tasks in this part of a state. An unknown task raises KeyNotFound.

    Each task is a record of its own, and an index holds the pending ones. So no method depends on the number
    of tasks, and changes of different tasks do not conflict.
    """

    def __init__(self, part: Namespace) -> None:
        self.tasks = Records(
            part,
            Task,
            key="task_id",
            index={"pending": lambda task: task.place if task.status is _PENDING else None},
        )

    def is_at(self, agent_id: str, task_id: str | None) -> bool:
        """Whether the task is in progress by the agent."""
        task = None if task_id is None else self.tasks.get(task_id)
        return task is not None and task.is_by(agent_id)

    def state(self) -> TaskQueueState:
        """All tasks as they are now."""
        found = list(self.tasks.values())

        def with_status(status: TaskStatus, order: Callable[[Task], Any]) -> list[dict[Any, Any]]:
            return [task.as_dict() for task in sorted((t for t in found if t.status is status), key=order)]

        return TaskQueueState(
            pending=with_status(_PENDING, lambda task: (task.place, task.task_id)),
            in_progress=with_status(_IN_PROGRESS, lambda task: task.assigned_at or task.created_at),
            completed=with_status(TaskStatus.COMPLETED, lambda task: task.ended_at or task.created_at),
            failed=with_status(TaskStatus.FAILED, lambda task: task.ended_at or task.created_at),
        )

    # Changing

    def add(self, task_id: str, task: Mapping[Any, Any], at: datetime, **known: Any) -> Task:
        """Add a new task, pending unless `known` has a status. Raises AlreadyExists."""
        return self.tasks.add(
            Task(
                task_id=task_id,
                task=dict(task),
                place=place(task.get("priority"), at),
                created_at=at,
                **known,
            )
        )

    def import_task(self, task: Any, status: TaskStatus) -> None:
        """Add a task of a queue that the program made."""
        fields = task if isinstance(task, Mapping) else {"id": task}
        agent_id = None if status is _PENDING else fields.get("assigned_to")
        self.add(task_id_of(fields), fields, datetime.now(UTC), status=status, assigned_to=agent_id)

    def assign(self, task: Task, agent_id: str) -> Task:
        """Assign a pending task to an agent. Raises IllegalTransition."""
        return self._move(task, "assign", assigned_to=agent_id, assigned_at=datetime.now(UTC))

    def end(self, task: Task, event: str, agent_id: str | None, **fields: Any) -> Task:
        """Complete a task, fail it, or requeue it at its old place.

        Raises IllegalTransition unless the task is in progress, and by this agent if one is named.
        """
        if task.status is _IN_PROGRESS and agent_id is not None and agent_id != task.assigned_to:
            raise IllegalTransition(
                f"in progress by {task.assigned_to!r}",
                f"{event} {task.task_id!r} by {agent_id!r}",
                allowed=[f"{event} {task.task_id!r} by {task.assigned_to!r}"],
            )
        if event == "requeue":
            return self._move(task, event, assigned_to=None, assigned_at=None, **fields)
        return self._move(task, event, ended_at=datetime.now(UTC), **fields)

    def _move(self, task: Task, event: str, **fields: Any) -> Task:
        status = _LIFE.next(task.status, event)
        return self.tasks.put(task.model_copy(update={"status": status, **fields}))


def task_id_of(task: Mapping[Any, Any]) -> str:
    """The id of a task, from "id" or "task_id", or a new one. Raises InvalidInput for one that is no text."""
    id = task.get("id", task.get("task_id"))
    if id is None:
        return f"task-{uuid4().hex[:12]}"
    if not isinstance(id, str):
        raise InvalidInput(f"a task's id is a text, not {quoted(id)}")
    return id


def place(priority: object, at: datetime) -> str:
    """A text of 32 digits that sorts the higher priority first, and within one priority the earlier time.

    A priority is a number, or a word of `PRIORITIES` for its number; None is normal. Raises InvalidInput for
    others.
    """
    # Floats sort like their bits once those of negative ones are inverted. Here the highest goes first.
    (bits,) = struct.unpack(">Q", struct.pack(">d", _number(priority) + 0.0))
    rising = bits ^ (_ALL_BITS if bits & _SIGN else _SIGN)
    return f"{_ALL_BITS - rising:016x}{(at - _EPOCH) // timedelta(microseconds=1):016x}"


def _number(priority: object) -> float:
    if priority is None:
        return 0.0
    if isinstance(priority, str) and priority.lower() in PRIORITIES:
        return PRIORITIES[priority.lower()]
    if (
        isinstance(priority, int | float)
        and not isinstance(priority, bool)
        and abs(priority) <= sys.float_info.max
    ):
        return float(priority)
    raise InvalidInput(
        f"a task's priority is a number, or one of {', '.join(PRIORITIES)}, not {quoted(priority)}"
    )
