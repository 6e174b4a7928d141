"""Team: one team with its agents and tasks, as it is changed inside of an update."""

from __future__ import annotations

from types import EllipsisType
from typing import Any

from vstate.errors import AlreadyExists, IllegalTransition, InvalidInput, KeyNotFound
from vstate.managers.team_queue import TaskQueue
from vstate.managers.team_records import (
    AgentCoordinationState,
    AgentCoordinationStatus,
    StoredTeam,
    Task,
    TaskStatus,
    TeamState,
)
from vstate.patterns.paths import scope
from vstate.patterns.records import Records
from vstate.state.namespace import Namespace


def teams(part: Namespace) -> Records[StoredTeam]:
    """What is kept of the teams apart from their agents and tasks."""
    return Records(part.namespace("state"), StoredTeam, key="team_id")


class Team:
    """One team, whose records are in this part of a state. KeyNotFound if there is none.

    Each agent and each task is a record of its own: two that change other ones are not in each other's way.
    """

    def __init__(self, part: Namespace, team_id: str, *, known: bool = True) -> None:
        self._id = team_id
        self._teams = teams(part)
        self.agents = Records(scope(part, "agents", team_id), AgentCoordinationState, key="agent_id")
        self.queue = TaskQueue(scope(part, "tasks", team_id))
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
                made.queue.take_over(task, status)
        return made.state()

    def delete(self) -> None:
        """Delete it with all that belongs to it; the history keeps it."""
        self.agents.clear()
        self.queue.clear()
        del self._teams[self._id]

    def state(self) -> TeamState:
        """The team as it is now."""
        return TeamState(
            **dict(self._teams[self._id]),
            agents={agent.agent_id: agent for agent in self.agents.values()},
            task_queue=self.queue.state(),
        )

    # Agents

    def available_agents(self, capability: str | None = None) -> list[AgentCoordinationState]:
        """The agents that a task can be assigned to; with a capability, those of them that have it."""
        return [
            agent
            for agent in self.agents.values()
            if agent.is_available and (capability is None or capability in agent.capabilities)
        ]

    def set_status(
        self, agent_id: str, status: str, current_task: str | EllipsisType | None
    ) -> AgentCoordinationState:
        """Note what an agent does; IllegalTransition if it would leave a task that is in progress by it."""
        before = self.agents[agent_id]
        agent = self.agents.change(agent_id, status=status)
        if current_task is ...:
            current_task = None if AgentCoordinationStatus.is_free(agent.status) else before.current_task
        if current_task != before.current_task and self.queue.is_at(agent_id, before.current_task):
            task = repr(before.current_task)
            raise IllegalTransition(
                f"{before.status} at {task}",
                f"leave it and be {agent.status}",
                allowed=[f"complete_task, fail_task, or fail_task(..., requeue=True), of {task} first"],
            )
        return self.agents.change(agent_id, current_task=current_task)

    def remove_agent(self, agent_id: str) -> None:
        """Let an agent go; what it was at goes back to its place in the queue."""
        for task in self.queue.assigned_to(agent_id):
            self.queue.end(task, "requeue", agent_id)
        del self.agents[agent_id]

    # Tasks

    def assign(self, task_id: str | None, agent_id: str | None) -> Task | None:
        """Give a task to an agent, by default the next one, and to any that is free. None if there is none."""
        agent = self._free_agent() if agent_id is None else self.agents[agent_id]
        if agent is not None and not agent.is_available:
            at = f" at {agent.current_task!r}" if agent.current_task is not None else ""
            its = f"complete or fail {agent.current_task!r}" if agent.current_task is not None else "be idle"
            raise IllegalTransition(
                f"{agent.status}{at}", f"assign a task to {agent.agent_id!r}", allowed=[its]
            )
        task = self.queue.next() if task_id is None else self.queue[task_id]
        if agent is None or task is None:
            return None
        assigned = self.queue.assign(task, agent.agent_id)
        working = {"status": AgentCoordinationStatus.WORKING, "current_task": task.task_id}
        self.agents.put(agent.model_copy(update=working))
        return assigned

    def end(self, task_id: str, event: str, agent_id: str | None, **fields: Any) -> Task:
        """Let a task that is in progress be completed, fail, or go back into the queue; its agent is free again."""
        task = self.queue[task_id]
        ended = self.queue.end(task, event, agent_id, **fields)
        agent = self.agents.get(task.assigned_to) if task.assigned_to is not None else None
        if agent is not None and agent.current_task == task_id:
            self.agents.change(agent.agent_id, status=AgentCoordinationStatus.IDLE, current_task=None)
        return ended

    def _free_agent(self) -> AgentCoordinationState | None:
        return next((agent for agent in self.agents.values() if agent.is_available), None)
