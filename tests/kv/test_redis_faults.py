"""Redis when the network or the server fails: connections cut at every point, servers killed or stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from ports import free_ports
from protocol_proxies import at_request
from proxy import Proxy
from redis_server import RedisServer

from vstate.errors import StoreUnavailable
from vstate.kv.redis import Redis
from vstate.kv.redis.transactions import STAGED_FROM

pytestmark = pytest.mark.slow

OBJECT = "o/" + "0123456789abcdef" * 4
POINTS = ["before", "half", "reply", "torn"]


@pytest.fixture
def store(proxied: str) -> Iterator[Redis]:
    with Redis(proxied) as store:
        store.set_many({"r/heads/main": b"1", "stale": b"x", OBJECT: b"object"})
        yield store


# A connection that dies while an answer is under way


@pytest.mark.parametrize("point", POINTS)
def test_a_cut_connection_is_no_failure(store: Redis, proxy: Proxy, proxied: str, point: str) -> None:
    """A call that is cut at any point returns the true answer, and takes effect once."""
    calls: list[tuple[Callable[[], object], object]] = [
        (lambda: store.get("r/heads/main"), b"1"),
        (lambda: store.get_many(["stale", OBJECT]), {"stale": b"x", OBJECT: b"object"}),
        (lambda: store.present(["stale", "absent"]), {"stale"}),
        (lambda: sorted(store.keys()), sorted(["r/heads/main", "stale", OBJECT])),
        (lambda: store.set("a", b"1"), None),
        (lambda: store.delete("a"), None),
        (lambda: store.set_many({"a": b"1", "b": b"1"}), None),
        (lambda: store.delete_many(["b"]), None),
        (lambda: store.compare_and_swap("r/heads/main", b"1", b"2"), True),
        (lambda: store.compare_and_swap("r/heads/main", b"1", b"3"), False),
        (lambda: store.compare_and_swap("new", None, b"1"), True),
        (lambda: store.compare_and_swap("new", b"1", None), True),
        (lambda: store.transact({"r/heads/main": b"3", "b": b"2", "a": None}, {"r/heads/main": b"2"}), True),
        (lambda: store.transact({"r/heads/main": b"4", "b": b"3"}, {"r/heads/main": b"2"}), False),
    ]
    for number, (call, expected) in enumerate(calls):
        cut = at_request(proxy, point)
        assert call() == expected, number
        assert cut.made
    assert dict(store.items()) == {"r/heads/main": b"3", "stale": b"x", "b": b"2", OBJECT: b"object"}
    at_request(proxy, point)
    with Redis(proxied) as fresh:
        assert fresh.get("stale") == b"x"


@pytest.mark.parametrize("point", POINTS)
def test_exclusively_when_any_of_its_exchanges_is_cut(store: Redis, proxy: Proxy, point: str) -> None:
    """The lock, the plan's reads and the last script: cut any of them, and the counter counts by one."""
    number = 0
    store.set("n", b"0")

    def plan() -> dict[str, bytes | None]:
        return {"n": str(int(store.get("n") or b"0") + 1).encode()}

    while True:
        number += 1
        cut = at_request(proxy, point, number)
        assert store.exclusively(plan)
        assert store.get("n") == str(number).encode()
        if not cut.made or number > 20:
            break
    assert 3 < number < 10


@pytest.mark.parametrize("point", POINTS)
def test_a_large_transaction_when_any_of_its_exchanges_is_cut(store: Redis, proxy: Proxy, point: str) -> None:
    """One that is brought to the server in pieces happens as a whole, and once."""
    rows = {f"o/{number:064x}": bytes([number]) * (STAGED_FROM // 2 + 1) for number in range(2)}
    for number in (1, 2, 3):
        # Each row is brought on its own, and the script that puts them into the store names the stage too.
        cut = at_request(proxy, point, number, b":stage:")
        old, new = str(number).encode(), str(number + 1).encode()
        assert store.transact({**rows, "r/heads/main": new}, {"r/heads/main": old}) is True
        assert cut.made
        assert store.get("r/heads/main") == new
    assert store.get_many(rows) == rows


@pytest.mark.parametrize(
    ("late", "then"),
    [
        (lambda store: store.compare_and_swap("r", b"1", b"2"), b"1"),
        (lambda store: store.compare_and_swap("r", b"5", b"6"), b"5"),
        (lambda store: store.set("r", b"7"), b"8"),
        (lambda store: store.delete("r"), b"9"),
    ],
    ids=["a swap", "a swap that fails", "a set", "a delete"],
)
def test_a_request_that_arrives_late_does_nothing_more(
    store: Redis, proxy: Proxy, late: Callable[[Redis], object], then: bytes
) -> None:
    """The network delays the first try of a transaction until the second was answered and others have
    written. It must not happen again or late.
    """
    store.set("r", b"1")
    at_request(proxy, "hold", match=b"EVALSHA")
    late(store)
    assert store.compare_and_swap("r", store.get("r"), then)
    proxy.release()
    assert store.get("r") == then


def test_what_may_arrive_after_the_error_is_not_denied(
    store: Redis, proxy: Proxy, proxied: str, server: RedisServer
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
        assert store.get("r/heads/main") == b"2"


def test_what_happened_before_the_store_was_closed_is_not_denied(store: Redis, proxy: Proxy) -> None:
    """The answer to a write is lost, and another thread closes the store before the next attempt."""
    store.get("r/heads/main")

    def watch(side: str, data: bytes) -> str:
        if side == "client":
            return "pass"
        store.close()
        return "cut"

    proxy.watch = watch
    with pytest.raises(StoreUnavailable) as caught:
        store.compare_and_swap("r/heads/main", b"1", b"2")
    assert caught.value.outcome_unknown is True


def test_a_server_that_goes_away_after_it_refused(
    store: Redis, proxy: Proxy, proxied: str, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that met another's lock wrote nothing, also if the server is out of reach from then on."""
    for name in ("FIRST_BUSY_PAUSE", "LONGEST_BUSY_PAUSE"):
        monkeypatch.setattr(f"vstate.kv.redis.transactions.{name}", 1.0)
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

    with Redis(server.url) as other, Redis(proxied, timeout=3) as hasty:
        hasty.get("r/heads/main")
        proxy.watch = watch
        assert other.exclusively(plan)
        assert other.get("r/heads/main") == b"1"


# Servers that are not there


def test_a_server_that_was_never_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong address is one error, without another attempt, and no write can have happened."""
    monkeypatch.setattr("vstate.kv.servers.Backoff.pause", lambda *_, **__: pytest.fail("tried again"))
    (port,) = free_ports(1)
    places = [f"127.0.0.1:{port}", "no..name:1", f"{'a' * 80}:1"]
    urls = [f"{scheme}://{place}" for scheme in ("redis", "redis+cluster") for place in places]
    for url in (*urls, "unix:///nowhere/socket"):
        with Redis(url) as store:
            for call in (lambda: store.get("a"), lambda: store.set("a", b"1"), lambda: list(store.keys())):
                with pytest.raises(StoreUnavailable) as caught:
                    call()
                assert not caught.value.outcome_unknown
                assert caught.value.__cause__ is None
                assert url.removeprefix("unix://") in str(caught.value)


def test_a_server_started_anew_knows_no_scripts(server: RedisServer) -> None:
    """The scripts are brought to it again, within the call that needs them."""
    with Redis(server.url) as store:
        store.set("a", b"1")
        for number in range(3):
            server.restart()
            assert store.compare_and_swap("a", str(number + 1).encode(), str(number + 2).encode()) is True
            assert sorted(store.keys()) == ["a"]
