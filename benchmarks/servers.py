"""Commits on PostgreSQL and Redis, and pushes between stores. The workloads start the tests' servers."""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import kvgit
import psycopg
from kvgit.kv.postgres import Postgres as KvgitPostgres
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.postgres import PostgresSaver

from benchmarks.harness import Row, Sides, Target, median_seconds, seconds, workload
from benchmarks.keys import COMMITS, commit_changes, fill
from benchmarks.subjects import Subject
from benchmarks.values import key, messages, random_values
from vstate import Disk, KVStore, Versioned
from vstate.integrations.langgraph import VstateSaver
from vstate.kv import Postgres, Redis
from vstate.repo.repository import Repository

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from postgres_server import PostgresServer
from redis_server import RedisServer

COMMIT_ON_POSTGRES = "commit 1 changed key of 10,000, PostgreSQL"


def on_store(store: KVStore) -> Subject:
    """vstate on a store."""
    state = Versioned(store, branch="main")
    return Subject(state, state.commit, lambda: "", state.checkout, lambda a, b: [], state.close)


def floor_on_postgres(dsn: str) -> Callable[[], dict[str, float]]:
    """A transaction of six rows as long as the rows of a commit."""
    connection = psycopg.connect(dsn)
    generator = random.Random(4)
    sizes = (1100, 1600, 1600, 1400, 120, 80)
    connection.execute("CREATE TABLE floor (key bytea PRIMARY KEY, value bytea NOT NULL)")
    connection.commit()

    def write(_: int) -> None:
        with connection.cursor() as cursor:
            rows = [(generator.randbytes(33), generator.randbytes(size)) for size in sizes]
            cursor.executemany("INSERT INTO floor VALUES (%s, %s)", rows)
        connection.commit()

    return lambda: {COMMIT_ON_POSTGRES: median_seconds(write, COMMITS)}


@workload(Row(COMMIT_ON_POSTGRES, "seconds", (Target(0.7, side="kvgit"),)))
def commit_on_postgres(scratch: Path) -> Iterator[Sides]:
    server = PostgresServer(scratch / "template")
    worktree = kvgit.Repo(KvgitPostgres(server.dsn)).worktree("main", create=True)
    other = Subject(worktree, worktree.commit, lambda: "", lambda commit: {}, lambda a, b: [], lambda: None)
    store = Postgres(server.dsn)
    try:
        yield {
            "vstate": commit_changes(fill(on_store(store)), COMMIT_ON_POSTGRES),
            "kvgit": commit_changes(fill(other), COMMIT_ON_POSTGRES),
            "floor": floor_on_postgres(server.dsn),
        }
    finally:
        store.close()
        worktree.repo.close()
        server.stop()


COMMIT_ON_REDIS = "commit 1 changed key of 10,000, Redis with appendfsync always"


@workload(Row(COMMIT_ON_REDIS, "seconds"))
def commit_on_redis(scratch: Path) -> Iterator[Sides]:
    server = RedisServer(scratch / "redis")
    store = Redis(server.url)
    try:
        yield {"vstate": commit_changes(fill(on_store(store)), COMMIT_ON_REDIS)}
    finally:
        store.close()
        server.stop()


CHAT_TURNS = 200
LAST = 20
CHAT_TIME = "a chat list of 200 turns, PostgreSQL: saving the last ones"
CHAT_BYTES = "a chat list of 200 turns, PostgreSQL: bytes in the tables"
IN_POSTGRES = "200 steps of a chat, beside `PostgresSaver`"
SAVER_TIME = "LangGraph, 200 steps of a chat, PostgreSQL: one of the last 20 steps"
SAVER_BYTES = "LangGraph, 200 steps of a chat, PostgreSQL: bytes in the tables"


def size_of_tables(dsn: str) -> int:
    """Bytes of all tables of the database, with their indexes."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(
            "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' "
            "AND relnamespace = 'public'::regnamespace"
        ).fetchone()
    assert row is not None
    return int(row[0])


def chat_in_vstate(dsn: str) -> float:
    """Commit one message a turn. Returns the median commit of the last turns, in seconds."""
    with Postgres(dsn) as store:
        state = Versioned(store, branch="main")
        state["messages"] = []

        def turn(message: dict[str, str]) -> None:
            state["messages"].append(message)
            state.commit()

        samples = [seconds(turn, message) for message in islice(messages(), CHAT_TURNS)]
    return statistics.median(samples[-LAST:])


def chat_in_saver(saver: BaseCheckpointSaver[Any]) -> float:
    """Save one message and one checkpoint a turn, as a graph with one channel does."""
    config: Any = {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}
    chat: list[dict[str, str]] = []

    def turn(message: dict[str, str]) -> None:
        nonlocal config
        chat.append(message)
        version = f"{len(chat):032}"
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"messages": chat}
        checkpoint["channel_versions"] = {"messages": version}
        metadata: Any = {"source": "loop", "step": len(chat)}
        config = saver.put(config, checkpoint, metadata, {"messages": version})

    samples = [seconds(turn, message) for message in islice(messages(), CHAT_TURNS)]
    return statistics.median(samples[-LAST:])


def chat_in_langgraph(dsn: str) -> float:
    with PostgresSaver.from_conn_string(dsn) as saver:
        saver.setup()
        return chat_in_saver(saver)


def chat_in_vstate_saver(dsn: str) -> float:
    with Postgres(dsn) as store:
        return chat_in_saver(VstateSaver(store))


@workload(
    Row(CHAT_TIME, "seconds", (Target(1.0, side="langgraph"),)),
    Row(CHAT_BYTES, "bytes", (Target(0.25, side="langgraph"),)),
    Row(SAVER_TIME, "seconds", (Target(0.5, side="langgraph"),), headline=IN_POSTGRES),
    Row(SAVER_BYTES, "bytes", (Target(0.05, side="langgraph"),), headline=IN_POSTGRES),
    rounds=0,
)
def chat_on_postgres(scratch: Path) -> Iterator[Sides]:
    servers = [PostgresServer(scratch / "template") for _ in range(3)]

    def on(server: PostgresServer, chat: Callable[[str], float]) -> tuple[float, float]:
        return chat(server.dsn), size_of_tables(server.dsn)

    def in_vstate() -> dict[str, float]:
        time, size = on(servers[0], chat_in_vstate)
        saver_time, saver_size = on(servers[1], chat_in_vstate_saver)
        return {CHAT_TIME: time, CHAT_BYTES: size, SAVER_TIME: saver_time, SAVER_BYTES: saver_size}

    def in_langgraph() -> dict[str, float]:
        time, size = on(servers[2], chat_in_langgraph)
        return {CHAT_TIME: time, CHAT_BYTES: size, SAVER_TIME: time, SAVER_BYTES: size}

    try:
        yield {"vstate": in_vstate, "langgraph": in_langgraph}
    finally:
        for server in servers:
            server.stop()


PUSH_TO_MANY = "push 10 new commits to a store that has 10,000, disk to disk"
PUSH_TO_FEW = "push 10 new commits to a store that has 100, disk to disk"
BYTES_TO_MANY = "push 10 new commits to a store that has 10,000: bytes sent"
BYTES_TO_FEW = "push 10 new commits to a store that has 100: bytes sent"
PUSHED = 10


EACH = 5
"""Pushes to each target in a round. They take turns, because other processes use the disk too."""


class Pushes:
    """Two stores on disk, and pushes from the first to the second."""

    def __init__(self, scratch: Path, commits: int) -> None:
        self._source, self._target = Disk(scratch / f"source-{commits}"), Disk(scratch / f"target-{commits}")
        self._state, self._generator = Versioned(self._source, branch="main"), random.Random(27)
        self._state.update(dict(zip(map(key, range(100)), random_values(100, seed=28), strict=True)))
        self._commit(commits)
        Repository(self._source).push(self._target, ["main"])

    def _commit(self, count: int) -> None:
        for _ in range(count):
            self._state[key(self._generator.randrange(100))] = self._generator.randbytes(1024)
            self._state.commit()

    def once(self) -> tuple[float, int]:
        """Make ten commits and push them to a store that has all earlier ones.

        Returns the push's seconds and bytes.
        """
        self._commit(PUSHED)
        repo = Repository(self._source)
        sent: list[int] = []
        sample = seconds(lambda: sent.append(repo.push(self._target, ["main"]).bytes))
        return sample, sent[0]


@workload(
    Row(PUSH_TO_FEW, "seconds"),
    Row(BYTES_TO_FEW, "bytes"),
    Row(PUSH_TO_MANY, "seconds", (Target(2.0, row=PUSH_TO_FEW),)),
    Row(BYTES_TO_MANY, "bytes", (Target(2.0, row=BYTES_TO_FEW),)),
)
def push_to_few_and_to_many(scratch: Path) -> Iterator[Sides]:
    few, many = Pushes(scratch, 100), Pushes(scratch, 10_000)

    def one_round() -> dict[str, float]:
        pairs = [(few.once(), many.once()) for _ in range(EACH)]
        return {
            PUSH_TO_FEW: statistics.median(sample for (sample, _), _ in pairs),
            BYTES_TO_FEW: statistics.median(size for (_, size), _ in pairs),
            PUSH_TO_MANY: statistics.median(sample for _, (sample, _) in pairs),
            BYTES_TO_MANY: statistics.median(size for _, (_, size) in pairs),
        }

    yield {"vstate": one_round}
