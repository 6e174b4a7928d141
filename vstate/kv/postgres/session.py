"""Session: talks with the server about one table, repeats the calls that may be repeated, hears of changes,
and says what PostgreSQL's errors mean.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import psycopg
from psycopg import sql

from vstate.backoff import Timeout
from vstate.errors import (
    CorruptStore,
    InvalidInput,
    NotFound,
    StoreFull,
    StoreUnavailable,
    UnsupportedFormat,
    VStateError,
)
from vstate.forks import renew_in_child
from vstate.kv import servers
from vstate.kv.files import NO_ROOM
from vstate.kv.postgres.connections import Address, Connection, Connections, Rows, Steps, run
from vstate.kv.postgres.statements import COLUMNS, CREATION, FORMAT, MANY, Statements, lock_number
from vstate.kv.servers import Attempts, Failed, Failure

Result = TypeVar("Result")

OLDEST_SERVER: Final = 140000

LONGEST_WAIT: Final = 2.0
"""Seconds after which a listener looks again anyway: a writer may die between its commit and its message."""

UNDONE: Final = ("40001", "40P01")
"""Serialisation failures and deadlocks: the server undid the transaction, and asks for another try."""

FORGOTTEN: Final = ("26000", "42P05")
"""Another session has the statements that this one prepared, or the other way round: there is a pooler."""

_GOING_OR_COMING: Final = ("57P01", "57P02", "57P03", "57P05")

_MEANINGS: Final[dict[str, tuple[type[VStateError], str]]] = {
    "25006": (
        StoreUnavailable,
        "is read-only now ({said}); nothing was written: connect to the primary server, or allow writing",
    ),
    "3F000": (InvalidInput, "has no schema ({said}); make it first, with CREATE SCHEMA, or choose another"),
    "42501": (
        StoreUnavailable,
        "cannot be used: {said}; grant the role of this connection SELECT, INSERT, UPDATE and DELETE on the "
        "table, USAGE on its schema, and CREATE there for a new one",
    ),
    "42P01": (
        StoreUnavailable,
        "has no table any more, it was dropped while the store was open; restore it, or open another",
    ),
    "55P03": (
        StoreUnavailable,
        "was locked by other writers for {timeout:g} s; nothing was written: retry later",
    ),
}
"""The states that a user can do something about."""


class Session:
    """The conversation about `table` with the server, over a few connections."""

    def __init__(
        self, address: Address, table: str, connections: Connections, *, create: bool, timeout: Timeout
    ) -> None:
        self.statements = Statements(table)
        self.connections = connections
        self.location = f"{address}?table={table}"
        self.timeout = timeout.seconds
        self.check_interval = b"0"
        """Milliseconds between the server's looks, while it waits, at whether its client is still there."""
        self.exists = False
        """Whether the table has been seen."""
        self._is_direct = False
        """Whether no pooler is seen, so that the server may keep statements for a connection."""
        self._held = threading.local()
        self._timeout = timeout
        self._table = table
        self._create = create
        renew_in_child(self, Session._renew)

    def _renew(self) -> None:
        """In a forked child: the transaction is the parent's."""
        self._held = threading.local()

    def run(self, work: Callable[[Connection, Attempts], Result], *, writing: bool) -> Result:
        """Call `work` with a connection. Repeat it if the connection breaks or the server asks for it."""
        attempts = Attempts(self._timeout)

        def once(connection: Connection) -> Result:
            try:
                if writing and not self.exists:
                    self._make(connection)
                return work(connection, attempts)
            except psycopg.Error as error:
                raise Failed(self._failure(error, connection, attempts.sending)) from None

        return attempts.repeat(lambda: self.connections.use(once, writing=writing))

    def read(self, statement: bytes, parameters: Any) -> Rows:
        """All the rows of a query; none while there is no table."""
        if (held := getattr(self._held, "connection", None)) is not None:
            return self._read_within(held, statement, parameters)

        def work(connection: Connection, attempts: Attempts) -> Rows:
            if self.exists:
                return self.send(connection, [(statement, parameters)])[0]
            try:
                # A look at the table goes along with the query, and so is no round trip of its own.
                look, rows = run(connection, [(self.statements.look, ()), (statement, parameters)])
            except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
                (look,), rows = run(connection, [(self.statements.look, ())]), []
            return rows if self._sees(connection, look[0]) else []

        return self.run(work, writing=False)

    @contextmanager
    def holding(self, connection: Connection) -> Iterator[None]:
        """Within the with block, this thread reads on the connection, in its transaction.

        A read on another one could wait in vain: writers that wait for the locks of this transaction may have
        all connections that a pooler, or the pool of this store, has.
        """
        self._held.connection = connection
        try:
            yield
        finally:
            self._held.connection = None

    def _read_within(self, connection: Connection, statement: bytes, parameters: Any) -> Rows:
        # The transaction goes on if the read fails: a row that is damaged on the server can be replaced.
        steps: Steps = [(b"SAVEPOINT vstate", ()), (statement, parameters), (b"RELEASE vstate", ())]
        try:
            return run(connection, steps)[1]
        except psycopg.Error as error:
            failure = self._failure(error, connection, False)
            if failure.passing:
                raise Failed(failure) from None
            connection.execute(b"ROLLBACK TO vstate")
            raise failure.error from None

    def send(self, connection: Connection, steps: Steps) -> list[Rows]:
        """Send the statements all at once; the rows of each."""
        return run(connection, steps, prepare=self._is_direct)

    def _sees(self, connection: Connection, look: tuple[Any, ...]) -> bool:
        """Whether a look found the table. Raises if the table is not vstate's, or the server too old."""
        if connection.info.server_version < OLDEST_SERVER:
            raise StoreUnavailable(
                f"the server of {self.location} is PostgreSQL {connection.info.server_version // 10000}; "
                f"vstate needs {OLDEST_SERVER // 10000} or later: upgrade it, or use another"
            )
        columns, comment, version, process = look
        self._is_direct = process == connection.info.backend_pid  # a pooler tells a number of its own
        # A server on Windows cannot check its clients, and refuses the setting.
        self.check_interval = b"0" if "Visual C++" in version or "mingw" in version else b"1000"
        if columns is None:
            if not self._create:
                raise NotFound(f"no store at {self.location}: there is no such table", name=self._table)
            return False
        if set(columns) >= COLUMNS:
            self.exists = True
            return True
        if re.fullmatch("vstate [0-9]+", comment or "") and comment != f"vstate {FORMAT}":
            raise UnsupportedFormat(f"{comment.removeprefix('vstate ')} (of its table)", FORMAT)
        raise InvalidInput(f"the table of {self.location} is of another program; choose another name for it")

    def _make(self, connection: Connection) -> None:
        """Make the table if it is missing and no other process is faster."""
        statements = self.statements
        if self._sees(connection, self._look(connection)):
            return
        connection.execute(statements.begin)
        # CREATE TABLE IF NOT EXISTS alone fails if two processes begin at the same time.
        connection.execute(b"SELECT pg_advisory_xact_lock(%s)", (CREATION,))
        if not self._sees(connection, self._look(connection)):
            for statement in statements.create:
                connection.execute(statement)
        connection.execute(statements.commit)
        self.exists = True

    def _look(self, connection: Connection) -> tuple[Any, ...]:
        ((look,),) = run(connection, [(self.statements.look, ())])
        return look

    def _failure(self, error: psycopg.Error, connection: Connection, sending: bool) -> Failure:
        state = error.sqlstate or ""
        lost = connection.closed or state.startswith("08") or state in _GOING_OR_COMING
        self._is_direct = self._is_direct and state not in FORGOTTEN
        return Failure(
            self._meaning(error, state),
            passing=lost or state in UNDONE or state in FORGOTTEN,
            sent=(lost or state in FORGOTTEN) and sending,
            lost_at=time.monotonic() if lost else None,
        )

    def _meaning(self, error: psycopg.Error, state: str) -> VStateError:
        """The error of vstate for an error of the driver."""
        said = " ".join(str(error.diag.message_primary or error).split()) or type(error).__name__
        # The server has no state for a quota and for a limit on files: it quotes the system's words.
        if state == "53100" or any(os.strerror(number) in said for number in NO_ROOM):
            return StoreFull(
                f"the disk of the server of {self.location} is full ({said}); nothing was written: make room "
                "and retry"
            )
        if state in _MEANINGS:
            kind, words = _MEANINGS[state]
            return kind(f"{self.location} {words.format(said=said, timeout=self.timeout)}")
        if state in ("54000", "22023", "53400", "22P03") or isinstance(error, psycopg.DataError):
            return InvalidInput(f"{self.location} does not take this value: {said}")
        if state in ("XX001", "XX002", "58P01"):
            return CorruptStore(self.location, said)
        if state in ("42703", "42804", "42883", "42P10"):
            return CorruptStore(self.location, f"the table is not as vstate made it: {said}")
        return StoreUnavailable(f"{self.location} failed: {said}; retry later")


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
