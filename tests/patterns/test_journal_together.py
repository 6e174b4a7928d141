"""Calls of threads that wait for one journal land together, each with its own commit and outcome."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from present import present
from running import run_forked

from vstate import Disk, Memory, StoreUnavailable, Versioned
from vstate.errors import LeaseLost, NotFound
from vstate.patterns.journal import Journal, Records
from vstate.repo import Repository
from vstate.testing import Faulty

THREADS = 12
WHO: ContextVar[str] = ContextVar("WHO", default="nobody")


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(THREADS) as pool:
        yield pool


def together(
    journal: Journal[Any], threads: ThreadPoolExecutor, calls: list[Callable[[], Any]]
) -> list[Future[Any]]:
    """Make the calls while the journal is in use, so that all of them wait for it."""
    with journal.lock:
        futures = [threads.submit(call) for call in calls]
        limit = time.monotonic() + 60
        while len(journal._waiting) < len(calls) and time.monotonic() < limit:
            time.sleep(0.001)
    return futures


def appending(journal: Journal[Records], name: str) -> Callable[[], Any]:
    """A call that appends its name, and how many records were there before."""

    def call() -> Any:
        WHO.set(name)  # which the plan sees, whichever thread runs it
        return journal.append(lambda index: [(WHO.get(), len(index))], message=name, info={"by": name})

    return call


def writes_of(store: Faulty) -> int:
    return sum(call in ("transact", "set_many", "compare_and_swap") for call in store.calls)


@pytest.mark.parametrize("begun", [False, True])
def test_waiting_calls_take_one_transaction(tmp_path: Path, threads: ThreadPoolExecutor, begun: bool) -> None:
    """Each has a commit of its own, with its message, in one history; each plan sees the others."""
    with Disk(tmp_path / "s") as disk:
        store = Faulty(disk)
        repo = Repository(store)
        repo.stamp()
        journal = Journal(repo, "t")
        if begun:
            journal.append(lambda index: [("first", 0)])
        writes = writes_of(store)
        names = [str(number) for number in range(THREADS)]
        futures = together(journal, threads, [appending(journal, name) for name in names])
        commits = [present(future.result()) for future in futures]
        assert writes_of(store) - writes == 1
        assert [commit.message for commit in commits] == [commit.info["by"] for commit in commits] == names
        log = list(repo.log("t"))
        assert {*commits} == {*log[:THREADS]}
        assert len(log) == THREADS + begun
        line = [*repo.refs.lines("heads/t").values()][-1]
        assert line.action == f"commit: {log[0].message} (and {THREADS - 1} before it)"
        found = Journal(repo, "t").refresh()
        assert found == journal.refresh()
        assert [place for _, place in found] == list(range(len(log)))
        # Each commit holds its own record and those before it, and no other.
        for commit in log:
            repo.create_branch("then", commit)
            assert Journal(repo, "then").refresh() == found[: len(list(repo.log(commit)))]
            repo.delete_branch("then")
        assert not list(repo.fsck().damage)


def test_a_call_in_the_main_thread_goes_alone(threads: ThreadPoolExecutor) -> None:
    """A signal may end it at any moment: it takes nobody along, and nobody takes it."""
    store = Faulty(Memory())
    journal = Journal(Repository(store), "t")
    with journal.lock:
        futures = together(journal, threads, [appending(journal, "other")])
        appending(journal, "main")()
        assert [name for name, _ in journal.index] == ["main"]
    assert present(futures[0].result()).message == "other"


def test_a_plan_that_raises_fails_its_own_caller(threads: ThreadPoolExecutor) -> None:
    """The others land, and a call that makes no record gets no commit."""

    def refuse(index: Records) -> list[Any]:
        raise NotFound("refused", name="it")

    journal = Journal(Repository(Memory()), "t")
    calls = [appending(journal, str(number)) for number in range(THREADS - 3)]
    calls[3:3] = [lambda: journal.append(refuse), lambda: journal.append(lambda index: [1j])]
    calls.append(lambda: journal.append(lambda index: []))
    futures = together(journal, threads, calls)
    assert [type(future.exception()).__name__ for future in futures[3:5]] == ["NotFound", "InvalidInput"]
    assert futures[-1].result() is None
    assert all(present(future.result()) for future in [*futures[:3], *futures[5:-1]])
    assert len(Journal(journal.repo, "t").refresh()) == THREADS - 3


def test_a_rewrite_among_them_leaves_what_comes_later(threads: ThreadPoolExecutor) -> None:
    """Records before it are gone, and records after it are there, in its own order among the calls."""
    journal = Journal(Repository(Memory()), "t")
    calls = [appending(journal, str(number)) for number in range(THREADS - 1)]
    calls.insert(5, lambda: journal.rewrite(lambda index: ["anew"], message="anew"))
    for future in together(journal, threads, calls):
        future.result()
    log = [commit.message for commit in journal.repo.log("t")]
    found = Journal(journal.repo, "t").refresh()
    assert found == journal.refresh()
    assert found[0] == "anew"
    assert [name for name, _ in found[1:]] == log[: log.index("anew")][::-1]


def test_a_group_that_lost_a_race_is_planned_anew(threads: ThreadPoolExecutor) -> None:
    """Another writer moves the branch meanwhile: all go on top of its record, still in one transaction."""
    store = Faulty(Memory())
    journal, other = Journal(Repository(store), "t"), Journal(Repository(store), "t")
    appending(journal, "first")()
    with journal.lock:
        futures = together(journal, threads, [appending(journal, str(i)) for i in range(THREADS)])
        appending(other, "other")()
        before = writes_of(store)
    for future in futures:
        assert present(future.result())
    assert writes_of(store) - before == 2
    found = Journal(journal.repo, "t").refresh()
    assert [name for name, _ in found[:2]] == ["first", "other"]
    assert [place for _, place in found] == list(range(THREADS + 2))
    assert found == journal.refresh()


def test_a_lost_lease_is_told_to_each(threads: ThreadPoolExecutor) -> None:
    """Each caller gets LeaseLost of its own, and nothing lands."""
    store = Memory()
    with Versioned(store).lease("turn", ttl=30) as lease:
        journal = Journal(Repository(store), "t", guard=lease)
        appending(journal, "first")()
    futures = together(journal, threads, [appending(journal, str(i)) for i in range(THREADS)])
    errors = [future.exception() for future in futures]
    assert {type(error) for error in errors} == {LeaseLost}
    assert len({id(error) for error in errors}) == THREADS
    assert journal.index == Journal(Repository(store), "t").refresh() == [("first", 0)]


@pytest.mark.parametrize("away", [0, 1, 2, 100])
@pytest.mark.parametrize("after", [False, True])
def test_a_failure_leaves_no_outcome_untold(threads: ThreadPoolExecutor, after: bool, away: int) -> None:
    """The store fails before or after the transaction, and stays away: no call that returned lacks its
    record, none is there twice, and a call that raised with a known outcome has none.
    """
    store = Faulty(Memory(), after=after, away=away)
    journal = Journal(Repository(store), "t")
    appending(journal, "first")()
    store.fail_at = len(store.calls) + 1  # the transaction: the index is known
    names = [str(number) for number in range(THREADS)]
    futures = together(journal, threads, [appending(journal, name) for name in names])
    errors = {name: future.exception() for name, future in zip(names, futures, strict=True)}
    store.fail_at = None
    found = [name for name, _ in Journal(journal.repo, "t").refresh()]
    assert len(found) == len({*found})
    assert [name for name, _ in journal.refresh()] == found
    for name, error in errors.items():
        if error is None:
            assert name in found
        else:
            assert isinstance(error, StoreUnavailable)
            assert error.outcome_unknown or name not in found
    if after and away < 100:
        assert {*found} >= {*names}  # each finds its commit
    assert (set(errors.values()) == {None}) is (away == 0 and after)


class _Stopped(BaseException):
    """Raised in the thread that lands the changes of others."""


@pytest.mark.parametrize("after", [False, True])
def test_a_thread_that_stops_takes_nobody_along(threads: ThreadPoolExecutor, after: bool) -> None:
    """It stops before or after the transaction: the records of all others are there once."""
    store = Faulty(Memory(), error=_Stopped, after=after)
    journal = Journal(Repository(store), "t")
    appending(journal, "first")()
    store.fail_at = len(store.calls) + 1
    names = [str(number) for number in range(THREADS)]
    futures = together(journal, threads, [appending(journal, name) for name in names])
    stopped = [name for name, future in zip(names, futures, strict=True) if future.exception() is not None]
    assert len(stopped) == 1
    found = [name for name, _ in Journal(journal.repo, "t").refresh()]
    assert sorted(found) == sorted({"first", *names} - ({*stopped} if not after else set()))
    assert [name for name, _ in journal.refresh()] == found


def test_a_forked_child_lands_nothing_of_its_parent(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    """The calls that wait at a fork are those of the parent's threads: each lands once."""
    store = Disk(tmp_path / "s")
    journal = Journal(Repository(store), "t")
    appending(journal, "first")()
    with journal.lock:
        futures = together(journal, threads, [appending(journal, str(i)) for i in range(THREADS)])

        def append() -> None:
            with ThreadPoolExecutor(1) as own:
                journal.lock.release()  # the thread that forks still holds it
                own.submit(appending(journal, "child")).result()

        run_forked(append)
    for future in futures:
        future.result()
    found = [name for name, _ in Journal(journal.repo, "t").refresh()]
    assert sorted(found) == sorted(["first", "child", *map(str, range(THREADS))])
    store.close()


class _Late(Faulty):
    """A store that loses a transaction's answer, and carries it out right before the next transaction."""

    loses = False
    held: Callable[[], bool] | None = None

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        held, self.held = self.held, None
        if held is not None:
            held()
        if self.loses:
            self.loses, self.held = False, partial(super().transact, writes, expected)
            raise StoreUnavailable("no answer", outcome_unknown=True)
        return super().transact(writes, expected)


def test_a_commit_that_lands_after_a_look_is_not_made_again(threads: ThreadPoolExecutor) -> None:
    """The thread that was taken along finds nothing, loses the race to its own commit, and sees that."""
    store = _Late(Memory())
    journal = Journal(Repository(store), "t")
    appending(journal, "first")()
    store.loses = True
    futures = together(journal, threads, [appending(journal, str(i)) for i in range(THREADS)])
    told = [future.exception() for future in futures]
    assert sum(error is not None for error in told) == 1
    names = [name for name, _ in Journal(journal.repo, "t").refresh()]
    assert sorted(names) == sorted(["first", *map(str, range(THREADS))])
