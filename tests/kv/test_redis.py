"""Redis: the store contract on a real server, and its own behaviour."""

from __future__ import annotations

import gc
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as driver
from protocol_proxies import at_request
from proxy import FAR, Proxy
from redis_server import RedisServer, TlsProxy

from vstate import open_store
from vstate.errors import InvalidInput, StorageError, StoreFull, StoreUnavailable
from vstate.kv.redis import Redis

pytestmark = pytest.mark.slow

OBJECT = "o/" + "0123456789abcdef" * 4
SECRET = "open-sesame"

Start = Callable[..., RedisServer]


redis_alone = pytest.mark.parametrize("start_redis", ["redis"], indirect=True)
"""For tests that take seconds, of a server that Valkey took over as it is."""


@pytest.fixture
def store(redis_url: str, redis_prefix: str) -> Iterator[Redis]:
    with Redis(redis_url, prefix=redis_prefix) as store:
        yield store


# Round trips


def test_round_trips_of_the_first_use(proxy: Proxy, proxied: str) -> None:
    """A new process needs one round trip for its first key, which also tells the server's memory policy."""
    with Redis(proxied) as store:
        store.get("loads the scripts")
    proxy.latency, proxy.round_trips = FAR, 0
    with Redis(proxied) as store:
        store.get("key")
        assert proxy.round_trips == 1


# A key that is elsewhere


def test_a_key_moved_elsewhere(own_cluster: str) -> None:
    """The store waits for a slot that no node serves, then raises StoreUnavailable. Later it works again."""
    with Redis(own_cluster) as store, Redis(own_cluster, timeout=0.5) as hasty:
        store.set("a", b"1")
        with driver.Redis(port=int(own_cluster.rpartition(":")[2])) as node:
            slot = node.execute_command("CLUSTER KEYSLOT", "{vstate}:v")
            node.execute_command("CLUSTER DELSLOTS", slot)
            with pytest.raises(StoreUnavailable):
                hasty.get("a")
            node.execute_command("CLUSTER ADDSLOTS", slot)
            assert store.get("a") == b"1"


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="needs /dev/fd")
def test_a_closed_store_has_no_connection(cluster_url: str) -> None:
    """Not one of the driver's own client either, which would leave it to the garbage collector."""
    gc.disable()
    try:
        before = os.listdir("/dev/fd")
        with Redis(cluster_url) as store:
            store.set("a", b"1")
            assert len(os.listdir("/dev/fd")) > len(before)
        assert len(os.listdir("/dev/fd")) == len(before)
    finally:
        gc.enable()


# Large and many


def test_a_transaction_of_many_rows(store: Redis) -> None:
    """A large write is one transaction too, whether it happens or not. `set_many` makes several of it."""
    rows: dict[str, bytes | None] = {f"o/{number:064x}": bytes(100_000) for number in range(100)}
    rows |= {f"n/{number}": b"" for number in range(20_000)}
    store.set("ref", b"0")
    assert store.transact({**rows, "ref": b"1"}, {"ref": b"wrong"}) is False
    assert list(store.keys()) == ["ref"]
    assert store.transact({**rows, "ref": b"1"}, {"ref": b"0"}) is True
    assert store.get_many(rows) == rows
    store.set_many(dict.fromkeys(rows, b"again"))
    assert set(store.get_many(rows).values()) == {b"again"}
    assert store.exclusively(lambda: dict.fromkeys(rows)) is True
    assert dict(store.items()) == {"ref": b"1"}


def test_what_one_transaction_cannot_be_told_is_refused(
    store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More rows, expectations or bytes than a server takes in one command are refused before any is sent."""
    monkeypatch.setattr("vstate.kv.redis.transactions.MOST_ARGUMENTS", 100)
    monkeypatch.setattr("vstate.kv.redis.transactions.MOST_BYTES", 1000)
    names = [f"n/{number}" for number in range(101)]
    store.set("n/1", b"1")
    for writes, expected in [
        (dict.fromkeys(names), {}),
        (dict.fromkeys(names[:51], b""), {}),
        ({"a": b"1"}, dict.fromkeys(names[:51], b"")),
        ({"a": bytes(500), "b": bytes(501)}, {}),
    ]:
        with pytest.raises(InvalidInput, match="make several of it"):
            store.transact(writes, expected)  # type: ignore[arg-type]
    assert list(store.keys()) == ["n/1"]


def test_objects_are_listed_once_while_they_are_deleted(store: Redis) -> None:
    """A hash that shrinks while it is listed, so that the server repeats itself, gives each key once."""
    ids = [f"o/0{number:063x}" for number in range(20_000)]
    store.set_many(dict.fromkeys(ids, b"x" * 100))
    listed = []
    for key in store.keys("o/"):
        listed.append(key)
        if len(listed) == 1000:
            # All but a few, so the table shrinks in steps. The rest must be listed.
            store.delete_many(ids[500:])
    assert len(listed) == len(set(listed))
    assert set(ids[:500]) <= set(listed)


def test_a_server_that_is_started_anew(server: RedisServer) -> None:
    """It knows no scripts, and orders its keys differently: a write happens, and a listing goes on and has
    each key once.
    """
    with Redis(server.url) as store:
        ids = {f"o/0{number:063x}" for number in range(2500)}
        store.set_many(dict.fromkeys(ids, b"x" * 100))
        listed = []
        for key in store.keys("o/"):
            listed.append(key)
            if len(listed) in (700, 1900):
                server.restart()
                old = store.get("ref")
                assert store.compare_and_swap("ref", old, b"%d" % len(listed)) is True
        assert len(listed) == len(set(listed))
        assert set(listed) == ids
        assert store.get("ref") == b"1900"


def test_pickling(store: Redis, redis_url: str) -> None:
    """A store is pickled as its URL; not with a password in it, and not if it was made of a client."""
    store.set("a", b"1")
    with pickle.loads(pickle.dumps(store)) as copy:
        assert copy.get("a") == b"1"
        assert repr(copy) == repr(store)
        assert pickle.dumps(copy) == pickle.dumps(store)
    assert b"vstate.kv.redis\x94\x8c\x05Redis" in pickle.dumps(store, protocol=4)
    with pytest.raises(TypeError, match="password"):
        pickle.dumps(Redis(f"redis://:{SECRET}@127.0.0.1:1"))
    with pytest.raises(TypeError, match="password"):
        pickle.dumps(Redis(f"rediss://127.0.0.1:1?ssl_keyfile=key&ssl_password={SECRET}"))
    with driver.Redis.from_url(redis_url) as client, pytest.raises(TypeError, match="client"):
        pickle.dumps(Redis(client=client))


# exclusively


def test_a_plan_longer_than_the_lock(store: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock lasts as long as the plan, and a writer waits for its end."""
    monkeypatch.setattr("vstate.kv.redis.transactions.LOCK_SECONDS", 1.5)
    thread = threading.Thread(target=store.set, args=("a", b"theirs"))

    def plan() -> dict[str, bytes | None]:
        thread.start()
        time.sleep(2)
        assert store.get("a") is None
        assert thread.is_alive()
        return {"a": b"mine"}

    assert store.exclusively(plan)
    thread.join()
    assert store.get("a") == b"theirs"


@pytest.mark.parametrize("losses", [1, 5])
def test_a_lost_lock_begins_anew(losses: int, store: Redis, redis_url: str, redis_prefix: str) -> None:
    """If the lock is lost before the writes, the plan runs again and sees the changes since; five times."""
    calls = []

    def plan() -> dict[str, bytes | None]:
        calls.append(store.get("a"))
        if len(calls) <= losses:
            with driver.Redis.from_url(redis_url) as client:
                client.delete(f"{{{redis_prefix}}}:lock")
            store.set("a", b"between")
        return {"b": calls[-1]}

    if losses == 5:
        with pytest.raises(StoreUnavailable, match="lost its lock 5 times") as caught:
            store.exclusively(plan)
        assert not caught.value.outcome_unknown
        assert store.get("b") is None
        return
    assert store.exclusively(plan)
    assert calls == [None, b"between"]
    assert store.get("b") == b"between"


def test_a_process_that_dies_with_the_lock(store: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others wait for the few seconds that its lock lasts, and no longer."""
    monkeypatch.setattr("vstate.kv.redis.transactions.LOCK_SECONDS", 1.5)
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        store.exclusively(lambda: os._exit(9))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    store.set("a", b"1")
    assert 1.4 < time.monotonic() - began < 20


# Listening


def test_listening_across_a_fork(store: Redis) -> None:
    """A child that inherits a wait gets a connection of its own, and leaves its parent's alone."""
    with store.listening("a") as wait:
        child = os.fork()
        if child == 0:
            good = _seconds(lambda: wait(20)) < 15  # finds that it has no connection yet
            store.set("b", b"1")
            good = good and _seconds(lambda: wait(0.2)) >= 0.19
            store.set("a", b"1")
            good = good and _seconds(lambda: wait(20)) < 15
            os._exit(0 if good else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert _seconds(lambda: wait(20)) < 15  # the child did not take the message away
        assert 0.04 < _woken(wait, lambda: store.set("a", b"2")) < 15


# Expiry


def test_the_store_expires_as_a_whole(server: RedisServer) -> None:
    """Each write extends the life of the whole store, and of no part of it alone. Afterwards the store is
    empty. A writer without a ttl takes the ttl of another away.
    """
    rows = {f"o/{number:x}{'0' * 63}": b"object" for number in range(16)} | {"r/heads/main": b"1"}
    rows |= {f"room/{number:016x}/{key}": value for number in range(3) for key, value in rows.items()}
    with (
        Redis(server.url, ttl=60.0) as store,
        Redis(server.url) as lasting,
        Redis(server.url, ttl=0.3) as brief,
        driver.Redis.from_url(server.url) as client,
    ):

        def ends() -> tuple[float, float]:
            """The earliest and the latest moment, in milliseconds, at which all keys may end together."""
            earliest, latest = 0.0, float("inf")
            for key in client.scan_iter():
                asked = time.monotonic()
                left = client.pttl(key)
                earliest = max(earliest, asked * 1000 + left - 1)
                latest = min(latest, time.monotonic() * 1000 + left + 1)
            return earliest, latest

        store.set_many(rows)
        earliest, first = ends()
        assert earliest <= first
        time.sleep(0.1)
        store.set("touched", b"1")
        again, latest = ends()
        assert first < again <= latest
        lasting.set("b", b"2")
        assert {client.pttl(key) for key in client.scan_iter()} == {-1}
        assert dict(store.items()) == {**rows, "touched": b"1", "b": b"2"}
        brief.delete("b")
        time.sleep(0.5)
        assert list(store.keys()) == []
        assert list(client.scan_iter()) == []


# Memory


@redis_alone
def test_a_server_that_evicts_is_refused(start_redis: Start) -> None:
    """A server that would silently throw state away is not used; without a limit it never would."""
    server = start_redis(maxmemory="50mb")
    for policy, ttl, refused in [
        ("allkeys-lru", None, True),
        ("allkeys-random", None, True),
        ("volatile-lru", 60, True),
        ("volatile-ttl", None, False),
        ("noeviction", 60, False),
    ]:
        server.command("CONFIG", "SET", "maxmemory", "50mb")
        server.command("CONFIG", "SET", "maxmemory-policy", policy)
        with Redis(server.url, ttl=ttl) as store:
            if refused:
                for _ in range(2):
                    with pytest.raises(InvalidInput, match=f"{policy}.*noeviction"):
                        store.set("a", b"1")
                server.command("CONFIG", "SET", "maxmemory", "0")
            store.set("a", b"1")
            assert store.get("a") == b"1"


def test_a_full_server(start_redis: Start) -> None:
    """A write that does not fit raises StoreFull and does nothing. Deleting works, and makes room."""
    server = start_redis(maxmemory="12mb", appendonly="no")
    with Redis(server.url) as store:
        store.set("r/heads/main", b"1")
        held = []
        with pytest.raises(StoreFull, match="maxmemory"):
            for number in range(1000):
                store.set(f"o/{number:064x}", os.urandom(100_000))
                held.append(f"o/{number:064x}")
        assert sorted(store.keys("o/")) == held
        # However little is asked for, it is more than there is now.
        server.command("CONFIG", "SET", "maxmemory", "2mb")
        with pytest.raises(StoreFull):
            store.transact({"r/heads/main": b"2", OBJECT: b"x"}, {"r/heads/main": b"1"})
        with pytest.raises(StoreFull):
            store.transact({"large": os.urandom(20_000_000)}, {})
        assert store.get_many(["r/heads/main", OBJECT]) == {"r/heads/main": b"1"}
        assert store.exclusively(lambda: {**dict.fromkeys(held[:30]), "gc": b"1"})
        store.delete_many(held[30:40])
        with pytest.raises(StoreFull):
            store.set("r/heads/main", b"2")
        server.command("CONFIG", "SET", "maxmemory", "500mb")
        assert store.transact({"r/heads/main": b"2"}, {"r/heads/main": b"1"})
        assert sorted(store.keys("o/")) == held[40:]


# Faults


@pytest.fixture
def through(proxied: str) -> Iterator[Redis]:
    with Redis(proxied) as through:
        through.set_many({"r/heads/main": b"1", "stale": b"x", OBJECT: b"object"})
        yield through


def test_a_request_that_arrives_late_does_nothing_more(through: Redis, proxy: Proxy) -> None:
    """The network delays the first try of a transaction until the second was answered and others have
    written. It must not happen again or late.
    """
    through.set("r", b"1")
    writes: list[tuple[Callable[[], object], bytes]] = [
        (lambda: through.compare_and_swap("r", b"1", b"2"), b"1"),
        (lambda: through.compare_and_swap("r", b"5", b"6"), b"5"),
        (lambda: through.set("r", b"7"), b"8"),
        (lambda: through.delete("r"), b"9"),
    ]
    for late, then in writes:
        at_request(proxy, "hold", match=b"EVALSHA")
        late()
        assert through.compare_and_swap("r", through.get("r"), then)
        proxy.release()
        assert through.get("r") == then


def test_what_may_arrive_after_the_error_is_not_denied(
    through: Redis, proxy: Proxy, proxied: str, server: RedisServer
) -> None:
    """The network delays a swap, the second try meets a lock until the timeout, and then the first arrives.

    The error must not have said that nothing was written.
    """
    over, locked = threading.Event(), threading.Event()

    def plan() -> dict[str, bytes | None]:
        locked.set()
        over.wait(60)
        return {}

    with Redis(server.url) as other, Redis(proxied, timeout=0.5) as hasty:
        hasty.get("r/heads/main")
        holder = threading.Thread(target=other.exclusively, args=(plan,))
        holder.start()
        assert locked.wait(60)
        at_request(proxy, "hold", match=b"EVALSHA")
        with pytest.raises(StoreUnavailable, match="locked") as caught:
            hasty.compare_and_swap("r/heads/main", b"1", b"2")
        assert caught.value.outcome_unknown is True
        over.set()
        holder.join()
        proxy.release()
        assert through.get("r/heads/main") == b"2"


@redis_alone
def test_a_server_that_goes_away_after_it_refused(
    through: Redis, proxy: Proxy, proxied: str, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that met another's lock wrote nothing, also if the server is out of reach from then on."""
    for name in ("FIRST_BUSY_PAUSE", "LONGEST_BUSY_PAUSE"):
        monkeypatch.setattr(f"vstate.kv.redis.transactions.{name}", 0.4)
    refused = threading.Event()

    def watch(side: str, data: bytes) -> str:
        if side == "server" and b":-1" in data:
            refused.set()
        return "pass"

    def goes() -> None:
        refused.wait(60)
        time.sleep(0.1)
        proxy.close()

    def plan() -> dict[str, bytes | None]:
        gone = threading.Thread(target=goes)
        gone.start()
        with pytest.raises(StoreUnavailable) as caught:
            hasty.compare_and_swap("r/heads/main", b"1", b"2")
        gone.join()
        assert caught.value.outcome_unknown is False
        return {}

    with Redis(server.url) as other, Redis(proxied, timeout=1.5) as hasty:
        hasty.get("r/heads/main")
        proxy.watch = watch
        assert other.exclusively(plan)
        assert other.get("r/heads/main") == b"1"


# Accepted arguments


NUMBERS = (0, -1, float("nan"), float("inf"), "1", True)


@pytest.mark.parametrize(
    "options",
    [{"prefix": prefix} for prefix in ("", "a{b", "a}b", "nul\0")]
    + [{name: number} for name in ("ttl", "timeout") for number in NUMBERS]
    + [{"ttl": 1e15}, {"client": object(), "url": None}, {"url": None}],
)
def test_wrong_options(options: dict[str, Any]) -> None:
    """Options that make no sense are refused when the store is made."""
    with pytest.raises(InvalidInput):
        Redis(**{"url": "redis://127.0.0.1:1", **options})


def test_wrong_clients() -> None:
    """A client beside a URL, or one that changes the answers, is refused."""
    with driver.Redis() as client, pytest.raises(InvalidInput, match="client"):
        Redis("redis://h", client=client)
    for options in ({"decode_responses": True}, {"encoding": "latin-1"}):
        with driver.Redis(**options) as client, pytest.raises(InvalidInput, match=r"decode_responses|utf-8"):
            Redis(client=client)


@redis_alone
def test_a_password(start_redis: Start) -> None:
    """The right password works. A wrong one, or none, is one error at once, without user and password."""
    server = start_redis(requirepass=SECRET)
    address = server.url.removeprefix("redis://")
    with Redis(f"redis://:{SECRET}@{address}") as store:
        store.set("a", b"1")
        assert store.get("a") == b"1"
        assert SECRET not in repr(store) + store.location
        assert address in store.location
    for wrong in (f"redis://:{SECRET}2@{address}", f"redis://{SECRET}3:{SECRET}4@{address}", server.url):
        with Redis(wrong) as store:
            with pytest.raises(StoreUnavailable, match="password") as caught:
                _seconds(lambda store=store: store.set("a", b"2"))
            assert SECRET not in str(caught.value)
            assert not caught.value.outcome_unknown
            assert SECRET not in repr(store) + store.location


@redis_alone
def test_a_user_with_few_rights(server: RedisServer) -> None:
    """A user without the rights for PUBLISH, SUBSCRIBE or INFO can use a store.

    Without scripts it gets an error.
    """
    server.command("ACL", "SETUSER", "plain", "on", f">{SECRET}", "~{vstate}:*", "+@all", "-@pubsub", "-info")
    server.command("ACL", "SETUSER", "reader", "on", f">{SECRET}", "~*", "+@read")
    address = server.url.removeprefix("redis://")
    with Redis(f"redis://plain:{SECRET}@{address}") as store:
        assert store.transact({"a": b"1", OBJECT: b"object"}, {"a": None})
        assert dict(store.items()) == {"a": b"1", OBJECT: b"object"}
        with store.listening("a") as wait:
            assert _seconds(lambda: wait(30)) < 20
    with Redis(f"redis://reader:{SECRET}@{address}") as store:
        with pytest.raises(StoreUnavailable, match="ACL") as caught:
            store.get("a")
        assert SECRET not in str(caught.value)


@redis_alone
def test_a_unix_socket(start_redis: Start, tmp_path: Path) -> None:
    """A server on this machine can be reached through a file."""
    server = start_redis(unixsocket=str(tmp_path / "socket"))
    with Redis(f"unix://{tmp_path}/socket?db=3") as store:
        store.set("a", b"1")
        assert store.get("a") == b"1"
        assert f"{tmp_path}/socket" in store.location
    with Redis(server.url.replace("/0", "/3")) as store:
        assert store.get("a") == b"1"


def test_keys_of_another_program(server: RedisServer) -> None:
    """The data of another program under the prefix are not touched, and the message gives advice."""
    server.command("SET", "{vstate}:v", "text")
    with Redis(server.url) as store:
        for call in (lambda: store.get("a"), lambda: store.set("a", b"1")):
            with pytest.raises(InvalidInput, match="another prefix"):
                call()
    assert server.command("GET", "{vstate}:v") == b"$4\r\ntext\r\n"


@redis_alone
def test_a_replica(server: RedisServer, start_redis: Start) -> None:
    """A replica can be read. A write raises, and says that the server is a replica."""
    replica = start_redis(replicaof=f"127.0.0.1 {server.port}")
    with Redis(server.url) as store, Redis(replica.url, timeout=10) as copy:
        store.set("a", b"1")
        end = time.monotonic() + 100
        while copy.get("a") != b"1":
            assert time.monotonic() < end
            time.sleep(0.05)
        for call in (lambda: copy.set("a", b"2"), lambda: copy.exclusively(dict)):
            with pytest.raises(StoreUnavailable, match="replica") as caught:
                call()
            assert not caught.value.outcome_unknown


@redis_alone
def test_behind_a_name_another_primary_is_found(
    server: RedisServer, start_redis: Start, proxy: Proxy, proxied: str
) -> None:
    """After a failover the name leads to another server: no connection to the old one is used again."""
    other = start_redis()
    with Redis(proxied) as store:
        store._link.connections.use(lambda _: store.set("a", b"1"))  # so it has two connections
        server.command("REPLICAOF", "127.0.0.1", str(other.port))
        proxy._server = ("127.0.0.1", other.port)
        with pytest.raises(StoreUnavailable, match="replica"):
            store.set("a", b"2")
        store.set("a", b"3")
        assert store.get("a") == b"3"


@redis_alone
def test_tls(server: RedisServer, tmp_path: Path) -> None:
    """A certificate must be signed by a trusted authority, for this host.

    Options can turn off both checks.
    """
    with TlsProxy(server.port, tmp_path) as proxy:
        trusted = f"rediss://localhost:{proxy.port}/0?ssl_ca_certs={tmp_path}/certificate&timeout=5"
        unnamed = trusted.replace("localhost", "127.0.0.1")
        for url in (
            trusted,
            f"{unnamed}&ssl_check_hostname=false",
            unnamed.split("?")[0] + "?ssl_cert_reqs=none",
        ):
            with open_store(url) as store:
                store.set("a", b"1" * 100_000)
                assert store.get("a") == b"1" * 100_000
                with store.listening("a") as wait:
                    assert 0.04 < _woken(wait, lambda store=store: store.set("a", b"2")) < 15  # type: ignore[misc]
        for url in (unnamed, trusted.split("?")[0]):
            with open_store(url) as store, pytest.raises(StoreUnavailable, match="certificate verify failed"):
                store.get("a")


@redis_alone
def test_tls_to_a_server_without(server: RedisServer) -> None:
    """A handshake that fails is StoreUnavailable."""
    with Redis(server.url.replace("redis:", "rediss:"), timeout=2) as store:
        with pytest.raises(StorageError):
            store.get("a")


def _woken(wait: Callable[[float], None], call: Callable[[], object]) -> float:
    """How many seconds a wait takes if another thread makes this call in a moment."""
    timer = threading.Timer(0.05, call)
    start = time.monotonic()
    timer.start()
    wait(20)
    taken = time.monotonic() - start
    timer.join()
    return taken


def _seconds(call: Callable[[], object]) -> float:
    start = time.monotonic()
    call()
    return time.monotonic() - start
