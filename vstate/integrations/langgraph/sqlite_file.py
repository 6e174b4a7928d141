"""SQLite file: threads of a VstateSaver as a file that LangGraph's SqliteSaver opens."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any, Final

import msgpack

from vstate.errors import CorruptStore, InvalidInput
from vstate.integrations.branches import ids_of, texts_below
from vstate.integrations.langgraph.intake import Progress, ThreadsReport
from vstate.patterns.journal import Journal
from vstate.readers.threads import Pair, Saved, Thread
from vstate.repo.names.refs import unquote_ref
from vstate.repo.repository import Repository

_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS checkpoints ("
    "thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL DEFAULT '', checkpoint_id TEXT NOT NULL, "
    "parent_checkpoint_id TEXT, type TEXT, checkpoint BLOB, metadata BLOB, "
    "PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id))",
    "CREATE TABLE IF NOT EXISTS writes ("
    "thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL DEFAULT '', checkpoint_id TEXT NOT NULL, "
    "task_id TEXT NOT NULL, task_path TEXT NOT NULL DEFAULT '', idx INTEGER NOT NULL, channel TEXT NOT NULL, "
    "type TEXT, value BLOB, PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx))",
)
_CHECKPOINT: Final = "INSERT OR IGNORE INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?)"
_WRITE: Final = (
    "INSERT OR IGNORE INTO writes (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, "
    "channel, type, value) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_FORM: Final = "msgpack"


class _Refusal(Exception):
    """A checkpoint that cannot be written, and why."""


def write_sqlite(
    repo: Repository,
    file: str | os.PathLike[str],
    *,
    prefix: str = "threads/",
    branches: Sequence[str] = (),
    progress: Progress = lambda checkpoints: None,
) -> ThreadsReport:
    """Write threads, by default all behind the prefix, to a file for LangGraph's SqliteSaver.

    A thread is one transaction, and is read back and compared. Checkpoints that are in the file already stay,
    so an interrupted call that is made again continues. No value is loaded. A checkpoint whose values are
    encrypted, or pickled, is left out: the file could not hold it as its own saver writes it.
    """
    found = written = threads = 0
    left_out: list[tuple[str, str]] = []
    try:
        with closing(sqlite3.connect(os.path.expanduser(file), isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")  # as the saver does
            for table in _TABLES:
                connection.execute(table)
            for branch, thread_id in _threads(repo, prefix, branches):
                threads += 1
                thread = Journal(repo, branch, Thread).refresh()
                progress(found)
                rows = []
                for saved in thread.all():
                    found += 1
                    try:
                        rows.append((_row(thread, thread_id, saved), saved))
                    except (_Refusal, ValueError, TypeError) as error:
                        left_out.append((f"{thread_id} {saved.id}", str(error)))
                connection.execute("BEGIN IMMEDIATE")
                new = [row for row, _ in rows if connection.execute(_CHECKPOINT, row).rowcount]
                for _, saved in rows:
                    for path, task, place, channel, (form, value) in thread.writes(saved.ns, saved.id):
                        write = (thread_id, saved.ns, saved.id, task, path, place, channel, form, value)
                        connection.execute(_WRITE, write)
                connection.execute("COMMIT")
                _read_back(connection, os.fspath(file), new)
                written += len(new)
    except sqlite3.Error as error:
        raise InvalidInput(f"{os.fspath(file)} cannot be written: {error}; choose another file") from None
    return ThreadsReport(threads, found, written, tuple(left_out))


def _threads(repo: Repository, prefix: str, branches: Sequence[str]) -> Iterable[tuple[str, str]]:
    """The branches of threads, with the ids of the threads."""
    if not branches:
        return texts_below(repo, prefix, repo.branch_names(prefix)).items()
    for branch in branches:
        repo.branch(branch)  # NotFound, before the file is changed for it
    return [
        (branch, ids[-1] if ids else unquote_ref(branch.removeprefix(prefix)))
        for branch, ids in ids_of(repo, branches).items()
    ]


def _row(thread: Thread, thread_id: str, saved: Saved) -> tuple[Any, ...]:
    form, own = saved.checkpoint
    if form != _FORM:
        raise _Refusal(f"its form is {form!r}, which is not taken apart")
    unpacker = msgpack.Unpacker(max_buffer_size=len(own))
    unpacker.feed(own)
    count = unpacker.read_map_header()
    packer = msgpack.Packer()
    parts = [packer.pack_map_header(count + 1), own[unpacker.tell() :], packer.pack("channel_values")]
    parts.append(packer.pack_map_header(len(saved.values)))
    for channel, value in saved.values.items():
        parts += [packer.pack(channel), _inside(channel, thread.pair(value))]
    about = msgpack.unpackb(saved.metadata[1]) if saved.metadata[0] == _FORM else None
    if not isinstance(about, dict):
        raise _Refusal("its metadata cannot be read")
    metadata = json.dumps(about, ensure_ascii=False).encode("utf-8", "ignore")
    return (thread_id, saved.ns, saved.id, saved.parent, _FORM, b"".join(parts), metadata)


def _inside(channel: str, pair: Pair) -> bytes:
    """The value of a channel as it stands inside a checkpoint."""
    form, data = pair
    if form == _FORM:
        return data
    if form == "null":
        return bytes(msgpack.packb(None))
    if form in ("bytes", "bytearray"):
        return bytes(msgpack.packb(data))
    raise _Refusal(f"the value of its channel {channel!r} has the form {form!r}")


def _read_back(connection: sqlite3.Connection, file: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Raise CorruptStore unless the file holds each of these checkpoints."""
    for thread_id, ns, id, *rest in rows:
        found = connection.execute(
            "SELECT parent_checkpoint_id, type, checkpoint, metadata FROM checkpoints "
            "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
            (thread_id, ns, id),
        ).fetchone()
        if found is None or list(found) != rest:
            raise CorruptStore(file, f"it does not hold checkpoint {id} of {thread_id} as it was exported")
