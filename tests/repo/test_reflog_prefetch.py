"""Walks of a long history take few round trips, by the reflogs: hints, on which nothing relies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random

import pytest
import time_machine
from bundle_files import save, store_of
from sync_stores import Counted

from vstate import CorruptObject, KVStore, Memory, StoreUnavailable, Versioned
from vstate.kv.base import OBJECT_PREFIX
from vstate.objects.canonical import encode
from vstate.repo import reflog_prefetch
from vstate.repo.names import refs

pytestmark = pytest.mark.slow

COMMITS = 400


class Remote(Counted):
    """A store like a server, whose calls are round trips."""

    ordered = True

    def __init__(self, store: KVStore) -> None:
        super().__init__(store)
        self.longest = 0

    def keys(self, prefix: str = "") -> Iterator[str]:
        return iter(sorted(super().keys(prefix)))

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        found = super().get_many(keys)
        self.longest = max(self.longest, sum(map(len, found.values())))
        return found


def history(store: KVStore, commits: int, pause: Callable[[int], float] = lambda i: 0.001) -> list[str]:
    """Commit so often, at an even pace, on which the number of round trips depends; the ids, newest first."""
    with time_machine.travel(1_700_000_000, tick=False) as time, Versioned(store) as state:
        for i in range(commits):
            time.shift(pause(i))
            save(state, f"{i}", i=i)
        return ids(state)


def ids(state: Versioned) -> list[str]:
    return [commit.id for commit in state.log()]


def reflog(store: KVStore) -> list[str]:
    return sorted(store.keys("reflog/heads/main:"))


@pytest.fixture(scope="module")
def rows() -> Mapping[str, bytes]:
    store = Memory()
    history(store, COMMITS)
    return dict(store.items())


WALKS: dict[str, tuple[Callable[[Versioned], object], int]] = {
    "the newest": (lambda state: list(state.log(limit=4)), 4),
    "log": (ids, 20),
    "log since": (lambda state: list(state.log(since=f"HEAD~{COMMITS - 100}")), 30),
    "HEAD~": (lambda state: state.repo.resolve(f"HEAD~{COMMITS - 1}"), 20),
    "diff": (lambda state: state.diff(f"HEAD~{COMMITS - 1}", "HEAD").modified, 20),
    "log of a key": (lambda state: list(state.log(key="i")), 60),
    "log of a key that is absent": (lambda state: list(state.log(key="nope")), 60),
    "changes": (lambda state: [list(state.repo.changes(commit)) for commit in state.log()], 60),
    "first parents": (
        lambda state: [list(state.repo.changes(commit)) for commit in state.log(first_parent=True)],
        60,
    ),
    "gc": (lambda state: state.repo.gc().live, 60),
    "fsck": (lambda state: state.repo.fsck().objects, 60),
}


@pytest.mark.parametrize(("walk", "trips"), WALKS.values(), ids=WALKS)
def test_many_commits_in_few_trips(
    rows: Mapping[str, bytes], walk: Callable[[Versioned], object], trips: int
) -> None:
    """A walk that reads commits and trees ahead has the same result as one over a store in memory."""
    store = Remote(store_of(rows))
    with Versioned(store) as state, Versioned(store_of(rows)) as plain:
        store.calls.clear()
        found = walk(state)
        assert len(store.calls) <= trips
        assert found == walk(plain)


@pytest.mark.parametrize("branch", [None, "main", "new"])
def test_a_state_is_open_after_two_trips(rows: Mapping[str, bytes], branch: str | None) -> None:
    """The format and the branch come at once, and then the commit."""
    store = Remote(store_of(rows))
    Versioned(store, branch=branch)
    assert len(store.calls) <= 2


@pytest.mark.parametrize(
    "pause",
    [
        lambda i: 86_400,
        lambda i: 0.1 if i % 10 else 3_600,
        lambda i: 86_400 if i > COMMITS - 50 else 0.001,
        lambda i: 0.001 if i > COMMITS - 50 else 86_400,
    ],
    ids=["a day", "in bursts", "quick at first", "slow at first"],
)
def test_at_any_pace(pause: Callable[[int], float], monkeypatch: pytest.MonkeyPatch) -> None:
    """A long reflog is listed by stretches of time, whatever the time between commits."""
    monkeypatch.setattr(reflog_prefetch, "MOST_KEYS", 200)
    there = Remote(Memory())
    expected = history(there, COMMITS, pause)
    there.calls.clear()
    with Versioned(there) as state:
        assert ids(state) == expected
        assert len(there.calls) <= 150


def test_writers_that_raced_are_read_in_batches() -> None:
    """A commit that lost a race has no line in the reflog: it comes with its child's batch."""
    store = Memory()
    handles = [Versioned(store), Versioned(store)]
    for i in range(COMMITS // 4):
        for number, handle in enumerate(handles):
            handle[f"{number}"] = i
            handle.commit()
    there = Remote(store)
    with Versioned(there) as state:
        assert len(ids(state)) >= COMMITS // 2
        assert len(there.calls) <= 40


def test_changes_on_two_lines_are_read_in_batches() -> None:
    """A log that goes to and fro between two branches reads the trees of both ahead."""
    store = Memory()
    with time_machine.travel(1_700_000_000, tick=False) as time, Versioned(store) as state:
        save(state, "first", i=-1)
        with state.fork("side") as side:
            for i in range(100):
                time.shift(1)
                save(state, f"{i}", i=i)
                time.shift(1)
                save(side, f"{i}", j=i)
        state.merge("side")
    there = Remote(store)
    with Versioned(there) as state:
        commits = list(state.log())
        there.calls.clear()
        assert len([list(state.repo.changes(commit)) for commit in commits]) == 202
    assert len(there.calls) <= 80


def test_long_commits_come_a_few_at_a_time() -> None:
    """A batch holds some megabytes at most."""
    store = Remote(Memory())
    with Versioned(store) as state:
        for i in range(200):
            save(state, Random(i).randbytes(50_000).hex(), i=i)
    store.calls.clear()
    with Versioned(store) as state:
        assert len(ids(state)) == 200
    assert len(store.calls) <= 60
    assert store.longest < 8_000_000


# Damage


def _damaged(store: Memory, keys: list[str]) -> None:
    store.set_many(dict.fromkeys(keys, b"damaged"))


def _gone(store: Memory, keys: list[str]) -> None:
    store.delete_many(keys)


def _forged(store: Memory, keys: list[str]) -> None:
    """Lines with a true checksum that name objects which are no commits, or are not there."""
    blobs = [bytes.fromhex(key.removeprefix(OBJECT_PREFIX)) for key in store.keys(OBJECT_PREFIX)]
    store.delete_many(keys)
    for i, key in enumerate(keys):
        value = encode([blobs[i % len(blobs)], bytes(31) + bytes([i % 256]), "commit"])
        key = key[:-8]
        store.set(key + refs.line_check(key, value), value)


def _shuffled(store: Memory, keys: list[str]) -> None:
    values = [store.get(key) or b"" for key in keys]
    Random(1).shuffle(values)
    store.set_many(dict(zip(keys, values, strict=True)))


@pytest.mark.parametrize("spoil", [_damaged, _gone, _forged, _shuffled])
def test_reflogs_are_hints_only(
    rows: Mapping[str, bytes], spoil: Callable[[Memory, list[str]], None]
) -> None:
    """Lines that are damaged, gone, forged or in another order change no walk, and cost little."""
    expected = ids(Versioned(store_of(rows)))
    store = store_of(rows)
    spoil(store, reflog(store))
    there = Remote(store)
    with Versioned(there) as state:
        assert ids(state) == expected
        assert len(there.calls) <= COMMITS + 60


def test_a_walk_that_was_interrupted_goes_on() -> None:
    """A store that fails at any call of a walk ends that walk alone."""
    store = Memory()
    expected = history(store, 150)
    calls = Counted(store)
    with Versioned(calls) as state:
        before = len(calls.calls)
        ids(state)
    for fail_at in range(before + 1, len(calls.calls) + 1):
        faulty = Counted(store)
        faulty.fail_at = fail_at
        with Versioned(faulty) as state:
            with pytest.raises(StoreUnavailable):
                ids(state)
            assert ids(state) == expected


def test_a_lost_object_fails_where_it_is_needed(rows: Mapping[str, bytes]) -> None:
    """A lost commit ends the walk where it was. Commits beside a lost tree are compared as ever."""
    store = Remote(store_of(rows))
    log = list(Versioned(store).log())
    lost, failed = log[COMMITS // 2], []
    store.delete(f"{OBJECT_PREFIX}{lost.tree}")
    with Versioned(store) as state:
        for commit in state.log():
            try:
                assert list(state.repo.changes(commit)) == ["i"]
            except CorruptObject:
                failed.append(commit.id)
    assert failed == [log[COMMITS // 2 - 1].id, lost.id]
    store.delete(OBJECT_PREFIX + lost.id)
    walk = Versioned(store).log()
    assert [next(walk) for _ in range(COMMITS // 2)] == log[: COMMITS // 2]
    with pytest.raises(CorruptObject, match=lost.id):
        list(walk)
