"""Places: an exception at any line of a call leaves the handle all its connections."""

from __future__ import annotations

import gc
import logging
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import pytest
import redis as driver
from raising import raised_at
from servers import on_server, url_of, with_options
from soak import SOAK

from vstate import StoreUnavailable
from vstate.kv import KVStore, open_store
from vstate.kv.redis import Redis
from vstate.kv.servers import Pool

SIZE = 2
LINES_STEP = 1 if SOAK else 5
"""Of the lines of a call, an exception comes out of each or of every fifth."""

BOUNDS = {
    "postgres": f"connections={SIZE}",
    "redis": f"max_connections={SIZE}",
    "client of redis": f"max_connections={SIZE}",
    "s3": "",
}


@pytest.fixture(params=map(on_server, BOUNDS))
def bounded(request: pytest.FixtureRequest) -> Iterator[KVStore]:
    """A store with two connections, on each kind of server."""
    kind = request.param
    url = url_of(kind.rpartition(" ")[2], request)
    with ExitStack() as stack:
        if kind == "client of redis":
            base, prefix = url.partition("?")[0], request.getfixturevalue("redis_prefix")
            client = driver.Redis.from_url(base, max_connections=SIZE, protocol=2)
            stack.enter_context(client)
            yield stack.enter_context(Redis(client=client, prefix=prefix))
        else:
            yield stack.enter_context(open_store(with_options(url, filter(None, [BOUNDS[kind]]))))


def _serves_all(store: KVStore) -> bool:
    """Whether as many calls as the store has connections are in the middle of their work at once."""
    holder: Any = getattr(store, "_session", None) or getattr(store, "_link", None)
    barrier = threading.Barrier(SIZE)
    with ThreadPoolExecutor(SIZE) as threads:
        if holder is None:
            return list(threads.map(store.get, ["key"] * SIZE)) == [b"value"] * SIZE
        met = [threads.submit(holder.connections.use, lambda _: barrier.wait(20)) for _ in range(SIZE)]
        return sorted(each.result() for each in met) == list(range(SIZE))


def _write_and_read(store: KVStore) -> None:
    store.set("key", b"value")
    assert store.get("key") == b"value"


@pytest.fixture(autouse=True)
def _quiet_destructors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An exception in a destructor reaches no caller, and Python prints it."""
    with monkeypatch.context() as patch:
        patch.setattr("sys.unraisablehook", lambda unraisable: None)
        yield
        gc.collect()


@pytest.mark.parametrize("thread", ["main", "second"] if SOAK else ["main"])
def test_an_exception_at_any_line_costs_no_connection(
    bounded: KVStore, thread: str, record_property: Callable[[str, object], None]
) -> None:
    """Also while the program keeps all the exceptions, and so the frames that they passed."""
    kept: list[BaseException] = []

    def sweep() -> None:
        _write_and_read(bounded)
        while True:
            line = 1 + len(kept) * LINES_STEP
            _, error = raised_at(lambda: _write_and_read(bounded), line, KeyboardInterrupt)
            if error is None:
                return
            kept.append(error)

    if thread == "main":
        sweep()
    else:
        with ThreadPoolExecutor(1) as other:
            other.submit(sweep).result()
    record_property("lines", len(kept))
    assert {type(error) for error in kept} == {KeyboardInterrupt}
    assert len(kept) > 100 / LINES_STEP
    assert _serves_all(bounded)
    kept.clear()


class Alarm(Exception):
    """A time limit."""


def test_alarms_at_random_moments_cost_no_connection(
    bounded: KVStore, record_property: Callable[[str, object], None]
) -> None:
    """Real signals, also in the code of the driver."""

    def ring(*_: object) -> None:
        raise Alarm

    _write_and_read(bounded)
    chance, came, end = random.Random(1), 0, time.monotonic() + (60 if SOAK else 1.5)
    # The locks of the module logging are lost to a signal: its functions take them before their `try`.
    logging.disable()
    before = signal.signal(signal.SIGALRM, ring)
    try:
        while time.monotonic() < end:
            with suppress(Alarm):
                signal.setitimer(signal.ITIMER_REAL, chance.random() * 0.004 + 0.0002)
                came += 1
                _write_and_read(bounded)
                signal.setitimer(signal.ITIMER_REAL, 0)
                came -= 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        logging.disable(logging.NOTSET)
    record_property("alarms", came)
    assert came > 20
    assert _serves_all(bounded)


class Sockets(Pool[socket.socket]):
    """Connections to nobody."""

    def make(self) -> socket.socket:
        return socket.socket()

    def discard(self, connection: socket.socket) -> None:
        connection.close()

    def descriptor(self, connection: socket.socket) -> int:
        return connection.fileno()


def test_a_call_that_waits_too_long_for_a_place_says_so() -> None:
    """It names the option. Writes leave one place to reads, and a place that is free again is taken."""
    pool = Sockets("place", size=2, timeout=0.05, option="connections")
    in_use = r"all 2 connections .*place were in use for 0\.05 s; retry later, or .* more `connections`"

    def write(_: socket.socket) -> int:
        with pytest.raises(StoreUnavailable, match=in_use) as caught:
            pool.use(socket.socket.fileno, writing=True)
        assert not caught.value.outcome_unknown
        return pool.use(read)

    def read(_: socket.socket) -> int:
        with pytest.raises(StoreUnavailable, match=in_use):
            pool.use(socket.socket.fileno)
        return 1

    assert pool.use(write, writing=True) == 1
    assert pool.use(socket.socket.fileno, writing=True) >= 0
    pool.close()
