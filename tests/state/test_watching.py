"""Watching a branch: the commits of others, in order, none missed."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from pathlib import Path
from queue import Queue

import pytest
from clock import standing_still
from present import present
from raising import interrupted
from state_operations import in_a_thread

from vstate import (
    Change,
    Commit,
    CorruptObject,
    Disk,
    KVStore,
    Live,
    Memory,
    NotFound,
    NotVersioned,
    StoreUnavailable,
    Versioned,
    open_store,
)
from vstate.repo import Repository
from vstate.state.watching import Watch
from vstate.testing import Faulty

pytestmark = pytest.mark.slow

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


def test_commits_after_a_jump_come_one_by_one() -> None:
    """A late watch follows the branch along its reflog, and reports each commit there."""
    store = Memory()
    first = put(store, n=0)
    put(store, n=1)
    assert first is not None
    with Versioned(store, branch="main").watch() as watch:
        Versioned(store, branch="main").reset(first)
        put(store, n=5)
        put(store, n=6)
        other = Versioned(store, branch="main").fork("other", first.id)
        other["n"] = 7
        other.commit()
        Versioned(store, branch="main").reset("other")
        put(store, n=8)
        assert take(watch, 5) == [("n", "modified", new) for new in (0, 5, 6, 7, 8)]


def test_a_branch_that_gc_deleted_and_that_began_anew() -> None:
    """Its commits are compared with the values of the old one, whose end is no commit."""
    with standing_still() as now:
        store = Memory()
        Repository(store).keep("guest", idle="10s")
        state = Versioned(store, branch="guest")
        state["a"] = 1
        state.commit()
        with state.watch() as watch:
            now.pass_(11)
            assert state.repo.gc().expired == ("guest",)
            anew = Versioned(store, branch="guest")
            anew["b"] = 1
            anew.commit()
            anew["c"] = 1
            anew.commit()
            assert [(key, kind) for key, kind, _ in take(watch, 3)] == [
                ("a", "removed"),
                ("b", "added"),
                ("c", "added"),
            ]


def test_a_commit_that_is_gone_before_it_was_looked_at() -> None:
    """The branch left the commit, and gc removed it: the commits instead of it are reported."""
    store = Memory()
    put(store, a=1)
    state = Versioned(store, branch="main")
    watch = state.watch()
    middle = put(store, b=1)
    put(store, c=1)
    assert middle is not None
    assert take(watch, 1) == [("b", "added", 1)]
    Versioned(store, branch="main").reset(middle)
    Versioned(store).repo.gc(keep_reflog="0")
    put(store, d=1)
    assert take(watch, 1) == [("d", "added", 1)]


def test_the_commit_seen_last_is_gone() -> None:
    """The changes since are unknown: the error says so, and gives advice."""
    store = Memory()
    put(store, a=1)
    watch = Versioned(store, branch="main").watch()
    for number in range(5):
        put(store, n=number)
    Versioned(store).repo.gc(keep_reflog="0", branch="main", keep_last=1)
    watch = Watch(Versioned(store).repo, "main", "*", watch.seen)  # which has nothing of it in memory
    for _ in range(2):
        with pytest.raises(NotFound, match="watch it anew"):
            next(watch)
    raw = dict(store.items("o/"))
    watch = Versioned(store, branch="main").watch()
    put(store, z=1)
    for key in set(dict(store.items("o/"))) - set(raw):
        store.delete(key)
    with pytest.raises(CorruptObject):  # a commit of the branch that is missing is damage
        next(Watch(Versioned(store, branch="other").repo, "main", "*", watch.seen))


@pytest.mark.slow
def test_an_interruption_at_any_moment_loses_nothing() -> None:
    """A program that goes on after Ctrl-C gets each change once, in order."""
    wanted = [("a", 0), ("b", 0), ("a", 1), ("c", 2)]
    moment, came = 0, True
    while came:
        moment += 1
        store = Memory()
        watch = Versioned(store, branch="main").watch()
        put(store, a=0, b=0)
        put(store, a=1)
        put(store, c=2)
        found: list[tuple[str, Change, Commit]] = []

        def follow(watch: Watch = watch, found: list[tuple[str, Change, Commit]] = found) -> None:
            for seen in watch:
                found.append(seen)
                if len(found) == 4:
                    return

        _, interruption = interrupted(follow, moment)
        came = interruption is not None
        if len(found) < 4:
            in_a_thread(follow)
        assert [(key, change.new) for key, change, _ in found] == wanted, moment
    assert moment > 100


def test_the_watch_of_a_namespace() -> None:
    """Its keys, by their names in it, whatever characters its own name has; nothing else."""
    store = Memory()
    state = Versioned(store, branch="main")
    for space in (state.namespace("a*"), state.namespace("a").namespace("[b]")):
        with space.watch("k?") as watch, space.watch() as all_of_it:
            put(store, **{"ab/k1": 0, "a*/k22": 0, "a/b/k1": 0, "k1": 0})
            put(store, **{f"{space.prefix}k1": 1})
            assert take(watch, 1) == [("k1", "added", 1)]
            assert [key for key, _, _ in take(all_of_it, 1)] == ["k22" if space.prefix == "a*/" else "k1"]
            assert space.prefix in repr(watch)
        state.refresh()
    calls: Queue[str] = Queue()
    first = state.log(limit=1)
    space = state.namespace("x")
    with space.subscribe("*", lambda key, change, commit: calls.put(key)):
        put(store, **{"x/y": 1})
        assert calls.get(timeout=60) == "y"
    assert next(space.watch(since=next(iter(first)).id))[0] == "y"
    for name in ("watch", "subscribe"):
        with pytest.raises(NotVersioned):
            getattr(Live(), name)("*", print)
    with pytest.raises(NotVersioned):
        Live().namespace("a").watch()
    with pytest.raises(NotVersioned):
        Live().namespace("a").subscribe("*", print)


def test_on_servers(server_url: str) -> None:
    """Redis, PostgreSQL and S3: commits of another connection come in order, also after a jump."""
    with open_store(server_url) as one, open_store(server_url) as two:
        first = present(put(two, n=0))
        with Versioned(one, branch="main").watch() as watch:
            told: Queue[object] = Queue()

            def follow() -> None:
                for _, change, _ in watch:
                    told.put(change.new)

            thread = threading.Thread(target=follow)
            thread.start()
            for number in range(1, 6):
                put(two, n=number)
            assert [told.get(timeout=60) for _ in range(5)] == [1, 2, 3, 4, 5]
            Versioned(two, branch="main").reset(first)
            put(two, n=7)
            assert [told.get(timeout=60) for _ in range(2)] == [0, 7]
        thread.join(60)
        assert not thread.is_alive()


def test_none_is_missed_by_a_slow_reader_of_many_writers(tmp_path: Path) -> None:
    """Four writers, 15 commits each: every commit is reported once, in the order of the branch."""
    state = Versioned(tmp_path, branch="main")
    watch = state.watch("w*")

    def write(name: str) -> None:
        with Disk(tmp_path) as disk:
            mine = Versioned(disk, branch="main")
            for number in range(15):
                mine[name] = number
                mine.commit()

    threads = [threading.Thread(target=write, args=(f"w{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    told: dict[str, list[object]] = {f"w{i}": [] for i in range(4)}
    for _ in range(60):
        key, change, _commit = next(watch)
        told[key].append(change.new)
    for thread in threads:
        thread.join()
    assert all(numbers == list(range(15)) for numbers in told.values())
    state.close()


def test_a_store_that_fails_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    """After a failure at any call of the store, the watch goes on behind the last commit that it saw."""
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
    """A thread that waits is released, and the loop ends."""
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
    assert ended.wait(60)
    assert list(watch) == []


def test_subscribers_are_called_in_order() -> None:
    """Calls come in one thread, one after another. close waits for the running call, and no other follows."""
    store = Memory()
    state = Versioned(store, branch="main")
    calls: Queue[tuple[str, object, int]] = Queue()

    def heard(key: str, change: Change, commit: Commit) -> None:
        calls.put((key, change.new, threading.get_ident()))

    with state.subscribe("n", heard) as subscription:
        assert subscription.active
        for number in range(20):
            put(store, n=number)
        told = [calls.get(timeout=60) for _ in range(20)]
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
        assert [calls.get(timeout=60), calls.get(timeout=60)] == ["a", "b"]
    assert "in the subscriber" in caplog.text


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
        assert [seen async for seen in watch] == []
        return found

    assert asyncio.run(main()) == ["a", "b"]
