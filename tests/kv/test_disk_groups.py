"""Transactions of threads that wait for one another on a Disk go together, each with its own outcome."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from raising import raised_at
from soak import SOAK

from vstate import Disk, StoreFull, StoreUnavailable
from vstate.kv.disk import writes
from vstate.kv.disk.database import FILE_NAME

THREADS = 12
LINES_STEP = 1 if SOAK else 3
"""Of the lines of a call, an exception comes out of each or of every third."""


class _Commits:
    """A connection that counts its commits, and calls `after` with each."""

    def __init__(self, store: Disk, after: Callable[[sqlite3.Connection], None]) -> None:
        store.set("open", b"1")
        connection = store._writer.connection
        assert connection is not None
        self.connection = connection
        self.after = after
        self.count = 0
        store._writer.connection = self  # type: ignore[assignment]  # it stands in for one

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)

    def execute(self, sql: str, *parameters: Any) -> Any:
        if sql != "COMMIT":
            return self.connection.execute(sql, *parameters)
        self.count += 1
        self.after(self.connection)
        return None


def _commit(connection: sqlite3.Connection) -> None:
    connection.execute("COMMIT")


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(THREADS) as pool:
        yield pool


def _together(
    store: Disk, threads: ThreadPoolExecutor, calls: list[Callable[[], bool]], *, seconds: float = 0
) -> list[Future[bool]]:
    """Make the calls while the write lock is held, so that all of them wait for it, so many seconds more."""
    with store._writer.lock:
        futures = [threads.submit(call) for call in calls]
        limit = time.monotonic() + 60
        while len(store._waiting.all()) < len(calls) and time.monotonic() < limit:
            time.sleep(0.001)
        time.sleep(seconds)
    return futures


def _put(store: Disk, key: str, value: bytes, expected: dict[str, bytes | None]) -> Callable[[], bool]:
    return lambda: store.transact({key: value}, expected)


def test_waiting_transactions_take_one_commit(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    """One fsync serves all that wait, and each has its own expectations."""
    with Disk(tmp_path / "store") as store:
        commits = _Commits(store, _commit)
        calls = [_put(store, f"key{i}", b"1", {"open": b"1" if i % 3 else b"2"}) for i in range(THREADS)]
        # Of those that change one key from the same value, one succeeds.
        calls[:3] = [_put(store, "race", b"%d" % i, {"race": None}) for i in range(3)]
        landed = [future.result() for future in _together(store, threads, calls)]
        assert commits.count == 1
        assert landed.count(True) == 1 + sum(1 for i in range(3, THREADS) if i % 3)
        assert store.get("race") == b"%d" % landed.index(True)
        for i in range(3, THREADS):
            assert landed[i] is bool(i % 3)
            assert store.get(f"key{i}") == (b"1" if i % 3 else None)


def test_one_that_cannot_be_written_fails_alone(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    """A transaction for which there is no room raises StoreFull in its own thread only."""
    with Disk(tmp_path / "store", size_limit=1_000_000) as store:
        store.set("open", b"1")
        calls = [_put(store, f"key{i}", b"1", {}) for i in range(THREADS)]
        calls[5] = _put(store, "key5", os.urandom(2_000_000), {})
        futures = _together(store, threads, calls)
        assert isinstance(futures[5].exception(), StoreFull)
        assert all(future.result() for i, future in enumerate(futures) if i != 5)
        assert [i for i in range(THREADS) if store.get(f"key{i}") is None] == [5]


def test_a_group_that_does_not_fit_is_made_one_by_one(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    """If the disk is full when a group commits, each thread makes a transaction of its own."""
    refused: list[bool] = []

    def full_at_first(connection: sqlite3.Connection) -> None:
        if refused:
            connection.execute("COMMIT")
            return
        refused.append(True)
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    with Disk(tmp_path / "store") as store:
        commits = _Commits(store, full_at_first)
        futures = _together(store, threads, [_put(store, f"key{i}", b"1", {}) for i in range(THREADS)])
        assert all(future.result() for future in futures)
        assert commits.count > 2
        assert len(list(store.keys("key"))) == THREADS


def _fail(connection: sqlite3.Connection) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    raise error


class _Stopped(BaseException):
    """Raised in the thread that commits for others."""


def _commit_and_stop(connection: sqlite3.Connection) -> None:
    connection.execute("COMMIT")
    raise _Stopped


@pytest.mark.parametrize(("after", "own"), [(_fail, StoreUnavailable), (_commit_and_stop, _Stopped)])
def test_a_commit_that_failed_is_unknown_to_all(
    tmp_path: Path,
    threads: ThreadPoolExecutor,
    after: Callable[[sqlite3.Connection], None],
    own: type[BaseException],
) -> None:
    """If a failed fsync or an interruption leaves the outcome open, each thread is told so."""
    with Disk(tmp_path / "store") as store:
        commits = _Commits(store, after)
        futures = _together(store, threads, [_put(store, f"key{i}", b"1", {}) for i in range(THREADS)])
        errors = [future.exception() for future in futures]
        assert sum(type(error) is own for error in errors) == (THREADS if own is StoreUnavailable else 1)
        others = [error for error in errors if isinstance(error, StoreUnavailable)]
        assert len(others) >= THREADS - 1
        assert all(error.outcome_unknown for error in others)
        note = tmp_path / "store" / "vstate.db-unsynced"
        assert note.exists() == (own is StoreUnavailable)
        commits.after = _commit
        store.set("next", b"1")  # it writes the log once more, before its own rows
        assert not note.exists()


@pytest.mark.parametrize("patience", [1.0, 0.001], ids=["asleep", "at the lock"])
def test_an_interruption_before_the_commit_undoes_nobody_else(
    patience: float, tmp_path: Path, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others make their own transactions if the thread that wrote for them stopped before the commit.

    So do those that have slept for long, and wait for the lock themselves.
    """
    monkeypatch.setattr(writes, "_LOOK_AGAIN_SECONDS", patience)
    with Disk(tmp_path / "store") as store:
        apply, applied = store._apply, list[Any]()

        def apply_and_stop(connection: sqlite3.Connection, write: Any) -> bool:
            applied.append(write)
            done = apply(connection, write)
            if len(applied) == THREADS:
                raise _Stopped
            return done

        monkeypatch.setattr(store, "_apply", apply_and_stop)
        calls = [_put(store, f"key{i}", b"1", {}) for i in range(THREADS)]
        futures = _together(store, threads, calls, seconds=20 * patience if patience < 1 else 0)
        stopped = [i for i, future in enumerate(futures) if future.exception() is not None]
        assert [repr(futures[i].exception()) for i in stopped] == [repr(_Stopped())]
        assert [i for i in range(THREADS) if store.get(f"key{i}") is None] == stopped


def test_a_thread_that_gives_up_knows_if_another_wrote_its_rows(
    tmp_path: Path, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of a writer is over just when another thread wrote for it, or just before one could."""
    with Disk(tmp_path / "store") as store:
        store.set("open", b"1")
        other = sqlite3.connect(tmp_path / "store" / FILE_NAME, isolation_level=None, check_same_thread=False)
        for is_written in (True, False):
            other.execute("BEGIN IMMEDIATE")

            def give_up(*_: Any, is_written: bool = is_written) -> Any:
                monkeypatch.undo()
                other.execute("ROLLBACK")
                if is_written:
                    assert threads.submit(store.transact, {"b": b"1"}, {}).result()
                raise StoreUnavailable("locked")

            monkeypatch.setattr(store, "_pause", give_up)
            future = threads.submit(store.transact, {"a": b"%d" % is_written}, {})
            assert (future.exception() is None) is is_written
            assert len(store._waiting.all()) == 0
            assert threads.submit(store.transact, {"c": b"1"}, {}).result()
            assert store.get("a") == b"1"
        other.close()


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_child_does_not_write_for_its_parent(tmp_path: Path) -> None:
    """Rows that wait in the parent when it forks are not written by the child."""
    with Disk(tmp_path / "store") as store, ThreadPoolExecutor(1) as pool:
        with store._writer.lock:
            future = pool.submit(store.transact, {"key": b"parent"}, {"key": None})
            while not len(store._waiting.all()):
                time.sleep(0.001)
            child = os.fork()
            if not child:
                os._exit(len(store._waiting.all()))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert future.result()


def test_the_main_thread_writes_for_itself(tmp_path: Path) -> None:
    """A signal can end a call of the main thread anywhere, so no other thread writes its rows."""
    assert threading.current_thread() is threading.main_thread()
    waiting, locked = list[int](), threading.Event()
    with Disk(tmp_path / "store") as store:

        def look() -> None:
            with store._writer.lock:
                locked.set()
                limit = time.monotonic() + 0.2
                while not sum(waiting) and time.monotonic() < limit:
                    time.sleep(0.001)
                    waiting.append(len(store._waiting.all()))

        thread = threading.Thread(target=look)
        thread.start()
        assert locked.wait(60)
        assert store.transact({"key": b"1"}, {})
        thread.join()
        assert not sum(waiting)


class _TimeLimit(Exception):
    """As a limit in seconds raises it in a thread, whatever the thread does."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "beside"),
    [(_TimeLimit, True), (KeyboardInterrupt, False)]
    + ([(_TimeLimit, False), (MemoryError, True)] if SOAK else []),
)
def test_nothing_lands_after_its_caller_has_gone(
    tmp_path: Path, threads: ThreadPoolExecutor, kind: type[BaseException], beside: bool
) -> None:
    """After an exception at each line, alone or while another thread leads, no later commit has the rows."""
    with Disk(tmp_path / "store", durability="process") as store:
        for line in count(1, LINES_STEP):
            with store._writer.lock if beside else nullcontext():
                if beside:
                    leading = threads.submit(store.transact, {"leader": b"%d" % line}, {})
                    while not len(store._waiting.all()):
                        time.sleep(0.0001)
                put = _put(store, f"key{line}", b"1", {f"key{line}": None})
                call = threads.submit(raised_at, put, line, kind)
                wait([call], 0.003 if beside else None)
            passed, error = call.result(60)
            landed = store.get(f"key{line}") == b"1"
            assert landed or error is not None
            assert threads.submit(store.transact, {"other": b"%d" % line}, {}).result(60)
            assert (store.get(f"key{line}") == b"1") is landed, (line, error)
            if beside:
                assert leading.result(60)
            if passed < line:
                break
        assert line > 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", [_TimeLimit, KeyboardInterrupt] if SOAK else [KeyboardInterrupt])
def test_an_exception_of_the_leader_is_known_to_all(
    tmp_path: Path, threads: ThreadPoolExecutor, kind: type[BaseException]
) -> None:
    """At each line of the call that leads: another thread's rows are written once, or it is told so."""
    with Disk(tmp_path / "store", durability="process") as store:
        for line in count(1, LINES_STEP):
            store.set("counter", b"0")
            with store._writer.lock:
                call = threads.submit(raised_at, _put(store, "leader", b"%d" % line, {}), line, kind)
                wait([call], 0.003)
                other = threads.submit(store.transact, {"counter": b"1"}, {"counter": b"0"})
                wait([other], 0.003)
            passed, _ = call.result(60)
            error = other.exception(60)
            if error is None:
                assert other.result()
            else:
                assert isinstance(error, StoreUnavailable)
                assert error.outcome_unknown
            landed = store.get("counter")
            assert landed == b"1" or error is not None
            assert threads.submit(store.transact, {"third": b"%d" % line}, {}).result(60)
            assert store.get("counter") == landed
            if passed < line:
                break
        assert line > 20
