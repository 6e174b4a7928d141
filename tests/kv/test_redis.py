"""Redis: the store contract on a real server, and its own behaviour."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis as driver
from protocol_proxies import at_request
from proxy import FAR, Proxy
from redis_server import RedisServer, TlsProxy
from servers import valkey

from vstate import open_store
from vstate.errors import InvalidInput, StorageError, StoreFull, StoreUnavailable
from vstate.kv.redis import Redis
from vstate.kv.redis.transactions import MOST_ARGUMENTS, STAGED_FROM
from vstate.testing import KVStoreTests

pytestmark = pytest.mark.slow

OBJECT = "o/" + "0123456789abcdef" * 4
SECRET = "open-sesame"

Start = Callable[..., RedisServer]

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

redis_alone = pytest.mark.parametrize("start_redis", ["redis"], indirect=True)
"""For tests that take seconds, of a server that Valkey took over as it is."""


class TestRedis(KVStoreTests):
    @pytest.fixture
    def store(self, redis_url: str, redis_prefix: str) -> Iterator[Redis]:
        with Redis(redis_url, prefix=redis_prefix) as store:
            yield store

    @pytest.fixture
    def reopen(self, redis_url: str, redis_prefix: str) -> Callable[[], Redis]:
        return lambda: Redis(redis_url, prefix=redis_prefix)


@pytest.fixture(scope="module")
def valkey_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Valkey that tests share."""
    server = RedisServer(tmp_path_factory.mktemp("valkey"), program=valkey(), appendfsync="no")
    yield server.url
    server.stop()


class TestValkey(KVStoreTests):
    @pytest.fixture
    def store(self, valkey_url: str, redis_prefix: str) -> Iterator[Redis]:
        with Redis(valkey_url, prefix=redis_prefix) as store:
            yield store

    @pytest.fixture
    def reopen(self, valkey_url: str, redis_prefix: str) -> Callable[[], Redis]:
        return lambda: Redis(valkey_url, prefix=redis_prefix)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a cluster of one node."""
    with _cluster(tmp_path_factory.mktemp("cluster")) as url:
        yield url


class TestRedisCluster(KVStoreTests):
    """The same over a client of the caller, in the newer protocol, on a cluster of a single node."""

    @pytest.fixture
    def client(self, cluster: str) -> Iterator[driver.RedisCluster]:
        client = driver.RedisCluster.from_url(cluster.replace("+cluster", ""), protocol=3)
        yield client
        assert client.ping()  # it is not the store's to close
        client.close()

    @pytest.fixture
    def store(self, client: driver.RedisCluster, redis_prefix: str) -> Iterator[Redis]:
        with Redis(client=client, prefix=redis_prefix) as store:
            assert store.location.startswith("redis+cluster://127.0.0.1:")
            yield store

    @pytest.fixture
    def reopen(self, cluster: str, redis_prefix: str) -> Callable[[], Redis]:
        return lambda: Redis(cluster, prefix=redis_prefix)

    def test_a_key_moved_elsewhere(self, tmp_path: Path, redis_prefix: str) -> None:
        """The store waits for a slot that no node serves, then raises StoreUnavailable.

        Later it works again.
        """
        with _cluster(tmp_path / "cluster") as url:
            with (
                Redis(url, prefix=redis_prefix) as store,
                Redis(url, prefix=redis_prefix, timeout=0.5) as hasty,
            ):
                store.set("a", b"1")
                port = url.rsplit(":", 1)[1]
                with driver.Redis(port=int(port)) as node:
                    slot = node.execute_command("CLUSTER KEYSLOT", f"{{{redis_prefix}}}:v")
                    node.execute_command("CLUSTER DELSLOTS", slot)
                    with pytest.raises(StoreUnavailable):
                        hasty.get("a")
                    node.execute_command("CLUSTER ADDSLOTS", slot)
                    assert store.get("a") == b"1"


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


# Large and many


def test_a_transaction_too_large_for_one_command(store: Redis, redis_url: str, redis_prefix: str) -> None:
    """A large write is one transaction too, and leaves nothing behind, whether it happens or not."""
    value = os.urandom(1_000_000)
    rows: dict[str, bytes | None] = {
        f"o/{number:064x}": value for number in range(STAGED_FROM // len(value) + 2)
    }
    store.set("old", b"1")
    assert store.transact({**rows, "r/heads/main": b"1"}, {"r/heads/main": b"0"}) is False
    assert list(store.keys()) == ["old"]
    writes = {**rows, "r/heads/main": b"1", "old": None}
    assert store.transact(writes, {"r/heads/main": None, "old": b"1"}) is True
    assert set(store.keys()) == {*rows, "r/heads/main"}
    assert store.get_many(rows) == rows
    assert store.exclusively(lambda: {**rows, "r/heads/main": b"2"}) is True
    assert store.get("r/heads/main") == b"2"
    with driver.Redis.from_url(redis_url) as client:
        assert not [key for key in client.scan_iter(f"{{{redis_prefix}}}:*") if b":stage:" in key]


def test_a_large_transaction_that_loses_a_race(store: Redis, redis_url: str, redis_prefix: str) -> None:
    """A ref that moves while it is being brought to the server undoes it, and nothing stays behind."""
    rows: dict[str, bytes | None] = {f"o/{number:064x}": bytes(STAGED_FROM // 2 + 1) for number in range(2)}

    with driver.Redis.from_url(redis_url) as client, Redis(redis_url, prefix=redis_prefix) as other:

        def stages() -> list[Any]:
            return [client.hlen(key) for key in client.scan_iter(f"{{{redis_prefix}}}:stage:*")]

        answers: list[bool] = []
        thread = threading.Thread(
            target=lambda: answers.append(
                store.transact({**rows, "r/heads/main": b"1"}, {"r/heads/main": None})
            )
        )

        def plan() -> dict[str, bytes | None]:
            thread.start()
            while stages() != [3]:
                time.sleep(0.01)
            return {"r/heads/main": b"theirs"}

        assert other.exclusively(plan)
        thread.join()
        assert answers == [False]
        assert dict(store.items()) == {"r/heads/main": b"theirs"}
        assert stages() == []


@redis_alone
def test_a_transaction_of_many_small_rows(
    proxy: Proxy, proxied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More keys than one command may have go in pieces, in one transaction."""
    monkeypatch.setattr("vstate.kv.redis.transactions.STAGED_ROWS", 100)
    rows: dict[str, bytes | None] = {f"n/{number}": b"" for number in range(101)}
    with Redis(proxied) as store:
        store.set("r/heads/main", b"0")
        cut = at_request(proxy, "reply", match=b":stage:")
        assert store.transact({**rows, "r/heads/main": b"1"}, {"r/heads/main": b"0"}) is True
        assert cut.made
        assert set(store.keys()) == {*rows, "r/heads/main"}


def test_what_one_transaction_cannot_be_told_is_refused(store: Redis) -> None:
    """More deletions and expectations than a server takes in one command are refused before any is sent."""
    names = [f"n/{number}" for number in range(MOST_ARGUMENTS + 1)]
    store.set("n/1", b"1")
    with pytest.raises(InvalidInput, match="make several of it"):
        store.transact(dict.fromkeys(names), {})
    with pytest.raises(InvalidInput, match="make several of it"):
        store.transact({"a": b"1"}, dict.fromkeys(names[: MOST_ARGUMENTS // 2 + 1], b""))
    assert list(store.keys()) == ["n/1"]


def test_set_many_of_more_than_one_exchange(store: Redis) -> None:
    """A write that does not fit into one exchange takes several."""
    rows = {f"n/{number}": os.urandom(3_000_000) for number in range(14)}
    store.set_many(rows)
    assert store.get_many(rows) == rows


def test_objects_are_listed_by_a_few_digits(store: Redis) -> None:
    """Any number of digits finds the objects that begin so, odd numbers too."""
    ids = [f"{number * 2654435761 % 2**32:08x}" + "0" * 56 for number in range(700)]
    store.set_many({f"o/{id}": b"object" for id in ids})
    for count in (1, 2, 3, 4, 5, 64):
        prefix = f"o/{ids[123][:count]}"
        assert sorted(store.keys(prefix)) == sorted(f"o/{id}" for id in ids if f"o/{id}".startswith(prefix))


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


def test_a_listing_goes_on_when_the_server_is_started_anew(server: RedisServer) -> None:
    """The new server orders its keys differently, and each is listed once."""
    with Redis(server.url) as store:
        ids = {f"o/0{number:063x}" for number in range(3000)}
        store.set_many(dict.fromkeys(ids, b"x" * 100))
        listed = []
        for key in store.keys("o/"):
            listed.append(key)
            if len(listed) in (700, 1900):
                server.restart()
        assert len(listed) == len(set(listed))
        assert set(listed) == ids


# Sharing


def test_prefixes_are_stores_of_their_own(store: Redis, redis_url: str, redis_prefix: str) -> None:
    """Two prefixes on one server do not see each other, not even if one begins with the other."""
    with Redis(redis_url, prefix=f"{redis_prefix}-2") as other:
        store.set_many({"a": b"1", OBJECT: b"1"})
        other.set("b", b"2")
        assert dict(other.items()) == {"b": b"2"}
        assert dict(store.items()) == {"a": b"1", OBJECT: b"1"}


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


@redis_alone
def test_what_takes_longer_to_write_than_the_lock_lasts(
    store: Redis, proxy: Proxy, proxied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is renewed until the last write, not only until the plan has ended."""
    monkeypatch.setattr("vstate.kv.redis.transactions.LOCK_SECONDS", 1.5)
    monkeypatch.setattr("vstate.kv.redis.transactions.BYTES_PER_COMMAND", 1_000_000)
    proxy.latency = 0.05
    plans = []

    def plan() -> dict[str, bytes | None]:
        plans.append(1)
        return {f"o/{number:064x}": bytes(1_000_000) for number in range(40)}

    with Redis(proxied) as slow:
        start = time.monotonic()
        assert slow.exclusively(plan)
        assert time.monotonic() - start > 1.5, "it is no test unless it takes longer than the lock"
        assert len(plans) == 1
        assert len(list(slow.keys("o/"))) == 40


def test_a_lost_lock_begins_anew(store: Redis, redis_url: str, redis_prefix: str) -> None:
    """If the lock is lost before the writes, the plan runs again and sees the changes since."""
    calls = []

    def plan() -> dict[str, bytes | None]:
        calls.append(store.get("a"))
        if len(calls) == 1:
            with driver.Redis.from_url(redis_url) as client:
                client.delete(f"{{{redis_prefix}}}:lock")
            store.set("a", b"between")
        return {"b": calls[-1]}

    assert store.exclusively(plan)
    assert calls == [None, b"between"]
    assert store.get("b") == b"between"


@needs_fork
def test_a_process_that_dies_with_the_lock(store: Redis) -> None:
    """Others wait for the few seconds that its lock lasts, and no longer."""
    child = os.fork()
    if child == 0:
        store.exclusively(lambda: os._exit(9))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert 1 < _seconds(lambda: store.set("a", b"1")) < 20


# Listening


def test_listening_while_cut_off(proxy: Proxy, proxied: str) -> None:
    """A wait that is cut off returns, so the caller looks for missed changes.

    Later changes are heard again.
    """
    with Redis(proxied) as store:
        with store.listening("a") as wait:
            assert _woken(wait, proxy.cut_all) < 15
            store.set("a", b"1")  # not heard
            assert _seconds(lambda: wait(20)) < 15
            assert 0.04 < _woken(wait, lambda: store.set("a", b"2")) < 15


def test_listening_to_a_server_that_is_down(server: RedisServer) -> None:
    """A wait raises nothing and spins not; the server is found again when it is back."""
    with Redis(server.url) as patient, Redis(server.url, timeout=0.5) as store:
        patient.set("a", b"0")
        with store.listening("a") as wait:
            server.kill()
            wait(5)
            assert _seconds(lambda: [wait(0.05) for _ in range(4)]) >= 0.19
            server.start()
            while _seconds(lambda: wait(0.3)) < 0.29:  # it has no connection yet, or has a new one
                pass
            assert 0.04 < _woken(wait, lambda: patient.set("a", b"1")) < 15


@needs_fork
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
    """Each write extends the life of the whole store.

    Afterwards the store is empty, and no part of it goes earlier.
    """
    rows = {f"o/{number:x}{'0' * 63}": b"object" for number in range(16)} | {"r/heads/main": b"1"}
    rows |= {f"room/{number:016x}/{key}": value for number in range(3) for key, value in rows.items()}
    with Redis(server.url, ttl=2.0) as store, driver.Redis.from_url(server.url) as client:
        store.set_many(rows)
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            store.set("touched", b"1")
            with client.pipeline() as asked:  # all at one moment of the server's
                for key in client.scan_iter():
                    asked.pttl(key)
                ends = asked.execute()
            assert max(ends) - min(ends) < 100
            time.sleep(0.05)
        assert dict(store.items()) == {**rows, "touched": b"1"}
        time.sleep(2.2)
        assert list(store.keys()) == []
        assert list(client.scan_iter()) == []


def test_a_store_without_ttl_never_expires(server: RedisServer) -> None:
    """A writer without a ttl also removes the ttl of another."""
    with (
        Redis(server.url, ttl=60) as short,
        Redis(server.url) as store,
        driver.Redis.from_url(server.url) as client,
    ):

        def ends() -> set[bool]:
            return {client.pttl(key) > 0 for key in client.scan_iter()}

        short.set_many({"a": b"1", OBJECT: b"object"})
        assert ends() == {True}
        store.set("b", b"2")
        assert ends() == {False}
        assert dict(store.items()) == {"a": b"1", "b": b"2", OBJECT: b"object"}


# Memory


@pytest.mark.parametrize(
    ("policy", "ttl", "refused"),
    [
        ("allkeys-lru", None, True),
        ("allkeys-random", None, True),
        ("volatile-lru", 60, True),
        ("volatile-ttl", None, False),
        ("noeviction", 60, False),
    ],
)
def test_a_server_that_evicts_is_refused(
    start_redis: Start, policy: str, ttl: float | None, refused: bool
) -> None:
    """A server that would silently throw state away is not used; without a limit it never would."""
    server = start_redis(maxmemory="50mb", maxmemory_policy=policy)
    with Redis(server.url, ttl=ttl) as store:
        if refused:
            for _ in range(2):
                with pytest.raises(InvalidInput, match=f"{policy}.*noeviction"):
                    store.set("a", b"1")
            server.command("CONFIG", "SET", "maxmemory", "0")
            assert store.get("a") is None
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
            store.transact({"large": os.urandom(STAGED_FROM + 1)}, {})
        assert store.get_many(["r/heads/main", OBJECT]) == {"r/heads/main": b"1"}
        assert store.exclusively(lambda: {**dict.fromkeys(held[:30]), "gc": b"1"})
        store.delete_many(held[30:40])
        with pytest.raises(StoreFull):
            store.set("r/heads/main", b"2")
        server.command("CONFIG", "SET", "maxmemory", "500mb")
        assert store.transact({"r/heads/main": b"2"}, {"r/heads/main": b"1"})
        assert sorted(store.keys("o/")) == held[40:]


# Accepted arguments


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost",
        "localhost:6379",
        "redis:localhost",
        "",
        f"redis://:{SECRET}/x@localhost",
        f"redis://user:{SECRET}#x@localhost",
        f"redis://user:12/{SECRET}@localhost",
        f"redis://user:12?{SECRET}@localhost",
        f"redis://localhost:{SECRET}",
        f"redis://localhost/{SECRET}",
        f"redis://localhost?{SECRET}=1",
        f"redis://localhost?socket_timeout={SECRET}",
        f"redis+cluster://localhost?{SECRET}=1",
        "redis+cluster://localhost/3",
        "redis://localhost?decode_responses=1",
        "redis://localhost?encoding=latin-1",
        f"{SECRET}://localhost",
        7,
    ],
)
def test_a_wrong_url(url: Any) -> None:
    """A string that is no Redis URL is refused at once, by a message that shows none of it."""
    with pytest.raises(InvalidInput) as caught:
        Redis(url)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


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


@pytest.mark.parametrize(
    ("of_client", "url", "words"),
    [({}, "redis://h", "client"), ({"decode_responses": True}, None, "decode_responses")]
    + [({"encoding": "latin-1"}, None, "utf-8")],
)
def test_wrong_clients(of_client: dict[str, Any], url: str | None, words: str) -> None:
    """A client beside a URL, or one that changes the answers, is refused."""
    with driver.Redis(**of_client) as client, pytest.raises(InvalidInput, match=words):
        Redis(url, client=client)


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


@contextmanager
def _cluster(directory: Path) -> Iterator[str]:
    server = RedisServer(directory, appendfsync="no", cluster_enabled="yes", cluster_node_timeout="2000")
    try:
        with driver.Redis.from_url(server.url) as node:
            node.execute_command("CLUSTER ADDSLOTS", *range(16384))
            end = time.monotonic() + 100
            while b"cluster_state:ok" not in server.command("CLUSTER", "INFO"):
                assert time.monotonic() < end
                time.sleep(0.05)
        yield f"redis+cluster://127.0.0.1:{server.port}"
    finally:
        server.stop()


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
