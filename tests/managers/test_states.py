"""StateManager: values by key, saved, merged, pending, watched and rolled back."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import random
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agent_stores import AgentStore
from clock import standing_still
from loops import in_a_loop
from present import present

from vstate import Disk, InvalidInput, Memory, StoreUnavailable, UncommittedWarning, Versioned
from vstate.kv.wrapper import StoreWrapper
from vstate.managers import StateConfig, StateManager, ToolStateManager, subscriptions
from vstate.testing import Faulty


class Plan:
    """A value that JSON cannot hold."""

    def __init__(self, steps: list[str]) -> None:
        self.steps = steps

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and other.steps == self.steps

    __hash__ = None  # type: ignore[assignment]


async def until(condition: Callable[[], Any]) -> None:
    """Wait until a condition holds, which may be awaited."""
    async with asyncio.timeout(60):
        while True:
            found = condition()
            if await found if inspect.isawaitable(found) else found:
                return
            await asyncio.sleep(0.005)


async def until_it_is(manager: StateManager, key: str, value: object) -> None:
    """Wait until a manager reads this value."""

    async def is_there() -> bool:
        return bool(await manager.get(key) == value)

    await until(is_there)


class Unreachable(Faulty):
    """A store that fails while it is `down`."""

    down = False

    def _call(self, name: str, call: Callable[[], Any]) -> Any:
        if self.down:
            raise StoreUnavailable("the store is down")
        return super()._call(name, call)


class Heard:
    """A subscriber that records its calls."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, Any, Any]] = []

    async def __call__(self, key: str, old: Any, new: Any) -> None:
        await asyncio.sleep(0)
        self.notes.append((key, old, new))


@pytest.fixture
def manager() -> StateManager:
    return StateManager()


# Values


@in_a_loop
async def test_saving_getting_updating_deleting_and_listing(local_store: AgentStore) -> None:
    """The documented calls, on every store; another manager, as in another process, reads the same."""
    manager = StateManager(local_store())
    await manager.save("agent:researcher", {"status": "running", "progress": 0.5})
    await manager.update("agent:researcher", {"progress": 0.75, 3: "int key"})
    await manager.save("agent:writer", Plan(["a", "b"]))
    await manager.save("task/1", None)
    async with StateManager(local_store()) as other:
        assert await other.get("agent:researcher") == {"status": "running", "progress": 0.75, 3: "int key"}
        assert await other.get("agent:writer") == Plan(["a", "b"])
        assert await other.list_keys("agent:*") == ["agent:researcher", "agent:writer"]
        assert await other.list_keys() == ["agent:researcher", "agent:writer", "task/1"]
        assert await other.list_keys("agent:[a-r]?s*") == ["agent:researcher"]
        assert await other.get("task/1", "default") is None
        assert await other.get("task/2", "default") == "default"
        assert await other.delete("agent:writer") is True
        assert await other.delete("agent:writer") is False
    assert await manager.list_keys("agent:*") == ["agent:researcher"]
    assert await manager.get("agent:writer") is None
    await manager.close()


@pytest.mark.parametrize("auto_save", [True, False])
@in_a_loop
async def test_updates(auto_save: bool) -> None:
    """Of a dict, an absent or a deleted key, also by an empty dict; not of another value. With a ttl, too."""
    async with StateManager(config=StateConfig(ttl=60, auto_save=auto_save)) as manager:
        for key in ("gone", "fleeting", "text"):
            await manager.save(key, "hello")
        for key in ("gone", "fleeting"):
            await manager.delete(key)
        for key in ("gone", "empty"):
            await manager.update(key, {})
        await manager.update("new", {"a": 1})
        with pytest.raises(InvalidInput, match=r"holds a str.*save"):
            await manager.update("text", {"a": 1})
        for _ in range(2):
            found = {key: await manager.get(key) for key in await manager.list_keys()}
            assert found == {"gone": {}, "empty": {}, "new": {"a": 1}, "text": "hello"}
            await manager.flush()


@in_a_loop
async def test_a_ttl_begins_anew_with_each_change(local_store: AgentStore) -> None:
    config = StateConfig(ttl=60)
    with standing_still() as time:
        manager = StateManager(local_store(), config=config)
        await manager.save("session", {"turns": 1})
        await manager.save("other", 1)
        for _ in range(4):
            time.pass_(20)
            await manager.update("session", {"turns": 2})
        assert await manager.list_keys() == ["session"]
        time.pass_(61)
        assert await manager.get("session") is None
        assert await manager.list_keys() == []
        await manager.close()


# Config


@in_a_loop
async def test_a_config_that_asks_for_a_file_gets_one(tmp_path: Path) -> None:
    """The very file that it names, with all values of its branch; the store is beside it."""
    file = tmp_path / "new" / "app_state.json"
    config = StateConfig(file_path=str(file))
    async with StateManager(config=config, branch="what-if") as manager:
        await manager.save("agent:researcher", {"progress": 0.5, "tags": {"a"}})
        await manager.save("agent:writer", None)
        found = {"agent:researcher": {"progress": 0.5, "tags": {"$set": ["a"]}}, "agent:writer": None}
        assert json.loads(file.read_text()) == found
        await manager.delete("agent:writer")
        assert list(json.loads(file.read_text())) == ["agent:researcher"]
    async with StateManager(config=config) as on_head:
        await on_head.save("k", 2)
        assert json.loads(file.read_text()) == {"k": 2}
    async with StateManager(config=config, branch="what-if") as again:
        assert await again.get("agent:researcher") == {"progress": 0.5, "tags": {"a"}}
    with Versioned(tmp_path / "new" / "app_state") as state:
        assert [commit.message for commit in state.log("what-if")][-1] == "save agent:researcher"
    async with ToolStateManager("file", path=tmp_path / "tools.json", branch="what-if") as tools:
        await tools.change(lambda part: part.update(k=3), "note")
    assert json.loads((tmp_path / "tools.json").read_text()) == {"k": 3}


@in_a_loop
async def test_a_config_that_asks_for_redis_gets_it(redis_url: str, redis_prefix: str) -> None:
    """With the prefix; another prefix is another state."""
    config = StateConfig(backend="redis", redis_url=redis_url, key_prefix=redis_prefix, ttl=60)
    async with StateManager(config=config) as manager:
        await manager.save("k", 1)
    async with StateManager(config=config) as again:
        assert await again.get("k") == 1
    other = StateConfig(backend="redis", redis_url=redis_url, key_prefix=f"{redis_prefix}-2")
    async with StateManager(config=other) as elsewhere:
        assert await elsewhere.get("k") is None


def test_a_config_refuses_contradicting_fields(tmp_path: Path) -> None:
    """A field that would be ignored, a backend that does not exist, times that are no numbers."""
    assert StateConfig().backend == "memory"
    assert StateConfig(file_path="x").backend == "file"
    assert StateConfig(redis_url="redis://x").backend == "redis"
    for wrong in (
        {"backend": "memory", "file_path": "x"},
        {"backend": "file", "redis_url": "redis://x"},
        {"backend": "file", "key_prefix": "a"},
        {"file_path": "x", "redis_url": "redis://x"},
        {"ttl": 0},
        {"ttl": -1},
        {"save_interval": float("nan")},
    ):
        with pytest.raises(InvalidInput):
            StateConfig(**wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        StateConfig(encryption=True)  # type: ignore[call-arg]
    with pytest.raises(InvalidInput, match="choose one"):
        StateManager(Memory(), config=StateConfig(backend="file", file_path=str(tmp_path)))
    assert StateManager(StateConfig(ttl=60)).config.ttl == 60
    with pytest.raises(InvalidInput, match="two configs"):
        StateManager(StateConfig(), config=StateConfig())


# Pending changes


@in_a_loop
async def test_without_auto_save_changes_are_gathered_until_flush(local_store: AgentStore) -> None:
    """This manager reads them, others do not, and one commit has them all."""
    async with StateManager(local_store(), config=StateConfig(auto_save=False)) as manager:
        other = StateManager(local_store())
        await other.save("gone", 1)
        await other.save("merged", {"theirs": 0, "ours": 0})
        await manager.save("a", {"n": 1})
        await manager.update("a", {"m": 2})
        await manager.update("merged", {"ours": 1})
        assert await manager.delete("gone") is True
        assert await manager.delete("gone") is False
        assert await manager.list_keys() == ["a", "merged"]
        assert await manager.get("a") == {"n": 1, "m": 2}
        assert await manager.get("gone", "absent") == "absent"
        assert await other.list_keys() == ["gone", "merged"]
        await other.update("merged", {"theirs": 5})
        with pytest.raises(InvalidInput, match="holds a str"):
            await manager.save("text", "t")
            await manager.update("text", {"a": 1})
        assert present(await manager.flush()).message.startswith("save ")
        assert await manager.flush() is None
        assert await other.list_keys() == ["a", "merged", "text"]
        assert await other.get("merged") == {"theirs": 5, "ours": 1}
        assert len(await other.history("a")) == 1
        await manager.save("a", 2)
        await manager.rollback("a")
        assert len(await manager.history("a")) == 3, "it commits pending changes first"
        await manager.save("late", 1)
    assert await other.get("late") == 1, "close commits pending changes"
    await other.close()


@in_a_loop
async def test_a_failed_flush_keeps_the_pending_changes(tmp_path: Path) -> None:
    with Disk(tmp_path) as disk:
        store = Unreachable(disk)
        manager = StateManager(store, config=StateConfig(auto_save=False))
        await manager.save("a", {"n": 1})
        await manager.flush()
        await manager.update("a", {"n": 2})
        store.down = True
        with pytest.raises(StoreUnavailable):
            await manager.flush()
        with pytest.raises(StoreUnavailable):
            await manager.close()
        store.down = False
        assert await manager.get("a") == {"n": 2}
        await manager.close()
        with Versioned(disk, branch="main") as state:
            assert state["state/a"] == {"n": 2}


@in_a_loop
async def test_save_interval_is_the_time_between_two_commits(
    local_store: AgentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop commits the first change at once, and the next ones together when the interval is over."""
    async with StateManager(local_store(), config=StateConfig(save_interval=1)) as manager:
        other = StateManager(local_store())
        clock = time.monotonic()
        monkeypatch.setattr("vstate.managers.edits.time", SimpleNamespace(monotonic=lambda: clock))
        await manager.save("k", 0)
        assert await other.get("k") == 0
        clock += 0.5  # this clock belongs to the loop, which takes the rest of the interval
        began = time.monotonic()
        for n in range(1, 20):
            await manager.save("k", n)
        assert await manager.get("k") == 19
        found = await other.get("k"), len(await other.history("k"))
        late = time.monotonic() - began > 0.5  # on a slow machine the interval was over before
        assert found == (0, 1) or late
        await until_it_is(other, "k", 19)
        assert len(await other.history("k")) == 2 or late
        clock += 1
        await manager.save("k", 20)
        assert await other.get("k") == 20
        await manager.save("k", 21)
    assert await other.get("k") == 21
    await other.close()


@in_a_loop
async def test_an_interval_that_ends_while_the_store_is_down_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After a change that was pending, and after one whose own call committed, and failed."""
    memory = Memory()
    store = Unreachable(memory)
    manager = StateManager(store, config=StateConfig(save_interval=0.2))
    async with StateManager(memory) as other:
        await manager.save("k", 0)
        await manager.save("k", 1)
        store.down = True
        await until(lambda: "not committed yet, and still pending" in caplog.text)
        store.down = False
        await until_it_is(other, "k", 1)
        await asyncio.sleep(0.4)
        store.down = True
        with pytest.raises(StoreUnavailable):
            await manager.save("k", 2)
        store.down = False
        await until_it_is(other, "k", 2)
    await manager.close()


def test_a_manager_serves_one_loop_after_another() -> None:
    """Also where tasks wait for each other, and with changes that are pending as a loop ends."""
    store = Memory()
    manager = StateManager(store, config=StateConfig(save_interval=0.3))

    async def use(loop: int) -> None:
        manager.subscribe("*", lambda key, old, new: None)
        await asyncio.gather(*(manager.save(f"{loop}/{n}", n) for n in range(5)))

    async def flush() -> None:
        await asyncio.gather(*(manager.flush() for _ in range(5)), *(manager.get("k") for _ in range(5)))

    asyncio.run(use(0))
    asyncio.run(use(1))
    time.sleep(0.4)
    asyncio.run(manager.save("k", 3))
    assert len(Versioned(store, branch="main")) == 11
    asyncio.run(use(2))
    asyncio.run(flush())
    assert len(Versioned(store, branch="main")) == 16
    asyncio.run(manager.close())


# Subscribers


@in_a_loop
async def test_subscribers_hear_every_commit_of_any_manager(agent_store: AgentStore) -> None:
    """Called as documented; commits of another manager, as in another process, count too."""
    manager, other = StateManager(agent_store()), StateManager(agent_store())
    heard = Heard()
    plain: list[Any] = []
    await other.save("agent:before", 1)
    manager.subscribe("agent:*", heard)
    await manager.save("agent:a", {"n": 1})
    await manager.subscribe("agent:b", lambda key, old, new: plain.append((key, old, new)))
    await other.update("agent:a", {"m": 2})
    await other.save("task:x", 1)
    await other.save("agent:b", None)
    await other.delete("agent:a")
    await until(lambda: len(heard.notes) == 4 and plain)
    assert heard.notes == [
        ("agent:a", None, {"n": 1}),
        ("agent:a", {"n": 1}, {"n": 1, "m": 2}),
        ("agent:b", None, None),
        ("agent:a", {"n": 1, "m": 2}, None),
    ]
    assert plain == [("agent:b", None, None)]
    manager.unsubscribe("agent:*", heard)
    await other.save("agent:c", 1)
    await asyncio.sleep(0.3)
    assert len(heard.notes) == 4
    await manager.close()
    await other.close()


@in_a_loop
async def test_a_subscriber_that_fails_is_logged_and_hears_the_next(caplog: pytest.LogCaptureFixture) -> None:
    async with StateManager() as manager:
        seen: list[str] = []

        def fails(key: str, old: Any, new: Any) -> None:
            seen.append(key)
            raise RuntimeError("a bug")

        await manager.subscribe("*", fails)
        await manager.save("a", 1)
        await manager.save("b", 1)
        await until(lambda: seen == ["a", "b"])
        assert "a subscriber failed at added 'a'" in caplog.text
    with pytest.raises(InvalidInput, match="closed"):
        manager.subscribe("*", fails)


class Patchy(StoreWrapper):
    """A store that fails the next reads of long values."""

    failures = 0

    def get(self, key: str) -> bytes | None:
        found = super().get(key)
        if self.failures and found is not None and len(found) > 5000:
            self.failures -= 1
            raise StoreUnavailable("gone")
        return found


@in_a_loop
async def test_a_subscriber_hears_of_a_change_whose_values_could_not_be_read_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store fails between the news of the commit and the value. The next changes are heard too."""
    monkeypatch.setattr(subscriptions, "_PAUSE", 0.01)
    memory, heard = Memory(), list[tuple[str, bytes]]()
    store, values = Patchy(memory), {key: random.Random(key).randbytes(9000) for key in "ab"}
    async with StateManager(store) as manager, StateManager(memory) as other:
        await manager.subscribe("*", lambda key, old, new: heard.append((key, new)))
        store.failures = 2
        for key, value in values.items():
            await other.save(key, value)
        await until(lambda: len(heard) == 2)
        assert (dict(heard), store.failures) == (values, 0)


@in_a_loop
async def test_unsubscribing_waits_for_a_call_under_way_and_may_be_done_by_it() -> None:
    async with StateManager() as manager:
        began, ended = asyncio.Event(), asyncio.Event()

        async def slow(key: str, old: Any, new: Any) -> None:
            began.set()
            await asyncio.sleep(0.2)
            ended.set()

        await manager.subscribe("slow", slow)
        await manager.save("slow", 1)
        await began.wait()
        await manager.unsubscribe("slow", slow)
        assert ended.is_set()

        once: list[Any] = []

        async def hears_once(key: str, old: Any, new: Any) -> None:
            once.append(new)
            await manager.unsubscribe("once", hears_once)

        await manager.subscribe("once", hears_once)
        await manager.save("once", 1)
        await manager.save("once", 2)
        await until(lambda: once)
        await asyncio.sleep(0.2)
        assert once == [1]
        manager.unsubscribe("never", slow)


def test_a_subscription_made_before_there_is_a_loop_begins_with_the_first_call() -> None:
    """A subscription goes on in the next loop where it was in the last one, and can be ended in a third."""
    manager = StateManager()
    heard: list[Any] = []

    def hear(key: str, old: Any, new: Any) -> None:
        heard.append(new)

    manager.subscribe("k", hear)

    async def save(value: int) -> None:
        await manager.save("k", value)
        await until(lambda: value in heard)

    async def end() -> None:
        await manager.unsubscribe("k", hear)
        await manager.save("k", 3)

    asyncio.run(save(1))
    asyncio.run(save(2))
    asyncio.run(end())
    assert heard == [1, 2]
    asyncio.run(manager.close())


# History


@in_a_loop
async def test_history_and_rollback_of_a_key(manager: StateManager) -> None:
    """One key goes back, each time further; the others stay, whose names begin alike; no history is lost."""
    for n in range(4):
        await manager.save("k", {"n": n})
        await manager.save("k2", n)
    history = await manager.history("k")
    assert [commit.message for commit in history] == ["save k"] * 4
    assert await manager.get("k", rev=history[-1]) == {"n": 0}
    assert await manager.get("k2", "absent", rev=history[-1]) == "absent"
    assert len(await manager.history("k", limit=2)) == 2
    await manager.rollback("k", steps=2)
    assert (await manager.get("k"), await manager.get("k2")) == ({"n": 1}, 3)
    await manager.rollback("k2")
    await manager.rollback("k")
    assert (await manager.get("k"), await manager.get("k2")) == ({"n": 0}, 2)
    await manager.rollback("k", rev=history[1])
    assert await manager.get("k") == {"n": 2}
    await manager.rollback("k", rev=history[-1])
    assert await manager.get("k") == {"n": 0}
    assert len(await manager.history("k")) == 8
    with pytest.raises(InvalidInput, match="'k2' has changed 3 times"):
        await manager.rollback("k2", steps=5)
    await manager.rollback("k2", steps=3)
    assert await manager.get("k2") is None


@in_a_loop
async def test_rollback_of_all_keys_leaves_other_managers_alone(local_store: AgentStore) -> None:
    async with StateManager(local_store(), config=StateConfig(ttl=60)) as manager:
        await manager.save("a", 1)
        await manager.save("b", 1)
        before = (await manager.history("b"))[0]
        await manager.delete("a")
        await manager.save("c", 1)

        def somebody_else(state: Any) -> None:
            state["elsewhere/x"] = 1

        await manager.state.apply(somebody_else)
        await manager.rollback(rev=before)
        assert await manager.list_keys() == ["a", "b"]
        await manager.rollback()  # further back, not to the state before the rollback
        assert await manager.list_keys() == ["a"]
        with pytest.raises(InvalidInput, match="has changed 1 time"):
            await manager.rollback(steps=2)
        with pytest.raises(InvalidInput, match="leave one of them out"):
            await manager.rollback("a", steps=2, rev=before)
        assert await manager.state["elsewhere/x"] == 1
        assert await manager.state.expires("state/a") is not None


# Threads


@in_a_loop
async def test_twenty_managers_that_are_dropped_leave_no_thread() -> None:
    """The original started one each, for ever; here also with subscriptions or an interval."""
    before = set(threading.enumerate())
    for n in range(20):
        manager = StateManager(config=StateConfig(save_interval=0.1))
        await manager.subscribe("*", Heard())
        await manager.save("k", n)
    del manager

    def left() -> list[threading.Thread]:
        gc.collect()
        return [
            thread
            for thread in threading.enumerate()
            if thread not in before
            and not thread.name.startswith("asyncio")  # those of the loop, for to_thread
        ]

    await until(lambda: not left())


@in_a_loop
async def test_a_save_during_the_commit_of_close_is_committed_too(local_store: AgentStore) -> None:
    manager = StateManager(local_store(), config=StateConfig(auto_save=False))
    await manager.save("early", 1)
    over = threading.Event()
    begun = threading.Event()
    reading = asyncio.create_task(manager.read(lambda part: (begun.set(), over.wait(60))))
    await asyncio.to_thread(begun.wait, 60)
    closing = asyncio.create_task(manager.close())
    await asyncio.sleep(0.02)  # the commit is under way, and waits for the read
    await manager.save("late", 2)
    over.set()
    await asyncio.gather(reading, closing)
    async with StateManager(local_store()) as other:
        assert await other.list_keys() == ["early", "late"]


@in_a_loop
async def test_a_flush_that_is_cancelled_is_not_made_twice(local_store: AgentStore) -> None:
    """It goes on, and later writes of another manager stay."""
    manager = StateManager(local_store(), config=StateConfig(auto_save=False))
    async with manager, StateManager(local_store()) as other:
        for n in range(20):
            await manager.save("k", f"gathered {n}")
            flushing = asyncio.create_task(manager.flush())
            await asyncio.sleep(0.0002 * n)
            flushing.cancel()
            await asyncio.wait([flushing])
            await until_it_is(other, "k", f"gathered {n}")
            await other.save("k", "new")
            await manager.flush()
            assert await other.get("k") == "new"


@pytest.mark.parametrize("lands", [True, False])
def test_a_flush_that_the_end_of_the_loop_cancels_is_made_once(lands: bool) -> None:
    """A commit that ends before the loop is not repeated over others' writes; a failed one stays pending."""
    began = threading.Event()

    class Slow(Faulty):
        def transact(self, writes: Any, expected: Any) -> bool:
            began.set()
            time.sleep(0.1)
            if lands or self.fail_at is None:
                return super().transact(writes, expected)
            raise StoreUnavailable("gone")

    store = Slow(Memory())
    manager = StateManager(store, config=StateConfig(auto_save=False))

    async def begin_a_flush() -> None:
        await manager.save("k", "gathered")
        await manager.save("mine", 1)
        flushing.append(asyncio.create_task(manager.flush()))
        await asyncio.to_thread(began.wait)

    async def flush_again() -> object:
        return await manager.flush()

    flushing: list[asyncio.Task[Any]] = []
    store.fail_at = 0
    asyncio.run(begin_a_flush())
    assert flushing[0].cancelled()
    store.fail_at = None
    with Versioned(store.store, branch="main") as other:
        other["state/k"] = "theirs"
        other.commit()
        assert (asyncio.run(flush_again()) is None) is lands
        other.refresh()
        assert dict(other) == {"state/k": "theirs" if lands else "gathered", "state/mine": 1}
    asyncio.run(manager.close())


def test_gathered_changes_that_are_dropped_are_named(tmp_path: Path) -> None:
    """A manager that is dropped before flush() or close() warns of the keys; one that was closed does not."""

    async def save(close: bool) -> None:
        manager = StateManager(tmp_path / "store", config=StateConfig(auto_save=False))
        await manager.save("plan", 1)
        if close:
            await manager.close()

    for close in (True, False):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            asyncio.run(save(close))
            gc.collect()
        lost = [str(each.message) for each in caught if each.category is UncommittedWarning]
        assert len(lost) == (not close)
        assert all("which are lost: 'plan'" in message for message in lost)
