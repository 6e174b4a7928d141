"""What stores on a disk and on servers promise alike: after close, across forks, locked, and in trouble."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from proxy import FAR, Proxy
from servers import kind_of, on_server, url_of, with_options

from vstate.errors import InvalidInput, StoreUnavailable
from vstate.kv import KVStore, open_store

OBJECT = "o/" + "ab" * 32
ROOM = "room/00000000fe0a00ff/"


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store of this kind."""
    if request.param == "cache":
        return f"cache:disk:{tmp_path / 'store'}?timeout=60&max_bytes=5000&directory={tmp_path / 'near'}"
    if request.param == "disk":
        return f"disk:{tmp_path / 'store'}?timeout=60"
    return url_of(request.param, request)


def on(*kinds: str) -> Any:
    """The test runs on these kinds of stores."""
    quick = ("cache", "disk")
    places = [kind if kind in quick else on_server(kind) for kind in kinds]
    return pytest.mark.parametrize("url", places, indirect=True)


def within(seconds: float, url: str) -> str:
    """The URL with another timeout."""
    return re.sub("timeout=[0-9]+", f"timeout={seconds}", url)


def number(value: bytes | None) -> int:
    return int(value or b"0")


def increment(store: KVStore, times: int = 1) -> None:
    for _ in range(times):
        while True:
            old = store.get("counter")
            if store.compare_and_swap("counter", old, b"%d" % (number(old) + 1)):
                break


@on("disk", "redis", "postgres", "s3")
def test_a_closed_store_says_so(url: str) -> None:
    """Closing twice does no harm. Using a closed store is InvalidInput."""
    store = open_store(url)
    store.set_many({"a": b"1", "b": b"2"})
    store.close()
    store.close()
    calls = lambda: store.get("a"), lambda: store.get_many(["a", "b"]), lambda: store.set("a", b"")
    for call in (*calls, lambda: list(store.keys())):
        with pytest.raises(InvalidInput, match="is closed"):
            call()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
@pytest.mark.slow
@on("disk", "cache", "redis", "postgres", "s3")
def test_a_store_works_on_both_sides_of_a_fork(url: str) -> None:
    """Parents, children and their children swap and read, while another thread of the parent does so too."""
    stop = threading.Event()

    def busy() -> int:
        turns = 0
        while not stop.is_set():
            increment(store)
            turns += 1
        return turns

    def work(depth: int) -> bool:
        if depth and (child := os.fork()) == 0:
            status = 1
            try:
                status = 0 if work(depth - 1) else 2
            finally:
                os._exit(status)
        mine = f"o/{os.getpid():064x}"
        store.set(mine, bytes(1000))
        found = store.get_many([mine, OBJECT]) == {mine: bytes(1000), OBJECT: b"object"}
        increment(store, 3)
        return found and (not depth or os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0)

    forks = 4 if "disk:" in url else 2
    with open_store(url) as store, ThreadPoolExecutor(1) as threads:
        store.set(OBJECT, b"object")
        turns = threads.submit(busy)
        try:
            results = [work(2) for _ in range(forks)]
        finally:
            stop.set()
        assert results == [True] * forks
        total = forks * 9 + turns.result()
        assert number(store.get("counter")) == total


# Locks


@pytest.mark.slow
@on("disk", "redis", "postgres")
def test_the_world_of_a_plan_stands_still(url: str) -> None:
    """Plans and swaps by more threads than connections: no plan sees a change, and no increment is lost."""
    few = {"redis": ["max_connections=2"], "postgres": ["connections=2"]}.get(url.partition(":")[0], [])
    with open_store(with_options(url, few)) as store, ThreadPoolExecutor(8) as threads:
        store.set("counter", b"0")

        def plan() -> dict[str, bytes | None]:
            before, objects = store.get("counter"), list(store.keys("o/"))
            time.sleep(0.002)
            assert store.get("counter") == before
            return {"counter": b"%d" % (number(before) + 1), **dict.fromkeys(objects)}

        def alone() -> None:
            for _ in range(10):
                assert store.exclusively(plan)

        def beside() -> None:
            for _ in range(20):
                increment(store)
                store.set(f"o/{threading.get_ident():064x}", b"object")

        for done in [threads.submit(work) for work in [alone, beside] * 4]:
            done.result()
        assert store.get("counter") == b"120"


@on("disk", "redis", "postgres")
def test_waiting_for_a_lock_ends(url: str) -> None:
    """After its timeout a waiting writer raises, and has written nothing. Reading never waits."""
    with open_store(url) as store, open_store(within(0.5, url)) as hasty:
        store.set("a", b"1")
        assert hasty.get("a") == b"1"

        def plan() -> dict[str, bytes | None]:
            calls: list[Callable[[], object]] = [
                lambda: hasty.set("a", b"2"),
                lambda: hasty.transact({"a": b"2"}, {"a": b"1"}),
                lambda: hasty.exclusively(dict),
            ]
            for call in calls:
                with pytest.raises(StoreUnavailable, match=r"was locked by .* for 0\.5 s") as caught:
                    call()
                assert not caught.value.outcome_unknown
            assert hasty.get("a") == b"1"
            return {}

        assert store.exclusively(plan)
        hasty.set("a", b"2")
    with open_store(url) as store:
        assert store.get("a") == b"2"


# Listening


def took(call: Callable[[], object]) -> float:
    """The seconds that a call takes."""
    began = time.monotonic()
    call()
    return time.monotonic() - began


def hear_all(wait: Callable[[float], object], seconds: float = 0.3) -> None:
    """Wait until the listener has a connection, and has heard of all earlier changes."""
    while took(lambda: wait(seconds)) < seconds - 0.01:
        pass


@on("redis", "postgres")
def test_a_listener_hears_of_changes_of_its_key_alone(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait ends soon after another's change of its key, by any method, and not for another key."""
    monkeypatch.setattr("vstate.kv.postgres.session.LONGEST_WAIT", 60.0)
    ref = ROOM + "r/main"  # its stored form holds bytes of all kinds
    many = {f"n/{number}": b"1" for number in range(100)}
    with open_store(url) as store, open_store(url) as other, store.listening(ref) as wait:
        store.set(ref, b"0")
        changes: list[Callable[[], object]] = [
            lambda: other.set(ref, b"1"),
            lambda: other.set_many({ref: b"2", **many}),
            lambda: other.transact({ref: b"3", OBJECT: b"", "n/1": None}, {ref: b"2"}),
            lambda: other.compare_and_swap(ref, b"3", b"4"),
            lambda: other.exclusively(lambda: {ref: b"5"}),
            lambda: other.delete(ref),
        ]
        hear_all(wait)
        for change in changes:
            before = store.get(ref)
            timer = threading.Timer(0.05, change)
            before_it = time.monotonic()
            timer.start()
            wait(30)
            assert 0.02 < time.monotonic() - before_it < 25
            timer.join()
            assert store.get(ref) != before
            hear_all(wait, 0.1)
        for key in ("r/other", OBJECT, ROOM + OBJECT):
            other.set(key, b"1")
        other.delete("absent")
        assert not other.compare_and_swap(ref, b"wrong", b"1")
        assert took(lambda: wait(0.3)) > 0.25
        other.set(ref, b"6")
        assert took(lambda: wait(20)) < 15  # also a change from before the wait
        for key in (OBJECT, ROOM + OBJECT):
            with store.listening(key) as wait_for_object:
                assert took(lambda: wait_for_object(0.01)) < 5


@on("redis", "postgres")
def test_a_listener_that_is_cut_off_looks_and_listens_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait that loses its connection returns, and raises nothing. Without one it does not spin. With
    another one it returns once more, for there may have been changes, and then hears as before.
    """
    monkeypatch.setattr("vstate.kv.postgres.session.LONGEST_WAIT", 60.0)
    with (
        Proxy.before(url) as proxy,
        open_store(url) as other,
        open_store(proxy.through(url)) as store,
        store.listening("a") as wait,
    ):
        other.set("a", b"1")
        hear_all(wait)
        proxy.down()
        assert took(lambda: wait(20)) < 15
        assert took(lambda: [wait(0.05) for _ in range(4)]) >= 0.19
        other.set("a", b"2")
        proxy.up()
        end = time.monotonic() + 60
        while took(lambda: wait(20)) < 0.29 and time.monotonic() < end:
            if store.get("a") == b"2":
                break
        assert store.get("a") == b"2"
        hear_all(wait)
        timer = threading.Timer(0.05, other.set, ["a", b"3"])
        before = time.monotonic()
        timer.start()
        wait(30)
        assert 0.02 < time.monotonic() - before < 25
        timer.join()


# Servers


@on("redis", "postgres")
def test_a_call_is_one_round_trip(url: str) -> None:
    """Also a transaction of many objects with a ref, whether it is done or not."""
    many: dict[str, bytes] = {f"o/{n:064x}": b"x" * 200 for n in range(80)}
    many |= {f"n/{n}": b"" for n in range(20)}
    with Proxy.before(url) as proxy, open_store(proxy.through(url)) as store:
        store.set("r/main", b"1")
        proxy.latency = FAR
        calls: dict[str, Callable[[], object]] = {
            "set_many": lambda: store.set_many(many),
            "get": lambda: store.get("n/1"),
            "get_many": lambda: store.get_many(many),
            "present": lambda: store.present(many),
            "items": lambda: list(store.items("n/1")),
            "set": lambda: store.set("a", b"1"),
            "delete": lambda: store.delete("a"),
            "delete_many": lambda: store.delete_many(list(many)[:10]),
            "compare_and_swap": lambda: store.compare_and_swap("a", None, b"1"),
            "transact": lambda: store.transact({**many, "r/main": b"2", "a": None}, {"r/main": b"1"}),
            "transact in vain": lambda: store.transact({**many, "r/main": b"3"}, {"r/main": b"1"}),
        }
        counted = {}
        for name, call in calls.items():
            before = proxy.round_trips
            call()
            counted[name] = proxy.round_trips - before
        # A listing is a call for the keys, and one for the values.
        assert counted == dict.fromkeys(calls, 1) | {"items": 2}


# Servers in trouble


@pytest.fixture
def proxied(server_url: str) -> Iterator[tuple[Proxy, str]]:
    with Proxy.before(server_url) as proxy:
        yield proxy, within(0.7, proxy.through(server_url))


BEGIN = {"ref": b"1", "stale": b"x", OBJECT: b"object"}
CUT: dict[str, tuple[Callable[[KVStore], object], object, dict[str, bytes | None]]] = {
    "get_many": (lambda s: s.get_many(["stale", OBJECT]), {"stale": b"x", OBJECT: b"object"}, {}),
    "keys": (lambda s: sorted(s.keys()), sorted(BEGIN), {}),
    "set": (lambda s: s.set("ref", b"2"), None, {"ref": b"2"}),
    "delete_many": (lambda s: s.delete_many(["stale", OBJECT]), None, {"stale": None, OBJECT: None}),
    "swap": (lambda s: s.compare_and_swap("ref", b"1", b"2"), True, {"ref": b"2"}),
    "lost race": (lambda s: s.compare_and_swap("ref", b"0", b"2"), False, {}),
    "creation": (lambda s: s.compare_and_swap("b", None, b"1"), True, {"b": b"1"}),
    "deletion": (lambda s: s.compare_and_swap("ref", b"1", None), True, {"ref": None}),
    "transact": (
        lambda s: s.transact(
            {"o/" + "cd" * 32: b"new", "ref": b"2", "b": b"1", "stale": None}, {"ref": b"1"}
        ),
        True,
        {"o/" + "cd" * 32: b"new", "ref": b"2", "b": b"1", "stale": None},
    ),
    "transact in vain": (lambda s: s.transact({"ref": b"2", "stale": b"y"}, {"ref": b"0"}), False, {}),
    "exclusively": (
        lambda s: s.exclusively(
            lambda: {"ref": b"%d" % (number(s.get("ref")) + 1), **dict.fromkeys(s.keys("o/"))}
        ),
        True,
        {"ref": b"2", OBJECT: None},
    ),
}
"""Calls on a store that holds BEGIN, with their answers and the rows that they change."""


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_call_that_is_cut_at_any_point_has_its_true_answer(server_url: str, after: bool) -> None:
    """Cut before or after each piece that passes, a call answers as ever, and takes effect once. Only
    PostgreSQL cannot know of a deletion whose answer was lost.
    """
    kind = kind_of(server_url)
    with Proxy.before(server_url) as proxy, open_store(proxy.through(server_url)) as store:
        for name, (call, answer, changes) in CUT.items():
            point = cuts = 0
            while cuts >= point and (kind != "s3" or name != "exclusively"):
                point += 1
                store.set_many(BEGIN)
                store.delete_many(set(store.keys()) - BEGIN.keys())
                # Only a row that is visibly older than the call proves that the call has not written it.
                time.sleep(0.03 if kind == "postgres" else 0)
                proxy.cut(point, after=after)
                with (
                    suppress(StoreUnavailable) if (kind, name) == ("postgres", "deletion") else nullcontext()
                ):
                    assert call(store) == answer, (name, point)
                cuts = proxy.heal()
                expected = {key: value for key, value in {**BEGIN, **changes}.items() if value is not None}
                assert dict(store.items()) == expected, (name, point)


@pytest.mark.parametrize("then", ["closed", b"theirs", b"1"], ids=["closed", "overwritten", "undone"])
def test_what_follows_a_lost_answer_denies_nothing(server_url: str, then: str | bytes) -> None:
    """The swap was done and its answer is lost. Then another thread closes the store, or another writer goes
    on, perhaps back to the old value. Redis still knows the call; elsewhere the outcome is unknown.
    """
    with (
        Proxy.before(server_url) as proxy,
        open_store(server_url) as other,
        open_store(proxy.through(server_url)) as store,
    ):
        store.set("ref", b"1")
        assert store.compare_and_swap("ref", b"1", b"1")
        time.sleep(0.05)
        left = [True]

        def watch(side: str, data: bytes) -> str:
            if side == "client" or not left:
                return "pass"
            left.clear()
            assert other.get("ref") == b"2"
            if isinstance(then, bytes):
                assert other.compare_and_swap("ref", b"2", then)
            else:
                store.close()
            return "cut"

        proxy.watch = watch
        if kind_of(server_url) == "redis" and then != "closed":
            assert store.compare_and_swap("ref", b"1", b"2") is True
        else:
            with pytest.raises(StoreUnavailable) as caught:
                store.compare_and_swap("ref", b"1", b"2")
            assert caught.value.outcome_unknown
            assert "nothing was written" not in str(caught.value)
        assert other.get("ref") == (b"2" if then == "closed" else then)


def test_a_server_that_goes_away(proxied: tuple[Proxy, str]) -> None:
    """Each call raises StoreUnavailable in time, and knows that nothing was sent."""
    proxy, url = proxied
    many = {f"n/{number}": b"value" for number in range(200)}
    with open_store(url) as store:
        store.set("a", b"1")
        proxy.close()
        calls: list[Callable[[], object]] = [
            lambda: store.get("a"),
            lambda: store.get_many(many),
            lambda: list(store.keys()),
            lambda: store.set_many(many),
            lambda: store.delete_many(["a"]),
            lambda: store.compare_and_swap("a", b"1", b"2"),
            lambda: store.transact({OBJECT: b"object", "line": b"1", "a": b"2"}, {"a": b"1"}),
        ]
        for call in calls:
            began = time.monotonic()
            with pytest.raises(StoreUnavailable) as caught:
                call()
            assert time.monotonic() - began < 30
            assert not caught.value.outcome_unknown


def test_a_server_that_falls_silent(proxied: tuple[Proxy, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that stays open and silent is given up; a write that was sent may have happened."""
    monkeypatch.setattr("vstate.kv.postgres.connections.SLACK", 0.2)
    proxy, url = proxied
    with open_store(url) as store:
        calls: list[tuple[Callable[[], object], bool]] = [
            (lambda: store.get("a"), False),
            (lambda: store.set("a", b"1"), True),
            (lambda: store.compare_and_swap("a", b"1", b"1"), True),
        ]
        store.set("a", b"1")
        assert store.compare_and_swap("a", b"1", b"1")
        for call, unknown in calls:
            assert store.get("a") == b"1"
            proxy.watch = lambda side, data: "freeze" if side == "server" else "pass"
            began = time.monotonic()
            with pytest.raises(StoreUnavailable) as caught:
                call()
            assert time.monotonic() - began < 60
            assert caught.value.outcome_unknown is unknown
            proxy.watch = lambda side, data: "pass"
