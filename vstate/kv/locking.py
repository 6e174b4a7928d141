"""Locking: whose turn it is, among the threads and processes of one machine.

Nothing here keeps a store consistent: that is the store's own business. It only spares work and waiting, so
where there are no file locks, or when somebody sits on one, everybody does without.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from blake3 import blake3

if sys.platform != "win32":
    import fcntl

PATIENCE = 2.0
"""Seconds after which a turn is not waited for any more: whoever has it is slow, or stopped."""

FIRST_PAUSE = 0.0001
LONGEST_PAUSES = (0.0007, 0.0002)
"""Seconds between two tries: many may wait to be the next, but only one to be at it."""

POLITE_PAUSE = 0.001
"""Seconds that one who had to wait gives the others before it queues again; longer than they sleep."""

FILES = 16


class Turnstile:
    """Which process is the next to write. A writer takes it before it asks SQLite for the write lock, and
    leaves it as soon as it has that: so one that has just written cannot overtake one that waits.

    Without it, of four processes that write all the time, three waited for 3 s and longer. It is a flock
    on the directory, since closing any descriptor of the file itself would drop SQLite's own locks.
    It only makes for fairness: where there is no flock, or when somebody sits on it, writers do without.
    """

    __slots__ = ("descriptor", "directory", "held")

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.descriptor: int | None = None
        self.held = False

    def take(self) -> bool:
        """Whether it is this process's turn now."""
        if sys.platform != "win32" and not self.held:
            try:
                if self.descriptor is None:
                    self.descriptor = os.open(self.directory, os.O_RDONLY)
                # Said before it is so: an interruption right after the call must not leave it unsaid.
                self.held = True
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.held = False
                return False
            except OSError:
                self.held = False
        return True

    def leave(self) -> None:
        if sys.platform != "win32" and self.held and self.descriptor is not None:
            self.held = False
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        descriptor, self.descriptor, self.held = self.descriptor, None, False
        if descriptor is not None:
            os.close(descriptor)


class Queue:
    """Those who want to do the same thing in one directory, one after the other.

    Two locks: who holds the first is the next, who holds the second is at it. One that has just been at it
    has to queue for the first again, and so cannot overtake the one that waits there.
    """

    def __init__(self, directory: str, name: str) -> None:
        self._waited = False
        # A fixed number of files: two names may share one, and then wait for each other in vain.
        number = blake3(name.encode()).digest()[0] % FILES
        self._paths = [os.path.join(directory, f"turn-{number:x}-{step}.lock") for step in ("next", "now")]

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for the turn, for two seconds at the most, and have it in the with block."""
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
        """Open the file, put its descriptor into `opened`, and lock it; False if it cannot be had."""
        try:
            # Put there before it is locked: whatever interrupts this, it is closed in the end.
            opened.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
        except OSError:
            return False
        pause = FIRST_PAUSE
        while True:
            try:
                fcntl.flock(opened[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except OSError as error:
                if not isinstance(error, BlockingIOError) or time.monotonic() > limit:
                    return False
            # Not told by the clock: opening the files may take as long, and one who is alone need not be polite.
            self._waited = True
            time.sleep(pause * (0.5 + os.urandom(1)[0] / 256))
            pause = min(pause * 1.5, longest_pause)


def _close_first(opened: list[int]) -> None:
    descriptor = opened[0]
    del opened[0]
    os.close(descriptor)
