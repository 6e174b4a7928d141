"""AgentStateStore: snapshots and checkpoints of agents."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from heapq import merge
from itertools import islice
from typing import Any

from pydantic import Field

from vstate.arguments import check_limit
from vstate.managers.manager import Manager
from vstate.managers.record import Now, Record, moment
from vstate.patterns.paths import scope, split_path
from vstate.patterns.records import Records
from vstate.state.namespace import Namespace

__all__ = ["AgentCheckpoint", "AgentSnapshot", "AgentStateStore"]


class AgentSnapshot(Record):
    """What an agent was at a moment: its memory, its tools, its conversation.

    `snapshot_id` is given by the store that it is saved to, unless it is given here.
    """

    agent_id: str
    timestamp: Now
    memory_state: Any = Field(default_factory=dict)
    tool_state: dict[str, Any] = Field(default_factory=dict)
    conversation_history: list[Any] = Field(default_factory=list)
    metadata: dict[str, Any] = Field(default_factory=dict)
    snapshot_id: str = ""


class AgentCheckpoint(Record):
    """A state that an agent can go on from, unless it is not `recoverable`; the latest is that of the highest step,
    and of several at one step the one that was made last.
    """

    agent_id: str
    checkpoint_id: str
    step: int = Field(default=0, ge=0)
    state: Any = Field(default_factory=dict)
    recoverable: bool = True
    timestamp: Now
    metadata: dict[str, Any] = Field(default_factory=dict)


class Recovery(Record):
    """How often it was tried to recover an agent since it last did well."""

    agent_id: str
    attempts: int = 0
    last_checkpoint: str | None = None


_KINDS = ("recoverable", "other")


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
            lambda part: snapshots_of(part, taken.agent_id).put(taken), f"snapshot of agent {taken.agent_id}"
        )

    async def list_snapshots(self, agent_id: str, *, limit: int | None = None) -> list[AgentSnapshot]:
        """An agent's snapshots, oldest first; with `limit` only so many, the newest."""
        most = check_limit(limit)
        newest = await self.read(
            lambda part: list(islice(snapshots_of(part, agent_id).indexed("newest"), most))
        )
        return newest[::-1]

    async def load_snapshot(self, agent_id: str, snapshot_id: str | None = None) -> AgentSnapshot | None:
        """A snapshot of an agent, the latest unless its id is given; None if there is none."""
        if snapshot_id is not None:
            return await self.read(lambda part: snapshots_of(part, agent_id).get(snapshot_id))
        return await self.read(lambda part: next(snapshots_of(part, agent_id).indexed("newest"), None))

    # Checkpoints

    async def save_checkpoint(self, checkpoint: AgentCheckpoint) -> AgentCheckpoint:
        """Keep a checkpoint, in place of the one of this agent that has its id; as it was kept."""
        taken = AgentCheckpoint.of(checkpoint)
        return await self.change(
            lambda part: checkpoints_of(part, taken.agent_id).put(taken),
            f"checkpoint {taken.checkpoint_id} of agent {taken.agent_id} at step {taken.step}",
        )

    async def get_checkpoint(self, agent_id: str, checkpoint_id: str) -> AgentCheckpoint | None:
        """A checkpoint, None if the agent has none with this id."""
        return await self.read(lambda part: checkpoints_of(part, agent_id).get(checkpoint_id))

    async def list_checkpoints(self, agent_id: str, *, limit: int | None = None) -> list[AgentCheckpoint]:
        """An agent's checkpoints by step, and by time at one step; with `limit` only so many, the latest."""
        most = check_limit(limit)
        newest = await self.read(
            lambda part: list(islice(_newest_first(checkpoints_of(part, agent_id)), most))
        )
        return newest[::-1]

    async def latest_checkpoint(self, agent_id: str, *, recoverable: bool = False) -> AgentCheckpoint | None:
        """The checkpoint with the highest step, of several the last that was made; None if there is none.

        With `recoverable`, of those that are.
        """

        def look(part: Namespace) -> AgentCheckpoint | None:
            found = checkpoints_of(part, agent_id)
            return next(found.indexed("newest", _KINDS[0]) if recoverable else _newest_first(found), None)

        return await self.read(look)

    # Agents

    async def list_agents(self) -> list[str]:
        """The ids of all agents of which there is a snapshot or a checkpoint, sorted."""
        return sorted(
            await self.read(
                lambda part: _owners(part.namespace("snapshots")) | _owners(part.namespace("checkpoints"))
            )
        )

    async def delete(self, agent_id: str, checkpoint_id: str | None = None) -> bool:
        """Delete all that is kept of an agent, or one checkpoint; False if there was nothing. History keeps it."""

        def delete(part: Namespace) -> bool:
            snapshots, checkpoints = snapshots_of(part, agent_id), checkpoints_of(part, agent_id)
            if checkpoint_id is not None:
                return checkpoints.discard(checkpoint_id)
            found = bool(snapshots or checkpoints)
            snapshots.clear()
            checkpoints.clear()
            return recoveries_of(part).discard(agent_id) or found

        what = (
            f"agent {agent_id}"
            if checkpoint_id is None
            else f"checkpoint {checkpoint_id} of agent {agent_id}"
        )
        return await self.change(delete, f"delete {what}")


def snapshots_of(part: Namespace, agent_id: str) -> Records[AgentSnapshot]:
    """The snapshots of an agent in the part of an `AgentStateStore`."""
    return Records(
        scope(part, "snapshots", agent_id),
        AgentSnapshot,
        key="snapshot_id",
        index={"newest": lambda snapshot: -moment(snapshot.timestamp)},
    )


def checkpoints_of(part: Namespace, agent_id: str) -> Records[AgentCheckpoint]:
    """The checkpoints of an agent in it."""
    return Records(
        scope(part, "checkpoints", agent_id),
        AgentCheckpoint,
        key="checkpoint_id",
        index={"newest": lambda checkpoint: (_KINDS[not checkpoint.recoverable], *_rank(checkpoint))},
    )


def _newest_first(checkpoints: Records[AgentCheckpoint]) -> Iterator[AgentCheckpoint]:
    return merge(*(checkpoints.indexed("newest", kind) for kind in _KINDS), key=_rank)


def _rank(checkpoint: AgentCheckpoint) -> tuple[int, int]:
    return -checkpoint.step, -moment(checkpoint.timestamp)


def _owners(records: Namespace) -> set[str]:
    """Of which agents there are any: what is behind the first part of a key is the agent's own."""
    return {split_path(key.partition("/")[0])[0] for key in records.scan_keys("")}


def recoveries_of(part: Namespace) -> Records[Recovery]:
    """What an `AgentRecoveryManager` counts, in the same part."""
    return Records(part.namespace("recoveries"), Recovery, key="agent_id")
