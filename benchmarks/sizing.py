"""The overhead of an object in each store: the numbers under "Sizing" in docs/stores.md.

`python benchmarks/sizing.py` from the top of the repository starts a redis-server and a PostgreSQL
of its own.
"""

from __future__ import annotations

import os
import random
import re
import sys
import tempfile
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from postgres_server import PostgresServer  # found by the line above
from redis_server import RedisServer

from vstate import Disk, KVStore, Memory, Versioned
from vstate.kv import Postgres, Redis

OBJECTS = 100_000
BYTES = 500


def fill(store: KVStore) -> None:
    """Store `OBJECTS` objects of `BYTES` bytes each."""
    for _ in range(0, OBJECTS, 2000):
        store.set_many({f"o/{os.urandom(32).hex()}": os.urandom(BYTES) for _ in range(2000)})


def of_a_commit() -> tuple[float, float]:
    """The objects, and the bytes of all rows, of a commit of one key of 10,000 with 1 KB each."""
    store, generator = Memory(), random.Random(1)
    state = Versioned(store)
    state.update({f"key-{i}": generator.randbytes(1024) for i in range(10_000)})
    state.commit()
    objects, size = len(list(store.keys("o/"))), sum(len(value) for _, value in store.items())
    for _ in range(200):
        state[f"key-{generator.randrange(10_000)}"] = generator.randbytes(1024)
        state.commit()
    return (
        (len(list(store.keys("o/"))) - objects) / 200,
        (sum(len(value) for _, value in store.items()) - size) / 200,
    )


def on_disk(directory: Path) -> float:
    """The overhead of an object, in bytes of the files."""
    with Disk(directory) as store:
        fill(store)
    return sum(file.stat().st_size for file in directory.iterdir()) / OBJECTS - BYTES


def on_redis(directory: Path) -> float:
    """The overhead of an object, in bytes of the server's memory."""
    server = RedisServer(directory, appendfsync="no")

    def used() -> int:
        found = re.search(rb"used_memory:(\d+)", server.command("INFO", "memory"))
        assert found is not None
        return int(found[1])

    before = used()
    with Redis(server.url) as store:
        fill(store)
        size = (used() - before) / OBJECTS - BYTES
    server.stop()
    return size


def on_postgres(directory: Path) -> float:
    """The overhead of an object, in bytes of the table and its index."""
    server = PostgresServer(directory / "template")
    with Postgres(server.dsn) as store:
        fill(store)
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("VACUUM vstate")
        row = connection.execute("SELECT pg_total_relation_size('vstate')").fetchone()
    assert row is not None
    server.stop()
    return float(row[0]) / OBJECTS - BYTES


def main() -> None:
    """Print all figures."""
    objects, size = of_a_commit()
    print(f"a commit of 1 key of 10,000, 1 KB: {objects:.1f} objects, {size:,.0f} bytes")
    with tempfile.TemporaryDirectory() as scratch:
        for name, measure in (("Disk", on_disk), ("Redis", on_redis), ("Postgres", on_postgres)):
            directory = Path(scratch) / name
            directory.mkdir()
            print(f"{name}: {measure(directory):.0f} bytes an object, beside the object's own")


if __name__ == "__main__":
    main()
