"""Writes: the transactions of one process that go to the disk together, with one fsync.

A thread that wants to write leaves its write in a list first. The first one in the list leads: it takes the
lock of the writer, and the rows of all that wait, each with its own expectations, into its own transaction.
The others sleep until their rows are written, or until they are first. Nobody waits for company.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from threading import Lock, get_ident, main_thread
from typing import NamedTuple

from vstate.kv.base import Revised

MOST_ROWS = 1000
"""A transaction with more rows than this goes alone: its fsync is little beside its writing."""

LONG_BYTES = 16 * 1024 * 1024
"""A transaction of more bytes is long: it goes alone, and its log is copied later, in a thread."""

_LONGEST_CHUNK = 256 * 1024
"""The most bytes of a chunk of a long value, so a long transaction of such chunks has many rows."""

_LOOK_AGAIN_SECONDS = 1.0


class Rows(NamedTuple):
    """The rows that a transaction sets, the stored keys that it deletes, and the rows to pack as deltas."""

    sets: list[tuple[bytes, bytes]]
    deletes: list[bytes]
    revised: Sequence[tuple[bytes, Revised]] = ()


class Swap(NamedTuple):
    """The new value of a row, its key, and the old value."""

    new: bytes
    key: bytes
    old: bytes


class Write:
    """One transaction: the rows that it expects in the store, and the rows that it writes.

    - `plan` is called inside the transaction, and returns the rows.
    - `swap` is a row that gets a new value if it has the old one: mostly a ref.
    - `shared`: another thread may write the rows in its own transaction. The caller takes that back before it
      leaves. Not in the main thread: a signal could end its call while another thread is about to commit.
    - `committing`: the rows are in a transaction that was being committed. If that is not `done` when the
      thread has the lock of the writer, its outcome is unknown.
    - `done`: whether the rows were written; False if an expectation failed; None before.
    """

    __slots__ = ("_bell", "committing", "done", "expected", "is_long", "plan", "shared", "size", "swap")

    def __init__(
        self,
        plan: Callable[[], Rows],
        rows: Rows | None = None,
        expected: Sequence[tuple[bytes, bytes | None]] = (),
        swap: Swap | None = None,
    ) -> None:
        self.plan = plan
        self.expected = expected
        self.swap = swap
        self.size = MOST_ROWS + 1 if rows is None else sum(len(some) for some in rows)
        self.is_long = rows is not None and _is_long(rows.sets)
        self.shared = self.size <= MOST_ROWS and not self.is_long and get_ident() != main_thread().ident
        self.committing = False
        self.done: bool | None = None
        self._bell = Lock()
        if self.shared:
            self._bell.acquire()

    @property
    def is_untouched(self) -> bool:
        """Whether no transaction with the rows was committed, or was about to be."""
        return self.done is None and not self.committing

    def sleep(self) -> bool:
        """Sleep until `wake`. False if that took long: an exception may have kept it from being called."""
        return self._bell.acquire(timeout=_LOOK_AGAIN_SECONDS)

    def wake(self) -> None:
        """Let the thread that waits with this write look."""
        with suppress(RuntimeError):  # it is awake
            self._bell.release()


class Waiting:
    """The writes of threads that wait for their transaction, in order."""

    def __init__(self) -> None:
        self._writes: dict[Write, None] = {}

    def __len__(self) -> int:
        return len(self.all())

    def all(self) -> list[Write]:
        """The writes that have no outcome yet, and whose callers are there."""
        return [write for write in tuple(self._writes) if write.shared and write.done is None]

    def wait(self, write: Write) -> None:
        """Sleep until another thread has written this write, or it is the first."""
        self._writes[write] = None
        while write.done is None and self._first() not in (write, None) and write.sleep():
            pass

    def _first(self) -> Write | None:
        for write in tuple(self._writes):
            if write.shared and write.done is None:
                return write
        return None

    def remove(self, writes: Iterable[Write]) -> None:
        """Remove these, and wake their threads, if they have an outcome or are to go alone."""
        for write in writes:
            if write.done is not None or not write.shared:
                self._writes.pop(write, None)
            write.wake()

    def leave(self, write: Write) -> None:
        """Remove a write whose thread leaves, and wake the first of the others."""
        self._writes.pop(write, None)
        following = self._first()
        if following is not None:
            following.wake()

    def clear(self) -> None:
        """Forget all, in the child after a fork: the threads that wait are in the parent."""
        self._writes.clear()


def _is_long(sets: list[tuple[bytes, bytes]]) -> bool:
    return len(sets) > LONG_BYTES // _LONGEST_CHUNK and sum(len(value) for _, value in sets) > LONG_BYTES
