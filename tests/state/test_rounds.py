"""Rounds of requests to a store that takes one request a key, some at a time, as S3 does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from datetime import UTC, datetime, tzinfo
from math import ceil
from threading import Lock
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from vstate import Memory, Versioned
from vstate.kv.s3.bucket import AT_ONCE
from vstate.repo import Repository, core
from vstate.repo.graph import GRAPH
from vstate.repo.names import refs

if TYPE_CHECKING:
    from seaweed_server import S3Place

KEYS, CHANGED, COMMITS = 3_000, 300, 1_000


class Rounds(Memory):
    """A store that counts its rounds: so many requests at a time, one after the other."""

    remote = ordered = True
    transactional = False

    def __init__(self) -> None:
        super().__init__()
        self.rounds = 0

    def get(self, key: str) -> bytes | None:
        self.rounds += 1
        return super().get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        keys = list(keys)
        after = self.rounds + ceil(len(keys) / AT_ONCE)
        found = super().get_many(keys)
        self.rounds = after  # whether or not Memory calls `get` for each key
        return found

    def present(self, keys: Iterable[str]) -> Set[str]:
        keys = list(keys)
        after = self.rounds + ceil(len(keys) / AT_ONCE)
        found = super().present(keys)
        self.rounds = after
        return found

    def keys(self, prefix: str = "") -> Iterator[str]:
        found = sorted(super().keys(prefix))
        self.rounds += 1 + len(found) // 1000
        return iter(found)

    def during(self, call: Callable[[], object]) -> int:
        self.rounds = 0
        call()
        return self.rounds


def _value(i: int) -> dict[str, object]:
    return {"id": i, "text": f"{i} " * 40}


@pytest.fixture(scope="module")
def store() -> Rounds:
    """3,000 keys; of these, two branches change 300 each."""
    store = Rounds()
    with Versioned(store) as state:
        state.update({f"{i:05}": _value(i) for i in range(KEYS)})
        state.commit()
        with state.fork("side") as side:
            side.update({f"{10 * i + 3:05}": _value(-i) for i in range(CHANGED)})
            side.commit()
        state.update({f"{10 * i:05}": _value(-i) for i in range(CHANGED)})
        state.commit()
    return store


READS: dict[str, tuple[Callable[[Versioned], object], int]] = {
    "all keys": (dict, 120),
    "all keys of a snapshot": (lambda state: dict(state.checkout("HEAD~1")), 120),
    "changed keys": (lambda state: list(state.diff("HEAD~1", "HEAD")), 10),
    "changed values": (lambda state: [(c.old, c.new) for c in state.diff("HEAD~1", "HEAD").values()], 45),
    "changed keys of a snapshot": (
        lambda state: state.checkout("HEAD~1").get_many([f"{10 * i:05}" for i in range(CHANGED)]),
        22,
    ),
    "merge": (lambda state: state.merge("side"), 25),
}


@pytest.mark.parametrize("name", READS)
@pytest.mark.slow
def test_many_keys_are_read_many_at_a_time(store: Rounds, name: str) -> None:
    """Rounds are as many as the requests divided by those that go at a time, and a few more."""
    read, most = READS[name]
    with Versioned(store) as state:
        assert store.during(lambda: read(state)) <= most


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands still, so the ids of commits are the same in each run."""

    class Still(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Still:
            return cls(2026, 1, 1, tzinfo=tz)

    nanoseconds = int(Still.now(UTC).timestamp()) * 10**9
    monkeypatch.setattr(core, "datetime", Still)
    monkeypatch.setattr(refs, "time", SimpleNamespace(time_ns=lambda: nanoseconds))


def _log(store: Rounds) -> int:
    with Versioned(store) as state:
        found: list[object] = []
        rounds = store.during(lambda: found.extend(state.log()))
        assert len(found) == COMMITS
        return rounds


@pytest.mark.parametrize("branch", ["main", "two"])
@pytest.mark.slow
def test_a_log_is_read_many_commits_at_a_time(branch: str, still: None, commit_graph: None) -> None:
    """Where a request has one key, segments end at one commit in 16, and hold most of a log.

    A thousand commits without segments are a thousand requests, and as many for the lines that name them.
    """
    store = Rounds()
    with Versioned(store) as state:
        for i in range(COMMITS):
            state["i"] = branch, i
            state.commit()
    assert _log(store) <= 20
    rows = list(store.items(GRAPH))
    assert sum(len(row) for _, row in rows) < 400 * COMMITS
    store.delete_many(key for key, _ in rows)
    assert _log(store) <= 80
    # gc writes those that are of use to the walks from branches.
    Repository(store).gc(keep_reflog="9999d")
    assert _log(store) <= 20
    assert len(list(store.keys(GRAPH))) < len(rows) / 2


@pytest.mark.slow
def test_a_log_of_writers_that_raced_is_read_many_commits_at_a_time(still: None, commit_graph: None) -> None:
    """A merge may end a segment, although the commit below it is not stored before the merge."""
    store = Rounds()
    handles = [Versioned(store), Versioned(store)]
    for i in range(COMMITS // 8):
        for number, handle in enumerate(handles):
            handle[f"{number}"] = 0, i  # with 0, such commits end segments
            handle.commit()
    with Versioned(store) as state:
        assert store.during(lambda: list(state.log())) <= 30


def test_s3_sends_so_many_requests_at_a_time(s3_place: S3Place) -> None:
    """On a real S3 all keys take one request each, and no more than `AT_ONCE` are under way."""
    with s3_place.open() as store:
        with Versioned(store) as state:
            state.update({f"{i:03}": _value(i) for i in range(300)})
            state.commit()
        under_way, most, requests, lock = 0, 0, 0, Lock()
        read = store._bucket.read

        def counted(name: str) -> Any:
            nonlocal under_way, most, requests
            with lock:
                under_way, requests = under_way + 1, requests + 1
                most = max(most, under_way)
            try:
                return read(name)
            finally:
                with lock:
                    under_way -= 1

        store._bucket.read = counted  # type: ignore[method-assign]  # each request goes through it
        with Versioned(store) as state:
            assert dict(state) == {f"{i:03}": _value(i) for i in range(300)}
        assert 1 < most <= AT_ONCE
        assert requests <= 400
