"""Session: talks with the server about one table, and repeats the calls that may be repeated."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import psycopg

from vstate.backoff import Backoff, Timeout
from vstate.errors import InvalidInput, NotFound, StoreUnavailable, UnsupportedFormat, VStateError
from vstate.kv.postgres.address import Address
from vstate.kv.postgres.connections import CannotConnect, Connection, Connections
from vstate.kv.postgres.failures import MISSING_TABLE, UNDONE, is_lost, meaning
from vstate.kv.postgres.statements import COLUMNS, CREATION, FORMAT, Statements

Result = TypeVar("Result")
Steps = Sequence[tuple[bytes, Any]]
"""Statements, each with its parameters."""

OLDEST_SERVER: Final = 140000
FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 1.0


class Attempt:
    """The progress of a call. It may be repeated for `timeout` seconds after its first failure, and less long
    for a server out of reach.
    """

    def __init__(self, timeout: Timeout) -> None:
        self.committing = False
        """Whether COMMIT may have been sent."""
        self.began = time.monotonic()
        self.unsure = False
        """Whether a connection broke after that, so that an earlier attempt may have committed."""
        self._timeout = timeout
        self._backoff: Backoff | None = None

    def pause(self, *, lost_at: float | None = None) -> bool:
        """Wait before the next attempt; False if the time is over. See `Backoff.pause`."""
        if self._backoff is None:
            seconds, to_reach = self._timeout
            self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, seconds=seconds, to_reach=to_reach)
        return self._backoff.pause(lost_at=lost_at)


class Session:
    """The conversation about `table` with the server, over a few connections."""

    def __init__(self, address: Address, table: str, *, create: bool, timeout: Timeout, size: int) -> None:
        self.statements = Statements(table)
        self.connections = Connections(address, size=size, timeout=timeout)
        self.location = f"{address}?table={table}"
        self.timeout = timeout.seconds
        self.check_interval = "0"
        """Milliseconds between the server's looks, while it waits, at whether its client is still there."""
        self.exists = False
        """Whether the table has been seen."""
        self._timeout = timeout
        self._table = table
        self._create = create

    def run(self, work: Callable[[Connection, Attempt], Result], *, writing: bool) -> Result:
        """Call `work` with a connection. Repeat it if the connection breaks or the server asks for it."""
        attempt = Attempt(self._timeout)
        handled = sys.exception()
        lost = False

        def once(connection: Connection) -> Result:
            nonlocal lost
            try:
                if writing and not self.exists:
                    self._make(connection)
                return work(connection, attempt)
            except psycopg.Error as error:
                if (interruption := _behind(error, handled)) is not None:
                    raise interruption from None
                lost = is_lost(error, connection)
                raise

        while True:
            began = time.monotonic()
            try:
                return self.connections.use(once, writing=writing)
            except CannotConnect as error:
                # A server that answered before may be restarting; one that never did has a wrong address.
                may_pass = self.connections.were_made or error.may_pass
                if not (may_pass and attempt.pause(lost_at=None if error.may_pass else began)):
                    reason = f"cannot connect to {self.location}: {error}; {error.remedy}"
                    raise StoreUnavailable(reason, outcome_unknown=attempt.unsure) from None
            except psycopg.Error as error:
                attempt.unsure = attempt.unsure or (lost and attempt.committing)
                attempt.committing = False
                again = lost or error.sqlstate in UNDONE
                if not (again and attempt.pause(lost_at=time.monotonic() if lost else None)):
                    raise self._meaning(error, attempt) from error
            except StoreUnavailable as error:
                error.outcome_unknown = error.outcome_unknown or attempt.unsure
                raise

    def read(self, statement: bytes, parameters: Any) -> list[tuple[Any, ...]]:
        """All the rows of a query; none while there is no table."""

        def work(connection: Connection, attempt: Attempt) -> list[tuple[Any, ...]]:
            if self.exists:
                return connection.execute(statement, parameters, binary=True).fetchall()
            # A look at the table goes along with the query, and so is no round trip of its own.
            cursors: list[psycopg.Cursor[tuple[Any, ...]]] = []
            try:
                _pipelined(connection, [(self.statements.look, None), (statement, parameters)], cursors)
            except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
                pass
            return cursors[1].fetchall() if self._sees(connection, cursors[0].fetchone()) else []

        return self.run(work, writing=False)

    def send(self, connection: Connection, steps: Steps) -> list[tuple[Any, ...] | None]:
        """Send the statements all at once; the first row of each, None if it gives none."""
        cursors: list[psycopg.Cursor[tuple[Any, ...]]] = []
        _pipelined(connection, steps, cursors)
        return [cursor.fetchone() if cursor.description else None for cursor in cursors]

    def _sees(self, connection: Connection, look: tuple[Any, ...] | None) -> bool:
        """Whether a look found the table. Raises if the table is not vstate's, or the server too old."""
        if connection.info.server_version < OLDEST_SERVER:
            raise StoreUnavailable(
                f"the server of {self.location} is PostgreSQL {connection.info.server_version // 10000}; "
                f"vstate needs {OLDEST_SERVER // 10000} or later: upgrade it, or use another"
            )
        assert look is not None
        columns, comment, version = look
        # A server on Windows cannot check its clients, and refuses the setting.
        self.check_interval = "0" if "Visual C++" in version or "mingw" in version else "1000"
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
        if self._sees(connection, connection.execute(statements.look).fetchone()):
            return
        connection.execute(statements.begin)
        # CREATE TABLE IF NOT EXISTS alone fails if two processes begin at the same time.
        connection.execute(b"SELECT pg_advisory_xact_lock(%s)", (CREATION,))
        if not self._sees(connection, connection.execute(statements.look).fetchone()):
            for statement in statements.create:
                connection.execute(statement)
        connection.execute(statements.commit)
        self.exists = True

    def _meaning(self, error: psycopg.Error, attempt: Attempt) -> VStateError:
        if error.sqlstate == MISSING_TABLE and not attempt.unsure:
            return StoreUnavailable(
                f"the table of {self.location} was dropped while the store was open; restore it, or open "
                "another"
            )
        return meaning(error, self.location, outcome_unknown=attempt.unsure, timeout=self.timeout)


def _behind(error: BaseException, handled: BaseException | None) -> BaseException | None:
    """The exception of another kind, Ctrl-C or a time limit, that psycopg hid: it talks on to end a pipeline,
    and raises the failure of that. `handled` is the caller's own.
    """
    while not error.__suppress_context__ and (before := error.__context__) not in (None, handled):
        assert before is not None
        if not isinstance(before, psycopg.Error):
            return before
        error = before
    return None


def _pipelined(connection: Connection, steps: Steps, cursors: list[psycopg.Cursor[tuple[Any, ...]]]) -> None:
    """Send the statements all at once, and append a cursor for each to the list."""
    failure = None
    try:
        with connection.pipeline():
            # Raised after the pipeline: psycopg logs a warning for a second error, which always follows.
            try:
                for statement, parameters in steps:
                    cursors.append(connection.execute(statement, parameters, binary=True))
            except psycopg.Error as error:
                failure = error
    except psycopg.Error:
        if failure is None:
            raise
    if failure is not None:
        raise failure
