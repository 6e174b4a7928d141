"""The stores that are filled and measured: for each number of threads one on Disk, or on PostgreSQL."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psycopg

from benchmarks.subjects import size_of
from vstate.kv import Disk, KVStore, Postgres

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from postgres_server import UNSYNCED, PostgresServer  # found by the line above


class ProcessorTime:
    """The processor time of this process and of a server's processes, in seconds, since any moment.

    The times of a server are those that Linux tells in /proc.
    """

    def __init__(self, server: int | None = None) -> None:
        self._server = server
        self._looking = 0.0

    def __call__(self) -> float:
        start = time.process_time()
        spent = start - self._looking + (0 if self._server is None else _of_children(self._server))
        self._looking += time.process_time() - start
        return spent


def _of_children(parent: int) -> float:
    """The processor time of the processes that this one has started, and that still run."""
    total = 0
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text("ascii").split():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            total += int(Path(f"/proc/{child}/schedstat").read_text("ascii").split()[0])
    return total / 1e9


class Stores(ABC):
    """Stores of one kind. `name` is for people, `most` the number of threads that fits the time of a run.

    `clock` is of the processes that do the work.
    """

    name: str
    most: int
    clock: ProcessorTime

    @abstractmethod
    def address(self, size: int) -> str:
        """What a saver opens the store of so many threads by."""

    @abstractmethod
    def made(self, size: int) -> KVStore:
        """A new store, to write so many threads into."""

    @abstractmethod
    def bytes_of(self, size: int) -> int:
        """The bytes of that store once it is closed."""

    @abstractmethod
    def close(self) -> None:
        """Remove the stores, if the scratch directory is not all that is left of them."""


class OnDisk(Stores):
    """Directories below one that the caller removes."""

    name = "Disk"
    most = 10**9

    def __init__(self, scratch: Path) -> None:
        self.clock = ProcessorTime()
        self._scratch = scratch

    def address(self, size: int) -> str:
        return str(self._scratch / str(size))

    def made(self, size: int) -> KVStore:
        return Disk(self.address(size), durability="process")

    def bytes_of(self, size: int) -> int:
        return size_of(Path(self.address(size)))

    def close(self) -> None:
        pass


class OnPostgres(Stores):
    """Databases of one server. Nothing but the calls makes it work: it was vacuumed once they were filled."""

    name = "PostgreSQL"
    most = 100_000

    def __init__(self, scratch: Path) -> None:
        self._server = PostgresServer(scratch / "template", autovacuum="off", **UNSYNCED)
        assert self._server.process is not None
        self.clock = ProcessorTime(self._server.process.pid)

    def address(self, size: int) -> str:
        return f"{self._server.dsn.rpartition('/')[0]}/threads_{size}"

    def made(self, size: int) -> KVStore:
        with psycopg.connect(self._server.dsn, autocommit=True) as sql:
            sql.execute(f"CREATE DATABASE threads_{size}".encode())
        return Postgres(self.address(size))

    def bytes_of(self, size: int) -> int:
        with psycopg.connect(self.address(size), autocommit=True) as sql:
            sql.execute("VACUUM ANALYZE vstate")
            row = sql.execute("SELECT pg_total_relation_size('vstate')").fetchone()
        assert row is not None
        return int(row[0])

    def close(self) -> None:
        self._server.stop()


STORES: dict[str, Callable[[Path], Stores]] = {"disk": OnDisk, "postgres": OnPostgres}
