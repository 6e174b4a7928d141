"""AgentStateStore: snapshots and checkpoints of agents."""

from __future__ import annotations

import secrets
from itertools import islice

from vstate.managers.agent_records import AgentCheckpoint, AgentSnapshot, Recovery
from vstate.managers.manager import Manager
from vstate.managers.ranked import Ranked, moment
from vstate.patterns.records import Records
from vstate.repo.limit import check_limit
from vstate.state.namespace import Namespace


class AgentStateStore(Manager):
    """What agents were: `AgentStateStore("redis", redis_url="redis://localhost:6379")`.

    A snapshot is all of an agent at a moment, a checkpoint a state to go on from. Both are lists to look back in,
    newest last; "latest" goes by time, and for checkpoints by step first. All methods are about exactly one agent.
    """

    part = "agents"

    # Snapshots

    async def save_snapshot(self, snapshot: AgentSnapshot) -> AgentSnapshot:
        """Keep a snapshot; as it was kept, with its `snapshot_id`. One that has that id already is replaced."""
        taken = AgentSnapshot.of(snapshot)
        taken.snapshot_id = taken.snapshot_id or secrets.token_hex(8)
        return await self.change(
            lambda part: snapshots_of(part).put(taken), f"snapshot of agent {taken.agent_id}"
        )

    async def list_snapshots(self, agent_id: str, *, limit: int | None = None) -> list[AgentSnapshot]:
        """An agent's snapshots, oldest first; with `limit` only so many, the newest."""
        most = check_limit(limit)
        newest = await self.read(lambda part: list(islice(snapshots_of(part).newest_first(agent_id), most)))
        return newest[::-1]

    async def load_snapshot(self, agent_id: str, snapshot_id: str | None = None) -> AgentSnapshot | None:
        """A snapshot of an agent, the latest unless its id is given; None if there is none."""
        if snapshot_id is not None:
            return await self.read(lambda part: snapshots_of(part).get(agent_id, snapshot_id))
        return await self.read(lambda part: next(snapshots_of(part).newest_first(agent_id), None))

    # Checkpoints

    async def save_checkpoint(self, checkpoint: AgentCheckpoint) -> AgentCheckpoint:
        """Keep a checkpoint, in place of the one of this agent that has its id; as it was kept."""
        taken = AgentCheckpoint.of(checkpoint)
        return await self.change(
            lambda part: checkpoints_of(part).put(taken),
            f"checkpoint {taken.checkpoint_id} of agent {taken.agent_id} at step {taken.step}",
        )

    async def get_checkpoint(self, agent_id: str, checkpoint_id: str) -> AgentCheckpoint | None:
        """A checkpoint, None if the agent has none with this id."""
        return await self.read(lambda part: checkpoints_of(part).get(agent_id, checkpoint_id))

    async def list_checkpoints(self, agent_id: str, *, limit: int | None = None) -> list[AgentCheckpoint]:
        """An agent's checkpoints by step, and by time at one step; with `limit` only so many, the latest."""
        most = check_limit(limit)
        newest = await self.read(lambda part: list(islice(checkpoints_of(part).newest_first(agent_id), most)))
        return newest[::-1]

    async def latest_checkpoint(self, agent_id: str, *, recoverable: bool = False) -> AgentCheckpoint | None:
        """The checkpoint with the highest step, of several the last that was made; None if there is none.

        With `recoverable`, of those that are.
        """
        return await self.read(
            lambda part: next(checkpoints_of(part).newest_first(agent_id, marked=recoverable), None)
        )

    # Agents

    async def list_agents(self) -> list[str]:
        """The ids of all agents of which there is a snapshot or a checkpoint, sorted."""
        return sorted(
            await self.read(lambda part: snapshots_of(part).owners() | checkpoints_of(part).owners())
        )

    async def delete(self, agent_id: str, checkpoint_id: str | None = None) -> bool:
        """Delete all that is kept of an agent, or one checkpoint; False if there was nothing. History keeps it."""

        def delete(part: Namespace) -> bool:
            if checkpoint_id is not None:
                return checkpoints_of(part).delete(agent_id, checkpoint_id)
            deleted = snapshots_of(part).delete_all(agent_id) + checkpoints_of(part).delete_all(agent_id)
            return recoveries_of(part).discard(agent_id) or deleted > 0

        what = (
            f"agent {agent_id}"
            if checkpoint_id is None
            else f"checkpoint {checkpoint_id} of agent {agent_id}"
        )
        return await self.change(delete, f"delete {what}")


def snapshots_of(part: Namespace) -> Ranked[AgentSnapshot]:
    """The snapshots in the part of an `AgentStateStore`."""
    return Ranked(
        part,
        "snapshots",
        AgentSnapshot,
        key=("agent_id", "snapshot_id"),
        rank=lambda snapshot: (moment(snapshot.timestamp),),
    )


def checkpoints_of(part: Namespace) -> Ranked[AgentCheckpoint]:
    """The checkpoints in it."""
    return Ranked(
        part,
        "checkpoints",
        AgentCheckpoint,
        key=("agent_id", "checkpoint_id"),
        rank=lambda checkpoint: (checkpoint.step, moment(checkpoint.timestamp)),
        mark=lambda checkpoint: checkpoint.recoverable,
    )


def recoveries_of(part: Namespace) -> Records[Recovery]:
    """What an `AgentRecoveryManager` counts, in the same part."""
    return Records(part.namespace("recoveries"), Recovery, key="agent_id")
