"""Rounds of requests to a store that takes one request a key, some at a time, as S3 does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from datetime import UTC, datetime, tzinfo
from math import ceil
from types import SimpleNamespace

import pytest

from vstate import Memory, Versioned
from vstate.kv.s3.bucket import AT_ONCE
from vstate.repo import Repository, core
from vstate.repo.names import refs

COMMITS = 1_000


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


@pytest.mark.slow
def test_a_log_is_read_many_commits_at_a_time(still: None) -> None:
    """The lines of the reflog name many commits, which are read at once; also after gc."""
    store = Rounds()
    with Versioned(store) as state:
        for i in range(COMMITS):
            state["i"] = i
            state.commit()
    assert _log(store) <= 80
    Repository(store).gc(keep_reflog="9999d")
    assert _log(store) <= 80
