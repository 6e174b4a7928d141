"""AgentStateStore: snapshots and checkpoints of agents, in their order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from agent_stores import AgentStore
from loops import in_a_loop
from present import present

from vstate.managers import AgentCheckpoint, AgentSnapshot, AgentStateStore

NOON = datetime(2026, 1, 1, 12)


@pytest.fixture
def store() -> AgentStateStore:
    return AgentStateStore()


def checkpoint(id: str, step: int = 0, agent: str = "a", **fields: Any) -> AgentCheckpoint:
    return AgentCheckpoint(agent_id=agent, checkpoint_id=id, step=step, **fields)


@in_a_loop
async def test_snapshots_come_back_as_they_were(local_store: AgentStore) -> None:
    """With all fields, extra ones too; times with and without a zone; and for another process."""
    async with AgentStateStore(local_store()) as store:
        kept = await store.save_snapshot(
            AgentSnapshot(
                agent_id="researcher",
                timestamp=NOON,
                memory_state={"facts": {1, 2}, "when": NOON},
                tool_state={"search": {"calls": 3}},
                conversation_history=[{"role": "user", "content": "hello"}],
                metadata={"version": "1.0"},
                mood="good",
            )
        )
        later = NOON.replace(tzinfo=UTC) + timedelta(days=2)
        await store.save_snapshot(AgentSnapshot(agent_id="researcher", timestamp=later))
        await store.save_snapshot(AgentSnapshot(agent_id="researcher2"))
    async with AgentStateStore(local_store()) as again:
        first, second = await again.list_snapshots("researcher")
        assert first == kept
        assert first.timestamp == NOON
        assert first.timestamp.tzinfo is None
        assert first.memory_state == {"facts": {1, 2}, "when": NOON}
        assert first.model_extra == {"mood": "good"}
        assert second.timestamp == later
        assert await again.load_snapshot("researcher") == second
        assert await again.load_snapshot("researcher", kept.snapshot_id) == kept
        assert await again.list_snapshots("researcher", limit=1) == [second]
        assert await again.load_snapshot("nobody") is None
        assert await again.list_agents() == ["researcher", "researcher2"]


@in_a_loop
async def test_latest_goes_by_step_and_time_and_never_by_text(store: AgentStateStore) -> None:
    """Of twelve checkpoints the original returned number 9: the texts "8" and "9" sort after "12"."""
    for step in (*range(1, 8), 12, 8, 9, 11, 10):
        await store.save_checkpoint(
            checkpoint(f"checkpoint-{step}", step, timestamp=NOON - timedelta(hours=step))
        )
    assert present(await store.latest_checkpoint("a")).step == 12
    assert [found.step for found in await store.list_checkpoints("a")] == list(range(1, 13))
    assert [found.step for found in await store.list_checkpoints("a", limit=2)] == [11, 12]
    await store.save_checkpoint(checkpoint("a late one", 12, timestamp=NOON))
    await store.save_checkpoint(checkpoint("the last one", 12, timestamp=NOON + timedelta(microseconds=1)))
    assert present(await store.latest_checkpoint("a")).checkpoint_id == "the last one"


@in_a_loop
async def test_saving_a_checkpoint_again_replaces_it_and_its_rank(store: AgentStateStore) -> None:
    with pytest.raises(ValueError, match="step"):
        checkpoint("x", -1)
    await store.save_checkpoint(checkpoint("x", 5))
    await store.save_checkpoint(checkpoint("y", 4))
    await store.save_checkpoint(checkpoint("x", 3))
    assert [(c.checkpoint_id, c.step) for c in await store.list_checkpoints("a")] == [("x", 3), ("y", 4)]
    assert await store.delete("a", "y") is True
    assert await store.delete("a", "y") is False
    assert [c.checkpoint_id for c in await store.list_checkpoints("a")] == ["x"]
    assert [commit.message for commit in await store.history("checkpoints/a/x")] == [
        "checkpoint x of agent a at step 3",
        "checkpoint x of agent a at step 5",
    ]
