"""Intake: the threads in a file of LangGraph's SQLite savers, moved without loading a value."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from vstate.errors import CorruptObject, InvalidInput, NotFound
from vstate.integrations.langgraph.threads import Pair, Record, Thread, writes_record
from vstate.patterns.journal import Journal
from vstate.repo.names.refs import quote_ref
from vstate.repo.repository import Repository

_FORM = "msgpack"


@dataclass(frozen=True, slots=True)
class ThreadsReport:
    """The numbers of threads and checkpoints that were found, and of checkpoints that were new here. Those
    that were left out have the reason beside their thread and id.
    """

    threads: int
    checkpoints: int
    written: int
    left_out: tuple[tuple[str, str], ...]


class _Refusal(Exception):
    """A row that cannot be taken, and why."""


class _Row(NamedTuple):
    """A checkpoint with its writes: the path, the task, the place, the channel and the value of each."""

    ns: str
    id: str
    parent: str | None
    checkpoint: Pair
    metadata: Pair
    values: dict[str, Pair]
    versions: dict[str, Any]
    writes: list[tuple[str, str, int, str, Pair]]
    message: str


def take_sqlite(
    repo: Repository,
    file: str | os.PathLike[str],
    *,
    prefix: str = "threads/",
    progress: Callable[[int], None] = lambda checkpoints: None,
) -> ThreadsReport:
    """Move the threads of a SqliteSaver or AsyncSqliteSaver to the branches of a VstateSaver.

    Each checkpoint is one commit, with its writes. A checkpoint that is here already stays, so an interrupted
    intake that is called again continues. Each thread is read back and compared. No value is loaded: the
    bytes of LangGraph's serializer are moved as they are. The file is opened for reading only.
    """
    path = Path(file)
    if not path.is_file():
        raise NotFound(f"no file {path}", name=str(path))
    found = written = threads = 0
    left_out: list[tuple[str, str]] = []
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            for (thread_id,) in connection.execute("SELECT DISTINCT thread_id FROM checkpoints ORDER BY 1"):
                threads += 1
                try:
                    branch = prefix + quote_ref(str(thread_id))
                except InvalidInput as error:  # the id is too long for a name
                    left_out.append((str(thread_id), str(error)))
                    continue
                journal = Journal(repo, branch, Thread)
                rows: list[tuple[_Row, bool]] = []
                for row in _rows(connection, thread_id, left_out):
                    rows.append((row, _append(journal, row)))
                    progress(found + len(rows))
                others = _read_back(repo, branch, rows)
                left_out += [(f"{thread_id} {id}", "another checkpoint of this id is here") for id in others]
                found += len(rows) - len(others)
                written += sum(is_new for _, is_new in rows)
    except sqlite3.Error as error:
        raise InvalidInput(f"{path} is no file of LangGraph's SQLite savers: {error}") from None
    return ThreadsReport(threads, found + len(left_out), written, tuple(left_out))


def _append(journal: Journal[Thread], row: _Row) -> bool:
    """Commit the checkpoint and its writes, if they are not there; whether they were not."""

    def plan(thread: Thread) -> list[Record]:
        records: list[Record] = []
        if thread.find(row.ns, row.id) is None:
            records.append(
                thread.record(
                    row.ns,
                    row.id,
                    row.parent,
                    row.checkpoint,
                    row.metadata,
                    {channel: row.versions.get(channel) for channel in row.values},
                    row.values.__getitem__,
                    changed=row.values,
                )
            )
        for path, task, place, channel, value in row.writes:
            if (path, task, place, channel, value) not in thread.writes(row.ns, row.id):
                records.append(writes_record(row.ns, row.id, path, task, [(place, channel, value)]))
        return records

    return journal.append(plan, message=row.message, fresh=True) is not None


def _read_back(repo: Repository, branch: str, rows: Iterable[tuple[_Row, bool]]) -> list[str]:
    """The ids of checkpoints that were here before, and are others than those of the file.

    Raises CorruptObject unless the store holds each checkpoint that was written now.
    """
    thread = Journal(repo, branch, Thread).refresh()
    others = []
    for row, is_new in rows:
        saved = thread.find(row.ns, row.id)
        values = {} if saved is None else {name: thread.pair(value) for name, value in saved.values.items()}
        if saved is None or values != row.values or saved.checkpoint != row.checkpoint:
            if is_new:
                raise CorruptObject(
                    row.id, f"branch {branch} does not hold this checkpoint as it was imported"
                )
            others.append(row.id)
    return others


# The file


def _rows(
    connection: sqlite3.Connection, thread_id: object, left_out: list[tuple[str, str]]
) -> Iterator[_Row]:
    """The checkpoints of a thread, each behind its parent: ids grow with time."""
    columns = {name for _, name, *_ in connection.execute("PRAGMA table_info(writes)")}
    path = "task_path" if "task_path" in columns else "''"  # a file of an older version
    checkpoints = connection.execute(
        "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata "
        "FROM checkpoints WHERE thread_id = ? ORDER BY checkpoint_id, checkpoint_ns",
        (thread_id,),
    )
    for ns, id, parent, form, checkpoint, metadata in checkpoints:
        writes = connection.execute(
            f"SELECT {path}, task_id, idx, channel, type, value FROM writes "
            "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ? ORDER BY task_id, idx",
            (thread_id, ns, id),
        )
        try:
            about = _parsed(metadata)
            own, values, versions = _taken_apart(form, checkpoint)
            yield _Row(
                _text(ns),
                _text(id),
                _text(parent) if parent else None,
                (_FORM, own),
                (_FORM, msgpack.packb(about)),
                values,
                versions,
                [
                    (_text(path), _text(task), int(place), _text(channel), (_text(form), _bytes(value)))
                    for path, task, place, channel, form, value in writes
                ],
                f"{about.get('source', 'checkpoint')} {about.get('step')}"[:80],
            )
        except (_Refusal, ValueError, TypeError, OverflowError, RecursionError) as error:
            left_out.append((f"{thread_id} {id}", str(error)))


def _parsed(metadata: object) -> dict[str, Any]:
    found = json.loads(metadata if isinstance(metadata, str | bytes) else b"{}")
    if not isinstance(found, dict):
        raise _Refusal("its metadata is no JSON object")
    return found


def _taken_apart(form: object, data: object) -> tuple[bytes, dict[str, Pair], dict[str, Any]]:
    """A checkpoint without the values of its channels, the values, and the versions of the channels.

    The values are cut out of the bytes. So no object in them is made.
    """
    if form != _FORM:
        raise _Refusal(f"its form is {form!r}, and only {_FORM!r} can be taken apart without loading it")
    whole = _bytes(data)
    unpacker = msgpack.Unpacker(max_buffer_size=len(whole), strict_map_key=False)
    unpacker.feed(whole)
    values: dict[str, Pair] = {}
    versions: dict[str, Any] = {}
    own: list[bytes] = []
    try:
        for _ in range(unpacker.read_map_header()):
            begin = unpacker.tell()
            name = unpacker.unpack()
            at = unpacker.tell()
            if name == "channel_values":
                for _ in range(unpacker.read_map_header()):
                    channel, at = _text(unpacker.unpack()), unpacker.tell()
                    unpacker.skip()
                    values[channel] = _FORM, whole[at : unpacker.tell()]
                continue
            unpacker.skip()
            own.append(whole[begin : unpacker.tell()])
            if name == "channel_versions":
                versions = msgpack.unpackb(whole[at : unpacker.tell()], strict_map_key=False)
        if unpacker.tell() != len(whole) or not isinstance(versions, dict):
            raise _Refusal("its bytes are no checkpoint")
    except (msgpack.UnpackException, ValueError) as error:
        raise _Refusal(f"its bytes are no checkpoint: {error or type(error).__name__}") from None
    return msgpack.Packer().pack_map_header(len(own)) + b"".join(own), values, versions


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _Refusal(f"a text is missing where the file has a {type(value).__name__}")
    return value


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise _Refusal(f"bytes are missing where the file has a {type(value).__name__}")
    return value
