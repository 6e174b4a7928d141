"""doltlite and prollytree behind the interface of a `Subject`. Their values are pickles, as kvgit's are."""

from __future__ import annotations

import functools
import pickle
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import ItemsView, Iterator, Mapping, MutableMapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.subjects import Subject

NAMESPACE = "values"
PROBE = "import doltlite, sqlite3; sqlite3.connect(':memory:').execute('SELECT dolt_version()')"


@functools.cache
def missing(peer: str) -> str | None:
    """Why the peer cannot run on this machine, or None if it can."""
    if find_spec(peer) is None:
        return "its package is not installed"
    if peer == "prollytree" and shutil.which("git") is None:
        return "it needs the command git"
    if peer == "doltlite":
        found = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=False)
        if found.returncode:
            return "this Python cannot load it in place of SQLite"
    return None


class Rows(Mapping[str, Any]):
    """The rows of doltlite's table, as they are now or at a commit."""

    def __init__(self, connection: sqlite3.Connection, commit: str | None = None) -> None:
        self._connection = connection
        self._table, self._arguments = ("kv", ()) if commit is None else ("dolt_at_kv(?)", (commit,))

    def run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        # A statement that is not read to its end would keep the transaction open.
        return self._connection.execute(statement, values).fetchall()

    def __getitem__(self, name: str) -> Any:
        query = f"SELECT value FROM {self._table} WHERE key = ?"
        for (data,) in self.run(query, *self._arguments, name):
            return pickle.loads(data)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for (name,) in self.run(f"SELECT key FROM {self._table}", *self._arguments))

    def __len__(self) -> int:
        return int(self.run(f"SELECT count(*) FROM {self._table}", *self._arguments)[0][0])

    def items(self) -> ItemsView[str, Any]:
        """All values by one SELECT."""
        rows = self.run(f"SELECT key, value FROM {self._table}", *self._arguments)
        return {name: pickle.loads(data) for name, data in rows}.items()


class Table(Rows, MutableMapping[str, Any]):
    """doltlite's table. The first write since a commit begins a transaction; the commit syncs once."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(sqlite3.connect(directory / "doltlite.db", isolation_level=None))
        self.run("CREATE TABLE IF NOT EXISTS kv (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")

    def _write(self, statement: str, *values: object) -> None:
        if not self._connection.in_transaction:
            self.run("BEGIN IMMEDIATE")
        self.run(statement, *values)

    def __setitem__(self, name: str, value: Any) -> None:
        self._write("INSERT OR REPLACE INTO kv VALUES (?, ?)", name, pickle.dumps(value, protocol=5))

    def __delitem__(self, name: str) -> None:
        self._write("DELETE FROM kv WHERE key = ?", name)

    def commit(self) -> None:
        self.run("SELECT dolt_commit('-A', '-m', 'changed')")
        if self._connection.in_transaction:
            self.run("COMMIT")

    def head(self) -> str:
        return str(self.run("SELECT commit_hash FROM dolt_log LIMIT 1")[0][0])

    def at(self, commit: str) -> Rows:
        return Rows(self._connection, commit)

    def changed(self, old: str, new: str) -> list[str]:
        query = "SELECT to_key FROM dolt_diff_kv WHERE from_commit = ? AND to_commit = ?"
        return [name for (name,) in self.run(query, old, new)]

    def close(self) -> None:
        self._connection.close()


def open_doltlite(directory: Path) -> Subject:
    """doltlite in a directory, in a process that imported `doltlite` before `sqlite3`."""
    table = Table(directory)
    return Subject(table, table.commit, table.head, table.at, table.changed, table.close)


class Names(MutableMapping[str, Any]):
    """A namespace of prollytree, in a git repository of its own."""

    def __init__(self, directory: Path) -> None:
        from prollytree import NamespacedKvStore

        data = directory / "data"
        if not data.exists():
            data.mkdir(parents=True)
            for command in ("init", "config user.name benchmark", "config user.email benchmark@localhost"):
                subprocess.run(["git", *command.split()], cwd=directory, check=True, capture_output=True)
            self.store = NamespacedKvStore(str(data))
        else:
            self.store = NamespacedKvStore.open(str(data))

    def __getitem__(self, name: str) -> Any:
        data = self.store.ns_get(NAMESPACE, name.encode())
        if data is None:
            raise KeyError(name)
        return pickle.loads(data)

    def __setitem__(self, name: str, value: Any) -> None:
        self.store.ns_insert(NAMESPACE, name.encode(), pickle.dumps(value, protocol=5))

    def __delitem__(self, name: str) -> None:
        self.store.ns_delete(NAMESPACE, name.encode())

    def __iter__(self) -> Iterator[str]:
        return (name.decode() for name in self.store.ns_list_keys(NAMESPACE))

    def __len__(self) -> int:
        return len(self.store.ns_list_keys(NAMESPACE))


def open_prollytree(directory: Path) -> Subject:
    """prollytree in a directory. It reads no old commit and has no diff of namespaces."""
    names = Names(directory)

    def never(*commits: str) -> Any:
        raise NotImplementedError("prollytree has neither snapshots nor a diff of namespaces")

    return Subject(names, lambda: names.store.commit("changed"), never, never, never, lambda: None)
