"""Forks of a process that uses Disks: no connection is open meanwhile, and nobody waits for ever."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
from raising import raised_at
from soak import SOAK

from vstate import Disk, StoreUnavailable
from vstate.kv.disk import connections

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
    pytest.mark.timeout(120),
]


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def forked(work: Callable[[], bool | None]) -> int:
    """Fork a child that exits with 0 if `work` returns True; its number."""
    child = os.fork()
    if not child:
        status = 1
        try:
            sys.settrace(None)
            status = 0 if work() else 2
        finally:
            os._exit(status)
    return child


def succeeded(child: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def writes(store: Disk, key: str = "child") -> bool:
    store.set(key, b"1")
    return store.get(key) == b"1"


def is_refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except StoreUnavailable as error:
        return "when this process was forked" in str(error) and not error.outcome_unknown
    return False


@contextmanager
def planning(store: Disk, threads: ThreadPoolExecutor, plan: Callable[[], object]) -> Iterator[None]:
    """Another thread is inside a transaction, and calls the function there."""
    inside = threading.Event()

    def call() -> dict[str, bytes]:
        inside.set()
        plan()
        return {"parent": b"1"}

    done = threads.submit(store.exclusively, call)
    assert inside.wait(60)
    yield
    assert done.result(60)
    assert store.get("parent") == b"1"


def test_a_fork_waits_for_the_transaction_of_another_thread(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    """A child of a process with a transaction under way would find the file locked for ever."""
    with Disk(tmp_path, timeout=5) as store:
        with planning(store, threads, lambda: time.sleep(0.1)):
            child = forked(lambda: writes(Disk(tmp_path, timeout=5), "other") and writes(store))
        assert succeeded(child)
        assert writes(store, "later")
        assert store.get_many(["child", "other"]) == {"child": b"1", "other": b"1"}


@pytest.mark.parametrize("opens", [False, True])
def test_a_commit_of_a_child_outlives_the_last_connection_of_its_parent(tmp_path: Path, opens: bool) -> None:
    """With an inherited idle connection, SQLite would remove the log with the commits of the child."""
    store = Disk(tmp_path)
    store.set("parent", b"1")
    has_written, goes_on = os.pipe(), os.pipe()

    def work() -> bool:
        used = Disk(tmp_path) if opens else store
        used.set("child", b"1")
        os.write(has_written[1], b"1")
        os.read(goes_on[0], 1)
        return writes(used, "later")

    child = forked(work)
    os.read(has_written[0], 1)
    assert store.get("parent") == b"1"
    store.close()
    os.write(goes_on[1], b"1")
    assert succeeded(child)
    for descriptor in (*has_written, *goes_on):
        os.close(descriptor)
    with Disk(tmp_path) as again:
        assert set(again.get_many(["parent", "child", "later"])) == {"parent", "child", "later"}


def test_a_fork_does_not_wait_for_ever(
    tmp_path: Path, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its patience the child has no store at this place. It has those at other places, and the parent
    goes on.
    """
    monkeypatch.setattr(connections, "PATIENCE", 0.2)
    goes_on = threading.Event()
    with Disk(tmp_path / "a") as store, Disk(tmp_path / "b") as other:
        assert writes(store, "before")
        with planning(store, threads, lambda: goes_on.wait(60)):
            child = forked(
                lambda: (
                    is_refused(lambda: store.get("before"))
                    and is_refused(lambda: store.set("child", b"1"))
                    and is_refused(lambda: Disk(tmp_path / "a"))
                    and writes(other)
                    and succeeded(forked(lambda: is_refused(lambda: Disk(tmp_path / "a"))))
                )
            )
            goes_on.set()
        assert succeeded(child)
        assert succeeded(forked(lambda: writes(store)))
        assert store.get_many(["before", "child"]) == {"before": b"1", "child": b"1"}


def test_a_fork_inside_its_own_transaction(tmp_path: Path) -> None:
    """The transaction ends with an error on both sides, and nothing is written."""
    children = list[int]()
    with Disk(tmp_path) as store:

        def plan() -> dict[str, bytes | None]:
            children.append(os.fork())
            return {"key": b"1"}

        error: BaseException | None = None
        try:
            store.exclusively(plan)
        except BaseException as caught:
            error = caught
        if not children[0]:
            is_right = isinstance(error, StoreUnavailable) and store.get("key") is None and writes(store)
            os._exit(0 if is_right else 1)
        assert isinstance(error, StoreUnavailable)
        assert "forked inside a transaction" in str(error)
        assert not error.outcome_unknown
        assert succeeded(children[0])
        assert store.get_many(["key", "child"]) == {"child": b"1"}
        assert writes(store)


def test_check_fork_and_close_wait_for_nobody(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    """A check begins anew after a fork, and ends when the store is closed."""
    store = Disk(tmp_path, durability="process")
    store.set_many({f"k{i}": os.urandom(20_000) for i in range(400)})
    ends = threading.Event()

    def check() -> int:
        count = 0
        while not ends.is_set():
            assert list(store.check()) == []
            count += 1
        return count

    checks = [threads.submit(check) for _ in range(2)]
    for work in [lambda: writes(store), lambda: True] * 2:
        assert succeeded(forked(work))
    ends.set()
    closing = threads.submit(store.close)
    assert succeeded(forked(lambda: True))
    closing.result(60)
    for done in checks:
        error = done.exception(60)
        assert error is None or "is closed" in str(error)


def test_stores_that_use_each_other_inside_transactions(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    """While threads of the parent write one store inside the transaction of another, forks get all locks."""
    with Disk(tmp_path / "a", durability="process") as a, Disk(tmp_path / "b", durability="process") as b:
        ends = threading.Event()

        def work(number: int) -> int:
            done = 0

            def plan() -> dict[str, bytes | None]:
                b.set(f"b{number}", b"%d" % done)
                return {f"a{number}": b"%d" % done}

            while not ends.is_set():
                a.exclusively(plan)
                assert a.get(f"a{number}") == b.get(f"b{number}") == b"%d" % done
                done += 1
            return done

        running = [threads.submit(work, number) for number in range(2)]
        children = [forked(lambda: writes(a) and writes(b)) for _ in range(5)]
        assert [succeeded(child) for child in children] == [True] * 5
        ends.set()
        assert all(done.result(60) for done in running)


def test_an_exception_at_each_line_of_a_fork_leaves_no_lock(
    tmp_path: Path, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fork goes on. The parent uses the store as ever, and the child does so or is refused."""
    monkeypatch.setattr("raising.PACKAGE", connections.__file__)
    with Disk(tmp_path, durability="process") as store:
        children = list[int]()

        def fork() -> None:
            children.append(forked(lambda: is_refused(lambda: store.set("child", b"1")) or writes(store)))

        for number, line in enumerate(count(1, 1 if SOAK else 9), 1):
            assert writes(store, "before")
            passed, _ = raised_at(fork, line, KeyboardInterrupt)
            assert len(children) == number
            assert succeeded(children[-1]), line
            assert threads.submit(writes, store, "after").result(30), line
            if passed < line:
                break
        assert passed > 20
