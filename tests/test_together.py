"""Updates of tasks that wait for one turn go to the store together, each with its own commit and outcome."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
from loops import in_a_loop

import vstate
from vstate import Commit, KeyNotFound, Memory, StoreFull, StoreUnavailable, aio
from vstate.aio import together
from vstate.errors import VStateError
from vstate.managers import ToolExecution, ToolStateManager
from vstate.state import updates

TASKS = 12

Function = Callable[[Any], object]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No group ends early because the machine is busy."""
    monkeypatch.setattr(updates, "_SHORT", 60.0)


class Gate(Memory):
    """A Memory that counts transactions, and holds the first one while the gate is closed.

    `instead` is called for the second one, with a function that carries it out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.began, self.go = threading.Event(), threading.Event()
        self.transactions = -1  # the first is the stamp of the format
        self.instead: Callable[[Callable[[], bool]], bool] = lambda carry_out: carry_out()

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        self.transactions += 1
        if self.transactions == 1:
            self.began.set()
            assert self.go.wait(60)
        if self.transactions == 2:
            return self.instead(lambda: super(Gate, self).transact(writes, expected))
        return super().transact(writes, expected)


async def group(
    state: aio.Versioned, functions: list[Function], **options: Any
) -> list[asyncio.Task[Commit | None]]:
    """Tasks whose updates wait together, until the gate is opened."""
    store = state.sync.store
    assert isinstance(store, Gate)
    first = asyncio.create_task(state.apply(lambda now: now.__setitem__("n", 0), message="first"))
    await asyncio.to_thread(store.began.wait)
    tasks = [
        asyncio.create_task(state.apply(function, message=f"task {number}", **options))
        for number, function in enumerate(functions)
    ]
    while len(state._together._waiting) < len(tasks):
        await asyncio.sleep(0.001)
    return [first, *tasks]


def count(now: Any) -> None:
    now["n"] += 1


def gated(test: Callable[[aio.Versioned, Gate], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run the test with a state on a gated store; afterwards its handle, the store and fsck agree."""

    async def run() -> None:
        store = Gate()
        async with aio.Versioned(store, branch="main") as state:
            await test(state, store)
            stored = vstate.Versioned(store, branch="main")
            assert dict(stored) == dict(state.sync)
            assert (state.head, state.sync.has_uncommitted) == (stored.head, False)
            assert stored.repo.fsck().ok
            await state.apply(lambda now: now.__setitem__("later", 1))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return in_a_loop(run)


@gated
async def test_waiting_updates_take_one_transaction(state: aio.Versioned, store: Gate) -> None:
    """Each has its own commit and its own line in the reflog, on top of the one before."""
    tasks = await group(state, [count] * TASKS)
    store.go.set()
    commits = await asyncio.gather(*tasks)
    assert store.transactions == 2
    assert (await state["n"], state.head) == (TASKS, commits[-1])
    log = [commit async for commit in state.log()]
    assert log == commits[::-1]
    assert [commit.message for commit in reversed(log)] == ["first", *(f"task {i}" for i in range(TASKS))]
    assert [line.new for line in state.sync.repo.refs.reflog("heads/main")] == [each.oid for each in log]
    await state.undo()
    assert await state["n"] == TASKS - 1


@pytest.mark.parametrize(("limit", "value"), [("_SHORT", -1.0), ("_LONG", 100_000)])
def test_a_group_ends_after_a_while(limit: str, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for slow or large updates of others: those that are left make the next group."""

    def large(now: Any) -> None:
        now[f"large {now['n']}"] = os.urandom(150_000)
        count(now)

    @gated
    async def run(state: aio.Versioned, store: Gate) -> None:
        monkeypatch.setattr(updates, limit, value)
        tasks = await group(state, [large] * 4)
        store.go.set()
        await asyncio.gather(*tasks)
        assert (await state["n"], store.transactions) == (4, 1 + 4)
        log = [commit.message async for commit in state.log(limit=4)]
        assert log == [f"task {number}" for number in reversed(range(4))]

    run()


@gated
async def test_an_update_that_raises_changes_nothing_of_the_others(state: aio.Versioned, store: Gate) -> None:
    """It is carried out again by itself, on commits that are in the store."""
    seen: list[Any] = []

    def fail(now: Any) -> None:
        seen.append(now["n"])
        now["n"] = -5
        now["failed"] = [1]
        raise ZeroDivisionError

    functions: list[Function] = [count] * TASKS
    functions[3] = fail
    functions[5] = lambda now: now["absent"]
    functions[7] = lambda now: now["n"]
    tasks = await group(state, functions)
    store.go.set()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert [i - 1 for i, end in enumerate(ended) if isinstance(end, BaseException)] == [3, 5]
    assert isinstance(ended[4], ZeroDivisionError)
    assert isinstance(ended[6], KeyNotFound)
    assert ended[8] is None
    assert seen == [3, TASKS - 3]
    assert await state["n"] == TASKS - 3
    assert not await state.contains("failed")


@gated
async def test_a_lost_race_carries_out_each_again(state: aio.Versioned, store: Gate) -> None:
    """If another writer moves the branch meanwhile, nothing of the chain stays."""

    def race(carry_out: Callable[[], bool]) -> bool:
        other = vstate.Versioned(store, branch="main")
        other["n"] += 100
        other.commit("theirs")
        return carry_out()

    tasks = await group(state, [count] * TASKS)
    store.instead = race
    store.go.set()
    await asyncio.gather(*tasks)
    assert await state["n"] == 100 + TASKS


@pytest.mark.parametrize("lands", [True, False])
def test_an_unknown_outcome_is_told_to_each(lands: bool) -> None:
    """No update whose commit may be on the branch is carried out again."""

    @gated
    async def run(state: aio.Versioned, store: Gate) -> None:
        def lost(carry_out: Callable[[], bool]) -> bool:
            if lands:
                carry_out()
            raise StoreUnavailable("lost", outcome_unknown=True)

        tasks = await group(state, [count] * TASKS)
        store.instead = lost
        store.go.set()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        if lands:  # vstate looks, and finds the commits
            assert not any(isinstance(end, BaseException) for end in ended)
        else:
            assert all(isinstance(end, StoreUnavailable) and end.outcome_unknown for end in ended[1:])
        assert await state["n"] == (TASKS if lands else 0)

    run()


@gated
async def test_a_full_store_is_told_to_each_that_it_has_no_room_for(
    state: aio.Versioned, store: Gate
) -> None:
    """An error that wrote nothing is not an outcome: each update is carried out by itself."""

    def full(carry_out: Callable[[], bool]) -> bool:
        raise StoreFull("no room")

    tasks = await group(state, [count] * TASKS)
    store.instead = full
    store.go.set()
    await asyncio.gather(*tasks)
    assert (await state["n"], store.transactions) == (TASKS, 2 + TASKS)


@gated
async def test_a_chain_is_seen_by_its_updates_alone(state: aio.Versioned, store: Gate) -> None:
    """Inside, HEAD is the last commit of the chain, with history and values; outside, a stored commit."""
    inside: list[Any] = []
    look, looked = threading.Event(), threading.Event()

    def long(now: Any) -> None:
        now["long"] = bytes(range(256)) * 500

    def read(now: Any) -> None:
        inside.append((now.head.message, [commit.message for commit in now.log(limit=2)]))
        inside.append(now.checkout("HEAD")["long"] == now["long"])
        look.set()
        assert looked.wait(60)
        now["read"] = 1

    tasks = await group(state, [long, read, count])
    store.go.set()
    await asyncio.to_thread(look.wait, 60)
    assert state.head is not None
    outside = (state.head.message, [commit.message async for commit in state.log()])
    looked.set()
    await asyncio.gather(*tasks)
    assert inside == [("task 0", ["task 0", "first"]), True]
    assert outside == ("first", ["first"])


@pytest.mark.parametrize("short", [60.0, -1.0])
def test_cancelled_updates_have_happened_or_not(short: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that waits is taken out, also if a group left it. One in a group ends before its caller goes on."""
    began, go = threading.Event(), threading.Event()

    def hold(now: Any) -> None:
        began.set()
        assert go.wait(60)
        count(now)

    @gated
    async def run(state: aio.Versioned, store: Gate) -> None:
        monkeypatch.setattr(updates, "_SHORT", short)
        first, *tasks = await group(state, [count, hold, *[count] * 4])
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        store.go.set()
        await asyncio.to_thread(began.wait)
        for task in (tasks[1], tasks[2], tasks[2]):
            task.cancel()
            await asyncio.sleep(0.01)
        assert not any(task.done() for task in tasks[1:])
        go.set()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        cancelled = [number for number, end in enumerate(ended) if isinstance(end, asyncio.CancelledError)]
        assert cancelled == [0, 1, 2]
        # A group that ends at once has left the one that was cancelled twice.
        assert await state["n"] == (4 if short < 0 else 5)
        assert await first is not None

    run()


@gated
async def test_a_nested_update_in_a_group(state: aio.Versioned, store: Gate) -> None:
    """An update inside the function of another is a part of it, also in a group."""

    def outer(now: Any) -> None:
        now.apply(count)
        with now.transaction():
            count(now)

    tasks = await group(state, [outer] * 3)
    store.go.set()
    await asyncio.gather(*tasks)
    assert (await state["n"], store.transactions) == (6, 2)


class Large:
    """Something that a function uses."""


async def are_freed(things: WeakSet[Large]) -> bool:
    """Whether they are freed once the thread has come to the end of its work."""
    for _ in range(1000):
        if not things:
            return True
        await asyncio.sleep(0.001)
    return False


@gated
async def test_a_group_keeps_nothing_once_it_is_done(state: aio.Versioned, store: Gate) -> None:
    """The objects that its functions use are freed at once, and not by the next collection."""

    def use(thing: Large, now: Any) -> None:
        count(now)

    kept: WeakSet[Large] = WeakSet()
    functions: list[Function] = []
    for _ in range(TASKS):
        thing = Large()
        kept.add(thing)
        functions.append(partial(use, thing))
    gc.disable()
    try:
        tasks = await group(state, functions)
        store.go.set()
        await asyncio.gather(*tasks)
        del thing, functions, tasks
        assert await are_freed(kept)
    finally:
        gc.enable()


@pytest.mark.parametrize("call", [aio.Versioned.apply, aio.Versioned.read])
@in_a_loop
async def test_an_exception_keeps_nothing_once_it_is_handled(call: Callable[..., Any]) -> None:
    """The frames in its traceback are freed at once, with all that the function had."""
    kept: WeakSet[Large] = WeakSet()

    def fail(now: Any) -> None:
        thing = Large()
        kept.add(thing)
        raise ZeroDivisionError

    async with aio.Versioned(Memory()) as state:
        gc.disable()
        try:
            with suppress(ZeroDivisionError):
                await call(state, fail)
            assert await are_freed(kept)
        finally:
            gc.enable()


@in_a_loop
async def test_a_leader_that_is_gone_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop of a leading task may end at any time. One update finds that out; later ones do not wait."""
    monkeypatch.setattr(together, "_LOOK_AGAIN_SECONDS", 0.01)
    async with aio.Versioned(Memory()) as state:
        state._together._leader = together._Call(updates.Update(lambda: None, lambda commit: None))
        await state.apply(lambda now: now.__setitem__("n", 0))
        assert state._together._leader is None
        assert await state["n"] == 0


@pytest.mark.slow
@in_a_loop
async def test_tasks_of_two_loops_and_another_process_lose_no_update(tmp_path: Path) -> None:
    """Counts are exact while groups of two event loops race with another handle on the store."""
    async with aio.Versioned(tmp_path, branch="main") as state:
        await state.update({"n": 0})
        await state.commit()

        async def work() -> None:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(20):
                    tasks.create_task(state.apply(count, attempts=1000))

        def beside() -> None:
            with vstate.Versioned(tmp_path, branch="main") as other:
                for _ in range(10):
                    other.apply(count, attempts=1000)

        await asyncio.gather(
            work(), asyncio.to_thread(lambda: asyncio.run(work())), asyncio.to_thread(beside)
        )
    with vstate.Versioned(tmp_path, branch="main") as stored:
        assert stored["n"] == 50
        assert sum(1 for _ in stored.log()) == 51


@in_a_loop
async def test_managers_use_groups() -> None:
    """Calls of one manager at once share transactions, and each is a commit of its own."""
    store = Gate()
    store.go.set()
    async with ToolStateManager(store) as manager:

        async def call(number: int) -> None:
            id = f"execution {number}"
            await manager.start_execution(ToolExecution(execution_id=id, tool_name="search"))
            await manager.complete_execution(id, duration_ms=number)

        await asyncio.gather(*map(call, range(TASKS)))
        assert store.transactions < TASKS
        assert len([commit async for commit in manager.state.log()]) == 2 * TASKS
        stats = await manager.get_tool_stats("search")
        assert (stats.total_executions, stats.avg_duration_ms) == (TASKS, (TASKS - 1) / 2)
        with pytest.raises(VStateError):
            await manager.complete_execution("execution 0")
