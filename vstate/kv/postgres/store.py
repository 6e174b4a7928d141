"""Postgres: a store in one table of a PostgreSQL database, for many machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import AbstractContextManager
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final

from vstate.arguments import check_count, check_installed, check_seconds
from vstate.backoff import Timeout
from vstate.errors import CorruptStore, InvalidInput
from vstate.kv.base import TransactionalStore, batches
from vstate.kv.stored_keys import key_of, ranges, stored_key, stored_keys

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

ROWS_PER_PAGE: Final = 1000
KEYS_PER_QUERY: Final = 10_000


class Postgres(TransactionalStore):
    """A store in one `table` of the PostgreSQL database at `dsn`: a URL, or a connection string of libpq.

    The first write makes the table. Its schema must exist; `schema.table` names one that is not on the search
    path. Any number of threads, processes and machines may use the table at once, also through a pooler that
    gives each transaction another connection (PgBouncer): a store keeps nothing there between its
    transactions. A commit is one transaction and one round trip.

    - Durability is the server's. With its `synchronous_commit` on, the default, writes are synced when the
      call returns; with `off`, a crash of the server can undo the last moments. `synchronous_standby_names`
      and `remote_apply` add other machines to the promise.
    - Reads see the last commit, so the server must be the primary: read replicas lag behind, and are refused
      unless the dsn has a `target_session_attrs` of its own.
    - `create=False` raises NotFound unless the table exists.
    - `timeout`, in seconds, is how long to wait for a connection, for other writers' locks and for a silent
      server, and how long to retry when a connection breaks; then StoreUnavailable. None: 30 seconds, and 5
      for a server that refuses connections or cannot be reached. A server that never answered is not retried.
    - `connections` is their largest number, 2 or more. Each `listening` takes one more.
    - `pool`, a psycopg_pool.ConnectionPool in place of a dsn, lends its connections instead, one for each
      call and for each `listening`, and stays open when the store is closed. A silent server ends a call
      there when the pool's own options say so: `kwargs={"tcp_user_timeout": 30000}`.

    If a connection breaks while a transaction is being committed, the store finds out whether it was: each
    transaction marks its rows, and when it wrote them. StoreUnavailable with `outcome_unknown` is raised only
    if others have overwritten all those rows, or if none is left and an expectation does not hold.

    StoreUnavailable also stands for a wrong password, missing rights, a read-only server, and too many
    connections. A full disk of the server is StoreFull. Messages name the host, the database and the table,
    and never a password. A store is pickled as its dsn, so the dsn must hold no password: leave it to
    PGPASSWORD, a passfile or a service. A store with a `pool` cannot be pickled.
    """

    ordered = True

    def __init__(
        self,
        dsn: str | None = None,
        *,
        pool: ConnectionPool[Any] | None = None,
        table: str = "vstate",
        create: bool = True,
        timeout: float | None = None,
        connections: int = 5,
    ) -> None:
        check_installed("psycopg", "a Postgres store", "postgres")
        # Late, as is every driver: these modules import it.
        from vstate.kv.postgres.connections import Address, Connections, Lent
        from vstate.kv.postgres.session import Session
        from vstate.kv.postgres.transactions import Transactions

        check_seconds("timeout", timeout, none="None for the default")
        check_count("connections", connections, 2)
        patience = Timeout.of(timeout, 30.0)
        if (pool is None) == (dsn is None):
            raise InvalidInput("a Postgres store is given a dsn or a pool=, one of the two")
        made: Connections
        if pool is None:
            self._address = Address(dsn)  # type: ignore[arg-type]  # not None, as the line above says
            made = Connections(self._address, size=connections, timeout=patience)
        else:
            self._address = Address(_conninfo(pool))
            made = Lent(self._address, pool, timeout=patience)
        self._pool = pool
        self._table = table
        self._options: dict[str, Any] = {"create": create, "timeout": timeout, "connections": connections}
        self._session = Session(self._address, table, made, create=create, timeout=patience)
        self._transactions = Transactions(self._session)
        if not create:
            try:
                self._session.read(self._session.statements.present, ([],))
            except BaseException:
                self.close()
                raise

    # Reading

    def get(self, key: str) -> bytes | None:
        rows = self._session.read(self._session.statements.get, (stored_key(key),))
        return self._value(rows[0][0]) if rows else None

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        rows = self._query_each(self._session.statements.get_many, keys)
        return {self._key_of(stored): self._value(value) for stored, value in rows}

    def __contains__(self, key: str) -> bool:
        return bool(self.present([key]))

    def present(self, keys: Iterable[str]) -> Set[str]:
        return {
            self._key_of(stored) for (stored,) in self._query_each(self._session.statements.present, keys)
        }

    def keys(self, prefix: str = "") -> Iterator[str]:
        # Each page is a query of its own: a cursor would keep a transaction open, and a connection taken, for
        # as long as the reader likes.
        for first, last in ranges(prefix):
            page = first, last, ROWS_PER_PAGE.to_bytes(8)
            while rows := self._session.read(self._session.statements.keys, page):
                yield from (self._key_of(stored) for (stored,) in rows)
                if len(rows) < ROWS_PER_PAGE:
                    break
                page = rows[-1][0] + b"\0", *page[1:]

    def _query_each(self, statement: bytes, keys: Iterable[str]) -> Iterator[tuple[Any, ...]]:
        for some in map(stored_keys, batches(keys, KEYS_PER_QUERY)):
            yield from self._session.read(statement, (some,))

    def _key_of(self, stored: bytes) -> str:
        try:
            return key_of(stored)
        except UnicodeDecodeError as error:
            raise CorruptStore(self.location, f"{stored!r} is no key") from error

    def _value(self, stored: object) -> bytes:
        if type(stored) is bytes:
            return stored
        raise CorruptStore(self.location, "a row holds no bytes")

    # Writing

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        # Rows go as arrays. COPY cannot overwrite: by way of a temporary table 50,000 rows of 300 bytes took
        # 7 us each against 5, 600 of 64 KB 350 us against 330.
        return self._transactions.write(writes, expected)

    def exclusively(self, plan: Callable[[], Mapping[str, bytes | None]]) -> bool:
        """As promised by KVStore: readers go on meanwhile, and other writers wait."""
        self._transactions.write_alone(plan)
        return True

    def listening(self, key: str) -> AbstractContextManager[Callable[[float], None]]:
        """As promised by KVStore. It hears of a change through NOTIFY, which takes a connection. Behind a
        pooler, it looks again every tenth of a second.
        """
        from vstate.kv.postgres.session import Listener  # late, as is every driver

        return Listener(self._session, stored_key(key))

    # Connections

    def close(self) -> None:
        self._session.connections.close()

    def __del__(self) -> None:
        if "_session" in self.__dict__:
            self.close()

    # Identity

    @property
    def location(self) -> str:
        return self._session.location

    def __repr__(self) -> str:
        return f"Postgres({str(self._address)!r}, table={self._table!r})"

    def __reduce__(self) -> tuple[object, ...]:
        if self._pool is not None:
            raise TypeError(
                "a Postgres store is not pickled when it was given a pool=: open it again where it is needed"
            )
        if self._address.holds_secret:
            raise TypeError(
                "a Postgres store is not pickled when its dsn holds a password, which would be in the "
                "pickle: leave the password to PGPASSWORD or a passfile, or open the store again where it "
                "is needed"
            )
        return partial(Postgres, table=self._table, **self._options), (self._address.dsn,)


def _conninfo(pool: Any) -> str:
    """Where the connections of a pool lead; InvalidInput for another object, or a pool that is too small."""
    if not (hasattr(pool, "getconn") and hasattr(pool, "conninfo")) or iscoroutinefunction(pool.getconn):
        raise InvalidInput(
            f"pool= is a psycopg_pool.ConnectionPool, not {type(pool).__module__}.{type(pool).__name__}; "
            "asyncio tasks use the store of a ConnectionPool through vstate.aio"
        )
    if pool.max_size < 2:
        raise InvalidInput("a Postgres store needs a pool with a max_size of 2 or more")
    return str(pool.conninfo() if callable(pool.conninfo) else pool.conninfo or "")
