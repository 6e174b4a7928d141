"""The size of a PostgreSQL table where threads come and go: the numbers under "Dead rows" in docs/stores.md.

`python benchmarks/churn.py` from the top of the repository starts a PostgreSQL of its own. `python
benchmarks/churn.py autovacuum_vacuum_scale_factor=0.02` sets this storage parameter of the table first.
"""

from __future__ import annotations

import random
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from postgres_server import UNSYNCED, PostgresServer  # found by the line above

from vstate.kv import Postgres
from vstate.repo import Repository

STANDING = 300_000
ROUNDS, THREADS, COMMITS = 50, 200, 10
LONG = 4000
"""Bytes of one value of each commit, which PostgreSQL stores apart from its row, in TOAST."""

_SIZES = """
SELECT pg_relation_size(oid), pg_indexes_size(oid), pg_total_relation_size(reltoastrelid)
FROM pg_class WHERE relname = 'vstate'
"""


def churn(store: Postgres, number: int, generator: random.Random) -> None:
    """Make threads of some commits each, and remove them with all they hold."""
    repo = Repository(store)
    names = [f"round-{number}/thread-{n}" for n in range(THREADS)]
    for name in names:
        for step in range(COMMITS):
            values = {
                "long": generator.randbytes(LONG),
                f"key-{step}": generator.randbytes(200),
                "step": step,
            }
            repo.commit(name, set=values, message=str(step))
    for name in names:
        repo.delete_branch(name)
    repo.gc(keep_reflog=timedelta(0))


def main() -> None:
    generator = random.Random(1)
    with tempfile.TemporaryDirectory() as directory:
        # A round takes seconds here, and half an hour of a day: so autovacuum looks as much more often.
        server = PostgresServer(Path(directory) / "template", autovacuum_naptime="1s", **UNSYNCED)
        try:
            with Postgres(server.dsn) as store, psycopg.connect(server.dsn, autocommit=True) as sql:
                store.set_many({f"long/{n}": generator.randbytes(LONG) for n in range(STANDING // 10)})
                for option in sys.argv[1:]:
                    sql.execute(f"ALTER TABLE vstate SET ({option}, toast.{option})".encode())
                sql.execute(
                    "INSERT INTO vstate SELECT ('row/' || md5(n::text))::bytea, "
                    "decode(repeat(md5(n::text), 26), 'hex') FROM generate_series(1, %s) AS n",
                    (STANDING,),
                )
                for number in range(ROUNDS + 1):
                    sizes = (size / 1e6 for size in sql.execute(_SIZES).fetchone() or ())
                    print(f"{number:3}", *(f"{size:8.1f} MB" for size in sizes), flush=True)
                    churn(store, number, generator)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
