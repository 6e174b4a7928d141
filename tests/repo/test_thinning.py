"""Thinning: of a history, the newest commits of hours, days and weeks stay, and those between go."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from bundle_files import exported, imported
from clock import Time, standing_still
from present import present
from running import Fork
from soak import sized
from sync_stores import cloned

from vstate import (
    AlreadyExists,
    CorruptStore,
    Disk,
    InvalidInput,
    KVStore,
    Memory,
    MergeConflict,
    SigningKey,
    UntrustedCommit,
    Versioned,
)
from vstate.errors import Diverged, StoreUnavailable
from vstate.objects.commit import Commit
from vstate.objects.ids import COMMIT, ObjectId
from vstate.repo import Repository
from vstate.repo.history import shallow_row
from vstate.repo.names.refs import Refs
from vstate.repo.objects import kind_of
from vstate.repo.rules.keeps import Keep
from vstate.repo.rules.security import Security
from vstate.repo.upkeep.reach import Marks
from vstate.repo.writing import BranchChanges
from vstate.testing import Faulty

HOUR, DAY, WEEK = 3_600, 86_400, 7 * 86_400
PERIODS = {"hourly": HOUR, "daily": DAY, "weekly": WEEK}


def seeds(quick: int, number: int) -> list[Any]:
    """So many, of which the first few are quick tests."""
    return [n if n < quick else pytest.param(n, marks=pytest.mark.slow) for n in range(number)]


@pytest.fixture
def time() -> Iterator[Time]:
    with standing_still() as time:
        yield time


def chain(store: KVStore, time: Time, number: int, seconds: float, start: int = 0) -> Repository:
    """So many commits on main, one each so many seconds."""
    repo = Repository(store)
    for n in range(start, start + number):
        repo.commit_many([BranchChanges("main", set={"n": n, f"own/{n % 7}": n}, message=f"c{n}")])
        time.pass_(seconds)
    return repo


def thin(repo: Repository, pattern: str = "main", **limits: Any) -> None:
    repo.keep(pattern, **limits)
    repo.gc(keep_reflog="0s", grace="0s")


def copied(store: KVStore) -> Memory:
    copy = Memory()
    copy.set_many(dict(store.items("")))
    return copy


def stopped(*given: Any, **options: Any) -> bool:
    raise KeyboardInterrupt


def messages(repo: Repository, rev: str = "main") -> list[str]:
    return [commit.message for commit in repo.log(rev)]


def kept_by_restic(log: list[Commit], limits: dict[str, int]) -> set[ObjectId]:
    """What `restic forget` keeps of these, newest first."""
    kept = {commit.oid for commit in log[: limits.get("last", 1)]}
    for name in limits.keys() - {"last"}:
        newest: dict[int, ObjectId] = {}
        for commit in log:
            newest.setdefault((commit.order // 1_000_000 + 3 * DAY) // PERIODS[name], commit.oid)
        kept |= {newest[period] for period in sorted(newest, reverse=True)[: limits[name]]}
    return kept


def limits_of(random: Random) -> dict[str, int]:
    chosen = [name for name in ("last", *PERIODS) if random.random() < 0.6] or ["daily"]
    return {name: random.randrange(1, 6) for name in chosen}


# What stays


def test_weeks_begin_on_monday() -> None:
    """And hours, days and weeks are those of UTC."""
    monday = 1_795_392_000_000_000  # 2026-11-23
    times = [monday + day * DAY * 1_000_000 for day in range(8, -9, -1)]
    dates = [(time // 1_000_000, time) for time in times]
    kept = [day for day, stays in Keep(weekly=3).choose(dates, times[0]) if stays]
    assert [(day - monday // 1_000_000) // DAY for day in kept] == [8, 6, -1]


def history(random: Random, time: Time, store: KVStore, *, room: bool) -> Repository:
    """Branches that fork and are merged, some of which went, and tags."""
    repo, numbers = Repository(store), count()
    for number in range(random.randrange(5, 60)):
        time.pass_(random.choice([60, HOUR // 2, 2 * HOUR, 50_000, 200_000]))
        names, way = repo.branch_names() or ["main"], random.random()
        branch = random.choice(names)
        if way < 0.6 or not repo.branch_names():
            changes = {f"k{random.randrange(4)}": next(numbers), f"own/{branch}": number}
            repo.commit_many([BranchChanges(branch, set=changes, room=room)])
        elif way < 0.75 and len(names) < 4:
            repo.create_branch(f"b{number}", random.choice([*repo.log(branch)]))
        elif way < 0.9 and len(names) > 1:
            other = random.choice([name for name in names if name != branch])
            Versioned(store, branch=branch).merge(other, policy="ours")
        elif way < 0.95:
            repo.create_tag(f"t{number}", random.choice([*repo.log(branch)]))
        elif branch != "main":
            repo.delete_branch(branch)
    return repo


@pytest.mark.parametrize("room", [True, False], ids=["in a room", "in room 0"])
@pytest.mark.parametrize("seed", seeds(2, sized(5, 100)))
def test_any_history_keeps_what_the_rule_says(time: Time, seed: int, room: bool) -> None:
    """It keeps what the rule of restic keeps, tags, and what other branches lead to. Copies have the same."""
    random, store = Random(seed), Memory()
    repo = history(random, time, store, room=room)
    names = repo.branch_names()
    ruled = [name for name in names if random.random() < 0.6] or names[:1]
    limits = limits_of(random)
    logs = {name: [*repo.log(name)] for name in names}
    behind = {c.oid: {each.oid for each in repo.log(c)} for log in logs.values() for c in log}
    states = {c.oid: dict(Versioned(store).checkout(c)) for log in logs.values() for c in log}
    chosen = set[ObjectId]().union(*(kept_by_restic(logs[name], limits) for name in ruled))
    others = {c.oid for name in names if name not in ruled for c in logs[name]}
    tags = {commit.oid for commit in repo.tags().values()}
    for name in ruled:
        repo.keep(name, **limits)  # type: ignore[arg-type]
    repo.gc(keep_reflog="0s", grace="0s")

    for name in names:
        found = {commit.oid: commit for commit in repo.log(name)}
        every = {commit.oid for commit in logs[name]}
        if name in ruled:
            assert kept_by_restic(logs[name], limits) <= found.keys() <= every & (chosen | others | tags)
        else:
            assert found.keys() == every
        for oid, commit in found.items():
            assert {*repo.history.parents(commit)} <= behind[oid] - {oid}
            assert dict(Versioned(store).checkout(commit)) == states[oid]
    for name in ruled if limits.keys() - {"last"} else ():
        assert tags & {commit.oid for commit in logs[name]} <= {commit.oid for commit in repo.log(name)}
    assert repo.fsck().ok
    again = repo.gc(keep_reflog="0s", grace="0s")
    assert (again.removed, again.shallow) == (0, 0)
    copies = [cloned(store), Memory(), Memory()]
    imported(copies[1], exported(store, *names))
    repo.push(copies[2], names)
    for copy in copies:
        assert Repository(copy).fsck().ok
        for name in names:  # a copy may have more, where another branch leads to a parent that was cut off
            assert {c.oid for c in Repository(copy).log(name)} >= {c.oid for c in repo.log(name)}


@pytest.mark.usefixtures("commit_graph")
@pytest.mark.slow
def test_a_long_history_is_walked_alike_with_and_without_its_graph(time: Time) -> None:
    """After it was thinned, ancestors, `~n` and the log agree, by old handles and by new ones."""
    store = Memory()
    repo = chain(store, time, 3_000, 600)
    repo.gc()
    assert [*store.keys("commit-graph/")]
    old = Repository(store)
    assert old.history.is_ancestor(old.resolve("main~2900").oid, old.resolve("main").oid)
    thin(repo, last=20, hourly=24, daily=30)
    kept = [commit.oid for commit in repo.log("main")]
    assert 40 < len(kept) < 80
    assert {commit.oid for commit in old.log("main")} >= {*kept}  # some others are still in its memory
    for handle in (repo, old, Repository(store)):
        assert [commit.oid for commit in handle.log("main")] == kept
        for steps in range(0, len(kept), 5):
            assert handle.resolve(f"main~{steps}").oid == kept[steps]
            assert handle.history.is_ancestor(kept[steps], kept[0])
            assert not handle.history.is_ancestor(kept[0], kept[steps]) or not steps


# What log, diff and blame say of a thinned history


def test_the_next_commit_that_stays_has_the_changes_of_those_that_went(time: Time) -> None:
    """In diff, log, blame, revert and the count of steps."""
    store = Memory()
    repo, state = chain(store, time, 1, DAY), Versioned(store)
    for number in range(3):
        state["a" if number < 2 else "b"] = number
        state.commit(f"change {number}")
        time.pass_(60)
    time.pass_(DAY)
    chain(store, time, 1, 60, start=5)
    thin(repo, daily=9)
    assert messages(repo) == ["c5", "change 2", "c0"]
    state = Versioned(store)
    assert {*state.diff("main~2", "main~1")} == {"a", "b"}
    assert [commit.message for commit in state.log(key="a")] == ["change 2"]
    assert state.blame("a").message == "change 2"
    state.revert("main~1")
    assert not {"a", "b"} & {*state}


# Merges


@pytest.mark.parametrize("own", [True, False], ids=["with a commit of its own", "without"])
def test_a_clone_that_stands_at_a_commit_that_went_is_not_merged(time: Time, own: bool) -> None:
    """The merge base may have gone, and another one would give a wrong result."""
    store = Memory()
    repo = chain(store, time, 11, 2 * HOUR)
    copy = cloned(store)
    chain(store, time, 9, 2 * HOUR, start=11)
    thin(repo, last=2, daily=5)
    state = Versioned(copy)
    if own:
        state["mine"] = 1
        state.commit("mine")
    before = dict(state)
    with pytest.raises(InvalidInput, match="may have been removed"):
        state.pull(repo)
    assert dict(Versioned(copy)) == before
    assert Repository(copy).fsck().ok


@pytest.mark.parametrize("ways", ["cut off", "thinned"])
def test_a_merge_across_a_merge_that_lost_a_parent(time: Time, ways: str) -> None:
    """It is refused only where commits may have gone that are newer than the base: in a gap."""
    store = Memory()
    repo, main = chain(store, time, 2, DAY), Versioned(store)
    repo.create_branch("side", "main")
    side = Versioned(store, branch="side")
    for number in range(2):
        side["side"] = number
        side.commit(f"s{number}")
        time.pass_(HOUR)
    clone = cloned(store)
    chain(store, time, 1, HOUR, start=2)
    repo.create_branch("other", "main")
    other = Versioned(store, branch="other")
    other["other"] = 1
    other.commit("other")
    main = Versioned(store)
    main.merge("side")
    repo.delete_branch("side")
    if ways == "cut off":
        repo.gc(branch="main", keep_last=2, keep_reflog="0s", grace="0s")
        assert main.merge("other").commit is not None
        assert repo.fsck().ok
        return
    repo.delete_branch("other")
    time.pass_(DAY)
    thin(repo, daily=9)
    newest = repo.resolve("main")
    assert newest.message.startswith("Merge")
    assert len({*repo.history.parents(newest)}) == 1
    late = Versioned(clone, branch="side")
    late["side"] = 0
    late.commit("back")
    repo.fetch(Repository(clone), remote="clone", tags=False)
    with pytest.raises(InvalidInput, match="may have been removed"):
        Versioned(store).merge("clone/side")


@pytest.mark.parametrize("limits", [{"last": 3}, {"daily": 1, "last": 2}, {"hourly": 3}])
def test_a_merge_takes_no_older_base_than_the_one_that_went(time: Time, limits: dict[str, int]) -> None:
    """What main has taken back since would come again. The commit that hides the base has lost its parent."""
    store = Memory()
    repo = chain(store, time, 1, HOUR)
    repo.create_branch("old", "main")
    repo.create_branch("other", "main")
    repo.commit("other", set={"n": 1})
    Versioned(store, branch="main").merge("other")
    for number in (0, 2, 3, 4):
        time.pass_(HOUR)
        repo.commit("main", set={"n": 0, "main": number})
    time.pass_(HOUR)
    repo.commit("old", set={"old": 1})
    Versioned(store, branch="main").merge("old")
    repo.commit("other", set={"other": 1})
    thin(repo, **limits)
    with pytest.raises(InvalidInput, match="may have been removed"):
        Versioned(store, branch="main").merge("other")


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("way", ["import", "push", "pull", "fetch"])
def test_a_store_that_has_more_of_a_history_keeps_it(time: Time, way: str, ahead: bool) -> None:
    """Also if the other one has thinned it down to fewer commits."""
    store = Memory()
    chain(store, time, 4 * 20, 6 * HOUR)
    other = copied(store)
    thin(Repository(store), daily=60)
    thin(Repository(other), weekly=8)
    chain(other, time, int(ahead), 60, start=999)
    kept = messages(Repository(store))
    assert len(kept) == 21
    source = Repository(other)
    if way == "import":
        imported(store, exported(other, "main"))
    elif way == "push":
        source.push(store, ["main"])
    elif way == "pull":
        Versioned(store).pull(source)
    else:
        Repository(store).fetch(source, remote="other")
    repo = Repository(store)
    repo.keep("main")  # no rule any more
    repo.gc(keep_reflog="0s", grace="0s")
    assert messages(repo)[-21:] == kept
    assert repo.fsck().ok


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("way", ["import", "push", "fetch"])
def test_commits_that_arrived_without_a_ref_have_the_end_of_their_history(
    time: Time, way: str, atomic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transfer is cut short before its ref. A branch that is made at such a commit is whole."""
    store, memory = Memory(), Memory()
    chain(store, time, 10, HOUR)
    thin(Repository(store), last=3)
    target = memory if atomic else Faulty(memory, atomic=False)
    Repository(target).commit("other", set={"n": 1})
    tip = Repository(store).resolve("main")
    with monkeypatch.context() as patch:
        patch.setattr(Refs, "publish_all", stopped)
        with pytest.raises(KeyboardInterrupt):
            if way == "import":
                imported(target, exported(store, "main"))
            elif way == "push":
                Repository(store).push(target, ["main"])
            else:
                Repository(target).fetch(Repository(store), remote="other")
    repo = Repository(target)
    repo.create_branch("again", tip)
    assert messages(repo, "again") == ["c9", "c8", "c7"]
    assert repo.fsck().ok


def test_a_tag_that_was_refused_leaves_the_end_of_the_history_that_it_brought(time: Time) -> None:
    """Its commits are in the room by then. The next tag there finds them, and is whole."""
    repo = Repository(Memory())
    for branch in ("a", "b"):
        for number in range(5):
            repo.commit_many([BranchChanges(branch, set={"n": number, "of": branch}, room=True)])
    repo.gc(branch="b", keep_last=2, keep_reflog="0s", grace="0s")
    repo.create_tag("t", "a")
    with pytest.raises(AlreadyExists):
        repo.create_tag("t", "b")
    repo.delete_tag("t")
    repo.create_tag("t", "b")
    assert len([*repo.log("t")]) == 2
    assert repo.fsck().ok


def test_what_stands_for_a_first_parent_comes_first_in_a_copy(time: Time) -> None:
    """The copy has the second parent only, from before. So `~1` is the history of the branch there too."""
    store, target = Memory(), Memory()
    repo = Repository(store)
    for number, pause in enumerate((2 * DAY, DAY, 0)):
        repo.commit("main", set={"n": number}, message=f"c{number}")
        time.pass_(pause)
    repo.create_branch("side", "main~1")
    side = present(repo.commit("side", set={"side": 1}, message="side"))
    repo.commit("main", set={"n": 3}, message="c3")
    Versioned(store, branch="main").merge("side")
    repo.push(target, ["side"])
    repo.delete_branch("side")
    thin(repo, daily=4)
    other = Repository(target)
    other.fetch(repo, remote="other", tags=False)
    tip = other.resolve("other/main")
    assert side.oid in tip.parent_ids[1:]
    assert [commit.message for commit in other.log("other/main", first_parent=True)][1:] == ["c1", "c0"]
    assert other.fsck().ok


def test_a_commit_that_a_tracking_ref_names_stays(time: Time) -> None:
    """A later fetch, or a merge, begins there."""
    source, store = Memory(), Memory()
    chain(source, time, 5, HOUR)
    repo = Repository(store)
    repo.fetch(Repository(source), remote="origin", tags=False)
    repo.create_branch("main", "origin/main")
    time.pass_(WEEK)
    chain(store, time, 5, HOUR, start=5)
    thin(repo, weekly=1)
    assert messages(repo) == ["c9", "c4"]


def test_a_clock_that_is_ahead_takes_nobodys_place(time: Time) -> None:
    """The newest commit is of today for a gc whose clock is two seconds behind, and not of yesterday."""
    store = Memory()
    repo = chain(store, time, 5, DAY)
    chain(store, time, 1, 0, start=5)
    time.pass_(-2)
    thin(repo, daily=10)
    assert messages(repo) == ["c5", "c4", "c3", "c2", "c1", "c0"]


def merged(repo: Repository, branch: str, theirs: Commit, policy: str = "") -> ObjectId | str | None:
    """The root after a merge, or the name of an error, after which nothing has changed."""
    try:
        result = Versioned(repo.store, branch=branch).merge(theirs)
    except (MergeConflict, InvalidInput) as error:
        return type(error).__name__
    return None if result.commit is None else result.commit.root


class Pair:
    """Two stores that thin their histories and exchange them, and a third one with all that ever was."""

    def __init__(self, seed: int, time: Time) -> None:
        self.random, self.time, self.numbers = Random(seed), time, count()
        self.stores, self.whole = [Memory(), Memory()], Memory()
        Repository(self.whole).stamp()
        self.results: list[str] = []
        self.commit(self.stores[0], "main")
        repo = Repository(self.stores[0])
        repo.push(self.stores[1], ["main"])

    def commit(self, store: KVStore, branch: str) -> None:
        state = Versioned(store, branch=branch)
        state[f"k{self.random.randrange(3)}"] = self.random.randrange(3)
        state["n"] = next(self.numbers)
        state.commit()

    def merge(self, repo: Repository, branch: str, theirs: Commit) -> None:
        """A merge that is not refused has the result that it has with all commits there."""
        for store in self.stores:
            self.whole.set_many(dict(store.items("o/")))
        every = Repository(self.whole)
        for name in every.branch_names():
            every.delete_branch(name)
        every.create_branch("x", repo.newest(branch))
        found, right = merged(repo, branch, theirs), merged(every, "x", theirs)
        self.results.append(str(found))
        assert found in (right, "InvalidInput")

    def step(self) -> None:
        random = self.random
        self.time.pass_(random.choice([60, 600, HOUR, 4 * HOUR]))
        mine, other = random.sample(self.stores, 2)
        repo, there = Repository(mine), Repository(other)
        branch, way = random.choice(repo.branch_names()), random.random()
        if way < 0.5:
            self.commit(mine, branch)
        elif way < 0.58 and len(repo.branch_names()) < 3:
            repo.create_branch(f"b{next(self.numbers)}", random.choice([*repo.log(branch)]))
        elif way < 0.62:
            repo.create_tag(f"t{next(self.numbers)}", random.choice([*repo.log(branch)]))
        elif way < 0.75:
            limits = {"last": 1, "daily": random.randrange(2, 9), "weekly": random.randrange(2, 9)}
            repo.keep(random.choice(["*", "main"]), **limits)  # type: ignore[arg-type]
            for store in self.stores:
                self.whole.set_many(dict(store.items("o/")))
            repo.gc(keep_reflog=random.choice(["0s", "2d"]), grace="0s")
        elif way < 0.8:
            there.push(mine, [random.choice(there.branch_names())])
        elif way < 0.84:
            imported(mine, exported(other, random.choice(there.branch_names())))
        elif way < 0.92:
            report = repo.fetch(there, remote="o", tags=random.random() < 0.5)
            fetched = repo.resolve(
                random.choice([ref.name for ref in report.refs if "/tags/" not in ref.name])
            )
            self.merge(repo, branch, fetched)
        else:
            self.merge(repo, branch, repo.resolve(random.choice(repo.branch_names())))


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(1, sized(7, 300)))
def test_stores_that_thin_exchange_without_damage_and_without_a_wrong_merge(time: Time, seed: int) -> None:
    """By push, fetch and bundles, each at its own time: every state that a log names can be read."""
    pair = Pair(seed, time)
    for number in range(1, 61):
        with suppress(Diverged):
            pair.step()
        for store in pair.stores if number % sized(4, 1) == 0 else ():
            repo = Repository(store)
            assert repo.fsck().ok
            for name in repo.branch_names():
                for commit in repo.log(name):
                    dict(Versioned(store).checkout(commit))


# Damage, and rows that lie


def test_a_row_that_names_a_newer_parent_is_damage(time: Time) -> None:
    """A walk ends with an error and in no circle; fsck names the row, and sets it aside."""
    store = Memory()
    repo = chain(store, time, 20, HOUR)
    thin(repo, daily=5)
    newest, older = [*repo.log("main")][:2]
    store.set(*shallow_row(older.oid, [newest.oid]))
    with pytest.raises(CorruptStore, match="not older"):
        [*Repository(store).history.first_parents(newest.oid)]
    report = Repository(store).fsck()
    assert [damage.kind for damage in report.damage] == ["shallow"]
    for _ in range(2):  # then the history ends where its commits are gone
        Repository(store).fsck(repair=True)
    assert Repository(store).fsck().ok
    assert messages(Repository(store)) == [newest.message, older.message]


def test_a_history_ends_where_the_commit_that_stayed_is_lost(time: Time) -> None:
    """fsck names it, and with repair keeps the older ones under a tag."""
    store = Memory()
    repo = chain(store, time, 60, HOUR)
    thin(repo, daily=5)
    log = [*repo.log("main")]
    store.delete(f"o/{log[1].id}")
    report = Repository(store).fsck()
    assert any(lost.commit == log[1].id for lost in report.lost)
    Repository(store).fsck(repair=True)
    assert Repository(store).fsck().ok
    assert messages(Repository(store)) == [log[0].message]
    assert messages(Repository(store), f"fsck/{log[2].short}") == [commit.message for commit in log[2:]]


def test_rows_count_for_nothing_where_signatures_do(time: Time) -> None:
    """A program that trusts signed commits only refuses to thin, and sees a history end where it was thinned.

    So nobody makes a commit one before a signed one by a row.
    """
    key, store = SigningKey.generate(), Memory()
    plain = chain(store, time, 3, HOUR)
    unsigned = plain.resolve("main")
    plain.create_branch("other", unsigned)
    Versioned(store).switch("other")
    plain.delete_branch("main")
    trusting = Repository(store, Security(sign=key, trust=[]))
    for number in range(7):
        trusting.commit("main", set={"n": number}, message=f"s{number}")
        time.pass_(10 * HOUR)
    signed = messages(trusting)
    for limits in ({"hourly": 2}, {"daily": 1}):
        with pytest.raises(InvalidInput, match="signed"):
            trusting.keep("main", **limits)  # type: ignore[arg-type]
    first = [*trusting.log("main")][-1]
    store.set(*shallow_row(first.oid, [unsigned.oid]))
    again = Repository(store, Security(trust=[key.public]))
    assert messages(again) == signed
    assert messages(Repository(store)) == [*signed, "c2", "c1", "c0"]
    with pytest.raises(UntrustedCommit):
        again.require_trusted(unsigned)
    plain.keep("main", daily=3)
    with pytest.raises(InvalidInput, match="signed"):
        again.gc()
    plain.gc(keep_reflog="0s", grace="0s")
    assert len(messages(Repository(store))) == 3
    assert messages(Repository(store, Security(trust=[key.public]))) == signed[:2]


# Beside others


def test_a_gc_that_another_one_overtook_names_no_commit_that_went(
    time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has planned its rows when the other one removes a commit that they name."""
    store = Memory()
    repo = chain(store, time, 60, HOUR)
    repo.keep("main", last=2, daily=3)
    cut_off = Marks.cut_off
    late = iter([None])

    def slow(marks: Marks, ends: Any) -> None:
        for _ in late:
            other = chain(store, time, 24, HOUR, start=60)
            other.gc(keep_reflog="0s", grace="0s")
        cut_off(marks, ends)
        assert Repository(store).fsck().ok  # later steps of this gc could heal it

    monkeypatch.setattr(Marks, "cut_off", slow)
    repo.gc(keep_reflog="0s", grace="0s")
    assert Repository(store).fsck().ok
    assert messages(Repository(store)) == ["c83", "c82", "c62", "c38"]
    assert messages(Repository(store)) == messages(repo)


@pytest.mark.parametrize("fail_at", range(1, 50, 2))
def test_a_gc_that_is_cut_short_keeps_no_commit_by_its_reflog(time: Time, fail_at: int) -> None:
    """Lines that name commits which are taken out go before these commits do: the next gc removes both."""
    store = Memory()
    chain(store, time, 12, 8 * HOUR)
    Repository(store).keep("main", daily=3)
    faulty = Faulty(store)
    repo = Repository(faulty)
    faulty.fail_at = len(faulty.calls) + fail_at
    with suppress(StoreUnavailable):
        repo.gc()
    Repository(store).gc()
    left = [key for key, row in store.items("o/") if kind_of(row) is COMMIT]
    assert len(left) == len(messages(Repository(store))) == 3


@pytest.mark.slow
@pytest.mark.parametrize("room", [True, False], ids=["in a room", "in room 0"])
def test_writers_beside_it_and_a_kill_lose_nothing(tmp_path: Path, room: bool) -> None:
    """A process that thins again and again is killed, while others write: each newest state is there."""
    with Disk(tmp_path, durability="process") as store:
        Repository(store).commit_many([BranchChanges("main", set={"n": -1}, room=room)])
        Repository(store).keep("main", last=5, hourly=3)

    def write() -> None:
        own = Versioned(Disk(tmp_path, durability="process"))
        for number in count():
            own.apply(lambda state, n=number: state.update({f"w{n % 50}": n, "n": n}))
            print(number, flush=True)

    def thin_again() -> None:
        own = Repository(Disk(tmp_path, durability="process"))
        while True:
            own.gc(keep_reflog="0s", grace="0s")
            print("done", flush=True)

    with Fork(write) as writer:
        for _ in range(10):
            assert writer.output.readline()
        for _ in range(3):
            with Fork(thin_again) as thinning:
                for _ in range(3):
                    assert thinning.output.readline() == "done\n"
                thinning.kill()
                assert thinning.end()[0] == -signal.SIGKILL
            with Disk(tmp_path) as store:
                newest = [*Repository(store).log("main", limit=5)]
                assert len(newest) == 5
                for commit in newest:
                    dict(Versioned(store).checkout(commit))
        writer.kill()
        printed = writer.end()[1].splitlines(keepends=True)
    with Disk(tmp_path) as store:
        assert Repository(store).fsck().ok
        assert Versioned(store)["n"] >= int([line for line in printed if line.endswith("\n")][-1])
        assert Repository(store).gc(keep_reflog="0s", grace="0s").live < 100
        assert Repository(store).fsck().ok
