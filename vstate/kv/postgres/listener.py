"""Listener: waits for a change of one key, on a connection of its own."""

from __future__ import annotations

import time
import uuid
from typing import Final

import psycopg
from psycopg import sql

from vstate.errors import VStateError
from vstate.kv.base import POLL_SECONDS
from vstate.kv.postgres.connections import Connection
from vstate.kv.postgres.session import Session
from vstate.kv.postgres.statements import lock_number
from vstate.kv.postgres.transactions import MANY
from vstate.kv.servers import Failed

LONGEST_WAIT: Final = 2.0
"""Seconds after which to look again anyway: a writer may die between its commit and its message."""

_PROBE: Final = "probe "
_PATIENCE: Final = 5.0
_RECONNECT_SECONDS: Final = 1.0


class Listener:
    """Hears of changes of a packed key, once it knows that it can hear.

    Behind a pooler, which gives each transaction another connection to the server, LISTEN succeeds and
    nothing is ever heard. So a probe is sent from another connection. Until it comes back, `wait` looks again
    at short intervals. Only then does the listener ask writers for messages, by a shared lock: held by a
    pooler, it would outlive the listener.
    """

    def __init__(self, session: Session, key: bytes) -> None:
        self._session = session
        self._number = f"{lock_number(key):x}"
        self._connection: Connection | None = None
        self._hears = False
        self._deaf = False
        self._expected = ""
        self._next_try = 0.0
        self._probed = 0.0
        self._connect()

    def wait(self, timeout: float) -> None:
        """Return when the key may have changed, after `timeout` seconds at most."""
        end = time.monotonic() + timeout
        if (
            self._connection is None
            and not self._deaf
            and time.monotonic() >= self._next_try
            and self._connect()
        ):
            return  # there may have been changes meanwhile
        if self._connection is None:
            time.sleep(max(0.0, min(timeout, POLL_SECONDS)))
            return
        try:
            self._listen(min(end, time.monotonic() + (LONGEST_WAIT if self._hears else POLL_SECONDS)))
        except psycopg.Error:
            self.close()
            return
        if not self._hears and time.monotonic() - self._probed > _PATIENCE:
            self._deaf = True
            self.close()

    def _listen(self, end: float) -> None:
        connection = self._connection
        assert connection is not None
        while (left := end - time.monotonic()) > 0:
            heard = {heard.payload for heard in connection.notifies(timeout=left, stop_after=1)}
            if self._expected in heard:
                connection.execute(self._session.statements.note_listener)
                self._hears = True
                return  # every change from now on is heard; the caller looks at the key once more
            if any(text == MANY or self._number in text.split() for text in heard):
                return

    def _connect(self) -> bool:
        self._next_try = time.monotonic() + _RECONNECT_SECONDS
        self._hears = False
        try:
            connections, statements = self._session.connections, self._session.statements
            self._connection = connections.connect()
            ((channel,),) = self._connection.execute(statements.channel).fetchall()
            self._connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
            self._expected = _PROBE + uuid.uuid4().hex
            self._probed = time.monotonic()
            connections.use(lambda other: other.execute(statements.notify, (self._expected,)))
            return True
        except (psycopg.Error, Failed, VStateError):
            # The caller looks at the key next, and gets the error from the store.
            self.close()
            return False

    def close(self) -> None:
        connection, self._connection = self._connection, None
        self._hears = False
        if connection is not None:
            self._session.connections.discard(connection)
