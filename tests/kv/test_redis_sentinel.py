"""Sentinels and a cluster of Redis: a replica becomes the primary, and which writes that loses."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest
import redis as driver
from ports import free_ports
from redis.sentinel import Sentinel
from redis_server import SERVICE, RedisServer, Watched

from vstate import KVStore, Versioned, open_store
from vstate.errors import RefMoved, StoreUnavailable, VStateError
from vstate.kv.redis import Redis
from vstate.repo import Repository

pytestmark = pytest.mark.slow

WRITERS = 3

Start = Callable[..., RedisServer]

redis_alone = pytest.mark.parametrize("start_redis", ["redis"], indirect=True)
"""For tests that take seconds, of a server that Valkey took over as it is."""


@pytest.fixture
def watched(start_redis: Start) -> Watched:
    return Watched(start_redis)


# Killed while others write


class Writer:
    """Commits numbers to a branch, each once, until `over`. Goes on from the branch if that lost some."""

    def __init__(self, url: str, branch: str, over: threading.Event) -> None:
        self.acknowledged: list[int] = []
        self.lost = 0
        self._url, self._branch, self._over = url, branch, over
        self.thread = threading.Thread(target=self._run)
        self.failures: list[BaseException] = []

    def _run(self) -> None:
        try:
            with open_store(self._url) as store:
                state = Versioned(store, branch=self._branch)
                while not self._over.is_set():
                    state["n"] = len(self.acknowledged)
                    try:
                        state.commit(str(len(self.acknowledged)))
                    except RefMoved:
                        state.discard()
                        state.refresh()
                        kept = state.get("n", -1) + 1
                        self.lost += len(self.acknowledged) - kept
                        del self.acknowledged[kept:]
                    else:
                        self.acknowledged.append(state["n"])
        except BaseException as error:
            self.failures.append(error)


@redis_alone
def test_the_primary_is_killed_while_writers_commit(start_redis: Start) -> None:
    """Writers wait until the replica has taken over, and go on. Each commit is there once, or it was among
    the last ones before the kill; none is there in part.
    """
    watched = Watched(start_redis, sentinels=3)
    over = threading.Event()
    writers = [Writer(watched.url, f"writer-{n}", over) for n in range(WRITERS)]
    for writer in writers:
        writer.thread.start()
    try:
        _until(lambda: all(len(writer.acknowledged) > 20 for writer in writers) or _failed(writers))
        watched.sentinels[0].kill()  # the other two are a majority
        watched.fail_over()
        before = [len(writer.acknowledged) + 20 for writer in writers]
        _until(
            lambda: (
                _failed(writers) or all(len(w.acknowledged) > n for w, n in zip(writers, before, strict=True))
            )
        )
    finally:
        over.set()
        for writer in writers:
            writer.thread.join(60)
    assert not _failed(writers)
    with Redis(watched.replica.url) as store:
        for number, writer in enumerate(writers):
            told = [int(commit.message) for commit in Versioned(store, branch=f"writer-{number}").log()]
            assert told == list(range(len(writer.acknowledged)))[::-1]
        _check(store)


def _failed(writers: list[Writer]) -> list[BaseException]:
    return [failure for writer in writers for failure in writer.failures]


# What is lost


@redis_alone
def test_what_the_replica_does_not_have_is_lost(watched: Watched) -> None:
    """Commits that were acknowledged and not replicated are gone after a failover. The handle that made them
    hears of it at its next commit, and goes on with refresh(); no object of a lost commit is relied upon.
    """
    long = random.Random(0).randbytes(500_000)
    with open_store(watched.url) as store:
        state = Versioned(store, branch="main")
        state["plan"], state["n"] = long, 0
        kept = state.commit("kept")
        watched.detach()
        state["plan"], state["more"] = long + long[::-1], "x" * 1000
        state.commit("acknowledged, and lost")
        watched.fail_over()
        state["copy"] = long + long[::-1] + b"end"  # most of its chunks were in the lost commit
        with pytest.raises(RefMoved, match="refresh") as caught:
            state.commit("on top of the lost one")
        assert caught.value.rewritten
        with pytest.raises(VStateError):
            state.fork("side")
        state.refresh()
        assert state.head == kept
        state["more"] = "x" * 1000  # its object was written before, and is written again
        state.commit("again")
        _check(store)
    with Redis(watched.replica.url) as alone:
        fresh = Versioned(alone, branch="main")
        assert [commit.message for commit in fresh.log()] == ["again", "kept"]
        assert fresh["plan"] == long
        assert fresh["copy"] == long + long[::-1] + b"end"
        assert fresh["more"] == "x" * 1000
        _check(alone)


@redis_alone
def test_a_primary_that_needs_replicas_acknowledges_no_commit_alone(start_redis: Start) -> None:
    """With `min-replicas-to-write 1`, a primary without a replica refuses, so the failover loses nothing. A
    call waits for the replica as long as for a server.
    """
    watched = Watched(start_redis, min_replicas_to_write="1", min_replicas_max_lag="1")
    with open_store(watched.url) as patient:
        watched.detach()
        timer = threading.Timer(0.5, watched.attach)
        timer.start()
        patient.set("waited", b"1")
        timer.join()
    with open_store(watched.url + "?timeout=1") as store:
        state = Versioned(store, branch="main")
        state["n"] = 1
        kept = state.commit("kept")
        watched.detach()
        state["n"] = 2
        with pytest.raises(StoreUnavailable, match="does not take writes now") as caught:
            state.commit("refused")
        assert not caught.value.outcome_unknown
        watched.fail_over()
        watched.replica.command("CONFIG", "SET", "min-replicas-to-write", "0")
        while True:
            try:
                if state.head == kept:
                    state.commit("again")
                break
            except StoreUnavailable:
                time.sleep(0.1)
        assert [commit.message for commit in state.log()] == ["again", "kept"]
        _check(store)


# Finding the primary


@redis_alone
@pytest.mark.parametrize("client", [False, True], ids=["URL", "client"])
def test_a_call_waits_for_the_failover(
    start_redis: Start, monkeypatch: pytest.MonkeyPatch, client: bool
) -> None:
    """While sentinels know the service, a call waits its whole timeout for a primary, as a new store does; a
    server alone gets only the shorter time to be reached.
    """
    monkeypatch.setattr("vstate.backoff.REACH_SECONDS", 0.2)
    watched = Watched(start_redis, seconds=2)
    with open_store(watched.url) as urls:
        urls.set("a", b"1")
        places = [("127.0.0.1", each.port) for each in watched.sentinels]
        with Sentinel(places).master_for(SERVICE) as given:
            store = Redis(client=given) if client else urls
            assert SERVICE in store.location
            store.set("b", b"1")
            watched.catch_up()
            watched.primary.kill()
            with Redis(watched.primary.url) as alone, pytest.raises(StoreUnavailable):
                alone.get("a")
            with open_store(watched.url) as fresh:
                assert fresh.get("a") == b"1"
            store.set("a", b"2")
            assert store.get_many(["a", "b"]) == {"a": b"2", "b": b"1"}
            watched.primary.start()  # it is a replica from now on
            store.set("a", b"3")
    with Redis(watched.replica.url) as promoted:
        assert promoted.get("a") == b"3"


@redis_alone
def test_a_primary_that_stands_still(watched: Watched) -> None:
    """After one call has waited in vain, no connection to the old primary is used again."""
    with open_store(watched.url + "?timeout=6") as store:
        store.set("a", b"1")
        watched.catch_up()
        connections = store._link.connections  # type: ignore[attr-defined]
        connections.use(lambda _: connections.use(lambda _: connections.use(lambda _: store.get("a"))))
        watched.primary.pause()
        try:
            began = time.monotonic()
            assert store.get("a") == b"1"
            store.set("a", b"2")
            assert time.monotonic() - began < 11
        finally:
            watched.primary.resume()
        assert store.get("a") == b"2"


@redis_alone
def test_a_primary_that_is_a_replica_for_a_moment(watched: Watched) -> None:
    """A write that a replica refuses waits for the primary that the sentinels name then."""
    with open_store(watched.url) as store:
        store.set("a", b"1")
        watched.primary.command("REPLICAOF", "127.0.0.1", str(watched.replica.port))
        timer = threading.Timer(0.5, watched.primary.command, ["REPLICAOF", "NO", "ONE"])
        timer.start()
        assert store.compare_and_swap("a", b"1", b"2") is True
        timer.join()


def test_listening_hears_the_new_primary(watched: Watched) -> None:
    """A wait that a failover cuts off listens at the new primary afterwards."""

    def seconds() -> float:
        began = time.monotonic()
        wait(0.3)
        return time.monotonic() - began

    with open_store(watched.url) as store, store.listening("a") as wait:
        store.set("a", b"1")
        watched.catch_up()
        watched.fail_over()
        store.set("a", b"2")
        _until(lambda: seconds() > 0.29)  # it has a connection, and nothing unheard
        timer = threading.Timer(0.1, store.set, ["a", b"3"])
        began = time.monotonic()
        timer.start()
        wait(30)
        assert 0.05 < time.monotonic() - began < 20
        timer.join()


@redis_alone
def test_sentinels_that_are_not_there(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that answers is enough. For another service, a new store fails at once."""
    monkeypatch.setattr("vstate.kv.servers.Backoff.pause", lambda *_, **__: pytest.fail("tried again"))
    absent = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    with open_store(watched.url.replace("//", f"//{absent},")) as store:
        store.set("a", b"1")
        assert store.get("a") == b"1"
    with (
        open_store(watched.url.replace(SERVICE, "other")) as store,
        pytest.raises(StoreUnavailable, match=r"no primary.*monitor") as caught,
    ):
        store.set("a", b"1")
    assert not caught.value.outcome_unknown


@redis_alone
def test_passwords(start_redis: Start) -> None:
    """The servers have one password and the sentinels another, and no message shows either."""
    server = start_redis(requirepass="open-sesame")
    lines = [f"sentinel monitor main 127.0.0.1 {server.port} 1", "sentinel auth-pass main open-sesame"]
    sentinel = start_redis(lines=[*lines, "requirepass hunter2"])
    place = f"127.0.0.1:{sentinel.port}/main"
    with open_store(f"redis+sentinel://:open-sesame@{place}?sentinel_password=hunter2") as store:
        store.set("a", b"1")
        assert store.get("a") == b"1"
        assert place in store.location
        with pytest.raises(TypeError, match="password"):
            store.__reduce__()
    for url in (
        f"redis+sentinel://:open-sesame@{place}",
        f"redis+sentinel://{place}?sentinel_password=hunter2",
    ):
        with open_store(url) as store, pytest.raises(StoreUnavailable, match="password") as caught:
            store.get("a")
        assert not {"open-sesame", "hunter2"} & set(str(caught.value).split())


# A cluster


@redis_alone
def test_a_node_of_a_cluster_that_comes_back(start_redis: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another node of the cluster answers, a call waits its whole timeout for the one with its keys."""
    monkeypatch.setattr("vstate.backoff.REACH_SECONDS", 0.5)
    options = {"appendfsync": "no", "cluster_enabled": "yes", "cluster_require_full_coverage": "no"}
    nodes = [start_redis(**options) for _ in range(2)]
    for node, slots in zip(nodes, (range(8192), range(8192, 16384)), strict=True):
        with driver.Redis.from_url(node.url) as client:
            client.execute_command("CLUSTER ADDSLOTS", *slots)
            client.execute_command("CLUSTER MEET", "127.0.0.1", nodes[0].port)
    for node in nodes:
        _until(partial(_is_whole, node))
    with Redis(f"redis+cluster://127.0.0.1:{nodes[0].port}") as store:
        store.set("a", b"1")
        slot = int(nodes[0].command("CLUSTER", "KEYSLOT", "{vstate}:v")[1:])
        holder, other = nodes if slot < 8192 else reversed(nodes)
        holder.kill()
        timer = threading.Timer(2.0, holder.start)
        timer.start()
        assert store.get("a") == b"1"
        timer.join()
        other.kill()
        holder.kill()
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            store.get("a")
        assert time.monotonic() - began < 20


def _check(store: KVStore) -> None:
    """Every object that a ref reaches is present and intact."""
    report = Repository(store).fsck()
    assert report.ok, str(report)


def _is_whole(node: RedisServer) -> bool:
    """Whether the node knows both nodes of its cluster."""
    return b"cluster_size:2" in node.command("CLUSTER", "INFO")


def _until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
