"""Postgres: the store contract, and real servers, processes, kills and cut connections."""

import asyncio
import copy
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pgbouncer import POOL_SIZE, PgBouncer
from postgres_server import PASSWORD, UNSYNCED, PostgresServer
from protocol_proxies import Pooler, at_commit
from proxy import FAR, Proxy
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from running import all_at_once

from vstate import aio
from vstate.errors import InvalidInput, NotFound, StoreFull, StoreUnavailable, UnsupportedFormat
from vstate.kv.base import room_prefix
from vstate.kv.postgres import Postgres
from vstate.kv.postgres.transactions import MOST_LOCKS, STATEMENT_BYTES, STATEMENT_ROWS
from vstate.repo import Repository
from vstate.testing import KVStoreTests

pytestmark = pytest.mark.slow

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

Start = Callable[..., PostgresServer]
Sql = psycopg.Connection[Any]


class TestPostgres(KVStoreTests):
    @pytest.fixture
    def store(self, postgres_dsn: str, postgres_table: str) -> Iterator[Postgres]:
        with Postgres(postgres_dsn, table=postgres_table) as store:
            yield store

    @pytest.fixture
    def reopen(self, postgres_dsn: str, postgres_table: str) -> Callable[[], Postgres]:
        return lambda: Postgres(postgres_dsn, table=postgres_table)


@pytest.fixture
def store(postgres_dsn: str, postgres_table: str) -> Iterator[Postgres]:
    with Postgres(postgres_dsn, table=postgres_table) as store:
        yield store


@pytest.fixture
def sql(postgres_dsn: str) -> Iterator[Sql]:
    """A connection of the test's own."""
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def proxy(postgres_dsn: str) -> Iterator[Proxy]:
    with Proxy.before(postgres_dsn) as proxy:
        yield proxy


@pytest.fixture
def cut(postgres_dsn: str, postgres_table: str, proxy: Proxy) -> Iterator[Postgres]:
    """The same table as `store`, by way of the proxy, which may cut the connections."""
    with Postgres(proxy.through(postgres_dsn), table=postgres_table) as cut:
        yield cut


def _port(dsn: str) -> int:
    return int(psycopg.conninfo.conninfo_to_dict(dsn)["port"])


def _object(number: int) -> str:
    return f"o/{number * 0x9E3779B97F4A7C15 % 2**256:064x}"


def _number(value: bytes | None) -> int:
    return int(value or b"0")


def _until_one_waits(sql: Sql) -> None:
    """Wait until a transaction waits for a lock."""
    while sql.execute("SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'").rowcount == 0:
        time.sleep(0.01)


# Opening, and addresses in messages


def test_the_first_write_makes_the_table(postgres_dsn: str, postgres_table: str, sql: Sql) -> None:
    """Opening and reading create no table, and an absent table reads as an empty store."""

    def tables() -> int:
        return sql.execute("SELECT count(*) FROM pg_class WHERE relname = %s", (postgres_table,)).fetchone()[
            0
        ]  # type: ignore[index]

    with Postgres(postgres_dsn, table=postgres_table) as store:
        assert (store.get("key"), list(store.keys()), list(store.items())) == (None, [], [])
        assert (store.get_many(["a", "b"]), store.present(["a"])) == ({}, set())
        assert store.transact({}, {"key": None}) is True
        with store.listening("key") as wait:
            wait(0.01)
        assert tables() == 0
        store.set("key", b"value")
        assert tables() == 1


def test_without_create_an_absent_table_is_not_found(
    postgres_dsn: str, postgres_table: str, sql: Sql
) -> None:
    """NotFound comes at once, and nothing is made."""
    with pytest.raises(NotFound, match="no such table"):
        Postgres(postgres_dsn, table=postgres_table, create=False)
    Postgres(postgres_dsn, table=postgres_table).set("key", b"value")
    with Postgres(postgres_dsn, table=postgres_table, create=False) as store:
        assert store.get("key") == b"value"


def test_many_may_make_the_table_at_once(postgres_dsn: str, postgres_table: str) -> None:
    """Handles that begin at the same moment make one table, and none fails."""
    with ExitStack() as stack:
        names = [postgres_table] * 4 + [f"public.{postgres_table}"] * 3
        stores = [stack.enter_context(Postgres(postgres_dsn, table=name)) for name in names]
        for store in stores:
            assert store.get("warm") is None
        all_at_once(*(partial(store.set, f"key {n}", b"1") for n, store in enumerate(stores)))
        assert len(list(stores[0].keys())) == 7


def test_two_tables_are_apart(postgres_dsn: str, postgres_table: str, store: Postgres, sql: Sql) -> None:
    """Also in two schemas; with the schema before its name a table is the same as without."""
    sql.execute(f"CREATE SCHEMA {postgres_table}")
    with (
        Postgres(postgres_dsn, table=f"{postgres_table}_2") as second,
        Postgres(postgres_dsn, table=f"{postgres_table}.{postgres_table}") as third,
        Postgres(postgres_dsn, table=f"public.{postgres_table}") as same,
    ):
        stores = (store, second, third)
        for number, each in enumerate(stores):
            assert each.compare_and_swap("key", None, b"%d" % number)
        assert [list(each.items()) for each in stores] == [[("key", b"%d" % n)] for n in range(3)]
        second.delete("key")
        assert same.get("key") == b"0"
        assert same.compare_and_swap("key", b"0", b"new")
        assert store.get("key") == b"new"


@pytest.mark.parametrize(
    "table",
    ["", "a.b.c", "a b", 'a"; DROP TABLE b; --', "a'b", "1a", "a;b", "ä", "a\n", "x" * 64, ".a", "a.", "%s"]
    + [None, 7],
)  # fmt: skip
def test_a_wrong_table_is_refused(table: Any) -> None:
    """A wrong table name raises InvalidInput, before any connection."""
    with pytest.raises(InvalidInput, match="not a table's name"):
        Postgres("postgresql://127.0.0.1:1/db", table=table)


def test_names_that_mean_something_are_quoted(postgres_dsn: str, sql: Sql) -> None:
    """A keyword of SQL is a table's name like any other, and capitals count."""
    for table in ("select", "Select"):
        sql.execute(f'DROP TABLE IF EXISTS "{table}"')
        with Postgres(postgres_dsn, table=table) as store:
            assert store.transact({"key": b"value", _object(1): b"object"}, {"key": None})
            assert dict(store.items()) == {"key": b"value", _object(1): b"object"}
        sql.execute(f'DROP TABLE "{table}"')


@pytest.mark.parametrize(
    "options",
    [{"timeout": 0}, {"timeout": float("inf")}, {"timeout": "1"}, {"timeout": True}, {"connections": 1}]
    + [{"connections": 2.5}, {"connections": None}, {"dsn": 7}, {"dsn": b"postgresql://host/db"}],
)
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    """An option that means nothing raises InvalidInput, before any connection is made."""
    with pytest.raises(InvalidInput):
        Postgres(**({"dsn": "postgresql://127.0.0.1:1/db"} | options))


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://user:hunt@er2@host/db",
        "postgresql://user:hunt/er2@host/db",
        "postgresql://user:12/er2@host/db",
        "postgresql://user:hunter2@host:hunter2/db",
        "postgresql://user:hunter2@host:99999/db",
        "postgresql://user:hunter2@[host/db",
        "postgresql://user:hunter2%zz@host/db",
        "postgresql://user@host/db?hunter2=1",
        "postgresql+psycopg://user:hunter2@host/db",
        "mysql://user:hunter2@host/db",
        "user:hunter2@host/db",
        "hunter2",
        "host=x password='hunter2",
        "host=x hunter2=1",
        "",
    ][:-1],
)
def test_an_unreadable_address_shows_nothing_of_itself(dsn: str) -> None:
    """It raises InvalidInput with nothing of the text in it, or behind it."""
    with pytest.raises(InvalidInput) as caught:
        Postgres(dsn)
    shown = "".join(traceback.format_exception(caught.value)[-1:]) + repr(vars(caught.value))
    assert "er2" not in shown
    assert "hunt" not in shown
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_nothing_shows_the_password(postgres_dsn: str, postgres_table: str) -> None:
    """No repr, location or error has the password. Host, database and table are there."""
    store = Postgres(postgres_dsn, table=postgres_table)
    port = _port(postgres_dsn)
    assert repr(store) == f"Postgres('postgresql://127.0.0.1:{port}/postgres', table={postgres_table!r})"
    assert store.location == f"postgresql://127.0.0.1:{port}/postgres?table={postgres_table}"
    wrong = postgres_dsn.replace("//postgres:", "//nosuch:")
    for dsn in (wrong, postgres_dsn.replace("hunter2", "hunter3"), postgres_dsn + "x"):
        with pytest.raises(StoreUnavailable, match=r"cannot connect to postgresql://127\.0\.0\.1") as caught:
            Postgres(dsn, table=postgres_table).set("key", b"value")
        text = "".join(traceback.format_exception(caught.value))
        assert PASSWORD not in text
        assert "%25%2F%40" not in text
        assert caught.value.outcome_unknown is False


def test_a_wrong_password(postgres_dsn: str) -> None:
    """A wrong password has its own error, at once, apart from a server that is down."""
    began = time.monotonic()
    with pytest.raises(
        StoreUnavailable,
        match=r'password authentication failed for user "postgres"; give the right .*PGPASSWORD',
    ):
        Postgres(postgres_dsn.replace("hunter2", "hunter3")).get("key")
    with pytest.raises(StoreUnavailable, match=r"Connection refused.*; see that it runs"):
        Postgres("postgresql://postgres@127.0.0.1:1/postgres").get("key")
    with pytest.raises(StoreUnavailable, match='database "nosuch" does not exist; create it'):
        Postgres(postgres_dsn.rpartition("/")[0] + "/nosuch").get("key")
    assert time.monotonic() - began < 15  # and not the timeout of one of them


def test_pickling_needs_an_address_without_a_password(
    postgres_dsn: str, postgres_table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address with a password cannot be pickled.

    Without one, a copy opens the same table with the same options.
    """
    with Postgres(postgres_dsn, table=postgres_table) as store, pytest.raises(TypeError, match="PGPASSWORD"):
        pickle.dumps(store)
    if psycopg.pq.version() >= 180000:
        # A value derived from the password opens the server too.
        with Postgres("postgresql://host/db?scram_client_key=c2VjcmV0") as store, pytest.raises(TypeError):
            pickle.dumps(store)
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    dsn = f"postgresql://postgres@127.0.0.1:{_port(postgres_dsn)}/postgres"
    with Postgres(dsn, table=postgres_table, timeout=20, connections=3) as store:
        store.set("key", b"value")
        with copy.copy(store) as other:
            assert other.get("key") == b"value"
            assert pickle.dumps(other) == pickle.dumps(store)
        assert PASSWORD.encode() not in pickle.dumps(store)
        assert b"vstate.kv.postgres\x94\x8c\x08Postgres" in pickle.dumps(store, protocol=4)


# Other programs' tables, rights, limits


@pytest.mark.parametrize(
    ("sql_before", "error", "words"),
    [
        ("CREATE TABLE {0} (id int, key text)", InvalidInput, "another program"),
        ("CREATE TABLE {0} (key bytea); COMMENT ON TABLE {0} IS 'vstate 99'", UnsupportedFormat, "99"),
        ("DROP TABLE {0}", StoreUnavailable, "was dropped"),
    ],
)
def test_a_table_that_is_not_its_own(
    store: Postgres, postgres_table: str, sql: Sql, sql_before: str, error: type[Exception], words: str
) -> None:
    """A table of another program or a later version is refused, and a dropped one is not made again."""
    if "DROP" in sql_before:
        store.set("key", b"value")
    sql.execute(sql_before.format(postgres_table))  # type: ignore[arg-type]  # no literal
    for call in (lambda: store.get("key"), lambda: store.set("key", b""), lambda: store.exclusively(dict)):
        with pytest.raises(error, match=words):
            call()


def test_missing_rights_are_named(postgres_dsn: str, postgres_table: str, store: Postgres, sql: Sql) -> None:
    """A role without the right gets an error that names the right. A role that may only read, reads."""
    role = f"r{postgres_table}"
    sql.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    dsn = postgres_dsn.replace(f"postgres:{postgres_dsn.split('//postgres:')[1].split('@')[0]}", f"{role}:x")
    with Postgres(dsn, table=postgres_table) as theirs:
        with pytest.raises(StoreUnavailable, match=r"permission denied for schema public.*CREATE there"):
            theirs.set("key", b"value")
        store.set("key", b"value")
        with pytest.raises(StoreUnavailable, match=r"permission denied for table .*SELECT, INSERT"):
            theirs.get("key")
        sql.execute(f"GRANT SELECT ON {postgres_table} TO {role}")
        assert theirs.get("key") == b"value"
        with pytest.raises(StoreUnavailable, match="permission denied for table") as caught:
            theirs.compare_and_swap("key", b"value", b"new")
        assert caught.value.outcome_unknown is False
        with theirs.listening("key") as wait:
            wait(0.01)
    assert store.get("key") == b"value"


def test_a_missing_schema(postgres_dsn: str) -> None:
    """The table must be created by hand, and the message says so."""
    with Postgres(postgres_dsn, table="nosuch.table") as store:
        assert store.get("key") is None
        with pytest.raises(InvalidInput, match="CREATE SCHEMA"):
            store.set("key", b"value")


def _with_setting(dsn: str, setting: str) -> str:
    """The address of the same database, with another default of the server."""
    return f"{dsn}?options=-c%20default_transaction_{setting.replace('=', '%3D')}"


def test_a_read_only_database(postgres_dsn: str, postgres_table: str, store: Postgres) -> None:
    """Reading works and writing raises."""
    store.set("key", b"value")
    with Postgres(_with_setting(postgres_dsn, "read_only=on"), table=postgres_table) as looking:
        for _ in range(2):
            assert looking.get("key") == b"value"
            with pytest.raises(StoreUnavailable, match="read-only"):
                looking.set("key", b"new")


def test_isolation_is_not_left_to_the_database(postgres_dsn: str, postgres_table: str) -> None:
    """With transactions serialisable by default, nothing fails and nothing is lost."""
    with Postgres(_with_setting(postgres_dsn, "isolation=serializable"), table=postgres_table) as store:
        all_at_once(*[lambda: _increment(store, "counter", 20)] * 4)
        assert store.get("counter") == b"80"


def test_too_many_connections(start_postgres: Start) -> None:
    """A server without free connections is reported at the first use. Later the store waits for one."""
    server = start_postgres(max_connections="8", superuser_reserved_connections="0", max_wal_senders="0")
    with Postgres(server.dsn, timeout=20) as store, ExitStack() as taken:
        store.set("key", b"value")
        held = [taken.enter_context(psycopg.connect(server.dsn)) for _ in range(7)]
        with pytest.raises(StoreUnavailable, match="too many clients"):
            Postgres(server.dsn).get("key")
        threading.Timer(0.5, held[0].close).start()
        # The plan has the store's only connection.
        assert store.exclusively(lambda: {"key": (store.get("key") or b"") + b"!"})
        assert store.get("key") == b"value!"


def test_a_full_disk_loses_nothing(start_postgres: Start, tmp_path: Path) -> None:
    """StoreFull: no part of the transaction is stored, and the store goes on once there is room."""
    server = start_postgres()
    place = server.directory / "small"
    place.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=6m,mode=777", "tmpfs", str(place)], capture_output=True
        ).returncode
    ):
        pytest.skip("needs the right to mount a tmpfs")
    try:
        os.chown(place, *(server.directory.stat().st_uid, server.directory.stat().st_gid))
        with psycopg.connect(server.dsn, autocommit=True) as sql, Postgres(server.dsn) as store:
            sql.execute(f"CREATE TABLESPACE small LOCATION '{place}'")
            sql.execute("ALTER DATABASE postgres SET default_tablespace = 'small'")
            assert store.transact({"ref": b"1", _object(0): os.urandom(100_000)}, {"ref": None})
            ballast = place / "ballast"
            ballast.write_bytes(bytes(4_000_000))
            with pytest.raises(StoreFull, match=r"disk .* is full"):
                store.transact({"ref": b"2", _object(1): os.urandom(5_000_000)}, {"ref": b"1"})
            assert store.get("ref") == b"1"
            assert list(store.keys("o/")) == [_object(0)]
            ballast.unlink()
            assert store.transact({"ref": b"2", _object(1): os.urandom(500_000)}, {"ref": b"1"})
        server.stop()
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("writes", [{}, {"key": b"new"}])
def test_what_is_expected_is_bytes(store: Postgres, writes: dict[str, bytes | None]) -> None:
    """A str is refused as a value, even where the server would convert it."""
    store.set("key", b"text")
    with pytest.raises(TypeError):
        store.transact(writes, {"key": "text"})  # type: ignore[dict-item]
    assert store.transact(writes, {"key": bytearray(b"text")})


# Rows


def test_what_is_unchanged_is_not_written(store: Postgres, postgres_table: str, sql: Sql) -> None:
    """Setting the same bytes again leaves no dead row behind."""

    def versions() -> set[Any]:
        return set(sql.execute(f"SELECT key, xmin, ctid FROM {postgres_table}").fetchall())

    contents = {_object(number): b"x" * 3000 for number in range(10)} | {"r/heads/main": b"1"}
    store.set_many(contents)
    before = versions()
    store.set_many(contents)
    assert store.transact(contents, {"r/heads/main": b"1"})
    assert versions() == before
    store.set(_object(1), b"y")
    assert len(versions() - before) == 1


def test_objects_take_33_bytes_of_key_and_no_mark(store: Postgres, postgres_table: str, sql: Sql) -> None:
    """Only rows other than objects record their transaction. The server does not compress values again."""
    rows = {_object(1): bytes(100_000), "ref": b"1", "": b"empty", room_prefix(7) + "ref": b"a"}
    assert store.transact({**rows, room_prefix(0) + _object(1): b"object"}, {"ref": None})
    found = sql.execute(
        f"SELECT octet_length(key), swap IS NULL, pg_column_size(value) FROM {postgres_table} ORDER BY 1"
    ).fetchall()
    assert found == [(0, False, 6), (3, False, 2), (12, False, 2), (33, True, 100_000), (42, True, 7)]


@pytest.mark.parametrize("expecting", [False, True])
def test_a_large_change_is_one_transaction(store: Postgres, expecting: bool) -> None:
    """Several statements' worth of rows: all of them, or none if the expectation does not hold."""
    store.set("ref", b"1")
    objects = {_object(number): os.urandom(STATEMENT_BYTES // 3) for number in range(8)}
    many = {f"n/{number:05}": b"%d" % number for number in range(STATEMENT_ROWS + 10)}
    expected = {"ref": b"1"} if expecting else {}
    if expecting:
        assert store.transact({**objects, **many, "ref": b"2"}, {"ref": b"0"}) is False
        assert list(store.keys("o/")) == []
    assert store.transact({**objects, **many, "ref": b"2"}, expected) is True
    assert dict(store.items()) == {**objects, **many, "ref": b"2"}
    assert store.transact({**dict.fromkeys([*objects, *many]), "ref": b"3"}, {"ref": b"2"})
    assert dict(store.items()) == {"ref": b"3"}


def test_a_large_change_that_loses_halfway_writes_nothing(store: Postgres, sql: Sql) -> None:
    """The expectation holds at the first look, and fails once the locks are held."""
    store.set("ref", b"1")
    objects: dict[str, bytes | None] = {_object(n): os.urandom(STATEMENT_BYTES // 2) for n in range(4)}
    results = []
    entered = threading.Event()

    def plan() -> dict[str, bytes | None]:
        entered.set()
        _until_one_waits(sql)
        return {"ref": b"theirs"}

    def lose() -> None:
        entered.wait()
        results.append(store.transact({**objects, "ref": b"2"}, {"ref": b"1"}))

    all_at_once(lambda: store.exclusively(plan), lose)
    assert results == [False]
    assert dict(store.items()) == {"ref": b"theirs"}


def test_items_come_in_pages_by_size(store: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long values end a page early, and none is left out or comes twice."""
    monkeypatch.setattr("vstate.kv.postgres.store.BYTES_PER_PAGE", 10_000)
    monkeypatch.setattr("vstate.kv.postgres.store.ROWS_PER_PAGE", 7)
    contents = {f"n/{n:03}": os.urandom((n * 977) % 9_000) for n in range(100)} | {"n/x": bytes(50_000)}
    store.set_many(contents)
    listed = list(store.items("n/"))
    assert dict(listed) == contents
    assert len(listed) == len(contents)


# Round trips


def test_round_trips_of_a_plan_and_of_the_first_use(
    postgres_dsn: str, postgres_table: str, proxy: Proxy
) -> None:
    """A plan is two round trips. A first call is six: five are for the handshake with a password."""

    def trips(call: Callable[[], object]) -> int:
        before = proxy.round_trips
        call()
        return proxy.round_trips - before

    proxy.latency = FAR
    with Postgres(proxy.through(postgres_dsn), table=postgres_table) as store:
        store.set("ref", b"1")
        assert trips(lambda: store.exclusively(lambda: {"a": b"2"})) == 2
    with Postgres(proxy.through(postgres_dsn), table=postgres_table) as store:
        assert trips(lambda: store.get("ref")) <= 6
        assert trips(lambda: store.get("ref")) == 1


# Many writers


def _increment(store: Postgres, key: str, times: int) -> None:
    for _ in range(times):
        while True:
            old = store.get(key)
            if store.compare_and_swap(key, old, b"%d" % (_number(old) + 1)):
                break


@pytest.mark.parametrize("absent", [False, True])
def test_swaps_of_an_object_are_apart_from_plain_writes(store: Postgres, absent: bool) -> None:
    """Objects have no locks by key, so a transaction that expects an object keeps all others out."""
    for _ in range(20):
        store.delete(_object(1))
        if not absent:
            store.set(_object(1), b"old")
        results: list[bool] = []
        expected = None if absent else b"old"
        all_at_once(
            lambda: results.append(store.compare_and_swap(_object(1), expected, b"swapped")),  # noqa: B023
            lambda: store.set(_object(1), b"set"),
        )
        # Either it came first and was overwritten, or it came too late.
        assert store.get(_object(1)) == b"set"


def test_opposite_orders_do_not_deadlock(store: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions that swap the same keys in opposite orders follow one another."""
    monkeypatch.setattr(
        "vstate.kv.postgres.session.UNDONE", ()
    )  # one that the server undoes is an error here
    names = [f"r/{number}" for number in range(12)]
    store.set_many(dict.fromkeys(names, b"0"))

    def work(order: int) -> None:
        for _ in range(20):
            while True:
                old = store.get_many(names)
                new = dict.fromkeys(names, b"%d" % (_number(old[names[0]]) + 1))
                if store.transact(dict([*new.items()][::order]), dict([*old.items()][::order])):
                    break

    all_at_once(lambda: work(1), lambda: work(-1), lambda: work(1), lambda: work(-1))
    assert set(store.get_many(names).values()) == {b"80"}


def test_writers_of_the_same_objects_do_not_deadlock(
    store: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transactions that share only objects do not deadlock, in opposite orders either."""
    monkeypatch.setattr("vstate.kv.postgres.session.UNDONE", ())
    start = threading.Barrier(2)

    def work(order: int) -> None:
        for number in range(15):
            objects = [(_object(1000 * number + n), b"x" * 200) for n in range(800)]
            start.wait()
            assert store.transact({f"r/{order}": b"%d" % number, **dict(objects[::order])}, {})

    all_at_once(lambda: work(1), lambda: work(-1))
    assert len(list(store.keys("o/"))) == 15 * 800


def test_a_deadlock_with_another_program_is_tried_again(
    postgres_dsn: str, postgres_table: str, sql: Sql
) -> None:
    """The server ends the transaction of one of the two; a store's is carried out afterwards."""
    store = Postgres(f"{postgres_dsn}?options=-c%20deadlock_timeout%3D3s", table=postgres_table)
    store.set_many({"a": b"1", "b": b"1"})
    # The store's transaction finds it out first, and not before there is one.
    sql.execute("SET deadlock_timeout = '60s'")
    with sql.transaction():
        sql.execute(f"UPDATE {postgres_table} SET value = '2' WHERE key = 'b'")
        writer = threading.Thread(target=lambda: store.transact({"a": b"3", "b": b"3"}, {"a": b"1"}))
        writer.start()
        with psycopg.connect(postgres_dsn, autocommit=True) as looking:
            _until_one_waits(looking)  # it has written a, and waits for b
        sql.execute(f"UPDATE {postgres_table} SET value = '2' WHERE key = 'a'")
    writer.join()
    assert store.get("b") in (b"2", b"3")
    assert store.get("a") in (b"2", b"3")
    assert store.get("a") == store.get("b")
    store.close()


def test_more_keys_than_locks(store: Postgres) -> None:
    """Of very many keys at a time the table is locked as a whole, which keeps the same promises."""
    names = [f"n/{number:05}" for number in range(MOST_LOCKS * 3)]
    store.set_many(dict.fromkeys(names, b"0"))

    def swap_all() -> None:
        for _ in range(10):
            while True:
                old = store.get_many(names)
                new = dict.fromkeys(names, b"%d" % (_number(old[names[0]]) + 1))
                if store.transact(new, old):
                    break

    def swap_one() -> None:
        _increment(store, "other", 30)

    all_at_once(swap_all, swap_all, swap_one, swap_one)
    assert set(store.get_many(names).values()) == {b"20"}
    assert store.get("other") == b"60"


def test_exclusively_lets_readers_and_vacuum_go_on(store: Postgres, postgres_table: str, sql: Sql) -> None:
    """A reader does not wait for the plan, and the plan does not wait for a VACUUM, which can take hours."""
    store.set("key", b"old")
    seen = []

    def plan() -> dict[str, bytes | None]:
        all_at_once(lambda: seen.append(store.get("key")))
        return {"key": b"new"}

    with sql.transaction():
        sql.execute(f"LOCK TABLE {postgres_table} IN SHARE UPDATE EXCLUSIVE MODE")  # which is VACUUM's
        store.exclusively(plan)
    assert seen == [b"old"]
    assert store.get("key") == b"new"


FORKS = """
import os, signal, sys, time
from vstate.kv.postgres import Postgres
store = Postgres(sys.argv[1], table=sys.argv[2])
store.set("key", b"1")

def plan():
    heard, tell = os.pipe()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        os.write(tell, b"1")
        time.sleep(100)
        os._exit(0)
    os.read(heard, 1)
    os.kill(os.getpid(), signal.SIGKILL)

store.exclusively(plan)
"""


@needs_fork
def test_the_child_of_a_killed_process_keeps_no_lock(postgres_dsn: str, postgres_table: str) -> None:
    """The process is killed in a transaction. Its child has no copy of the socket, so the server notices."""
    command = [sys.executable, "-c", FORKS, postgres_dsn, postgres_table]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    child = int(program.stdout.readline())
    try:
        program.wait(60)
        with Postgres(postgres_dsn, table=postgres_table, timeout=20) as store:
            store.set("key", b"2")
            assert store.get("key") == b"2"
    finally:
        os.kill(child, signal.SIGKILL)
        program.communicate()


@needs_fork
def test_a_child_that_is_forked_in_a_plan(store: Postgres) -> None:
    """It reads on a connection of its own, not in the transaction of its parent."""
    store.set("key", b"value")

    def plan() -> dict[str, bytes | None]:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = int(store.get("key") != b"value")
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        return {"key": (store.get("key") or b"") + b"!"}

    assert store.exclusively(plan)
    assert store.get("key") == b"value!"


# Faults


def test_an_exception_that_the_caller_handles_is_not_raised_again(
    store: Postgres, postgres_table: str, sql: Sql
) -> None:
    """A call in an `except` block raises its own failure."""
    store.set("key", b"value")
    sql.execute(f"DROP TABLE {postgres_table}")
    try:
        raise ValueError
    except ValueError:
        for call in (lambda: store.get("key"), lambda: store.set("key", b"")):
            with pytest.raises(StoreUnavailable, match="was dropped"):
                call()


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("times", [1, 3])
def test_a_cut_while_committing_is_found_out(cut: Postgres, proxy: Proxy, done: bool, times: int) -> None:
    """If the connection is cut before or after the server commits, the swap happens once and returns True."""
    cut.set("counter", b"1")
    time.sleep(0.05)  # only a row that is visibly older than the call proves that the call has not written it
    at_commit(proxy, done=done, times=times)
    writes: dict[str, bytes | None] = {_object(1): b"object", "counter": b"2", "reflog": b"line"}
    assert cut.transact(writes, {"counter": b"1"}) is True
    assert dict(cut.items()) == writes


def _meanwhile(proxy: Proxy, call: Callable[[], object]) -> None:
    """Cut the next connection after its commit, and make the call before its client knows."""
    at_commit(proxy, done=True)
    inner = proxy.watch

    def watch(side: str, data: bytes) -> str:
        verdict = inner(side, data)
        if verdict == "cut":
            call()
        return verdict

    proxy.watch = watch


@pytest.mark.parametrize(
    ("theirs", "beside", "known"),
    [(b"theirs", {}, False), (b"theirs", {"line": b"x"}, True), (b"1", {}, False)],
    ids=["overwritten", "overwritten, beside a row that is not", "undone"],
)
def test_a_cut_swap_that_others_overwrote(
    cut: Postgres, proxy: Proxy, store: Postgres, theirs: bytes, beside: dict[str, bytes], known: bool
) -> None:
    """Only another row of the swap tells the outcome. If the old value is back, repeating would undo that."""
    cut.set("ref", b"1")
    _meanwhile(proxy, lambda: store.compare_and_swap("ref", b"2", theirs))
    if known:
        assert cut.transact({"ref": b"2", **beside}, {"ref": b"1"}) is True
    else:
        with pytest.raises(StoreUnavailable, match="may or may not have happened") as caught:
            cut.transact({"ref": b"2", **beside}, {"ref": b"1"})
        assert caught.value.outcome_unknown is True
    assert store.get("ref") == theirs


@pytest.mark.parametrize("trouble", ["locked", "dropped", "closed"])
def test_whatever_comes_after_a_cut_nothing_is_denied(
    postgres_dsn: str, postgres_table: str, proxy: Proxy, store: Postgres, sql: Sql, trouble: str
) -> None:
    """The transaction was committed and the next attempt fails for another reason: the outcome stays
    unknown.
    """
    with Postgres(proxy.through(postgres_dsn), table=postgres_table, timeout=0.5) as cut:
        cut.set("ref", b"1")
        over, locked = threading.Event(), threading.Event()

        def plan() -> dict[str, bytes | None]:
            locked.set()
            over.wait(60)
            return {}

        holder = threading.Thread(target=store.exclusively, args=(plan,))

        def trouble_comes() -> None:
            if trouble == "locked":
                holder.start()
                assert locked.wait(60)
            elif trouble == "closed":
                cut.close()
            else:
                sql.execute(f"ALTER TABLE {postgres_table} RENAME TO {postgres_table}_away")

        _meanwhile(proxy, trouble_comes)
        try:
            with pytest.raises(StoreUnavailable) as caught:
                cut.compare_and_swap("ref", b"1", b"2")
        finally:
            over.set()
            if holder.ident:
                holder.join()
        assert caught.value.outcome_unknown is True
        assert "nothing was written" not in str(caught.value)


def test_a_cut_of_a_lost_race_is_not_taken_for_a_win(cut: Postgres, proxy: Proxy) -> None:
    """A lost answer may have been "no". A row that is older than the call proves it."""
    cut.set("ref", b"theirs")
    at_commit(proxy, done=True)
    assert cut.compare_and_swap("ref", b"old", b"mine") is False
    assert cut.get("ref") == b"theirs"


@pytest.mark.parametrize("done", [False, True])
def test_a_cut_while_a_plan_is_committed(cut: Postgres, proxy: Proxy, store: Postgres, done: bool) -> None:
    """The transaction happens once: a committed one is recognised, and one that never began is repeated."""
    cut.set_many({"counter": b"1", _object(1): b"garbage"})
    at_commit(proxy, done=done)
    assert cut.exclusively(lambda: {"counter": b"%d" % (_number(cut.get("counter")) + 1)}) is True
    assert cut.get("counter") == b"2"
    at_commit(proxy, done=done)
    assert cut.exclusively(lambda: dict.fromkeys(cut.keys("o/"))) is True
    assert list(store.keys()) == ["counter"]


def test_a_cut_while_a_plan_reads(cut: Postgres, proxy: Proxy) -> None:
    """The plan reads on the connection of its transaction. If that breaks, all of it begins anew."""
    cut.set("counter", b"1")
    calls = []

    def plan() -> dict[str, bytes | None]:
        calls.append(1)
        left = [True] if len(calls) == 1 else []
        proxy.watch = lambda side, data: "cut" if side == "client" and left and left.pop() else "pass"
        return {"counter": b"%d" % (_number(cut.get("counter")) + 1)}

    assert cut.exclusively(plan) is True
    assert len(calls) == 2
    assert cut.get("counter") == b"2"


def test_a_plan_goes_on_after_a_read_that_failed(postgres_dsn: str, postgres_table: str, sql: Sql) -> None:
    """A read that the server refuses ends neither the transaction nor its locks."""
    with Postgres(postgres_dsn, table=postgres_table, timeout=0.5) as store:
        store.set("key", b"value")

        def plan() -> dict[str, bytes | None]:
            with sql.transaction():
                sql.execute(f"LOCK TABLE {postgres_table} IN ACCESS EXCLUSIVE MODE")
                with pytest.raises(StoreUnavailable, match="locked"):
                    store.get("key")
            return {"key": (store.get("key") or b"") + b"!"}

        assert store.exclusively(plan) is True
        assert store.get("key") == b"value!"


@pytest.mark.parametrize("done", [False, True])
def test_a_cut_of_plain_writes_is_made_good(cut: Postgres, proxy: Proxy, done: bool) -> None:
    """Idempotent writes and reads are repeated."""
    cut.set("a", b"0")
    contents = {_object(1): b"object", "b": b"2"}
    for write in (lambda: cut.set("a", b"1"), lambda: cut.set_many(contents), lambda: cut.delete("a")):
        at_commit(proxy, done=done)
        write()
    assert dict(cut.items()) == contents
    for side in ("client", "server"):
        left = [True]
        proxy.watch = lambda s, data, side=side, left=left: (
            "cut" if s == side and left and left.pop() else "pass"
        )  # type: ignore[misc]  # mypy infers no lambda
        assert cut.get("b") == b"2"
        assert left == []


def test_connections_that_died_while_idle_are_not_noticed(
    postgres_dsn: str, postgres_table: str, store: Postgres, sql: Sql
) -> None:
    """A write that finds its connection closed takes another, and knows that nothing was sent."""
    with Postgres(postgres_dsn + "?application_name=idle", table=postgres_table) as idle:
        for number in range(3):
            old = b"%d" % number if number else None
            assert idle.compare_and_swap("key", old, b"%d" % (number + 1))
            ended = (
                "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity "
                "WHERE application_name = 'idle'"
            )
            assert sql.execute(ended).fetchone() == (1,)
        # The connection was closed, and the expectation does not hold: the answer is still certain.
        store.set("key", b"theirs")
        assert idle.compare_and_swap("key", b"3", b"4") is False


# Listening


def _waiting(wait: Callable[[float], None], condition: Callable[[], bool], seconds: float) -> float:
    """Wait as a watcher does; how long it took until the condition held."""
    began = time.monotonic()
    while not condition() and time.monotonic() - began < seconds:
        wait(seconds)
    return time.monotonic() - began


def _hearing(wait: Callable[[float], None]) -> None:
    """Wait until the listener hears, and so sleeps for long if nothing happens."""
    listener = wait.__self__  # type: ignore[attr-defined]
    for _ in range(600):
        if listener._connection is not None:
            return
        wait(0.1)
    raise AssertionError("it never was")


@pytest.fixture
def _rarely_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the listener from polling, so a change is found only if it is heard, on a slow machine too."""
    monkeypatch.setattr("vstate.kv.postgres.listener.LONGEST_WAIT", 60.0)


def test_nobody_is_told_if_nobody_listens(
    postgres_dsn: str, postgres_table: str, proxy: Proxy, store: Postgres, sql: Sql
) -> None:
    """A commit then is one round trip; while somebody listens, it is two."""
    proxy.latency = FAR
    with Postgres(proxy.through(postgres_dsn), table=postgres_table) as writer:
        writer.set("key", b"0")
        for listened in (False, True, False):
            with ExitStack() as stack:
                if listened:
                    _hearing(stack.enter_context(store.listening("key")))
                before = proxy.round_trips
                writer.set("key", b"%d" % proxy.round_trips)
                assert proxy.round_trips - before == 1 + listened
            # The server takes a moment to notice that the listener has left.
            held = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'"
            while sql.execute(held).rowcount:
                time.sleep(0.01)


@pytest.mark.usefixtures("_rarely_looking")
def test_a_listener_that_is_cut_off_looks_and_listens_again(
    postgres_dsn: str, postgres_table: str, proxy: Proxy, store: Postgres
) -> None:
    """The listener returns when it is connected again, because it may have missed changes, and then hears
    as before.
    """
    store.set("key", b"old")
    with Postgres(proxy.through(postgres_dsn), table=postgres_table) as cut, cut.listening("key") as wait:
        _hearing(wait)
        proxy.watch = lambda side, data: "cut"
        proxy.refusing = True
        store.set("unrelated", b"1")
        for _ in range(5):
            wait(0.1)
        store.set("key", b"new")
        proxy.refusing = False
        proxy.watch = lambda side, data: "pass"
        assert _waiting(wait, lambda: cut.get("key") == b"new", 30) < 25
        _hearing(wait)
        timer = threading.Timer(0.2, store.set, ["key", b"newer"])
        timer.start()
        assert _waiting(wait, lambda: cut.get("key") == b"newer", 30) < 25
        timer.join()


# Behind a pooler


@pytest.fixture(params=["a double", "PgBouncer"])
def pooled(request: pytest.FixtureRequest, start_postgres: Start) -> Iterator[str]:
    """The address of a database by way of a pooler that gives each transaction another connection."""
    server = start_postgres()
    with psycopg.connect(server.dsn, autocommit=True) as sql:
        sql.execute("CREATE ROLE pooled LOGIN")
        sql.execute("GRANT CREATE ON SCHEMA public TO pooled")
    dsn = server.dsn_of("pooled")
    if request.param == "PgBouncer":
        with PgBouncer(server.port) as bouncer:
            yield bouncer.through(dsn)
    else:
        with Pooler(server.port) as pooler:
            yield pooler.through(dsn)
            assert min(pooler.transactions) > 5


@pytest.fixture(scope="module")
def bounced(postgres_template: Path) -> Iterator[tuple[PgBouncer, str]]:
    """PgBouncer before a server, and the address of a database by way of it."""
    server = PostgresServer(postgres_template, **UNSYNCED)
    try:
        with psycopg.connect(server.dsn, autocommit=True) as sql:
            sql.execute("CREATE ROLE pooled LOGIN")
            sql.execute("GRANT CREATE ON SCHEMA public TO pooled")
        with PgBouncer(server.port) as bouncer:
            yield bouncer, bouncer.through(server.dsn_of("pooled"))
    finally:
        server.stop()


class TestBehindPgBouncer(KVStoreTests):
    """All promises hold if each transaction goes to another connection of the server, shared with others."""

    @pytest.fixture
    def store(self, bounced: tuple[PgBouncer, str], postgres_table: str) -> Iterator[Postgres]:
        with Postgres(bounced[1], table=postgres_table) as store:
            yield store

    @pytest.fixture
    def reopen(self, bounced: tuple[PgBouncer, str], postgres_table: str) -> Callable[[], Postgres]:
        return lambda: Postgres(bounced[1], table=postgres_table)

    def test_nothing_stays_behind(self, bounced: tuple[PgBouncer, str], store: Postgres) -> None:
        """The connections of the server, which others use too, keep no setting, lock, channel or table."""
        _, dsn = bounced
        store.set_many({_object(n): b"object" for n in range(100)} | {"key": b"0"})
        with store.listening("key") as wait:
            all_at_once(*[lambda: _increment(store, "key", 10)] * 4)
            wait(0.01)
        store.exclusively(lambda: {"key": store.get("key")})
        with pytest.raises(ZeroDivisionError):
            store.exclusively(lambda: 1 / 0)  # type: ignore[arg-type,return-value]
        with ExitStack() as stack:
            # As many transactions at once as there are connections to the server: one on each.
            others = [stack.enter_context(psycopg.connect(dsn)) for _ in range(POOL_SIZE)]
            seen = {each.execute("SELECT pg_backend_pid()").fetchone() for each in others}
            assert len(seen) == POOL_SIZE
            for each in others:
                for left in LEFT:
                    assert each.execute(left).fetchall() == [], left  # type: ignore[arg-type]

    def test_a_server_that_ends_behind_it(self, bounced: tuple[PgBouncer, str], store: Postgres) -> None:
        """PgBouncer loses its connections: a swap takes others, and happens once."""
        bouncer, _ = bounced
        store.set("key", b"0")
        for number in range(5):
            bouncer.kill_servers()
            assert store.compare_and_swap("key", b"%d" % number, b"%d" % (number + 1)) is True

    def test_what_pgbouncer_refuses(self, bounced: tuple[PgBouncer, str]) -> None:
        """An error of PgBouncer says what to change."""
        _, dsn = bounced
        with Postgres(f"{dsn}?options=-cwork_mem%3D8MB") as store:
            with pytest.raises(
                StoreUnavailable, match=r"unsupported startup parameter.*ignore_startup_param"
            ):
                store.get("key")
        with Postgres(dsn.replace("/postgres", "/nowhere")) as store:
            with pytest.raises(StoreUnavailable, match=r"nowhere.*create it"):
                store.get("key")


LEFT = (
    "SELECT pg_listening_channels()",
    "SELECT * FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
    "SELECT name FROM pg_prepared_statements",
    "SELECT oid FROM pg_class WHERE relpersistence = 't'",
    # PgBouncer sets the others to those of each client.
    "SELECT name, setting FROM pg_settings WHERE source = 'session' AND name NOT IN ('application_name', "
    "'client_encoding', 'DateStyle', 'TimeZone', 'standard_conforming_strings', 'IntervalStyle')",
)
"""What could stay behind on a connection."""


def test_behind_a_pooler(pooled: str) -> None:
    """Each transaction goes to another connection of the server, and all promises hold."""
    with Postgres(pooled) as store, Postgres(pooled) as other:
        contents = {_object(n): os.urandom(500) for n in range(50)} | {
            f"n/{n}": b"%d" % n for n in range(100)
        }
        store.set_many(contents)
        assert dict(other.items()) == contents
        assert other.present(contents) == contents.keys()
        all_at_once(*[lambda: _increment(store, "counter", 10), lambda: _increment(other, "counter", 10)] * 2)
        assert store.get("counter") == b"40"

        def plan() -> dict[str, bytes | None]:
            return {"counter": b"%d" % (_number(store.get("counter")) + 1), **dict.fromkeys(store.keys("o/"))}

        all_at_once(*[lambda: store.exclusively(plan), lambda: _increment(other, "counter", 5)] * 3)
        assert store.get("counter") == b"58"
        assert list(store.keys("o/")) == []


def test_behind_a_pooler_listening_looks_again(pooled: str) -> None:
    """LISTEN succeeds there but hears nothing, so the store finds a change by polling, and soon."""
    with Postgres(pooled) as store, Postgres(pooled) as other:
        store.set("key", b"old")
        with store.listening("key") as wait:
            for _ in range(5):
                before = time.monotonic()
                wait(30)
                assert time.monotonic() - before < 15
            timer = threading.Timer(0.2, other.set, ["key", b"new"])
            timer.start()
            assert _waiting(wait, lambda: store.get("key") == b"new", 30) < 25
            timer.join()


# A pool of the caller's


@pytest.fixture
def pool(postgres_dsn: str) -> Iterator[ConnectionPool[Any]]:
    """A pool that other code uses too, with settings of its own."""
    kwargs = {"row_factory": dict_row, "prepare_threshold": 0, "application_name": "shared"}
    with ConnectionPool(postgres_dsn, kwargs=kwargs, min_size=1, max_size=3, timeout=60) as pool:
        yield pool


class TestWithAPool(KVStoreTests):
    @pytest.fixture
    def store(self, pool: ConnectionPool[Any], postgres_table: str) -> Iterator[Postgres]:
        with Postgres(pool=pool, table=postgres_table) as store:
            yield store

    @pytest.fixture
    def reopen(self, pool: ConnectionPool[Any], postgres_table: str) -> Callable[[], Postgres]:
        return lambda: Postgres(pool=pool, table=postgres_table)


def test_threads_and_tasks_share_one_pool(pool: ConnectionPool[Any], postgres_table: str, sql: Sql) -> None:
    """Threads, asyncio tasks and other code take their connections from one pool, and each finds its own
    settings.
    """
    over, most = threading.Event(), 0

    def beside() -> None:
        nonlocal most
        while not over.is_set():
            with pool.connection() as connection:
                assert connection.autocommit is False
                assert connection.execute("SELECT 1 AS one").fetchone() == {"one": 1}
            asked = "SELECT FROM pg_stat_activity WHERE application_name = 'shared'"
            most = max(most, sql.execute(asked).rowcount)

    async def commits(branch: str) -> None:
        async with aio.Versioned(store, branch=branch) as state:
            for number in range(5):
                await state.set("n", number)
                await state.commit(str(number))

    async def tasks() -> None:
        await asyncio.gather(*[commits(f"task-{n}") for n in range(6)])

    with Postgres(pool=pool, table=postgres_table) as store:
        other = threading.Thread(target=beside)
        other.start()
        try:
            all_at_once(*[lambda: _increment(store, "counter", 10)] * 4, lambda: asyncio.run(tasks()))
        finally:
            over.set()
            other.join()
        assert store.get("counter") == b"40"
        assert len(Repository(store).branches()) == 6
    assert 1 < most <= 3
    with pool.connection() as connection:  # it is not the store's to close
        assert connection.execute("SELECT 1 AS one").fetchone() == {"one": 1}


def test_a_pool_whose_connections_break(pool: ConnectionPool[Any], postgres_table: str, sql: Sql) -> None:
    """A broken connection goes back too, and the pool makes another in its place."""
    with Postgres(pool=pool, table=postgres_table) as store:
        for number in range(5):
            old = b"%d" % number if number else None
            assert store.compare_and_swap("key", old, b"%d" % (number + 1)) is True
            shared = "SELECT pid FROM pg_stat_activity WHERE application_name = 'shared'"
            sql.execute(f"SELECT pg_terminate_backend(pid, 5000) FROM ({shared}) AS found")


def test_a_pool_that_cannot_be_used(pool: ConnectionPool[Any], postgres_dsn: str) -> None:
    """A pool beside a dsn, of another kind, too small, exhausted or closed is an error that says so."""
    wrong: list[dict[str, Any]] = [{}, {"dsn": postgres_dsn, "pool": pool}, {"pool": object()}]
    wrong.append({"pool": AsyncConnectionPool(postgres_dsn, open=False)})
    wrong.append({"pool": ConnectionPool(postgres_dsn, open=False, min_size=0, max_size=1)})
    for options in wrong:
        with pytest.raises(InvalidInput, match="pool"):
            Postgres(**options)
    with Postgres(pool=pool, timeout=0.3) as store:
        with pytest.raises(TypeError, match="pool="):
            pickle.dumps(store)
        with ExitStack() as stack:
            for _ in range(3):
                stack.enter_context(pool.connection())
            with pytest.raises(StoreUnavailable, match="large enough") as caught:
                store.get("key")
            assert not caught.value.outcome_unknown
        assert store.get("key") is None
        pool.close()
        with pytest.raises(StoreUnavailable, match="is open"):
            store.get("key")
