"""vstate.aio: the sync state, awaited."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

import vstate
from vstate import Disk, InvalidInput, KeyNotFound, LeaseHeld, Memory, ReadOnly, StoreUnavailable, aio
from vstate.testing import Faulty


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test in a loop of its own."""

    @wraps(test)
    def run(*args: Any, **options: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **options), 60))

    return run


class Slow(Memory):
    """A Memory whose transactions take their time, and can be waited for."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.began = threading.Event()

    def transact(self, writes: Any, expected: Any) -> bool:
        self.began.set()
        time.sleep(self.seconds)
        return super().transact(writes, expected)


@in_a_loop
async def test_the_mapping(tmp_path: Path) -> None:
    """Reading, writing, iterating and committing, as the sync state does it."""
    async with aio.Versioned(tmp_path) as state:
        state["b"] = [1]
        await state.set("a", 1)
        (await state["b"]).append(2)
        commit = await state.commit("first", by="test")
        assert commit is not None
        assert (commit.message, commit.info) == ("first", {"by": "test"})
        assert state.head == commit
        assert state.branch == "main"
        assert [key async for key in state] == ["a", "b"]
        assert [item async for item in state.items("b")] == [("b", [1, 2])]
        assert [value async for value in state.values()] == [1, [1, 2]]
        assert (await state.get("none", 5), await state.contains("a"), await state.count()) == (5, True, 2)
        with pytest.raises(KeyNotFound):
            await state["none"]
        await state.delete("a")
        assert await state.pop("a", 7) == 7
        assert await state.setdefault("c", 3) == 3
        await state.update({"d": 4}, e=5)
        assert (await state.status()).added == ["c", "d", "e"]
        await state.clear()
        assert await state.count() == 0
        await state.discard()
        assert await state.count() == 2
    with vstate.Versioned(tmp_path) as again:
        assert dict(again) == {"a": 1, "b": [1, 2]}


@in_a_loop
async def test_it_opens_when_it_is_first_awaited() -> None:
    """What needs no await says so before that."""
    state = aio.Versioned(Memory())
    with pytest.raises(InvalidInput, match="async with"):
        state["a"] = 1
    with pytest.raises(InvalidInput, match="async with"):
        _ = state.head
    await state.set("a", 1)
    assert state.head is None
    assert await (await aio.Versioned(Memory())).count() == 0
    with pytest.raises(InvalidInput):
        await aio.Versioned(Memory(), branch="..")


@in_a_loop
async def test_history_and_branches() -> None:
    """log, checkout, rollback, merge and the others give what they give without await."""
    async with aio.Versioned(Memory(), branch="main") as state:
        state["n"] = 1
        first = await state.commit("one")
        assert first is not None
        other = await state.fork("other")
        other["x"] = 1
        await other.commit("x")
        state["n"] = 2
        await state.commit("two")
        await state.tag("v2")
        assert [commit.message async for commit in state.log()] == ["two", "one"]
        old = await state.checkout(first.id)
        assert (await old["n"], old.commit) == (1, first)
        assert not hasattr(old, "set")
        assert (await state.blame("n")).message == "two"
        result = await state.merge("other")
        assert result.merged_keys == ("x",)
        assert sorted(await state.branches()) == ["main", "other"]
        await state.rollback("v2")
        assert not await state.contains("x")
        assert list(await state.diff("v2", "other")) == ["n", "x"]
        await state.switch("other")
        assert await state["n"] == 1
        with pytest.raises(ReadOnly):
            old.sync["n"] = 5


@in_a_loop
async def test_a_namespace() -> None:
    """The keys under a prefix; one commit covers all."""
    async with aio.Versioned(Memory()) as state:
        agent = state.namespace("agent").namespace("memory")
        agent["k"] = 1
        async with agent.transaction("in one"):
            await agent.set("l", 2)
        assert [item async for item in state.items()] == [("agent/memory/k", 1), ("agent/memory/l", 2)]
        assert state.head is not None
        assert state.head.message == "in one"


@in_a_loop
async def test_a_transaction_commits_or_discards() -> None:
    """As `with state.transaction()` does; inside another it leaves the commit to that one."""
    async with aio.Versioned(Memory()) as state:
        async with state.transaction("outer"):
            state["a"] = 1
            with pytest.raises(ZeroDivisionError):
                async with state.transaction():
                    state["b"] = 1
                    raise ZeroDivisionError
            async with state.transaction():
                state["c"] = 1
        assert [commit.message async for commit in state.log()] == ["outer"]
        assert [key async for key in state] == ["a", "c"]
        with pytest.raises(ZeroDivisionError):
            async with state.transaction():
                state["d"] = 1
                raise ZeroDivisionError
        assert not await state.contains("d")


@in_a_loop
async def test_transactions_of_tasks_follow_one_another() -> None:
    """Twenty tasks, more than there are threads, add to one number in transactions: none is lost, none is stuck."""
    async with aio.Versioned(Memory()) as state:
        state["n"] = 0
        await state.commit()

        async def add() -> None:
            async with state.transaction():
                value = await state["n"]
                await asyncio.sleep(0)
                await state.set("n", value + 1)

        async def update() -> None:
            await state.update(lambda now: now.__setitem__("n", now["n"] + 1))

        await asyncio.gather(*(add() for _ in range(20)), *(update() for _ in range(20)))
        assert await state["n"] == 40


@in_a_loop
async def test_update_runs_again_on_the_fresh_state(tmp_path: Path) -> None:
    """Handles that race lose no increment."""

    async def count(handle: aio.Versioned) -> None:
        for _ in range(25):
            await handle.update(lambda now: now.__setitem__("n", now.get("n", 0) + 1))

    handles = [aio.Versioned(Disk(tmp_path), branch="main") for _ in range(4)]
    await asyncio.gather(*map(count, handles))
    await handles[0].refresh()
    assert await handles[0]["n"] == 100
    for handle in handles:
        handle.sync.store.close()
        await handle.close()


@in_a_loop
async def test_the_loop_goes_on_during_a_commit() -> None:
    """A slow store holds up nobody else."""
    store = Slow(0.2)
    async with aio.Versioned(store) as state:
        state["a"] = 1
        commit = asyncio.create_task(state.commit())
        turns = 0
        while not commit.done():
            await asyncio.sleep(0.005)
            turns += 1
        assert turns > 10


@in_a_loop
async def test_a_cancelled_commit_is_done_or_not_done() -> None:
    """Cancelled in the middle of its transaction, it is settled by the time that the cancellation comes out."""
    store = Slow(0.1)
    async with aio.Versioned(store, branch="main") as state:
        state["a"] = 1
        task = asyncio.create_task(state.commit("cancelled"))
        await asyncio.to_thread(store.began.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert state.head is not None
        assert state.head.message == "cancelled"
        assert vstate.Versioned(store, branch="main")["a"] == 1
        assert await state.commit() is None


@in_a_loop
async def test_cancelled_at_any_moment() -> None:
    """Whenever the cancellation comes, twice even, the handle and the store agree, and the next commit is right."""
    for after in range(0, 30, 3):
        store = Slow(0.01)
        async with aio.Versioned(store, branch="main") as state:
            state["a"] = after
            task = asyncio.create_task(state.commit())
            await asyncio.sleep(after / 1000)
            for _ in range(2):
                task.cancel()
                await asyncio.sleep(0)
            await asyncio.wait([task])
            stored = vstate.Versioned(store, branch="main")
            assert (stored.head and stored.head.id) == (state.head and state.head.id)
            state["b"] = after
            await state.commit()
            stored.refresh()
            assert dict(stored) == {"a": after, "b": after}


@in_a_loop
async def test_a_cancelled_transaction_discards() -> None:
    """A cancellation inside the block is an exception like any other, and the turn is given back."""
    async with aio.Versioned(Memory()) as state:
        entered = asyncio.Event()

        async def work() -> None:
            async with state.transaction():
                state["a"] = 1
                entered.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not await state.contains("a")
        async with state.transaction():
            state["b"] = 1
        assert [key async for key in state] == ["b"]


@in_a_loop
async def test_errors_come_out_as_they_are() -> None:
    """A failing store raises, and what was staged still is."""
    store = Faulty(Memory(), fail_at=None)
    async with aio.Versioned(store) as state:
        state["a"] = 1
        store.fail_at, store.error = len(store.calls) + 1, StoreUnavailable
        with pytest.raises(StoreUnavailable):
            await state.commit()
        assert await state.commit() is not None


@in_a_loop
async def test_many_watches_leave_the_other_work_alone() -> None:
    """Watches wait in threads of their own, so that forty of them hold up nothing."""
    async with aio.Versioned(Memory()) as state:
        watches = [await state.watch("n") for _ in range(40)]
        waiting = [asyncio.ensure_future(anext(watch)) for watch in watches]
        await asyncio.sleep(0.01)
        state["n"] = 1
        await state.commit()
        assert await asyncio.to_thread(lambda: "free") == "free"
        assert [(key, change.new) for key, change, _ in await asyncio.gather(*waiting)] == [("n", 1)] * 40


@in_a_loop
async def test_a_lease() -> None:
    """One holder at a time; a commit under it names it; who is cancelled while waiting leaves nothing behind."""
    store = Memory()
    one, other = aio.Versioned(store, branch="main"), aio.Versioned(store, branch="main")
    async with one.lease("job", ttl=5) as lease:
        assert lease.held
        await lease.check()
        with pytest.raises(LeaseHeld):
            async with other.lease("job", ttl=5, wait=0):
                pass
        waiting = asyncio.create_task(other.lease("job", ttl=5).__aenter__())
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await one.set("a", 1)
        commit = await lease.commit("under it")
        assert commit is not None
        assert commit.info["lease"] == {"name": "job", "fence": lease.fence}
        first = lease.fence
    async with other.lease("job", ttl=5, wait=20) as lease:
        assert lease.fence > first


@in_a_loop
async def test_what_expires() -> None:
    """expire, expires and purge, awaited."""
    async with aio.Versioned(Memory()) as state:
        state["a"] = 1
        await state.expire("a", 60)
        assert await state.expires("a") is not None
        await state.commit()
        assert await state.purge() is None


@in_a_loop
async def test_push_and_pull() -> None:
    """A branch goes to another store, and comes from there."""
    there = Memory()
    async with aio.Versioned(Memory(), branch="main") as state:
        state["a"] = 1
        await state.commit()
        await state.push(there)
        with vstate.Versioned(there, branch="main") as other:
            other["b"] = 2
            other.commit()
        await state.pull(there)
        assert await state["b"] == 2


def test_nothing_is_missing() -> None:
    """Every public method of the sync state is here, under its name."""
    other_ways = {
        "count_keys",
        "scan_keys",
        "describe_key",
        "title",
        "repo",
        "store",
        "root",
        "turns",
        "prefix",
        "popitem",
    }
    inside = {
        "run_update",
        "update_in_turn",
        "transaction_in_turn",
        "savepoint",
        "pending_events",
        "commit_guarded",
    }
    inside |= {"record_event", "has_uncommitted", "before_fork", "after_fork", "fork_order"}
    inside |= {"before_commit", "may_have_changed"}
    names = {name for name, _ in inspect.getmembers(vstate.Versioned) if not name.startswith("_")}
    assert names - other_ways - inside - set(dir(aio.Versioned)) == set()
