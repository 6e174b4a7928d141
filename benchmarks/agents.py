"""State for agents: the time of a durable call of a service or a manager on Disk."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, Sides, Target, seconds, workload
from benchmarks.keys import COMMITS
from benchmarks.subjects import Floor, MeteredDisk, size_of
from benchmarks.values import KEYS, key, messages, small_dict
from vstate import Disk, Namespace
from vstate.managers import StateManager, ToolExecution, ToolStateManager
from vstate.sessions import StateService

MESSAGES = 100
CHARACTERS = 95  # a message: 13 KB in all
ROUNDS = 1_000
ROUNDS_LONG = 10_000
FIRST, SAMPLE = 10, 30

SAVE_BYTES = "1,000 rounds of a state of 100 messages, disk: bytes in all"
SAVE_BYTES_LONG = "10,000 rounds of a state of 100 messages, disk: bytes in all"
SAVE_FIRST = "save_state of 100 messages, disk, round 10"
SAVE_LAST = "save_state of 100 messages, disk, round 1,000"


def conversation(seed: int) -> Callable[[], dict[str, Any]]:
    """Each call returns the state of the next turn: the last 100 messages, one of them new."""
    source = messages(seed, length=CHARACTERS)
    kept = deque(islice(source, MESSAGES), maxlen=MESSAGES)

    def turn() -> dict[str, Any]:
        kept.append(next(source))
        return {"memory": {"content": list(kept)}, "name": "agent"}

    return turn


@workload(
    Row(SAVE_BYTES, "bytes", (Target(1_500_000),)),
    Row(SAVE_BYTES_LONG, "bytes", (Target(15_000_000),)),
    Row(SAVE_FIRST, "seconds"),
    Row(SAVE_LAST, "seconds", (Target(2.0, row=SAVE_FIRST),)),
    rounds=0,
)
def rounds_of_a_state(scratch: Path) -> Iterator[Sides]:
    directory, turn = scratch / "rounds", conversation(31)

    def save(rounds: int) -> list[float]:
        """The seconds of each save of a service. The service is stopped then, so no log counts as bytes."""
        with asyncio.Runner() as runner:
            service = StateService(directory)
            runner.run(service.start())

            def once() -> float:
                state = turn()
                return seconds(lambda: runner.run(service.save_state("user", state, "session")))

            samples = [once() for _ in range(rounds)]
            runner.run(service.stop())
        return samples

    def all_rounds() -> dict[str, float]:
        samples = save(ROUNDS)
        after = size_of(directory)
        save(ROUNDS_LONG - ROUNDS)
        return {
            SAVE_BYTES: float(after),
            SAVE_BYTES_LONG: float(size_of(directory)),
            SAVE_FIRST: statistics.median(samples[FIRST : FIRST + SAMPLE]),
            SAVE_LAST: statistics.median(samples[-SAMPLE:]),
        }

    yield {"vstate": all_rounds}


PAIRS = 500

TASKS = 32

TOOL_PAIR = "ToolStateManager, start and complete one after the other, disk: a pair"
TOOL_PAIRS = "ToolStateManager, start and complete in 32 tasks at once, disk: a pair"


async def start(manager: ToolStateManager, number: int) -> None:
    begun = ToolExecution(execution_id=f"{number:06}", tool_name="search", parameters={"query": "news"})
    await manager.start_execution(begun)


async def complete(manager: ToolStateManager, number: int) -> None:
    await manager.complete_execution(f"{number:06}", result={"found": [1, 2, 3]}, duration_ms=12)


@workload(Row(TOOL_PAIR, "seconds", (Target(1 / 500),)), Row(TOOL_PAIRS, "seconds", (Target(1 / 2000),)))
def executions_of_tools(scratch: Path) -> Iterator[Sides]:
    rounds = count()
    written: list[tuple[int, ...]] = []

    async def pairs(tasks: int) -> float:
        disk = MeteredDisk(scratch / str(next(rounds)))

        async def task(numbers: range) -> None:
            for number in numbers:
                await start(manager, number)
                await complete(manager, number)

        async with ToolStateManager(disk) as manager:
            await start(manager, PAIRS)
            written[:] = [disk.written]
            await complete(manager, PAIRS)
            written.append(disk.written)
            began = time.perf_counter()
            await asyncio.gather(*(task(range(number, PAIRS, tasks)) for number in range(tasks)))
            sample = time.perf_counter() - began
        disk.close()
        return sample / PAIRS

    def on_vstate() -> dict[str, float]:
        return {TOOL_PAIR: asyncio.run(pairs(1)), TOOL_PAIRS: asyncio.run(pairs(TASKS))}

    def on_floor() -> dict[str, float]:
        floor = Floor(scratch / f"floor-{next(rounds)}.db")
        rows = [[floor.rows(sizes) for sizes in written] for _ in range(PAIRS)]
        sample = seconds(lambda: [floor.write(commit) for pair in rows for commit in pair]) / PAIRS
        floor.close()
        return {TOOL_PAIR: sample}

    yield {"vstate": on_vstate, "floor": on_floor}


STATE_COMMIT = "commit 1 of 10,000 keys of a StateManager, disk, plainly"
STATE_UPDATE = "StateManager.update of 1 of 10,000 keys, disk"


@workload(
    Row(STATE_COMMIT, "seconds"),
    Row(STATE_UPDATE, "seconds", (Target(1.5, row=STATE_COMMIT),)),
)
def updates_of_a_state_manager(scratch: Path) -> Iterator[Sides]:
    """Both take turns on one handle, so other work on the machine slows both alike."""
    disk = Disk(scratch / "states")
    chosen, new = random.Random(9), count(KEYS)

    def fill(part: Namespace) -> None:
        for i in range(KEYS):
            part[key(i)] = small_dict(i)

    def on_vstate() -> dict[str, float]:
        samples: dict[str, list[float]] = {STATE_COMMIT: [], STATE_UPDATE: []}
        state = manager.state.sync
        with asyncio.Runner() as runner:
            for _ in range(COMMITS):
                state[f"state/{key(chosen.randrange(KEYS))}"] = small_dict(next(new))
                samples[STATE_COMMIT].append(seconds(state.commit))
                name, changes = key(chosen.randrange(KEYS)), {"changed": next(new)}

                async def update(name: str = name, changes: dict[str, int] = changes) -> float:
                    began = time.perf_counter()
                    await manager.update(name, changes)
                    return time.perf_counter() - began

                samples[STATE_UPDATE].append(runner.run(update()))
        return {row: statistics.median(found) for row, found in samples.items()}

    manager = StateManager(disk)
    asyncio.run(manager.change(fill, "fill"))
    yield {"vstate": on_vstate}
    asyncio.run(manager.close())
    disk.close()
