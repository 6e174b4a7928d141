"""A chat server on one machine: each request goes to one of many threads of LangGraph, most of them cold."""

from __future__ import annotations

import multiprocessing
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from os import urandom
from pathlib import Path
from statistics import median
from typing import Any

from langgraph.checkpoint.base import empty_checkpoint

from benchmarks.harness import Row, Sides, Target, workload
from benchmarks.langgraph_threads import close, in_sqlite
from benchmarks.subjects import size_of
from benchmarks.values import messages
from vstate import Versioned
from vstate.integrations.langgraph import VstateSaver
from vstate.kv import Disk

THREADS = 500
CHECKPOINTS = 10
STEPS = 4
REQUESTS = 200
COLD = 40

WHAT = f"LangGraph, {THREADS} threads, disk: processor time of"
PUT, PUT_WRITES, GET = f"{WHAT} put", f"{WHAT} put_writes", f"{WHAT} get again"
FIRST = f"{WHAT} the first get of a thread"
REQUEST = f"{WHAT} a request: 1 get, {STEPS} puts, {STEPS - 1} put_writes"
DELETE = f"{WHAT} delete_thread"
BYTES = f"LangGraph, {THREADS} threads, {REQUESTS} requests, disk: bytes"
BYTES_PACKED = f"{BYTES} after gc"

Times = dict[str, list[float]]


class Talks:
    """The threads of a saver, and the processor time of its calls, by row."""

    def __init__(self, saver: Any) -> None:
        self.saver = saver
        self.times: Times = {row: [] for row in (PUT, PUT_WRITES, GET, FIRST, REQUEST, DELETE)}
        self._steps = count()

    def timed(self, row: str, call: Callable[..., Any], *given: Any) -> Any:
        """The answer of the call; its time counts for the row."""
        began = time.process_time()
        answer = call(*given)
        self.times[row].append(time.process_time() - began)
        return answer

    def config(self, thread: int) -> Any:
        """The config of a thread."""
        return {"configurable": {"thread_id": f"thread {thread}", "checkpoint_ns": ""}}

    def step(self, config: Any, chat: list[Any]) -> Any:
        """Put a checkpoint with these messages."""
        number = next(self._steps)
        checkpoint = empty_checkpoint()
        checkpoint["id"] = f"{number:036}"
        checkpoint["channel_values"] = {"messages": chat}
        checkpoint["channel_versions"] = {"messages": number}
        metadata: Any = {"source": "loop", "step": number, "parents": {}}
        return self.timed(PUT, self.saver.put, config, checkpoint, metadata, {"messages": number})

    def request(self, thread: int, answers: Iterator[dict[str, str]]) -> None:
        """Answer a request to a thread."""
        found = self.timed(FIRST, self.saver.get_tuple, self.config(thread))
        config, chat = found.config, found.checkpoint["channel_values"]["messages"]
        for number in range(STEPS):
            message = next(answers)
            chat = [*chat, message]
            config = self.step(config, chat)
            if number < STEPS - 1:
                self.timed(PUT_WRITES, self.saver.put_writes, config, [("messages", [message])], f"{number}")


def fill(saver: Any) -> None:
    """Give each thread some checkpoints."""
    talks = Talks(saver)
    for thread in range(THREADS):
        config, chat = talks.config(thread), []
        for message, _ in zip(messages(thread, length=300), range(CHECKPOINTS), strict=False):
            chat = [*chat, message]
            config = talks.step(config, chat)


@workload(
    Row(PUT, "seconds", (Target(1.5, side="langgraph"),)),
    Row(PUT_WRITES, "seconds", (Target(1.5, side="langgraph"),)),
    Row(GET, "seconds", (Target(1.0, side="langgraph"),)),
    Row(FIRST, "seconds", (Target(3.0, side="langgraph"),)),
    Row(REQUEST, "seconds", (Target(1.2, side="langgraph"),)),
    Row(DELETE, "seconds", (Target(0.002),)),
    Row(BYTES, "bytes", (Target(1.0, side="langgraph"),)),
    Row(BYTES_PACKED, "bytes", (Target(0.4, side="langgraph"),)),
    rounds=3,
)
def chat_server(scratch: Path) -> Iterator[Sides]:
    rounds = count()

    def on(make: Callable[[Path], Any], unsynced: Callable[[Path], Any]) -> dict[str, float]:
        directory, generator = scratch / str(next(rounds)), random.Random(1)
        fill(saver := unsynced(directory))
        close(saver)
        talks, answers = Talks(make(directory)), messages(THREADS, length=300)
        threads = generator.sample(range(THREADS), REQUESTS)
        for thread in threads:
            began = time.process_time()
            talks.request(thread, answers)
            talks.times[REQUEST].append(time.process_time() - began)
            talks.timed(GET, talks.saver.get_tuple, talks.config(thread))
        close(talks.saver)
        size = size_of(directory)
        talks.saver = make(directory)
        if isinstance(talks.saver, VstateSaver):
            talks.saver.repo.gc()
        packed = size_of(directory)
        for thread in threads[:COLD]:
            talks.timed(DELETE, talks.saver.delete_thread, f"thread {thread}")
        close(talks.saver)
        figures = {row: median(times) for row, times in talks.times.items()}
        return {BYTES: float(size), BYTES_PACKED: float(packed), **figures}

    def vstate_unsynced(directory: Path) -> VstateSaver:
        return VstateSaver(Disk(directory, durability="process"))

    def sqlite_unsynced(directory: Path) -> Any:
        saver = in_sqlite(directory)
        saver.conn.execute("PRAGMA synchronous = OFF")
        return saver

    yield {
        "vstate": partial(on, VstateSaver, vstate_unsynced),
        "langgraph": partial(on, in_sqlite, sqlite_unsynced),
    }


PROCESSES = 4
COMMITS = 300
APART = f"{PROCESSES} processes, each with a branch of its own on one Disk: a commit"


def commit_in_vstate(directory: Path, worker: int, times: Queue[float], start: Barrier) -> None:
    """Commit one key again and again."""
    with Versioned(directory, branch=f"worker-{worker}") as state:
        state["key"] = -1
        state.commit()
        start.wait()
        began = time.perf_counter()
        for number in range(COMMITS):
            state["key"] = number
            state.commit()
        times.put((time.perf_counter() - began) / COMMITS)


def commit_in_sqlite(directory: Path, worker: int, times: Queue[float], start: Barrier) -> None:
    """Write as many rows in plain SQLite: an object, a node, a commit, a ref and a line of its log."""
    with sqlite3.connect(directory / "plain.db", timeout=60, isolation_level=None) as plain:
        plain.execute("PRAGMA synchronous=FULL")
        start.wait()
        began = time.perf_counter()
        for number in range(COMMITS):
            plain.execute("BEGIN IMMEDIATE")
            plain.execute("SELECT value FROM rows WHERE key = ?", (b"ref %d" % worker,)).fetchall()
            new = [(urandom(33), urandom(200)) for _ in range(3)]
            line = b"log %d %d" % (worker, number), urandom(80)
            rows = [*new, (b"ref %d" % worker, urandom(64)), line]
            plain.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?)", rows)
            plain.execute("COMMIT")
        times.put((time.perf_counter() - began) / COMMITS)


def together(work: Callable[..., None], directory: Path) -> dict[str, float]:
    """The seconds of a commit of the slowest process, while all commit at once."""
    context = multiprocessing.get_context("spawn")
    times: Queue[float] = context.Queue()
    start = context.Barrier(PROCESSES)
    workers = [context.Process(target=work, args=(directory, n, times, start)) for n in range(PROCESSES)]
    for worker in workers:
        worker.start()
    slowest = max(times.get() for _ in workers)
    for worker in workers:
        worker.join()
    return {APART: slowest}


@workload(Row(APART, "seconds", (Target(1.3, side="floor"),)), rounds=3)
def processes(scratch: Path) -> Iterator[Sides]:
    rounds = count()

    def on_vstate() -> dict[str, float]:
        directory = scratch / str(next(rounds))
        Versioned(directory).close()
        return together(commit_in_vstate, directory)

    def on_sqlite() -> dict[str, float]:
        directory = scratch / str(next(rounds))
        directory.mkdir()
        with sqlite3.connect(directory / "plain.db") as plain:
            plain.execute("PRAGMA journal_mode=WAL")
            plain.execute("CREATE TABLE rows (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")
        return together(commit_in_sqlite, directory)

    yield {"vstate": on_vstate, "floor": on_sqlite}
