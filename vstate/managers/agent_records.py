"""The records of agents: snapshots of all that one is, and checkpoints to go on from."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from vstate.managers.record import Now, Record


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
