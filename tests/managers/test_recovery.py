"""AgentRecoveryManager: agents are taken back to a checkpoint."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agent_stores import AgentStore
from loops import in_a_loop
from present import present

from vstate import InvalidInput, NotFound
from vstate.managers import AgentCheckpoint, AgentRecoveryManager, AgentStateStore
from vstate.sessions.state_module import StateModule


@pytest.fixture
def store() -> AgentStateStore:
    return AgentStateStore()


class Agent:
    """As in the documentation: duck-typed, async."""

    def __init__(self, id: str = "a") -> None:
        self.id = id
        self.state: Any = None
        self.resumed = 0

    async def restore_from_checkpoint(self, state: Any) -> None:
        await asyncio.sleep(0)
        self.state = state

    async def resume(self) -> None:
        self.resumed += 1


class SyncAgent:
    """The same without a loop, and without `resume`."""

    def __init__(self) -> None:
        self.agent_id = "sync"
        self.state: Any = None

    def restore_from_checkpoint(self, state: Any) -> None:
        self.state = state


class Counter(StateModule):
    """An agent as in AgentScope."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.register_state("count")


async def kept(store: AgentStateStore, *steps: int, agent: str = "a", **fields: Any) -> None:
    for step in steps:
        await store.save_checkpoint(
            AgentCheckpoint(
                agent_id=agent, checkpoint_id=f"c{step}", step=step, state={"n": [step]}, **fields
            )
        )


@in_a_loop
async def test_the_latest_checkpoint_is_restored(store: AgentStateStore) -> None:
    """12, not 9; of this agent, not of "ab"; a recoverable one; and by its id, if that is named."""
    recovery = AgentRecoveryManager(agent_store=store, auto_recover=True, max_recovery_attempts=3)
    agent = Agent()
    recovery.register(agent)
    await kept(store, 8, 9, 12, 10)
    await kept(store, 13, recoverable=False)
    await kept(store, 99, agent="ab")
    recovered = await recovery.recover(agent_id="a", from_checkpoint="latest")
    assert recovered
    assert (agent.state, recovered.step) == ({"n": [12]}, 12)
    assert agent.resumed == 0  # as documented, the program itself calls resume() next
    assert await recovery.recover("a", from_checkpoint="c8")
    assert agent.state == {"n": [8]}
    with pytest.raises(NotFound, match="'c7'"):
        await recovery.recover("a", "c7")
    with pytest.raises(InvalidInput, match="not recoverable"):
        await recovery.recover("a", "c13")
    with pytest.raises(NotFound, match="register"):
        await recovery.recover("ab")


@in_a_loop
async def test_agents_of_every_kind(store: AgentStateStore) -> None:
    """Sync methods, another name of the id, an id as argument, StateModules; and no agent at all."""
    recovery = AgentRecoveryManager(store)
    sync, module = SyncAgent(), Counter()
    recovery.register(sync)
    recovery.register(module, agent_id="counter")
    await kept(store, 1, agent="sync")
    module.count = 5
    await store.save_checkpoint(
        AgentCheckpoint(agent_id="counter", checkpoint_id="c", state=module.state_dict())
    )
    module.count = 0
    assert await recovery.recover("sync")
    assert await recovery.recover("counter")
    assert (sync.state, module.count) == ({"n": [1]}, 5)
    with pytest.raises(InvalidInput, match="restore_from_checkpoint"):
        recovery.register(object(), agent_id="x")
    with pytest.raises(InvalidInput, match="agent_id="):
        recovery.register(Counter())


@in_a_loop
async def test_a_restored_state_is_a_copy(store: AgentStateStore) -> None:
    recovery = AgentRecoveryManager(store)
    agent = Agent()
    recovery.register(agent)
    await kept(store, 1)
    checkpoint = present(await recovery.recover("a"))
    agent.state["n"].append("edited")
    assert checkpoint.state == {"n": [1]}
    await recovery.recover("a")
    assert agent.state == {"n": [1]}


@in_a_loop
async def test_attempts_are_counted_across_processes_until_it_does_well(local_store: AgentStore) -> None:
    """A new manager, as after a crash, goes on counting; in the original it began at zero."""
    async with AgentStateStore(local_store()) as store:
        await kept(store, 1)
        for attempt in range(3):
            recovery = AgentRecoveryManager(AgentStateStore(local_store()), max_recovery_attempts=2)
            recovery.register(Agent())
            assert bool(await recovery.recover("a")) is (attempt < 2)
            await recovery.agent_store.close()
        recovery = AgentRecoveryManager(store, max_recovery_attempts=2)
        agent = Agent()
        recovery.register(agent)
        assert await recovery.attempts("a") == 2
        async with recovery.guard("a") as guard:
            pass
        assert (guard.error, guard.recovered) == (None, False)
        assert await recovery.attempts("a") == 0
        assert await recovery.recover("a")
        assert await store.delete("a")
        assert await recovery.attempts("a") == 0, "an agent of that id that comes later begins at none"
        assert not await store.delete("a")


@in_a_loop
async def test_guard_recovers_and_tries_again_as_long_as_it_may(store: AgentStateStore) -> None:
    """The loop in its documentation: two failures, then a success; and one without a success."""
    recovery = AgentRecoveryManager(store)
    agent = Agent()
    recovery.register(agent)
    await kept(store, 7)
    runs = 0
    while True:
        async with recovery.guard("a") as guard:
            runs += 1
            if runs < 3:
                raise RuntimeError("failed")
        if not guard.recovered:
            break
        assert isinstance(guard.error, RuntimeError)
        assert (agent.state, guard.attempts) == ({"n": [7]}, runs)
    assert (runs, agent.resumed, await recovery.attempts("a")) == (3, 2, 0)

    runs = 0

    async def never_well() -> None:
        nonlocal runs
        while True:
            async with recovery.guard("a"):
                runs += 1
                raise RuntimeError("again")

    with pytest.raises(RuntimeError, match="again"):
        await never_well()
    assert runs == 4


@in_a_loop
async def test_guard_passes_on_other_exceptions(store: AgentStateStore) -> None:
    """Cancellations; any error without auto_recover or a checkpoint; with a note if recovering failed."""
    off = AgentRecoveryManager(store, auto_recover=False)
    off.register(Agent())
    await kept(store, 1)
    with pytest.raises(RuntimeError):
        async with off.guard("a"):
            raise RuntimeError("no")
    recovery = AgentRecoveryManager(store)
    recovery.register(Agent())
    with pytest.raises(asyncio.CancelledError):
        async with recovery.guard("a"):
            raise asyncio.CancelledError
    assert await recovery.attempts("a") == 0
    recovery.register(Agent("without"))
    with pytest.raises(RuntimeError):
        async with recovery.guard("without"):
            raise RuntimeError("no checkpoint")

    class Broken(Agent):
        async def restore_from_checkpoint(self, state: Any) -> None:
            raise ValueError("cannot")

    recovery.register(Broken())
    with pytest.raises(RuntimeError) as caught:
        async with recovery.guard("a"):
            raise RuntimeError("first")
    assert caught.value.__notes__ == ["vstate, while it recovered agent 'a': ValueError: cannot"]
    assert await recovery.attempts("a") == 1, "an attempt that failed counts too"


def test_recoveries_of_an_agent_follow_each_other() -> None:
    """Also in the next loop."""
    store = AgentStateStore()
    recovery = AgentRecoveryManager(store, max_recovery_attempts=9)
    running: list[int] = []

    class Slow(Agent):
        async def restore_from_checkpoint(self, state: object) -> None:
            running.append(1)
            assert len(running) == 1
            await asyncio.sleep(0.01)
            running.clear()

    recovery.register(Slow())

    async def use() -> None:
        await kept(store, 1)
        assert all(await asyncio.gather(*(recovery.recover("a") for _ in range(3))))

    for _ in range(3):
        asyncio.run(use())
    asyncio.run(store.close())


@in_a_loop
async def test_guard_of_an_agent_that_is_not_registered(store: AgentStateStore) -> None:
    """The error comes when the block begins, not when it fails and needs a recovery."""
    begun = False
    with pytest.raises(NotFound, match=r"no agent 'a' is registered: register\(\) it"):
        async with AgentRecoveryManager(store).guard("a"):
            begun = True
    assert not begun
