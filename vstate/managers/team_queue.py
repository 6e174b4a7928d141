"""TaskQueue: the tasks of one team, as they are changed inside of an update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from vstate.errors import IllegalTransition, InvalidInput, quoted
from vstate.managers.priority import place
from vstate.managers.team_records import Task, TaskQueueState, TaskStatus
from vstate.patterns.lifecycle import Lifecycle
from vstate.patterns.records import Records
from vstate.state.namespace import Namespace

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
