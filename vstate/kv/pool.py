"""Pool: a few connections to a server, each used by one call at a time."""

from __future__ import annotations

import os
import select
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, TypeVar
from weakref import WeakSet

from vstate.errors import InvalidInput, StoreUnavailable
from vstate.forks import new_lock, renew_in_child

C = TypeVar("C")
T = TypeVar("T")

LONGEST_IDLE: Final = 240.0
"""Seconds after which an unused connection is not trusted: firewalls and proxies forget idle connections."""

LOOK_SECONDS: Final = 0.1
"""Seconds after which a waiting call looks again for a free place, if an exception kept back the news."""


class Pool(ABC, Generic[C]):
    """Up to `size` connections in use, made when they are needed, and kept for the next call.

    A call has a place while it holds a lock of its own in a `with` block, and the pool counts the locks that
    are held. So no exception, at any line, leaves a place taken. A connection that a call did not bring back
    is garbage, and closes. psycopg's pool and redis-py's pools count places, and lose one if a signal's
    exception comes between two lines.

    Readers may have one place more than writers. Writers wait for locks, and the holder of the lock may have
    to read before it goes on: otherwise it could find all places taken.
    """

    def __init__(self, place: str, *, size: int, timeout: float, option: str) -> None:
        self._place = place
        self._size = size
        self._timeout = timeout
        self._option = option
        self._lock = new_lock()
        self._closed = False
        self._made: WeakSet[C] = WeakSet()
        self._begin()
        renew_in_child(self, Pool._renew)

    def _begin(self) -> None:
        self._idle: deque[tuple[float, C]] = deque()
        self._taken: list[tuple[threading.Lock, bool]] = []
        self._bells: deque[threading.Lock] = deque()

    @abstractmethod
    def make(self) -> C:
        """A new connection."""

    def is_clean(self, connection: C) -> bool:
        """Whether another call may use the connection, after a call that succeeded."""
        return True

    @abstractmethod
    def discard(self, connection: C) -> None:
        """Close the connection. It raises nothing."""

    @abstractmethod
    def descriptor(self, connection: C) -> int:
        """The file descriptor of the connection."""

    def connect(self) -> C:
        """A new connection beside those of the pool, for the caller to discard."""
        connection = self.make()
        self._made.add(connection)
        return connection

    def use(self, work: Callable[[C], T], *, writing: bool = False) -> T:
        """Call `work` with a connection that nobody else uses meanwhile."""
        mine = threading.Lock()
        try:
            with mine:
                self._take(mine, writing)
                connection = self._unused() or self.connect()
                clean = False
                try:
                    result = work(connection)
                    clean = self.is_clean(connection)
                finally:
                    if not clean:
                        self.discard(connection)
                if clean:
                    self._keep(connection)
                return result
        finally:
            self._ring()

    def clear(self) -> None:
        """Close the idle connections."""
        while self._idle:
            with suppress(IndexError):
                self.discard(self._idle.pop()[1])

    def close(self) -> None:
        """Close the idle connections now, and the others when their calls end."""
        self._closed = True
        self.clear()

    def _take(self, mine: threading.Lock, writing: bool) -> None:
        """Wait for a place, and take it."""
        end = time.monotonic() + self._timeout
        bell: threading.Lock | None = None
        while not self._takes(mine, writing):
            if bell is not None:
                if (left := end - time.monotonic()) <= 0:
                    raise StoreUnavailable(
                        f"all {self._size} connections of this store to {self._place} were in use for "
                        f"{self._timeout:g} s; retry later, or give the store more `{self._option}`"
                    )
                bell.acquire(timeout=min(left, LOOK_SECONDS))
            # Before the next look, so that a place that becomes free after it rings the bell.
            bell = threading.Lock()
            bell.acquire()
            self._bells.append(bell)

    def _takes(self, mine: threading.Lock, writing: bool) -> bool:
        if self._closed:
            raise InvalidInput(f"the store at {self._place} is closed; open it again")
        with self._lock:
            taken = [place for place in self._taken if place[0].locked()]
            if len(taken) >= self._size or (writing and sum(writes for _, writes in taken) >= self._size - 1):
                return False
            self._taken = [*taken, (mine, writing)]
            return True

    def _ring(self) -> None:
        """Wake all that wait for a place: a writer that wakes may have to leave the place to a reader."""
        while self._bells:
            with suppress(IndexError, RuntimeError):
                self._bells.pop().release()

    def _unused(self) -> C | None:
        while self._idle:
            with suppress(IndexError):
                since, connection = self._idle.pop()
                if time.monotonic() - since < LONGEST_IDLE and self._is_quiet(connection):
                    return connection
                self.discard(connection)
        return None

    def _is_quiet(self, connection: C) -> bool:
        """Whether the server said nothing unasked: mostly that it is going down, or that it is gone."""
        try:
            descriptor = self.descriptor(connection)
            if hasattr(select, "poll"):
                poll = select.poll()
                poll.register(descriptor, select.POLLIN)
                return not poll.poll(0)
            return not select.select([descriptor], [], [], 0)[0]
        except Exception:  # each driver has its own for a connection that is closed
            return False

    def _keep(self, connection: C) -> None:
        self._idle.append((time.monotonic(), connection))
        with suppress(IndexError):
            if time.monotonic() - self._idle[0][0] > LONGEST_IDLE:
                self.discard(self._idle.popleft()[1])
        if self._closed:
            self.clear()

    def _renew(self) -> None:
        """In a forked child: leave the connections of the parent to the parent."""
        numbers: list[int] = []
        for connection in list(self._made):
            with suppress(Exception):
                numbers.append(self.descriptor(connection))
        self._begin()
        # A socket that stays open here keeps a session of a dead parent alive, with its locks. Its number
        # stays taken, so that a holder of the connection cannot write into another file.
        for number in numbers[:1]:
            os.close(number)  # so that there is a descriptor for the next line
            nothing = os.open(os.devnull, os.O_RDWR)
            for each in numbers:
                if each != nothing:
                    os.dup2(nothing, each, inheritable=False)
            if nothing not in numbers:
                os.close(nothing)
