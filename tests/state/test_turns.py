"""Turns of tasks: in order, woken when a turn ends, whatever happens to waiting tasks."""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from collections.abc import Callable
from contextvars import copy_context
from threading import Lock
from types import SimpleNamespace

import pytest
from loops import in_a_loop

from vstate.errors import Conflict
from vstate.state.turns import Turns

SOON = 30  # seconds; in these tests a task that is not woken looks again after twice as long


@pytest.fixture
def _woken_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vstate.state.turns._LOOK_AGAIN_SECONDS", 2.0 * SOON)


async def take(turns: Turns, order: list[int], number: int, pause: float = 0) -> None:
    token = Lock()
    with turns, token:
        await turns.take_async(token)
        order.append(number)
        await asyncio.sleep(pause)


@pytest.mark.usefixtures("_woken_or_not_at_all")
@in_a_loop
async def test_tasks_have_their_turns_in_the_order_in_which_they_came() -> None:
    turns, order = Turns(), list[int]()
    began = time.monotonic()
    await asyncio.gather(*(take(turns, order, number) for number in range(200)))
    assert order == list(range(200))
    assert time.monotonic() - began < SOON


@in_a_loop
async def test_who_takes_one_turn_after_another_lets_others_have_theirs() -> None:
    turns, order = Turns(), list[int]()

    async def greedy() -> None:
        for _ in range(20):
            await take(turns, order, 0)

    await asyncio.gather(greedy(), take(turns, order, 1))
    assert order.index(1) <= 2


@pytest.mark.usefixtures("_woken_or_not_at_all")
@in_a_loop
async def test_a_task_that_is_cancelled_when_it_is_woken_wakes_the_next() -> None:
    turns, order, outside = Turns(), list[int](), copy_context()
    token = Lock()
    with turns, token:
        await turns.take_async(token)
        waiting = [asyncio.create_task(take(turns, order, n), context=outside) for n in range(3)]
        await asyncio.sleep(0.01)
    for task in waiting[:2]:
        task.cancel()
    await asyncio.wait_for(waiting[2], SOON)
    assert order == [2]


def test_tasks_of_several_loops_and_threads_are_never_at_it_at_once() -> None:
    turns, count = Turns(), 0

    async def add(times: int) -> None:
        nonlocal count
        for _ in range(times):
            token = Lock()
            with turns, token:
                await turns.take_async(token)
                before = count
                await asyncio.sleep(0)
                count = before + 1

    async def tasks() -> None:
        await asyncio.gather(*(add(20) for _ in range(5)))

    def block() -> None:
        nonlocal count
        for _ in range(50):
            token = Lock()
            with turns, token:
                turns.take(token)
                before = count
                time.sleep(0.0001)
                count = before + 1

    threads = [threading.Thread(target=lambda: asyncio.run(tasks())) for _ in range(3)]
    threads += [threading.Thread(target=block) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert count == 3 * 5 * 20 + 2 * 50
    assert not turns._waiting


def block(turns: Turns) -> None:
    token = Lock()
    with turns, token:
        turns.take(token)


@pytest.mark.parametrize("is_over", [False, True])
@pytest.mark.parametrize(
    "wait", [block, lambda turns: asyncio.run(take(turns, [], 0))], ids=["thread", "task"]
)
def test_a_long_wait_is_told_once_unless_it_is_over(
    wait: Callable[[Turns], None], is_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warning comes while a thread or a task waits, and not if the turn came as the time was over."""
    began, turns, token, now = threading.Event(), Turns(), Lock(), 0.0

    def clock() -> float:
        began.set()
        return now

    monkeypatch.setattr("vstate.state.turns.time", SimpleNamespace(monotonic=clock))
    if not is_over:
        monkeypatch.setattr("vstate.state.turns._LOOK_AGAIN_SECONDS", 0.001)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with turns, token:
            turns.take(token)
            thread = threading.Thread(target=wait, args=(turns,))
            thread.start()
            assert began.wait(SOON)
            now = 31.0
            end = time.monotonic() + SOON
            while not is_over and not told and time.monotonic() < end:
                time.sleep(0.001)
            thread.join(0 if is_over else 0.05)  # it looks again, and is not told again
        thread.join(SOON)
    assert [str(each.message)[:20] for each in told] == ([] if is_over else ["waiting for over 30 "])


@pytest.mark.usefixtures("_woken_or_not_at_all")
def test_a_task_whose_loop_has_ended_holds_up_nobody() -> None:
    """The next one in line is woken in its place. In a loop, a call that would block it raises instead."""
    turns, token, order, outside = Turns(), Lock(), list[int](), copy_context()
    ended = asyncio.new_event_loop()
    ended.set_exception_handler(lambda *_: None)  # its task is still pending
    thread = threading.Thread(target=lambda: asyncio.run(take(turns, order, 2)))

    async def begin() -> asyncio.Task[None]:
        task = ended.create_task(take(turns, order, 1), context=outside)
        await asyncio.sleep(0)
        with pytest.raises(Conflict, match="would stop the event loop"):
            outside.run(block, turns)
        return task

    with turns, token:
        turns.take(token)
        assert not ended.run_until_complete(begin()).done()
        ended.close()
        thread.start()
        while len(turns._waiting) < 2:
            time.sleep(0.001)
    thread.join(SOON)
    assert order == [2]
    assert not turns._waiting
