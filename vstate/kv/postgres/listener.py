"""Listener: waits for a change of one key."""

from __future__ import annotations

import time
import uuid
from typing import Final

import psycopg
from psycopg import sql

from vstate.kv import servers
from vstate.kv.base import POLL_SECONDS
from vstate.kv.postgres.connections import Connection
from vstate.kv.postgres.session import Session
from vstate.kv.postgres.statements import lock_number
from vstate.kv.postgres.transactions import MANY

LONGEST_WAIT: Final = 2.0
"""Seconds after which to look again anyway: a writer may die between its commit and its message."""

_PROBE: Final = "probe "
_PATIENCE: Final = 5.0


class Listener(servers.Listener[Connection]):
    """Hears of changes of a stored key, once it knows that it can hear.

    Behind a pooler, which gives each transaction another connection to the server, LISTEN succeeds and
    nothing is ever heard. So a probe is sent from another connection. Until it comes back, `wait` looks again
    at short intervals; if it never does, the listener is deaf. When it is back, the listener asks writers for
    messages, by a shared lock: held by a pooler, that lock would outlive the listener.
    """

    troubles = (psycopg.Error, *servers.Listener.troubles)

    def __init__(self, session: Session, key: bytes) -> None:
        self._session = session
        self._number = f"{lock_number(key):x}"
        self._hears = False
        self._expected = ""
        self._probed = 0.0
        super().__init__(session.connections)

    def begin(self, connection: Connection) -> None:
        statements = self._session.statements
        self._hears = False
        ((channel,),) = connection.execute(statements.channel).fetchall()
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        self._expected = _PROBE + uuid.uuid4().hex
        self._probed = time.monotonic()
        self._session.connections.use(lambda other: other.execute(statements.notify, (self._expected,)))

    def listen(self, connection: Connection, end: float) -> None:
        end = min(end, time.monotonic() + (LONGEST_WAIT if self._hears else POLL_SECONDS))
        while (left := end - time.monotonic()) > 0:
            heard = {heard.payload for heard in connection.notifies(timeout=left, stop_after=1)}
            if self._expected in heard:
                connection.execute(self._session.statements.note_listener)
                self._hears = True
                return  # every change from now on is heard; the caller looks at the key once more
            if any(text == MANY or self._number in text.split() for text in heard):
                return
        self.deaf = not self._hears and time.monotonic() - self._probed > _PATIENCE
