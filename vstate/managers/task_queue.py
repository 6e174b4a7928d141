"""TaskQueue: the tasks of one team, as they are changed inside of an update."""

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
    """The tasks whose records are in this part of a state. A task that there is not raises KeyNotFound.

    Each is a record of its own, and the pending ones are in an index by their places: so nothing here depends on how
    many there are, and two that change other ones are not in each other's way.
    """

    def __init__(self, part: Namespace) -> None:
        self._tasks = Records(
            part,
            Task,
            key="task_id",
            index={"pending": lambda task: task.place if task.status is _PENDING else None},
        )

    def __getitem__(self, task_id: str) -> Task:
        return self._tasks[task_id]

    def next(self) -> Task | None:
        """The pending task whose turn it is; None if there is none."""
        return next(self._tasks.indexed("pending"), None)

    def assigned_to(self, agent_id: str) -> list[Task]:
        """The tasks that an agent is at."""
        return [
            task
            for task in self._tasks.values()
            if task.status is _IN_PROGRESS and task.assigned_to == agent_id
        ]

    def is_at(self, agent_id: str, task_id: str | None) -> bool:
        """Whether this task is in progress by this agent."""
        task = None if task_id is None else self._tasks.get(task_id)
        return task is not None and task.status is _IN_PROGRESS and task.assigned_to == agent_id

    def state(self) -> TaskQueueState:
        """All of them as they are now."""
        found = list(self._tasks.values())

        def those(status: TaskStatus, order: Callable[[Task], Any]) -> list[dict[Any, Any]]:
            return [task.as_dict() for task in sorted((t for t in found if t.status is status), key=order)]

        return TaskQueueState(
            pending=those(_PENDING, lambda task: (task.place, task.task_id)),
            in_progress=those(_IN_PROGRESS, lambda task: task.assigned_at or task.created_at),
            completed=those(TaskStatus.COMPLETED, lambda task: task.ended_at or task.created_at),
            failed=those(TaskStatus.FAILED, lambda task: task.ended_at or task.created_at),
        )

    # Changing

    def add(self, task_id: str, task: Mapping[Any, Any], at: datetime, **known: Any) -> Task:
        """Put a new task into the queue, pending unless its status is known; AlreadyExists."""
        return self._tasks.add(
            Task(
                task_id=task_id,
                task=dict(task),
                place=place(task.get("priority"), at),
                created_at=at,
                **known,
            )
        )

    def take_over(self, task: Any, status: TaskStatus) -> None:
        """Keep a task of a queue that was made elsewhere."""
        given = task if isinstance(task, Mapping) else {"id": task}
        agent_id = None if status is _PENDING else given.get("assigned_to")
        self.add(task_id_of(given), given, datetime.now(UTC), status=status, assigned_to=agent_id)

    def assign(self, task: Task, agent_id: str) -> Task:
        """Give a task to an agent; IllegalTransition unless it is pending."""
        return self._move(task, "assign", assigned_to=agent_id, assigned_at=datetime.now(UTC))

    def end(self, task: Task, event: str, agent_id: str | None, **fields: Any) -> Task:
        """Let a task be completed, fail, or go back to its place in the queue.

        Raises IllegalTransition unless it is in progress, and by this agent if one is named.
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

    def clear(self) -> None:
        """Delete all of them."""
        self._tasks.clear()

    def _move(self, task: Task, event: str, **fields: Any) -> Task:
        status = _LIFE.next(task.status, event)
        return self._tasks.put(task.model_copy(update={"status": status, **fields}))


def task_id_of(task: Mapping[Any, Any]) -> str:
    """The id of a task, under "id" or "task_id"; a new one if it has none."""
    given = task.get("id", task.get("task_id"))
    if given is None:
        return f"task-{uuid4().hex[:12]}"
    if not isinstance(given, str):
        raise InvalidInput(f"a task's id is a text, not {quoted(given)}")
    return given


WORDS = {"critical": 2.0, "urgent": 2.0, "high": 1.0, "normal": 0.0, "medium": 0.0, "low": -1.0}

_SIGN = 1 << 63
_ALL = (1 << 64) - 1
_EPOCH = datetime.fromtimestamp(0, UTC)


def place(priority: object, at: datetime) -> str:
    """A text of 32 digits that sorts the higher priority first, and the earlier moment within one.

    A priority is a number, or one of `WORDS`, which stand between the numbers as it says; None is normal. Anything
    else raises InvalidInput.
    """
    # The bits of a float sort as it does once those of a negative one are turned round; and here the highest goes first.
    (bits,) = struct.unpack(">Q", struct.pack(">d", _number(priority) + 0.0))
    rising = bits ^ (_ALL if bits & _SIGN else _SIGN)
    return f"{_ALL - rising:016x}{(at - _EPOCH) // timedelta(microseconds=1):016x}"


def _number(priority: object) -> float:
    if priority is None:
        return 0.0
    if isinstance(priority, str) and priority.lower() in WORDS:
        return WORDS[priority.lower()]
    if (
        isinstance(priority, int | float)
        and not isinstance(priority, bool)
        and abs(priority) <= sys.float_info.max
    ):
        return float(priority)
    raise InvalidInput(f"a task's priority is a number, or one of {', '.join(WORDS)}, not {quoted(priority)}")
