"""Database: the SQLite file of a store. It makes, opens and syncs the file, and translates errors."""

from __future__ import annotations

import os
import re
import sqlite3
import stat
import subprocess
from collections.abc import Iterator, Set
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from io import FileIO
from pathlib import Path
from typing import Literal, NamedTuple

from vstate.backoff import Backoff
from vstate.errors import (
    CorruptStore,
    InvalidInput,
    NotFound,
    StoreFull,
    StoreUnavailable,
    UnsupportedFormat,
    VStateError,
)
from vstate.kv.disk import log, packs
from vstate.kv.disk.connections import Handle, usable_identity
from vstate.kv.files import NO_ROOM, has_room, make_directory, make_file, may_write, sync_directory
from vstate.kv.stored_keys import OBJECT_MARK, ROOM_BYTES, ROOM_MARK
from vstate.objects.ids import ID_BYTES
from vstate.plural import counted

Durability = Literal["power", "process"]

FILE_NAME = "vstate.db"

_INSIDE = ".vstate"  # the usual name of a store in the directory of a project
APPLICATION_ID = 0x76737461  # "vsta", where SQLite keeps the name of the program that a file belongs to
FORMAT = 6
RELEASED_PAGES = 256
"""Pages that move in one transaction, for which others wait some 10 ms."""
_RELEASE_PAUSE = 0.002
_LONGEST_READ = 0.1  # seconds to wait for

SPARE_PAGES = 256  # a longer key may split a page of the index: deleting has to work in a full file too
LOG_BYTES = 4 * 1024 * 1024

# A rowid table, not WITHOUT ROWID: six rows of 200 B to 4 KB per commit, 18,000 rows, take 54 MB and 184 us
# a commit against 71 MB and 369 us (3% of rows of 64 KB: 87 MB and 229 us against 104 MB and 498 us).
_TABLE = "CREATE TABLE kv (key BLOB NOT NULL PRIMARY KEY, value NOT NULL)"

_CREATE = (
    *log.CREATE,
    _TABLE,
    *packs.CREATE,
    f"PRAGMA application_id={APPLICATION_ID}",
    f"PRAGMA user_version={FORMAT}",
)

_PIECE = 1 << 20
_LOG_SECONDS = 10.0  # to wait for readers that keep the log from being emptied
_each_mark = re.compile(OBJECT_MARK + rb"(?=([\s\S]{%d}))" % ID_BYTES).finditer
"""Finds what may be the stored key of an object."""

_LOG = (
    f"a log, {FILE_NAME}-wal, was beside it when it was opened: to put a copy here, stop all programs that "
    f"use the store, remove {FILE_NAME}-wal and {FILE_NAME}-shm, and copy again; without a copy, put back "
    "the file to which the log belongs"
)

_DAMAGED = (
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_ERROR,  # a table that is missing or has other columns, since the SQL itself is right
)
_FAILED_WRITES = (
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_TRUNCATE,
    sqlite3.SQLITE_IOERR_SHMSIZE,
    sqlite3.SQLITE_IOERR_SHMOPEN,
    sqlite3.SQLITE_IOERR_SHMMAP,
)
_FORBIDDEN = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM)


class Files(NamedTuple):
    """The file and its log, and whether the log has an index. While all of it stays equal, nobody writes.

    The file and the log are None if they are missing or empty.
    """

    file: tuple[int, ...] | None
    log: tuple[int, ...] | None
    indexed: bool

    @property
    def need_no_lock(self) -> bool:
        """Whether a user who may not write has to read them without locks."""
        return not (self.log and self.indexed)


_WITHOUT_LOG = Files(None, None, False)
"""How to connect to the file alone, whatever log is beside it."""


class Database:
    """The SQLite file in the directory called `name`."""

    def __init__(self, name: str, *, size_limit: int | None, durability: Durability, create: bool) -> None:
        self.name = name
        self.directory = os.path.abspath(name)
        self.size_limit = size_limit
        self.durability = durability
        self.create = create
        """Whether a missing file is made. False once the store was open: then a missing file was removed."""
        self._was_open = False
        self.file = os.path.join(self.directory, FILE_NAME)
        self._log = f"{self.file}-wal"
        self._note = f"{self.file}-unsynced"
        self._had_log = False
        """Whether there was a log when the store was opened."""

    def size(self) -> int:
        """The bytes of the file and its log."""
        return _bytes(self.file) + _bytes(self._log)

    def _find_or_make(self, handle: Handle) -> None:
        """Make sure that SQLite can open or make the file: it makes files, but no directories.

        Raises NotFound if it is missing and `create` is False, InvalidInput if something else is in its
        place, CorruptStore if the log of another file is beside it. Then all files stay as they are.
        """
        with suppress(OSError):
            self._had_log = os.stat(self._log).st_size > 0
        if self._had_log and not self._log_belongs():
            raise self._damaged("the log beside it belongs to another file")
        try:
            if not stat.S_ISREG(os.stat(self.file).st_mode):
                raise InvalidInput(
                    f"{self.file} is not a file, so no store can be here; choose another directory"
                )
        except FileNotFoundError:
            if not self.create:
                inside = os.path.join(self.directory, _INSIDE)
                there = f"; there is one at {inside}" if os.path.isfile(f"{inside}/{FILE_NAME}") else ""
                raise NotFound(f"no store at {self.directory}{there}", name=self.name) from None
            try:
                make_directory(Path(self.directory))
                # SQLite gives the log the mode and the group of the file, but would make the file with 0644.
                make_file(self.file)
            except OSError as error:
                raise self._unusable(error) from error
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> VStateError:
        if isinstance(error, NotADirectoryError | FileExistsError):
            inside, name = os.path.split(self.directory)
            if name == FILE_NAME and os.path.isfile(self.directory):
                return InvalidInput(f"{self.directory} is the file of a store; give its directory, {inside}")
            return InvalidInput(
                f"{self.directory} cannot be a store, because a file is in its way; choose another directory"
            )
        if error.errno in NO_ROOM:
            return StoreFull(f"no room to make {self.directory}: {error.strerror}; make room and retry")
        return StoreUnavailable(
            f"{self.directory} cannot be used: {error.strerror}; make it readable and writable for this "
            "user, or choose another directory"
        )

    # Opening

    def open(self, handle: Handle) -> sqlite3.Connection:
        """Give the handle a new connection to the file, with the store's table in it.

        A reader that may not write makes no files, and takes no locks unless others have the store open.
        """
        writing = handle.writing
        while True:
            files = None
            # Before the connection: then a fork knows which file is being opened.
            handle.identity = usable_identity(self.file)
            if not self._was_open:
                self._find_or_make(handle)
                handle.identity = usable_identity(self.file)
            if writing and not may_write(self.file):
                raise self._forbidden("its file is read-only for this user")
            if not writing and not may_write(self.file, self.directory):
                files = self._files()
            connection = self._connect(files)
            try:
                self._check_or_make_format(connection)
                if self.durability == "power" and (writing or os.path.exists(self._note)):
                    self._sync(connection, writing=writing)
                if writing:
                    self._prepare_to_write(connection)
                # The rows hold no text, but a damaged page can claim to. The reader of the row notices.
                connection.text_factory = lambda text: text.decode("utf-8", "replace")
                connection.execute("SELECT 1 FROM kv LIMIT 0")  # makes SQLite read the schema
                handle.unlocked = files if files is not None and files.need_no_lock else None
                handle.connection = connection
                # A file that is missing from now on was removed. An empty store in its place would hide that.
                self.create, self._was_open = False, True
                return connection
            except BaseException as error:
                handle.connection = None
                connection.close()
                if isinstance(error, UnicodeDecodeError):  # in SQLite's message, which quotes damaged bytes
                    raise self._damaged("its schema is no text") from error
                if not isinstance(error, sqlite3.Error) or files in (None, self._files()):
                    raise

    def _connect(self, files: Files | None) -> sqlite3.Connection:
        """A connection for a user who may write, or with `files` for one who may not.

        For the latter SQLite's locks need the index of the log, which only a user who may write can make. So
        without an index the file and the log are read without locks, and `is_outdated` has to be asked.
        """
        if files is None:
            options = "mode=rwc" if self.create else "mode=rw"  # only a URI can say "do not make the file"
        elif files.log is None:
            options = "mode=ro&immutable=1"
        else:
            options = "mode=ro&readonly_shm=1" if files.indexed else "mode=ro&vfs=unix-none"
        # These three characters mean something in a URI.
        path = self.file.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        connection = sqlite3.connect(
            f"file://{path}?{options}", timeout=0, isolation_level=None, check_same_thread=False, uri=True
        )
        if files is not None and files.need_no_lock:
            connection.execute("PRAGMA locking_mode=EXCLUSIVE")  # the index of the log is in memory
        return connection

    def _log_belongs(self) -> bool:
        """Whether the file and its log make a whole database. Looks at all of it on a suspicion only."""
        last: object = None
        try:
            while True:
                size = _bytes(self.file)
                if not size:
                    return False  # SQLite would make an empty file, and remove the log
                page, name = self._name(_WITHOUT_LOG)
                with FileIO(self._log) as opened:
                    found = log.read(opened, page)
                if found.knows(name) and found.fits(size):
                    return True
                if last == (name, size, found):
                    break  # otherwise the log may have begun anew meanwhile, and its end was not read
                last = name, size, found
            # After a power cut the names in the log may be those of a transaction that was never committed.
            if not found.knows(name) and name != self._name(self._files())[1]:
                return False
            if found.fits(size):
                return True
            with closing(self._connect(self._files())) as connection:
                is_whole = connection.execute("PRAGMA quick_check(1)").fetchall() == [("ok",)]
            return is_whole and self._name(self._files()) != (0, b"")
        except OSError:
            return True
        except sqlite3.Error as error:
            return result_code(error) not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

    def _name(self, files: Files) -> tuple[int, bytes]:
        """The page with the names of the file, and its name. Zero and nothing if they make no sense.

        Raises sqlite3.Error if others keep them from being read.
        """
        try:
            with closing(self._connect(files)) as connection:
                ((page, names),) = connection.execute(log.NAMES).fetchall()
                return page, bytes(names)[: log.NAME_BYTES]
        except (sqlite3.Error, ValueError, TypeError) as error:
            if isinstance(error, sqlite3.Error) and result_code(error) in (
                sqlite3.SQLITE_BUSY,
                sqlite3.SQLITE_LOCKED,
            ):
                raise
            return 0, b""

    def _files(self) -> Files:
        return Files(_seen(self.file), _seen(self._log), os.path.exists(f"{self.file}-shm"))

    def is_outdated(self, handle: Handle) -> bool:
        """Whether somebody wrote while the handle read without locks; it is closed then.

        Rows that it has read since its opening, and errors, may be wrong.
        """
        if handle.connection is None or handle.unlocked in (None, self._files()):
            return False
        handle.close()
        return True

    def _check_or_make_format(self, connection: sqlite3.Connection) -> None:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application == APPLICATION_ID:
            if version != FORMAT:
                found = f"{version} (of its SQLite file)"
                raise UnsupportedFormat(found, FORMAT, is_released=version > FORMAT)
            return
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        # Read again, after the tables: another process may have just made the store.
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application == APPLICATION_ID:
            return
        if application or tables:
            raise InvalidInput(
                f"{self.file} is an SQLite database of another program; choose another directory"
            )
        if not self.create:
            raise NotFound(f"no store at {self.directory}: its file is empty", name=self.name)
        if not may_write(self.file, self.directory):
            raise self._forbidden("its file is empty, and read-only for this user")
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # it has to come before all else
        _use_log(connection)
        connection.execute("BEGIN IMMEDIATE")
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application != APPLICATION_ID:  # another process may have been faster
            for statement in _CREATE:
                connection.execute(statement)
        connection.execute("COMMIT")

    def _prepare_to_write(self, connection: sqlite3.Connection) -> None:
        _use_log(connection)
        # Both are set, because a build of SQLite may have other defaults.
        connection.execute(f"PRAGMA synchronous={'FULL' if self.durability == 'power' else 'NORMAL'}")
        connection.execute(f"PRAGMA journal_size_limit={LOG_BYTES}")
        connection.execute("PRAGMA secure_delete=ON")
        self._limit_pages(connection)

    def spare_pages(self, connection: sqlite3.Connection) -> AbstractContextManager[None]:
        """Let the file have SPARE_PAGES more than `size_limit`, in the block."""
        return nullcontext() if self.size_limit is None else self._spare_pages(connection)

    @contextmanager
    def _spare_pages(self, connection: sqlite3.Connection) -> Iterator[None]:
        self._limit_pages(connection, SPARE_PAGES)
        try:
            yield
        finally:
            with suppress(sqlite3.Error):  # a connection that was closed meanwhile has no limit
                self._limit_pages(connection)

    def _limit_pages(self, connection: sqlite3.Connection, spare: int = 0) -> None:
        if self.size_limit is not None:
            (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
            connection.execute(f"PRAGMA max_page_count={max(1, self.size_limit // page_bytes) + spare}")

    def commit(self, handle: Handle, connection: sqlite3.Connection) -> None:
        """Commit, and see that each log gives the file a new name: see `log.py`.

        The first transaction of a connection does so itself, and so does the first after a release. A later
        one may turn out to have begun the log anew, and then another one follows it. If that fails, the next
        commit tries again.
        """
        if handle.salt is None:
            connection.execute(log.RENAME)
        connection.execute("COMMIT")
        with suppress(OSError, sqlite3.Error):
            # SQLite keeps the file of the log while a connection is open.
            handle.log = handle.log or FileIO(self._log)
            salt = os.pread(handle.log.fileno(), *log.SALT)
            if handle.salt not in (None, salt):
                connection.execute(log.RENAME)
            handle.salt = salt

    def release(self, connection: sqlite3.Connection, seconds: float) -> None:
        """Move the pages at the end of the file to free places, and cut the file, for so many seconds at the
        most. Each step is a transaction, and others write between two steps.
        """
        backoff = Backoff(_RELEASE_PAUSE, _RELEASE_PAUSE, seconds=seconds)
        free = "PRAGMA freelist_count"
        while connection.execute(free).fetchone() != (0,):
            try:
                # execute() would end after one page, because the statement has no columns.
                connection.executescript(f"PRAGMA incremental_vacuum({RELEASED_PAGES})")
            except sqlite3.OperationalError as error:
                if result_code(error) != sqlite3.SQLITE_BUSY:
                    raise
            if connection.execute(free).fetchone() != (0,) and not backoff.pause():
                break
        # The file gets shorter when the log is copied into it, which a long read leaves to others.
        backoff = Backoff(_RELEASE_PAUSE, _RELEASE_PAUSE, seconds=_LONGEST_READ)
        while connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] and backoff.pause():
            pass

    def rewrite(self, connection: sqlite3.Connection) -> bool:
        """Write the file anew, with its rows alone, and empty the log; False if a reader prevents that."""
        # SQLite overwrote deleted rows in the log. This overwrites them in the file, before it is cut.
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        connection.execute("VACUUM")
        backoff = Backoff(_RELEASE_PAUSE, _LONGEST_READ, seconds=_LOG_SECONDS)
        while connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
            if not backoff.pause():
                return False
        return True

    def find_traces(self, keys: Set[bytes]) -> tuple[str, list[str]]:
        """Search every byte of the file and its log for the stored keys of objects, as `scrub` promises."""
        size, found = 0, list[str]()
        for name in filter(os.path.exists, (self.file, self._log)):
            count, before, status = 0, b"", -1
            # By a child: to close the file here would drop the locks that SQLite has on it for this process.
            with suppress(OSError), subprocess.Popen(["cat", "--", name], stdout=subprocess.PIPE) as child:
                assert child.stdout is not None, "it is a pipe"
                while piece := child.stdout.read(_PIECE):
                    size += len(piece)
                    data = before + piece
                    for match in _each_mark(data):
                        at = match.start()
                        room = data[at - ROOM_BYTES : at] if at >= ROOM_BYTES else b""
                        key = (room if room.startswith(ROOM_MARK) else b"") + OBJECT_MARK + match[1]
                        count += key in keys
                    before = data[-ROOM_BYTES - ID_BYTES :]
                status = child.wait()
            if status:
                found.append(f"{name} could not be searched, since `cat` failed")
            if count:
                found.append(f"{name} has traces of erased objects: close its readers, and call again")
        return f"{FILE_NAME} and its log, {counted(size, 'byte')}", found

    # Syncing

    def note_unsynced(self) -> None:
        """Leave a file beside the database: the end of the log may not be on the disk.

        When an fsync fails, Linux takes its data for written. They can be read while they stay in memory, but
        no later fsync writes them. A process that opens the database takes the failed commit for one that
        happened, and commits on top of it. A power cut would then take both. So the next process that opens
        the database and sees the file writes the log once more.

        The file itself needs no sync: it has to last no longer than the memory that it warns of.
        """
        with suppress(OSError):  # where no file can be made, nothing can be committed either
            os.close(os.open(self._note, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))

    def _sync(self, connection: sqlite3.Connection, *, writing: bool) -> None:
        """Put all that can be read on the disk, before anything is written on top of it."""
        try:
            if os.path.exists(self._note):
                self._write_log_again(connection)
            if writing:
                # SQLite syncs the directory when it makes the log, but ignores whether that worked.
                sync_directory(self.directory)
        except (OSError, sqlite3.Error) as error:
            if not writing:
                return  # its reads are right, and may be all that is left of the store
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                raise StoreFull(
                    f"{self.directory} has no room ({error.strerror}); nothing was written: make some, retry"
                ) from error
            if isinstance(error, OSError):
                raise StoreUnavailable(
                    f"{self.directory} failed: {error.strerror}; nothing was written: retry, or look after "
                    "the disk"
                ) from error
            raise

    def _write_log_again(self, connection: sqlite3.Connection) -> None:
        """Write the same bytes into the log, sync it, and remove the note."""
        # Only the holder of the write lock appends to the log, or begins it anew.
        connection.execute("BEGIN IMMEDIATE")
        try:
            with suppress(FileNotFoundError), open(self._log, "r+b", buffering=0) as opened:
                while piece := opened.read(_PIECE):
                    opened.seek(-len(piece), os.SEEK_CUR)
                    opened.write(piece)
                os.fsync(opened.fileno())
            with suppress(FileNotFoundError):
                os.unlink(self._note)
        finally:
            connection.execute("ROLLBACK")

    # Errors

    def meaning(self, error: sqlite3.Error) -> VStateError:
        """The error that `error` stands for. Its transaction is undone."""
        code = result_code(error)
        # Without room for its shared memory or a new file, SQLite reports one of these two.
        unsure = code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
        disk_full = self._is_disk_full()
        if code == sqlite3.SQLITE_FULL or (unsure and disk_full):
            if self.size_limit is not None and not disk_full:
                return StoreFull(
                    f"{self.directory} has reached its size_limit of {self.size_limit:,} bytes; nothing "
                    "was written: delete what is not needed, or raise the limit"
                )
            return StoreFull(
                f"the disk of {self.directory} is full; nothing was written: make room and retry"
            )
        if code in _DAMAGED:
            return self._damaged(str(error))
        if code == sqlite3.SQLITE_TOOBIG:
            return InvalidInput(f"too big for a row of SQLite: {error}")
        if code == sqlite3.SQLITE_IOERR:
            self.note_unsynced()
        if self.is_out_of_room(error):
            return StoreFull(
                f"{self.directory} has reached a quota, or a limit on the size of files ({error}); nothing "
                "was written: make room, or raise the limit, and retry"
            )
        if not self.create and not os.path.exists(self.file):
            return StoreUnavailable(f"{self.directory} was removed; restore it, or open another")
        if code in _FORBIDDEN:
            return self._forbidden(str(error))
        return StoreUnavailable(f"{self.directory} failed: {error}; nothing was written: retry later")

    def _damaged(self, reason: str) -> CorruptStore:
        return CorruptStore(self.directory, f"{FILE_NAME}: {reason}", advice=_LOG if self._had_log else "")

    def _forbidden(self, reason: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self.directory} cannot be used ({reason}): to read, make the directory and its files "
            "readable for this user; to write, make them writable, or copy them to a directory that is"
        )

    def is_out_of_room(self, error: sqlite3.Error) -> bool:
        """Whether a write failed because of a quota, or a limit on the size of files: it did not happen.

        SQLite takes these for failures of the disk. After a failed fsync the outcome is open.
        """
        failed = getattr(error, "sqlite_errorcode", None) in _FAILED_WRITES
        return failed and not has_room(self.directory, self.file, self._log)

    def _is_disk_full(self) -> bool:
        try:
            return os.statvfs(self.directory).f_bavail == 0
        except OSError:
            return False


def _bytes(name: str) -> int:
    with suppress(OSError):
        return os.stat(name).st_size
    return 0


def _seen(name: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(name)
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns) if found.st_size else None


def result_code(error: sqlite3.Error) -> int | None:
    """SQLite's primary result code. None for an error of the Python module itself."""
    extended = getattr(error, "sqlite_errorcode", None)
    return None if extended is None else extended & 0xFF


def makes_unusable(error: sqlite3.Error) -> bool:
    """Whether the connection may have seen rows that are not there any more, so that another is opened."""
    code = result_code(error)
    return code == sqlite3.SQLITE_IOERR or code in _FORBIDDEN


def _use_log(connection: sqlite3.Connection) -> None:
    """Switch to a write-ahead log.

    With a rollback journal, SQLite's other way, a power cut can undo a commit that was synced: SQLite does
    not sync the removal of the journal.
    """
    # fetchall() runs the statement to its last step, which is the one that fails if the disk does.
    ((mode,),) = connection.execute("PRAGMA journal_mode=WAL").fetchall()
    if mode != "wal":
        raise sqlite3.OperationalError(
            f"its journal mode is {mode!r} and cannot be changed to a write-ahead log"
        )
