"""OrchestrationStateManager: teams of agents, and the tasks that they share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from types import EllipsisType
from typing import Any

from vstate.arguments import check_seconds
from vstate.managers.manager import Manager, Subject
from vstate.managers.persistence import DIRECTORY, Persistence
from vstate.managers.record import taken, taken_dict
from vstate.managers.team import Team, teams
from vstate.managers.team_queue import task_id_of
from vstate.managers.team_records import AgentCoordinationState, TaskQueueState, TeamState


class OrchestrationStateManager(Manager):
    """Teams: who is in them, what each agent is at, and a queue of tasks that any number of processes pull from.

    - Assigning a task is one commit: it goes to one agent, and to no second one, and an agent has one task at a time.
    - The next task is the one of the highest priority, and of these the first to come, by the clock of whoever
      enqueued it. A priority is a number, or a word: critical or urgent (2), high (1), normal or medium (0), low (-1).
    - What is not possible in the status that a task or an agent is in raises IllegalTransition, and changes nothing.
    - `get_team` gives None for a team that there is not; every other method raises KeyNotFound.
    - `sync_interval` is how often `watch_agents` looks at what other processes wrote, in seconds. Every other method
      goes by the newest commit anyway.
    """

    part = "teams"

    def __init__(
        self,
        persistence: Persistence = "memory",
        *,
        redis_url: str | None = None,
        path: str = DIRECTORY,
        sync_interval: float = 1.0,
    ) -> None:
        check_seconds("sync_interval", sync_interval)
        super().__init__(persistence, redis_url=redis_url, path=path)
        self._sync_interval = sync_interval
        self._latest = datetime.fromtimestamp(0, UTC)

    # Teams

    async def create_team(self, team: TeamState) -> TeamState:
        """Keep a new team, with its agents and the tasks in its queue; AlreadyExists."""
        team = TeamState.of(team)
        return await self.change(lambda part: Team.create(part, team), f"team {team.team_id}: created")

    async def get_team(self, team_id: str) -> TeamState | None:
        """The team as it is now; None if there is none."""
        return await self.read(lambda part: Team(part, team_id).state() if team_id in teams(part) else None)

    async def list_teams(self) -> list[TeamState]:
        """All teams, in the order of their ids."""
        return await self.read(
            lambda part: [Team(part, team.team_id).state() for team in teams(part).values()]
        )

    async def delete_team(self, team_id: str) -> None:
        """Delete a team, its agents and its tasks."""
        await self._team(team_id).change(lambda team: team.delete(), "deleted")

    # Agents

    async def add_agent(self, team_id: str, agent: AgentCoordinationState) -> AgentCoordinationState:
        """Take an agent into a team; AlreadyExists."""
        agent = AgentCoordinationState.of(agent)
        return await self._team(team_id).change(
            lambda team: team.agents.add(agent), f"agent {agent.agent_id} joined"
        )

    async def remove_agent(self, team_id: str, agent_id: str) -> None:
        """Let an agent go. The task that it is at goes back into the queue, to the place that it had."""
        await self._team(team_id).change(lambda team: team.remove_agent(agent_id), f"agent {agent_id} left")

    async def update_agent_status(
        self, team_id: str, agent_id: str, status: str, current_task: str | EllipsisType | None = ...
    ) -> AgentCoordinationState:
        """Note what an agent does, and at which task; if that is left out, at none if it is idle, or as before.

        A task that was assigned to it ends by `complete_task` or `fail_task` alone: IllegalTransition.
        """
        return await self._team(team_id).change(
            lambda team: team.set_status(agent_id, status, current_task), f"agent {agent_id} is {status}"
        )

    async def get_available_agents(
        self, team_id: str, capability: str | None = None
    ) -> list[AgentCoordinationState]:
        """The agents that could take a task, idle and without one; with a capability, those that have it."""
        return await self._team(team_id).read(lambda team: team.available_agents(capability))

    async def watch_agents(self, team_id: str) -> AsyncIterator[AgentCoordinationState]:
        """Each agent of a team as it is, and again whenever it has changed, every `sync_interval` seconds.

        Agents that join come too; what changes several times in between comes once. It ends only with its loop, or
        with KeyNotFound once the team is deleted.
        """
        known: dict[str, AgentCoordinationState] = {}
        while True:
            agents = await self._team(team_id).read(lambda team: list(team.agents.values()))
            for agent in agents:
                if known.get(agent.agent_id) != agent:
                    yield agent
            known = {agent.agent_id: agent for agent in agents}
            await asyncio.sleep(self._sync_interval)

    # Tasks

    async def enqueue_task(self, team_id: str, task: Mapping[str, Any]) -> str:
        """Put a task into the queue, and give back its id: what it has under "id" or "task_id", or a new one.

        Its "priority" says when its turn comes; all else in it is the program's own. AlreadyExists for an id that
        any task of the team has or had.
        """
        task = taken_dict(task, "task")
        task_id = task_id_of(task)
        # One after the other, also where the clock stands still or goes back.
        self._latest = at = max(datetime.now(UTC), self._latest + timedelta(microseconds=1))
        await self._team(team_id).change(
            lambda team: team.queue.add(task_id, task, at), f"task {task_id} enqueued"
        )
        return task_id

    async def assign_task(
        self, team_id: str, task_id: str | None = None, agent_id: str | None = None
    ) -> dict[Any, Any] | None:
        """Give a task to an agent: the next one unless it is named, and to any agent that is free unless one is.

        The result is the task as a dict; None if no task is pending, or no agent free. Raises IllegalTransition if the
        task that was named is not pending, or the agent busy.
        """
        task = await self._team(team_id).change(
            lambda team: team.assign(task_id, agent_id),
            lambda task: f"task {task.task_id} to {task.assigned_to}" if task is not None else "no task",
        )
        return None if task is None else task.as_dict()

    async def complete_task(
        self, team_id: str, task_id: str, result: Any = None, *, agent_id: str | None = None
    ) -> dict[Any, Any]:
        """A task is done, with this result, and its agent idle again.

        Raises IllegalTransition unless it is in progress, and by this agent if one is named.
        """
        return await self._end(
            team_id, task_id, "complete", "completed", agent_id, result=taken(result, "result")
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
        """A task failed, and its agent is idle again; `requeue` puts it back into the queue, to the place it had.

        Raises IllegalTransition unless it is in progress, and by this agent if one is named.
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
        """The tasks of a team by their status."""
        return await self._team(team_id).read(lambda team: team.queue.state())

    def _team(self, team_id: str) -> Subject[Team]:
        return self.about(f"team {team_id}", lambda part: Team(part, team_id))
