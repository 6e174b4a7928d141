"""Rules that say what gc keeps: of branches that are idle, and of histories."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from bundle_files import save
from clock import Time, standing_still
from histories import objects_of, sound
from sync_stores import Once, Overtaken

from vstate import (
    CorruptStore,
    InvalidInput,
    KVStore,
    Memory,
    NotFound,
    RefMoved,
    StoreUnavailable,
    Versioned,
)
from vstate.kv.base import ROOM_PREFIX, split_room
from vstate.repo import Repository
from vstate.repo.rules.keeps import RULES, Keep, find_rule
from vstate.repo.upkeep import beside
from vstate.repo.upkeep.gc import Collector
from vstate.repo.writing import BranchChanges
from vstate.testing import Faulty

DAY = 86_400

_numbers = count()


@pytest.fixture
def time() -> Iterator[Time]:
    with standing_still() as time:
        yield time


@pytest.fixture(params=[True, False], ids=["in rooms", "in one room"])
def in_rooms(request: pytest.FixtureRequest) -> bool:
    found: bool = request.param
    return found


def commits(repo: Repository, branch: str, number: int, *, room: bool = False) -> None:
    for _ in range(number):
        repo.commit_many([BranchChanges(branch, set={"n": [next(_numbers)] * 3_000}, room=room)])


def lengths(store: KVStore) -> dict[str, int]:
    """The lengths of the histories of the branches."""
    repo = Repository(store)
    assert repo.fsck().ok
    return {name: len([*repo.log(name)]) for name in repo.branch_names()}


@pytest.mark.parametrize(
    ("branch", "found"),
    {
        "threads/a": "threads/a",
        "threads/%20": "threads/%*",
        "threads/ab": "threads/a*",
        "threads/b": "threads/*",
        "main": "*",
        "threads": "*",
    }.items(),
)
def test_the_longest_pattern_counts(branch: str, found: str) -> None:
    """A name counts before any beginning, and a rule counts alone."""
    patterns = ["*", "threads/*", "threads/a", "threads/a*", "threads/%*", "thread", "x*"]
    rules = {pattern: Keep(last=number + 1) for number, pattern in enumerate(patterns)}
    assert find_rule(rules, branch) == rules[found]
    assert find_rule({}, branch) == Keep()


def test_rules_are_read_as_they_were_set(store: KVStore) -> None:
    """Each one takes the place of the one before; without a limit it goes, and the last one with its row."""
    repo = Repository(store)
    every: dict[str, Any] = {"idle": "30d", "since": "1h", "last": 20, "hourly": 24, "daily": 7, "weekly": 4}
    repo.keep("threads/*", **every)
    repo.keep("main", since=timedelta(hours=1.5))
    rules = {"main": Keep(since=timedelta(hours=1.5)), "threads/*": Keep(**every)}
    assert Repository(store).keeps() == rules
    repo.keep("threads/*", idle="12h")
    assert Repository(store).keeps() == rules | {"threads/*": Keep(idle=timedelta(hours=12))}
    assert repo.fsck().ok
    repo.keep("main")
    repo.keep("threads/*")
    assert repo.keeps() == {}
    assert not [*store.keys()]


@pytest.mark.parametrize(
    "given",
    [
        {"pattern": "a*b", "last": 1},
        {"pattern": "", "last": 1},
        {"pattern": "/*", "last": 1},
        {"pattern": "..*", "last": 1},
        {"pattern": "x", "last": 0},
        {"pattern": "x", "last": True},
        {"pattern": "x", "hourly": 0},
        {"pattern": "x", "daily": 0},
        {"pattern": "x", "weekly": -1},
        {"pattern": "x", "idle": "0"},
        {"pattern": "x", "idle": "3x"},
        {"pattern": "x", "since": timedelta(-1)},
    ],
    ids=str,
)
def test_a_rule_that_makes_no_sense(given: dict[str, Any]) -> None:
    """InvalidInput, and nothing is set."""
    store = Memory()
    with pytest.raises(InvalidInput):
        Repository(store).keep(**given)
    assert not [*store.keys()]


def test_idle_branches_go(store: KVStore, time: Time, in_rooms: bool) -> None:
    """Those that the rule is about, once no commit has reached them for so long; HEAD's branch stays."""
    repo = Repository(store)
    repo.keep("*", idle="30d")
    repo.keep("threads/*", idle="2d")
    for name in ("main", "other", "threads/a", "threads/b"):
        commits(repo, name, 2, room=in_rooms)
    time.pass_(DAY)
    commits(repo, "threads/b", 1)
    assert repo.gc().expired == ()
    time.pass_(DAY + 1)
    assert repo.gc(dry_run=True).expired == ("threads/a",)
    assert repo.gc().expired == ("threads/a",)
    assert lengths(store) == {"main": 2, "other": 2, "threads/b": 3}
    time.pass_(30 * DAY)
    assert sorted(repo.gc().expired) == ["other", "threads/b"]
    assert lengths(store) == {"main": 2}
    assert len({split_room(key)[0] for key in store.keys(ROOM_PREFIX)}) <= 1  # that of main


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "left"),
    [
        ({"last": 3}, 3),
        ({"since": "60h"}, 2),
        ({"since": "60h", "last": 1}, 2),
        ({"since": "60h", "last": 4}, 4),
        ({"since": "0"}, 1),
        ({"since": "1000000w"}, 6),
        ({"idle": "100d"}, 6),
    ],
    ids=str,
)
def test_histories_are_cut_off(
    store: KVStore, time: Time, in_rooms: bool, limits: dict[str, Any], left: int
) -> None:
    """A commit stays that `since` or `last` keeps; branches without the rule keep all of theirs."""
    repo = Repository(store)
    for _ in range(6):
        for name in ("threads/a", "threads/b", "main"):
            commits(repo, name, 1, room=in_rooms)
        time.pass_(DAY)
    repo.keep("threads/*", **limits)
    repo.gc(keep_reflog="0s", grace="0s")
    assert lengths(store) == {"main": 6, "threads/a": left, "threads/b": left}
    report = repo.gc(keep_reflog="0s", grace="0s")
    assert report.removed == report.shallow == 0


def test_damaged_rules_remove_nothing(time: Time) -> None:
    """gc refuses to guess; fsck names the row, and sets it aside."""
    store = Memory()
    repo = Repository(store)
    commits(repo, "a", 2)
    repo.keep("a", idle="1d")
    store.set(RULES, store.get(RULES)[:-1] + b"?")  # type: ignore[index]  # it is there
    time.pass_(2 * DAY)
    with pytest.raises(CorruptStore, match="rules"):
        repo.gc()
    assert not Repository(store).fsck().ok
    assert Repository(store).fsck(repair=True).ok
    assert repo.gc().expired == ()
    assert repo.keeps() == {}


@pytest.mark.slow
def test_a_program_carries_the_rules_out_beside_its_commits(
    time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle branches go, and histories become short, while it commits; no gc is called."""
    monkeypatch.setattr(beside, "_SHARE", 1.0)
    store = Memory()
    repo = Repository(store)
    for number in range(20):
        commits(repo, f"old/{number}", 3, room=True)
    time.pass_(2 * DAY)
    commits(repo, "new/a", 5, room=True)
    assert len(repo.branch_names()) == 21
    repo.keep("old/*", idle="1d")
    repo.keep("new/*", last=2)
    for _ in range(5_000):
        commits(repo, "main", 1)
        if len(repo.branch_names()) == 2 and len([*Repository(store).log("new/a")]) == 2:
            break
    assert {**lengths(store), "main": 0} == {"main": 0, "new/a": 2}


def test_programs_that_live_for_a_commit_carry_the_rules_out_together(
    time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them look at all rooms, also behind those of branches that stay, in a tenth of their time."""
    looks = []
    collect_from = beside.Collector.collect_from

    def look(work: Collector, *given: Any) -> int | None:
        looks.append(given)
        return collect_from(work, *given)

    monkeypatch.setattr(beside.Collector, "collect_from", look)
    monkeypatch.setattr(beside, "random", Random(1).random)
    store = Memory()
    for number in range(10):
        commits(Repository(store), f"{'old' if number % 2 else 'kept'}/{number}", 1, room=True)
    time.pass_(2 * DAY)
    programs = 0
    while Repository(store).branch_names("old/"):
        programs += 1
        assert programs < 1_000
        repo = Repository(store)
        repo.keep("old/*", idle="1d")
        assert repo.beside is not None
        repo.beside(0.001)
    assert len(looks) <= min(10, programs * 0.3)


def test_it_takes_a_tenth_of_the_time_of_the_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks of any length, a long one now and then: all together take a tenth, and one look more at most."""
    clock, random, taken = [0.0], Random(1), []

    def look(*_: object) -> None:
        taken.append(random.choice([0.0001, 0.002, 0.5]))
        clock[0] += taken[-1]

    monkeypatch.setattr(beside.Collector, "collect_from", look)
    monkeypatch.setattr(beside, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    work = beside.Beside(Repository(Memory()))
    for number in range(1, 100_000):
        work(0.001)
        assert sum(taken) <= number * 0.001 * 0.1 + 0.5 + 0.001
    assert sum(taken) > 9


def test_a_failure_beside_a_commit_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of any kind: the commit has landed, and says so."""
    monkeypatch.setattr(beside, "_FIRST_PRICE", 0)
    repo = Repository(Memory())
    repo.keep("*", last=1)
    failures: list[Exception] = [StoreUnavailable("it is away"), ValueError("a row makes no sense")]

    def look(*_: object) -> None:
        raise failures[-1] if len(failures) == 1 else failures.pop()

    monkeypatch.setattr(beside.Collector, "collect_from", look)
    commits(repo, "main", 3)
    assert len([*repo.log("main")]) == 3
    assert "until a later gc" in caplog.text


@pytest.mark.parametrize("cut", ["main", "idle"])
def test_a_dry_run_counts_a_history_that_an_idle_branch_shares(time: Time, cut: str) -> None:
    """A branch that goes keeps no commit of another from being cut off, and is not cut off itself."""
    repo = Repository(Memory())
    commits(repo, "main", 5)
    repo.create_branch("idle", at="main~1")
    time.pass_(2 * DAY)
    commits(repo, "main", 1)
    repo.keep("idle", idle="1d")
    reports = [repo.gc(branch=cut, keep_last=2, keep_reflog="0s", dry_run=dry) for dry in (True, False)]
    predicted, done = [(it.removed, it.removed_bytes, it.shallow, it.kept_by) for it in reports]
    assert predicted == done


@pytest.mark.parametrize("keep_reflog", ["30d", "0s"])
def test_a_branch_that_was_made_at_an_old_commit_is_not_idle(
    store: KVStore, time: Time, keep_reflog: str
) -> None:
    """Its last move counts, also once the lines of the reflog are too old to keep commits."""
    repo = Repository(store)
    commits(repo, "old", 2)
    time.pass_(100 * DAY)
    repo.create_branch("t/fork", at="old")
    repo.keep("t/*", idle="60d")
    for days in (1, 29, 2, 27):
        time.pass_(days * DAY)
        assert repo.gc(keep_reflog=keep_reflog).expired == (), days
    assert lengths(store) == {"old": 2, "t/fork": 2}
    time.pass_(2 * DAY)
    assert repo.gc(keep_reflog=keep_reflog).expired == ("t/fork",)


def test_a_room_0_that_takes_long_is_left_to_gc(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes last in a round, and once only; the other rooms are looked at again and again."""
    clock, looks = [0.0], list[int]()

    def look(work: object, number: int, until: float) -> int | None:
        looks.append(number)
        clock[0] += 0.2 if number == 0 else 0.001
        return {0: 5, 1: 5, 5: 7, 7: None}[number]

    monkeypatch.setattr(beside.Collector, "collect_from", look)
    monkeypatch.setattr(beside, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    work = beside.Beside(Repository(Memory()))
    for _ in range(10_000):
        work(0.01)
    assert looks[:8] == [1, 5, 7, 0, 5, 7, 1, 5]
    assert looks.count(0) == 1


# The life of an idle branch


def session(store: KVStore) -> Versioned:
    Repository(store).keep("session*", idle="60s")
    return Versioned(store, branch="session")


def committed(state: Versioned, **values: object) -> Versioned:
    save(state, "set", **values)
    return state


# Moves of one moment are a microsecond apart in a reflog, so the tests wait a second more.
def kept(store: KVStore, *, after: float, time: Time) -> bool:
    """Whether a gc after so many seconds leaves the branch."""
    time.pass_(after)
    return Repository(store).gc(dry_run=True).expired == ()


def test_gc_deletes_an_idle_branch(store: KVStore, time: Time) -> None:
    """Until then it is there, and a commit to it counts; a handle on a deleted branch gets RefMoved."""
    main = committed(Versioned(store), main=1)
    state = committed(session(store), k=[1])
    assert kept(store, after=59, time=time)
    assert not kept(store, after=1, time=time)
    assert Versioned(store, branch="session")["k"] == [1]
    assert main.repo.gc().expired == ("session",)
    assert list(main.branches()) == ["main"]
    sound(store)
    state["late"] = 1
    with pytest.raises(RefMoved, match="gone: deleted"):
        state.commit()
    new = committed(Versioned(store, branch="session"), k="new")
    assert new.head.parent_ids == ()
    assert kept(store, after=59, time=time)
    assert not kept(store, after=1, time=time)
    sound(store)


@pytest.mark.parametrize(
    "move",
    [
        lambda store: committed(session(store), n=2),
        lambda store: session(store).apply(lambda now: now.__setitem__("n", 5)),
        lambda store: committed(Versioned(store, branch="session"), m=1),
        lambda store: Repository(store).rollback("session", "session~1"),
        lambda store: Versioned(store, branch="session").undo(),
        lambda store: Repository(store).rename_branch("session", "session-2"),
    ],
)
def test_any_move_begins_the_time_anew(move: Callable[[KVStore], object], store: KVStore, time: Time) -> None:
    """A read or an empty commit does not."""
    committed(committed(session(store), n=0), n=1)
    time.pass_(59)
    move(store)
    assert kept(store, after=59, time=time)
    assert session(store).commit() is None
    assert not kept(store, after=1, time=time)


@pytest.mark.slow
def test_gc_removes_it_with_its_reflog(store: KVStore, time: Time) -> None:
    """One gc removes branch, row, policies, reflog and objects; objects of other branches stay."""
    main = committed(Versioned(store), main=1)
    before = objects_of(store)
    state = committed(session(store), big=["x" * 3000, 1])
    state.set_policy("big", "union")
    for number in range(5):
        committed(state, n=number)
    main.create_branch("fork", at="session~2")
    time.pass_(61)
    dry = main.repo.gc(dry_run=True, grace="0")
    report = main.repo.gc(grace="0")
    assert dry.expired == report.expired == ("session",)
    assert dry.removed == report.removed or not store.transactional
    assert dry.reflog_lines == report.reflog_lines
    assert [part.reason for part in dry.garbage] == ["of branches that were idle"]
    assert [key for key, _ in store.items() if "session" in key] == []
    assert dict(Versioned(store, branch="fork")) == {"n": 2, "big": ["x" * 3000, 1]}
    sound(store)
    main.delete_branch("fork")
    for _ in range(2):  # without transactions, garbage is in the trash first
        main.repo.gc(keep_reflog="0", grace="0")
    assert objects_of(store) == before
    sound(store)


@pytest.mark.parametrize("atomic", [True, False])
def test_head_may_come_to_a_branch_as_gc_deletes_it(time: Time, atomic: bool) -> None:
    """Another program has put HEAD on it since gc found it idle: it stays."""

    class Overtaken(Faulty):
        def exclusively(self, plan: Callable[[], Mapping[str, bytes | None]]) -> bool:
            self.compare_and_swap("r/HEAD", None, b"ref: heads/session")
            return super().exclusively(plan)

    store = Overtaken(Memory(), atomic=atomic)
    committed(session(store), k=1)
    assert not kept(store, after=60, time=time)
    assert Repository(store).gc().expired == ()
    assert Versioned(store)["k"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_gc_that_fails_anywhere_without_transactions(after: bool) -> None:
    """After a failure at each store call, the branch is there or gone, and may begin anew."""
    for number in count(1 + after, 2):  # a failure after a call is as one before the next
        with standing_still() as time:
            memory = Memory()
            committed(Versioned(memory), main=1)
            committed(session(memory), old=1)
            time.pass_(61)
            store = Faulty(memory, atomic=False)
            repo = Repository(store)
            store.calls.clear()
            store.fail_at, store.after, failed = number, after, True
            with suppress(StoreUnavailable):
                repo.gc(grace="0")
                failed = False
            store.fail_at = None
            shown = dict(Versioned(memory, branch="session"))
            assert shown == {"old": 1} or (not shown and Repository(store).fsck().ok)
            if not shown:
                committed(Versioned(store, branch="session"), new=1)
                assert kept(store, after=59, time=time)
            if not failed:
                assert not shown
                break
    assert number > 10


def test_changes_on_a_branch_that_gc_deleted(store: KVStore, time: Time) -> None:
    """The commit below them may be gone too: the error says so, and the changes are still staged."""
    committed(Versioned(store), main=1)
    state = committed(session(store), k=1)
    time.pass_(61)
    for _ in range(2):  # without transactions, garbage is in the trash first
        Repository(store).gc(keep_reflog="0", grace="0")
    state["late"] = 1
    with pytest.raises(RefMoved, match="as long as gc has left its commits"):
        state.commit()
    with pytest.raises(NotFound, match="open the state again"):
        state.switch("rescued", create=True)
    assert state["late"] == 1
    assert state.status().added == ["late"]


@pytest.mark.parametrize("looked_at", ["keep/", "reflog/heads/session", "r/heads/session"])
def test_a_commit_that_arrives_as_gc_looks(looked_at: str, time: Time) -> None:
    """gc deletes the branch only where it found it idle."""
    store = Overtaken(Memory())
    state = committed(session(store), k=1)
    time.pass_(61)
    store.after_read = once = Once(lambda: committed(state, k=2), looked_at)
    assert Repository(store).gc().expired == ()
    assert once.done
    assert Versioned(store, branch="session")["k"] == 2
    sound(store)
