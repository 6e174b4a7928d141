"""vstate.aio: the sync state, awaited."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest
from loops import in_a_loop
from present import present
from running import all_at_once

import vstate
from vstate import InvalidInput, KeyNotFound, LeaseHeld, Memory, ReadOnly, Unpicklable, aio


class Slow(Memory):
    """A Memory whose transactions take `seconds`, and announce their start.

    While `go` is clear, they wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self.began, self.go = threading.Event(), threading.Event()
        self.go.set()

    def transact(self, writes: Any, expected: Any) -> bool:
        self.began.set()
        time.sleep(self.seconds)
        self.go.wait(60)
        return super().transact(writes, expected)


@pytest.fixture
def store() -> Slow:
    return Slow()


@pytest.fixture
def state(store: Slow) -> aio.Versioned:
    """A state in memory, which a test with `@opened` finds open."""
    return aio.Versioned(store, branch="main")


def opened(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test in an event loop of its own, in a block of its fixture `state`."""

    @in_a_loop
    @wraps(test)
    async def run(state: aio.Versioned, **options: Any) -> None:
        async with state:
            await test(state=state, **options)

    return run


@in_a_loop
async def test_the_mapping(tmp_path: Path) -> None:
    """Reading, writing, iterating and committing work as in the sync state."""
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
    """A method that needs no await raises before the state is open, and names `async with`."""
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


@opened
async def test_history_and_branches(state: aio.Versioned) -> None:
    """log, checkout, rollback, merge, push and others have the same results as those of the sync state."""
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
    await state.push(there := Memory())
    with vstate.Versioned(there, branch="main") as sync:
        sync["b"] = 2
        sync.commit()
    await state.pull(there)
    assert await state["b"] == 2
    await state.expire("b", 60)
    assert await state.expires("b") is not None
    await state.commit()
    assert await state.purge() is None
    await state.switch("other")
    assert await state["n"] == 1
    with pytest.raises(ReadOnly):
        old.sync["n"] = 5


@opened
async def test_the_loop_goes_on_during_a_commit(state: aio.Versioned, store: Slow) -> None:
    """A slow store delays no other handle."""
    state["a"] = 1
    store.began.clear()
    store.go.clear()
    commit = asyncio.create_task(state.commit())
    await asyncio.to_thread(store.began.wait)
    for _ in range(10):
        await asyncio.sleep(0.005)
    assert not commit.done()
    store.go.set()
    assert await commit is not None


@opened
async def test_a_cancelled_commit_is_done_or_not_done(state: aio.Versioned, store: Slow) -> None:
    """A transaction that is cancelled in the middle has ended when the cancellation reaches the caller."""
    store.seconds = 0.1
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
    async with all_threads_busy(state) as over:
        begun = asyncio.create_task(state.set("b", 1))
        await asyncio.sleep(0.01)
        await cancelled(begun, over)
    assert not await state.contains("b"), "a call that waits for a thread never begins"


@opened
async def test_what_is_called_in_a_transaction_is_a_part_of_it(state: aio.Versioned) -> None:
    """An update in a transaction waits for no turn, commits nothing by itself, and is undone with the
    transaction. So is the work of its tasks.
    """
    async with asyncio.timeout(100), state.transaction("outer"):
        assert await state.apply(lambda inner: inner.__setitem__("n", 1)) is None
        async with state.transaction("inner"):
            await state.apply(lambda inner: inner.__setitem__("n", inner["n"] + 1))
        assert await state["n"] == 2

    async def fail() -> None:
        await state.apply(lambda inner: inner.__setitem__("n", 3))
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.timeout(100), state.transaction(), asyncio.TaskGroup() as group:
            group.create_task(fail())
            group.create_task(fail())
    assert caught.group_contains(ZeroDivisionError)
    assert await state["n"] == 2
    assert [commit.message async for commit in state.log()] == ["outer"]


@opened
async def test_a_transaction_that_cannot_begin(state: aio.Versioned) -> None:
    """It raises the reason, its block does not run, and the next one begins."""
    state["bad"] = (i for i in "generator")
    with pytest.raises(Unpicklable, match="generator"):
        async with state.transaction():
            pytest.fail("it has begun")
    await state.discard()
    async with state.transaction("next"):
        state["n"] = 1
    assert state.head is not None
    assert state.head.message == "next"


@asynccontextmanager
async def all_threads_busy(state: aio.Versioned) -> AsyncIterator[threading.Event]:
    """Keep all threads busy until the event is set or the block ends."""
    over = threading.Event()
    busy = [asyncio.create_task(state._workers.run(lambda: over.wait(60))) for _ in range(4)]
    await asyncio.sleep(0.01)
    try:
        yield over
    finally:
        over.set()
        await asyncio.gather(*busy)


async def cancelled(task: asyncio.Task[Any], over: threading.Event | None = None) -> None:
    """Cancel the task twice, set the event, and wait for the task."""
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0.02)
    if over is not None:
        over.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def lease_threads(number: int) -> None:
    """Check the number of lease threads, once idle ones have ended."""
    for _ in range(6000):
        if sum(thread.name == "vstate lease counted" for thread in threading.enumerate()) == number:
            return
        await asyncio.sleep(0.01)
    raise AssertionError([thread.name for thread in threading.enumerate()])


@opened
async def test_many_tasks_cancelled_at_any_moment(state: aio.Versioned, store: Slow) -> None:
    """After updates, transactions, commits and leases, the handle and the store agree, and no turn is
    held.
    """
    store.seconds = 0.001
    state["n"] = 0
    await state.commit()

    async def work(number: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.002 * (number % 40)):
                if number % 4 == 0:
                    await state.apply(lambda now: now.__setitem__("n", now["n"] + 1))
                elif number % 4 == 1:
                    async with state.transaction():
                        await state.set("n", await state["n"] + 1)
                elif number % 4 == 2:
                    async with state.lease("counted", 60) as lease:
                        await lease.commit()
                else:
                    await state.commit()

    async with asyncio.TaskGroup() as group:
        for number in range(200):
            group.create_task(work(number))
    assert not state.sync.has_uncommitted
    assert await state["n"] == vstate.Versioned(store, branch="main")["n"] > 0
    async with state.lease("counted", 60, wait=100), state.transaction():
        state["n"] = -1
    await lease_threads(0)


def test_a_loop_that_is_gone_leaves_no_turn_held() -> None:
    """A handle outlives its event loop, even one that was closed in the middle of a transaction."""
    state = aio.Versioned(Memory())
    loop = asyncio.new_event_loop()

    async def begin() -> None:
        async with state.transaction():
            state["a"] = 1
            await asyncio.sleep(60)

    async def reach() -> None:
        while not (state._handle and await state.contains("a")):
            await asyncio.sleep(0.01)

    task = loop.create_task(begin())
    loop.run_until_complete(reach())
    # the test is about the destroyed task, so ignore its message
    loop.set_exception_handler(lambda *context: None)
    loop.close()
    before = sys.unraisablehook
    sys.unraisablehook = lambda unraisable: None
    try:
        task.get_coro().close()  # as the collector would
    except RuntimeError:
        pass
    finally:
        sys.unraisablehook = before

    async def again() -> None:
        async with state.transaction():
            await state.set("b", 1)
        await state.close()

    asyncio.run(asyncio.wait_for(again(), 100))
    assert state.head is not None


def test_two_loops_share_a_handle() -> None:
    """Loops in two threads open it at the same time, a third one goes on with it: no increment is lost."""

    async def count(state: aio.Versioned) -> None:
        async def add() -> None:
            async with state.transaction():
                await state.set("n", await state.get("n", 0) + 1)

        await asyncio.gather(*(add() for _ in range(6)))

    for _ in range(10):
        state = aio.Versioned(Memory(), branch="main")
        all_at_once(*[partial(asyncio.run, count(state)) for _ in range(2)])
        asyncio.run(count(state))
        assert state.sync["n"] == 18
        asyncio.run(state.close())


@in_a_loop
@pytest.mark.parametrize("entered", [False, True])
async def test_opening_that_is_cancelled(entered: bool) -> None:
    """`async with` closes the state that it opened. Without it, the first await opens the state, once."""
    state = aio.Versioned(Memory(), branch="main")
    began, go = threading.Event(), threading.Event()
    opened: list[vstate.Versioned] = []
    watches = []
    real = state._open

    def slowly() -> vstate.Versioned:
        began.set()
        go.wait(60)
        opened.append(real())
        watches.append(opened[-1].watch())
        return opened[-1]

    state._open = slowly  # type: ignore[assignment]
    task = asyncio.ensure_future(state.__aenter__() if entered else state._opened())
    await asyncio.to_thread(began.wait)
    task.cancel()
    await asyncio.sleep(0.01)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [watch.closed for watch in watches] == [entered]
    if entered:
        with pytest.raises(InvalidInput, match="closed"):
            await state.count()
    else:
        assert await asyncio.gather(state.count(), state.count()) == [0, 0]
        await state.close()
    assert len(opened) == 1


@in_a_loop
async def test_a_closed_state_says_so() -> None:
    """A cancelled close still closes, and closing twice does no harm."""
    state = await aio.Versioned(Memory(), branch="main")
    await state.set("a", 1)
    watch = await state.watch()
    async with all_threads_busy(state) as over:
        closing = asyncio.create_task(state.close())
        await asyncio.sleep(0.01)
        await cancelled(closing, over)
    assert watch.closed
    await state.close()
    for call in (state.count, lambda: state["a"]):
        with pytest.raises(InvalidInput, match="closed"):
            await call()


@in_a_loop
async def test_a_lease() -> None:
    """A lease has one holder at a time, and a commit under it names it.

    A cancelled waiter leaves nothing behind.
    """
    store = Memory()
    one, other = aio.Versioned(store, branch="main"), aio.Versioned(store, branch="main")
    async with one.lease("job", ttl=60) as lease:
        assert lease.held
        assert (lease.name, lease.ttl) == ("job", 60)
        assert repr(lease) == "<Lease 'job', ttl 60 s: held, fence 1>"
        with pytest.raises(InvalidInput, match=r"0\.1 s or more"):
            async with other.lease("job", ttl=1e-9):
                pass
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
    async with other.lease("job", ttl=60, wait=100) as lease:
        assert lease.fence > first


@in_a_loop
async def test_a_watch_need_not_be_awaited() -> None:
    """`async for` on a watch yields the commits since it was created. Awaiting it returns the watch.

    A subscription hears of commits, and a recorded event goes with the next one.
    """
    async with aio.Versioned(Memory(), branch="main") as state:
        for number, mapping in enumerate((state, state.namespace("part"))):
            watching, begun = mapping.watch("n"), mapping.watch(since=state.head)
            await mapping.set("n", number)
            made = await state.commit()
            async for key, change, commit in watching:
                assert (key, change.new, commit) == ("n", number, made)
                break
            watch = await begun
            assert watch is await begun
            assert (await anext(begun))[2] == made
            assert watch.seen == made
        heard: list[str] = []
        begun_to_hear = threading.Event()
        hearing = await state.subscribe("*", lambda key, *_: (heard.append(key), begun_to_hear.set()))
        state.record("seen", by="test")
        await state.set("heard", 1)
        assert [event.kind for event in present(await state.commit()).events] == ["seen"]
        assert await asyncio.to_thread(begun_to_hear.wait, 60)
        await asyncio.to_thread(hearing.close)
        assert heard == ["heard"]
    with pytest.raises(InvalidInput, match="closed"):
        await anext(state.watch())
    other = aio.Versioned(state.sync.store, branch="main")
    watching = other.watch("part/n", since="HEAD~2")
    assert (await anext(watching))[1].new == 1, "it opens the state"
    await other.close()


@opened
async def test_a_subscription_whose_task_is_cancelled_is_closed(
    state: aio.Versioned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancellation comes as the thread has just begun it."""
    made, begun, cancelled_now = list[Any](), threading.Event(), threading.Event()
    subscribe = vstate.Versioned.subscribe

    def subscribe_late(self: vstate.Versioned, *args: Any) -> Any:
        made.append(subscribe(self, *args))
        begun.set()
        assert cancelled_now.wait(60)
        return made[0]

    monkeypatch.setattr(vstate.Versioned, "subscribe", subscribe_late)
    task = asyncio.create_task(state.subscribe("*", print))
    assert await asyncio.to_thread(begun.wait, 60)
    task.cancel()
    cancelled_now.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not made[0].active


@opened
async def test_what_is_not_awaited_says_how_rather_than_going_on_without_end(state: aio.Versioned) -> None:
    """`in` and `for` raise. Python would fall back on `state[0]`, `state[1]`, …, and never end."""
    await state.set("plan", 1)
    await state.commit("a plan")
    for mapping in (state, state.namespace("a"), await state.checkout("HEAD")):
        with pytest.raises(TypeError, match="async for key in state"):
            list(mapping)
        with pytest.raises(TypeError, match=r"await state\.contains\(key\)"):
            assert "plan" in mapping
        with pytest.raises(TypeError, match="async for key in state"):
            await mapping.get(*mapping)


def test_nothing_is_missing() -> None:
    """Every public method and argument of the sync state exists here under the same name."""
    other_ways = {"store", "root", "prefix", "popitem", "has_uncommitted", "before_commit"}
    names = {name for name, _ in inspect.getmembers(vstate.Versioned) if not name.startswith("_")}
    assert names - other_ways - set(dir(aio.Versioned)) == set()
    assert inspect.signature(aio.Versioned) == inspect.signature(vstate.Versioned)


@opened
async def test_a_value_in_memory_is_read_without_a_thread(
    state: aio.Versioned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first read loads a value, in a thread. Later reads find it, and see each change and deletion."""
    await state.update({"part/a": [1], "part/b": 2, "gone": 3})
    await state.commit()
    part, snapshot = state.namespace("part"), await state.checkout("HEAD")
    for mapping, key in ((state, "part/a"), (part, "a"), (snapshot, "part/a")):
        await mapping[key]
        with monkeypatch.context() as without_threads:
            without_threads.delattr(aio.mapping.Workers, "run")
            assert await mapping[key] == [1]
            assert await mapping.get(key) is await mapping[key]
            assert await mapping.get_many([key, key]) == {key: [1]}
            assert await part.contains("a")
        assert await mapping.get_many([key, "absent"]) == {key: [1]}
    (await part["a"]).append(2)
    await state.commit()
    assert await part["a"] == [1, 2]
    assert await snapshot["part/a"] == [1]
    del state.sync["gone"]
    assert not await state.contains("gone")
    await state.set("part/b", 5)
    assert await part["b"] == 5
    other: Any = []
    assert not await state.contains(other)


@opened
async def test_reads_from_memory_let_other_tasks_run(state: aio.Versioned) -> None:
    """A task that polls a value without another pause sees the change of another task."""
    await state.set("done", False)

    async def finish() -> None:
        state["done"] = True

    task = asyncio.create_task(finish())
    while not await state["done"]:
        pass
    await task
