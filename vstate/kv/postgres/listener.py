"""Listener: waits for a change of one key."""

from __future__ import annotations

import time
from typing import Final

import psycopg
from psycopg import sql

from vstate.kv import servers
from vstate.kv.postgres.connections import Connection
from vstate.kv.postgres.session import Session
from vstate.kv.postgres.statements import lock_number
from vstate.kv.postgres.transactions import MANY

LONGEST_WAIT: Final = 2.0
"""Seconds after which to look again anyway: a writer may die between its commit and its message."""


class Listener(servers.Listener[Connection]):
    """Hears of changes of a stored key, and asks writers for messages by a shared lock while it does.

    It is deaf behind a pooler, which may give each transaction another connection to the server. There it
    asks for nothing: LISTEN and the lock would stay behind on connections that serve others, and their
    clients would get the messages.
    """

    troubles = (psycopg.Error, *servers.Listener.troubles)

    def __init__(self, session: Session, key: bytes) -> None:
        self._session = session
        self._number = f"{lock_number(key):x}"
        super().__init__(session.connections)

    def begin(self, connection: Connection) -> None:
        statements = self._session.statements
        ((channel, process),) = connection.execute(statements.channel).fetchall()
        # A pooler tells its clients numbers of its own.
        self.deaf = process != connection.info.backend_pid
        if not self.deaf:
            connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
            connection.execute(statements.note_listener)

    def listen(self, connection: Connection, end: float) -> None:
        end = min(end, time.monotonic() + LONGEST_WAIT)
        while (left := end - time.monotonic()) > 0:
            heard = {heard.payload for heard in connection.notifies(timeout=left, stop_after=1)}
            if any(text == MANY or self._number in text.split() for text in heard):
                return
