"""Turns on PostgreSQL: their fairness, their cost, and that a commit never depends on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import psycopg
import pytest
from postgres_server import PostgresServer
from protocol_proxies import Pooler
from proxy import Proxy
from servers import with_options

from vstate import KVStore, Versioned, open_store
from vstate.kv.postgres import Postgres
from vstate.kv.postgres.queue import KEPT_SECONDS, KEPT_TIMES

pytestmark = pytest.mark.slow

SOON = 15  # seconds; a call that takes as long waited for nothing

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

Start = Callable[..., PostgresServer]


Patience = Callable[[float], None]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> Patience:
    """Set the seconds to wait for a turn: 20 by default, so a slow machine never reaches them by accident."""

    def set_it(seconds: float) -> None:
        monkeypatch.setattr("vstate.kv.postgres.queue.PATIENCE", seconds)

    set_it(20)
    monkeypatch.setattr("vstate.kv.postgres.queue.HELD_SECONDS", 30)
    return set_it


@pytest.fixture
def url(postgres_dsn: str, postgres_table: str) -> str:
    """An empty place on a server, with one row."""
    url = with_options(postgres_dsn, [f"table={postgres_table}"])
    with open_store(url) as store:
        store.set("key", b"1")
    return url


@pytest.fixture
def stores(url: str) -> Iterator[list[KVStore]]:
    """Three stores at that place, as three processes would have them; they have talked with the server."""
    with ExitStack() as opened:
        stores = [opened.enter_context(open_store(url)) for _ in range(3)]
        for store in stores:
            store.get("key")
        yield stores


def _until_waiting(url: str, number: int = 1) -> None:
    """Wait until so many wait for a turn on the server."""
    with psycopg.connect(url.partition("?")[0], autocommit=True) as sql:
        asked = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        while sql.execute(asked).fetchone() != (number,):
            time.sleep(0.01)


def _in_vain(patience: Patience, turn: Callable[[], AbstractContextManager[None]]) -> bool:
    """Whether a turn is waited for until patience is at an end."""
    patience(2)
    seconds = _seconds(turn())
    patience(20)
    return 1.4 < seconds < SOON


def _seconds(turn: AbstractContextManager[None]) -> float:
    """The seconds until a turn is had. The turn is given back."""
    began = time.monotonic()
    with turn:
        return time.monotonic() - began


def _thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


COUNT = """
import json, sys, time
from vstate import Conflict, Versioned, open_store
store = open_store(sys.argv[1])
state = Versioned(store, branch="main")
runs = failed = 0
def increment(now):
    global runs
    runs += 1
    now["n"] += 1
state.apply(lambda now: now["n"])
print("ready", flush=True)
sys.stdin.readline()
times = []
for _ in range(int(sys.argv[2])):
    while True:
        try:
            state.apply(increment, attempts=10)
            break
        except Conflict:
            failed += 1
    times.append(time.time())
print(json.dumps([times, runs, failed]), flush=True)
store.close()
"""


def _count(url: str, *, processes: int, times: int) -> tuple[int, int, int]:
    """Processes increment one counter.

    Returns the slowest one's increments when the first is done, the wasted attempts, and the failed updates.
    """
    with open_store(url) as store:
        state = Versioned(store, branch="main")
        state["n"] = 0
        state.commit()
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", COUNT, url, str(times)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(processes)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    answers = [json.loads(worker.communicate()[0]) for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * processes
    with open_store(url) as store:
        assert Versioned(store, branch="main")["n"] == processes * times
    first = min(done[-1] for done, _, _ in answers)
    least = min(sum(moment <= first for moment in done) for done, _, _ in answers)
    runs = sum(ran for _, ran, _ in answers)
    return least, runs - processes * times, sum(failed for _, _, failed in answers)


def test_updates_of_many_processes_are_shared_out(url: str) -> None:
    """When the first of four is done, the slowest has come far too, few attempts were wasted, and none
    failed.
    """
    least, in_vain, failed = _count(url, processes=4, times=150)
    assert least >= 150 / 10
    assert in_vain <= 150
    assert failed == 0


# Costs


def test_alone_an_update_takes_no_more_round_trips(url: str) -> None:
    """An uncontended update asks for no turn. News of contenders comes with the answer to the write."""
    with Proxy.before(url) as proxy, open_store(proxy.through(url)) as store:
        store.set("key", b"2")
        before = proxy.round_trips
        for number in range(5):
            with store.turn("a", lost=False):
                assert store.compare_and_swap("key", b"%d" % (number + 2), b"%d" % (number + 3))
        assert proxy.round_trips - before == 5


def test_who_wins_all_races_hears_of_the_others(
    stores: list[KVStore], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to a write says that another has the turn.

    The writer then waits for it, and stops waiting later.
    """
    monkeypatch.setattr("vstate.kv.postgres.queue.CONTENDED_SECONDS", 2.0)
    winner, other, _ = stores
    with other.turn("a"):
        assert _seconds(winner.turn("a", lost=False)) < SOON
        assert _seconds(winner.turn("a", lost=False)) < SOON
        with winner.turn("a", lost=False):
            assert winner.transact({"key": b"2"}, {"key": b"1"}) is True
        with winner.turn("b", lost=False):
            assert winner.transact({"key": b"3"}, {"key": b"2"}) is True
        waited: list[float] = []
        waiting = _thread(lambda: waited.append(_seconds(winner.turn("a", lost=False))))
        _until_waiting(url)
        assert _seconds(winner.turn("b", lost=False)) < SOON
        time.sleep(0.2)
        assert waited == []
    waiting.join()
    assert waited[0] >= 0.2
    time.sleep(2.1)
    with other.turn("a"):
        assert _seconds(winner.turn("a", lost=False)) < SOON


def test_a_turn_is_kept_for_some_times(stores: list[KVStore], url: str) -> None:
    """A store that comes again at once keeps its turn, for KEPT_TIMES times at most while another waits."""
    store, other, _ = stores
    order: list[str] = []

    def ask() -> None:
        with other.turn("a"):
            order.append("other")

    with store.turn("a"):
        waiting = _thread(ask)
        _until_waiting(url)
    for _ in range(KEPT_TIMES * 3):
        with store.turn("a"):
            order.append("store")
    waiting.join()
    assert order.index("other") <= KEPT_TIMES


def test_a_turn_that_was_kept_in_vain_is_given_back(stores: list[KVStore]) -> None:
    """If its holder does not come again, others have it soon; and so they have if the store is closed."""
    store, other, third = stores
    for _ in range(3):
        with store.turn("a"):
            pass
    assert _seconds(other.turn("a")) < SOON
    for _ in range(3):
        with third.turn("b"):
            pass
    third.close()
    assert _seconds(other.turn("b")) < SOON


def test_a_turn_is_given_back_though_its_holder_is_held_up(
    stores: list[KVStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a turn may have to be given back before its holder has released its lock."""
    store, other, _ = stores
    queues = vars(store)["_queues"]
    release_later, held_up = queues._release_later, list[Any]()

    def slowly(queue: Any) -> None:
        release_later(queue)
        if not held_up:
            held_up.append(queue)
            time.sleep(0.1)

    monkeypatch.setattr(queues, "_release_later", slowly)
    with store.turn("a"):
        pass
    assert held_up == [queues._queue("a")]
    assert _seconds(other.turn("a")) < SOON


# The order of turns


def test_turns_come_in_the_order_of_asking(stores: list[KVStore], url: str) -> None:
    """One holder at a time, in the order of asking."""
    order: list[int] = []
    inside = 0

    def ask(number: int) -> None:
        nonlocal inside
        with stores[number].turn("a"):
            inside += 1
            assert inside == 1
            order.append(number)
            time.sleep(0.05)
            inside -= 1

    with stores[0].turn("a"):
        waiting = [_thread(lambda: ask(1))]
        _until_waiting(url, 1)
        waiting.append(_thread(lambda: ask(2)))
        _until_waiting(url, 2)
        time.sleep(KEPT_SECONDS)  # so no turn is kept any more for a holder that comes again
    ask(0)
    for thread in waiting:
        thread.join()
    assert order == [1, 2, 0]


def test_turns_are_apart_by_name_and_store(stores: list[KVStore], url: str, patience: Patience) -> None:
    """Each name has a queue in each store. A turn of the same name is waited for, for two seconds at most."""
    store, other, _ = stores
    with open_store(url + "_2") as apart, store.turn("a"):
        apart.set("key", b"1")
        assert _seconds(other.turn("b")) < SOON
        assert _seconds(apart.turn("a")) < SOON
        assert _in_vain(patience, lambda: other.turn("a"))
    assert _seconds(other.turn("a")) < SOON


def test_threads_of_one_store_follow_one_another(stores: list[KVStore]) -> None:
    """Also while the turn is kept."""
    inside = 0

    def work() -> None:
        nonlocal inside
        for _ in range(20):
            with stores[0].turn("a"):
                inside += 1
                assert inside == 1
                time.sleep(0.001)
                inside -= 1

    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    for thread in [_thread(run) for _ in range(4)]:
        thread.join()
    assert errors == []


# Failures


@needs_fork
@pytest.mark.parametrize("kept", [False, True])
def test_the_turn_of_one_who_died(url: str, stores: list[KVStore], kept: bool) -> None:
    """A turn ends within seconds, also a kept one, and then nothing waits for it."""
    child = os.fork()
    if child == 0:
        try:
            store = open_store(url)
            store.get("key")
            for _ in range(3 if kept else 0):
                with store.turn("a"):
                    pass
            with store.turn("a"):
                os.kill(os.getpid(), 9)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
    assert _seconds(stores[0].turn("a")) < SOON
    assert _seconds(stores[1].turn("a")) < SOON


@needs_fork
def test_turns_across_a_fork(stores: list[KVStore], patience: Patience) -> None:
    """A child has queues and connections of its own, and no turn of its parent's."""
    store = stores[0]
    for _ in range(3):
        with store.turn("kept"):
            pass
    turn = store.turn("a")
    _thread(turn.__enter__).join()
    child = os.fork()
    if child == 0:
        try:
            good = _in_vain(patience, lambda: store.turn("a")) and _seconds(store.turn("b")) < SOON
            os._exit(0 if good and store.get("key") == b"1" else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    turn.__exit__(None, None, None)
    assert _seconds(stores[1].turn("a")) < SOON
    assert _seconds(stores[2].turn("kept")) < SOON


def test_a_server_that_is_restarted(start_postgres: Start, patience: Patience) -> None:
    """A holder and a waiter go on without turns, errors inside a turn reach the caller, and turns work
    again later.
    """
    running = start_postgres()
    url = running.dsn
    with open_store(with_options(url, ["timeout=5"])) as store, open_store(url) as other:
        for each in (store, other):
            each.set("key", b"1")
        with store.turn("a"):
            running.kill()
        assert _seconds(store.turn("a")) < SOON
        assert _seconds(other.turn("a")) < SOON
        with pytest.raises(KeyError), store.turn("a"):
            raise KeyError("a")
        running.start()
        state = Versioned(store, branch="main")
        state["n"] = 0
        state.commit()
        assert state.apply(lambda now: now.update(n=now["n"] + 1)) is not None
        # Later turns begin after PAUSE_AFTER_FAILURE.
        for each in (store, other):
            vars(each)["_queues"]._next_try = 0.0
            each.get("key")
        with store.turn("a"):
            assert _in_vain(patience, lambda: other.turn("a"))
        assert _seconds(other.turn("a")) < SOON


def test_a_thread_that_never_gave_it_back(stores: list[KVStore], patience: Patience) -> None:
    """As if it had been interrupted before it could: the others of its process wait for that once."""
    store = stores[0]
    turn = store.turn("a")
    _thread(turn.__enter__).join()
    assert _in_vain(patience, lambda: store.turn("a"))
    assert _in_vain(patience, lambda: store.turn("a"))  # the server's


# On PostgreSQL


def test_a_turn_is_no_connection_of_the_stores(postgres_dsn: str, postgres_table: str) -> None:
    """Threads that wait for their turn leave the connections to its holder."""
    with Postgres(postgres_dsn, table=postgres_table, connections=2) as store:
        store.set("n", b"0")

        def turns() -> AbstractContextManager[Any]:
            stack = ExitStack()
            for name in ("a", "b", "c"):
                stack.enter_context(store.turn(name))
            return stack

        _eight_count(store, turns)


def _eight_count(store: KVStore, turn: Callable[[], AbstractContextManager[Any]]) -> None:
    """Eight threads count as fast as if no thread waited for nothing."""
    store.set("n", b"0")

    def count() -> None:
        with turn():
            store.set("n", b"%d" % (int(store.get("n") or b"0") + 1))

    began = time.monotonic()
    for thread in [_thread(count) for _ in range(8)]:
        thread.join()
    assert time.monotonic() - began < SOON
    assert store.get("n") == b"8"


def test_without_a_connection_to_spare(start_postgres: Start) -> None:
    """Before there is a table, or if the server takes no more connections, everybody does without."""
    server = start_postgres(max_connections="6", superuser_reserved_connections="0", reserved_connections="0")
    with Postgres(server.dsn, timeout=5) as store, ExitStack() as stack:
        with store.turn("a"):
            store.set("key", b"1")
        for _ in range(5):
            stack.enter_context(psycopg.connect(server.dsn))
        assert _seconds(store.turn("a")) < SOON
        assert store.get("key") == b"1"


def test_a_turn_that_lasts_too_long(
    postgres_dsn: str, postgres_table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends it, and others have it."""
    monkeypatch.setattr("vstate.kv.postgres.queue.HELD_SECONDS", 0.3)
    with (
        Postgres(postgres_dsn, table=postgres_table) as store,
        Postgres(postgres_dsn, table=postgres_table) as other,
    ):
        store.set("key", b"1")
        other.set("key", b"1")
        with store.turn("a"):
            time.sleep(0.5)
            assert _seconds(other.turn("a")) < SOON
        assert _seconds(store.turn("a")) < SOON


def test_turns_behind_a_pooler(start_postgres: Start, patience: Patience) -> None:
    """Each is one transaction, and so they work there."""
    server = start_postgres()
    with psycopg.connect(server.dsn, autocommit=True) as sql:
        sql.execute("CREATE ROLE pooled LOGIN")
        sql.execute("GRANT CREATE ON SCHEMA public TO pooled")
    with Pooler(server.port) as pooler:
        dsn = pooler.through(server.dsn_of("pooled"))
        with Postgres(dsn) as store, Postgres(dsn) as other:
            store.set("key", b"1")
            other.set("key", b"1")
            with store.turn("a"):
                assert _in_vain(patience, lambda: other.turn("a"))
            assert _seconds(other.turn("a")) < SOON
