"""Connections: where a PostgreSQL database is, how to connect to it, and when to trust a connection.

Also the connections that a caller's own pool lends.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from hashlib import blake2b
from struct import pack
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg import generators, pq
from psycopg.adapt import Transformer
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import error_from_result
from psycopg.rows import tuple_row

from vstate.backoff import Timeout
from vstate.errors import InvalidInput, StoreUnavailable
from vstate.kv.servers import Failed, Failure, Pool, check_url

Result = TypeVar("Result")

Steps = Sequence[tuple[bytes, Sequence[bytes | Sequence[bytes | None]]]]
"""Statements with $1, $2 and so on, and their parameters: binary forms, and sequences for arrays of bytea."""

Rows = list[tuple[Any, ...]]

BINARY: Final = pq.Format.BINARY
BYTEA, INT8, BOOL = 17, 20, 16
"""Types of the server, as it numbers them."""

SLACK: Final = 5.0
"""Seconds that a client waits for an answer beyond the time that the server itself waits for locks."""

SLOWEST: Final = 4 * 1024 * 1024
"""Bytes a second that even a slow server writes. It is silent while it writes a value of a gigabyte."""

_SECRETS: Final = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")

_REMEDIES: Final = {
    "password": "give the right password, in PGPASSWORD, in ~/.pgpass or in the URL",
    '(role|database) ".*" does not exist|no such (user|database)': "create it on the server, or correct the "
    "URL",
    "unsupported startup parameter": "leave the option out of the URL, or have PgBouncer pass over it, by "
    "ignore_startup_parameters",
    "pg_hba.conf": "let it in, in pg_hba.conf on the server, or correct the URL",
    "": "see that it runs, and that host and port are right, and retry",
}
"""The next step for a reason not to connect, the first that matches. There are no codes for reasons."""


class Address:
    """A URL or a connection string of libpq, shown without secrets.

    InvalidInput if it cannot be read, or if libpq would read it in another way than it looks.
    """

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        if "://" in str(dsn).partition("=")[0] or type(dsn) is not str:
            check_url(dsn, "postgresql", "postgres")
        # Neither the text nor libpq's complaint is shown: any part of them may belong to a password.
        if (parameters := _parameters(dsn)) is None:
            raise InvalidInput(
                "this PostgreSQL URL or connection string cannot be read: write "
                "postgresql://USER:PASSWORD@HOST:PORT/DATABASE, or host=HOST dbname=DATABASE and so on; in a "
                "URL, percent-encode / ? # @ [ ] : % in the password"
            )
        self.parameters = parameters

    @property
    def holds_secret(self) -> bool:
        return any(self.parameters.get(name) for name in _SECRETS)

    def is_shown_by(self, text: str) -> bool:
        """Whether the text holds a secret of this address, or of the environment."""
        secrets = [self.parameters.get(name) for name in _SECRETS] + [os.environ.get("PGPASSWORD")]
        return any(secret in text for secret in secrets if secret)

    def __str__(self) -> str:
        given = self.parameters
        host = given.get("host") or given.get("hostaddr") or os.environ.get("PGHOST") or ""
        port = f":{given['port']}" if given.get("port") else ""
        return f"postgresql://{host}{port}/{given.get('dbname') or os.environ.get('PGDATABASE') or ''}"


def _parameters(dsn: str) -> dict[str, Any] | None:
    try:
        return conninfo_to_dict(dsn)
    except (psycopg.Error, UnicodeError, ValueError):
        return None


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that gives up on a server that is silent for too long: libpq would wait forever."""

    patience = 60.0
    """Seconds of silence that a short statement may take."""

    sending = 0
    """Bytes that the server is writing, for which it gets more time."""

    names: dict[bytes, bytes] | None = None
    """The statements that the server keeps for this connection, by their names there; None if it may not."""

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


def run(connection: Connection, steps: Steps, *, prepare: bool = False) -> list[Rows]:
    """Send the statements all at once, and wait for the rows of each. Raises the first error of the server.

    With `prepare`, the server plans a statement that has parameters once for a connection of the store's own.

    psycopg's pipelines send each statement in a packet of its own, for which the server wakes up each time: a
    commit took twice as long.
    """
    pgconn, syncs = connection.pgconn, 1
    names: dict[bytes, bytes] | None = getattr(connection, "names", None) if prepare else None
    pgconn.enter_pipeline_mode()
    if names is not None and (new := {statement for statement, values in steps if values} - names.keys()):
        for setting in (_PLANNED_ONCE, _FOR_ANY_SIZE) if not names else ():
            pgconn.send_query_params(setting, None)
        for statement in new:
            names[statement] = b"vstate_" + blake2b(statement, digest_size=8).hexdigest().encode()
            pgconn.send_prepare(names[statement], statement)
        pgconn.pipeline_sync()
        syncs = 2
    for statement, parameters in steps:
        values = [value if isinstance(value, bytes) else array(value) for value in parameters]
        formats = [BINARY] * len(values)
        if names is None or not values:
            pgconn.send_query_params(statement, values, param_formats=formats, result_format=BINARY)
        else:
            pgconn.send_query_prepared(names[statement], values, formats, BINARY)
    pgconn.pipeline_sync()
    results = connection.wait(_results(pgconn, syncs))
    pgconn.exit_pipeline_mode()
    for result in results:
        if result.status == pq.ExecStatus.FATAL_ERROR:
            if syncs == 2:
                connection.names = None  # which statements the server keeps is not known
            raise error_from_result(result, connection.info.encoding)
    return [_rows(connection, result) for result in results[-len(steps) :]]


# Otherwise the server plans anew for each length of an array; and a plan for a small table reads it whole.
_PLANNED_ONCE: Final = b"SET plan_cache_mode = force_generic_plan"
_FOR_ANY_SIZE: Final = b"SET enable_seqscan = off"


def array(values: Sequence[bytes | None], oid: int = BYTEA) -> bytes:
    """The binary form of an array of this type."""
    parts = [pack("!iiIii", 1, 1, oid, len(values), 1)]
    parts += [_NULL if value is None else pack("!i", len(value)) + value for value in values]
    return b"".join(parts)


_NULL: Final = pack("!i", -1)


def _results(pgconn: pq.abc.PGconn, syncs: int) -> Generator[Any, Any, list[pq.abc.PGresult]]:
    """The results of all statements up to the last of so many syncs."""
    yield from generators.send(pgconn)
    found: list[pq.abc.PGresult] = []
    while syncs:
        result = yield from generators.fetch(pgconn)
        if result is not None and result.status == pq.ExecStatus.PIPELINE_SYNC:
            syncs -= 1
        elif result is not None:
            found.append(result)
        elif pgconn.status == pq.ConnStatus.BAD:
            raise psycopg.OperationalError("the connection is lost")
    return found


def _rows(connection: Connection, result: pq.abc.PGresult) -> Rows:
    if not result.ntuples:
        return []
    loader = Transformer(connection)
    loader.set_pgresult(result)
    return loader.load_rows(0, result.ntuples, tuple)


class Connections(Pool[Connection]):
    """The connections to the database at `address`. A failure to connect is Failed."""

    def __init__(self, address: Address, *, size: int, timeout: Timeout) -> None:
        super().__init__(str(address), size=size, timeout=timeout.seconds, option="connections")
        self._address = address
        self._to_reach = timeout.to_reach
        self._reached = False

    def make(self) -> Connection:
        began = time.monotonic()
        try:
            connection = Connection.connect(
                self._address.dsn, autocommit=True, prepare_threshold=None, **self._options()
            )
        except (psycopg.Error, OSError, UnicodeError) as error:
            reason = " ".join(str(error).split())
        else:
            connection.patience = self._timeout + SLACK
            connection.names = {}
            self._reached = True
            return connection
        raise Failed(self._failure(reason, began))

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

    def _failure(self, reason: str, began: float) -> Failure:
        if self._address.is_shown_by(reason):
            reason = "no connection could be made (the reason holds a secret, so it is not shown)"
        # There is no code for it: only English is recognised.
        starts = (
            re.search("database system is (starting up|in recovery|not yet accepting)", reason) is not None
        )
        remedy = next(text for pattern, text in _REMEDIES.items() if re.search(pattern, reason))
        return Failure(
            StoreUnavailable(f"cannot connect to {self._address}: {reason}; {remedy}"),
            # A server that answered before may be restarting; one that never did has a wrong address.
            passing=self._reached or starts,
            lost_at=None if starts else began,
        )

    def _options(self) -> dict[str, Any]:
        """The options of libpq with another default here, unless the address or the environment sets them."""
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
        variables = {option.keyword.decode(): option.envvar for option in pq.Conninfo.get_defaults()}
        return {
            name: value
            for name, value in wanted.items()
            if name not in self._address.parameters
            and not ((variable := variables.get(name)) and os.environ.get(variable.decode()))
        }


_OURS: Final = {
    "autocommit": True,
    "row_factory": tuple_row,
    "cursor_factory": psycopg.Cursor,
    "prepare_threshold": None,
}
"""The settings of a connection that a store needs."""


class Lent(Connections):
    """The connections of the caller's `pool`, a psycopg_pool.ConnectionPool. Each has the settings of the
    store while a call uses it, and the caller's again when it goes back.
    """

    def __init__(self, address: Address, pool: Any, *, timeout: Timeout) -> None:
        super().__init__(address, size=pool.max_size, timeout=timeout)
        self._option = "max_size"
        self._pool = pool
        self._theirs: WeakKeyDictionary[Connection, dict[str, Any]] = WeakKeyDictionary()

    def make(self) -> Connection:
        connection: Connection | None = None
        try:
            connection = lent = self._pool.getconn(self._timeout)
            self._theirs[lent] = {name: getattr(lent, name) for name in _OURS}
            for name, value in _OURS.items():
                setattr(lent, name, value)
        except psycopg.Error as error:  # the pool's own errors are such ones, too
            if connection is not None:  # it is broken
                self.discard(connection)
            failure = StoreUnavailable(
                f"the ConnectionPool of {self._address} gave no connection: {error}; see that it is open and "
                "large enough for all its users, and that the server runs, and retry"
            )
            raise Failed(Failure(failure, passing=connection is not None)) from None
        return connection

    def discard(self, connection: Connection) -> None:
        super().discard(connection)
        self._return(connection)

    def _keep(self, connection: Connection) -> None:
        for name, value in self._theirs[connection].items():
            setattr(connection, name, value)
        self._return(connection)

    def _return(self, connection: Connection) -> None:
        with suppress(Exception):
            self._pool.putconn(connection)
