"""Sessions of the OpenAI Agents SDK: 500 turns and branches of them, in vstate and in its own on SQLite.

They are measured where the extra `openai_agents` is installed.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, Sides, Target, workload
from benchmarks.subjects import size_of
from benchmarks.values import messages

TURNS = 500
BRANCHES = 100

ADD = "OpenAI Agents, 500 turns of a session, disk: add a turn"
READ = "OpenAI Agents, 500 turns of a session, disk: read all again"
BRANCH = "OpenAI Agents, 500 turns of a session, disk: branch from the last turn"
BYTES = "OpenAI Agents, 500 turns of a session, disk: bytes"
BRANCH_BYTES = "OpenAI Agents, 500 turns of a session, disk: bytes of a branch"


async def timed(call: Callable[[], Awaitable[object]]) -> float:
    """The seconds that an awaited call takes."""
    start = time.perf_counter()
    await call()
    return time.perf_counter() - start


async def talk(session: Any) -> dict[str, float]:
    """Add turns of two items, and read them."""
    items = list(islice(messages(), 2 * TURNS))
    added = [await timed(partial(session.add_items, items[at : at + 2])) for at in range(0, len(items), 2)]
    read = [await timed(session.get_items) for _ in range(BRANCHES)]
    return {ADD: statistics.median(added), READ: statistics.median(read)}


async def branch(session: Any) -> float:
    """The median of branches from the last turn of the session."""
    samples = []
    for _ in range(BRANCHES):
        await session.switch_to_branch("main")
        samples.append(await timed(lambda: session.create_branch_from_turn(TURNS)))
    return statistics.median(samples)


@workload(
    Row(ADD, "seconds", (Target(0.9, side="openai"),)),
    Row(READ, "seconds"),
    Row(BRANCH, "seconds", (Target(0.001),)),
    Row(BYTES, "bytes"),
    Row(BRANCH_BYTES, "bytes", (Target(1024),)),
    rounds=2,
)
def sessions(scratch: Path) -> Iterator[Sides]:
    if find_spec("agents") is None:
        yield {}
        return
    from agents import SQLiteSession
    from agents.extensions.memory import AdvancedSQLiteSession

    from vstate.integrations.openai_agents import VstateSession

    rounds = iter(range(1000))

    def on(make: Callable[[Path], Any], make_with_branches: Callable[[Path], Any]) -> dict[str, float]:
        directory = scratch / str(next(rounds))
        directory.mkdir()
        session = make(directory)
        figures = asyncio.run(talk(session))
        session.close()
        figures[BYTES] = float(size_of(directory))
        directory = scratch / str(next(rounds))
        directory.mkdir()
        session = make_with_branches(directory)
        asyncio.run(talk(session))
        session.close()
        before = size_of(directory)
        session = make_with_branches(directory)
        figures[BRANCH] = asyncio.run(branch(session))
        session.close()
        return {**figures, BRANCH_BYTES: (size_of(directory) - before) / BRANCHES}

    def in_vstate(directory: Path) -> Any:
        return VstateSession("a", directory / "store")

    def in_sqlite(directory: Path) -> Any:
        return SQLiteSession("a", directory / "session.db")

    def with_branches(directory: Path) -> Any:
        return AdvancedSQLiteSession(session_id="a", db_path=directory / "session.db", create_tables=True)

    yield {"vstate": lambda: on(in_vstate, in_vstate), "openai": lambda: on(in_sqlite, with_branches)}
