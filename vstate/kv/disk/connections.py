"""Connections: the SQLite connections of this process, and the locks under which they are used.

No connection is open, and no thread is inside SQLite, while the process forks. SQLite keeps a record of each
file with counts of its locks, and a child inherits that record. So it would be wrong in the child to drop an
inherited connection and to open another one:

- A thread of the parent is inside a write transaction: for the child, the file is locked for ever.
- The parent has an idle connection: the child takes that one's lock for its own. When the parent closes its
  last connection, SQLite removes the log, and the commits of the child with it.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from io import FileIO
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from vstate.errors import StoreUnavailable
from vstate.forks import new_lock

if TYPE_CHECKING:
    import sqlite3

PATIENCE = 10.0
"""Seconds that a fork waits for the threads that are inside SQLite."""

_STEP = 0.05
"""Seconds that a fork waits for one handle before it lets go of the others, and begins anew."""


class Handle:
    """One SQLite connection, opened when it is needed, and the lock under which it is used.

    The user of a handle for `writing` may wait for another handle, the others wait for none. The work of a
    handle that `is_stoppable` ends with SQLITE_INTERRUPT if the process forks.
    """

    __slots__ = (
        "__weakref__",
        "connection",
        "identity",
        "is_stoppable",
        "lock",
        "log",
        "path",
        "salt",
        "unlocked",
        "writing",
    )

    def __init__(self, path: str, *, writing: bool = False, is_stoppable: bool = False) -> None:
        self.path = path
        self.writing = writing
        self.is_stoppable = is_stoppable
        self.lock = new_lock()
        self.connection: sqlite3.Connection | None = None
        self.identity: tuple[int, int] | None = None
        """The device and inode of the file that is open."""
        self.unlocked: tuple[object, ...] | None = None
        """The files at the opening, if they are read without locks: see `Database.open`."""
        self.log: FileIO | None = None
        self.salt: bytes | None = None
        """The log, and its salt at the last commit of the connection: see `Database.commit`."""
        with _registering:
            _handles[id(self)] = self

    def close(self) -> None:
        self.salt = None
        log, self.log = self.log, None
        if log is not None:
            log.close()
        connection, self.connection = self.connection, None
        if connection is not None:
            with suppress(Exception):  # a connection that SQLite cannot close is of no more use
                connection.close()

    def stop(self) -> None:
        """End the work that is under way, if the handle is for such work."""
        connection = self.connection
        if self.is_stoppable and connection is not None:
            with suppress(Exception):  # it is closed by now
                connection.interrupt()


def usable_identity(path: str) -> tuple[int, int] | None:
    """The identity of a file that SQLite may open. Raises StoreUnavailable if the parent was inside SQLite
    with the file when it forked this process.
    """
    try:
        status = os.stat(path)
    except OSError:
        return None
    found = status.st_dev, status.st_ino
    if found in _lost:
        raise StoreUnavailable(
            f"{os.path.dirname(path)} was in use by a thread of the parent when this process was forked, for "
            f"longer than {PATIENCE:g} s, so SQLite cannot use it here: open it in a process that is spawned"
        )
    return found


_handles: WeakValueDictionary[int, Handle] = WeakValueDictionary()
_registering = new_lock()
"""Held by a fork: a store that is made meanwhile waits before it opens a connection."""
_lost: set[tuple[int, int]] = set()
_never_closed: list[sqlite3.Connection] = []


class _Fork(threading.local):
    """The handles that the thread has closed for its fork, and those of them whose lock it took for it."""

    def __init__(self) -> None:
        self.closed: set[Handle] = set()
        self.locked: list[Handle] = []
        self.has_registry = False


_fork = _Fork()


def _close_all() -> bool:
    """Take the locks of all handles, and close the connections. False if a handle stays in use."""
    if not _registering._is_owned():  # type: ignore[attr-defined]
        _fork.has_registry = True  # first, as below: an exception may come out of any call
        _registering.acquire()
    handles = [handle for found in _handles.valuerefs() if (handle := found()) is not None]
    # Whoever has an inner handle waits for nobody. So we may wait for it while we hold the others.
    in_use = [each for each in sorted(handles, key=lambda each: not each.writing) if not _close(each)]
    return not in_use


def _close(handle: Handle) -> bool:
    # If this thread has the lock, it forks in the middle of its own call, which then begins anew.
    if not handle.lock._is_owned():  # type: ignore[attr-defined]
        _fork.locked.append(handle)
        if not handle.lock.acquire(timeout=_STEP):
            handle.stop()
            # The user of a stopped handle ends, and gets no other one during the fork.
            if not handle.is_stoppable or not handle.lock.acquire(timeout=_STEP):
                return False
    handle.close()
    _fork.closed.add(handle)  # last: a child takes any other handle for open, and is refused
    return True


def _let_go() -> None:
    """Release all that the thread took. An exception may end this anywhere, and it can be called again."""
    _fork.closed.clear()
    while _fork.locked:
        if _fork.locked[-1].lock._is_owned():  # type: ignore[attr-defined]
            _fork.locked[-1].lock.release()
        _fork.locked.pop()
    if _fork.has_registry and _registering._is_owned():  # type: ignore[attr-defined]
        _registering.release()
    _fork.has_registry = False


def _before() -> None:
    limit = time.monotonic() + PATIENCE
    while not _close_all() and time.monotonic() < limit:
        _let_go()  # the user of a handle may wait for another one, in `exclusively`


def _after_in_parent() -> None:
    try:
        _let_go()
    finally:
        _let_go()  # a signal handler may have raised in the first call


def _after_in_child() -> None:
    for handle in list(_handles.values()):
        if handle not in _fork.closed:
            if handle.identity is not None:
                _lost.add(handle.identity)
            if handle.connection is not None:
                _never_closed.append(handle.connection)
                handle.connection = None
                handle.close()
    _after_in_parent()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
