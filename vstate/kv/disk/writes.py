"""Writes: the transactions of one process that go to the disk together, with one fsync.

A thread that asks for the write lock leaves its rows in a list first. The thread that has the lock takes the
rows of all that wait, each with its own expectations, into its own transaction. A thread that then gets the
lock finds its rows written. Nobody waits for company.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import get_ident, main_thread

Rows = tuple[list[tuple[bytes, bytes]], list[bytes]]
"""The rows that a transaction sets, and the stored keys that it deletes."""

MOST_ROWS = 1000
"""A transaction with more rows than this goes alone: its fsync is little beside its writing."""


class Write:
    """One transaction: the rows that it expects in the store, and the rows that it writes.

    - `shared`: another thread may write the rows in its own transaction.
    - `committing`: the rows are in a transaction that was being committed. If that is not `done` when the
      thread has the lock, its outcome is unknown.
    - `done`: whether the rows were written; False if an expectation failed; None before.
    """

    __slots__ = ("committing", "done", "expected", "plan", "shared")

    def __init__(self, plan: Callable[[], Rows], expected: Sequence[tuple[bytes, bytes | None]] = ()) -> None:
        self.plan = plan
        self.expected = expected
        self.shared = False
        self.committing = False
        self.done: bool | None = None


class Waiting:
    """The shared writes that wait for the write lock."""

    def __init__(self) -> None:
        self._writes: deque[Write] = deque()

    def __len__(self) -> int:
        return len(self._writes)

    def add(self, write: Write, rows: Rows) -> None:
        """Let another thread write these rows.

        Not in the main thread: a signal could end its call at any line, while another thread goes on to write
        the rows of a caller that has gone.
        """
        if get_ident() != main_thread().ident and _count(rows) <= MOST_ROWS:
            write.shared = True
            self._writes.append(write)

    def take(self, first: Write) -> list[Write]:
        """`first`, and the writes that may go with it; the write lock is held."""
        group = [first]
        if first.shared:
            rows = 0
            while self._writes and rows <= MOST_ROWS:
                write = self._writes.popleft()
                if write.shared and write.done is None and write is not first:
                    group.append(write)
                    rows += _count(write.plan())
        return group

    def withdraw(self, write: Write) -> None:
        """Let no other thread write these rows from here on; the write lock is held."""
        write.shared = False
        if write in self._writes:
            self._writes.remove(write)

    def clear(self) -> None:
        """Forget all, in the child after a fork: the threads that wait are in the parent."""
        self._writes = deque()


def _count(rows: Rows) -> int:
    sets, deletes = rows
    return len(sets) + len(deletes)
