"""Postgres: the store contract, and real servers, processes, kills and cut connections."""

import asyncio
import copy
import os
import pickle
import signal
import subprocess
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
from running import Fork, all_at_once

from vstate import aio
from vstate.errors import InvalidInput, NotFound, StoreFull, StoreUnavailable, UnsupportedFormat
from vstate.kv.base import room_prefix
from vstate.kv.postgres import Postgres
from vstate.kv.postgres.transactions import MOST_LOCKS, STATEMENT_BYTES, STATEMENT_ROWS
from vstate.patterns.journal import Journal, Records
from vstate.repo import Repository
from vstate.testing import KVStoreTests

pytestmark = pytest.mark.slow


Start = Callable[..., PostgresServer]
Sql = psycopg.Connection[Any]


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
    """Opening and reading create no table, and an absent one reads as an empty store; without `create` it is
    NotFound. Handles that begin at the same moment make one table.
    """
    with ExitStack() as stack:
        names = [postgres_table] * 4 + [f"public.{postgres_table}"] * 3
        stores = [stack.enter_context(Postgres(postgres_dsn, table=name)) for name in names]
        for store in stores:
            assert (store.get("key"), list(store.keys()), list(store.items())) == (None, [], [])
            assert (store.get_many(["a", "b"]), store.present(["a"])) == ({}, set())
            assert store.transact({}, {"key": None}) is True
            with store.listening("key") as wait:
                wait(0.01)
        with pytest.raises(NotFound, match="no such table"):
            Postgres(postgres_dsn, table=postgres_table, create=False)
        assert sql.execute("SELECT FROM pg_class WHERE relname = %s", (postgres_table,)).fetchall() == []
        all_at_once(*(partial(store.set, f"key {n}", b"1") for n, store in enumerate(stores)))
        with Postgres(postgres_dsn, table=postgres_table, create=False) as store:
            assert len(list(store.keys())) == 7


def test_tables_are_apart(postgres_dsn: str, postgres_table: str, sql: Sql) -> None:
    """Also in two schemas; with the schema before its name a table is the same as without. A keyword of SQL
    is a table's name like any other, and capitals count.
    """
    sql.execute(f"CREATE SCHEMA {postgres_table}")
    sql.execute('DROP TABLE IF EXISTS "select", "Select"')
    names = [postgres_table, f"{postgres_table}.{postgres_table}", "select", "Select"]
    with ExitStack() as stack:
        stores = [stack.enter_context(Postgres(postgres_dsn, table=name)) for name in names]
        same = stack.enter_context(Postgres(postgres_dsn, table=f"public.{postgres_table}"))
        for number, each in enumerate(stores):
            assert each.transact({"key": b"%d" % number, _object(1): b"object"}, {"key": None})
        assert [each.get("key") for each in stores] == [b"0", b"1", b"2", b"3"]
        stores[1].delete("key")
        assert same.compare_and_swap("key", b"0", b"new")
        assert stores[0].get("key") == b"new"
    sql.execute('DROP TABLE "select", "Select"')


TABLES = ["", "a.b.c", "a b", 'a"; DROP TABLE b; --', "a'b", "1a", "a;b", "ä", "a\n", "x" * 64, ".a", "a."]
OPTIONS: list[dict[str, Any]] = [{"table": table} for table in [*TABLES, "%s", None, 7]]
OPTIONS += [{"timeout": 0}, {"timeout": float("inf")}, {"timeout": "1"}, {"timeout": True}]
OPTIONS += [{"connections": number} for number in (1, 2.5, None)]


@pytest.mark.parametrize("options", OPTIONS)
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    """An option that means nothing raises InvalidInput, before any connection is made."""
    with pytest.raises(InvalidInput):
        Postgres("postgresql://127.0.0.1:1/db", **options)


def test_a_wrong_address_shows_no_password(postgres_dsn: str, postgres_table: str) -> None:
    """Each has its own error, at once, with the next step. No repr, location or error has the password. Host,
    database and table are there.
    """
    store = Postgres(postgres_dsn, table=postgres_table)
    port = _port(postgres_dsn)
    assert repr(store) == f"Postgres('postgresql://127.0.0.1:{port}/postgres', table={postgres_table!r})"
    assert store.location == f"postgresql://127.0.0.1:{port}/postgres?table={postgres_table}"
    began = time.monotonic()
    for dsn, words in [
        (
            postgres_dsn.replace("hunter2", "hunter3"),
            r'password authentication failed for user "postgres"; give the right .*PGPASSWORD',
        ),
        (postgres_dsn.replace("//postgres:", "//nosuch:"), "(authentication failed|does not exist)"),
        (postgres_dsn.rpartition("/")[0] + "/nosuch", 'database "nosuch" does not exist; create it'),
        ("postgresql://postgres@127.0.0.1:1/postgres", "Connection refused.*; see that it runs"),
    ]:
        with pytest.raises(StoreUnavailable, match=rf"cannot connect to postgresql://127.*{words}") as caught:
            Postgres(dsn, table=postgres_table).set("key", b"value")
        text = "".join(traceback.format_exception(caught.value))
        assert PASSWORD not in text
        assert "%25%2F%40" not in text
        assert caught.value.outcome_unknown is False
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


def test_settings_of_the_database(postgres_dsn: str, postgres_table: str, store: Postgres) -> None:
    """A schema must be there. A read-only database is read. With transactions serialisable by default,
    nothing fails and nothing is lost.
    """

    def opened(setting: str) -> Postgres:
        options = f"options=-c%20default_transaction_{setting.replace('=', '%3D')}"
        return Postgres(f"{postgres_dsn}?{options}", table=postgres_table)

    with Postgres(postgres_dsn, table="nosuch.table") as without:
        assert without.get("key") is None
        with pytest.raises(InvalidInput, match="CREATE SCHEMA"):
            without.set("key", b"value")
    store.set("key", b"value")
    with opened("read_only=on") as looking:
        for _ in range(2):
            assert looking.get("key") == b"value"
            with pytest.raises(StoreUnavailable, match="read-only"):
                looking.set("key", b"new")
    with opened("isolation=serializable") as serialisable:
        all_at_once(*[lambda: _increment(serialisable, "counter", 20)] * 4)
        assert serialisable.get("counter") == b"80"


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


def test_a_large_change_is_one_transaction(store: Postgres) -> None:
    """Several statements' worth of rows: all of them, or none if the expectation does not hold."""
    objects = {_object(number): os.urandom(STATEMENT_BYTES // 3) for number in range(8)}
    many = {f"n/{number:05}": b"%d" % number for number in range(STATEMENT_ROWS + 10)}
    assert store.transact({**objects, **many, "ref": b"1"}, {}) is True
    changed = dict.fromkeys(many, b"2")
    assert store.transact({**objects, **changed, "ref": b"2"}, {"ref": b"0"}) is False
    assert dict(store.items()) == {**objects, **many, "ref": b"1"}
    assert store.transact({**dict.fromkeys(objects), **changed, "ref": b"2"}, {"ref": b"1"})
    assert dict(store.items()) == {**changed, "ref": b"2"}


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


def test_round_trips_of_a_journal(postgres_dsn: str, postgres_table: str, proxy: Proxy) -> None:
    """The first record on a new branch with a room takes a look at the branch and a transaction, the next one
    a transaction. A branch that was deleted, and has a reflog, goes on in its room.
    """
    proxy.latency = FAR
    with Postgres(proxy.through(postgres_dsn), table=postgres_table) as store:
        repo = Repository(store)

        def append(branch: str) -> int:
            before = proxy.round_trips
            journal.append(lambda index: [branch], message=branch)
            return proxy.round_trips - before

        journal: Journal[Records] = Journal(repo, "first", room=True)
        append("first")
        journal = Journal(repo, "second", room=True)
        assert [append("second") for _ in range(3)] == [2, 1, 1]
        room = store.get("room-of/heads/second")
        repo.delete_branch("second")
        journal = Journal(repo, "second", room=True)
        assert append("second") > 2
        assert store.get("room-of/heads/second") == room
        assert len(list(store.keys(f"room/{(room or b'').decode()}/reflog/"))) == 5


def test_each_statement_is_planned_once(postgres_dsn: str, postgres_table: str) -> None:
    """The server keeps the statements of a connection, with plans that suit a large table too. If it has
    them no more, as after DISCARD ALL, that is no error.
    """
    kept = "SELECT sum(generic_plans), sum(custom_plans) FROM pg_prepared_statements"
    with Postgres(postgres_dsn, table=postgres_table) as store:
        assert store.get("key") is None  # an error of the server: there is no table yet
        store.set("key", b"0")

        def asked(query: Any) -> list[Any]:
            return store._session.connections.use(lambda connection: connection.execute(query).fetchall())

        for number in range(10):
            assert store.get_many([f"n/{n}" for n in range(number)] + ["key"]) == {"key": b"%d" % number}
            assert store.compare_and_swap("key", b"%d" % number, b"%d" % (number + 1))
        assert asked(kept) == [(32, 0)]
        # By their contents: behind a pooler that hides itself, another client may have made them.
        assert len(set(asked("SELECT name FROM pg_prepared_statements"))) == len(
            {name for (name,) in asked("SELECT name FROM pg_prepared_statements") if len(name) == 23}
        )
        names = asked("SELECT name FROM pg_prepared_statements WHERE statement LIKE 'SELECT key, value%'")
        plan = str(asked(f"EXPLAIN EXECUTE {names[0][0]}(NULL)"))
        assert "Index" in plan
        assert "Seq Scan" not in plan
        store._session.connections.use(lambda connection: connection.execute("DEALLOCATE ALL"))
        assert store.compare_and_swap("key", b"10", b"11") is True
        assert store.get("key") == b"11"
        assert asked(kept) == [(None, None)]


# Many writers


def _increment(store: Postgres, key: str, times: int) -> None:
    for _ in range(times):
        while True:
            old = store.get(key)
            if store.compare_and_swap(key, old, b"%d" % (_number(old) + 1)):
                break


def test_swaps_of_an_object_are_apart_from_plain_writes(store: Postgres) -> None:
    """Objects have no locks by key, so a transaction that expects an object keeps all others out."""
    for expected in (None, b"old") * 15:
        store.transact({_object(1): expected}, {})
        all_at_once(
            lambda: store.compare_and_swap(_object(1), expected, b"swapped"),  # noqa: B023
            lambda: store.set(_object(1), b"set"),
        )
        # Either it came first and was overwritten, or it came too late.
        assert store.get(_object(1)) == b"set"


def test_opposite_orders_do_not_deadlock(store: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions that swap the same keys and set the same objects in opposite orders follow one another."""
    # One that the server undoes is an error here.
    monkeypatch.setattr("vstate.kv.postgres.session.UNDONE", ())
    names = [f"r/{number}" for number in range(12)]
    store.set_many(dict.fromkeys(names, b"0"))

    def work(order: int) -> None:
        for number in range(15):
            objects = {_object(1000 * number + n): b"x" * 200 for n in range(300)}
            assert store.transact(dict([*objects.items()][::order]), {})
            while True:
                old = store.get_many(names)
                new = dict.fromkeys(names, b"%d" % (_number(old[names[0]]) + 1))
                if store.transact(
                    dict([*new.items(), *objects.items()][::order]), dict([*old.items()][::order])
                ):
                    break

    all_at_once(lambda: work(1), lambda: work(-1), lambda: work(1), lambda: work(-1))
    assert set(store.get_many(names).values()) == {b"60"}
    assert len(list(store.keys("o/"))) == 15 * 300


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
            done = False
            while not done:
                old = store.get_many(names)
                done = store.transact(dict.fromkeys(names, b"%d" % (_number(old[names[0]]) + 1)), old)

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


def test_the_child_of_a_killed_process_keeps_no_lock(postgres_dsn: str, postgres_table: str) -> None:
    """The process is killed in a transaction. Its child has no copy of the socket, so the server notices."""

    def plan() -> dict[str, bytes | None]:
        heard, tell = os.pipe()
        if os.fork() == 0:
            print(os.getpid(), flush=True)
            os.write(tell, b"1")
            time.sleep(100)
        os.read(heard, 1)
        os.kill(os.getpid(), signal.SIGKILL)
        return {}

    def work() -> None:
        store = Postgres(postgres_dsn, table=postgres_table)
        store.set("key", b"1")
        store.exclusively(plan)

    with Fork(work) as program, Postgres(postgres_dsn, table=postgres_table, timeout=20) as store:
        child = int(program.output.readline())
        try:
            store.set("key", b"2")
            assert store.get("key") == b"2"
        finally:
            os.kill(child, signal.SIGKILL)


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
def test_cuts_while_committing_are_found_out(cut: Postgres, proxy: Proxy, done: bool) -> None:
    """If three connections are cut before or after the server commits, the swap happens once."""
    cut.set("counter", b"1")
    time.sleep(0.05)  # only a row that is visibly older than the call proves that the call has not written it
    at_commit(proxy, done=done, times=3)
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


def test_another_row_tells_of_a_cut_swap_that_others_overwrote(
    cut: Postgres, proxy: Proxy, store: Postgres
) -> None:
    """The ref has another value by now. A row that the same transaction wrote still bears its mark."""
    cut.set("ref", b"1")
    _meanwhile(proxy, lambda: store.compare_and_swap("ref", b"2", b"theirs"))
    assert cut.transact({"ref": b"2", "line": b"x"}, {"ref": b"1"}) is True
    assert store.get("ref") == b"theirs"


def test_whatever_comes_after_a_cut_nothing_is_denied(
    cut: Postgres, postgres_table: str, proxy: Proxy, sql: Sql
) -> None:
    """The transaction was committed and the next attempt fails for another reason: the outcome stays
    unknown.
    """
    cut.set("ref", b"1")
    _meanwhile(proxy, lambda: sql.execute(f"ALTER TABLE {postgres_table} RENAME TO {postgres_table}_away"))
    with pytest.raises(StoreUnavailable) as caught:
        cut.compare_and_swap("ref", b"1", b"2")
    assert caught.value.outcome_unknown is True
    assert "nothing was written" not in str(caught.value)


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


def _hearing(wait: Callable[[float], None]) -> None:
    """Wait until the listener hears, and so sleeps for long if nothing happens."""
    listener = wait.__self__  # type: ignore[attr-defined]
    for _ in range(600):
        if listener._connection is not None:
            return
        wait(0.1)
    raise AssertionError("it never was")


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


# Behind a pooler


@pytest.fixture
def pooled(start_postgres: Start) -> Iterator[str]:
    """The address of a database by way of a double of a pooler, which gives each transaction another
    connection.
    """
    server = start_postgres()
    with psycopg.connect(server.dsn, autocommit=True) as sql:
        sql.execute("CREATE ROLE pooled LOGIN")
        sql.execute("GRANT CREATE ON SCHEMA public TO pooled")
    with Pooler(server.port) as pooler:
        yield pooler.through(server.dsn_of("pooled"))
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
    """Each transaction goes to another connection of the server, and all promises hold. LISTEN succeeds there
    but hears nothing, so the store finds a change by polling, and soon.
    """
    with Postgres(pooled) as store, Postgres(pooled) as other:
        contents = {_object(n): os.urandom(500) for n in range(50)} | {
            f"n/{n}": b"%d" % n for n in range(100)
        }
        store.set_many(contents)
        assert dict(other.items()) == contents
        assert other.present(contents) == contents.keys()

        def plan() -> dict[str, bytes | None]:
            return {"counter": b"%d" % (_number(store.get("counter")) + 1), **dict.fromkeys(store.keys("o/"))}

        all_at_once(*[lambda: store.exclusively(plan), lambda: _increment(other, "counter", 5)] * 3)
        assert store.get("counter") == b"18"
        assert list(store.keys("o/")) == []
        with store.listening("key") as wait:
            for _ in range(5):
                before = time.monotonic()
                wait(30)
                assert time.monotonic() - before < 15
            timer = threading.Timer(0.2, other.set, ["key", b"new"])
            timer.start()
            began = time.monotonic()
            while store.get("key") != b"new" and time.monotonic() - began < 25:
                wait(30)
            assert time.monotonic() - began < 25
            timer.join()


# A pool of the caller's


@pytest.fixture
def pool(postgres_dsn: str) -> Iterator[ConnectionPool[Any]]:
    """A pool that other code uses too, with settings of its own."""
    kwargs = {"row_factory": dict_row, "prepare_threshold": 0, "application_name": "shared"}
    with ConnectionPool(postgres_dsn, kwargs=kwargs, min_size=1, max_size=3, timeout=60) as pool:
        yield pool


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
        assert store.get_many(["counter", "absent"]) == dict(store.items("c")) == {"counter": b"40"}
        assert store.exclusively(lambda: {"counter": store.get("counter"), "more": b"1"})
        assert store.present(["counter", "more", "absent"]) == {"counter", "more"}
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
