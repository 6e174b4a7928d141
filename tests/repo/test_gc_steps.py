"""gc in steps: one room after the other, in a time that is given, beside writers and after kills."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from between import Between
from clock import standing_still
from soak import sized

from vstate import Versioned
from vstate.errors import CorruptObject, NotFound, RefMoved, StoreUnavailable
from vstate.kv.base import KVStore, room_prefix, split_room
from vstate.kv.disk import Disk
from vstate.kv.encrypted import Encrypted
from vstate.kv.memory import Memory
from vstate.kv.wrapper import StoreWrapper
from vstate.objects.ids import COMMIT, ObjectId
from vstate.repo.names.refs import HEADS
from vstate.repo.objects import kind_of
from vstate.repo.repository import Repository
from vstate.repo.rooms import Rooms
from vstate.repo.upkeep.gc import GcReport
from vstate.repo.writing import BranchChanges
from vstate.testing import Faulty

THREADS, COMMITS = 3, 6


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KVStore]:
    """A new store."""
    with Memory() if request.param == "memory" else Disk(tmp_path / "store") as made:
        yield made


def commit(repo: Repository, branch: str, **values: Any) -> None:
    """A commit to a branch, which gets a room of its own if it is new."""
    repo.commit_many([BranchChanges(branch, set=values, room=True)])


def fill(repo: Repository) -> dict[str, dict[str, Any]]:
    """Threads whose older commits only the reflog reaches, a deleted one, and `main`; the values of each."""
    for number in range(THREADS):
        for step in range(COMMITS):
            commit(repo, f"t{number}", values=[number, step] * 50)
        repo.squash(f"t{number}")
    commit(repo, "gone", values=[1] * 500)
    repo.delete_branch("gone")
    for step in range(3):
        repo.commit("main", set={"step": step})
    return values_of(repo)


def values_of(repo: Repository) -> dict[str, dict[str, Any]]:
    names = Repository(repo.store).branch_names()
    return {name: dict(Versioned(repo.store, branch=name)) for name in names}


def steps(repo: Repository, **options: Any) -> list[GcReport]:
    """The reports of as many steps, of one room each, as it takes to come to the end."""
    reports = [repo.gc(seconds=0, keep_reflog="0s", **options)]
    while reports[-1].rooms_left != 0:
        reports.append(repo.gc(seconds=0, keep_reflog="0s", **options))
    return reports


def is_clean(store: KVStore) -> bool:
    """Whether the store has no garbage, no damage and no room without a ref."""
    repo = Repository(store)
    report = repo.fsck()
    rooms = {split_room(key)[0] for key in store.keys("")}
    return (
        report.ok
        and not report.orphans
        and not report.foreign
        and rooms == {"", *map(room_prefix, Rooms(store).numbers())}
    )


def test_each_step_goes_on_with_the_next_room(store: KVStore) -> None:
    """The first round counts the rooms, so later ones know how many are left; together they remove all."""
    repo = Repository(store)
    kept = fill(repo)
    first = steps(repo)
    assert [report.rooms for report in first] == [1] * (THREADS + 2)
    assert [report.rooms_left for report in first] == [None] * (THREADS + 1) + [0]
    assert sum(report.removed for report in first) > THREADS * COMMITS
    assert is_clean(store)
    assert values_of(repo) == kept
    assert not [*store.keys("gone/")]
    again = steps(repo)
    assert [report.rooms_left for report in again] == [4, 3, 2, 0]
    assert sum(report.removed for report in again) == 0
    assert repo.gc().rooms == THREADS + 1


class Listing(StoreWrapper):
    """It counts the keys that it lists."""

    listed = 0

    def keys(self, prefix: str = "") -> Iterator[str]:
        for key in super().keys(prefix):
            self.listed += 1
            yield key

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        for item in super().items(prefix):
            self.listed += 1
            yield item


def test_a_step_of_room_0_costs_what_is_in_it(tmp_path: Path) -> None:
    """Also with a branch there, garbage, and a rule: it lists no branch of another room."""
    store = Disk(tmp_path / "store")
    repo = Repository(store)
    Repository(store).keep("main", last=1)
    counts = []
    for begin in (0, 2, 30):
        for number in range(begin, 10 * begin + 2):
            commit(repo, f"t{number}", step=1)
        store.delete("gc/next")
        repo.commit("main", set={"step": begin})
        repo.commit("main", set={"step": begin + 1})
        looked = Listing(store)
        report = Repository(looked).gc(seconds=0, keep_reflog="0s")
        assert (report.rooms, report.shallow) == (1, 1)
        assert report.removed
        counts.append(looked.listed)
    assert counts[1] == counts[2]


@pytest.mark.parametrize("atomic", [True, False])
def test_a_large_room_takes_several_steps(atomic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also all of a store without transactions: each step removes some, and a later one the rest."""
    monkeypatch.setattr("vstate.repo.upkeep.gc.MOST_DELETED", 4)
    memory = Memory()
    store = memory if atomic else Faulty(memory, atomic=False)
    repo = Repository(store)
    fill(repo)
    monkeypatch.setattr("vstate.repo.upkeep.gc.time.monotonic", ticking())
    reports = [repo.gc(seconds=0, keep_reflog="0s", grace="0s")]
    while reports[-1].rooms_left != 0:
        assert has_whole_commits(memory)
        reports.append(repo.gc(seconds=0, keep_reflog="0s", grace="0s"))
    assert sum(report.removed > 0 for report in reports) > THREADS + 1 or not atomic
    assert len(reports) > 5
    steps(repo, grace="0s")
    assert is_clean(store)


def has_whole_commits(store: KVStore) -> bool:
    """Whether each commit that is there, reachable or not, has the objects of its values."""
    rows = dict(store.items("room/")) | dict(store.items("o/"))
    commits = [key for key, row in rows.items() if "o/" in key and kind_of(row) is COMMIT]
    objects = Repository(store).objects
    roots = {key: objects.commit(ObjectId.parse(key[-64:])).root for key in commits}
    return all(key[:-64] + str(root) in rows for key, root in roots.items())


def ticking() -> Callable[[], float]:
    """A clock that is a second later each time."""
    times = iter(range(10**9))
    return lambda: float(next(times))


def test_a_quiet_room_is_not_read() -> None:
    """Its keys are listed. A line that goes, or a commit that arrived without a ref, makes gc look."""
    store = Faulty(Memory())
    repo = Repository(store)
    fill(repo)
    repo.gc()
    store.calls.clear()
    live = repo.gc().live
    reads = len(store.calls)
    for number in range(20):
        commit(repo, f"more{number}", values=[number] * 500)
    store.calls.clear()
    assert repo.gc().live > live
    assert len(store.calls) <= reads + 20
    assert repo.gc(keep_reflog="1h").removed == 0
    one, other = (room_prefix(Rooms(store).room_of(f"{HEADS}more{n}")) for n in (1, 2))
    theirs = {one + key.removeprefix(other): row for key, row in store.items(f"{other}o/")}
    store.set_many({**theirs, f"{one}arrived/1": bytes(repo.branch("more2").oid)})
    assert repo.gc(keep_reflog="1h").removed == len(theirs)
    sleep(0.02)
    assert repo.gc(keep_reflog=timedelta(milliseconds=10)).removed > 0
    assert is_clean(store.store)


def test_a_damaged_room_stays_and_the_others_are_collected(store: KVStore) -> None:
    """A step ends with the error, and the next one goes on behind that room."""
    repo = Repository(store)
    fill(repo)
    rooms = repo.rooms
    assert rooms is not None
    prefix = room_prefix(rooms.room_of(HEADS + "t1"))
    store.delete(f"{prefix}o/{repo.branch('t1').root}")
    before = {key for key in store.keys(prefix) if "/o/" in key}
    with pytest.raises(CorruptObject):
        Repository(store).gc(keep_reflog="0s")
    assert {key for key in store.keys(prefix) if "/o/" in key} == before
    others = [number for number in rooms.numbers() if room_prefix(number) != prefix]
    assert all(len([*store.keys(room_prefix(number) + "o/")]) <= 4 for number in others)
    errors = 0
    for _ in range(2 * THREADS):
        try:
            Repository(store).gc(seconds=0, keep_reflog="0s")
        except CorruptObject:
            errors += 1
    assert 0 < errors <= 2


class Open(Between):
    """As the store behind, also where it has an order and keeps packs."""

    @property
    def ordered(self) -> bool:
        return self.store.ordered

    @property
    def keeps_packs(self) -> bool:
        return self.store.keeps_packs


ACTS: dict[str, Callable[[Repository], object]] = {
    "commit": lambda repo: commit(repo, "t1", new=[7] * 500),
    "old values": lambda repo: commit(repo, "t1", values=[1, 3] * 50),
    "fork": lambda repo: repo.create_branch("fork", "t1"),
    "bring back": lambda repo: repo.create_branch("gone", "gone@{1}"),
    "forget": lambda repo: repo.delete_branch("t2", forget=True),
    "delete": lambda repo: repo.delete_branch("t2"),
    "merge": lambda repo: repo.merge("t1", "t2", policy="theirs"),
    "new": lambda repo: commit(repo, "new", value=[3] * 500),
    "gc": lambda repo: repo.gc(keep_reflog="0s"),
    "step": lambda repo: repo.gc(keep_reflog="0s", seconds=0),
}


@pytest.mark.slow
@pytest.mark.parametrize("act", ACTS)
def test_somebody_acts_between_two_calls_of_the_store(act: str) -> None:
    """At any moment of a round: no branch loses anything, and the next rounds leave no garbage."""
    filled = Memory()
    fill(Repository(filled))
    at = 0
    while True:
        store = Memory()
        store.set_many(dict(filled.items()))
        through = Open(store)
        expected: dict[str, Any] = {}

        def acts(store: Memory = store, expected: dict[str, Any] = expected) -> None:
            with suppress(NotFound, RefMoved):
                ACTS[act](Repository(store))
            expected.update(values_of(Repository(store)))

        through.at, through.act = at, acts
        steps(Repository(through))
        if through.at is not None:
            break
        assert values_of(Repository(store)) == expected
        assert Repository(store).fsck().ok
        Repository(store).gc(keep_reflog="0s")
        assert is_clean(store)
        at += sized(1 + at // 2, 1)
    assert at > 30


@pytest.mark.slow
@pytest.mark.parametrize("large", [False, True])
def test_a_kill_between_two_calls_of_the_store(
    tmp_path: Path, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL at any moment of a round: no branch loses anything, and the next round leaves no garbage."""
    if large:
        monkeypatch.setattr("vstate.repo.upkeep.gc.MOST_DELETED", 6)
    filled = tmp_path / "filled"
    with Disk(filled, durability="process") as store:
        kept = fill(Repository(store))
    at, killed = 0, 0
    while True:
        place = shutil.copytree(filled, tmp_path / str(at))
        child = os.fork()
        if not child:
            through = Open(Disk(place, durability="process"))
            through.at, through.act = at, lambda: os.kill(os.getpid(), signal.SIGKILL)
            try:
                steps(Repository(through))
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        with Disk(place, durability="process") as store:
            assert values_of(Repository(store)) == kept
            report = Repository(store).fsck()
            assert report.ok, str(report)
            Repository(store).gc(keep_reflog="0s")
            assert is_clean(store)
        if not os.WIFSIGNALED(status):
            break
        killed += 1
        at += sized(1 + at // 2, 1)
    assert killed > 8


@pytest.mark.slow
def test_several_processes_step_beside_writers(tmp_path: Path) -> None:
    """Threads with handles of their own step, commit, fork and forget: every commit stays whole."""
    place = tmp_path / "store"
    with Disk(place, durability="process") as store:
        fill(Repository(store))

    def work(number: int) -> dict[str, Any]:
        rng, own = random.Random(number), {}
        with Disk(place, durability="process") as store:
            repo = Repository(store)
            for turn in range(30):
                if number < 2:
                    repo.gc(seconds=0.01, keep_reflog="0s")
                    continue
                name = f"w{number}-{rng.randrange(3)}"
                if turn % 7 == 6 and name in own:
                    repo.delete_branch(name, forget=turn % 2 == 0)
                    del own[name]
                else:
                    own[name] = {**own.get(name, {}), f"k{turn % 4}": [turn] * 300}
                    commit(repo, name, **{f"k{turn % 4}": [turn] * 300})
        return own

    with ThreadPoolExecutor(4) as threads:
        results = [task.result() for task in [threads.submit(work, number) for number in range(4)]]
    with Disk(place, durability="process") as store:
        found = values_of(Repository(store))
        assert all(found[name] == values for own in results for name, values in own.items())
        steps(Repository(store))
        steps(Repository(store))
        assert is_clean(store)


@pytest.mark.slow
@pytest.mark.parametrize("removal", ["forget", "gc", "idle"])
def test_a_removal_that_was_cut_short(removal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any call of the store, in a room that is large then and small later: gc removes the rest."""
    at, failed = 0, True
    while failed:
        at += sized(1 + at // 3, 1)
        store = Memory()
        repo = Repository(store)
        commit(repo, "kept", values=[1] * 500)
        repo.create_branch("a", "kept")
        with standing_still() as time:
            for step in range(6):
                Repository(store).keep("a", idle="60s")
                state = Versioned(store, branch="a")
                state["values"] = [step] * 300
                state.commit()
            time.pass_(61 if removal == "idle" else 0)
            with monkeypatch.context() as small:
                for module in ("gc", "forgetting"):
                    small.setattr(f"vstate.repo.upkeep.{module}.MOST_DELETED", 4)
                faulty = Faulty(store)
                through = Repository(faulty)
                faulty.fail_at = len(faulty.calls) + at
                if removal != "idle":
                    store.delete("keep/heads/a")
                if removal == "gc":
                    repo.delete_branch("a")
                try:
                    if removal == "forget":
                        through.delete_branch("a", forget=True)
                    else:
                        through.gc(keep_reflog="0s" if removal == "gc" else "30d")
                    failed = False
                except StoreUnavailable:
                    pass
            ended = repo.refs.read(HEADS + "a") is None and not [*repo.refs.reflog(HEADS + "a")]
            repo.gc()
            if removal == "idle":
                assert repo.refs.read(HEADS + "a") is None
        if ended:
            assert is_clean(store)
    assert at > 12


@pytest.mark.parametrize("kind", ["memory", "disk", "encrypted"])
def test_rooms_are_listed_from_any_number_on(kind: str, tmp_path: Path) -> None:
    """Ascending, each once with its keys, also rooms that differ in one digit, and keys that look alike."""
    rng = random.Random(7)
    numbers = {rng.randrange(1, 1 << rng.choice([4, 8, 20, 64])) for _ in range(60)} | {1, 2**64 - 1}
    with Memory() if kind == "memory" else Disk(tmp_path / "store") as behind:
        store = Encrypted(behind, bytes(32)) if kind == "encrypted" else behind
        keys = {number: {f"o/{number:064x}", f"r/heads/{number}", "gc"} for number in numbers}
        rows = {room_prefix(number) + key: b"x" for number, some in keys.items() for key in some}
        store.set_many({**rows, "room/else": b"x", "room/0000": b"x", "r/heads/main": b"x", "zoo": b"x"})
        rooms = Rooms(store)
        for begin in [0, 1, 2**63, 2**64 - 1, *sorted(numbers)[::7], *(n + 1 for n in sorted(numbers)[::9])]:
            found = [(number, set(some)) for number, some in rooms.listed(begin)]
            assert found == [(number, keys[number]) for number in sorted(numbers) if number >= begin]
        assert all(len(some) == 2 for _, some in rooms.listed(0, most=1))
