"""Killed servers and cut connections: no acknowledged commit is lost, and no commit happens twice."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from proxy import Proxy
from scripts import LONGEST, Record, gc_figures, run_script
from servers import kind_of
from soak import sized
from soundness import check_sound

from vstate import StoreUnavailable, Versioned, open_store

PROCESSES = 4
COMMITS = sized({"redis": 60, "postgres": 40, "s3": 8}, {"redis": 5000, "postgres": 2000, "s3": 200})
SECONDS_OF_GC = sized(2, 600)
KILLS = sized(3, 200)

pytestmark = pytest.mark.timeout(LONGEST)


class Server(Protocol):
    def restart(self) -> None: ...


@pytest.fixture(params=["redis", "postgres"])
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Server, str]]:
    """A server that the test may kill, and the URL of a store on it."""
    if request.param == "redis":
        from redis_server import RedisServer

        server = RedisServer(tmp_path / "redis")
        yield server, f"{server.url}?timeout=30"
        server.stop()
    else:
        server = request.getfixturevalue("start_postgres")(fsync="on")
        yield server, f"{server.dsn}?timeout=30"


@pytest.fixture
def proxied(server_url: str) -> Iterator[tuple[Proxy, str]]:
    with Proxy.before(server_url) as proxy:
        yield proxy, re.sub("timeout=[0-9]+", "timeout=6", proxy.through(server_url))


def test_processes_that_count(server_url: str, record: Record) -> None:
    """Processes that `apply` to one key of one branch lose no increment."""
    commits = COMMITS[kind_of(server_url)]
    result = run_script("counters.py", PROCESSES, commits, commits, server_url)
    assert result["counter"] == result["commits"] == PROCESSES * commits
    record(commits=result["commits"])


def test_writers_beside_gc(server_url: str, record: Record) -> None:
    """While a process collects garbage all the time, others find all their writes, and no reference dangles
    at the end.
    """
    result = run_script("beside_gc.py", 2, SECONDS_OF_GC, server_url)
    assert result["gc"] >= 1
    record(**gc_figures(result))


def commit_anyway(state: Versioned, refused: list[StoreUnavailable]) -> None:
    """Commit. If the store cannot be reached, the changes stay staged, and are committed again."""
    value = state["n"]
    while True:
        try:
            state.commit(f"{value}")
            return
        except StoreUnavailable as error:
            refused.append(error)
            assert state["n"] == value
            time.sleep(0.05)


def check_story(url: str, last: int) -> None:
    """Each number is in the history once, in order."""
    with open_store(url) as store:
        state = Versioned(store, branch="main")
        told = [int(commit.message) for commit in state.log()]
        assert told == list(range(last, -1, -1))
        assert state["n"] == last
        check_sound(store)


def test_a_server_that_is_killed(own_server: tuple[Server, str], record: Record) -> None:
    """SIGKILL in the middle of commits, again and again: each acknowledged commit is there once."""
    server, url = own_server
    refused: list[StoreUnavailable] = []
    done = threading.Event()
    numbers = [0]
    failures: list[BaseException] = []

    def write() -> None:
        try:
            with open_store(url) as store:
                state = Versioned(store, branch="main")
                while not done.is_set():
                    state["n"] = numbers[0]
                    commit_anyway(state, refused)
                    numbers[0] += 1
        except BaseException as error:
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    for number in range(KILLS + 1):
        before = numbers[0]
        while numbers[0] == before and not failures:  # the writer has begun, and gone on after the last kill
            time.sleep(0.01)
        if number < KILLS:
            time.sleep(0.2 + 0.1 * (number % 4))
            server.restart()
    done.set()
    writer.join(200)
    assert not failures, failures
    assert not writer.is_alive()
    assert numbers[0] > KILLS
    check_story(url, numbers[0] - 1)
    record(kills=KILLS, commits=numbers[0])


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_connection_cut_at_every_point(
    proxied: tuple[Proxy, str], server_url: str, after: bool, record: Record
) -> None:
    """A connection is cut at each chunk of a commit's requests and replies, before or after it passes.

    The commit lands once.
    """
    proxy, url = proxied
    refused: list[StoreUnavailable] = []
    with open_store(url) as store:
        state = Versioned(store, branch="main")
        state["n"] = number = 0
        commit_anyway(state, refused)
        point = 1
        while True:
            number += 1
            state["n"] = number
            proxy.cut(point, after=after)
            commit_anyway(state, refused)
            if proxy.heal() < point:
                break
            point += 1
    assert point > 2
    check_story(server_url, number)
    record(points=point - 1)


def test_a_server_that_is_not_there(proxied: tuple[Proxy, str], server_url: str) -> None:
    """A commit raises, keeps its changes staged, and lands once when the server is back."""
    proxy, url = proxied
    if kind_of(url) != "s3":  # the store gives up a request to S3 after half of its timeout
        url = url.replace("timeout=6", "timeout=3")
    with open_store(url) as store:
        state = Versioned(store, branch="main")
        state["n"] = 0
        commit_anyway(state, [])
        proxy.down()
        state["n"] = 1
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            state.commit("1")
        assert time.monotonic() - began < 60
        assert state["n"] == 1
        proxy.up()
        commit_anyway(state, [])
    check_story(server_url, 1)
