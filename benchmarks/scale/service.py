"""A day of a service in some minutes: `python -m benchmarks.scale.service`.

The store holds many threads. Workers answer requests, begin threads and delete some, all at once, in slices
of time that vstate and LangGraph's saver take in turns: on a disk beside `SqliteSaver`, then on PostgreSQL
beside `PostgresSaver`. A request reads the newest checkpoint of any thread, and makes four steps with three
writes, each of them synced. In vstate the commits also carry out a rule of retention, for which LangGraph's
savers have nothing.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

from benchmarks.langgraph_threads import in_sqlite
from benchmarks.report import figure
from benchmarks.scale.report import put_into
from benchmarks.scale.threads import DAYS, FILLERS, Threads, config_of, fill, put, talk
from vstate.integrations.langgraph import VstateSaver
from vstate.kv import Disk

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "tests"))

from postgres_server import PostgresServer

STEPS = 4
WRITES = 3
ARRIVALS, DELETIONS = 0.05, 0.05
"""Of all events."""
WORKERS = 4
SLICE = 5.0
"""Seconds."""
POSTGRES_THREADS = 2000


class Side:
    """A saver with its threads, of which each worker has its own, and the seconds of each request."""

    def __init__(self, name: str, saver: Any, threads: int) -> None:
        self.name = name
        self.saver = saver
        self.requests: list[float] = []
        self.of_worker = [
            [f"other {n}" for n in range(worker, threads, WORKERS)] for worker in range(WORKERS)
        ]
        self._generators = [random.Random(worker) for worker in range(WORKERS)]
        self._new = count()

    def work(self, worker: int, until: float) -> None:
        """Carry out events until that moment."""
        own, generator = self.of_worker[worker], self._generators[worker]
        while time.monotonic() < until:
            kind = generator.random()
            if kind < DELETIONS and len(own) > 1:
                gone = own.pop(generator.randrange(len(own)))
                self.saver.delete_thread(config_of(gone)["configurable"]["thread_id"])
                continue
            if kind < DELETIONS + ARRIVALS:
                own.append(f"new {next(self._new)}")
            start = time.perf_counter()
            self._answer(generator.choice(own) if kind >= DELETIONS + ARRIVALS else own[-1])
            self.requests.append(time.perf_counter() - start)

    def _answer(self, name: str) -> None:
        found = self.saver.get_tuple(config_of(name))
        first = 0 if found is None else found.metadata["step"] + 1
        chat = [] if found is None else found.checkpoint["channel_values"]["messages"]
        for number in range(first, first + STEPS):
            chat = [*chat, {"role": "user", "content": f"message {number} of {name}"}]
            put(self.saver, name, number, chat, f"the user of {name}")
            if number < first + WRITES:
                self.saver.put_writes(config_of(name, number), [("messages", "a write")], str(number))


def fill_saver(saver: Any, threads: int) -> None:
    """Write so many threads with the saver."""
    for number in range(threads):
        talk(saver, f"other {number}", f"the user of other {number}", number % FILLERS)


def fill_sqlite(saver: Any, threads: int) -> None:
    """Write the same number of threads into the tables of LangGraph's saver, as copies of some."""
    fill_saver(saver, FILLERS)
    cursor = saver.conn.cursor()
    for number in range(FILLERS, threads):
        of, to = (config_of(f"other {n}")["configurable"]["thread_id"] for n in (number % FILLERS, number))
        rows = cursor.execute("SELECT * FROM checkpoints WHERE thread_id = ?", (of,)).fetchall()
        places = ",".join("?" * len(rows[0]))
        cursor.executemany(f"INSERT INTO checkpoints VALUES ({places})", [(to, *row[1:]) for row in rows])
    saver.conn.commit()


def serve(sides: Iterable[Side], seconds: float) -> None:
    """Let the sides take turns until each has had so many seconds."""
    with ThreadPoolExecutor(WORKERS) as pool:
        for _ in range(max(1, round(seconds / SLICE))):
            for side in sides:
                until = time.monotonic() + min(SLICE, seconds)
                for done in [pool.submit(side.work, worker, until) for worker in range(WORKERS)]:
                    done.result()


def day_on_postgres(directory: Path, threads: int, seconds: float) -> list[Side]:
    """The same with a server for each side, and a pool of connections for each saver."""
    ours, theirs = (PostgresServer(directory / "template") for _ in range(2))
    try:
        options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        with (
            VstateSaver(ours.dsn) as saver,
            ConnectionPool(theirs.dsn, kwargs=options, max_size=WORKERS, open=True) as pool,
        ):
            other = PostgresSaver(pool)
            other.setup()
            for each in (saver, other):
                fill_saver(each, threads)
            saver.repo.keep("threads/*", idle=f"{DAYS - 1}d", last=50)
            sides = [Side("vstate", saver, threads), Side("`PostgresSaver`", other, threads)]
            serve(sides, seconds)
        return sides
    finally:
        ours.stop()
        theirs.stop()


def table(sides: Iterable[Side], threads: int) -> str:
    """The requests of each side in a line of Markdown."""
    lines = [
        f"| {threads:,} threads, {WORKERS} workers | requests | p50 | p99 | longest |",
        "|---|--:|--:|--:|--:|",
    ]
    for side in sides:
        parts = statistics.quantiles(side.requests, n=100)
        times = [figure(value, "seconds") for value in (parts[49], parts[98], max(side.requests))]
        lines.append(f"| {side.name} | {len(side.requests):,} | {' | '.join(times)} |")
    return "\n".join(lines)


def day(directory: Path, threads: int, seconds: float) -> list[Side]:
    """Fill the stores of both sides with so many threads, and let each serve for so long."""
    ours = directory / "vstate"
    with Disk(ours, durability="process") as store:
        for _ in fill(store, Threads((), 0), threads):
            pass
    with VstateSaver(ours) as saver, closing(in_sqlite(directory / "sqlite").conn) as connection:
        saver.repo.keep("threads/*", idle=f"{DAYS - 1}d", last=50)
        theirs = SqliteSaver(connection)
        fill_sqlite(theirs, threads)
        sides = [Side("vstate", saver, threads), Side("`SqliteSaver`", theirs, threads)]
        serve(sides, seconds)
    return sides


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale.service", description="Measure the requests of a service."
    )
    parser.add_argument("--threads", type=int, default=100_000, metavar="N", help="threads before (100,000)")
    parser.add_argument("--minutes", type=float, default=2, metavar="N", help="minutes of each side (2)")
    parser.add_argument("--page", type=Path, metavar="FILE", help="also put the table into this page")
    parser.add_argument(
        "--scratch", type=Path, default=Path("build/benchmarks"), metavar="DIR", help="make the stores in DIR"
    )
    options = parser.parse_args()
    options.scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.scratch) as place:
        seconds = options.minutes * 60
        on_postgres = table(day_on_postgres(Path(place), POSTGRES_THREADS, seconds), POSTGRES_THREADS)
        found = f"{table(day(Path(place), options.threads, seconds), options.threads)}\n\n{on_postgres}"
    print(found)
    if options.page is not None:
        put_into(options.page, "service", found)


if __name__ == "__main__":
    main()
