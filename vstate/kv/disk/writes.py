"""Writes: the transactions of one process that go to the disk together, with one fsync.

A thread that wants to write leaves its rows in a list first. One thread leads: it takes the write lock, and
the rows of all that wait, each with its own expectations, into its own transaction. The others sleep until
their rows are written, or until it is their turn to lead. Nobody waits for company.
"""

from __future__ import annotations

from _thread import LockType
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from threading import Lock, get_ident, main_thread
from typing import NamedTuple

from vstate.kv.base import Revised


class Rows(NamedTuple):
    """The rows that a transaction sets, the stored keys that it deletes, and the rows to pack as deltas."""

    sets: list[tuple[bytes, bytes]]
    deletes: list[bytes]
    revised: Sequence[tuple[bytes, Revised]] = ()

    @property
    def total(self) -> int:
        """The number of rows."""
        return len(self.sets) + len(self.deletes) + len(self.revised)


MOST_ROWS = 1000
"""A transaction with more rows than this goes alone: its fsync is little beside its writing."""

LONG_BYTES = 16 * 1024 * 1024
"""A transaction of more bytes is long: it goes alone, and its log is copied later. See `checkpoints`."""

_LONGEST_CHUNK = 256 * 1024
"""The most bytes of a chunk of a long value, so a long transaction of such chunks has many rows."""

_LOOK_AGAIN_SECONDS = 1.0


class Swap(NamedTuple):
    """The new value of a row, its key, and the old value."""

    new: bytes
    key: bytes
    old: bytes


class Write:
    """One transaction: the rows that it expects in the store, and the rows that it writes.

    - `shared`: another thread may write the rows in its own transaction.
    - `committing`: the rows are in a transaction that was being committed. If that is not `done` when the
      thread has the lock, its outcome is unknown.
    - `done`: whether the rows were written; False if an expectation failed; None before.
    - `long`: the rows have many bytes, so the transaction commits without a checkpoint.

    `plan` is called inside the transaction for rows that are not known before. `swap` is a row that gets a
    new value if it has the old one: mostly a ref.
    """

    __slots__ = ("_bell", "_plan", "committing", "done", "expected", "long", "rows", "shared", "swap")

    def __init__(
        self,
        rows: Rows | None = None,
        expected: Sequence[tuple[bytes, bytes | None]] = (),
        swap: Swap | None = None,
        plan: Callable[[], Rows] | None = None,
    ) -> None:
        self.rows = rows
        self.expected = expected
        self.swap = swap
        self._plan = plan
        self.shared = False
        self.committing = False
        self.done: bool | None = None
        self.long = False
        self._bell: LockType | None = None

    def planned(self) -> Rows:
        """The rows, planned now if they were not known."""
        assert self._plan is not None
        return self._plan()

    def share(self) -> None:
        """Let another thread write the rows."""
        self._bell = Lock()
        self._bell.acquire()
        self.shared = True

    def wait(self) -> None:
        """Sleep until `wake`.

        `wake` is a hint. An exception may keep it from being called, so a sleeper also wakes by itself.
        """
        if self._bell is not None:
            self._bell.acquire(timeout=_LOOK_AGAIN_SECONDS)

    def wake(self) -> None:
        """Let the thread that waits with this write look."""
        if self._bell is not None:
            with suppress(RuntimeError):  # it is awake
                self._bell.release()


class Waiting:
    """The shared writes that wait for their transaction."""

    def __init__(self) -> None:
        self._writes: deque[Write] = deque()
        self._leader: Write | None = None
        """The write whose thread makes the next transaction, so the other threads sleep. It is a hint."""

    def __len__(self) -> int:
        return len(self._writes)

    def add(self, write: Write, rows: Rows) -> None:
        """Let another thread write these rows.

        Not in the main thread: a signal could end its call at any line, while another thread goes on to write
        the rows of a caller that has gone.
        """
        if get_ident() != main_thread().ident and rows.total <= MOST_ROWS:
            write.share()
            self._writes.append(write)

    def is_written(self, write: Write) -> bool:
        """Sleep while another thread leads. True if that thread wrote the rows; else take the write lock."""
        if not write.shared:
            return False
        if self._leader is None:
            self._leader = write
            return False
        write.wait()
        if write.done is None:
            self._leader = write  # mostly so already; but an exception may have stopped the last leader
        return self._leader is not write

    def knows(self, write: Write) -> bool:
        """Whether other threads may write these rows, or wait for this thread to lead."""
        return write.shared or self._leader is write

    def take(self, first: Write) -> Iterator[Write]:
        """`first`, and the writes that may go with it, until none waits; the write lock is held."""
        yield first
        if first.shared:
            rows = 0
            while self._writes and rows <= MOST_ROWS:
                write = self._writes.popleft()
                if write.shared and write.done is None and write is not first:
                    rows += write.rows.total if write.rows is not None else 0
                    yield write

    def pass_on(self, write: Write) -> None:
        """Let another thread lead, if this one did; the write lock is held."""
        if self._leader is not write:
            return
        # First: a thread that comes now leads by itself, or it is in the list already.
        self._leader = None
        for following in tuple(self._writes):
            if following.done is None and following is not write:
                self._leader = following
                following.wake()
                return

    def withdraw(self, write: Write) -> None:
        """Let no other thread write these rows from here on; the write lock is held."""
        write.shared = False
        if write in self._writes:
            self._writes.remove(write)

    def clear(self) -> None:
        """Forget all, in the child after a fork: the threads that wait are in the parent."""
        self._writes = deque()
        self._leader = None


def is_long(rows: Rows) -> bool:
    """Whether these rows make a long transaction, by the rows that it sets."""
    sets = rows.sets
    return len(sets) > LONG_BYTES // _LONGEST_CHUNK and sum(len(value) for _, value in sets) > LONG_BYTES
