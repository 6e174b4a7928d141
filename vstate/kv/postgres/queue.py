"""Queues: callers that update the same thing follow one another. Correctness does not depend on it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import psycopg

from vstate.forks import renew_in_child
from vstate.kv.postgres.connections import CannotConnect, Connection
from vstate.kv.postgres.session import Session

PATIENCE: Final = 2.0
"""Seconds to wait for a turn. Beyond that its holder is slow or stopped."""

PAUSE_AFTER_FAILURE: Final = 10.0
"""Seconds without queues after the server could not help."""

CONTENDED_SECONDS: Final = 0.5
"""Seconds after the last sign of others for which callers queue before their first attempt."""

KEPT_TIMES: Final = 20
KEPT_SECONDS: Final = 0.25
"""How often, and how long, a caller that comes back at once keeps the turn. Handing it to another process
each time takes longer than the work: that process has to wake up, and to read the writes of the others."""

AT_ONCE_SECONDS: Final = 0.005
"""A caller that is usually back within this time comes back at once."""

IDLE_SECONDS: Final = 0.02
"""Seconds after which a kept turn is released, if its holder has not come back."""

HELD_SECONDS: Final = 5.0
"""Seconds after which the server ends the turn, and the connection, of a holder that is stuck."""

_TROUBLES: Final = (psycopg.Error, CannotConnect)


class Locks:
    """The locks of turns on the server.

    Each is an advisory lock of a transaction in which nothing else happens, so it works through a pooler too.
    It has a connection of its own: the holder of the turn needs the connections of the store.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._idle: deque[Connection] = deque(maxlen=1)
        self._closed = False
        self._discard = session.connections.discard

    def acquire(self, name: str) -> tuple[Connection | None, bool]:
        """Wait for the lock: its connection, None after PATIENCE; and whether another had the lock."""
        if not self._session.exists:
            return None, False
        connection = self._connection()
        statement = self._session.statements.take_turn(
            name,
            wait=min(PATIENCE, self._session.timeout),
            hold=HELD_SECONDS,
            check_interval=self._session.check_interval,
        )
        try:
            cursor = connection.execute(statement)
            cursor.nextset()
            row = cursor.fetchone()
        except psycopg.errors.LockNotAvailable:
            self.release(connection)
            return None, True
        except BaseException:
            self._discard(connection)
            raise
        return connection, row is None or not row[0]

    def release(self, connection: Connection) -> None:
        """Let the next process have the lock."""
        try:
            connection.execute(b"ROLLBACK")
        except BaseException as error:
            # Mostly the turn took too long and the server has ended it. The next turn gets a new connection.
            self._discard(connection)
            if not isinstance(error, psycopg.OperationalError):
                raise
            return
        if self._idle or self._closed:
            self._discard(connection)
        else:
            self._idle.append(connection)

    def close(self) -> None:
        """Close the idle connection now, and the others when they are released."""
        self._closed = True
        with suppress(IndexError):
            self._discard(self._idle.pop())

    def forget(self) -> None:
        """In a forked child: the idle connection is the parent's."""
        self._idle.clear()

    def _connection(self) -> Connection:
        with suppress(IndexError):
            return self._idle.pop()
        return self._session.connections.connect()


class _Queue:
    """The queue of one name, as this process knows it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.contended_until = 0.0
        self.holding: Connection | None = None  # the turn on the server
        self.since = 0.0
        self.times = 0
        self.left = 0.0
        self.away = 0.0
        self.release_timer: threading.Timer | None = None


class UpdateQueues:
    """A queue for each name: first of the threads of this process, then, on the server, of all the processes.

    A caller queues once it has met others: it has lost a race, or the answer to its last write said that
    another process had the turn. So a caller that is alone pays nothing. A caller that wins all races learns
    of the others only in the second way.

    One thread of a process at a time queues on the server. The others leave the connections to the holder of
    the turn. If anything here fails, everybody goes on without turns.
    """

    def __init__(self, session: Session) -> None:
        self._locks = Locks(session)
        self._next_try = 0.0
        self._begin()
        renew_in_child(self, UpdateQueues._begin)

    def _begin(self) -> None:
        self._locks.forget()
        self._queues: dict[str, _Queue] = {}
        self._thread = threading.local()

    @property
    def skipped(self) -> str | None:
        """The name whose queue this thread skipped. Its writes ask whether another process has the turn."""
        name: str | None = getattr(self._thread, "skipped", None)
        return name

    def note_others(self, name: str) -> None:
        """Note that others update the same thing."""
        self._queue(name).contended_until = time.monotonic() + CONTENDED_SECONDS

    @contextmanager
    def turn(self, name: str, *, lost: bool) -> Iterator[None]:
        """Wait for the turn, PATIENCE each in this process and on the server, and hold it in the with block.

        A caller that has not `lost` a race waits only if it met others not long ago.
        """
        queue = self._queue(name)
        now = time.monotonic()
        if lost:
            queue.contended_until = now + CONTENDED_SECONDS
        if queue.holding is None and (now >= queue.contended_until or now < self._next_try):
            self._thread.skipped = name
            try:
                yield
            finally:
                self._thread.skipped = None
            return
        if not queue.lock.acquire(timeout=PATIENCE):
            # Its holder is slow, or was interrupted and will never release it.
            if self._queues.get(name) is queue:
                del self._queues[name]
            yield
            return
        try:
            # An average, not the last time alone: a busy machine may hold up any caller.
            queue.away = min(time.monotonic() - queue.left, 2 * max(queue.away, AT_ONCE_SECONDS / 8))
            if queue.holding is None:
                self._acquire(name, queue)
            queue.times += 1
            yield
        finally:
            try:
                queue.left = time.monotonic()
                until = min(queue.since + KEPT_SECONDS, queue.contended_until)
                if queue.away > AT_ONCE_SECONDS or queue.times >= KEPT_TIMES or queue.left > until:
                    self._release(queue)
                elif queue.holding is not None and queue.release_timer is None:
                    self._release_later(queue)
            finally:
                queue.lock.release()
                if queue.holding is not None and queue.release_timer is None:
                    # The timer fired while this thread still had the lock.
                    self._release_later(queue)

    def close(self) -> None:
        """Release the turns that are kept and not in use, and close their connections."""
        self._locks.close()
        for queue in list(self._queues.values()):
            if queue.lock.acquire(blocking=False):
                try:
                    self._release(queue)
                finally:
                    queue.lock.release()
        self._locks.close()

    def _queue(self, name: str) -> _Queue:
        return self._queues.setdefault(name, _Queue())

    def _acquire(self, name: str, queue: _Queue) -> None:
        try:
            queue.holding, contended = self._locks.acquire(name)
        except _TROUBLES:
            self._next_try = time.monotonic() + PAUSE_AFTER_FAILURE
            return
        queue.since, queue.times = time.monotonic(), 0
        if contended:
            queue.contended_until = queue.since + CONTENDED_SECONDS

    def _release(self, queue: _Queue) -> None:
        holding, queue.holding = queue.holding, None
        timer, queue.release_timer = queue.release_timer, None
        if timer is not None:
            timer.cancel()
        try:
            if holding is not None:
                self._locks.release(holding)
        except _TROUBLES:
            self._next_try = time.monotonic() + PAUSE_AFTER_FAILURE

    def _release_later(self, queue: _Queue) -> None:
        """Release the turn when its holder has not come back for a while."""

        def end() -> None:
            current: threading.Timer | None = timer
            if not queue.lock.acquire(blocking=False):
                if queue.release_timer is not timer:
                    return
                # The holder sees this when it releases the lock; which it may have done just now.
                queue.release_timer = current = None
                if not queue.lock.acquire(blocking=False):
                    return
            try:
                if queue.release_timer is current:
                    queue.release_timer = None
                    if time.monotonic() - queue.left < IDLE_SECONDS:
                        self._release_later(queue)
                    else:
                        self._release(queue)
            finally:
                queue.lock.release()

        queue.release_timer = timer = threading.Timer(IDLE_SECONDS, end)
        try:
            timer.start()
        except RuntimeError:
            # The process is about to end and starts no more threads.
            queue.release_timer = None
            self._release(queue)
