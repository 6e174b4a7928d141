"""Rounds: expired sessions of a StateService give their room back, and no other session loses anything."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
import time as clock
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from between import Between
from clock import Time, standing_still
from loops import in_a_loop
from running import Fork
from servers import on_server
from soak import sized

from vstate import KVStore, Memory, Versioned, open_store
from vstate.repo import Repository
from vstate.sessions import StateService, rounds
from vstate.testing import Faulty

T = TypeVar("T")

TTL = 6000  # so long that the rest does not depend on how long the work took
NOISE = [random.Random(n).randbytes(100_000) for n in range(6)]


@pytest.fixture
def time() -> Iterator[Time]:
    with standing_still() as time:
        yield time


class Place:
    """A store on a real server or disk, and the bytes that it takes."""

    def __init__(self, url: str, size: Callable[[], int]) -> None:
        self.url = url
        self.size = size

    def open(self) -> KVStore:
        return open_store(self.url)


@pytest.fixture(params=["disk", on_server("redis")])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "disk":
        yield Place(str(tmp_path / "s"), lambda: sum(f.stat().st_size for f in (tmp_path / "s").iterdir()))
        return
    import redis
    from redis_server import RedisServer

    server = RedisServer(Path(tempfile.mkdtemp(dir=tmp_path)), appendonly="no")
    client = redis.Redis.from_url(server.url)
    yield Place(server.url, lambda: client.info("memory")["used_memory"])
    client.close()
    server.stop()


def bytes_of(store: KVStore) -> int:
    return sum(len(value) for _, value in store.items())


async def fill(service: StateService) -> None:
    for number, noise in enumerate(NOISE):
        await service.save_state("u", {"n": noise}, f"s{number}")


async def until(condition: Callable[[], bool], what: str = "") -> None:
    deadline = clock.monotonic() + 60
    while not condition():
        assert clock.monotonic() < deadline, what
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("call", ["purge", "export"])
@pytest.mark.slow
@in_a_loop
async def test_the_room_comes_back(place: Place, time: Time, call: str) -> None:
    """By `purge` or beside any other call, until the store is as large as before the sessions, to a tenth."""
    async with StateService(place.open(), ttl=TTL) as service:
        await fill(service)
        time.pass_(TTL)
        await service.purge()  # what a server and a file take for the first use
        kept = {"kept": random.Random(99).randbytes(400_000)}
        await service.save_state("v", kept, "kept")
        before = place.size()
        time.pass_(TTL / 2)
        await fill(service)
        assert place.size() > before + 500_000
        await service.export_state("v", "kept")
        time.pass_(TTL * 0.7)
        await service.export_state("v", "kept")
        time.pass_(TTL * 0.5)
        if call == "purge":
            await service.purge()
            assert place.size() <= before * 1.1
        assert await service.export_state("v", "kept") == kept
        await until(lambda: place.size() <= before * 1.1, f"{place.size():,} bytes are left")
        assert await service.list_rounds("u", "s2") == []
    with place.open() as store:
        assert Repository(store).fsck().ok
        assert not [
            key for key in Versioned(store).checkout("main") if key.startswith(("users/u/s2", "rounds/u/s2"))
        ]


@in_a_loop
async def test_a_stop_waits_for_the_end(time: Time) -> None:
    """The work that a call began is over when the service has stopped."""
    store = Memory()
    async with StateService(store, ttl=TTL) as service:
        await fill(service)
        time.pass_(TTL)
        assert await service.export_state("u", "s1") is None
    assert bytes_of(store) < 10_000


@in_a_loop
async def test_purge_counts_the_rounds(time: Time) -> None:
    """Those of expired sessions, and rounds of which the session's key is gone; a second call finds none."""
    async with StateService(Memory(), ttl=TTL) as service:
        for number in range(5):
            await service.save_state("u", {"n": number}, f"s{number % 2}")
        time.pass_(TTL - 1)
        await service.save_state("u", {}, "kept")
        time.pass_(1)
        await service.state.purge()  # the keys alone
        assert await service.purge() == 5
        assert await service.purge() == 0
        assert set(service.state.sync.checkout("main")) == {"rounds/u/kept/000000000001", "users/u/kept"}


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """When each work of a service began and ended. It takes 0.05 s at least."""
    spans: list[tuple[float, float]] = []
    real = rounds.give_back

    async def timed(*args: Any, **options: Any) -> int:
        began = clock.monotonic()
        await asyncio.sleep(0.05)
        found = await real(*args, **options)
        spans.append((began, clock.monotonic()))
        return found

    monkeypatch.setattr(rounds, "give_back", timed)
    return spans


@pytest.mark.parametrize(("live", "expired", "is_due"), [(0, 1, True), (30, 2, False), (30, 3, True)])
@in_a_loop
async def test_a_tenth_is_enough(
    time: Time, live: int, expired: int, is_due: bool, work: list[tuple[float, float]]
) -> None:
    """While fewer sessions have expired, nothing is done: each gc takes as long as many live sessions."""
    async with StateService(Memory(), ttl=TTL) as service:
        for number in range(expired):
            await service.save_state("gone", {}, str(number))
        time.pass_(TTL / 2)
        for number in range(live):
            await service.save_state("u", {}, str(number))
        time.pass_(TTL / 2)
        assert not work
        await service.health()
    assert bool(work) is is_due


@in_a_loop
async def test_the_work_rests(time: Time, work: list[tuple[float, float]]) -> None:
    """A tenth of the ttl, or ten times as long as it took, so that the time is left to others."""
    number = rested = 0
    async with StateService(Memory(), ttl=1) as service:
        while len(work) < 2:
            await service.save_state("u", {}, str(number))
            time.pass_(1 if number == 0 else 0.05)
            await asyncio.sleep(0.01)
            number += 1
            rested += len(work) == 1
    began, ended = work[0]
    assert rested * 0.05 >= (ended - began) * 10 - 0.1


@in_a_loop
async def test_one_service_at_a_time(time: Time, work: list[tuple[float, float]]) -> None:
    """Of several that find the work due, one does it."""
    store = Memory()
    services = [await StateService(store, ttl=TTL).start_when_used().__aenter__() for _ in range(4)]
    await fill(services[0])
    time.pass_(TTL)
    await asyncio.gather(*(service.health() for service in services))
    for service in services:
        await service.stop()
    assert len(work) == 1
    assert bytes_of(store) < 10_000


@in_a_loop
async def test_a_commit_removes_a_bounded_part(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others can commit between two of them; a branch with keys of others keeps its history."""
    monkeypatch.setattr(rounds, "_SESSIONS_AT_ONCE", 2)
    store = Memory()
    with Versioned(store) as state:
        state["theirs"] = 1
        state.commit("theirs")
    async with StateService(store, ttl=TTL) as service:
        for number in range(20):
            await service.save_state("gone", {"n": number}, f"s{number % 5}")
        time.pass_(TTL)
        assert await service.purge() == 20
    with Versioned(store) as state:
        log = list(state.log())
        assert log[-1].message == "theirs"
        removing = [commit for commit in log if commit.message == "purge sessions that have expired"]
        assert [len(state.diff(commit.parents[0], commit)) for commit in removing] == [4, 8, 8]
        assert list(state) == ["theirs"]


def acting(store: Memory, call: Callable[[StateService], Coroutine[Any, Any, T]]) -> T:
    """The result of a call of another service."""

    async def run() -> T:
        async with StateService(store, ttl=TTL) as other:
            return await call(other)

    return asyncio.run(run())


@pytest.mark.parametrize("clock_is_behind", [False, True])
@pytest.mark.slow
@in_a_loop
async def test_a_session_that_is_used_as_it_is_purged(time: Time, clock_is_behind: bool) -> None:
    """At any moment of the purge: a new round is there, and is the only one.

    A process whose clock is behind exports the session, and the exported round is still there afterwards.
    """
    at = 0
    while True:
        store = Memory()
        through, kept = Between(store), list[Any]()

        def use(store: Memory = store, kept: list[Any] = kept) -> None:
            if clock_is_behind:
                time.pass_(-2)
                kept.append(acting(store, lambda other: other.export_state("u", "s1")))
                time.pass_(2)
            else:
                acting(store, lambda other: other.save_state("u", {"new": 1}, "s1"))
                kept.append({"new": 1})

        async with StateService(through, ttl=TTL) as service:
            for number in range(4):
                await service.save_state("u", {"n": number}, f"s{number % 2}")
            time.pass_(TTL + 1)
            through.at, through.act = at, use
            await service.purge()
            if through.at is not None:
                break
            assert await service.export_state("u", "s1") == kept[0]
            if not clock_is_behind:
                assert await service.list_rounds("u", "s1") == [1]
            assert await service.list_rounds("u", "s0") == []
        assert Repository(store).fsck().ok
        at += 1
    assert at > 20


@pytest.mark.parametrize("name", ["export", "save"])
@pytest.mark.slow
@in_a_loop
async def test_a_call_while_the_history_is_cut_off(time: Time, name: str) -> None:
    """By another process, at any moment of the call: it begins anew, and nobody sees the cut."""
    at = 0
    while True:
        store = Memory()
        through = Between(store)
        async with StateService(store, ttl=TTL) as service:
            await service.save_state("u", {"n": NOISE[0]}, "old")
            time.pass_(TTL - 1)
            await service.save_state("u", {"n": NOISE[1]}, "s")
            time.pass_(1)

        def cut(store: Memory = store) -> None:
            acting(store, lambda other: other.save_state("u", {"n": NOISE[2]}, "other"))
            acting(store, lambda other: other.purge())

        async with StateService(through, ttl=TTL) as service:
            service._retention._ttl = None  # it leaves the work to another service
            through.at, through.act = at, cut
            if name == "export":
                assert await service.export_state("u", "s") == {"n": NOISE[1]}
            else:
                assert await service.save_state("u", {"n": 2}, "s") == 2
            if through.at is not None:
                break
            assert await service.export_state("u", "s", 1) == {"n": NOISE[1]}
        assert Repository(store).fsck().ok
        at += 1
    assert at >= 3


@pytest.mark.parametrize("place", ["disk", *sized([], [on_server("redis")])], indirect=True)
@pytest.mark.slow
def test_a_process_that_is_killed_between_two_steps(
    place: Place, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL before any call of the store: the next service does it, and no session in use is lost."""
    monkeypatch.setattr(rounds, "_LEASE_SECONDS", 0.3)

    async def prepare() -> int:
        async with StateService(place.open(), ttl=TTL) as service:
            await fill(service)
            time.pass_(TTL)
            await service.purge()
            before = place.size()
            service._retention._ttl = None  # it leaves the work to another service
            await fill(service)
            time.pass_(TTL - 1)
            await service.save_state("v", {"kept": 1}, "kept")
            time.pass_(1)
            return before

    async def purge(at: int) -> None:
        store = Between(place.open())
        async with StateService(store, ttl=TTL) as service:
            store.at, store.act = at, lambda: os.kill(os.getpid(), signal.SIGKILL)
            await service.export_state("u", "s1")

    async def finish(before: int) -> None:
        async with StateService(place.open(), ttl=TTL) as service:
            # Not one session more, which has 100,000; the log of SQLite grows and shrinks by pages.
            while place.size() > before + 80_000:  # the lease of the killed process may still run
                assert await service.export_state("v", "kept") == {"kept": 1}
                time.pass_(TTL / 10)
                await asyncio.sleep(0.05)
            assert await service.export_state("v", "kept") == {"kept": 1}
        with place.open() as store:
            assert Repository(store).fsck().ok

    at, killed = 0, 0
    while True:
        before = asyncio.run(prepare())
        code, _ = Fork(lambda at=at: asyncio.run(purge(at))).end()  # type: ignore[misc]
        asyncio.run(finish(before))
        if code == 0:
            break
        assert code == -signal.SIGKILL
        killed += 1
        at += max(1, sized(at, at // 2))
    assert killed >= 3


@in_a_loop
async def test_a_failure_is_a_warning(
    time: Time, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call itself is done; after a rest, a later one tries again."""
    store = Faulty(Memory())
    async with StateService(store, ttl=TTL) as service:
        await fill(service)
        time.pass_(TTL)
        real = rounds.give_back

        async def failing(*args: Any, **options: Any) -> int:
            store.fail_at = len(store.calls) + 5
            return await real(*args, **options)

        monkeypatch.setattr(rounds, "give_back", failing)
        assert await service.export_state("u", "s1") is None
        await until(lambda: "take up room until a later call" in caplog.text)
        store.fail_at = None
        monkeypatch.setattr(rounds, "give_back", real)
        time.pass_(TTL / 10)
        await service.health()
        await until(lambda: bytes_of(store.store) < 10_000)
