"""Leases: one holder at a time, even if a process stops, dies, or has a wrong clock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from present import present
from raising import interrupted
from soak import SOAK

from vstate import (
    Disk,
    InvalidInput,
    KVStore,
    LeaseHeld,
    LeaseLost,
    Live,
    Memory,
    NotVersioned,
    StoreUnavailable,
    Versioned,
)
from vstate.repo.rules import leases
from vstate.repo.rules.leases import LeaseRow, parse_lease
from vstate.testing import Faulty

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent

Open = Callable[[], KVStore]


@pytest.fixture(params=["memory", "disk", "without transactions"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens one store again and again."""
    if request.param == "disk":
        with ExitStack() as disks:
            yield lambda: disks.enter_context(Disk(tmp_path / "store", durability="process"))
    else:
        memory = Memory()
        yield lambda: memory if request.param == "memory" else Faulty(memory, atomic=False)


@contextmanager
def time_passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """A function that puts the clock of leases forward, so many seconds."""
    passed = [0.0]
    with monkeypatch.context() as patched:
        real = leases.clock
        for module in ("state.lease", "repo.rules.leases"):  # imported in this order
            patched.setattr(f"vstate.{module}.clock", lambda: real() + passed[0])
        yield lambda seconds: passed.__setitem__(0, passed[0] + seconds)


def row_of(store: KVStore, name: str = "job") -> LeaseRow:
    return parse_lease(present(store.get(f"lease/{name}")))


def give_to(store: KVStore, owner: str, fence: int, renewals: int = 0) -> None:
    """Have the row say that another process holds the lease for 100 s."""
    store.set("lease/job", LeaseRow(owner, f"process 1 on {owner}", 100.0, fence, renewals).encode())


def refused(opened: Open) -> None:
    """A new handle, as a new process has it, does not get the lease."""
    with pytest.raises(LeaseHeld):
        Versioned(opened()).lease("job", wait=0).__enter__()


def is_free(opened: Open, fence: int) -> None:
    """A new handle gets the lease, with this fencing token."""
    with Versioned(opened()).lease("job", 1000, wait=0) as lease:
        assert lease.fence == fence


def test_one_holder_and_then_the_next(opened: Open) -> None:
    """Leaving gives the lease back at once. The fencing token grows, and commits record it."""
    state, other = Versioned(opened()), Versioned(opened())
    lease = state.lease("job", 60)
    assert repr(lease) == "<Lease 'job', ttl 60 s: not taken>"
    with lease:
        assert lease.held
        assert repr(lease) == "<Lease 'job', ttl 60 s: held, fence 1>"
        lease.check()
        waiting = other.lease("job", wait=0)
        with pytest.raises(LeaseHeld, match=f"process {os.getpid()} on ") as held:
            waiting.__enter__()
        assert (held.value.name, held.value.fence) == ("job", 1)
        assert "given up" in repr(waiting)
        state["n"] = 1
        commit = present(lease.commit("under it", by="me"))
        assert commit.info == {"by": "me", "lease": {"name": "job", "fence": 1}}
        assert lease.commit() is None
    assert not lease.held
    with pytest.raises(LeaseLost, match="released"):
        lease.commit()
    began = time.monotonic()
    with other.lease("job", 60) as second, state.lease("another", wait=0) as third:
        assert (second.fence, third.fence) == (2, 1)
    assert time.monotonic() - began < 30
    assert row_of(opened()).owner == ""


def test_a_lease_has_any_name() -> None:
    """Each name is a lease of its own; also for centuries, which is longer than a thread can wait."""
    state = Versioned(Memory())
    names = ["lock:session-1", "bob's laptop", "../x", "a/b", "a//b", "HEAD", "\n", "锁", "ä" * 200]
    with ExitStack() as stack:
        ttl = timedelta(days=365 * 999)
        held = [stack.enter_context(state.lease(name, ttl, wait=0)) for name in names]
        assert [lease.fence for lease in held] == [1] * len(names)
        with pytest.raises(LeaseHeld, match="lock:session-1"):
            state.lease("lock:session-1", wait=0).__enter__()
        state["k"] = 1
        assert held[0].commit() is not None
    assert state.repo.fsck().ok


REFUSED: list[tuple[dict[str, Any], type[Exception]]] = [
    *(({"name": name}, InvalidInput) for name in ("", "x" * 201, "a\0b", "\ud800")),
    ({"name": 7}, TypeError),
    *(({"ttl": ttl}, InvalidInput) for ttl in (0, -1, float("inf"), float("nan"), 0.09, timedelta(0, 0.09))),
    ({"ttl": "30s"}, TypeError),
    *(({"wait": wait}, InvalidInput) for wait in (-1, float("nan"), "5", True)),
]


@pytest.mark.parametrize(("options", "error"), REFUSED)
def test_what_it_refuses(options: dict[str, Any], error: type[Exception]) -> None:
    """Names have a length, and times are positive."""
    with pytest.raises(error):
        Versioned().lease(**{"name": "job", **options})


def test_a_lease_is_entered_once() -> None:
    """Before that it has no fence, and its commit has an info of its own."""
    lease = Versioned().lease("job")
    for use, error in ((lambda: lease.fence, InvalidInput), (lease.check, LeaseLost)):
        with pytest.raises(error):
            use()
    with lease:
        for refused in (lambda: lease.commit(lease=1), lease.__enter__):
            with pytest.raises(InvalidInput):
                refused()
    with pytest.raises(InvalidInput):
        lease.__enter__()
    with pytest.raises(NotVersioned):
        Live().lease("job")


def test_a_dead_holder_is_waited_for_by_the_own_clock(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that does not change is free after its ttl and a tenth from the first look, not before."""
    give_to(opened(), "mars", 41)
    with time_passes(monkeypatch) as passing:
        for wait in (0, 0.01):
            with pytest.raises(LeaseHeld, match="mars"):
                Versioned(opened()).lease("job", wait=wait).__enter__()
            passing(54.0)
        refused(opened)
        give_to(opened(), "mars", 41, 1)
        passing(109.0)
        refused(opened)  # it was renewed at some time in between
        passing(111.0)
        is_free(opened, 42)


def test_a_sight_counts_on_its_own_machine_only(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two machines that look in turn each count from their own first look, and a damaged row counts anew.

    Where a clock begins anew with each boot, a time after now counts as now. The row stays short.
    """
    store = opened()
    repo = Versioned(store).repo
    repo.commit("main", set={"n": 1})
    give_to(store, "mars", 41)
    with time_passes(monkeypatch) as passing:
        refused(opened)
        passing(100.0)
        monkeypatch.setattr(leases, "clock_name", lambda: "another machine, whose clock may be far ahead")
        refused(opened)
        passing(100.0)
        refused(opened)
        assert repo.fsck().ok
        monkeypatch.undo()
    with time_passes(monkeypatch) as passing:
        sights = present(store.get("lease-seen/job"))
        store.set("lease-seen/job", b"\0" + sights)
        assert [damage.kind for damage in repo.fsck().damage] == ["sight of a lease"]
        for seconds in (1e6, -1e6, 109.0):
            passing(seconds)
            refused(opened)
        passing(2.0)
        is_free(opened, 42)
    give_to(store, "mars", 43)
    for number in range(100):
        monkeypatch.setattr(leases, "clock_name", lambda number=number: f"machine {number}")
        refused(opened)
    assert len(store.get("lease-seen/job") or b"") < 1000


def test_a_holder_that_does_not_renew_has_lost_it(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its ttl by its own clock the holder commits nothing, even if no contender took the lease."""
    store = opened()
    state = Versioned(store)
    with time_passes(monkeypatch) as passing, state.lease("job", 60) as lease:
        state["n"] = 1
        passing(59.0)
        assert lease.held
        passing(1.1)
        assert not lease.held
        with pytest.raises(LeaseLost, match="not renewed for 60 s") as lost:
            lease.commit()
        assert lost.value.fence == 1
        passing(-30.0)
        with pytest.raises(LeaseLost):
            lease.check()
    assert state.status().added == ["n"]
    assert Versioned(store).head is None


def test_a_renewal_that_takes_too_long_has_lost_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """`held` never turns true again, even if the renewal lands: the holder may have stopped by then."""
    store, seen = Deaf(Memory()), list[bool]()
    with time_passes(monkeypatch) as passing, Versioned(store).lease("job", 0.6) as lease:
        store.then = lambda: (passing(0.5), seen.append(lease.held))
        while not seen:
            time.sleep(0.005)
        with pytest.raises(LeaseLost, match=r"not renewed for 0\.6 s"):
            lease.check()
        assert seen == [lease.held] == [False]


def test_another_holder_between_look_and_commit(opened: Open) -> None:
    """The branch moves only if the row still has the holder's token. The process's own view is not enough."""
    store = opened()
    state = Versioned(store)
    state["n"] = 0
    before = state.commit()
    with state.lease("job", 60) as lease:
        give_to(store, "venus", 2)
        assert lease.held
        state["n"] = 1
        with pytest.raises(LeaseLost, match="process 1 on venus has it now"):
            lease.commit()
        assert not lease.held
    assert Versioned(store).head == before
    assert state.status().modified == ["n"]
    assert row_of(store).owner == "venus"  # leaving gives back nothing that one does not have
    assert state.commit() is not None


@pytest.mark.parametrize(
    ("row", "reason"), [(None, "its row is gone"), (LeaseRow("", "", 60.0, 2), "another had it meanwhile")]
)
def test_a_lease_whose_row_changed_says_how(row: LeaseRow | None, reason: str) -> None:
    """Its row was deleted, or another holder has had the lease and given it back."""
    store = Memory()
    with Versioned(store).lease("job", 60) as lease:
        store.transact({"lease/job": None if row is None else row.encode()}, {})
        with pytest.raises(LeaseLost, match=reason):
            lease.check()


class AtTransact(Faulty):
    """Memory, and something that happens right before the next transaction."""

    before_next: Callable[[], object] | None = None

    def transact(self, writes, expected):
        happens, self.before_next = self.before_next, None
        if happens is not None:
            happens()
        return super().transact(writes, expected)


@pytest.mark.parametrize("moved", [False, True])
def test_exact_with_transactions(moved: bool) -> None:
    """Passed on at the very last moment, before a commit or its merge with another: nothing lands."""
    store = AtTransact(Memory())
    state = Versioned(store)
    with state.lease("job", 60) as lease:
        if moved:
            other = Versioned(store.store, branch="main")
            other["theirs"] = 1
            other.commit()
        state["n"] = 1

        def pass_on() -> None:
            give_to(store.store, "venus", 2)

        # If the branch moved, the first transaction only finds that out.
        store.before_next = (lambda: setattr(store, "before_next", pass_on)) if moved else pass_on
        with pytest.raises(LeaseLost):
            lease.commit()
    assert dict(Versioned(store)) == ({"theirs": 1} if moved else {})


def test_a_renewal_beside_a_commit_does_not_hurt() -> None:
    """A row with the same owner is still this lease, also with a renewal of which the answer was lost."""
    store = AtTransact(Memory())
    state = Versioned(store)
    with state.lease("job", 60) as lease:
        state["n"] = 1
        renewed = row_of(store).renewed()
        store.before_next = lambda: store.store.set("lease/job", renewed.encode())
        assert lease.commit() is not None
        assert row_of(store) == renewed
    assert row_of(store).owner == ""


class Deaf(Faulty):
    """A store that fails so many changes of a lease, or loses so many answers, or does something then."""

    failing = deaf = 0
    then: Callable[[], object] | None = None

    def compare_and_swap(self, key, expected, new):
        if self.failing and key.startswith("lease/"):
            self.failing -= 1
            raise StoreUnavailable("no answer")
        done = super().compare_and_swap(key, expected, new)
        then, self.then = self.then, None
        if then is not None:
            then()
        if self.deaf and key.startswith("lease/"):
            self.deaf -= 1
            raise StoreUnavailable("the answer was lost", outcome_unknown=True)
        return done


def test_a_renewal_is_tried_again() -> None:
    """Others ask all the time. After failures of the store, and a lost answer, the holder goes on."""
    store = Deaf(Memory())
    with Versioned(store).lease("job", 5) as lease:
        for trouble, times in (("failing", 3), ("deaf", 1)):
            setattr(store, trouble, times)
            renewals = row_of(store).renewals
            while getattr(store, trouble) or row_of(store).renewals < renewals + 2:
                assert lease.held
                refused(lambda: store.store)
                time.sleep(0.005)
        lease.check()
    assert row_of(store).owner == ""


def test_an_answer_that_is_lost_as_it_is_taken(opened: Open) -> None:
    """No contender waits for a holder whose lease was refused."""
    store = Deaf(opened())
    store.deaf = 1
    state = Versioned(store)
    lease = state.lease("job", 60)
    with pytest.raises(StoreUnavailable):
        lease.__enter__()
    assert not lease.held
    with pytest.raises(InvalidInput, match="make a new one"):
        lease.__enter__()
    is_free(opened, 2)


# Several processes

HOLDER = """
import os, sys, time
from vstate import Disk, Versioned, LeaseLost
directory, ttl = sys.argv[1], float(sys.argv[2])
state = Versioned(Disk(directory, durability="process"))
with state.lease("job", ttl) as lease:
    state["by"] = "holder"
    print(lease.fence, flush=True)
    sys.stdin.readline()
    try:
        lease.commit("from the holder")
        print("committed", lease.held, flush=True)
    except LeaseLost as error:
        print("LeaseLost", lease.held, flush=True)
"""

WORKER = """
import os, sys
from vstate import Disk, Versioned
directory, rounds = sys.argv[1], int(sys.argv[2])
state = Versioned(Disk(os.path.join(directory, "store"), durability="process"))
for _ in range(rounds):
    with state.lease("job", 60) as lease:
        # Exclusive: that another is inside is an error, which ends this process.
        os.close(os.open(os.path.join(directory, "inside"), os.O_CREAT | os.O_EXCL))
        state.refresh()
        state["count"] = state.get("count", 0) + 1
        assert lease.commit("one more") is not None
        os.unlink(os.path.join(directory, "inside"))
"""


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_five_processes_and_one_critical_section(tmp_path: Path) -> None:
    """Never two are inside, no increment is lost, and each holder's number is one above the last one's."""
    Disk(tmp_path / "store").close()
    rounds = 30 if SOAK else 5
    workers = [start(WORKER, tmp_path, rounds) for _ in range(5)]
    for worker in workers:
        worker.communicate(timeout=200)
    assert [worker.returncode for worker in workers] == [0] * 5
    with Versioned(Disk(tmp_path / "store")) as state:
        assert state["count"] == 5 * rounds
        fences = [commit.info["lease"]["fence"] for commit in state.log()]
        assert fences == list(range(5 * rounds, 0, -1))


def test_a_stopped_holder(tmp_path: Path) -> None:
    """A holder that was stopped beyond its ttl has lost the lease, and its commit does not land."""
    process = start(HOLDER, tmp_path / "store", 0.5)
    try:
        assert present(process.stdout).readline() == "1\n"
        process.send_signal(signal.SIGSTOP)
        state = Versioned(Disk(tmp_path / "store"))
        began = time.monotonic()
        with state.lease("job", 60) as lease:
            assert lease.fence == 2
            assert 0.3 < time.monotonic() - began < 60
            state["by"] = "the next"
            landed = lease.commit()
            process.send_signal(signal.SIGCONT)
            answer, _ = process.communicate("go on\n", timeout=60)
            assert answer == "LeaseLost False\n"
            lease.check()
        state.refresh()
        assert (state.head, state["by"]) == (landed, "the next")
        state.store.close()
    finally:
        process.kill()
        process.communicate()


def test_a_fork_has_no_lease() -> None:
    """The child neither commits under its parent's lease nor gives it back. The parent goes on."""
    store = Memory()
    state = Versioned(store)
    with state.lease("job", 3) as lease:
        state["n"] = 1
        child = os.fork()
        if child == 0:
            try:
                answer = 1
                try:
                    lease.commit()
                except LeaseLost:
                    lease.__exit__()
                    answer = 7 if not lease.held and row_of(store).owner else 2
            finally:
                os._exit(answer)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        renewals = row_of(store).renewals
        while row_of(store).renewals == renewals:
            assert lease.held
            time.sleep(0.01)
        lease.check()
        assert lease.commit() is not None


# Interruptions


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_interruption_at_any_moment_leaves_no_lease_behind() -> None:
    """After Ctrl-C at any moment of taking or giving back, the next contender gets the lease."""

    def work() -> None:
        with state.lease("job", 0.3):
            pass

    moment, came = 0, True
    while came:
        moment += 1
        state = Versioned(Memory())
        came = False
        try:
            _, interruption = interrupted(work, moment)
            came = interruption is not None
            del interruption
        except RuntimeError as error:  # a lock of `threading` that was interrupted
            came = "lock" in str(error)
        with state.lease("job", 60, wait=60):
            pass
    assert moment > 50


def test_a_lease_that_nobody_left_is_given_back() -> None:
    """Without a with block: as soon as the program has let go of it, and not before."""
    store = Memory()
    state = Versioned(store)
    lease = state.lease("job", 2)
    lease.__enter__()
    while row_of(store).renewals < 2:
        assert lease.held
        time.sleep(0.01)
    del lease
    with state.lease("job", wait=60) as lease:
        assert lease.fence == 2


class Quiet(Memory):
    """A Memory that can be listened to, without any change to hear."""

    @contextmanager
    def listening(self, key: str) -> Iterator[Callable[[float], None]]:
        yield time.sleep


def test_whoever_waits_may_be_told_to_stop() -> None:
    """Soon, however long the holder has, and though no row changes."""
    store = Quiet()
    state, waiting = Versioned(store), Versioned(store).lease("job")
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            waiting.__enter__()
        except LeaseHeld as error:
            raised.append(error)

    with state.lease("job", 60):
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.1)
        waiting.stop_waiting()
        thread.join(30)
        assert len(raised) == 1
