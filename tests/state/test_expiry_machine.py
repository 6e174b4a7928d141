"""Expiring keys against a model: every handle shows the values of a dict with a clock."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
from clock import Time, standing_still
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from soak import SOAK

from vstate import KeyNotFound, KVStore, Memory, Versioned, open_store
from vstate.kv import Prefixed

KEYS = st.sampled_from(["a", "ns/b"])
VALUES = st.integers(0, 1) | st.lists(st.integers(0, 1), max_size=1)
TIMES = st.integers(2, 6)
PASSING = st.sampled_from([0, 1, 3])
SERVER_EXAMPLES = 60 if SOAK else 3


class Failed(Exception):
    pass


class LosesAnswers(Memory):
    """A Memory that commits, and is interrupted before its answer if `interrupts` is set."""

    interrupts = False

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        done = super().transact(writes, expected)
        if self.interrupts and "r/heads/main" in writes:
            self.interrupts = False
            raise KeyboardInterrupt
        return done


@dataclass
class Kept:
    """A key of the model: its value, and when it expires."""

    value: Any
    at: float | None = None
    asked: bool = False  # for that expiry, since the last commit
    set_: bool = False  # since the last commit

    def copy(self) -> Kept:
        return Kept(copy.deepcopy(self.value), self.at)


class ExpiryMachine(RuleBasedStateMachine):
    """`now` holds the values of the mapping, `committed` those of the newest commit, with expired keys."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = standing_still()
        self.time: Time = self.clock.__enter__()
        self.store = self.make_store()
        self.state = Versioned(self.store)
        self.now: dict[str, Kept] = {}
        self.committed: dict[str, Kept] = {}
        self.history: list[tuple[str, dict[str, Kept]]] = []

    def make_store(self) -> KVStore:
        return LosesAnswers()

    def teardown(self) -> None:
        self.clock.__exit__(None, None, None)

    def is_there(self, kept: Kept | None) -> bool:
        return kept is not None and (kept.at is None or kept.at > self.time.seconds)

    def shown(self, keys: dict[str, Kept]) -> dict[str, Any]:
        return {key: kept.value for key, kept in keys.items() if self.is_there(kept)}

    @initialize()
    def begin(self) -> None:
        self.state["a"], self.state["ns/b"] = [1], 1
        self.now = {"a": Kept([1], set_=True), "ns/b": Kept(1, set_=True)}

    @rule(key=KEYS, value=VALUES, seconds=PASSING, commit=st.booleans())
    def set(self, key: str, value: Any, seconds: int, commit: bool) -> None:
        self.time.pass_(seconds)
        before = self.now.get(key)
        # A list of its own: the model must not see the edits of the state.
        self.state[key] = copy.deepcopy(value)
        asked = before is not None and self.is_there(before) and before.asked and before.at is None
        self.now[key] = Kept(value, None, asked, set_=True)
        if commit:
            self.commit(seconds)

    @rule(key=KEYS, number=st.integers(0, 2), seconds=PASSING)
    def edit(self, key: str, number: int, seconds: int) -> None:
        self.time.pass_(seconds)
        kept = self.now.get(key)
        if kept is not None and self.is_there(kept) and isinstance(kept.value, list):
            self.state[key].append(number)
            kept.value.append(number)

    @rule(key=KEYS)
    def read(self, key: str) -> None:
        kept = self.now.get(key)
        if self.is_there(kept):
            assert self.state[key] == kept.value  # type: ignore[union-attr]
            assert key in self.state
        else:
            assert key not in self.state
            assert self.state.get(key) is None

    @rule()
    def read_all(self) -> None:
        assert dict(self.state) == self.shown(self.now)

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        if self.is_there(self.now.get(key)):
            del self.state[key]
            del self.now[key]
        else:
            with pytest.raises(KeyNotFound):
                del self.state[key]

    @rule(key=KEYS, ttl=st.none() | TIMES | TIMES, commit=st.booleans())
    def expire(self, key: str, ttl: int | None, commit: bool) -> None:
        kept = self.now.get(key)
        if not self.is_there(kept):
            with pytest.raises(KeyNotFound):
                self.state.expire(key, ttl)
            return
        assert kept is not None
        self.state.expire(key, ttl)
        kept.at = None if ttl is None else self.time.seconds + ttl
        kept.asked = True
        if commit:
            self.commit(0)

    @rule(seconds=PASSING, interrupted=st.booleans())
    def commit(self, seconds: int, interrupted: bool = False) -> None:
        self.time.pass_(seconds)
        after = {}
        for key, kept in self.now.items():
            if not self.is_there(kept):
                continue
            after[key] = kept
        for key, before in self.committed.items():
            # Expired keys stay, unless they were changed.
            kept = self.now.get(key)
            if key not in after and kept is not None and not (kept.asked or kept.set_):
                after[key] = before
        if isinstance(self.store, LosesAnswers):
            self.store.interrupts = interrupted
            with suppress(KeyboardInterrupt):
                self.state.commit()
            self.store.interrupts = False
        else:
            self.state.commit()
        self.committed = {key: kept.copy() for key, kept in after.items()}
        self.now = {key: kept.copy() for key, kept in after.items()}

    @rule()
    def purge(self) -> None:
        expired = {key for key, kept in self.committed.items() if not self.is_there(kept)}
        made = self.state.purge()
        assert (made is not None) == bool(expired)
        for key in expired:
            del self.committed[key]
            if not self.is_there(self.now.get(key)):
                self.now.pop(key, None)

    @rule(key=KEYS, value=VALUES, ttl=st.none() | TIMES, update=st.booleans())
    def failed_transaction(self, key: str, value: Any, ttl: int | None, update: bool) -> None:
        def change(state: Versioned) -> None:
            state[key] = value
            if ttl is not None:
                state.expire(key, ttl)
                for other in list(state):
                    state.expire(other, None)
            raise Failed

        with pytest.raises(Failed):
            if update and not self.state.has_uncommitted:
                self.state.apply(change)
            else:
                with self.state.transaction():
                    change(self.state)

    @rule(key=KEYS, seconds=PASSING)
    def set_to_what_it_is(self, key: str, seconds: int) -> None:
        if self.is_there(self.now.get(key)):
            self.set(key, self.now[key].value, seconds, commit=False)

    @rule()
    def discard(self) -> None:
        self.state.discard()
        self.now = {key: kept.copy() for key, kept in self.committed.items()}

    @rule()
    def reopen(self) -> None:
        self.commit(0)
        self.state = Versioned(self.store)

    @invariant()
    def shows_what_the_model_does(self) -> None:
        expected = self.shown(self.now)
        assert list(self.state) == sorted(expected)
        assert len(self.state) == len(expected)
        assert len(self.state.keys("ns/")) == sum(key.startswith("ns/") for key in expected)
        other = Versioned(self.store)
        committed = self.shown(self.committed)
        assert len(other) == len(committed)
        assert dict(other) == committed
        for key in committed:
            at = self.committed[key].at
            expires = other.expires(key)
            assert (None if expires is None else (expires - self.time.now).total_seconds()) == (
                None if at is None else at - self.time.seconds
            )
        if other.head is not None:
            snapshot = dict(other.checkout("HEAD"))
            assert {key: snapshot[key] for key in committed} == committed


TestExpiry = pytest.mark.slow(ExpiryMachine.TestCase)
TestExpiry.settings = settings(max_examples=600 if SOAK else 25, stateful_step_count=40)


def test_on_servers(server_url: str) -> None:
    """Redis, PostgreSQL and S3 agree with the model too."""
    with open_store(server_url) as store:
        numbers = count()

        class OnServer(ExpiryMachine):
            def make_store(self) -> KVStore:
                return Prefixed(store, f"run-{next(numbers)}")

        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            OnServer, settings=settings(max_examples=SERVER_EXAMPLES, stateful_step_count=20)
        )
