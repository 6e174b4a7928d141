"""Walks of a long history take few round trips, by the reflogs: hints, on which nothing relies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, tzinfo
from random import Random
from types import SimpleNamespace

import pytest
from bundle_files import save
from sync_stores import Counted

from vstate import CorruptObject, KVStore, Memory, StoreUnavailable, Versioned
from vstate.kv.base import OBJECT_PREFIX
from vstate.objects.canonical import encode
from vstate.repo import Repository, core, reflog_prefetch
from vstate.repo.names import refs

COMMITS = 1000
SECOND = 10**9


class Remote(Memory):
    """A store that counts its round trips, as a server would have them."""

    remote = ordered = True

    def __init__(self) -> None:
        super().__init__()
        self.trips = self.commits = self.listed = self.longest = 0

    def get(self, key: str) -> bytes | None:
        self.trips += 1
        return super().get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        keys, before = list(keys), self.trips
        found = super().get_many(keys)
        self.trips = before + bool(keys)  # Memory calls `get` for each key
        self.commits += sum(value[:1] in b"cC" for value in found.values())
        self.longest = max(self.longest, sum(map(len, found.values())))
        return found

    def keys(self, prefix: str = "") -> Iterator[str]:
        self.trips += 1
        for i, key in enumerate(sorted(super().keys(prefix)), 1):
            self.trips += i % 1000 == 0
            self.listed += 1
            yield key

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        found = [(key, Memory.get(self, key) or b"") for key in Memory.keys(self, prefix)]
        self.trips += 1 + len(found) // 64
        return iter(found)

    def during(self, call: Callable[[], object]) -> int:
        """The round trips of a call, whose `answer` is kept."""
        self.trips = self.commits = self.listed = self.longest = 0
        self.answer: object = call()
        return self.trips


class Clock:
    """The time of commits and of reflog lines, in nanoseconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_700_000_000 * SECOND
        clock = self

        class Moved(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> Moved:
                return cls.fromtimestamp(clock.now / SECOND, tz)

        monkeypatch.setattr(core, "datetime", Moved)
        monkeypatch.setattr(refs, "time", SimpleNamespace(time_ns=lambda: clock.now))


def history(store: KVStore, commits: int, branch: str = "main") -> list[str]:
    """Commit so often; the ids, newest first."""
    with Versioned(store, branch=branch) as state:
        for i in range(commits):
            save(state, f"{i}", i=(branch, i))
        return [commit.id for commit in state.log()]


def ids(state: Versioned) -> list[str]:
    return [commit.id for commit in state.log()]


def reflog(store: KVStore) -> list[str]:
    return sorted(store.keys("reflog/heads/main:"))


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Remote:
    """A long history at an even pace: how fast the machine is does not decide how many keys are listed."""
    store = Remote()
    with monkeypatch.context() as patch, Versioned(store) as state:
        clock = Clock(patch)
        for i in range(COMMITS):
            clock.now += SECOND // 1000
            save(state, f"{i}", i=("main", i))
    return store


WALKS: dict[str, tuple[Callable[[Versioned], object], int]] = {
    "log": (ids, 20),
    "HEAD~": (lambda state: state.checkout(f"HEAD~{COMMITS - 1}"), 20),
    "status": (lambda state: state.diff(f"HEAD~{COMMITS - 1}", "HEAD"), 20),
    "gc": (lambda state: state.repo.gc(), 60),
    "fsck": (lambda state: state.repo.fsck(), 60),
}


@pytest.mark.parametrize(("walk", "trips"), WALKS.values(), ids=WALKS)
@pytest.mark.slow
def test_a_thousand_commits_in_few_trips(
    store: Remote, walk: Callable[[Versioned], object], trips: int
) -> None:
    """Walks of a thousand commits read them ahead; gc and fsck read the trees of many commits together."""
    with Versioned(store) as state:
        assert store.during(lambda: walk(state)) <= trips


@pytest.mark.parametrize("branch", [None, "main", "new"])
@pytest.mark.slow
def test_a_state_is_open_after_two_trips(store: Remote, branch: str | None) -> None:
    """The format and the branch come at once, and then the commit."""
    assert store.during(lambda: Versioned(store, branch=branch)) <= 2


@pytest.mark.slow
def test_the_newest_commits_are_read_alone(store: Remote) -> None:
    """A look at a few commits reads these alone, and no reflog."""
    with Versioned(store) as state:
        assert store.during(lambda: list(state.log(limit=4))) <= 4
        assert store.commits <= 4
        assert not store.listed


def log_since(store: KVStore, since: str) -> list[str]:
    with Versioned(store) as state:
        return [commit.id for commit in state.log(since=since)]


@pytest.mark.parametrize(("new", "most_keys", "most_trips"), [(2, 3000, 9), (900, 3000, 9), (900, 300, 52)])
@pytest.mark.slow
def test_the_commits_since_a_commit_come_in_one_batch(
    store: Remote, new: int, most_keys: int, most_trips: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log since a commit lists the reflog since then, and reads the commits that it names at once."""
    monkeypatch.setattr(reflog_prefetch, "MOST_KEYS", most_keys)
    with Versioned(store) as state:
        expected, since = ids(state)[:new], ids(state)[new]
    assert store.during(lambda: log_since(store, since)) <= most_trips
    assert store.answer == expected
    assert store.commits <= new + 5


def test_the_commits_since_a_commit_that_no_reflog_names() -> None:
    """A history that was fetched has one line for all commits: looks into the reflog become rare."""
    here, there = Memory(), Remote()
    log = history(here, 200)
    Repository(here).push(there, create=True)
    assert there.during(lambda: log_since(there, log[150])) <= 202
    assert there.answer == log[:150]


def test_the_commits_since_the_head_of_another_branch_come_in_few_trips() -> None:
    """A log since a commit that is no ancestor ends at the commits that both have."""
    store = Remote()
    history(store, 100)
    with Versioned(store) as state:
        fork = state.fork("other")
        for i in range(50):
            save(fork, j=i)
            save(state, i=i)
        expected = ids(state)[:50]
    assert store.during(lambda: log_since(store, "other")) <= 32
    assert store.answer == expected


@pytest.mark.slow
def test_a_handle_that_is_far_behind_commits_in_few_round_trips() -> None:
    """The walk back to the base of a commit that lost a race is a walk like any other."""
    store = Remote()
    with Versioned(store) as stale:
        save(stale, mine=0)
        history(store, COMMITS)
        stale["mine"] = 1
        assert store.during(stale.commit) <= 40
        assert len(ids(stale)) == COMMITS + 3


@pytest.mark.slow
def test_a_merge_of_long_branches_takes_few_round_trips() -> None:
    """The merge base is found by the reflogs of both branches."""
    store = Remote()
    history(store, 3)
    with Versioned(store) as state:
        state.fork("other").close()
        for i in range(COMMITS // 2):
            save(state, i=i)
    history(store, COMMITS // 2, "other")
    with Versioned(store) as state:
        state.set_policy("", "ours")
        assert store.during(lambda: state.merge("other")) <= 50


COMPARED: dict[str, Callable[[Versioned], object]] = {
    "a key": lambda state: list(state.log(key="i")),
    "a key that is absent": lambda state: list(state.log(key="nope")),
    "changes": lambda state: [len(state.repo.changes(commit)) for commit in state.log()],
    "changes along first parents": lambda state: [
        len(state.repo.changes(commit)) for commit in state.log(first_parent=True)
    ],
}


@pytest.mark.parametrize("compare", COMPARED.values(), ids=COMPARED)
@pytest.mark.parametrize("keys", [1, 200])
@pytest.mark.slow
def test_commits_are_compared_in_few_round_trips(compare: Callable[[Versioned], object], keys: int) -> None:
    """A log that compares each commit with the one before reads the nodes of many trees at a time."""
    here, there = Memory(), Remote()
    with Versioned(here) as state:
        state.update({f"{i}": 0 for i in range(keys - 1)})
        for i in range(COMMITS):
            save(state, i=i)
        expected = compare(state)
    there.set_many(dict(here.items()))
    with Versioned(there) as state:
        assert there.during(lambda: compare(state)) <= 60
        assert there.answer == expected


def test_a_few_commits_are_compared_alone(store: Remote) -> None:
    """A look at the changes of three commits reads no more than theirs."""
    with Versioned(store) as state:
        newest = list(state.log(limit=3))
        assert store.during(lambda: [state.repo.changes(commit) for commit in newest[:1]]) <= 3
        assert store.during(lambda: list(state.log(key="i", limit=1))) <= 4


@pytest.mark.slow
def test_a_damaged_tree_fails_where_it_is_compared(store: Remote) -> None:
    """Commits before and behind a tree that cannot be read are compared as ever."""
    with Versioned(store) as state:
        log = list(state.log())
    lost = log[COMMITS // 2]
    assert lost.tree is not None
    store.delete(OBJECT_PREFIX + lost.tree)
    failed = []
    with Versioned(store) as state:
        for commit in state.log():
            try:
                assert list(state.repo.changes(commit)) == ["i"]
            except CorruptObject:
                failed.append(commit.id)
    assert failed == [log[COMMITS // 2 - 1].id, lost.id]


@pytest.mark.slow
def test_writers_that_raced_are_read_in_batches() -> None:
    """A commit that lost a race has no line in the reflog: it comes with its child's batch."""
    store = Remote()
    handles = [Versioned(store), Versioned(store)]
    for i in range(COMMITS // 4):
        for number, handle in enumerate(handles):
            handle[f"{number}"] = i
            handle.commit()
    with Versioned(store) as state:
        assert store.during(lambda: ids(state)) <= 40
        assert len(ids(state)) >= COMMITS // 2


@pytest.mark.slow
def test_long_commits_come_a_few_at_a_time() -> None:
    """A batch holds some megabytes at most."""
    store = Remote()
    with Versioned(store) as state:
        for i in range(200):
            state["i"] = i
            state.commit(Random(i).randbytes(50_000).hex())
    with Versioned(store) as state:
        assert store.during(lambda: ids(state)) <= 60
        assert store.longest < 8_000_000


# Hints


def _damaged(store: Remote, keys: list[str]) -> None:
    store.set_many(dict.fromkeys(keys, b"damaged"))


def _gone(store: Remote, keys: list[str]) -> None:
    store.delete_many(keys)


def _forged(store: Remote, keys: list[str]) -> None:
    """Lines with a true checksum that name objects which are no commits, or are not there."""
    blobs = [bytes.fromhex(key.removeprefix(OBJECT_PREFIX)) for key in store.keys(OBJECT_PREFIX)]
    store.delete_many(keys)
    for i, key in enumerate(keys):
        value = encode([blobs[i % len(blobs)], bytes(31) + bytes([i % 256]), "commit"])
        key = key[:-8]
        store.set(key + refs.line_check(key, value), value)


def _shuffled(store: Remote, keys: list[str]) -> None:
    values = [store.get(key) or b"" for key in keys]
    Random(1).shuffle(values)
    store.set_many(dict(zip(keys, values, strict=True)))


@pytest.mark.parametrize("spoil", [_damaged, _gone, _forged, _shuffled])
@pytest.mark.slow
def test_reflogs_are_hints_only(store: Remote, spoil: Callable[[Remote, list[str]], None]) -> None:
    """Lines that are damaged, gone, forged or in another order change no walk, and cost little."""
    with Versioned(store) as state:
        expected = ids(state)
    spoil(store, reflog(store))
    with Versioned(store) as state:
        assert store.during(lambda: ids(state)) <= COMMITS + 60
        assert store.answer == expected


@pytest.mark.slow
def test_a_walk_that_was_interrupted_goes_on() -> None:
    """A store that fails at any call of a walk ends that walk alone."""
    store = Memory()
    expected = history(store, 150)
    calls = Counted(store)
    with Versioned(calls) as state:
        before = len(calls.calls)
        ids(state)
        after = len(calls.calls)
    assert after - before <= 40
    for fail_at in range(before + 1, after + 1):
        faulty = Counted(store)
        faulty.fail_at = fail_at
        with Versioned(faulty) as state:
            with pytest.raises(StoreUnavailable):
                ids(state)
            assert ids(state) == expected


@pytest.mark.slow
def test_a_missing_commit_is_named(store: Remote) -> None:
    """A commit that is lost ends the walk where it was, with its id, although it was to be read ahead."""
    with Versioned(store) as state:
        log = list(state.log())
    lost = log[COMMITS // 2]
    store.delete(OBJECT_PREFIX + lost.id)
    with Versioned(store) as state:
        walk = state.log()
        assert [next(walk) for _ in range(COMMITS // 2)] == log[: COMMITS // 2]
        with pytest.raises(CorruptObject, match=lost.id):
            list(walk)


# The pace of commits


PACES: dict[str, Callable[[int], float]] = {
    "a day": lambda i: 86_400,
    "a millisecond": lambda i: 0.001,
    "in bursts": lambda i: 0.1 if i % 10 else 3_600,
    "quick at first": lambda i: 86_400 if i > 950 else 0.001,
    "slow at first": lambda i: 0.001 if i > 950 else 86_400,
    "a night between": lambda i: 1 if i % 300 else 50_000,
}


@pytest.mark.parametrize("pause", PACES.values(), ids=PACES)
@pytest.mark.slow
def test_at_any_pace(pause: Callable[[int], float], monkeypatch: pytest.MonkeyPatch) -> None:
    """A long reflog is listed near the commits of the walk only, for any time between commits."""
    monkeypatch.setattr(reflog_prefetch, "MOST_KEYS", 300)
    clock, store = Clock(monkeypatch), Remote()
    with Versioned(store) as state:
        for i in range(COMMITS):
            clock.now += int(pause(i) * SECOND)
            save(state, i=i)
    with Versioned(store) as state:
        assert store.during(lambda: ids(state)) <= 150
        assert store.listed < 10 * COMMITS
