"""Queues: the order in which the threads and processes of one machine use a store.

Nothing here keeps a store consistent: SQLite does. A queue saves work and makes waiting fair. Where a file
lock is missing, or its holder is stuck, everybody goes on without it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from blake3 import blake3

from vstate.backoff import Backoff
from vstate.kv.files import open_shared

if sys.platform != "win32":
    import fcntl

PATIENCE = 2.0
"""Seconds to wait for a turn. Beyond that its holder is slow or stopped."""

FIRST_PAUSE = 0.0001
LONGEST_PAUSES = (0.0007, 0.0002)
"""Seconds between two tries: many processes may wait to be next, but only one waits to begin."""

POLITE_PAUSE = 0.001
"""Seconds that a process pauses after it had to wait, before it queues again. Others sleep less."""

FILES = 16


class Turnstile:
    """The process that writes next. A writer takes the turnstile, asks SQLite for the write lock, and leaves
    as soon as it has that lock. So a process that has just written cannot overtake one that waits.

    Without a turnstile, three of four processes that write all the time waited for 3 s and longer. It is a
    flock on the directory: closing any descriptor of the file itself would drop SQLite's own locks.
    """

    __slots__ = ("descriptor", "directory", "held")

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.descriptor: int | None = None
        self.held = False

    def take(self) -> bool:
        """Return whether this process is the next to write. True where there is no flock."""
        if sys.platform != "win32" and not self.held:
            try:
                if self.descriptor is None:
                    self.descriptor = os.open(self.directory, os.O_RDONLY)
                # Set before the lock is taken: an interruption right after the call must not lose it.
                self.held = True
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.held = False
                return False
            except OSError:
                self.held = False
        return True

    def leave(self) -> None:
        """Let the next process in."""
        if sys.platform != "win32" and self.held and self.descriptor is not None:
            self.held = False
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Leave, and close the descriptor."""
        descriptor, self.descriptor, self.held = self.descriptor, None, False
        if descriptor is not None:
            os.close(descriptor)


class UpdateQueue:
    """The callers that want to update the same thing in one directory, one after the other.

    It takes two file locks: the holder of the first is next, the holder of the second has the turn. A caller
    that has just had its turn queues for the first lock again, and so cannot overtake the one that waits
    there.
    """

    def __init__(self, directory: str, name: str) -> None:
        self._waited = False
        # A fixed number of files: two names may share one, and then wait for each other in vain.
        number = blake3(name.encode()).digest()[0] % FILES
        self._paths = [os.path.join(directory, f"turn-{number:x}-{step}.lock") for step in ("next", "now")]

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for the turn, PATIENCE at most, and hold it in the with block."""
        opened: list[int] = []
        if self._waited:
            time.sleep(POLITE_PAUSE)
        self._waited = False
        limit = time.monotonic() + PATIENCE
        try:
            if sys.platform != "win32":
                following, now = self._paths
                if self._lock(following, opened, limit, LONGEST_PAUSES[0]) and self._lock(
                    now, opened, limit, LONGEST_PAUSES[1]
                ):
                    _close_first(opened)
            yield
        finally:
            while opened:
                _close_first(opened)

    def _lock(self, path: str, opened: list[int], limit: float, longest_pause: float) -> bool:
        """Open the file, append its descriptor to `opened`, and lock it. False if the lock cannot be had."""
        try:
            # Appended before it is locked: whatever interrupts this, the descriptor is closed in the end.
            opened.append(open_shared(path, os.O_RDONLY))
        except OSError:
            return False
        backoff: Backoff | None = None
        while True:
            try:
                fcntl.flock(opened[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                # A refused lock and not the clock tells that others wait: opening the files may take as long.
                self._waited = True
                seconds = limit - time.monotonic()
                backoff = backoff or Backoff(FIRST_PAUSE, longest_pause, seconds=seconds, growth=1.5)
                if not backoff.pause():
                    return False
            except OSError:
                return False


def _close_first(opened: list[int]) -> None:
    descriptor = opened[0]
    del opened[0]
    os.close(descriptor)
