"""Team: one team with its agents and tasks, as it is changed inside of an update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import EllipsisType
from typing import Any
from uuid import uuid4

from vstate.errors import AlreadyExists, IllegalTransition, InvalidInput, KeyNotFound
from vstate.managers.priority import place
from vstate.managers.team_records import (
    AgentCoordinationState,
    AgentCoordinationStatus,
    StoredTeam,
    Task,
    TaskQueueState,
    TaskStatus,
    TeamState,
)
from vstate.patterns.lifecycle import Lifecycle
from vstate.patterns.paths import join_path, scope, split_path
from vstate.patterns.records import Records
from vstate.state.namespace import Namespace

_LIFE = Lifecycle(
    {
        (TaskStatus.PENDING, "assign"): TaskStatus.IN_PROGRESS,
        (TaskStatus.IN_PROGRESS, "complete"): TaskStatus.COMPLETED,
        (TaskStatus.IN_PROGRESS, "fail"): TaskStatus.FAILED,
        (TaskStatus.IN_PROGRESS, "requeue"): TaskStatus.PENDING,
    },
    initial=TaskStatus.PENDING,
)


def teams(part: Namespace) -> Records[StoredTeam]:
    """What is kept of the teams apart from their agents and tasks."""
    return Records(part.namespace("state"), StoredTeam, key="team_id")


class Team:
    """One team, whose records are in this part of a state. KeyNotFound if there is none.

    Each agent and each task is a record of its own, and each pending task has a key that sorts by its place: so
    nothing here depends on how many there are, and two that change other ones are not in each other's way.
    """

    def __init__(self, part: Namespace, team_id: str, *, known: bool = True) -> None:
        self._id = team_id
        self._teams = teams(part)
        self.agents = Records(scope(part, "agents", team_id), AgentCoordinationState, key="agent_id")
        self.tasks = Records(scope(part, "tasks", team_id), Task, key="task_id")
        self._pending = scope(part, "pending", team_id)
        if known and team_id not in self._teams:
            raise KeyNotFound(team_id, kind="team")

    @classmethod
    def create(cls, part: Namespace, team: TeamState) -> TeamState:
        """Keep a new team with its agents, and with the tasks of its queue; AlreadyExists."""
        made, own = cls(part, team.team_id, known=False), ("agents", "task_queue")
        if team.team_id in made._teams:
            raise AlreadyExists(f"there is a team {team.team_id!r} already", name=team.team_id)
        made._teams.add(StoredTeam(**{name: value for name, value in team if name not in own}))
        for agent_id, agent in team.agents.items():
            if agent_id != agent.agent_id:
                raise InvalidInput(
                    f"the agent {agent.agent_id!r} is under the id {agent_id!r}: give it one id"
                )
            made.agents.add(agent)
        for status in TaskStatus:
            for task in getattr(team.task_queue, status.value):
                made._take_over(task, status)
        return made.state()

    def delete(self) -> None:
        """Delete it with all that belongs to it; the history keeps it."""
        for records in (self.agents, self.tasks):
            for id in list(records):
                del records[id]
        self._pending.clear()
        del self._teams[self._id]

    def state(self) -> TeamState:
        """The team as it is now."""
        return TeamState(
            **dict(self._teams[self._id]),
            agents={agent.agent_id: agent for agent in self.agents.values()},
            task_queue=self.queue(),
        )

    def queue(self) -> TaskQueueState:
        """Its tasks as they are now."""
        found = list(self.tasks.values())

        def those(status: TaskStatus, order: Callable[[Task], Any]) -> list[dict[Any, Any]]:
            return [task.as_dict() for task in sorted((t for t in found if t.status is status), key=order)]

        return TaskQueueState(
            pending=those(TaskStatus.PENDING, lambda task: (task.place, task.task_id)),
            in_progress=those(TaskStatus.IN_PROGRESS, lambda task: task.assigned_at or task.created_at),
            completed=those(TaskStatus.COMPLETED, lambda task: task.ended_at or task.created_at),
            failed=those(TaskStatus.FAILED, lambda task: task.ended_at or task.created_at),
        )

    # Agents

    def set_status(
        self, agent_id: str, status: str, current_task: str | EllipsisType | None
    ) -> AgentCoordinationState:
        """Note what an agent does."""
        agent = self.agents[agent_id]
        agent.status = status
        if current_task is not ...:
            agent.current_task = current_task
        elif AgentCoordinationStatus.is_free(agent.status):
            agent.current_task = None
        return self.agents.put(agent)

    def remove_agent(self, agent_id: str) -> None:
        """Let an agent go; what it was at goes back to its place in the queue."""
        for task in list(self.tasks.values()):
            if task.status is TaskStatus.IN_PROGRESS and task.assigned_to == agent_id:
                self._put_back(task)
        del self.agents[agent_id]

    # Tasks

    def enqueue(self, task_id: str, task: Mapping[Any, Any], at: datetime) -> Task:
        """Put a new task into the queue; AlreadyExists."""
        made = Task(task_id=task_id, task=dict(task), place=place(task.get("priority"), at), created_at=at)
        self.tasks.add(made)
        self._wait(made)
        return made

    def assign(self, task_id: str | None, agent_id: str | None) -> Task | None:
        """Give a task to an agent, by default the next one, and to any that is free. None if there is none."""
        agent = self._free_agent() if agent_id is None else self.agents[agent_id]
        if agent is not None and not agent.is_available:
            at = f" at {agent.current_task!r}" if agent.current_task is not None else ""
            its = f"complete or fail {agent.current_task!r}" if agent.current_task is not None else "be idle"
            raise IllegalTransition(
                f"{agent.status}{at}", f"assign a task to {agent.agent_id!r}", allowed=[its]
            )
        if task_id is None:
            task_id = next((split_path(key)[1] for key in self._pending), None)
        if agent is None or task_id is None:
            return None
        task = self.tasks[task_id]
        task.status = _LIFE.next(task.status, "assign")
        task.assigned_to, task.assigned_at = agent.agent_id, datetime.now(UTC)
        del self._pending[_waiting(task)]
        agent.status, agent.current_task = AgentCoordinationStatus.WORKING, task_id
        self.agents.put(agent)
        return self.tasks.put(task)

    def end(self, task_id: str, event: str, agent_id: str | None, **fields: Any) -> Task:
        """Let a task that is in progress be completed, fail, or go back into the queue; its agent is free again."""
        task = self.tasks[task_id]
        status = _LIFE.next(task.status, event)
        if agent_id is not None and agent_id != task.assigned_to:
            raise IllegalTransition(
                f"in progress by {task.assigned_to!r}",
                f"{event} {task_id!r} by {agent_id!r}",
                allowed=[f"{event} {task_id!r} by {task.assigned_to!r}"],
            )
        agent = self.agents.get(task.assigned_to) if task.assigned_to is not None else None
        if agent is not None and agent.current_task == task_id:
            self.agents.change(agent.agent_id, status=AgentCoordinationStatus.IDLE, current_task=None)
        for name, value in fields.items():
            setattr(task, name, value)
        if status is TaskStatus.PENDING:
            return self._put_back(task)
        task.status, task.ended_at = status, datetime.now(UTC)
        return self.tasks.put(task)

    def _put_back(self, task: Task) -> Task:
        task.status, task.assigned_to, task.assigned_at = TaskStatus.PENDING, None, None
        self._wait(task)
        return self.tasks.put(task)

    def _wait(self, task: Task) -> None:
        self._pending[_waiting(task)] = task.task.get("priority")

    def _free_agent(self) -> AgentCoordinationState | None:
        return next((agent for agent in self.agents.values() if agent.is_available), None)

    def _take_over(self, task: Any, status: TaskStatus) -> None:
        """Keep a task of a queue that was made elsewhere."""
        given = task if isinstance(task, Mapping) else {"id": task}
        made = self.enqueue(task_id_of(given), given, datetime.now(UTC))
        if status is not TaskStatus.PENDING:
            del self._pending[_waiting(made)]
            self.tasks.change(made.task_id, status=status, assigned_to=given.get("assigned_to"))


def task_id_of(task: Mapping[Any, Any]) -> str:
    """The id of a task, under "id" or "task_id"; a new one if it has none."""
    given = task.get("id", task.get("task_id"))
    if given is None:
        return f"task-{uuid4().hex[:12]}"
    if not isinstance(given, str):
        raise InvalidInput(f"a task's id is a text, not {given!r}")
    return given


def _waiting(task: Task) -> str:
    return join_path(task.place, task.task_id)
