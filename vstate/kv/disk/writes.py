"""Writes: the transactions of one process that go to the disk together, with one fsync.

A thread that wants to write leaves its write in a list first. The first one in the list leads: it takes the
lock of the writer, and the rows of all that wait, each with its own expectations, into its own transaction.
The others sleep until their rows are written, or until they are first. Nobody waits for company.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock, get_ident, main_thread

MOST_ROWS = 1000
"""A transaction with more rows than this goes alone: its fsync is little beside its writing."""

LONG_BYTES = 16 * 1024 * 1024
"""A transaction of more bytes is long: it goes alone, and its log is copied later, in a thread."""

_LONGEST_CHUNK = 256 * 1024
"""The most bytes of a chunk of a long value, so a long transaction of such chunks has many rows."""

_LOOK_AGAIN_SECONDS = 1.0

Rows = tuple[list[tuple[bytes, bytes]], list[bytes]]
"""The rows that a transaction sets, and the stored keys that it deletes."""


class Write:
    """One transaction: the rows that it expects in the store, and the rows that it writes.

    - `plan` are the rows, or a function that is called inside the transaction and returns them.
    - `shared`: another thread may write the rows in its own transaction. The caller takes that back before it
      leaves. Not in the main thread: a signal could end its call while another thread is about to commit.
    - `committing`: the rows are in a transaction that was being committed. If that is not `done` when the
      thread has the lock of the writer, its outcome is unknown.
    - `done`: whether the rows were written; False if an expectation failed; None before.
    """

    __slots__ = ("bell", "committing", "done", "expected", "is_long", "plan", "shared", "size")

    def __init__(
        self,
        plan: Rows | Callable[[], Rows],
        expected: Sequence[tuple[bytes, bytes | None]] = (),
    ) -> None:
        self.plan = plan
        self.expected = expected
        self.size = MOST_ROWS + 1
        self.is_long = False
        if not callable(plan):
            sets, deletes = plan
            self.size = len(sets) + len(deletes)
            if len(sets) > LONG_BYTES // _LONGEST_CHUNK:
                self.is_long = sum(len(value) for _, value in sets) > LONG_BYTES
        self.shared = self.size <= MOST_ROWS and not self.is_long and get_ident() != main_thread().ident
        self.committing = False
        self.done: bool | None = None
        self.bell = Lock()

    @property
    def is_untouched(self) -> bool:
        """Whether no transaction with the rows was committed, or was about to be."""
        return self.done is None and not self.committing


class Waiting(dict[Write, None]):
    """The writes of threads that wait for their transaction, in order."""

    def all(self) -> list[Write]:
        """The writes that have no outcome yet, and whose callers are there."""
        return [write for write in tuple(self) if write.shared and write.done is None]

    def wait(self, write: Write) -> None:
        """Sleep until another thread has written this write, or it is the first, or nobody rings for long:
        an exception may have kept the other thread from it.
        """
        write.bell.acquire()
        self[write] = None
        while write.done is None and self.all()[:1] not in ([write], []):
            if not write.bell.acquire(timeout=_LOOK_AGAIN_SECONDS):
                break

    def wake(self, writes: Sequence[Write]) -> None:
        """Let the threads of these look, and the thread of the first of all."""
        for write in (*writes, *self.all()[:1]):
            with suppress(RuntimeError):  # it is awake
                write.bell.release()

    def clean(self) -> None:
        """Remove the writes that are over, and wake the first of the others."""
        for write in tuple(self):
            if write.done is not None or not write.shared:
                self.pop(write, None)
        self.wake(())
