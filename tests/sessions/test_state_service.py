"""StateService: rounds that are never overwritten, ids that never mix, and errors that never read as None."""

from __future__ import annotations

import asyncio
import math
import random
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from agent_stores import AgentStore
from clock import standing_still
from loops import in_a_loop
from stored import stored_bytes

from vstate import Disk, Memory, Versioned
from vstate.errors import (
    CorruptObject,
    InvalidInput,
    InvalidRecord,
    NotFound,
    StorageError,
    StoreUnavailable,
    Unpicklable,
)
from vstate.repo import Repository
from vstate.sessions import (
    InMemoryStateService,
    RedisStateService,
    StateModule,
    StateService,
    VersionedSession,
    state_service,
)
from vstate.testing import Faulty


@in_a_loop
async def test_rounds(agent_store: AgentStore) -> None:
    """Numbers go up, explicit ones leave gaps, a round can be replaced; another service sees all."""
    async with StateService(agent_store()) as service, StateService(agent_store()) as other:
        assert await service.export_state("u") is None
        assert [await service.save_state("u", {"n": n}) for n in (1, 2)] == [1, 2]
        assert await other.save_state("u", {"n": 9}, round_id=9) == 9
        assert await service.save_state("u", {"n": 10}) == 10
        assert await service.save_state("u", {"n": "two"}, round_id=2) == 2
        assert await other.list_rounds("u") == [1, 2, 9, 10]
        assert await other.export_state("u") == {"n": 10}
        assert await other.export_state("u", "default", 2) == {"n": "two"}
        assert await other.export_state("u", round_id=3) is None
        assert await service.save_state("u", {}, "") == 11  # as without a session
        assert await service.save_state("u", {}, round_id=0) == 0
        commits = [commit async for commit in service.state.log("main", limit=1)]
        assert (commits[0].message, commits[0].info["user_id"]) == ("save: u/default", "u")


@in_a_loop
async def test_sessions_and_users(local_store: AgentStore) -> None:
    """They are listed and deleted: a round, a session, a user; the highest round that is left is exported."""
    async with StateService(local_store()) as service:
        for user, session in (("u", "s"), ("u", "t"), ("v", "s")):
            for n in (1, 2, 3):
                await service.save_state(user, {"is": [user, session, n]}, session)
        assert await service.list_users() == ["u", "v"]
        assert await service.list_sessions("u") == ["s", "t"]
        assert await service.delete_state("u", "s", 3) == 1
        assert await service.delete_state("u", "s", 3) == 0
        assert await service.export_state("u", "s") == {"is": ["u", "s", 2]}
        assert await service.save_state("u", {}, "s") == 3
        assert await service.delete_state("u", "s") == 3
        assert await service.list_sessions("u") == ["t"]
        assert await service.export_state("u", "s") is None
        assert await service.delete_state("u") == 3
        assert await service.list_users() == ["v"]
        assert await service.export_state("v", "s") == {"is": ["v", "s", 3]}
        commits = [commit async for commit in service.state.log("main", limit=1)]
        assert (commits[0].message, commits[0].info) == ("delete: u", {"user_id": "u"})
        assert await service.save_state("u", {}, "s") == 1
        assert await service.delete_state("u", "s", 1) == 1  # the session goes with its last round
        assert await service.list_users() == ["v"]
        assert await service.list_rounds("u", "s") == []


@in_a_loop
async def test_a_hundred_saves_at_once(local_store: AgentStore) -> None:
    """Each gets its own round, whichever service takes it."""
    async with StateService(local_store()) as service, StateService(local_store()) as other:
        rounds = await asyncio.gather(
            *((service, other)[n % 2].save_state("u", {"n": n}) for n in range(100))
        )
        assert sorted(rounds) == list(range(1, 101))
        for n in (0, 50, 99):
            assert await service.export_state("u", round_id=rounds[n]) == {"n": n}


@in_a_loop
async def test_copies_go_in_and_come_out(local_store: AgentStore) -> None:
    """A change of a saved or exported state changes nothing in the store."""
    async with StateService(local_store()) as service:
        state = {"messages": [{"text": "a"}], "pair": (1, 2), 3: float("inf")}
        await service.save_state("u", state)
        state["messages"][0]["text"] = "changed"  # type: ignore[index]
        found = await service.export_state("u")
        assert found == {"messages": [{"text": "a"}], "pair": (1, 2), 3: float("inf")}
        found["messages"].append("more")
        assert await service.export_state("u") != found
        assert await service.save_state("u", {"next": 1}) == 2
        assert (await service.export_state("u", round_id=1))["messages"] == [{"text": "a"}]  # type: ignore[index]


@in_a_loop
async def test_wrong_states_rounds_and_ids_are_refused() -> None:
    """No dict, no round, no text, and values that cannot be pickled raise; nothing is saved then."""
    async with InMemoryStateService() as service:
        for state in (None, [], "text", 3):
            with pytest.raises(TypeError, match="dict"):
                await service.save_state("u", state)  # type: ignore[arg-type]
        for number in ("7", 3.5, True):
            with pytest.raises(InvalidInput, match="round"):
                await service.save_state("u", {}, round_id=number)  # type: ignore[arg-type]
            with pytest.raises(InvalidInput, match="round"):
                await service.export_state("u", round_id=number)  # type: ignore[arg-type]
        for number in (-1, 10**12):
            with pytest.raises(InvalidInput):
                await service.save_state("u", {}, round_id=number)
        with pytest.raises(InvalidInput):
            await service.diff_rounds("u", 1, -1)
        with pytest.raises(InvalidInput, match="round"):
            await service.diff_rounds("u", 1, None)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="user_id"):
            await service.save_state(None, {})  # type: ignore[arg-type]
        for session in (0, False, []):
            with pytest.raises(TypeError, match="session_id"):
                await service.save_state("u", {}, session)  # type: ignore[arg-type]
        with pytest.raises(Unpicklable, match=r'state\["held"\]\["lock"\]: _thread.lock'):
            await service.save_state("u", {"held": {"lock": threading.Lock()}})
        assert await service.list_users() == []
        for ttl in (0, -1, math.nan):
            with pytest.raises(InvalidInput):
                StateService(ttl=ttl)


@in_a_loop
async def test_its_life(tmp_path: Path) -> None:
    """Before start and after stop every call raises RuntimeError; both may be called twice, or fail."""
    (tmp_path / "store").touch()
    service = StateService(tmp_path / "store")
    calls = (
        lambda: service.save_state("u", {}),
        lambda: service.export_state("u"),
        lambda: service.list_users(),
        lambda: service.purge(),
    )
    with pytest.raises(InvalidInput):
        await service.start()
    (tmp_path / "store").unlink()
    for number in (1, 2):
        for call in calls:
            with pytest.raises(RuntimeError, match="not started"):
                await call()
        assert not await service.health()
        await service.start()
        await service.start()
        assert await service.health()
        assert await service.save_state("u", {"n": 1}) == number
        await service.stop()
        await service.stop()
    async with service:
        assert await service.list_rounds("u") == [1, 2]
    memory = InMemoryStateService()
    for _ in range(2):
        async with memory:
            assert await memory.save_state("u", {}) == 1


class Counted(StateService):
    """Makes its store itself, and counts those that it opened and closed."""

    opened = closed = 0

    def _make_store(self) -> Any:
        self.opened += 1
        made: Any = Disk(str(self._store))
        close = made.close

        def counted() -> None:
            self.closed += 1
            close()

        made.close = counted
        return made


@in_a_loop
async def test_starts_and_stops_at_once(tmp_path: Path) -> None:
    """A second caller of start waits for the same store; a cancelled stop still closes the store."""
    service = Counted(tmp_path)
    await asyncio.gather(*(service.start() for _ in range(5)))
    assert service.opened == 1
    assert await service.save_state("u", {"n": 1}) == 1
    disk = service.state.sync.store
    # All threads of the handle are busy, so the close has to wait, and could be lost.
    workers = service.state._workers
    over = threading.Event()
    busy = [asyncio.create_task(workers.run(lambda: over.wait(60))) for _ in range(4)]
    await asyncio.sleep(0.05)
    stopping = asyncio.create_task(service.stop())
    await asyncio.sleep(0.05)
    stopping.cancel()
    asyncio.get_running_loop().call_later(0.05, over.set)
    with pytest.raises(asyncio.CancelledError):
        await stopping
    await asyncio.gather(*busy)
    assert service.closed == 1
    with pytest.raises(InvalidInput, match="closed"):
        disk.get("format")
    await asyncio.gather(*(service.stop() for _ in range(5)))
    async with service:
        assert await service.list_rounds("u") == [1]
    assert (service.opened, service.closed) == (2, 2)


def test_one_event_loop_after_another() -> None:
    """Also where calls had to wait for each other."""
    service = StateService(Memory())

    async def at_once(call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await asyncio.gather(*(call() for _ in range(5)))

    for _ in range(2):
        asyncio.run(at_once(service.start))
        assert asyncio.run(service.health())
        asyncio.run(at_once(service.stop))


@in_a_loop
async def test_a_start_that_is_cancelled(tmp_path: Path) -> None:
    """At any moment: the service is not started, nothing is open, and the next start works."""
    for wait in range(0, 12, 3):
        service = Counted(tmp_path / str(wait))
        starting = asyncio.create_task(service.start())
        await asyncio.sleep(wait / 1000)
        starting.cancel()
        (cancelled,) = await asyncio.gather(starting, return_exceptions=True)
        assert service.opened - service.closed == (cancelled is None)
        await service.start()
        assert await service.save_state("u", {}) == 1
        await service.stop()
        assert service.opened == service.closed


@in_a_loop
async def test_a_store_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call raises but `health`; nothing reads as absent; the program's own store is not closed."""
    store = Faulty(Memory())
    async with StateService(store) as service:
        await service.save_state("u", {"n": 1})
        for call in (
            lambda: service.export_state("u"),
            lambda: service.save_state("u", {"n": 2}),
            lambda: service.list_rounds("u"),
        ):
            store.fail_at = len(store.calls) + 1
            with pytest.raises(StoreUnavailable):
                await call()
        store.fail_at = len(store.calls) + 1
        assert not await service.health()
        store.fail_at = None
        assert await service.export_state("u") == {"n": 1}
        assert await service.save_state("u", {}) == 2
        with monkeypatch.context() as patched:
            for name in ("get", "get_many"):  # a store of the program may raise anything
                patched.setattr(store, name, None)
            assert not await service.health()
    assert Versioned(store, branch="main").head is not None


@in_a_loop
async def test_a_stop_lets_the_calls_end_that_have_begun(tmp_path: Path) -> None:
    """As when a server is told to stop while requests are under way; later requests get an error."""
    service = StateService(tmp_path)
    await service.start()
    saves = [asyncio.create_task(service.save_state("u", {"n": n})) for n in range(20)]
    reads = [asyncio.create_task(service.list_sessions("nobody")) for _ in range(20)]
    await asyncio.sleep(0)
    await service.stop()
    assert sorted(await asyncio.gather(*saves)) == list(range(1, 21))
    assert await asyncio.gather(*reads) == [[]] * 20
    with pytest.raises(RuntimeError, match="not started"):
        await service.save_state("u", {})
    async with service:
        assert await service.list_rounds("u") == list(range(1, 21))


@in_a_loop
async def test_a_stop_lets_an_export_end_that_renews_its_session() -> None:
    """Export reads, and then commits: the service may be told to stop in between."""
    store = Memory()
    async with StateService(store, ttl=60) as service:
        await service.save_state("u", {"n": 1})
        service._ttl = 600  # more than a tenth of the ttl is over
        export = asyncio.create_task(service.export_state("u"))
        await asyncio.sleep(0)
        await service.stop()
        assert await export == {"n": 1}
    assert [commit.message for commit in Versioned(store, branch="main").log()] == [
        "use: u/default",
        "save: u/default",
    ]


@in_a_loop
async def test_a_service_and_a_session_share_a_store() -> None:
    """Under equal ids too: neither reads or deletes the sessions of the other."""
    store = Memory()
    async with StateService(store) as service, VersionedSession(store) as session:
        for _ in range(2):
            await service.save_state("u", {"n": 1}, "s")
            await session.save_session_state("s", "u", box=StateModule())
        (saved,) = await session.list_sessions()
        assert (saved.user_id, saved.session_id, saved.saves) == ("u", "s", 2)
        await session.delete_session("s", "u")
        assert await service.list_rounds("u", "s") == [1, 2]
        await session.save_session_state("s", "u", box=StateModule())
        assert await service.delete_state("u") == 2
        assert len(await session.list_sessions()) == 1
        assert await service.list_users() == []


@in_a_loop
async def test_damage_raises() -> None:
    """Damaged bytes of a state raise; they do not read as an absent state."""
    store = Memory()
    async with StateService(store) as service:
        await service.save_state("u", {"text": "x" * 5000, "noise": random.Random(1).randbytes(5000)})
    for key, value in list(store.items()):
        if key.startswith("o/") and len(value) > 700:
            store.set(key, value[:-1] + bytes([value[-1] ^ 1]))
    async with StateService(store) as service:
        with pytest.raises(CorruptObject):
            await service.export_state("u")


@in_a_loop
async def test_time_to_live(local_store: AgentStore) -> None:
    """A session expires after its last use, starts at 1 again, and is purged; an export keeps it."""
    service = StateService(local_store(), ttl=15)
    with standing_still() as time:
        await service.start()
        await service.save_state("u", {"n": 1}, "kept")
        await service.save_state("u", {"n": 1}, "gone")
        for _ in range(8):
            assert await service.export_state("u", "kept") == {"n": 1}
            time.pass_(3)
        assert await service.export_state("u", "gone") is None
        assert await service.list_sessions("u") == ["kept"]
        assert await service.list_rounds("u", "gone") == []
        assert await service.delete_state("u", "gone", 1) == 0
        assert await service.purge() <= 1  # the calls before may have done it
        assert await service.purge() == 0
        assert set(service.state.sync.checkout("main")) == {"rounds/u/kept/000000000001", "users/u/kept"}
        time.pass_(20)
        assert await service.save_state("u", {"n": "new"}, "kept") == 1
        assert await service.list_rounds("u", "kept") == [1]
        await service.stop()


@pytest.mark.parametrize("moment", ["_load", "_commit"])
@in_a_loop
async def test_a_session_that_expires_during_an_export(monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """It is given as it was read; the renewal finds nothing to renew."""
    with standing_still() as time:
        async with StateService(Memory(), ttl=60) as service:
            await service.save_state("u", {"n": 1})
            time.pass_(50)
            at_last = getattr(state_service, moment)

            def then_expire(*args: Any) -> Any:
                if moment == "_commit":
                    time.pass_(50)
                    return at_last(*args)
                found = at_last(*args)
                time.pass_(50)
                return found

            monkeypatch.setattr(state_service, moment, then_expire)
            assert await service.export_state("u") == {"n": 1}
            monkeypatch.undo()
            assert await service.export_state("u") is None


@in_a_loop
async def test_diff_of_rounds() -> None:
    """By path, in words."""
    async with InMemoryStateService() as service:
        await service.save_state("u", {"messages": ["a"], "n": 1})
        await service.save_state("u", {"messages": ["a", "b"], "n": 2})
        found = await service.diff_rounds("u", 1, 2)
        assert sorted(map(str, found)) == ["+ messages[1]: 'b'", "~ n: 1 -> 2"]
        with pytest.raises(NotFound, match="round 3"):
            await service.diff_rounds("u", 1, 3)


@in_a_loop
async def test_rounds_of_some_kilobytes_take_the_room_of_their_new_part(tmp_path: Path) -> None:
    """On Disk, after gc, a round of 10 KB takes 1.4 KB with its commit and keys; all rounds are exported."""
    noise = random.Random(7)
    messages = [noise.randbytes(60).hex() for _ in range(80)]
    rounds = []
    async with StateService(Disk(tmp_path, durability="process")) as service:
        for _ in range(150):
            messages = [*messages[1:], noise.randbytes(60).hex()]
            rounds.append({"messages": messages})
            await service.save_state("u", rounds[-1])
    with Disk(tmp_path) as store:
        Repository(store).gc()
    assert stored_bytes(tmp_path) < 150 * 1_450
    async with StateService(tmp_path) as service:
        assert [await service.export_state("u", round_id=n) for n in range(1, 151)] == rounds


@in_a_loop
async def test_redis(redis_url: str) -> None:
    """By URL, or by a client of either kind, which is not used or closed; a server that is down raises."""
    import redis
    import redis.asyncio

    async with RedisStateService(redis_url=redis_url, ttl_seconds=60) as service:
        await service.delete_state("u")
        assert await service.save_state("u", {"n": 1}) == 1
    ours = redis.Redis.from_url(redis_url, decode_responses=True)
    theirs = redis.asyncio.Redis.from_url(redis_url)
    for client in (ours, theirs):
        async with RedisStateService(redis_client=client) as service:
            assert await service.health()
            assert await service.export_state("u") == {"n": 1}
    assert ours.ping()
    assert await theirs.ping()
    async with RedisStateService(redis_url=redis_url) as service:
        await service.delete_state("u")
    ours.close()
    await theirs.aclose()
    from redis.sentinel import Sentinel

    for client in (Sentinel([("127.0.0.1", 1)]).master_for("main"), object()):
        with pytest.raises(InvalidInput, match="redis_url"):
            await RedisStateService(redis_client=client).start()
    down = RedisStateService("redis://127.0.0.1:1/0")
    with pytest.raises(StoreUnavailable):
        await down.start()
    assert not await down.health()
    with pytest.raises((RuntimeError, StorageError)):
        await down.export_state("u")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("users/bob/s/more", 1),
        ("rounds/bob/s/second", {"state": {}}),
        ("rounds/bob/s/0000", {"state": {}}),
        ("rounds/bob/s/000000000002", {"n": 2}),
        ("rounds/bob/s/000000000002", [2]),
    ],
)
@in_a_loop
async def test_a_foreign_value_among_the_rounds_is_named_by_its_key(key: str, value: Any) -> None:
    """Not by a Python error about its contents."""
    store = Memory()
    async with StateService(store) as service:
        await service.save_state("bob", {"n": 1}, "s")
        state = Versioned(store)
        state[key] = value
        if key.endswith("0000"):
            del state["rounds/bob/s/000000000001"]  # so that there is a round to return
        state.commit("by hand")
        call = {
            "users/bob/s/more": service.list_sessions,
            "rounds/bob/s/second": lambda user: service.list_rounds(user, "s"),
        }.get(key, lambda user: service.export_state(user, "s"))
        with pytest.raises(InvalidRecord, match=f"the record '{key}' is not valid: "):
            await call("bob")


@in_a_loop
async def test_a_save_after_a_deletion_begins_the_session_anew() -> None:
    """Also by a service that has not looked since: of two writers the later one wins."""
    store = Memory()
    async with StateService(store) as first, StateService(store) as second:
        assert [await first.save_state("u", {"n": n}, "s") for n in (1, 2)] == [1, 2]
        assert await second.delete_state("u", "s") == 2
        assert await first.save_state("u", {"n": 3}, "s") == 1
        assert await second.list_rounds("u", "s") == [1]
