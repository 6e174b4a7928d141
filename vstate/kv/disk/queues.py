"""Queues: the order in which the updates of one machine come.

Nothing here keeps a store consistent: SQLite does. A turn saves work that would be in vain, and makes waiting
fair. Where a file lock is missing, or its holder is stuck, everybody goes on without it.
"""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from io import FileIO
from weakref import WeakSet

from blake3 import blake3

from vstate.backoff import Backoff
from vstate.kv.files import open_shared

if sys.platform != "win32":
    import fcntl

PATIENCE = 2.0
"""Seconds to wait for a turn. Beyond that its holder is slow or stopped."""

FIRST_PAUSE = 0.0001
LONGEST_PAUSE = 0.0007

POLITE_PAUSE = 0.001
"""Seconds that a process pauses after it had to wait, before it queues again. Others sleep less."""

FILES = 16


class _Lock(FileIO):
    """The file of a lock: the end of a with block, and the end of the object, close it in a C function."""

    __del__ = FileIO.close


class Turns:
    """The turns in one directory: a file lock for each name. The holder of the lock has the turn."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._crowded: set[str] = set()
        """The names whose lock was refused at the last time."""
        self._opened: WeakSet[_Lock] = WeakSet()

    def forget(self) -> None:
        """Close the files, in the child after a fork."""
        # A lock belongs to the open file, which the child shares: it would stay locked while the child lives.
        for file in self._opened:
            file.close()

    def turn(self, name: str) -> AbstractContextManager[None]:
        """Wait for the turn, PATIENCE at most. The end of the with block ends it."""
        if sys.platform == "win32":
            return nullcontext()
        if name in self._crowded:
            self._crowded.discard(name)
            time.sleep(POLITE_PAUSE)
        # A fixed number of files: two names may share one, and then wait for each other in vain.
        path = f"{self._directory}/turn-{blake3(name.encode()).digest()[0] % FILES:x}.lock"
        try:
            file = _Lock(path, opener=open_shared)
        except OSError:
            return nullcontext()
        try:
            self._opened.add(file)
            with suppress(OSError):
                self._wait(file, name)
            return file  # type: ignore[return-value]  # nobody uses the file
        except BaseException:
            file.close()
            raise

    def _wait(self, file: _Lock, name: str) -> None:
        backoff = None
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                # A refused lock and not the clock tells that others wait: opening the file may take as long.
                self._crowded.add(name)
                backoff = backoff or Backoff(FIRST_PAUSE, LONGEST_PAUSE, seconds=PATIENCE, growth=1.5)
                if not backoff.pause():
                    return
