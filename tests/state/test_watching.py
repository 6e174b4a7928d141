"""Watching a branch: what others commit, in order, none missed."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from pathlib import Path
from queue import Queue

import pytest

from vstate import Change, Commit, DetachedHead, Disk, KVStore, Memory, NotFound, StoreUnavailable, Versioned
from vstate.state.watching import Watch
from vstate.testing import Faulty

Seen = tuple[str, str, object]


def take(watch: Watch, count: int) -> list[Seen]:
    """The next changes, as key, kind and new value."""
    found = []
    for _ in range(count):
        key, change, commit = next(watch)
        assert commit is not None
        found.append((key, change.kind, change.new))
    return found


def put(store: KVStore, message: str = "", **values: object) -> Commit | None:
    """Commit from a handle of its own."""
    state = Versioned(store, branch="main")
    state.update(values)
    return state.commit(message)


def test_changes_of_other_handles_come_in_order() -> None:
    """Each commit's changes, sorted by key, with what was there before."""
    store = Memory()
    state = Versioned(store, branch="main")
    with state.watch() as watch:
        put(store, b=1, a=1)
        put(store, a=2)
        assert take(watch, 3) == [("a", "added", 1), ("b", "added", 1), ("a", "modified", 2)]


def test_its_own_commits_come_too() -> None:
    """A watch tells of the commits of its own state."""
    state = Versioned(Memory(), branch="main")
    with state.watch() as watch:
        state["mine"] = 1
        commit = state.commit()
        key, change, seen = next(watch)
        assert (key, change.new, seen) == ("mine", 1, commit)


def test_only_keys_of_the_pattern_come() -> None:
    """`*` stands for anything, `?` for one character, as in a shell; capitals count."""
    store = Memory()
    with Versioned(store, branch="main").watch("agent:?") as watch:
        put(store, **{"agent:10": 0, "Agent:1": 0, "other": 0})
        put(store, **{"agent:1": 1})
        assert take(watch, 1) == [("agent:1", "added", 1)]


def test_it_begins_where_the_state_is() -> None:
    """What was committed before is not told; what came after the state was loaded is."""
    store = Memory()
    put(store, old=1)
    state = Versioned(store, branch="main")
    put(store, new=1)
    with state.watch() as watch:
        assert take(watch, 1) == [("new", "added", 1)]


def test_it_goes_on_from_a_commit() -> None:
    """`since` with the last commit seen gives all that came after it."""
    store = Memory()
    state = Versioned(store, branch="main")
    put(store, a=1)
    with state.watch() as watch:
        take(watch, 1)
        last = watch.seen
    assert last is not None
    put(store, b=1)
    put(store, c=1)
    with Versioned(store, branch="main").watch(since=last.id) as watch:
        assert take(watch, 2) == [("b", "added", 1), ("c", "added", 1)]
    with pytest.raises(NotFound):
        state.watch(since="no-such-commit")


def test_a_removed_key() -> None:
    """A deletion is a change."""
    store = Memory()
    put(store, a=1)
    state = Versioned(store, branch="main")
    with state.watch() as watch:
        del state["a"]
        state.commit()
        assert take(watch, 1) == [("a", "removed", None)]


def test_a_reset_comes_as_what_differs() -> None:
    """A branch that jumps gives the differences, at the commit that it is on then."""
    store = Memory()
    first = put(store, a=1)
    put(store, a=2, b=1)
    state = Versioned(store, branch="main")
    assert first is not None
    with state.watch() as watch:
        state.reset(first.id)
        changes = [next(watch) for _ in range(2)]
        assert [(key, change.kind) for key, change, _ in changes] == [("a", "modified"), ("b", "removed")]
        assert {commit.id for _, _, commit in changes} == {first.id}


def test_a_merge_comes_as_one_commit() -> None:
    """What another branch changed comes with the merge commit."""
    store = Memory()
    put(store, a=1)
    state = Versioned(store, branch="main")
    other = state.fork("other")
    with state.watch() as watch:
        other["x"] = 1
        other.commit()
        other["y"] = 1
        other.commit()
        state["b"] = 1
        state.commit()
        merge = state.merge("other").commit
        assert take(watch, 1) == [("b", "added", 1)]
        rest = [next(watch), next(watch)]
        assert [key for key, _, _ in rest] == ["x", "y"]
        assert {commit for _, _, commit in rest} == {merge}


def test_a_detached_state_cannot_be_watched() -> None:
    """Without a branch there is nothing that moves."""
    store = Memory()
    commit = put(store, a=1)
    assert commit is not None
    state = Versioned(store)
    state.repo.checkout(commit.id)
    state.refresh()
    with pytest.raises(DetachedHead):
        state.watch()


def test_none_is_missed_by_a_slow_reader_of_many_writers(tmp_path: Path) -> None:
    """Four writers, 40 commits each: every one is told, once, in the order of the branch."""
    state = Versioned(tmp_path, branch="main")
    watch = state.watch("w*")

    def write(name: str) -> None:
        with Disk(tmp_path) as disk:
            mine = Versioned(disk, branch="main")
            for number in range(40):
                mine[name] = number
                mine.commit()

    threads = [threading.Thread(target=write, args=(f"w{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    told: dict[str, list[object]] = {f"w{i}": [] for i in range(4)}
    for _ in range(160):
        key, change, _commit = next(watch)
        told[key].append(change.new)
    for thread in threads:
        thread.join()
    assert all(numbers == list(range(40)) for numbers in told.values())
    state.close()


def test_a_store_that_fails_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    """The watch goes on after the last commit that it saw, at whichever call the store failed."""
    calls = 1
    while True:
        store = Memory()
        faulty = Faulty(store, fail_at=None)
        state = Versioned(faulty, branch="main")
        watch = state.watch()
        put(store, a=1)
        put(store, b=1)
        faulty.calls.clear()
        faulty.fail_at, faulty.error = calls, StoreUnavailable
        assert take(watch, 2) == [("a", "added", 1), ("b", "added", 1)]
        if len(faulty.calls) < calls:
            break
        calls += 1
    assert calls > 4
    assert "trying again" in caplog.text


def test_close_ends_the_iteration() -> None:
    """Whoever waits in another thread is let go, and the loop ends."""
    state = Versioned(Memory(), branch="main")
    watch = state.watch()
    ended = threading.Event()

    def follow() -> None:
        for _ in watch:
            pass
        ended.set()

    threading.Thread(target=follow, daemon=True).start()
    time.sleep(0.05)
    state.close()
    assert ended.wait(5)
    assert list(watch) == []


def test_subscribers_are_called_in_order() -> None:
    """In one thread, a call after the other; close waits for the one under way, and no other comes."""
    store = Memory()
    state = Versioned(store, branch="main")
    calls: Queue[tuple[str, object, int]] = Queue()

    def heard(key: str, change: Change, commit: Commit) -> None:
        calls.put((key, change.new, threading.get_ident()))

    with state.subscribe("n", heard) as subscription:
        assert subscription.active
        for number in range(20):
            put(store, n=number)
        told = [calls.get(timeout=5) for _ in range(20)]
    assert [value for _, value, _ in told] == list(range(20))
    assert len({thread for _, _, thread in told}) == 1
    assert not subscription.active
    put(store, n=100)
    assert calls.empty()


def test_a_subscriber_that_raises_is_called_again(caplog: pytest.LogCaptureFixture) -> None:
    """The error is logged with the commit, and the next change comes."""
    store = Memory()
    calls: Queue[str] = Queue()

    def heard(key: str, change: Change, commit: Commit) -> None:
        calls.put(key)
        raise ZeroDivisionError("in the subscriber")

    with caplog.at_level(logging.ERROR, "vstate"), Versioned(store, branch="main").subscribe("*", heard):
        put(store, a=1, b=1)
        assert [calls.get(timeout=5), calls.get(timeout=5)] == ["a", "b"]
    assert "in the subscriber" in caplog.text


def test_a_subscriber_may_end_its_subscription() -> None:
    """close from inside the call does not wait for itself."""
    store = Memory()
    closed = threading.Event()

    def heard(key: str, change: Change, commit: Commit) -> None:
        subscription.close()
        closed.set()

    subscription = Versioned(store, branch="main").subscribe("*", heard)
    put(store, a=1, b=1)
    assert closed.wait(5)


def test_a_watch_in_an_event_loop() -> None:
    """`async for` waits without holding up the loop, and a cancelled wait loses nothing."""

    async def main() -> list[str]:
        store = Memory()
        watch = Versioned(store, branch="main").watch()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(watch), 0.05)
        put(store, a=1)
        put(store, b=1)
        found = []
        async for key, _, _ in watch:
            found.append(key)
            if len(found) == 2:
                watch.close()
        return found

    assert asyncio.run(main()) == ["a", "b"]
