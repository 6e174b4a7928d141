"""Tables: threads of LangGraph's SQLite and PostgreSQL savers, moved in and out without loading a value."""

from __future__ import annotations

import json
import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import msgpack

from vstate.errors import CorruptObject, InvalidInput
from vstate.extras import install
from vstate.integrations.branches import branch_below, ids_of, texts_below
from vstate.integrations.opening import intake, sqlite_tables, summary
from vstate.patterns.journal import Journal
from vstate.readers.threads import Pair, Record, Saved, Thread, writes_record
from vstate.repo.names.refs import unquote_ref
from vstate.repo.repository import Repository

_FORM: Final = "msgpack"
_PACKED: Final = {"null", "bytes", "bytearray"}
_VERSIONS: Final = {"channel_versions", "versions_seen"}

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

Progress = Callable[[int], None]
"""Called with the number of checkpoints so far."""


@dataclass(frozen=True, slots=True)
class ThreadsReport:
    """The numbers of threads and checkpoints that are there now, and of checkpoints that were new. Those that
    were left out have the reason beside their thread and id.
    """

    threads: int
    checkpoints: int
    written: int
    left_out: tuple[tuple[str, str], ...]


_Opened = tuple[Any, bytes, dict[str, Pair]]
"""The metadata of a checkpoint, its bytes without the values of its channels, and these."""


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
    progress: Progress = lambda checkpoints: None,
) -> ThreadsReport:
    """Move the threads of a SqliteSaver or AsyncSqliteSaver to the branches of a VstateSaver.

    Each checkpoint is one commit, with its writes. A checkpoint that is here already stays, so an interrupted
    intake that is called again continues. Each thread is read back and compared. No value is loaded: the
    bytes of LangGraph's serializer are moved as they are. The file is opened for reading only.
    """
    with sqlite_tables(file, "LangGraph's SQLite savers") as connection:
        return _take(repo, _Sqlite(connection), prefix, progress)


def take_postgres(
    repo: Repository, dsn: str, *, prefix: str = "threads/", progress: Progress = lambda checkpoints: None
) -> ThreadsReport:
    """Move the threads of a PostgresSaver or AsyncPostgresSaver, as `take_sqlite` does.

    They are read in one transaction, as they are at its beginning. `dsn` is what psycopg connects to.
    """
    try:  # late: these need a library of PostgreSQL
        import psycopg

        from vstate.kv.postgres.connections import Address
    except ImportError as error:
        raise InvalidInput(
            f"the tables of PostgreSQL are read with psycopg ({error}); type: {install('postgres')}"
        ) from None

    address = Address(dsn)
    try:
        with psycopg.connect(address.dsn) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            return _take(repo, _Postgres(connection, "%s"), prefix, progress)
    except psycopg.Error as error:
        reason = str(error).strip().split("\n")[0]
    if address.is_shown_by(reason):
        reason = "the reason holds a secret, so it is not shown"
    raise InvalidInput(
        f"the tables of LangGraph's PostgreSQL savers at {address} cannot be read: {reason}"
    ) from None


def _take(repo: Repository, source: _Tables, prefix: str, progress: Progress) -> ThreadsReport:
    found = written = threads = 0
    left_out: list[tuple[str, str]] = []
    for thread_id in source.thread_ids():
        try:
            branch = branch_below(prefix, thread_id)
        except InvalidInput as error:  # the id is too long for a name
            left_out.append((thread_id, str(error)))
            continue
        journal = intake(repo, branch, Thread, "journal", "langgraph")
        rows: list[tuple[_Row, bool]] = []
        for id, make in source.checkpoints(thread_id):
            try:
                row = make()
            except (ValueError, TypeError, OverflowError, RecursionError) as error:
                left_out.append((f"{thread_id} {id}", str(error)))
                continue
            rows.append((row, _append(journal, row)))
            progress(found + len(rows))
        others = _read_back(repo, branch, rows)
        left_out += [(f"{thread_id} {id}", "another checkpoint of this id is here") for id in others]
        threads += len(rows) > len(others)
        found += len(rows) - len(others)
        written += sum(is_new for _, is_new in rows)
    return ThreadsReport(threads, found, written, tuple(left_out))


def _append(journal: Journal[Thread], row: _Row) -> bool:
    """Commit the checkpoint and its writes, if they are not there; whether the checkpoint was not."""
    is_new = False

    def plan(thread: Thread) -> list[Record]:
        nonlocal is_new
        records: list[Record] = []
        if is_new := thread.find(row.ns, row.id) is None:
            records += thread.record(
                row.ns,
                row.id,
                row.parent,
                row.checkpoint,
                row.metadata,
                {channel: row.versions.get(channel) for channel in row.values},
                row.values.__getitem__,
                changed=row.values,
            )
        for path, task, place, channel, value in row.writes:
            if (path, task, place, channel, value) not in thread.writes(row.ns, row.id):
                records.append(writes_record(row.ns, row.id, path, task, [(place, channel, value)]))
        return records

    journal.append(plan, message=row.message, fresh=True)
    return is_new


def _read_back(repo: Repository, branch: str, rows: Iterable[tuple[_Row, bool]]) -> list[str]:
    """The ids of checkpoints that were here before, and are others than those of the file.

    Raises CorruptObject unless the store holds each checkpoint that was written now.
    """
    thread = Journal(repo, branch, Thread).refresh()
    others = []
    for row, is_new in rows:
        saved = thread.find(row.ns, row.id)
        if saved is None or not _are_alike(
            (saved.checkpoint, thread.pairs(saved.values)), (row.checkpoint, row.values)
        ):
            if is_new:
                raise CorruptObject(
                    row.id, f"branch {branch} does not hold this checkpoint as it was imported"
                )
            others.append(row.id)
    return others


# The tables


class _Tables(ABC):
    """The tables of a saver. `connection` is one of sqlite3 or psycopg, and `mark` how it marks a value."""

    columns: str
    """Of a checkpoint, beside its names."""
    writes: str
    """A SELECT of the path, task, place, channel, form and value of writes."""

    def __init__(self, connection: Any, mark: str) -> None:
        self._connection = connection
        self._mark = mark

    def execute(self, query: str, *given: object) -> Any:
        """The rows of a query."""
        return self._connection.execute(query.replace("?", self._mark), given)

    def thread_ids(self) -> Iterator[str]:
        for (thread_id,) in self.execute("SELECT DISTINCT thread_id FROM checkpoints ORDER BY 1"):
            yield str(thread_id)

    def checkpoints(self, thread_id: str) -> Iterator[tuple[str, Callable[[], _Row]]]:
        """The ids of a thread's checkpoints, each behind its parent, with a function that makes the row."""
        found = self.execute(
            f"SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, {self.columns} FROM checkpoints "
            "WHERE thread_id = ? ORDER BY checkpoint_id, checkpoint_ns",
            thread_id,
        )
        for row in found:
            yield str(row[1]), partial(self._row, thread_id, *row)

    def _row(self, thread_id: str, ns: object, id: object, parent: object, *columns: Any) -> _Row:
        about, own, values = self.opened(thread_id, ns, *columns)
        versions = msgpack.unpackb(own, strict_map_key=False).get("channel_versions") or {}
        writes = self.execute(
            f"{self.writes} WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ? "
            "ORDER BY task_id, idx",
            *(thread_id, ns, id),
        )
        return _Row(
            _text(ns),
            _text(id),
            _text(parent) if parent else None,
            (_FORM, own),
            (_FORM, msgpack.packb(_a(dict, about))),
            values,
            _a(dict, versions),
            [
                (_text(path), _text(task), int(place), _text(channel), (_text(form), _bytes(value)))
                for path, task, place, channel, form, value in writes
            ],
            summary(f"{about.get('source', 'checkpoint')} {about.get('step')}"),
        )

    @abstractmethod
    def opened(self, thread_id: str, ns: object, *columns: Any) -> _Opened:
        """The parts of a checkpoint."""


class _Sqlite(_Tables):
    """The tables of the SQLite savers. A checkpoint holds the values of its channels."""

    columns = "type, checkpoint, metadata"

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection, "?")
        names = {name for _, name, *_ in self.execute("PRAGMA table_info(writes)")}
        path = "task_path" if "task_path" in names else "''"  # a file of an older version
        self.writes = f"SELECT {path}, task_id, idx, channel, type, value FROM writes"

    def opened(self, thread_id: str, ns: object, *columns: Any) -> _Opened:
        form, checkpoint, metadata = columns
        about = json.loads(metadata if isinstance(metadata, str | bytes) else b"{}")
        return about, *_taken_apart(form, checkpoint)


class _Postgres(_Tables):
    """The tables of the PostgreSQL savers. A value is in its checkpoint if it is short, or else in a row."""

    columns = "checkpoint, metadata"
    writes = "SELECT task_path, task_id, idx, channel, type, blob FROM checkpoint_writes"

    def opened(self, thread_id: str, ns: object, *columns: Any) -> _Opened:
        checkpoint, metadata = columns
        own = {**checkpoint}
        values: dict[str, Pair] = {
            channel: (_FORM, msgpack.packb(value))
            for channel, value in (own.pop("channel_values", None) or {}).items()
        }
        versions = own.get("channel_versions") or {}
        blobs = self.execute(
            "SELECT channel, type, blob FROM checkpoint_blobs AS b JOIN "
            "unnest(?::text[], ?::text[]) AS wanted (name, number) ON channel = name AND version = number "
            "WHERE thread_id = ? AND checkpoint_ns = ? AND type <> 'empty'",
            *([*versions], [*map(str, versions.values())], thread_id, ns),
        )
        values.update({channel: (form, _bytes(blob)) for channel, form, blob in blobs})
        return metadata, msgpack.packb(own), values


def _taken_apart(form: object, data: object) -> tuple[bytes, dict[str, Pair]]:
    """A checkpoint without the values of its channels, and the values.

    The values are cut out of the bytes. So no object in them is made.
    """
    if form != _FORM:
        raise ValueError(f"its form is {form!r}, and only {_FORM!r} can be taken apart without loading it")
    whole = _bytes(data)
    unpacker = msgpack.Unpacker(max_buffer_size=len(whole), strict_map_key=False)
    unpacker.feed(whole)
    values: dict[str, Pair] = {}
    own: list[bytes] = []
    try:
        for _ in range(unpacker.read_map_header()):
            begin = unpacker.tell()
            if unpacker.unpack() == "channel_values":
                for _ in range(unpacker.read_map_header()):
                    channel, at = _text(unpacker.unpack()), unpacker.tell()
                    unpacker.skip()
                    values[channel] = _FORM, whole[at : unpacker.tell()]
                continue
            unpacker.skip()
            own.append(whole[begin : unpacker.tell()])
        if unpacker.tell() != len(whole):
            raise ValueError("more bytes follow")
    except (msgpack.UnpackException, ValueError) as error:
        raise ValueError(f"its bytes are no checkpoint: {error or type(error).__name__}") from None
    return msgpack.Packer().pack_map_header(len(own)) + b"".join(own), values


def _a(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"a {kind.__name__} is missing where the file has a {type(value).__name__}")
    return value


_text, _bytes = partial(_a, str), partial(_a, bytes)


# Threads as a file


def write_sqlite(
    repo: Repository,
    file: str | os.PathLike[str],
    *,
    prefix: str = "threads/",
    branches: Sequence[str] = (),
    progress: Progress = lambda checkpoints: None,
) -> ThreadsReport:
    """Write threads, by default all behind the prefix, to a file for LangGraph's SqliteSaver.

    A thread is one transaction. Checkpoints that are in the file already stay, so an interrupted call that is
    made again continues. No value is loaded. A checkpoint whose values are encrypted, or pickled, is left
    out: the file could not hold it as its own saver writes it.
    """
    found = written = threads = 0
    left_out: list[tuple[str, str]] = []
    try:
        with closing(sqlite3.connect(os.path.expanduser(file), isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")  # as the saver does
            for table in _TABLES:
                connection.execute(table)
            for branch, thread_id in _threads(repo, prefix, branches):
                thread = Journal(repo, branch, Thread).refresh()
                progress(found)
                rows = []
                for saved in (*thread.all(), *thread.links.values()):
                    try:
                        rows.append((_row_of(thread, thread_id, saved), saved))
                    except (ValueError, TypeError) as error:
                        left_out.append((f"{thread_id} {saved.id}", str(error)))
                threads += bool(rows)
                found += len(rows)
                connection.execute("BEGIN IMMEDIATE")
                written += sum(connection.execute(_CHECKPOINT, row).rowcount for row, _ in rows)
                for _, saved in rows:
                    for path, task, place, channel, (form, value) in thread.writes(saved.ns, saved.id):
                        write = (thread_id, saved.ns, saved.id, task, path, place, channel, form, value)
                        connection.execute(_WRITE, write)
                connection.execute("COMMIT")
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


def _row_of(thread: Thread, thread_id: str, saved: Saved) -> tuple[Any, ...]:
    own, values = _in_file(saved.checkpoint, thread.pairs(saved.values))
    if others := {saved.checkpoint[0], *(form for form, _ in values.values())} - {_FORM}:
        raise ValueError(f"it has the form {min(others)!r}, which is not taken apart")
    packer = msgpack.Packer()
    parts = [packer.pack(own | {"channel_values": None})[:-1], packer.pack_map_header(len(values))]
    for channel, (_, value) in values.items():
        parts += [packer.pack(channel), value]
    about = msgpack.unpackb(saved.metadata[1]) if saved.metadata[0] == _FORM else None
    if not isinstance(about, dict):
        raise ValueError("its metadata cannot be read")
    metadata = json.dumps(about, ensure_ascii=False).encode("utf-8", "ignore")
    return (thread_id, saved.ns, saved.id, saved.parent, _FORM, b"".join(parts), metadata)


def _in_file(checkpoint: Pair, values: Mapping[str, Pair]) -> tuple[Any, dict[str, Pair]]:
    """A checkpoint and its values as they stand in a file; a form that cannot stand there stays.

    SqliteSaver gives texts as versions, and LangGraph asks which of two is greater. So whole numbers
    become texts.
    """
    own: Any = checkpoint
    if checkpoint[0] == _FORM:
        own = msgpack.unpackb(checkpoint[1], strict_map_key=False)
        own |= {name: _texts(own[name]) for name in _VERSIONS & {*own}}
    packed = {
        channel: (_FORM, msgpack.packb(None if form == "null" else data))
        for channel, (form, data) in values.items()
        if form in _PACKED
    }
    return own, {**values, **packed}


def _are_alike(*found: tuple[Pair, Mapping[str, Pair]]) -> bool:
    """Whether two checkpoints are one, or would be in a file. A damaged one is like its own bytes alone."""
    (one, ones), (other, others) = found
    if (one, {**ones}) == (other, {**others}):
        return True
    try:
        return _in_file(one, ones) == _in_file(other, others)
    except (ValueError, TypeError):
        return False


def _texts(versions: Any, depth: int = 2) -> Any:
    if depth and isinstance(versions, dict):
        return {name: _texts(version, depth - 1) for name, version in versions.items()}
    return f"{versions:032}.{0:016}" if isinstance(versions, int) else versions
