"""Many threads of LangGraph on PostgreSQL, most of them cold, beside LangGraph's own saver."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from langgraph.checkpoint.postgres import PostgresSaver

from benchmarks.harness import Row, Sides, Target, seconds, workload
from benchmarks.scale.threads import config_of, put
from benchmarks.values import messages
from vstate.integrations.langgraph import VstateSaver
from vstate.kv import Postgres

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from postgres_server import PostgresServer

THREADS = 1000
CHECKPOINTS = 3
COLD = 60
USERS = 100

WHAT = f"LangGraph, {THREADS:,} threads, PostgreSQL:"
PUT_NEW, PUT_COLD = f"{WHAT} put on a new thread", f"{WHAT} put on a cold thread"
GET = f"{WHAT} get of a cold thread"
LIST = f"{WHAT} list 10 checkpoints of a user"
DELETE = f"{WHAT} delete_thread"


def measured(saver: Any) -> dict[str, float]:
    """The seconds of each operation: the median of many."""
    new: list[float] = []
    chats = {f"thread {n}": list(islice(messages(n, length=300), CHECKPOINTS + 1)) for n in range(THREADS)}
    for number, (name, chat) in enumerate(chats.items()):
        for step in range(CHECKPOINTS):
            once = partial(put, saver, name, step, chat[: step + 1], f"user {number % USERS}")
            once() if step else new.append(seconds(once))
    cold = random.Random(1).sample(list(chats)[: THREADS // 2], 3 * COLD)
    gets, puts, gone = (cold[part::3] for part in range(3))

    def read_user(number: int) -> None:
        found = saver.list(None, filter={"user": f"user {number}"}, limit=10)
        assert sum(1 for _ in found) == 10

    return {
        PUT_NEW: median(new[-THREADS // 2 :]),
        PUT_COLD: median(seconds(put, saver, name, CHECKPOINTS, chats[name], "u") for name in puts),
        GET: median(seconds(saver.get_tuple, config_of(name)) for name in gets),
        LIST: median(seconds(read_user, number) for number in range(20)),
        DELETE: median(
            seconds(saver.delete_thread, config_of(name)["configurable"]["thread_id"]) for name in gone
        ),
    }


@workload(
    Row(PUT_NEW, "seconds", (Target(1.2, side="langgraph"),)),
    Row(PUT_COLD, "seconds", (Target(1.5, side="langgraph"),)),
    Row(GET, "seconds", (Target(1.0, side="langgraph"),)),
    Row(LIST, "seconds", (Target(1.0, side="langgraph"),)),
    Row(DELETE, "seconds", (Target(0.006),)),
    rounds=0,
)
def threads_on_postgres(scratch: Path) -> Iterator[Sides]:
    servers = [PostgresServer(scratch / "template") for _ in range(2)]

    def in_vstate() -> dict[str, float]:
        with Postgres(servers[0].dsn) as store:
            return measured(VstateSaver(store))

    def in_langgraph() -> dict[str, float]:
        with PostgresSaver.from_conn_string(servers[1].dsn) as saver:
            saver.setup()
            return measured(saver)

    try:
        yield {"vstate": in_vstate, "langgraph": in_langgraph}
    finally:
        for server in servers:
            server.stop()
