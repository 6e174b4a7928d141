"""Disk: a store in one SQLite file, for one machine."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from vstate.errors import (
    CorruptStore,
    InvalidInput,
    NotFound,
    StoreFull,
    StoreUnavailable,
    UnsupportedFormat,
)
from vstate.forks import ForkAware, survive_forks
from vstate.kv.base import KVStore, check_value
from vstate.kv.locking import Queue, Turnstile
from vstate.kv.packing import OBJECT_MARK, pack, ranges, unpack
from vstate.kv.unsynced import Unsynced

if TYPE_CHECKING:
    import sqlite3

Durability = Literal["power", "process"]

FILE_NAME = "vstate.db"
APPLICATION_ID = 0x76737461  # "vsta", where SQLite keeps the name of the program that a file belongs to
FORMAT = 1

MAX_VALUE_BYTES = 1_000_000_000 - 1024  # SQLite's limit is 10^9 bytes for a row, key and headers included
MOST_FOUND = 100
LOG_BYTES = 4 * 1024 * 1024
KEYS_PER_PAGE = 1000
ITEMS_PER_PAGE = 16
KEYS_PER_QUERY = 100

FIRST_PAUSE = 0.0002
LONGEST_PAUSE = 0.005
LONGEST_PAUSE_OF_THE_NEXT = 0.001
PATIENCE = 2.0

# A rowid table, not WITHOUT ROWID: six rows of 200 B to 4 KB per commit, 18,000 rows, take 54 MB and 184 us
# a commit against 71 MB and 369 us (3% of rows of 64 KB: 87 MB and 229 us against 104 MB and 498 us).
_CREATE = "CREATE TABLE kv (key BLOB NOT NULL PRIMARY KEY, value BLOB NOT NULL)"
_GET = "SELECT value FROM kv WHERE key = ?"
# The WHERE leaves the page of a value that is there already clean, so that a second write costs no I/O.
_SET = (
    "INSERT INTO kv (key, value) VALUES (?, ?) "
    "ON CONFLICT (key) DO UPDATE SET value = excluded.value WHERE value IS NOT excluded.value"
)
_DELETE = "DELETE FROM kv WHERE key = ?"
_KEYS = "SELECT key FROM kv WHERE key >= ? AND key <= ? ORDER BY key LIMIT ?"
_ITEMS = "SELECT key, value FROM kv WHERE key >= ? AND key <= ? ORDER BY key LIMIT ?"

_Rows = tuple[list[tuple[bytes, bytes]], list[tuple[bytes]]]
"""What a transaction sets and deletes, by stored keys."""


class _Handle:
    """One SQLite connection, opened when it is needed, and the lock under which it is used."""

    __slots__ = ("connection", "lock", "place", "turn")

    def __init__(self, turn: Turnstile | None = None) -> None:
        self.turn = turn
        self.lock = threading.RLock()
        self.connection: sqlite3.Connection | None = None
        self.place: tuple[int, int] | None = None

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()
        if self.turn is not None:
            self.turn.close()


class Disk(KVStore, ForkAware):
    """A store in `directory`, which is made if need be: one SQLite file with a write-ahead log.

    Any number of threads and processes of one machine may use it at once; reads wait for nobody, and a
    Disk opened before a fork works on both sides of it. A commit is one transaction and one fsync.

    - `durability="power"` keeps what was written through a power cut, `"process"` through a killed
      process only, for a fraction of the time where fsync is slow.
    - `size_limit`, in bytes, is a quota for the database file: a write past it raises StoreFull and does
      nothing. Deleting still works, and makes room. The log beside the file is cut back to 4 MiB.
    - `create=False` raises NotFound unless there is a store.
    - `timeout`, in seconds, is how long to wait for other writers before StoreUnavailable.

    Network file systems do not keep the promises that this needs: use a store that is a server there.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        size_limit: int | None = None,
        durability: Durability = "power",
        create: bool = True,
        timeout: float = 60.0,
    ) -> None:
        self._closed = False
        self._reader = _Handle()
        self._writer = _Handle()
        self._checker = _Handle()
        # A driver like any other: time that `import vstate` need not spend.
        global sqlite3
        import sqlite3

        if durability not in ("power", "process"):
            raise InvalidInput(f'durability is "power" or "process", not {durability!r}')
        if size_limit is not None and size_limit <= 0:
            raise InvalidInput(f"size_limit is a number of bytes above 0, not {size_limit!r}")
        self._name = os.fspath(directory)
        if not self._name or "\0" in self._name:
            raise InvalidInput(f"{self._name!r} is not the name of a directory")
        self._directory = os.path.abspath(self._name)
        self._file = os.path.join(self._directory, FILE_NAME)
        self._queues: dict[str, Queue] = {}
        self._unsynced = Unsynced(self._file)
        self._turn = self._writer.turn = Turnstile(self._directory)
        self._size_limit = size_limit
        self._durability = durability
        self._timeout = timeout
        self._create = create
        survive_forks(self)
        self._find_or_make()
        self._query("SELECT 1", ())
        # What is gone later was removed; making an empty store in its place would hide that.
        self._create = False

    # Reading

    def get(self, key: str) -> bytes | None:
        packed = pack(key)
        reader = self._reader
        if packed[0:1] == OBJECT_MARK and reader.connection is not None:
            # The short way of most reads: an object that is there. All else, errors too, goes the long one.
            try:
                with reader.lock:
                    if reader.connection is not None:
                        for (value,) in reader.connection.execute(_GET, (packed,)):
                            if type(value) is bytes:
                                return value
            except sqlite3.Error:
                pass
        rows = self._query(_GET, (packed,), immutable=packed.startswith(OBJECT_MARK))
        return self._value(rows[0][0]) if rows else None

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        found = {}
        wanted = [pack(key) for key in keys]
        for start in range(0, len(wanted), KEYS_PER_QUERY):
            part = wanted[start : start + KEYS_PER_QUERY]
            marks = ",".join("?" * len(part))
            for packed, value in self._query(f"SELECT key, value FROM kv WHERE key IN ({marks})", part):
                found[self._unpacked(packed)] = self._value(value)
        return found

    def __contains__(self, key: str) -> bool:
        return bool(self.present([key]))

    def present(self, keys: Iterable[str]) -> Set[str]:
        # The index of the keys answers alone: 100 keys of values of 64 KB take 0.13 ms, with the values 2 to 6.
        found = set()
        wanted = [pack(key) for key in keys]
        for start in range(0, len(wanted), KEYS_PER_QUERY):
            part = wanted[start : start + KEYS_PER_QUERY]
            marks = ",".join("?" * len(part))
            for (packed,) in self._query(f"SELECT key FROM kv WHERE key IN ({marks})", part):
                found.add(self._unpacked(packed))
        return found

    def keys(self, prefix: str = "") -> Iterator[str]:
        # Page by page, because a cursor left open would keep the log from being cut back.
        return (self._unpacked(row[0]) for row in self._scan(_KEYS, prefix, KEYS_PER_PAGE))

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        rows = self._scan(_ITEMS, prefix, ITEMS_PER_PAGE)
        return ((self._unpacked(row[0]), self._value(row[1])) for row in rows)

    def size(self) -> int:
        """How many bytes the store takes on the disk, its log included."""
        total = 0
        for name in (self._file, f"{self._file}-wal"):
            with suppress(FileNotFoundError):
                total += os.stat(name).st_size
        return total

    def check(self) -> Iterator[str]:
        """What SQLite finds wrong with its file: pages that are damaged, used twice, or free and in use."""
        try:
            # A connection of its own, since it takes a while; reads and writes go on beside it.
            with self._checker.lock:
                connection = self._checker.connection or self._open(self._checker)
                try:
                    # Not quick_check, though that takes a third of the time (0.1 s against 0.4 for 170 MB): it does
                    # not see that a key is in the table and not in its index, where no read finds it.
                    rows = connection.execute(f"PRAGMA integrity_check({MOST_FOUND})").fetchall()
                    found = [str(text) for (text,) in rows]
                finally:
                    self._checker.close()
        except sqlite3.Error as error:
            if _code(error) not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                self._raise(error, self._checker)
            found = [str(error)]
        return iter([] if found == ["ok"] else [f"{FILE_NAME}: {text}" for text in found])

    def _scan(self, sql: str, prefix: str, count: int) -> Iterator[tuple[Any, ...]]:
        return self._pages(sql, list(ranges(prefix)), count)

    def _pages(self, sql: str, ranges: list[tuple[bytes, bytes]], count: int) -> Iterator[tuple[Any, ...]]:
        for first, last in ranges:
            while rows := self._query(sql, (first, last, count)):
                yield from rows
                if len(rows) < count:
                    break
                first = self._value(rows[-1][0]) + b"\0"

    def _unpacked(self, stored: bytes) -> str:
        try:
            return unpack(stored)
        except (UnicodeDecodeError, AttributeError, TypeError) as error:
            raise CorruptStore(self._directory, f"{stored!r} is no key") from error

    def _value(self, stored: object) -> bytes:
        # SQLite keeps the type of each value beside it, so a damaged page can also give a number.
        if type(stored) is bytes:
            return stored
        raise CorruptStore(self._directory, f"{FILE_NAME}: a row holds no bytes")

    def _query(
        self, sql: str, parameters: tuple[Any, ...] | list[bytes], *, immutable: bool = False
    ) -> list[tuple[Any, ...]]:
        waited: tuple[float, float] | None = None
        while True:
            try:
                with self._reader.lock:
                    connection = self._reader.connection or self._open(self._reader)
                    rows = connection.execute(sql, parameters).fetchall()
                    # An object that is found is right, even in a store that has been removed.
                    if not (immutable and rows):
                        self._check_place(self._reader)
                    return rows
            except sqlite3.Error as error:
                waited = self._pause_or_raise(error, waited, self._reader)

    # Writing

    def set(self, key: str, value: bytes) -> None:
        self.set_many({key: value})

    def delete(self, key: str) -> None:
        self.delete_many([key])

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes | None) -> bool:
        return self.transact({key: new}, {key: expected})

    def set_many(self, items: Mapping[str, bytes]) -> None:
        """Set every key of `items` in one transaction."""
        writes = self._split(items)
        self._write(lambda: writes)

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete every one of the keys in one transaction."""
        packed = [(pack(key),) for key in keys]
        self._write(lambda: ([], packed))

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        """As promised by KVStore, and as one transaction: all the writes or none, any number of swaps."""
        rows = self._split(writes)
        return self._write(lambda: rows, [(pack(key), value) for key, value in expected.items()])

    @property
    def transactional(self) -> bool:
        return True

    def exclusively(self, plan: Callable[[], Mapping[str, bytes | None]]) -> bool:
        """As promised by KVStore: `plan` runs inside the transaction, while this process has the write lock."""
        return self._write(lambda: self._split(plan()))

    def turn(self, name: str, *, lost: bool = True) -> AbstractContextManager[None]:
        """As promised by KVStore, between the processes of this machine."""
        queue = self._queues.get(name) or self._queues.setdefault(name, Queue(self._directory, name))
        return queue.turn()

    def _split(self, writes: Mapping[str, bytes | None]) -> _Rows:
        sets, deletes = [], []
        for key, value in writes.items():
            if value is None:
                deletes.append((pack(key),))
            else:
                sets.append((pack(key), self._storable(key, value)))
        return sets, deletes

    def _storable(self, key: str, value: bytes) -> bytes:
        if type(value) is not bytes:
            value = check_value(value)
        if len(value) > MAX_VALUE_BYTES:
            raise InvalidInput(
                f"the value of {key!r} has {len(value):,} bytes; SQLite takes {MAX_VALUE_BYTES:,} at most"
            )
        return value

    def _write(self, plan: Callable[[], _Rows], expected: Sequence[tuple[bytes, bytes | None]] = ()) -> bool:
        """Call `plan` inside a transaction, if all is as expected, and write the rows that it returns."""
        waited: tuple[float, float] | None = None
        try:
            while True:
                error: sqlite3.Error | None = None
                try:
                    with self._writer.lock:
                        if self._turn.take() or (waited and time.monotonic() > waited[0] + PATIENCE):
                            return self._transaction(plan, expected)
                except sqlite3.Error as caught:
                    error = caught
                waited = self._pause_or_raise(error, waited, self._writer)
        finally:
            if self._turn.held:
                with self._writer.lock:
                    self._turn.leave()

    def _transaction(self, plan: Callable[[], _Rows], expected: Sequence[tuple[bytes, bytes | None]]) -> bool:
        connection = self._writer.connection or self._open(self._writer)
        self._check_place(self._writer)
        committing = False
        try:
            if connection.in_transaction:
                connection.rollback()  # an interruption kept it from being undone
            connection.execute("BEGIN IMMEDIATE")
            self._turn.leave()
            for key, value in expected:
                row = connection.execute(_GET, (key,)).fetchone()
                if (row[0] if row else None) != value:
                    connection.execute("ROLLBACK")
                    return False
            sets, deletes = plan()
            if deletes:
                connection.executemany(_DELETE, deletes)
            if sets:
                connection.executemany(_SET, sets)
            committing = True
            connection.execute("COMMIT")
        except BaseException as error:
            try:
                # Undone before anything else, and by a function in C: an interruption may keep any other from
                # being called, and others would be locked out.
                connection.rollback()
            except sqlite3.Error:
                self._writer.close()  # nothing else helps
            if committing and isinstance(error, sqlite3.Error) and _code(error) == sqlite3.SQLITE_IOERR:
                self._unsynced.note()
                self._writer.close()
                raise StoreUnavailable(
                    f"{self._directory} failed while a transaction was being committed ({error}), which "
                    "therefore may or may not have happened: read the ref again before you retry",
                    outcome_unknown=True,
                ) from error
            raise
        return True

    # Opening and closing

    def _find_or_make(self) -> None:
        """Make sure that there is a database file; SQLite makes a new one, but only in a directory."""
        try:
            if stat.S_ISREG(os.stat(self._file).st_mode):
                return
            raise InvalidInput(
                f"{self._file} is in the way of a store and not a file; choose another directory"
            )
        except FileNotFoundError:
            if not self._create:
                raise NotFound(f"no store at {self._directory}", name=self._name) from None
            self._make_directory(self._directory)
        except OSError as error:
            self._raise_unusable(error)

    def _make_directory(self, path: str) -> None:
        try:
            if os.path.isdir(path):
                return
            parent = os.path.dirname(path)
            self._make_directory(parent)
            with suppress(FileExistsError):
                os.mkdir(path)
            # A new directory outlives a power cut once its parent is on the disk.
            _sync_directory(parent)
        except OSError as error:
            self._raise_unusable(error)

    def _raise_unusable(self, error: OSError) -> NoReturn:
        if isinstance(error, NotADirectoryError | FileExistsError):
            raise InvalidInput(
                f"{self._directory} cannot be a store, a file is in its way; choose another directory"
            ) from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFull(f"no room to make {self._directory}: {error.strerror}") from error
        raise StoreUnavailable(
            f"{self._directory} cannot be used: {error.strerror}; make it readable and writable for this "
            "user, or choose another directory"
        ) from error

    def _open(self, handle: _Handle) -> sqlite3.Connection:
        if self._closed:
            raise InvalidInput(f"{self!r} is closed; open it again")
        # A URI, because only that can say "do not make the file". Three characters mean something in one.
        path = self._file.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        connection = sqlite3.connect(
            f"file://{path}?mode={'rwc' if self._create else 'rw'}",
            timeout=0,
            isolation_level=None,
            check_same_thread=False,
            uri=True,
        )
        try:
            self._check_or_make_format(connection)
            if self._durability == "power":
                self._settle(handle, connection)
            if handle is self._writer:
                # A reader that was there before knows where the log ended, should the next fsync fail. One
                # that came after would take what is behind for a commit.
                with self._reader.lock:
                    if self._reader.connection is None:
                        self._open(self._reader)
                _use_log(connection)
                # Both are set, since a build of SQLite may have another default.
                connection.execute(
                    f"PRAGMA synchronous={'FULL' if self._durability == 'power' else 'NORMAL'}"
                )
                connection.execute(f"PRAGMA journal_size_limit={LOG_BYTES}")
                if self._size_limit is not None:
                    (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
                    connection.execute(f"PRAGMA max_page_count={max(1, self._size_limit // page_bytes)}")
            # The rows hold no text, but a damaged page can say so: that is met where they are read.
            connection.text_factory = lambda text: text.decode("utf-8", "replace")
            connection.execute("SELECT 1 FROM kv LIMIT 0")  # has SQLite read the schema
            handle.place = self._place()
        except UnicodeDecodeError as error:  # in what SQLite says, since it quotes what is damaged
            connection.close()
            raise CorruptStore(self._directory, f"{FILE_NAME}: its schema is no text") from error
        except BaseException:
            connection.close()
            raise
        handle.connection = connection
        return connection

    def _settle(self, handle: _Handle, connection: sqlite3.Connection) -> None:
        """See to it that what can be read is on the disk, before anything is written on top of it."""
        try:
            if self._unsynced:
                self._unsynced.settle(connection)
            if handle is self._writer:
                # SQLite syncs the directory when it makes the log, and does not look whether that worked.
                _sync_directory(self._directory)
        except (OSError, sqlite3.Error) as error:
            if handle is not self._writer:
                return  # what it reads is right, and may be all that is left
            if isinstance(error, OSError):
                raise StoreUnavailable(
                    f"{self._directory} failed: {error.strerror}; nothing was written"
                ) from error
            raise

    def _check_or_make_format(self, connection: sqlite3.Connection) -> None:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application == APPLICATION_ID:
            if version > FORMAT:
                raise UnsupportedFormat(f"{version} (of its SQLite file)", FORMAT)
            return
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        # Again, and after the tables: another process may just have made the store.
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application == APPLICATION_ID:
            return
        if application or tables:
            raise InvalidInput(
                f"{self._file} is an SQLite database of another program; choose another directory"
            )
        if not self._create:
            raise NotFound(f"no store at {self._directory}: its file is empty", name=self._name)
        _use_log(connection)
        connection.execute("BEGIN IMMEDIATE")
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application != APPLICATION_ID:  # another process may have been faster
            connection.execute(_CREATE)
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={FORMAT}")
        connection.execute("COMMIT")

    def _place(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._file)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _check_place(self, handle: _Handle) -> None:
        # SQLite itself goes on reading and writing a file that was removed, and loses it all at the end.
        place = self._place()
        if place is None or place != handle.place:
            handle.close()
            raise StoreUnavailable(
                f"{self._directory} was removed or replaced while it was open; restore it, or open another"
            )

    def close(self) -> None:
        checking = self._checker.connection
        if checking is not None:
            checking.interrupt()
        with self._writer.lock, self._reader.lock, self._checker.lock:
            self._closed = True
            self._writer.close()
            self._reader.close()
            self._checker.close()

    def __del__(self) -> None:
        if "_checker" in self.__dict__:  # what a subclass was given may have kept it from ever being made
            self._writer.close()
            self._reader.close()
            self._checker.close()

    def before_fork(self) -> None:
        for handle in (self._checker, self._writer, self._reader):
            handle.lock.acquire()
            handle.close()

    def after_fork(self, *, child: bool) -> None:
        for handle in (self._checker, self._writer, self._reader):
            if child:
                handle.lock = threading.RLock()
            else:
                handle.lock.release()

    # Errors

    def _pause_or_raise(
        self, error: sqlite3.Error | None, waited: tuple[float, float] | None, handle: _Handle
    ) -> tuple[float, float]:
        """Sleep if another has the turn (no `error`) or the lock; return since when, and the next pause.

        SQLite's own busy handler looks again at fixed times, and so can starve a writer (433 ms seen).
        """
        if error and _code(error) not in (
            sqlite3.SQLITE_BUSY,
            sqlite3.SQLITE_LOCKED,
            sqlite3.SQLITE_PROTOCOL,
        ):
            self._raise(error, handle)
        now = time.monotonic()
        since, pause = waited or (now, FIRST_PAUSE)
        left = since + self._timeout - now
        if left <= 0:
            raise StoreUnavailable(
                f"{self._directory} was locked by other writers for {self._timeout:g} s; retry later"
            ) from error
        # One random byte is enough of a jitter, and needs no `import random`.
        time.sleep(min(pause * (0.5 + os.urandom(1)[0] / 256), left))
        longest = LONGEST_PAUSE_OF_THE_NEXT if error and handle is self._writer else LONGEST_PAUSE
        return since, min(pause * 1.5, longest)

    def _raise(self, error: sqlite3.Error, handle: _Handle) -> NoReturn:
        """Raise what `error`, which undid its transaction, means to a caller."""
        code = _code(error)
        # Without room for its shared memory or a new file, SQLite reports one of the other two.
        unsure = code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
        if code == sqlite3.SQLITE_FULL or (unsure and self._is_disk_full()):
            if self._size_limit is not None and not self._is_disk_full():
                raise StoreFull(
                    f"{self._directory} has reached its size_limit of {self._size_limit:,} bytes; nothing "
                    "was written: delete what is not needed, or raise the limit"
                ) from error
            raise StoreFull(
                f"the disk of {self._directory} is full; nothing was written: make room and retry"
            ) from error
        # SQLITE_ERROR is a table that is missing or has other columns, since the SQL itself is right.
        if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR):
            raise CorruptStore(self._directory, f"{FILE_NAME}: {error}") from error
        if code == sqlite3.SQLITE_TOOBIG:
            raise InvalidInput(f"too big for a row of SQLite: {error}") from error
        if code in (
            sqlite3.SQLITE_CANTOPEN,
            sqlite3.SQLITE_READONLY,
            sqlite3.SQLITE_PERM,
            sqlite3.SQLITE_IOERR,
        ):
            if code == sqlite3.SQLITE_IOERR:
                self._unsynced.note()
            # The handle may have seen what is not there any more; the next use opens another.
            with handle.lock:
                handle.close()
        if not self._create and not os.path.exists(self._file):
            raise StoreUnavailable(f"{self._directory} was removed; restore it, or open another") from error
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            raise StoreUnavailable(
                f"{self._directory} cannot be written to ({error}); SQLite needs that also to read: make the "
                "directory and its files writable for this user, or copy them to where they are"
            ) from error
        raise StoreUnavailable(f"{self._directory} failed: {error}; nothing was written") from error

    def _is_disk_full(self) -> bool:
        try:
            return os.statvfs(self._directory).f_bavail == 0
        except (OSError, AttributeError):
            return False

    # Identity

    @property
    def location(self) -> str:
        return self._directory

    def __repr__(self) -> str:
        return f"Disk({self._name!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (self._directory, self._size_limit, self._durability, self._timeout)


def _reopen(directory: str, size_limit: int | None, durability: Durability, timeout: float) -> Disk:
    return Disk(directory, size_limit=size_limit, durability=durability, create=False, timeout=timeout)


def _sync_directory(path: str) -> None:
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _use_log(connection: sqlite3.Connection) -> None:
    """Have a write-ahead log. With a rollback journal, SQLite's other way, a power cut can undo a commit that
    was synced, since the removal of the journal is not.
    """
    # To its last step, which is the one that fails if the disk does.
    ((mode,),) = connection.execute("PRAGMA journal_mode=WAL").fetchall()
    if mode != "wal":
        raise sqlite3.OperationalError(
            f"it has the journal mode {mode!r} and cannot be given a write-ahead log"
        )


def _code(error: sqlite3.Error) -> int | None:
    """SQLite's primary result code; None for an error of the Python module itself."""
    extended = getattr(error, "sqlite_errorcode", None)
    return None if extended is None else extended & 0xFF
