"""AgentStateStore: snapshots and checkpoints of agents."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import datetime
from itertools import islice
from typing import Any, TypeVar

from pydantic import Field

from vstate.arguments import check_limit
from vstate.managers.manager import Manager
from vstate.managers.record import Record, index_time, kept, record_copy
from vstate.patterns.paths import split_path
from vstate.patterns.records import Records
from vstate.state.namespace import Namespace

__all__ = ["AgentCheckpoint", "AgentSnapshot", "AgentStateStore"]


R = TypeVar("R", bound=Record)


class AgentSnapshot(Record):
    """All of an agent at a moment: its memory, its tools, its conversation.

    The store chooses a `snapshot_id` if this is empty.
    """

    agent_id: str
    timestamp: datetime = Field(default_factory=datetime.now)
    memory_state: Any = Field(default_factory=dict)
    tool_state: dict[str, Any] = Field(default_factory=dict)
    conversation_history: list[Any] = Field(default_factory=list)
    metadata: dict[str, Any] = Field(default_factory=dict)
    snapshot_id: str = ""


class AgentCheckpoint(Record):
    """A state from which an agent can go on, unless it is not `recoverable`.

    The latest checkpoint is the one with the highest step, and at one step the one with the latest time.
    """

    agent_id: str
    checkpoint_id: str
    step: int = Field(default=0, ge=0)
    state: Any = Field(default_factory=dict)
    recoverable: bool = True
    timestamp: datetime = Field(default_factory=datetime.now)
    metadata: dict[str, Any] = Field(default_factory=dict)


class Recovery(Record):
    """The recovery attempts of an agent since its last success."""

    agent_id: str
    attempts: int = 0
    last_checkpoint: str | None = None


class AgentStateStore(Manager):
    """Snapshots and checkpoints of agents: `AgentStateStore("redis", redis_url="redis://localhost:6379")`.

    A snapshot is all of an agent at a moment; a checkpoint is a state to go on from. Lists are in order,
    newest last. The latest snapshot goes by time; the latest checkpoint goes by step, then time.
    """

    part = "agents"

    # Snapshots

    async def save_snapshot(self, snapshot: AgentSnapshot) -> AgentSnapshot:
        """Save a snapshot, replacing any with its id. Returns it with its `snapshot_id`."""
        new = record_copy(AgentSnapshot, snapshot)
        new.snapshot_id = new.snapshot_id or secrets.token_hex(8)
        return await self.change(
            lambda part: snapshots_of(part, new.agent_id).put(new), f"snapshot of agent {new.agent_id}"
        )

    async def list_snapshots(self, agent_id: str, *, limit: int | None = None) -> list[AgentSnapshot]:
        """The snapshots of an agent, oldest first; with `limit`, the newest of them."""
        return await self._newest(snapshots_of, agent_id, limit)

    async def load_snapshot(self, agent_id: str, snapshot_id: str | None = None) -> AgentSnapshot | None:
        """The snapshot with this id, by default the latest; None if there is none."""
        if snapshot_id is not None:
            return await self.read(lambda part: snapshots_of(part, agent_id).get(snapshot_id))
        return await self.read(lambda part: next(snapshots_of(part, agent_id).indexed("newest"), None))

    # Checkpoints

    async def save_checkpoint(self, checkpoint: AgentCheckpoint) -> AgentCheckpoint:
        """Save a checkpoint, replacing any of this agent with its id. Returns a copy."""
        new = record_copy(AgentCheckpoint, checkpoint)
        return await self.change(
            lambda part: checkpoints_of(part, new.agent_id).put(new),
            f"checkpoint {new.checkpoint_id} of agent {new.agent_id} at step {new.step}",
        )

    async def get_checkpoint(self, agent_id: str, checkpoint_id: str) -> AgentCheckpoint | None:
        """The checkpoint of an agent with this id, or None."""
        return await self.read(lambda part: checkpoints_of(part, agent_id).get(checkpoint_id))

    async def list_checkpoints(self, agent_id: str, *, limit: int | None = None) -> list[AgentCheckpoint]:
        """The checkpoints of an agent by step, then time; with `limit`, the latest of them."""
        return await self._newest(checkpoints_of, agent_id, limit)

    async def latest_checkpoint(self, agent_id: str, *, recoverable: bool = False) -> AgentCheckpoint | None:
        """The checkpoint with the highest step, then the latest time; None if there is none.

        With `recoverable`, only recoverable checkpoints count.
        """

        index = "recoverable" if recoverable else "newest"
        return await self.read(lambda part: next(checkpoints_of(part, agent_id).indexed(index), None))

    async def _newest(
        self, records_of: Callable[..., Records[R]], agent_id: str, limit: int | None
    ) -> list[R]:
        most = check_limit(limit)
        newest = await self.read(
            lambda part: list(islice(records_of(part, agent_id).indexed("newest"), most))
        )
        return newest[::-1]

    # Agents

    async def list_agents(self) -> list[str]:
        """The sorted ids of all agents with a snapshot or a checkpoint."""

        def read(part: Namespace) -> list[str]:
            keys = [key for name in ("snapshots", "checkpoints") for key in part.namespace(name)]
            return sorted({split_path(key.partition("/")[0])[0] for key in keys})

        return await self.read(read)

    async def delete(self, agent_id: str, checkpoint_id: str | None = None) -> bool:
        """Delete all records of an agent, or one checkpoint; history keeps them. False if there are none."""

        def delete(part: Namespace) -> bool:
            snapshots, checkpoints = snapshots_of(part, agent_id), checkpoints_of(part, agent_id)
            if checkpoint_id is not None:
                return checkpoints.discard(checkpoint_id)
            found = bool(snapshots or checkpoints)
            snapshots.clear()
            checkpoints.clear()
            return recoveries_of(part).discard(agent_id) or found

        subject = "" if checkpoint_id is None else f"checkpoint {checkpoint_id} of "
        return await self.change(delete, f"delete {subject}agent {agent_id}")


def _rank(checkpoint: AgentCheckpoint) -> tuple[int, int]:
    return -checkpoint.step, -index_time(checkpoint.timestamp)


snapshots_of = kept(
    "snapshots",
    AgentSnapshot,
    key="snapshot_id",
    index={"newest": lambda snapshot: -index_time(snapshot.timestamp)},
)
checkpoints_of = kept(
    "checkpoints",
    AgentCheckpoint,
    key="checkpoint_id",
    index={"newest": _rank, "recoverable": lambda each: _rank(each) if each.recoverable else None},
)
recoveries_of = kept("recoveries", Recovery, key="agent_id")
"""The counts of an `AgentRecoveryManager`."""
