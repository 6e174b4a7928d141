"""Connections: how to connect to PostgreSQL, and when to trust a connection."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Generator
from contextlib import suppress
from typing import Any, Final, TypeVar

import psycopg
from psycopg import pq

from vstate.backoff import Timeout
from vstate.kv.pool import Pool
from vstate.kv.postgres.address import Address

Result = TypeVar("Result")

SLACK: Final = 5.0
"""Seconds that a client waits for an answer beyond the time that the server itself waits for locks."""

SLOWEST: Final = 4 * 1024 * 1024
"""Bytes a second that even a slow server writes. It is silent while it writes a value of a gigabyte."""

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

    def __del__(self, *_: Any) -> None:
        """No warning: a connection that an exception took from its call is closed as garbage."""

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


class Connections(Pool[Connection]):
    """The connections to the database at `address`. A failure to connect is a CannotConnect."""

    def __init__(self, address: Address, *, size: int, timeout: Timeout) -> None:
        super().__init__(str(address), size=size, timeout=timeout.seconds, option="connections")
        self._address = address
        self._to_reach = timeout.to_reach
        self.were_made = False
        """Whether the server ever answered: if so, a failure may pass."""

    def make(self) -> Connection:
        try:
            connection = Connection.connect(
                self._address.dsn, autocommit=True, prepare_threshold=None, **self._options()
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

    def is_clean(self, connection: Connection) -> bool:
        try:
            if connection.info.transaction_status == pq.TransactionStatus.INTRANS:
                connection.execute(b"ROLLBACK")
            return connection.info.transaction_status == pq.TransactionStatus.IDLE
        except psycopg.Error:
            return False

    def discard(self, connection: Connection) -> None:
        with suppress(Exception):
            connection.close()

    def descriptor(self, connection: Connection) -> int:
        return connection.fileno()

    def _options(self) -> dict[str, Any]:
        wanted = {
            "application_name": "vstate",
            "connect_timeout": max(2, int(self._to_reach)),
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
