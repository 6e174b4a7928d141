"""Runs in an event loop: steps that are awaited, side by side, or cancelled."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from loops import in_a_loop

from vstate import ABSENT, EffectUnknown, InvalidInput, LeaseHeld, Memory, UncommittedChanges
from vstate.aio import Versioned
from vstate.state.run import Intent
from vstate.state.run import Run as SyncRun

called: list[int] = []


async def double(number: int) -> int:
    called.append(number)
    await asyncio.sleep(0.01 * (5 - number))
    return 2 * number


def blocking(number: int) -> int:
    called.append(number)
    return -number


@in_a_loop
async def test_steps_side_by_side() -> None:
    """Steps of a gather are numbered in the order of the calls, and recorded as they end."""
    called.clear()
    async with Versioned(Memory()) as state:
        for _ in range(3):
            async with state.run("r") as run:
                log = await state.get("log", [])
                state["log"] = [*log, "before"]
                steps = [*(run.step(double, number) for number in range(4)), run.step(blocking, 4)]
                assert await asyncio.gather(*steps) == [0, 2, 4, 6, -4]
                state["log"] = [*(await state["log"]), "after"]
            assert [step.id for step in run.steps] == [*(f"double#{n}" for n in (1, 2, 3, 4)), "blocking#1"]
        assert sorted(called) == [0, 1, 2, 3, 4]
        assert await state["log"] == ["before", "after"]
        (info,) = await state.runs()
        assert (info.steps, info.ended) == (5, True)


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["failed", "cancelled"])
@in_a_loop
async def test_a_gather_that_was_cut_short(ends: str) -> None:
    """A step of a gather ends after another has landed: the edits before the gather are made once."""
    async with Versioned(Memory()) as state:
        state["n"] = 0
        await state.commit()

        async def late(seconds: float) -> int:
            await asyncio.sleep(seconds)
            raise OSError

        async def late_again(seconds: float) -> int:
            return 1

        async def enter(function: Any, *, gathers: bool) -> None:
            async with state.run("r") as run:
                state["n"] = await state["n"] + 1
                first = run.step(function, 0.1 if ends == "failed" else 60, name="late")
                second = run.step(double, 4)
                if gathers:
                    await asyncio.gather(first, second)
                else:
                    await first
                    await second

        with pytest.raises((OSError, TimeoutError)):
            await asyncio.wait_for(enter(late, gathers=True), 0.5)
        assert await state["n"] == 1
        await enter(late_again, gathers=False)
        assert await state["n"] == 1


@in_a_loop
async def test_edits_of_steps_side_by_side() -> None:
    """What each step of a gather edits last is kept when another one fails, or is recorded already."""
    async with Versioned(Memory()) as state:
        stops = [True]

        async def fetch(name: str) -> str:
            if stops and name == "c":
                await asyncio.sleep(0.05)
                raise OSError
            state[name] = name
            await asyncio.sleep(0.1)
            return name

        for _ in range(3):
            try:
                async with state.run("r") as run:
                    state["n"] = await state.get("n", 0) + 1
                    last = asyncio.create_task(run.step(fetch, "c", key="c"))
                    await asyncio.sleep(0.02)  # it has edited the state, if it does not fail
                    await asyncio.gather(*(run.step(fetch, name, key=name) for name in "ab"))
                    await last
            except OSError:
                stops.clear()
        assert {key: await state[key] async for key in state} == {"a": "a", "b": "b", "c": "c", "n": 1}


@in_a_loop
async def test_cancelled_steps() -> None:
    """A step that is cancelled leaves no record, one that is done once its intent; its edits are undone."""
    async with Versioned(Memory()) as state:
        state["n"] = 0
        await state.commit()

        async def work() -> None:
            state["n"] = 1
            await asyncio.sleep(60)

        for once in (False, True):
            async with state.run(f"{once}") as run:
                task = asyncio.create_task(run.step(work, once=once))
                while await state["n"] == 0:
                    await asyncio.sleep(0.01)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert await state["n"] == 0
                assert [step.status for step in run.steps] == ["open"] * once
        async with state.run("True") as run:
            with pytest.raises(EffectUnknown):
                await run.step(work, once=True)
            assert await run.resolve("work#1", "done") == "done"
            assert await run.step(work, once=True) == "done"


@in_a_loop
async def test_an_unknown_effect_is_awaited() -> None:
    """`check` may be a coroutine function; `retry` calls the step again with its key."""
    keys = []

    async def pay(amount: int, idempotency_key: str) -> int:
        keys.append(idempotency_key)
        if len(keys) < 3:
            raise TimeoutError
        return amount

    async def ask(intent: Intent) -> Any:
        await asyncio.sleep(0)
        return ABSENT

    async with Versioned(Memory()) as state:
        for options in ({}, {"check": ask}):
            with pytest.raises(TimeoutError):
                async with state.run("r") as run:
                    await run.step(pay, 5, once=True, **options)
        async with state.run("r") as run:
            await run.retry("pay#1")
            assert await run.step(pay, 5, once=True) == 5
        assert len(set(keys)) == 1


@in_a_loop
async def test_retries_and_places() -> None:
    """Retries pause without holding the loop up. A step inside a step or a transaction is refused."""
    fails = [OSError(), OSError()]

    async def flaky() -> str:
        if fails:
            raise fails.pop()
        return "done"

    async with Versioned(Memory()) as state, state.run("r") as run:
        pause = run.step(flaky, retries=3)
        assert await asyncio.gather(pause, asyncio.sleep(0, "other")) == ["done", "other"]

        async def outer() -> None:
            await run.step(flaky)

        with pytest.raises(InvalidInput, match="transaction of its own"):
            await run.step(outer)
        with pytest.raises(InvalidInput):
            async with state.transaction():
                await run.step(flaky)


@in_a_loop
async def test_entering_is_awaited() -> None:
    """Waiting for a run can be cancelled and limited; the state has to be clean; a run has its id."""
    memory = Memory()
    async with Versioned(memory) as one, Versioned(memory) as two:
        run = one.run("r")
        assert repr(run) == "<aio Run, not entered>"
        with pytest.raises(InvalidInput, match="not entered"):
            run.step(double, 1)
        async with run:
            assert (run.id, repr(run)) == ("r", "<aio <Run 'r' on branch 'main', 0 steps>>")
            with pytest.raises(LeaseHeld):
                async with two.run("r", wait=0):
                    pass
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05), two.run("r"):
                    pass
        async with two.run("r") as other:
            assert await other.step(double, 4) == 8
        one["a"] = 1
        with pytest.raises(UncommittedChanges):
            async with one.run("s"):
                pass
        await one.discard()


@pytest.mark.parametrize("moment", ["__enter__", "_find_id"])
@in_a_loop
async def test_an_entry_that_is_cancelled_leaves_no_run(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is entered as its task is cancelled, or begins to wait for another holder just then."""
    begun, cancelled, call, stop = (
        threading.Event(),
        threading.Event(),
        getattr(SyncRun, moment),
        SyncRun.stop_waiting,
    )

    def call_late(run: SyncRun) -> Any:
        found = call(run)
        begun.set()
        assert cancelled.wait(60)
        return found

    def stop_and_tell(run: SyncRun) -> None:
        stop(run)
        cancelled.set()

    async with Versioned(Memory()) as state:
        other = state.sync.run("r", ttl=60)
        if moment == "_find_id":
            await asyncio.to_thread(other.__enter__)
        with monkeypatch.context() as patched:
            patched.setattr(SyncRun, moment, call_late)
            patched.setattr(SyncRun, "stop_waiting", stop_and_tell)
            task = asyncio.create_task(state.run("r", ttl=60).__aenter__())
            assert await asyncio.to_thread(begun.wait, 60)
            task.cancel()
            ended, _ = await asyncio.wait([task], timeout=30)
        if moment == "_find_id":
            await asyncio.to_thread(other.__exit__, None, None, None)
        assert ended
        assert task.cancelled()
        async with state.run("r", wait=0):
            pass
