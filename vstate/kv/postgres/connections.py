"""Connections: a few connections to PostgreSQL, each lent to one thread at a time."""

from __future__ import annotations

import math
import os
import re
import select
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import psycopg
from psycopg import pq

from vstate.backoff import Timeout
from vstate.errors import InvalidInput, StoreUnavailable
from vstate.kv.postgres.address import Address

Result = TypeVar("Result")

SLACK: Final = 5.0
"""Seconds that a client waits for an answer beyond the time that the server itself waits for locks."""

SLOWEST: Final = 4 * 1024 * 1024
"""Bytes a second that even a slow server writes. It is silent while it writes a value of a gigabyte."""

LONGEST_IDLE: Final = 240.0
"""Seconds after which an unused connection is not trusted: firewalls and proxies forget idle connections."""

_OPTIONS: Final = {
    "application_name": "PGAPPNAME",
    "connect_timeout": "PGCONNECT_TIMEOUT",
    "keepalives_idle": None,
    "keepalives_interval": None,
    "keepalives_count": None,
    "tcp_user_timeout": None,
    "target_session_attrs": "PGTARGETSESSIONATTRS",
}
"""The options of libpq with another default here, and the variables by which a user may set them."""


class CannotConnect(Exception):
    """No connection could be made. The message holds no secret, and nothing has been sent."""

    @property
    def may_pass(self) -> bool:
        """Whether the server is about to start. There is no code for it: only English is recognised."""
        return (
            re.search("database system is (starting up|in recovery|not yet accepting)", str(self)) is not None
        )

    @property
    def remedy(self) -> str:
        """What to do next, for the end of an error message."""
        if "password" in str(self):
            return "give the right password, in PGPASSWORD, in ~/.pgpass or in the URL"
        if re.search('(role|database) ".*" does not exist', str(self)) is not None:
            return "create it on the server, or correct the URL"
        if "pg_hba.conf" in str(self):
            return "let it in, in pg_hba.conf on the server, or correct the URL"
        return "see that it runs, and that host and port are right, and retry"


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that gives up on a server that is silent for too long: libpq would wait forever."""

    patience = 60.0
    """Seconds of silence that a short statement may take."""

    sending = 0
    """Bytes that the server is writing, for which it gets more time."""

    def wait(self, gen: Generator[Any, Any, Result], *arguments: Any, **options: Any) -> Result:
        return super().wait(self._listening(gen), *arguments, **options)

    def _listening(self, work: Generator[Any, Any, Result]) -> Generator[Any, Any, Result]:
        try:
            wanted = next(work)
            heard = time.monotonic()
            while True:
                ready = yield wanted
                now = time.monotonic()
                if ready:
                    heard = now
                elif now - heard > self.patience + self.sending / SLOWEST:
                    # At once: the cleaning up would wait as long again.
                    self.close()
                    raise psycopg.OperationalError(f"no answer for {now - heard:.0f} s")
                wanted = work.send(ready)
        except StopIteration as end:
            result: Result = end.value
            return result


class Connections:
    """Up to `size` connections, made when they are needed, and kept for the next thread that asks.

    Readers may have one more than writers. Writers wait for locks, and the holder of the lock may have to
    read before it goes on: otherwise it could find all the connections taken.

    psycopg-pool is not used, for three measured reasons. If the server refuses, or the password is wrong, it
    only says "couldn't get a connection", and that after the whole timeout. A process that forks shares its
    connections with the child, where the pool's threads are missing. Taking a connection and giving it back
    costs 68 us, more than a query by key (40 us).
    """

    def __init__(self, address: Address, *, size: int, timeout: Timeout) -> None:
        self._address = address
        self._size = size
        self._timeout = timeout.seconds
        self._to_reach = timeout.to_reach
        self._changed = threading.Condition()
        self._idle: deque[tuple[float, Connection]] = deque()
        self._lent = 0
        self._lent_to_writers = 0
        self._closed = False
        self.were_made = False
        """Whether the server ever answered: if so, a failure may pass."""

    @contextmanager
    def lent(self, *, writing: bool) -> Iterator[Connection]:
        """A connection for this thread alone, in no transaction. Afterwards an open transaction is undone."""
        connection = self._take(writing)
        try:
            if connection is None:
                connection = self.connect()
            connection.sending = 0
            yield connection
        finally:
            self._give_back(connection, writing)

    def connect(self, within: float = math.inf) -> Connection:
        """A new connection, for the caller to close. Name servers aside, `within` bounds the seconds."""
        try:
            connection = Connection.connect(
                self._address.dsn, autocommit=True, prepare_threshold=None, **self._options(within)
            )
        except psycopg.Error as error:
            reason = " ".join(str(error).split())
        except (OSError, UnicodeError) as error:
            reason = f"{type(error).__name__}: {error}"
        else:
            connection.patience = self._timeout + SLACK
            self.were_made = True
            return connection
        if self._address.is_shown_by(reason):
            reason = "no connection could be made; the reason holds a secret, so it is not shown"
        raise CannotConnect(reason)

    def _options(self, within: float) -> dict[str, Any]:
        wanted = {
            "application_name": "vstate",
            "connect_timeout": max(2, int(min(within, self._to_reach))),
            # A server that vanished is noticed in half a minute, not in two hours.
            "keepalives_idle": 15,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": int((self._timeout + SLACK) * 1000),
        }
        if pq.version() >= 140000:
            # Of several hosts, the one that writes: a standby may not know the last commit yet.
            wanted["target_session_attrs"] = "primary"
        given = self._address.parameters
        return {
            name: value
            for name, value in wanted.items()
            if name not in given and not ((variable := _OPTIONS[name]) and os.environ.get(variable))
        }

    def _take(self, writing: bool) -> Connection | None:
        """An idle connection, or the right to make one."""
        deadline = time.monotonic() + self._timeout
        with self._changed:
            while self._lent >= self._size or (writing and self._lent_to_writers >= self._size - 1):
                if not self._changed.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                    raise StoreUnavailable(
                        f"all {self._size} connections of this store to {self._address} were in use for "
                        f"{self._timeout:g} s; retry later, or give the store more `connections`"
                    )
            if self._closed:
                raise InvalidInput(f"the store at {self._address} is closed; open it again")
            self._lent += 1
            self._lent_to_writers += writing
            found = None
            stale = []
            while self._idle and found is None:
                since, connection = self._idle.pop()
                if time.monotonic() - since < LONGEST_IDLE and not _has_input(connection):
                    found = connection
                else:
                    stale.append(connection)
        for connection in stale:
            close_quietly(connection)
        return found

    def _give_back(self, connection: Connection | None, writing: bool) -> None:
        if connection is not None and not _is_clean(connection):
            close_quietly(connection)
            connection = None
        old = None
        with self._changed:
            if connection is not None:
                if self._closed:
                    old = connection
                else:
                    self._idle.append((time.monotonic(), connection))
                    if time.monotonic() - self._idle[0][0] > LONGEST_IDLE:
                        _, old = self._idle.popleft()
            self._lent -= 1
            self._lent_to_writers -= writing
            # All waiting threads: a writer that wakes may have to leave the connection to a reader.
            self._changed.notify_all()
        if old is not None:
            close_quietly(old)

    def close(self) -> None:
        """Close the idle connections now, and the others when they come back."""
        with self._changed:
            self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        while self._idle:
            with suppress(IndexError):
                close_quietly(self._idle.pop()[1])

    def before_fork(self) -> None:
        self._changed.acquire()
        # Otherwise the child would share them, and both would talk in one conversation.
        self._close_idle()

    def after_fork(self, *, child: bool) -> None:
        if child:
            # Connections that other threads had borrowed stay theirs, in the parent.
            self._changed = threading.Condition()
            self._lent = self._lent_to_writers = 0
        else:
            self._changed.release()


def close_quietly(connection: Connection) -> None:
    with suppress(Exception):
        connection.close()


def _has_input(connection: Connection) -> bool:
    """Whether the server sent something unasked: mostly that it is going down, or that it is gone."""
    try:
        descriptor = connection.fileno()
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            return bool(poll.poll(0))
        return bool(select.select([descriptor], [], [], 0)[0])
    except (OSError, ValueError, psycopg.Error):
        return True


def _is_clean(connection: Connection) -> bool:
    """Undo an open transaction, and return whether the connection can be lent again."""
    try:
        if connection.closed or connection.pgconn.pipeline_status != pq.PipelineStatus.OFF:
            return False
        if connection.info.transaction_status in (
            pq.TransactionStatus.INTRANS,
            pq.TransactionStatus.INERROR,
        ):
            connection.execute(b"ROLLBACK")
        return connection.info.transaction_status == pq.TransactionStatus.IDLE
    except psycopg.Error:
        return False
