"""The stores under test behind one interface, and the floor."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kvgit
from kvgit.kv.disk import Disk as KvgitDisk

from vstate import Disk, Memory, Versioned


@dataclass(frozen=True)
class Subject:
    """An open store of one side. The workloads call `mapping` and `commit` as a program would."""

    mapping: MutableMapping[str, Any]
    commit: Callable[[], object]
    head: Callable[[], str]
    at: Callable[[str], Mapping[str, Any]]
    changed: Callable[[str, str], list[str]]
    close: Callable[[], None]


def open_vstate(directory: Path | None = None, disk: Disk | None = None) -> Subject:
    """vstate in memory, in a directory, or on an open Disk."""
    store = disk or (Memory() if directory is None else Disk(directory))
    state = Versioned(store, branch="main")

    def head() -> str:
        assert state.head is not None
        return state.head.id

    def close() -> None:
        state.close()
        store.close()

    return Subject(
        state, state.commit, head, state.checkout, lambda a, b: list(state.diff(a, b).modified), close
    )


def open_kvgit(directory: Path | None = None) -> Subject:
    """kvgit in memory, or in a directory."""
    if directory is None:
        worktree = kvgit.open()
    else:
        worktree = kvgit.Repo(KvgitDisk(str(directory))).worktree("main", create=True)
    repo = worktree.repo
    return Subject(
        worktree,
        worktree.commit,
        lambda: worktree.head,
        lambda commit: repo.snapshot(commit=commit),
        lambda a, b: list(repo.diff(a, b).modified),
        repo.close,
    )


def size_of(directory: Path) -> int:
    """Bytes of all files of a store. Close the store first: closing writes the log back."""
    return sum((Path(root) / name).stat().st_size for root, _, names in os.walk(directory) for name in names)


class MeteredDisk(Disk):
    """A Disk that remembers its last transaction, so the floor can write as many bytes."""

    written: tuple[int, ...] = ()
    """The sizes of the values of the last transaction."""

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        self.written = tuple(len(value) for value in writes.values() if value is not None)
        return super().transact(writes, expected)


class Floor:
    """Transactions on a bare SQLite file with WAL, synchronous=FULL and an index on the key."""

    def __init__(self, file: Path) -> None:
        self._connection = sqlite3.connect(file, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute("CREATE TABLE kv (key BLOB NOT NULL PRIMARY KEY, value BLOB NOT NULL)")
        self._random = random.Random(2)

    def rows(self, sizes: tuple[int, ...]) -> list[tuple[bytes, bytes]]:
        """Rows with values of these sizes and keys as long as an object's id."""
        return [(self._random.randbytes(33), self._random.randbytes(size)) for size in sizes]

    def write(self, rows: list[tuple[bytes, bytes]]) -> None:
        """Write the rows in one transaction, durably."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany("INSERT INTO kv VALUES (?, ?)", rows)
        self._connection.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()
