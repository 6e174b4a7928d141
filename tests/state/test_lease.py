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

import pytest
from present import present
from raising import interrupted
from soak import SOAK

from vstate import (
    CorruptStore,
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
        disks: list[Disk] = []

        def open_disk() -> Disk:
            disks.append(Disk(tmp_path / "store", durability="process"))
            return disks[-1]

        yield open_disk
        for disk in disks:
            disk.close()
    else:
        memory = Memory()
        yield lambda: memory if request.param == "memory" else Faulty(memory, atomic=False)


in_memory = pytest.mark.parametrize("opened", ["memory"], indirect=True)
"""For tests that take seconds, and that no store makes different."""


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
    raw = present(store.get(f"lease/{name}"))
    return parse_lease(raw)


# One process


def test_one_holder_and_then_the_next(opened: Open) -> None:
    """Leaving gives the lease back at once. The fencing token grows, and commits record it."""
    state, other = Versioned(opened()), Versioned(opened())
    with state.lease("job", 60) as lease:
        assert lease.held
        lease.check()
        with pytest.raises(LeaseHeld, match=f"process {os.getpid()} on ") as held:
            other.lease("job", wait=0).__enter__()
        assert (held.value.name, held.value.fence) == ("job", 1)
        state["n"] = 1
        commit = present(lease.commit("under it", by="me"))
        assert commit.info == {"by": "me", "lease": {"name": "job", "fence": 1}}
        assert lease.commit() is None
    assert not lease.held
    with pytest.raises(LeaseLost, match="released"):
        lease.commit()
    began = time.monotonic()
    with other.lease("job", 60) as second:
        assert second.fence == 2
        with state.lease("another", wait=0) as third:
            assert third.fence == 1
    assert time.monotonic() - began < 30
    assert row_of(opened()).owner == ""


@in_memory
def test_its_repr_says_how_it_is_with_it(opened: Open) -> None:
    """It describes itself before, while and after it is held, and after its loss."""
    state = Versioned(opened())
    lease = state.lease("nightly", 30)
    assert repr(lease) == "<Lease 'nightly', ttl 30 s: not taken>"
    with lease:
        assert repr(lease) == "<Lease 'nightly', ttl 30 s: held, fence 1>"
        waiting = state.lease("nightly", wait=0)
        with pytest.raises(LeaseHeld):
            waiting.__enter__()
        assert repr(waiting) == "<Lease 'nightly', ttl 30 s: given up>"
    assert repr(lease) == "<Lease 'nightly', ttl 30 s: it was released, fence 1>"
    with pytest.raises(LeaseLost), state.lease("other", 60) as lost:
        state.store.delete("lease/other")
        try:
            lost.check()
        finally:
            assert repr(lost) == "<Lease 'other', ttl 60 s: its row is gone, fence 1>"


@in_memory
def test_the_longest_is_given_back(opened: Open) -> None:
    """The thread waits for centuries, longer than one wait of a thread may take, and ends with the block."""
    state = Versioned(opened())
    with state.lease("job", timedelta(days=365 * 999)) as lease:
        time.sleep(0.05)
        assert lease.held
    with state.lease("job", wait=0):
        pass


@in_memory
def test_a_lease_has_any_name(opened: Open) -> None:
    """Each name is a lease of its own: with spaces, colons, slashes, in other scripts, as a person writes."""
    state = Versioned(opened())
    names = [
        "lock:session-1",
        "bob's laptop",
        "../x",
        "a/b",
        "a//b",
        "HEAD",
        "\n",
        "锁",
        "x" * 200,
        "ä" * 200,
    ]
    with ExitStack() as stack:
        held = [stack.enter_context(state.lease(name, wait=0)) for name in names]
        assert [lease.fence for lease in held] == [1] * len(names)
        with pytest.raises(LeaseHeld, match="lock:session-1"):
            state.lease("lock:session-1", wait=0).__enter__()
        state["k"] = 1
        assert held[0].commit() is not None
    assert state.repo.fsck().ok


@in_memory
def test_what_it_refuses(opened: Open) -> None:
    """Names have a length, times are positive, a lease is entered once, and its info is its own."""
    state = Versioned(opened())
    for name in ("", "x" * 201, "a\0b", "\ud800"):
        with pytest.raises(InvalidInput):
            state.lease(name)
    with pytest.raises(TypeError):
        state.lease(7)  # type: ignore[arg-type]
    for ttl in (0, -1, float("inf"), float("nan"), 1e-9, 0.09, timedelta(milliseconds=99)):
        with pytest.raises(InvalidInput):
            state.lease("job", ttl)
    with pytest.raises(TypeError):
        state.lease("job", "30s")  # type: ignore[arg-type]
    for wait in (-1, float("nan"), "5", True):
        with pytest.raises(InvalidInput, match="wait is a number of seconds from 0 on"):
            state.lease("job", wait=wait)  # type: ignore[arg-type]  # refused
    lease = state.lease("job")
    with pytest.raises(InvalidInput):
        lease.fence
    with pytest.raises(LeaseLost):
        lease.check()
    with lease:
        with pytest.raises(InvalidInput):
            lease.commit(lease=1)
        with pytest.raises(InvalidInput):
            lease.__enter__()
    with pytest.raises(InvalidInput):
        lease.__enter__()
    with pytest.raises(NotVersioned):
        Live().lease("job")


def test_a_dead_holder_is_waited_for_by_the_own_clock(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that does not change is free after its ttl and a tenth from the first look, not before."""
    store = opened()
    store.set("lease/job", LeaseRow("somebody", "process 1 on mars", 100.0, 41).encode())
    with time_passes(monkeypatch) as passing:
        for wait in (0, 0.01):
            with pytest.raises(LeaseHeld, match="mars"):
                Versioned(opened()).lease("job", wait=wait).__enter__()
            passing(54.0)
        refused(opened)
        store.set("lease/job", LeaseRow("somebody", "process 1 on mars", 100.0, 41, 1).encode())
        passing(109.0)
        refused(opened)  # it was renewed at some time in between
        passing(111.0)
        with Versioned(opened()).lease("job", 1000, wait=0) as lease:
            assert lease.fence == 42


def refused(opened: Open) -> None:
    """A new handle, as a new process has it, does not get the lease."""
    with pytest.raises(LeaseHeld):
        Versioned(opened()).lease("job", wait=0).__enter__()


def test_a_sight_counts_on_its_own_machine_only(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two machines that look in turn each count from their own first look, and a damaged row counts anew."""
    store = opened()
    store.set("lease/job", LeaseRow("somebody", "process 1 on mars", 100.0, 41).encode())
    with time_passes(monkeypatch) as passing:
        refused(opened)
        passing(100.0)
        monkeypatch.setattr(leases, "clock_name", lambda: "another machine, whose clock may be far ahead")
        refused(opened)
        passing(100.0)
        refused(opened)
        assert state_of(store).repo.fsck().ok
        monkeypatch.undo()
    with time_passes(monkeypatch) as passing:
        sights = present(store.get("lease-seen/job"))
        store.set("lease-seen/job", b"\0" + sights)
        assert [damage.kind for damage in state_of(store).repo.fsck().damage] == ["sight of a lease"]
        passing(200.0)
        refused(opened)
        passing(109.0)
        refused(opened)
        passing(2.0)
        with Versioned(opened()).lease("job", wait=0) as lease:
            assert lease.fence == 42


def test_a_sight_of_an_earlier_boot(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a clock begins anew with each boot, a time after now counts as now. The row stays short."""
    store = opened()
    store.set("lease/job", LeaseRow("somebody", "process 1 on mars", 100.0, 41).encode())
    with time_passes(monkeypatch) as passing:
        passing(1e6)
        refused(opened)
        passing(-1e6)
        refused(opened)
        passing(111.0)
        with Versioned(opened()).lease("job", wait=0) as lease:
            assert lease.fence == 42
    store.set("lease/job", LeaseRow("somebody", "process 1 on mars", 100.0, 43).encode())
    for number in range(100):
        monkeypatch.setattr(leases, "clock_name", lambda number=number: f"machine {number}")
        refused(opened)
    assert len(store.get("lease-seen/job") or b"") < 1000


def state_of(store: KVStore) -> Versioned:
    """A state with a commit, so that the store has its format."""
    state = Versioned(store)
    if state.head is None:
        state["n"] = 1
        state.commit()
    return state


@in_memory
def test_a_holder_that_renews_stays_however_often_others_ask(opened: Open) -> None:
    """The holder keeps the lease for several times its ttl, by changing the row, and commits under it."""
    state = Versioned(opened())
    with state.lease("job", 0.5) as lease:
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            refused(opened)
            time.sleep(0.02)
        assert lease.held
        assert row_of(opened()).renewals >= 3
        state["n"] = 1
        assert lease.commit() is not None


@in_memory
def test_the_time_of_day_does_not_matter(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the holder nor a contender uses a clock that can be set."""
    state, other = Versioned(opened()), Versioned(opened())
    for skew in (-1e8, 1e8):
        with monkeypatch.context() as patched:
            with state.lease("job", 60) as lease:
                patched.setattr(time, "time", lambda real=time.time, skew=skew: real() + skew)
                patched.setattr(
                    time, "time_ns", lambda real=time.time_ns, skew=skew: real() + int(skew * 1e9)
                )
                with pytest.raises(LeaseHeld):
                    other.lease("job", wait=0).__enter__()
                assert lease.held
                state["n"] = skew
                assert lease.commit() is not None


def test_a_holder_that_does_not_renew_has_lost_it(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its ttl by its own clock the holder commits nothing, even if no contender took the lease."""
    store = opened()
    state = Versioned(store)
    with time_passes(monkeypatch) as passing:
        with state.lease("job", 60) as lease:
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
    assert state.head is None
    assert state.status().added == ["n"]
    assert Versioned(store).head is None


def test_another_holder_between_look_and_commit(opened: Open) -> None:
    """The branch moves only if the row still has the holder's token. The process's own view is not enough."""
    store = opened()
    state = Versioned(store)
    state["n"] = 0
    before = state.commit()
    with state.lease("job", 60) as lease:
        store.set("lease/job", LeaseRow("other", "process 9 on venus", 60.0, 2).encode())
        assert lease.held
        state["n"] = 1
        with pytest.raises(LeaseLost, match="process 9 on venus has it now"):
            lease.commit()
        assert not lease.held
    assert Versioned(store).head == before
    assert state.status().modified == ["n"]
    assert row_of(store).owner == "other"  # leaving gives back nothing that one does not have
    assert state.commit() is not None


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
            store.store.set("lease/job", LeaseRow("other", "process 9 on venus", 60.0, 2).encode())

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


@in_memory
@pytest.mark.parametrize("lost", [False, True])
def test_a_store_that_fails_for_a_while(lost: bool, opened: Open) -> None:
    """Renewing is repeated until it works. If it fails for the whole ttl, the lease is lost and says so."""

    class Failing(Faulty):
        failing = False

        def compare_and_swap(self, key, expected, new):
            if self.failing and key.startswith("lease/"):
                self.calls.append("failed")
                raise StoreUnavailable("no answer")
            return super().compare_and_swap(key, expected, new)

    store = Failing(opened())
    state = Versioned(store)
    ttl = 1 if lost else 3
    with state.lease("job", ttl) as lease:
        began = time.monotonic()
        store.failing = True
        while "failed" not in store.calls:
            time.sleep(0.005)
        if lost:
            while lease.held:
                time.sleep(0.005)
            assert time.monotonic() - began < 30
            assert store.calls.count("failed") > 3, "it is tried more often than renewing is"
            store.failing = False
            with pytest.raises(LeaseLost):
                lease.check()
        else:
            store.failing = False
            renewals = row_of(store).renewals
            while row_of(store).renewals == renewals:
                assert lease.held
                time.sleep(0.005)
            lease.check()
    assert row_of(store).owner != "" if lost else row_of(store).owner == ""


class Deaf(Faulty):
    """A store that loses the answers of so many changes of a lease."""

    deaf = 0

    def compare_and_swap(self, key, expected, new):
        done = super().compare_and_swap(key, expected, new)
        if self.deaf and key.startswith("lease/"):
            self.deaf -= 1
            raise StoreUnavailable("the answer was lost", outcome_unknown=True)
        return done


@in_memory
def test_an_answer_that_is_lost(opened: Open) -> None:
    """A renewal that landed, though its answer did not, is found again by its owner."""
    store = Deaf(opened())
    with Versioned(store).lease("job", 3) as lease:
        store.deaf = 1
        while row_of(store).renewals < 2:
            assert lease.held
            time.sleep(0.005)
        assert store.deaf == 0
        lease.check()
    assert row_of(store).owner == ""


def test_upkeep_knows_leases(opened: Open) -> None:
    """gc keeps leases. fsck checks them, and after a repair tokens go on above all earlier ones."""
    store = opened()
    state = Versioned(store)
    state["n"] = 1
    state.commit()
    with state.lease("job", 60):
        state.repo.gc(keep_reflog="0")
        report = state.repo.fsck()
        assert (report.ok, report.foreign) == (True, 0)
    store.set("lease/job", b"\0" + row_of(store).encode())
    with pytest.raises(CorruptStore, match="fsck --repair"):
        state.lease("job").__enter__()
    assert [damage.kind for damage in state.repo.fsck().damage] == ["lease"]
    assert state.repo.fsck(repair=True).ok
    with state.lease("job") as lease:
        assert lease.fence > 1_000_000


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


@contextmanager
def holder(directory: Path, ttl: float) -> Iterator[subprocess.Popen[str]]:
    process = start(HOLDER, directory, ttl)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_five_processes_and_one_critical_section(tmp_path: Path) -> None:
    """Never two are inside, no increment is lost, and each holder's number is one above the last one's."""
    Disk(tmp_path / "store").close()
    rounds = 30 if SOAK else 6
    workers = [start(WORKER, tmp_path, rounds) for _ in range(5)]
    for worker in workers:
        worker.communicate(timeout=200)
    assert [worker.returncode for worker in workers] == [0] * 5
    with Versioned(Disk(tmp_path / "store")) as state:
        assert state["count"] == 5 * rounds
        fences = [commit.info["lease"]["fence"] for commit in state.log()]
        assert fences == list(range(5 * rounds, 0, -1))


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this system cannot stop a process")
def test_a_stopped_holder(tmp_path: Path) -> None:
    """A holder that was stopped beyond its ttl has lost the lease, and its commit does not land."""
    with holder(tmp_path / "store", 0.5) as process, Disk(tmp_path / "store") as store:
        process.send_signal(signal.SIGSTOP)
        state = Versioned(store)
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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@in_memory
def test_a_fork_has_no_lease(opened: Open) -> None:
    """The child neither commits under its parent's lease nor gives it back. The parent goes on."""
    store = opened()
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
    with state.lease("job", 60, wait=0) as lease:
        assert lease.fence == 2


@in_memory
def test_a_lease_that_nobody_left_is_given_back(opened: Open) -> None:
    """Without a with block: as soon as the program has let go of it, and not before."""
    store = opened()
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
    state, other = Versioned(store), Versioned(store)
    waiting = other.lease("job")
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
