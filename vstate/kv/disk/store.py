"""Disk: a store in one SQLite file, for one machine."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from vstate.arguments import check_count
from vstate.backoff import Backoff
from vstate.errors import CorruptStore, InvalidInput, StorageError, StoreFull, StoreUnavailable, VStateError
from vstate.forks import renew_in_child
from vstate.kv.base import RELEASE_SECONDS, Plain, TransactionalStore, batches, batches_by_bytes
from vstate.kv.disk import packs
from vstate.kv.disk.connections import Handle
from vstate.kv.disk.writes import MOST_ROWS, Rows, Waiting, Write
from vstate.kv.stored_keys import OBJECT_MARK, is_stored_object, key_of, ranges, stored_keys, stored_writes

if TYPE_CHECKING:
    import sqlite3

    from vstate.kv.disk import database
    from vstate.kv.disk.database import Durability

MAX_VALUE_BYTES = 1_000_000_000 - 1024  # SQLite's limit is 10^9 bytes for a row, key and headers included
MOST_FOUND = 100
KEYS_PER_PAGE = 1000
ITEMS_PER_PAGE = 16
KEYS_PER_QUERY = 100
MOST_BY_INDEX = 10_000
"""For fewer objects no pass over the whole table is worth it."""
PACKS_CUT = 4
"""Packs that are written anew in one transaction, for which others wait some 20 ms at most."""

FIRST_PAUSE = 0.001
LONGEST_PAUSE = 0.002
"""Seconds between two tries of a writer whom another process keeps out.

Each try costs a process the time in which another one could commit. Four processes that commit all the time
take 0.5 ms of processor time for each commit, and 0.75 with pauses of a tenth of that; ten take 0.8 and 1.6.
The median wait is a third, the 99th percentile of four is 25 ms and not 20. With SQLite's own pauses one
process waits until another is done. An order kept by a file lock took five times as long.
"""

_GET = "SELECT value FROM kv WHERE key = ?"
# The WHERE leaves the page of an unchanged value clean, so that a second write costs no I/O. An object
# that is written again stays packed: the value under its key is always the same.
_SET = (
    "INSERT INTO kv (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value "
    "WHERE value IS NOT excluded.value "
    "AND (typeof(value) = 'blob' OR x'FF' NOT IN (substr(key, 1, 1), substr(key, 10, 1)))"
)
_DELETE = "DELETE FROM kv WHERE key = ?"
_RANGE = "WHERE key >= ? AND key <= ? ORDER BY key LIMIT ?"
_KEYS = f"SELECT key FROM kv {_RANGE}"
_ITEMS = f"SELECT key, value FROM kv {_RANGE}"
# In the order of the file: objects that were written one after the other have most in common.
_LOOSE = (
    "SELECT rowid, key, length(value) FROM kv NOT INDEXED "
    f"WHERE rowid > ? AND key > x'FF' AND {packs.LOOSE} ORDER BY rowid LIMIT ?"
)


# The plus keeps SQLite from reading the whole table in that order.
_LOOSE_BY_INDEX = f"SELECT key, length(value) FROM kv WHERE key > x'FF' AND {packs.LOOSE} ORDER BY +rowid"
_COUNT = "SELECT count(*) FROM (SELECT 1 FROM kv WHERE key > x'FF' LIMIT ?)"

_LOOSE_AMONG = f"SELECT key, length(value) FROM kv WHERE key IN ({{}}) AND {packs.LOOSE}"

_split = partial(stored_writes, longest=MAX_VALUE_BYTES, store="SQLite")


class Disk(TransactionalStore):
    """A store in `directory`, which is made if it is missing: one SQLite file with a write-ahead log.

    Any number of threads and processes of one machine may use it at once. Reads wait for nobody, and a
    Disk opened before a fork works on both sides of it. A commit is one transaction and one fsync.

    - With `durability="power"`, commits survive a power cut. With `"process"` they survive a killed process
      only, for a fraction of the time where fsync is slow.
    - `size_limit`, in bytes, is a quota for the database file: a write past it raises StoreFull and does
      nothing. Deleting still works, and makes room. The log beside the file is cut back to 4 MiB.
    - `create=False` raises NotFound unless there is a store.
    - A user who may not write to the files reads them, and makes none: on read-only media too.
    - `timeout`, in seconds, is the time to wait for other writers before StoreUnavailable.

    Network file systems do not keep the promises that this needs: use a store on a server there.
    """

    remote = False
    ordered = True
    keeps_packs = True

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        size_limit: int | None = None,
        durability: Durability = "power",
        create: bool = True,
        timeout: float = 60.0,
    ) -> None:
        # Late, as is every driver: `import vstate` need not wait for it.
        global sqlite3, database
        import sqlite3

        from vstate.kv.disk import database

        if durability not in ("power", "process"):
            raise InvalidInput(f'durability is "power" or "process", not {durability!r}')
        if size_limit is not None:
            check_count("size_limit", size_limit, 1, none="None for no limit")
        name = os.path.expanduser(directory)
        if not name or "\0" in name:
            raise InvalidInput(f"{name!r} is not the name of a directory")
        self._closed = False
        self._timeout = timeout
        self._database = database.Database(name, size_limit=size_limit, durability=durability, create=create)
        self._waiting = Waiting()
        self._packs: dict[int, tuple[Sequence[bytes], int]] = {}
        """The values of packs that were read from the open file, by the id of the pack, with their size."""
        file = self._database.file
        self._reader = Handle(file)
        self._writer = Handle(file, writing=True)
        self._aside: set[Handle] = set()
        """The connections of long work beside reads and writes."""
        self._copying: threading.Thread | None = None
        self._query("SELECT 1", (), immutable=True)
        renew_in_child(self, Disk._renew)

    # Reading

    def get(self, key: str) -> bytes | None:
        (name,) = stored_keys((key,))
        # As `is_stored_object`. An object that is found is right, even in a store that has been removed.
        is_object = OBJECT_MARK in (name[:1], name[9:10])
        reader = self._reader
        # The short way of most reads: a row that is there. Anything else goes the long way.
        try:
            with reader.lock:
                connection = reader.connection
                if connection is not None and reader.unlocked is None:
                    for (value,) in connection.execute(_GET, (name,)):
                        if type(value) is bytes:
                            if not is_object:
                                self._check_identity(reader)
                            return value
        except sqlite3.Error:
            pass
        for (value,) in self._query(_GET, (name,), immutable=is_object):
            return self._value(name, value)
        return None

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        places: list[tuple[int, bytes, str]] = []
        keys = list(keys)
        for begin in range(0, len(keys), KEYS_PER_QUERY):
            some = keys[begin : begin + KEYS_PER_QUERY]
            names = dict(zip(stored_keys(some), some, strict=True))
            marks = ",".join(["(?)"] * len(names))
            # A fifth quicker than `key IN (…)`, for which SQLite makes a table with an index.
            sql = f"SELECT key, value FROM (VALUES {marks}) CROSS JOIN kv ON key = column1"
            for name, value in self._query(sql, list(names)):
                key = names.get(name) or self._key_of(name)
                if type(value) is bytes:
                    found[key] = value
                elif type(value) is int:
                    places.append((value, name, key))
                else:
                    self._value(name, value)  # damage: it raises
        # One pack after the other: each is unpacked once.
        for place, name, key in sorted(places):
            if (value := self._value(name, place)) is not None:
                found[key] = value
        return found

    def __contains__(self, key: str) -> bool:
        return bool(self.present([key]))

    def present(self, keys: Iterable[str]) -> Set[str]:
        # The index of the keys answers: 100 keys with values of 64 KB take 0.13 ms, with the values 2 to 6.
        wanted = set(keys)
        # A damaged index finds other keys too.
        found: set[str] = set()
        for some in map(stored_keys, batches(wanted, KEYS_PER_QUERY)):
            sql = f"SELECT key FROM kv WHERE key IN ({','.join('?' * len(some))})"
            found.update(self._key_of(name) for (name,) in self._query(sql, some))
        return wanted & found

    def keys(self, prefix: str = "") -> Iterator[str]:
        for some in self._pages(_KEYS, list(ranges(prefix)), KEYS_PER_PAGE):
            for (name,) in some:
                yield self._key_of(name)

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        for some in self._pages(_ITEMS, list(ranges(prefix)), ITEMS_PER_PAGE):
            for name, stored in some:
                if (value := self._value(name, stored)) is not None:
                    yield self._key_of(name), value

    def size(self) -> int:
        """The bytes that the store takes on the disk, its log included."""
        return self._database.size()

    def release(self, seconds: float = RELEASE_SECONDS) -> None:
        """As promised by KVStore, from the end of the file, a mebibyte in each transaction. The values of
        deleted objects are cut out of the packs before.
        """
        self._query("SELECT 1", ())  # is it open, and still there?
        until = time.monotonic() + seconds
        try:
            with suppress(StoreFull):
                self._prune(until)
            with self._long_work(writing=True) as (_, connection):
                self._database.release(connection, max(0.0, until - time.monotonic()))
            with self._writer.lock:  # a commit that is under way notes the salt of its log
                self._writer.salt = None  # the next commit begins the log anew: see `Database.commit`
        except sqlite3.Error as error:
            # By a fork, by close(), or by others who release too: the next one goes on.
            if _was_stopped(error) or database.result_code(error) == sqlite3.SQLITE_BUSY:
                return
            failure = self._database.meaning(error)
            if not isinstance(failure, StoreFull):  # without room for the log nothing moves
                raise failure from error

    def scrub(self, keys: Sequence[str] = ()) -> tuple[str, list[str]]:
        """As promised by KVStore. Writes the file anew, without free places, and empties the log."""
        self._prune(math.inf)
        backoff: Backoff | None = None
        while True:
            try:
                with self._long_work(writing=True) as (_, connection):
                    is_clean = self._database.rewrite(connection)
                break
            except sqlite3.Error as error:
                backoff = self._pause(error, backoff)
        place, traces = self._database.find_traces(set(filter(is_stored_object, stored_keys(keys))))
        if not is_clean:
            traces.append(f"{self._database.file} has a reader, and may hold erased bytes: call again later")
        return place, [*super().scrub(keys)[1], *traces]

    def check(self) -> Iterator[str]:
        """The damage that SQLite finds in its file: damaged pages, pages used twice, free pages in use."""
        backoff: Backoff | None = None
        while True:
            try:
                with self._long_work(writing=False) as (handle, connection):
                    try:
                        # Not quick_check, though that takes a third of the time (0.1 s against 0.4 for 170
                        # MB): it does not see a key that is in the table but not in its index, where no read
                        # finds it.
                        rows = connection.execute(f"PRAGMA integrity_check({MOST_FOUND})").fetchall()
                        found = [str(text) for (text,) in rows]
                    finally:
                        if self._database.is_outdated(handle):
                            raise StoreUnavailable(
                                f"{self.location} changed while it was checked; check it again"
                            )
                break
            except sqlite3.Error as error:
                if database.result_code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                    found = [str(error)]
                    break
                backoff = self._pause(error, backoff)
        return iter([] if found == ["ok"] else [f"{database.FILE_NAME}: {text}" for text in found])

    def _pages(
        self, sql: str, places: list[tuple[bytes, bytes]], count: int
    ) -> Iterator[list[tuple[Any, ...]]]:
        # Each page is a query of its own: an open cursor would keep the log from being cut back.
        for first, last in places:
            while rows := self._query(sql, (first, last, count)):
                yield rows
                if len(rows) < count:
                    break
                first = rows[-1][0] + b"\0"

    def _query(
        self, sql: str, parameters: tuple[Any, ...] | list[bytes], *, immutable: bool = False
    ) -> list[tuple[Any, ...]]:
        backoff: Backoff | None = None
        reader = self._reader
        while True:
            try:
                with reader.lock:
                    connection = reader.connection or self._open(reader)
                    rows = connection.execute(sql, parameters).fetchall()
                    if reader.unlocked is not None and self._database.is_outdated(reader):
                        continue
                    if not (immutable and rows):
                        self._check_identity(reader)
                    return rows
            except sqlite3.Error as error:
                if reader.unlocked is None or not self._database.is_outdated(reader):
                    backoff = self._pause(error, backoff, reader)

    def _key_of(self, stored: bytes) -> str:
        try:
            return key_of(stored)
        except (UnicodeDecodeError, AttributeError, TypeError) as error:
            raise CorruptStore(self.location, f"{stored!r} is no key") from error

    def _value(self, key: bytes, stored: object) -> bytes | None:
        """The value of a row, empty if it is in a damaged pack; None if the row was deleted meanwhile."""
        if type(stored) is bytes:
            return stored
        # SQLite keeps the type of each value beside it, so a damaged page can also give a number or a text.
        if type(stored) is not int or not is_stored_object(key):
            raise CorruptStore(self.location, f"{database.FILE_NAME}: a row holds no bytes")
        pack, number = divmod(stored, packs.MOST_PACKED)
        values, _ = self._packs.get(pack) or self._unpack(pack)
        if number < len(values) and (value := values[number]):
            return value
        again = self._query(_GET, (key,))  # the row was deleted meanwhile, or the pack is damaged
        return b"" if again == [(stored,)] else self._value(key, *again[0]) if again else None

    def _unpack(self, pack: int) -> tuple[Sequence[bytes], int]:
        """The values of a pack, which stay in memory, and their size; none if it is missing or damaged."""
        with suppress(ValueError):
            for row in self._query(packs.READ, (pack,), immutable=True):
                values = packs.values_in(*row)
                found = values, packs.size_in_memory(values)
                kept = {**self._packs, pack: found}
                while sum(size for _, size in kept.values()) > packs.KEPT_BYTES:
                    del kept[next(iter(kept))]
                self._packs = kept
                return found
        return [], 0

    # Writing

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        rows, conditions = _split(writes), zip(stored_keys(expected), expected.values(), strict=True)
        return self._write(Write(rows, list(conditions)))

    def exclusively(self, plan: Callable[[], Mapping[str, bytes | None]]) -> bool:
        """As promised by KVStore: `plan` runs inside the transaction, under the write lock."""
        return self._write(Write(lambda: _split(plan())))

    def _write(self, write: Write) -> bool:
        """If every expectation holds, write the rows; return whether it did."""
        backoff: Backoff | None = None
        if write.is_long and self._copying is not None:
            self._copying.join()  # then SQLite writes the log anew from its start, and it does not grow
        try:
            if write.shared:
                self._waiting.wait(write)
            while write.done is None:
                try:
                    with self._writer.lock:
                        if write.done is None:
                            if write.committing:
                                raise self._unknown("in another thread, together with its own")
                            self._transaction(write)
                except sqlite3.Error as error:
                    try:
                        backoff = self._pause(error, backoff, self._writer)
                    except StorageError:
                        write.shared = False
                        with self._writer.lock:  # another thread may have written the rows just before
                            if write.is_untouched:
                                raise
        finally:
            # First, and without a call before it: no thread takes the rows of a caller that has gone.
            write.shared = False
            if write.done is None:
                with self._writer.lock:  # a thread that has taken the rows ends its transaction
                    pass
            if self._waiting:
                self._waiting.clean()
        if write.is_long:
            self._copy_log()
        return write.done

    def _transaction(self, first: Write) -> None:
        """Make the transaction, with those of other threads that wait. The lock of the writer is held."""
        connection = self._writer.connection or self._open(self._writer)
        self._check_identity(self._writer)
        group: dict[Write, bool] = {}
        committing = False
        try:
            if connection.in_transaction:
                connection.rollback()  # an interruption kept the last call from undoing it
            connection.execute("BEGIN IMMEDIATE")
            some = [first]
            # The writes that come while others are applied go with them too.
            while some:
                for write in some:
                    group[write] = False
                    group[write] = self._apply(connection, write)
                is_full = not first.shared or sum(write.size for write in group) > MOST_ROWS
                some = [] if is_full else [write for write in self._waiting.all() if write not in group]
            if any(group.values()):
                if first.is_long:
                    connection.execute("PRAGMA wal_autocheckpoint=0")
                for write, agreed in group.items():
                    write.committing = agreed
                committing = True
                self._database.commit(self._writer, connection)
            else:
                connection.execute("ROLLBACK")
            for write, agreed in group.items():
                write.done = agreed
        except BaseException as error:
            try:
                # The first call, and a C function: an interruption may prevent any other call, and an open
                # transaction locks others out.
                connection.rollback()
            except sqlite3.Error:
                self._writer.close()  # nothing else helps
            if not self._part(group, error, committing):
                raise
        finally:
            if first.is_long:
                self._writer.close()  # later commits copy the log again
            if len(group) > 1:
                self._waiting.wake(list(group))
        if first.done is None:
            self._transaction(first)

    def _part(self, group: Collection[Write], error: BaseException, committing: bool) -> bool:
        """Whether each write of a transaction that was undone now goes in its own: one of them cannot be
        written. Raises StoreUnavailable if it may have happened after all.
        """
        if committing:
            if not isinstance(error, sqlite3.Error):
                return False
            is_failure = database.result_code(error) == sqlite3.SQLITE_IOERR
            if is_failure and not self._database.is_out_of_room(error):
                self._database.note_unsynced()
                self._writer.close()
                raise self._unknown(error) from error
        for write in group:
            write.committing = False
        if len(group) <= 1 or not isinstance(error, sqlite3.Error | VStateError):
            return False
        for write in group:
            write.shared = False
        return True

    def _apply(self, connection: sqlite3.Connection, write: Write) -> bool:
        """Write the rows, inside the transaction, if every expectation holds."""
        for key, value in write.expected:
            rows = connection.execute(_GET, (key,)).fetchall()
            found = rows[0][0] if rows else None
            if found != value and not (rows and self._value(key, found) == value):  # it may be packed
                return False
        sets, deletes = write.plan() if callable(write.plan) else write.plan
        if self._writer.connection is not connection:
            raise StoreUnavailable(
                f"{self.location}: the process forked inside a transaction; nothing was written: retry later"
            )
        if deletes:
            with self._database.spare_pages(connection):
                connection.executemany(_DELETE, zip(deletes))
        if sets:
            connection.executemany(_SET, sets)
        return True

    def _unknown(self, reason: object) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self.location} failed while it committed a transaction ({reason}), which may or may "
            "not have happened: read the ref again before you retry",
            outcome_unknown=True,
        )

    def _pause(self, error: sqlite3.Error, backoff: Backoff | None, handle: Handle | None = None) -> Backoff:
        """Sleep while another process has the lock. Any other error is raised.

        SQLite's own busy handler looks again at fixed times, and so can starve a writer (433 ms seen).
        """
        if not _was_stopped(error) and database.result_code(error) not in (
            sqlite3.SQLITE_BUSY,
            sqlite3.SQLITE_LOCKED,
            sqlite3.SQLITE_PROTOCOL,
        ):
            if handle is not None and database.makes_unusable(error):
                with handle.lock:
                    handle.close()
            raise self._database.meaning(error) from error
        backoff = backoff or Backoff(FIRST_PAUSE, LONGEST_PAUSE, seconds=self._timeout, growth=1.5)
        if not backoff.pause():
            raise StoreUnavailable(
                f"{self.location} was locked by other writers for {self._timeout:g} s; retry later"
            ) from error
        return backoff

    # Packs

    def pack(self, plain: Plain, keys: Sequence[str] | None = None) -> None:
        """As promised by KVStore, for short values of objects: some hundred KB in each transaction."""
        loose = self._loose() if keys is None else self._loose_among(keys)
        limits = {"most_bytes": packs.PACK_BYTES, "most": packs.MOST_PACKED}
        for rows in batches_by_bytes(loose, lambda row: row[1], **limits):
            if len(rows) >= packs.FEWEST_PACKED:
                self._write(Write(partial(self._pack, plain, [key for key, _ in rows])))

    def _loose_among(self, keys: Iterable[str]) -> Iterator[tuple[bytes, int]]:
        """As `_loose`, of those of the keys that are of objects."""
        for some in batches(filter(is_stored_object, stored_keys(keys)), KEYS_PER_QUERY):
            yield from self._query(_LOOSE_AMONG.format(",".join("?" * len(some))), some)

    def _loose(self) -> Iterator[tuple[bytes, int]]:
        """The stored keys of all objects that could be packed, and the lengths of their values.

        Those in rooms are left out. If the others are few, the index finds them.
        """
        ((count,),) = self._query(_COUNT, (MOST_BY_INDEX,))
        if count < MOST_BY_INDEX:
            yield from self._query(_LOOSE_BY_INDEX, ())
            return
        last = 0
        while rows := self._query(_LOOSE, (last, KEYS_PER_PAGE)):
            yield from ((key, length) for _, key, length in rows)
            last = rows[-1][0]

    def _pack(self, plain: Plain, keys: Sequence[bytes]) -> Rows:
        """Pack these rows, inside the transaction, as far as they are still there, and not packed."""
        connection = self._writer.connection
        assert connection is not None
        forms = {}
        for key in keys:
            for (value,) in connection.execute(_GET, (key,)).fetchall():
                if type(value) is bytes and len(value) <= packs.LONGEST_PACKED:
                    form = plain(self._key_of(key), value)
                    if form and len(form) <= packs.LONGEST_PACKED:
                        forms[key] = form
        packs.write_all(connection, forms)
        return [], []

    def _prune(self, until: float) -> None:
        """Cut the values of deleted objects out of their packs, some packs in each transaction."""
        for some in batches([pack for (pack,) in self._query(packs.FREED, ())], PACKS_CUT):
            self._write(Write(partial(self._cut, some)))
            if time.monotonic() > until:
                break

    def _cut(self, some: Sequence[int]) -> Rows:
        """Cut these packs, inside the transaction."""
        connection = self._writer.connection
        assert connection is not None
        with self._database.spare_pages(connection):
            for pack in some:
                packs.cut(connection, pack)
        return [], []

    # Long work

    @contextmanager
    def _long_work(self, *, writing: bool) -> Iterator[tuple[Handle, sqlite3.Connection]]:
        """A connection of its own for work beside reads and writes, which a fork or close() stops."""
        handle = Handle(self._database.file, writing=writing, is_stoppable=True)
        self._aside.add(handle)
        with handle.lock:
            try:
                yield handle, self._open(handle)
            finally:
                handle.close()
                self._aside.discard(handle)

    def _copy_log(self) -> None:
        """Copy the log into the file, in a thread of its own, unless one does.

        SQLite does that at the end of a commit, in the thread of the caller. It takes as long as writing the
        log, so a commit of 100 MB would take twice the time. The log is synced by then, so nothing depends on
        the copy.
        """
        if self._copying is None or not self._copying.is_alive():
            copying = threading.Thread(target=self._copy, name="vstate-checkpoint")
            with suppress(RuntimeError):  # no thread can start now: the next commit makes the checkpoint
                copying.start()
                self._copying = copying

    def _copy(self) -> None:
        # After an error, or a fork, the log keeps its rows, and another checkpoint copies them.
        with suppress(sqlite3.Error, VStateError, OSError), self._long_work(writing=True) as (_, connection):
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    # Opening and closing

    def _open(self, handle: Handle) -> sqlite3.Connection:
        if self._closed:
            raise InvalidInput(f"{self!r} is closed; open it again")
        if handle.writing:
            # The reader comes first, so that it knows where the log ended should the next fsync fail. A
            # reader that comes later would take the failed commit for one that happened.
            with self._reader.lock:
                if self._reader.connection is None:
                    self._open(self._reader)
        if handle is self._reader:
            self._packs = {}  # it may be another file, a backup that was put in its place
        return self._database.open(handle)

    def _check_identity(self, handle: Handle) -> None:
        # SQLite goes on reading and writing a file that was removed, and loses it all at the end.
        try:
            found = os.stat(handle.path)
            is_same = (found.st_dev, found.st_ino) == handle.identity
        except OSError:
            is_same = False
        if not is_same:
            handle.close()
            raise StoreUnavailable(
                f"{self.location} was removed or replaced while it was open; restore it, or open another"
            )

    def close(self) -> None:
        self._closed = True
        # One after the other, so that no order of locks is needed: a closed store opens no connection.
        for handle in (*self._aside, self._writer, self._reader):
            handle.stop()
            with handle.lock:
                handle.close()

    def __del__(self) -> None:
        if "_writer" in self.__dict__:  # wrong arguments keep __init__ from making it
            for handle in (self._writer, self._reader):
                if handle.connection is not None:
                    with handle.lock:  # a fork waits meanwhile
                        handle.close()

    def _renew(self) -> None:
        self._waiting.clear()  # those threads are in the parent

    # Identity

    @property
    def location(self) -> str:
        return self._database.directory

    directory = location

    def __repr__(self) -> str:
        return f"Disk({self._database.name!r})"

    def __reduce__(self) -> tuple[object, ...]:
        file = self._database
        reopen = partial(Disk, size_limit=file.size_limit, durability=file.durability, create=False)
        return partial(reopen, timeout=self._timeout), (file.directory,)


def _was_stopped(error: sqlite3.Error) -> bool:
    """Whether a fork or close() stopped the call, or closed its connection: "Cannot operate on a closed
    database."
    """
    is_interrupt = database.result_code(error) == sqlite3.SQLITE_INTERRUPT
    return is_interrupt or isinstance(error, sqlite3.ProgrammingError)
