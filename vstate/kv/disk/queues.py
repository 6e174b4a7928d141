"""Queues: the order in which the updates of one machine come.

Nothing here keeps a store consistent: SQLite does. A turn saves work that would be in vain, and makes waiting
fair. Where a file lock is missing, or its holder is stuck, everybody goes on without it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from blake3 import blake3

from vstate.backoff import Backoff
from vstate.forks import renew_in_child
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


class Turns:
    """The turns in one directory: a file lock for each name. The holder of the lock has the turn."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._crowded: set[str] = set()
        """The names whose lock was refused at the last time."""
        self._opened: set[int] = set()
        renew_in_child(self, Turns._forget)

    def _forget(self) -> None:
        # A lock belongs to the open file, which the child shares: it would stay locked while the child lives.
        while self._opened:
            os.close(self._opened.pop())

    @contextmanager
    def turn(self, name: str) -> Iterator[None]:
        """Wait for the turn, PATIENCE at most, and hold it in the with block."""
        if name in self._crowded:
            self._crowded.discard(name)
            time.sleep(POLITE_PAUSE)
        opened: list[int] = []
        try:
            if sys.platform != "win32":
                with suppress(OSError):
                    self._take(name, opened)
            yield
        finally:
            for descriptor in opened:
                if descriptor in self._opened:  # not in the child of a fork inside the with block
                    fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child without Python's hooks may share it
                    self._opened.discard(descriptor)
                    os.close(descriptor)

    def _take(self, name: str, opened: list[int]) -> None:
        """Open the file of the name, append its descriptor to `opened`, and lock it."""
        # A fixed number of files: two names may share one, and then wait for each other in vain.
        path = f"{self._directory}/turn-{blake3(name.encode()).digest()[0] % FILES:x}.lock"
        # Appended before it is locked: an exception at any line leaves no lock behind.
        opened.append(open_shared(path, os.O_RDONLY))
        self._opened.add(opened[0])
        backoff = None
        while True:
            try:
                fcntl.flock(opened[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                # A refused lock and not the clock tells that others wait: opening the file may take as long.
                self._crowded.add(name)
                backoff = backoff or Backoff(FIRST_PAUSE, LONGEST_PAUSE, seconds=PATIENCE, growth=1.5)
                if not backoff.pause():
                    return
