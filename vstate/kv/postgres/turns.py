"""Whose turn it is among the processes that use a store on PostgreSQL: an advisory lock on a connection of its own."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Final

import psycopg

from vstate.kv.postgres.connections import CannotConnect, Connection, close_quietly
from vstate.kv.postgres.session import Session
from vstate.kv.turns import PATIENCE, Turns

HELD_SECONDS: Final = 5.0
"""After so long the server ends the turn of one who does not give it back, and the connection with it."""


class PostgresTurns(Turns):
    """A lock of a transaction, in which nothing else happens: so it works through a pooler too.

    It is not lent by the store's own connections, which those who have their turn need.
    """

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self._idle: deque[Connection] = deque(maxlen=1)
        self._closed = False

    def take(self, name: str) -> tuple[Connection | None, bool]:
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
            self._end(connection)
            return None, True
        except BaseException:
            close_quietly(connection)
            raise
        return connection, row is None or not row[0]

    def give(self, name: str, taken: Connection) -> None:
        self._end(taken)

    def troubles(self) -> tuple[type[Exception], ...]:
        return psycopg.Error, CannotConnect

    def close(self) -> None:
        """Close what is idle now; what is taken is closed when it is given back."""
        self._closed = True
        super().close()
        self.close_idle()

    def close_idle(self) -> None:
        with suppress(IndexError):
            close_quietly(self._idle.pop())

    def _connection(self) -> Connection:
        with suppress(IndexError):
            return self._idle.pop()
        return self._session.connections.connect(within=PATIENCE)

    def _end(self, connection: Connection) -> None:
        try:
            connection.execute(b"ROLLBACK")
        except BaseException as error:
            # Mostly the turn took too long, and the server has ended it; the next one has a new connection.
            close_quietly(connection)
            if not isinstance(error, psycopg.OperationalError):
                raise
            return
        if self._idle or self._closed:
            close_quietly(connection)
        else:
            self._idle.append(connection)
