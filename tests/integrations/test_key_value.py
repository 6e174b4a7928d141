"""Items of py-key-value-aio on vstate: values that leave the store, times to live, races, FastMCP on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from agent_stores import AgentStore

from vstate import CorruptObject, Disk, Keep, KVStore, Memory, StoreUnavailable
from vstate.kv.base import OBJECT_PREFIX
from vstate.repo.repository import Repository
from vstate.testing import Faulty

pytest.importorskip("key_value.aio", reason="py-key-value-aio is not installed")

from vstate.integrations.key_value import VstateKeyValue

SOON = 0.1  # seconds


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def objects(store: KVStore) -> int:
    """How many objects the store has, in all rooms."""
    return len(list(Repository(store).view.keys(OBJECT_PREFIX)))


# Secrets


def test_a_value_leaves_the_file_when_it_is_replaced_deleted_or_expired(tmp_path: Path) -> None:
    """No byte of the old tokens is in the files of a Disk; those of the values that stay are."""
    names = ("replaced", "deleted", "expired", "kept")
    with Disk(tmp_path / "s") as disk:
        store = VstateKeyValue(disk)
        for name in names:
            ttl = SOON if name == "expired" else 60
            run(store.put(name, {"token": f"secret-{name}-" + "x" * 300}, ttl=ttl))
        run(store.put("replaced", {"token": "newer"}))
        assert run(store.delete("deleted"))
        time.sleep(SOON)
        run(store.cull())
        disk.scrub()
    data = b"".join(path.read_bytes() for path in (tmp_path / "s").iterdir())
    found = {name for name in names if f"secret-{name}".encode() in data}
    assert found == {"kept"}


@pytest.mark.parametrize("end", ["put", "delete", "expired"])
def test_the_objects_of_an_old_value_are_gone_when_the_call_returns(
    agent_store: AgentStore, end: str
) -> None:
    """Every store with transactions drops them in the call. On any other store `gc` removes them."""
    store = VstateKeyValue(opened := agent_store())
    run(store.put("one", {"token": "x" * 300}))
    one = objects(opened)
    run(store.put("two", {"token": "y" * 300}, ttl=SOON if end == "expired" else 60))
    if end == "put":
        for number in range(3):
            run(store.put("two", {"token": f"{number}" * 300}))
        assert objects(opened) == 2 * one
        return
    if end == "delete":
        run(store.delete("two"))
    else:
        time.sleep(SOON)
        run(store.cull())
    assert objects(opened) == one


def test_puts_remove_what_has_expired() -> None:
    """Nobody calls `cull`: after a round of puts no expired item is left."""
    memory = Memory()
    store = VstateKeyValue(memory)
    for number in range(20):
        run(store.put(f"old {number}", {"token": number}, ttl=SOON))
    time.sleep(SOON)
    for number in range(20):
        run(store.put(f"new {number}", {"token": number}, ttl=60))
    assert sorted(run(store.keys())) == sorted(f"new {number}" for number in range(20))


def test_gc_removes_old_values_from_a_store_without_transactions() -> None:
    """A rule for all items cuts their histories off. A `put_many` is one put for each item."""
    memory = Memory()
    store = VstateKeyValue(Faulty(memory, atomic=False), keep=Keep(last=1))
    for number in range(3):
        run(store.put_many(["a", "b"], [{"token": f"a{number}" * 90}, {"token": f"b{number}" * 90}]))
    assert run(store.delete("b"))
    for _ in range(2):
        store.repo.gc(grace="0s")
    assert run(store.get("a")) == {"token": "a2" * 90}
    assert objects(memory) == 3  # a commit, a tree and a value


def test_a_damaged_item_fails_its_own_calls_alone() -> None:
    """Puts of other items look at the damaged one, and land. A branch of another program is no item."""
    memory = Memory()
    store = VstateKeyValue(memory)
    store.repo.commit("key_value/of-another", set={"n": 1})
    run(store.put("damaged", {"token": "x" * 300}))
    for key in [key for key in memory.keys("room/") if "/o/" in key]:
        memory.delete(key)
    for number in range(3):
        run(VstateKeyValue(memory).put(f"one {number}", {"n": number}))
    with pytest.raises(CorruptObject):
        run(VstateKeyValue(memory).get("damaged"))


def test_history_is_there_for_who_asks_for_it() -> None:
    """With `keep_history` an item has all of its values, and the reflog has a deleted item."""
    store = VstateKeyValue(keep_history=True)
    for number in range(3):
        run(store.put("plan", {"step": number}))
    branch = store.branch("plan")
    assert len([*store.repo.log(branch)]) == 3
    assert run(store.delete("plan"))
    assert store.repo.resolve(f"{branch}@{{1}}")


# Times to live, and races


@pytest.mark.parametrize("keep_history", [False, True])
def test_an_item_that_another_writer_sets_anew_stays(
    keep_history: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cull has seen the item expired, and does not delete the new value."""
    memory = Memory()
    store, other = (VstateKeyValue(memory, keep_history=keep_history) for _ in range(2))
    run(store.put("session", {"n": 1}, ttl=SOON))
    time.sleep(SOON)
    read = store._opening.read

    def late(*arguments: Any, **options: Any) -> Any:
        found = read(*arguments, **options)
        other._write({other.branch("session"): {"value": {"n": 2}, "created_at": None, "expires_at": None}})
        return found

    monkeypatch.setattr(store._opening, "read", late)
    run(store.cull())
    monkeypatch.undo()
    assert run(store.get("session")) == {"n": 2}


def test_an_expired_item_counts_as_absent() -> None:
    """A read, `ttl` and a deletion find no item, though its branch is still there. A put begins anew."""
    store = VstateKeyValue()
    run(store.put("code", {"n": 1}, ttl=SOON))
    time.sleep(SOON)
    assert run(store.get("code")) is None
    assert run(store.ttl("code")) == (None, None)
    assert not run(store.delete("code"))
    run(store.put("code", {"n": 2}))
    assert run(store.ttl("code")) == ({"n": 2}, None)


@pytest.mark.slow
def test_readers_and_writers_of_one_item_never_fail(shared_store: AgentStore) -> None:
    """Each read finds a whole value or none, while others replace and delete the item, in threads."""
    failures: list[BaseException] = []

    def often(call: Callable[[VstateKeyValue, int], Coroutine[Any, Any, Any]]) -> None:
        async def work() -> None:
            store = VstateKeyValue(shared_store())
            for number in range(60):
                found = await call(store, number)
                assert not isinstance(found, dict) or found["n"] == found["m"]

        try:
            run(work())
        except BaseException as error:
            failures.append(error)

    calls = [
        lambda store, n: store.put("one", {"n": n, "m": n, "more": "x" * 200}, ttl=60),
        lambda store, n: store.put("one", {"n": -n, "m": -n, "more": "y" * 200}),
        lambda store, n: store.get("one"),
        lambda store, n: store.get("one"),
        lambda store, n: store.delete("one") if n % 7 == 0 else store.cull(),
    ]
    threads = [Thread(target=often, args=[call]) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert Repository(shared_store()).fsck().ok


# Many


def test_many_items_land_in_one_transaction() -> None:
    """After a failure at any call of the store, all items of a `put_many` are there, or none."""
    most = 0
    for at in range(1, 100):
        memory = Memory()
        try:
            store = VstateKeyValue(Faulty(memory, at))
            run(store.put_many(["a", "b", "a"], [{"n": 1}, {"n": 2}, {"n": 3}]))
        except StoreUnavailable:
            most = at
        assert run(VstateKeyValue(memory).get_many(["a", "b"])) in ([None, None], [{"n": 3}, {"n": 2}])
    assert 3 < most < 99
    assert run(store.delete_many(["a", "b", "c", "a"])) == 2


def test_collections_are_listed_and_destroyed() -> None:
    """A collection is there as long as it has items. Long names can be used as they are listed."""
    store = VstateKeyValue()
    long = "tokens/" * 300
    run(store.put("k/1", {"n": 1}, collection="a b"))
    run(store.put("k" * 2000, {"n": 2}, collection=long))
    first, listed = run(store.collections())
    assert first == "a b"
    assert run(store.keys("a b")) == ["k/1"]
    (key,) = run(store.keys(long))
    assert run(store.get(key, collection=listed)) == run(store.get("k" * 2000, collection=long)) == {"n": 2}
    assert run(store.destroy_collection("a b"))
    assert not run(store.destroy_collection("a b"))
    assert run(store.collections(limit=5)) == [listed]
    assert run(store.destroy())
    assert store.repo.branch_names() == []


# FastMCP, and the page


def test_fastmcp_replays_the_events_of_a_stream(tmp_path: Path) -> None:
    """Another process gives a client the events after the last one that it has seen."""
    events = pytest.importorskip("fastmcp.server.event_store", reason="fastmcp is not installed")
    from mcp_types import JSONRPCNotification

    async def store() -> list[str]:
        async with VstateKeyValue(tmp_path / "s") as items:
            kept = events.EventStore(storage=items, max_events_per_stream=3)
            notes = [JSONRPCNotification(jsonrpc="2.0", method=f"note/{number}") for number in range(5)]
            return [await kept.store_event("stream", note) for note in notes]

    async def replay(last: str) -> list[str]:
        found: list[str] = []

        async def send(event: Any) -> None:
            found.append(event.message.method)

        async with VstateKeyValue(tmp_path / "s") as items:
            await events.EventStore(storage=items).replay_events_after(last, send)
            assert len(await items.keys("fastmcp_events")) == 3
        return found

    ids = run(store())
    assert run(replay(ids[2])) == ["note/3", "note/4"]
    assert run(replay(ids[0])) == []


def test_the_example_of_the_page(example: Any, commands: Any) -> None:
    """The program prints the lines of its comments. The commands show the item."""
    example("FastMCP")
    log, shown = commands("FastMCP")
    assert "put" in log
    assert "Ann" in shown
