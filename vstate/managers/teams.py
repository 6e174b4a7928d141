"""OrchestrationStateManager: teams of agents, and their shared tasks."""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import EllipsisType
from typing import Any, Unpack
from uuid import uuid4

from pydantic import Field

from vstate.arguments import check_seconds
from vstate.errors import AlreadyExists, IllegalTransition, InvalidInput, KeyNotFound, quoted
from vstate.managers.backends import Persistence, Where
from vstate.managers.manager import Entity, Manager
from vstate.managers.record import Record, StatusText, dict_copy, index_time, kept, record_copy
from vstate.patterns.copies import checked_copy
from vstate.patterns.lifecycle import Lifecycle
from vstate.state.namespace import Namespace

__all__ = [
    "AgentCoordinationState",
    "AgentCoordinationStatus",
    "OrchestrationStateManager",
    "TaskQueueState",
    "TaskStatus",
    "TeamState",
]

PRIORITIES = {"critical": 2.0, "urgent": 2.0, "high": 1.0, "normal": 0.0, "medium": 0.0, "low": -1.0}

_EPOCH = datetime.fromtimestamp(0, UTC)
_SIGN = 1 << 63
_ALL_BITS = (1 << 64) - 1


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

    @property
    def turn(self) -> tuple[datetime, str, str]:
        """What orders the tasks of one status: their times in it, or their places while they are pending."""
        at = {_PENDING: _EPOCH, _IN_PROGRESS: self.assigned_at}.get(self.status, self.ended_at)
        return at or self.created_at, self.place if self.status is _PENDING else "", self.task_id

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


class AgentCoordinationStatus(StrEnum):
    """The status of an agent. Other texts are allowed too. Only IDLE and AVAILABLE agents are free."""

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
        """Whether an agent with this status takes a task."""
        return status in (cls.IDLE, cls.AVAILABLE)


class AgentCoordinationState(Record):
    """An agent of a team."""

    agent_id: str
    status: StatusText = "idle"
    capabilities: list[str] = Field(default_factory=list)
    current_task: str | None = None

    @property
    def is_available(self) -> bool:
        """Whether a task can be assigned to the agent."""
        return AgentCoordinationStatus.is_free(self.status) and self.current_task is None


class TeamState(Record):
    """A team with its agents and tasks."""

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
    """The record of a team, without its agents and tasks: each of these is a record of its own."""

    team_id: str


class OrchestrationStateManager(Manager):
    """Teams of agents, and a queue of tasks for each team, from which any number of processes pull.

    - To assign a task is one commit: the task goes to one agent, and an agent has one task at a time.
    - The next task is the one with the highest priority, and among equals the one enqueued first, by the
      clock of its process. A priority is a number, or a word: critical or urgent (2), high (1), normal or
      medium (0), low (-1).
    - A change that the status of a task or agent forbids raises IllegalTransition, and changes nothing.
    - `get_team` returns None for an unknown team; every other method raises KeyNotFound.
    - `sync_interval` is the time between two looks of `watch_agents`, in seconds. Every other method sees the
      newest commit at once.
    """

    part = "teams"

    def __init__(
        self,
        persistence: Persistence = "memory",
        *,
        sync_interval: float = 1.0,
        **where: Unpack[Where],
    ) -> None:
        check_seconds("sync_interval", sync_interval)
        super().__init__(persistence, **where)
        self._sync_interval = sync_interval
        self._latest = datetime.fromtimestamp(0, UTC)

    # Teams

    async def create_team(self, team: TeamState) -> TeamState:
        """Create a team, with its agents and the tasks of its queue. Raises AlreadyExists."""
        team = record_copy(TeamState, team)
        return await self.change(lambda part: Team.create(part, team), f"team {team.team_id}: created")

    async def get_team(self, team_id: str) -> TeamState | None:
        """The team as it is now, or None."""
        return await self.read(lambda part: Team(part, team_id).state() if team_id in teams(part) else None)

    async def list_teams(self) -> list[TeamState]:
        """All teams in order of id."""
        return await self.read(
            lambda part: [Team(part, team.team_id).state() for team in teams(part).values()]
        )

    async def delete_team(self, team_id: str) -> None:
        """Delete a team, its agents and its tasks."""
        await self._team(team_id).change(lambda team: team.delete(), "deleted")

    # Agents

    async def add_agent(self, team_id: str, agent: AgentCoordinationState) -> AgentCoordinationState:
        """Add an agent to a team. Raises AlreadyExists."""
        agent = record_copy(AgentCoordinationState, agent)
        return await self._team(team_id).change(
            lambda team: team.agents.add(agent), f"agent {agent.agent_id} joined"
        )

    async def remove_agent(self, team_id: str, agent_id: str) -> None:
        """Remove an agent. Its task goes back to its old place in the queue."""
        await self._team(team_id).change(lambda team: team.remove_agent(agent_id), f"agent {agent_id} left")

    async def update_agent_status(
        self, team_id: str, agent_id: str, status: str, current_task: str | EllipsisType | None = ...
    ) -> AgentCoordinationState:
        """Set the status and the task of an agent. By default a free agent has no task, others keep theirs.

        Raises IllegalTransition if the agent would leave an assigned task: only `complete_task` and
        `fail_task` end it.
        """
        return await self._team(team_id).change(
            lambda team: team.set_status(agent_id, status, current_task), f"agent {agent_id} is {status}"
        )

    async def get_available_agents(
        self, team_id: str, capability: str | None = None
    ) -> list[AgentCoordinationState]:
        """The agents that can take a task; with a capability, those that have it."""
        agents = await self._agents(team_id)
        return [
            agent
            for agent in agents
            if agent.is_available and (capability is None or capability in agent.capabilities)
        ]

    async def watch_agents(self, team_id: str) -> AsyncIterator[AgentCoordinationState]:
        """Yield each agent of a team, and again after each change, new agents too.

        It looks every `sync_interval` seconds; several changes in between are one. It ends when its consumer
        stops, or with KeyNotFound once the team is deleted.
        """
        known: dict[str, AgentCoordinationState] = {}
        while True:
            agents = await self._agents(team_id)
            for agent in agents:
                if known.get(agent.agent_id) != agent:
                    yield agent
            known = {agent.agent_id: agent for agent in agents}
            await asyncio.sleep(self._sync_interval)

    async def _agents(self, team_id: str) -> list[AgentCoordinationState]:
        return await self._team(team_id).read(lambda team: list(team.agents.values()))

    # Tasks

    async def enqueue_task(self, team_id: str, task: Mapping[str, Any]) -> str:
        """Put a task into the queue, and return its id: its "id" or "task_id", or a new one.

        Its "priority" decides its turn; other fields are for the program. Raises AlreadyExists if any task of
        the team has the id, ended tasks included.
        """
        task = dict_copy(task, "task")
        task_id = task_id_of(task)
        # Keep the order of calls, even if the clock stands still or goes back.
        self._latest = at = max(datetime.now(UTC), self._latest + timedelta(microseconds=1))
        await self._team(team_id).change(
            lambda team: team.add_task(task_id, task, at), f"task {task_id} enqueued"
        )
        return task_id

    async def assign_task(
        self, team_id: str, task_id: str | None = None, agent_id: str | None = None
    ) -> dict[Any, Any] | None:
        """Assign a task to an agent: by default the next task, and any free agent.

        Returns the task as a dict; None if no task is pending or no agent is free. Raises IllegalTransition
        if the named task is not pending, or the named agent is busy. An agent that is named takes the task,
        if its current task was only noted by `update_agent_status` and is not in progress in the queue.
        """
        task = await self._team(team_id).change(
            lambda team: team.assign(task_id, agent_id),
            lambda task: f"task {task.task_id} to {task.assigned_to}" if task is not None else "no task",
        )
        return None if task is None else task.as_dict()

    async def complete_task(
        self, team_id: str, task_id: str, result: Any = None, *, agent_id: str | None = None
    ) -> dict[Any, Any]:
        """Complete a task with a result. Its agent is idle again.

        Raises IllegalTransition unless the task is in progress, and by this agent if one is named.
        """
        return await self._end(
            team_id, task_id, "complete", "completed", agent_id, result=checked_copy(result, "result")
        )

    async def fail_task(
        self,
        team_id: str,
        task_id: str,
        error: str | None = None,
        *,
        agent_id: str | None = None,
        requeue: bool = False,
    ) -> dict[Any, Any]:
        """Fail a task; `requeue` puts it back at its old place in the queue. Its agent is idle again.

        Raises IllegalTransition unless the task is in progress, and by this agent if one is named.
        """
        event, done = ("requeue", "failed, back in the queue") if requeue else ("fail", "failed")
        return await self._end(team_id, task_id, event, done, agent_id, error=error)

    async def _end(
        self, team_id: str, task_id: str, event: str, done: str, agent_id: str | None, **fields: Any
    ) -> dict[Any, Any]:
        task = await self._team(team_id).change(
            lambda team: team.end(task_id, event, agent_id, **fields), f"task {task_id} {done}"
        )
        return task.as_dict()

    async def get_queue_status(self, team_id: str) -> TaskQueueState:
        """The tasks of a team by status."""
        return await self._team(team_id).read(lambda team: team.queue())

    def _team(self, team_id: str) -> Entity[Team]:
        return Entity(self, f"team {team_id}", lambda part: Team(part, team_id))


teams = kept("state", StoredTeam, key="team_id")
"""The records of the teams, without their agents and tasks."""
_agents = kept("agents", AgentCoordinationState, key="agent_id")
_tasks = kept(
    "tasks",
    Task,
    key="task_id",
    index={"pending": lambda task: task.place if task.status is _PENDING else None},
)


class Team:
    """One team in this part of a state, for use inside an update. Raises KeyNotFound if there is none.

    Each agent and each task is a record of its own, and an index holds the pending tasks. So no change
    depends on the number of tasks, and changes of different agents and tasks do not conflict.
    """

    def __init__(self, part: Namespace, team_id: str) -> None:
        self._id = team_id
        self._teams = teams(part)
        self.agents = _agents(part, team_id)
        self.tasks = _tasks(part, team_id)
        if team_id not in self._teams:
            raise KeyNotFound(team_id, kind="team")

    @classmethod
    def create(cls, part: Namespace, team: TeamState) -> TeamState:
        """Write a new team with its agents and the tasks of its queue. Raises AlreadyExists."""
        if team.team_id in teams(part):
            raise AlreadyExists(f"there is a team {team.team_id!r} already", name=team.team_id)
        own = {name: value for name, value in team if name not in ("agents", "task_queue")}
        teams(part).add(StoredTeam(**own))
        new = cls(part, team.team_id)
        for agent_id, agent in team.agents.items():
            if agent_id != agent.agent_id:
                raise InvalidInput(
                    f"the agent {agent.agent_id!r} is under the id {agent_id!r}: give it one id"
                )
            new.agents.add(agent)
        for status in TaskStatus:
            for given in getattr(team.task_queue, status.value):
                task = given if isinstance(given, Mapping) else {"id": given}
                by = None if status is _PENDING else task.get("assigned_to")
                new.add_task(task_id_of(task), task, datetime.now(UTC), status=status, assigned_to=by)
        return new.state()

    def delete(self) -> None:
        self.agents.clear()
        self.tasks.clear()
        del self._teams[self._id]

    def state(self) -> TeamState:
        return TeamState(
            **dict(self._teams[self._id]),
            agents={agent.agent_id: agent for agent in self.agents.values()},
            task_queue=self.queue(),
        )

    # Agents

    def set_status(
        self, agent_id: str, status: str, current_task: str | EllipsisType | None
    ) -> AgentCoordinationState:
        """Set the status of an agent. Raises IllegalTransition if it would leave a task in progress."""
        before = self.agents[agent_id]
        agent = self.agents.change(agent_id, status=status)
        if current_task is ...:
            current_task = None if AgentCoordinationStatus.is_free(agent.status) else before.current_task
        if current_task != before.current_task and self._is_at_its_task(before):
            task = repr(before.current_task)
            raise IllegalTransition(
                f"{before.status} at {task}",
                f"leave it and be {agent.status}",
                allowed=[f"complete_task, fail_task, or fail_task(..., requeue=True), of {task} first"],
            )
        return self.agents.change(agent_id, current_task=current_task)

    def remove_agent(self, agent_id: str) -> None:
        for task in list(self.tasks.values()):
            if task.is_by(agent_id):
                self._move(task, "requeue", assigned_to=None, assigned_at=None)
        del self.agents[agent_id]

    def _is_at_its_task(self, agent: AgentCoordinationState) -> bool:
        """Whether the current task of the agent is in progress. Otherwise it was only noted."""
        task = None if agent.current_task is None else self.tasks.get(agent.current_task)
        return task is not None and task.is_by(agent.agent_id)

    # Tasks

    def queue(self) -> TaskQueueState:
        """All tasks as they are now."""
        queue: dict[str, list[dict[Any, Any]]] = {status.value: [] for status in TaskStatus}
        for task in sorted(self.tasks.values(), key=lambda task: task.turn):
            queue[task.status.value].append(task.as_dict())
        return TaskQueueState.model_validate(queue)

    def add_task(self, task_id: str, task: Mapping[Any, Any], at: datetime, **known: Any) -> Task:
        """Add a new task, pending unless `known` has a status. Raises AlreadyExists."""
        where = place(task.get("priority"), at)
        return self.tasks.add(Task(task_id=task_id, task=dict(task), place=where, created_at=at, **known))

    def assign(self, task_id: str | None, agent_id: str | None) -> Task | None:
        """Assign a task to an agent, by default the next task and any free agent; None if there is none."""
        if agent_id is None:
            agent = next((agent for agent in self.agents.values() if agent.is_available), None)
        else:
            agent = self.agents[agent_id]
            at = agent.current_task
            # A current task that was only noted ends here.
            if not agent.is_available and (at is None or self._is_at_its_task(agent)):
                raise IllegalTransition(
                    agent.status if at is None else f"{agent.status} at {at!r}",
                    f"assign a task to {agent_id!r}",
                    allowed=["be idle" if at is None else f"complete or fail {at!r}"],
                )
        task = next(self.tasks.indexed("pending"), None) if task_id is None else self.tasks[task_id]
        if agent is None or task is None:
            return None
        assigned = self._move(task, "assign", assigned_to=agent.agent_id, assigned_at=datetime.now(UTC))
        working = {"status": AgentCoordinationStatus.WORKING, "current_task": task.task_id}
        self.agents.put(agent.model_copy(update=working))
        return assigned

    def end(self, task_id: str, event: str, agent_id: str | None, **fields: Any) -> Task:
        """Complete a task, fail it, or requeue it at its old place. Its agent is free again.

        Raises IllegalTransition unless the task is in progress, and by this agent if one is named.
        """
        task = self.tasks[task_id]
        if task.status is _IN_PROGRESS and agent_id not in (None, task.assigned_to):
            raise IllegalTransition(
                f"in progress by {task.assigned_to!r}",
                f"{event} {task_id!r} by {agent_id!r}",
                allowed=[f"{event} {task_id!r} by {task.assigned_to!r}"],
            )
        times = (
            {"assigned_to": None, "assigned_at": None}
            if event == "requeue"
            else {"ended_at": datetime.now(UTC)}
        )
        ended = self._move(task, event, **times, **fields)
        agent = self.agents.get(task.assigned_to) if task.assigned_to is not None else None
        if agent is not None and agent.current_task == task_id:
            self.agents.change(agent.agent_id, status=AgentCoordinationStatus.IDLE, current_task=None)
        return ended

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
    return f"{_ALL_BITS - rising:016x}{index_time(at):016x}"


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
