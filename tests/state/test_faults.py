"""Failures of the store: if any call fails, the mapping stays as it was and a retry succeeds."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from soak import sized
from state_operations import OPERATIONS, Operation, Stores, Undisturbed, edits, picture, stored, undisturbed

from vstate import KVStore, Memory, Versioned
from vstate.errors import (
    CorruptStore,
    InvalidInput,
    StoreUnavailable,
    UncommittedChanges,
    VStateError,
)
from vstate.kv.wrapper import StoreWrapper
from vstate.state.committing import OnRace
from vstate.testing import Faulty


def check_after_failure(
    operation: Operation, state: Versioned, seen: Undisturbed, error: VStateError
) -> None:
    """Nothing happened, or the error said that the outcome is unknown. A repeated call takes effect once.

    A call of several writes may have made the first ones. The repeated call makes the others.
    """
    unknown = isinstance(error, StoreUnavailable) and error.outcome_unknown
    there = stored(state.store, state.branch)
    if there != seen.stored[0] and there == seen.stored[-1]:
        assert unknown or len(seen.stored) > 2, "the branch moved, and the error does not say so"
    now = picture(state)
    assert now in (seen.before, seen.after)
    if operation.repeats or now != seen.after:
        operation.run(state)
    state.commit("rest")
    state.refresh()
    assert picture(state) == stored(state.store, state.branch) == seen.final
    assert edits(state) == seen.edits
    assert state.repo.fsck().ok


AWAY = sized((0, 2), (0, 1, 2, 5))
"""For how many more calls the store stays away."""


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_store_that_fails_at_each_call(name: str, after: bool, tmp_path: Path) -> None:
    """If any call fails, for however long the store is away, the handle goes on, and nothing happens
    twice.
    """
    operation, stores = OPERATIONS[name], Stores("Memory", tmp_path)
    undisturbed(operation, stores)
    seen = undisturbed(operation, stores)
    for away in AWAY:
        for fail_at in itertools.count(1):
            with stores.new() as store:
                faulty = Faulty(store, after=after, away=away)
                state = Versioned(faulty)
                operation.prepare(state)
                faulty.calls.clear()
                faulty.fail_at = fail_at
                try:
                    operation.run(state)
                    raised = None
                except StoreUnavailable as error:
                    raised = error
                failed = len(faulty.calls) >= fail_at
                faulty.fail_at = None
                try:
                    if raised is not None:
                        check_after_failure(operation, state, seen, raised)
                    else:
                        assert picture(state) in (seen.before, seen.after)
                except BaseException as failure:
                    failure.add_note(
                        f"call {fail_at} {'after' if after else 'before'}, away {away}: {faulty.calls}"
                    )
                    raise
            if not failed:
                break


@pytest.mark.parametrize("away", [0, 1, 3])
def test_a_lost_answer_counts_once(away: int) -> None:
    """A commit whose answer is lost, made again: one increment, one item, one event."""
    faulty = Faulty(Memory(), after=True, away=away)
    state = Versioned(faulty)
    state.set_policy("n", "counter")
    state["n"], state["log"] = 0, []
    state.commit()
    state["n"] += 1
    state["log"].append("once")
    state.record("once")
    faulty.calls.clear()
    faulty.fail_at = 1  # the first call of a commit is its transaction
    if away:
        with pytest.raises(StoreUnavailable, match=r"state\.head") as raised:
            state.commit("one")
        assert raised.value.outcome_unknown
    else:
        assert state.commit("one") is not None  # the look that follows found it
    assert faulty.calls[0] == "transact"
    faulty.fail_at = None
    state.commit("one, again")
    fresh = Versioned(faulty.store)
    assert (fresh["n"], fresh["log"]) == (1, ["once"])
    assert [event.kind for commit in fresh.log() for event in commit.events] == ["once"]


@pytest.mark.parametrize("on_race", ["merge", "raise"])
def test_a_write_that_lands_after_the_look(on_race: OnRace) -> None:
    """A server commits after the handle has looked and found nothing. The repeated commit counts once."""
    memory = Memory()
    state = Versioned(Late(memory))
    late = state.store
    assert isinstance(late, Late)
    state.set_policy("n", "counter")
    state["n"] = 0
    state.commit()
    state["n"] += 1
    state.record("once")
    late.holds = 1
    with pytest.raises(StoreUnavailable):
        state.commit("one")
    assert state.head is not None
    assert state.head.message == ""  # looked for, and not found
    late.carry_out()
    state["other"] = 1
    state.commit("again", on_race=on_race)
    fresh = Versioned(memory)
    assert dict(fresh) == {"n": 1, "other": 1}
    assert [event.kind for commit in fresh.log() for event in commit.events] == ["once"]
    assert all(len(commit.parent_ids) < 2 for commit in fresh.log())


@pytest.mark.parametrize("undo", [lambda state: state["list"].pop(), lambda state: state.update(list=[0])])
def test_an_edit_that_is_taken_back_before_its_commit_lands_late(undo: Callable[[Versioned], object]) -> None:
    """The value in hand is the newer one, though it is as it was before both."""
    late = Late(Memory())
    state = Versioned(late)
    state["list"], state["n"] = [0], 0
    state.commit()
    state["list"].append(1)
    late.holds = 1
    with pytest.raises(StoreUnavailable):
        state.commit()
    assert state.has_uncommitted  # looked for, and not found
    undo(state)
    state.expire("list", None)
    assert state.commit() is None
    state["n"] = 1
    late.carry_out()
    state.commit()
    assert dict(Versioned(late.store)) == dict(state) == {"list": [0], "n": 1}


def test_an_update_over_a_commit_that_landed_late_under_an_edit() -> None:
    """It is refused, for its undoing would drop the edit."""
    late = Late(Memory())
    state = Versioned(late)
    state["list"] = [0]
    state.commit()
    state["list"].append(1)
    late.holds = 1
    with pytest.raises(StoreUnavailable):
        state.commit()
    assert state.has_uncommitted  # looked for, and not found
    state["list"].pop()
    assert not state.has_uncommitted
    late.carry_out()
    with pytest.raises(UncommittedChanges):
        state.apply(lambda now: now["list"].append("never"))
    state.commit()
    assert dict(Versioned(late.store)) == dict(state) == {"list": [0]}


def test_a_merged_commit_that_lands_late_after_a_refresh() -> None:
    """It is ours, and counts once: the refresh went to the commit that it was merged with."""
    late = Late(Memory())
    state = Versioned(late)
    state.set_policy("n", "counter")
    state["n"] = 0
    state.commit()
    other = Versioned(late.store)
    other["theirs"] = 1
    other.commit()
    state["n"] += 1
    state.record("once")
    late.holds = 2  # the first one finds that the race is lost
    with pytest.raises(StoreUnavailable):
        state.commit()
    state.refresh()
    late.carry_out()
    state.commit()
    fresh = Versioned(late.store)
    assert dict(fresh) == dict(state) == {"n": 1, "theirs": 1}
    assert events_of(fresh) == ["once"]


def events_of(state: Versioned) -> list[str]:
    """The kinds of the events that commits hold, oldest first."""
    return [event.kind for commit in state.log() for event in commit.events][::-1]


def failing_transaction(state: Versioned, inside: Callable[[Versioned], object]) -> None:
    """Change values in a transaction that is undone."""
    with pytest.raises(ZeroDivisionError), state.transaction():
        state["a"] = "never"
        state["list"].append("never")
        inside(state)
        raise ZeroDivisionError


def test_a_commit_that_lands_late_inside_a_failed_transaction() -> None:
    """A change that was staged before the transaction, and not in the late commit, is staged again."""
    late = Late(Memory())
    state = Versioned(late)
    state["list"], state["b"] = [0], 0
    state.commit()
    state["a"] = 1
    late.holds = 1
    with pytest.raises(StoreUnavailable):
        state.commit()
    state["a"] = 2
    state["list"].append(1)

    def commit_another_key(state: Versioned) -> None:
        late.carry_out()
        state["b"] = 1
        state.commit(keys=["b"])

    failing_transaction(state, commit_another_key)
    assert dict(state) == {"a": 2, "b": 1, "list": [0, 1]}
    state.commit()
    assert dict(Versioned(late.store)) == dict(state)


def test_a_commit_over_an_undone_update_that_landed_late() -> None:
    """The update is somebody else's commit. The one that was merged with it, and gave no answer, is ours."""
    late = Late(Memory())
    state = Versioned(late)
    state["n"] = 0
    state.commit()
    late.holds = 1
    with pytest.raises(StoreUnavailable):
        state.apply(lambda now: now.update(n=1))
    late.carry_out()
    state["mine"] = 1
    state.record("once")
    late.holds = 2  # the first one finds that the race is lost
    with pytest.raises(StoreUnavailable):
        state.commit()
    assert state.has_uncommitted  # looked for, and not found
    late.carry_out()
    state["more"] = 1
    state.commit()
    fresh = Versioned(late.store)
    assert dict(fresh) == {"n": 1, "mine": 1, "more": 1}
    assert events_of(fresh) == ["once"]


class Late(Faulty):
    """A store that reports the outcome of the next transaction, or of the one after it, as unknown, and
    carries it out later.
    """

    holds = 0

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        if self.holds != 1:
            self.holds = max(self.holds - 1, 0)
            return super().transact(writes, expected)
        self.holds = 0
        self.carry_out = lambda: self.store.transact(writes, expected)
        raise StoreUnavailable("no answer", outcome_unknown=True)


def test_a_transaction_that_cannot_be_undone_yet_is_not_used() -> None:
    """A commit inside it fails, and the store stays away: nothing is read from its half or written to it."""
    faulty = Faulty(Memory(), after=True)
    state = Versioned(faulty)
    state["n"] = 0
    state.commit()
    faulty.calls.clear()
    with pytest.raises(StoreUnavailable), state.transaction():
        state["list"] = [1]
        faulty.fail_at, faulty.away = 1, 100
        state.commit("inside")
    with pytest.raises(StoreUnavailable):
        state["list"]
    with pytest.raises(StoreUnavailable):
        state["n"] = 1
    faulty.fail_at = None
    state["n"] = 2
    assert dict(state) == {"n": 2, "list": [1]}  # the commit inside had landed


def test_what_cannot_be_a_store(tmp_path: Path) -> None:
    """A file, a foreign database and a directory without access are refused with advice."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidInput, match="a file is in its way"):
        Versioned(tmp_path / "file")
    Versioned(tmp_path / "store")
    with pytest.raises(InvalidInput, match=r"is the file of a store; give its directory, .*store$"):
        Versioned(tmp_path / "store" / "vstate.db")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "vstate.db").write_bytes(b"no database at all" * 1000)
    with pytest.raises(CorruptStore):
        Versioned(tmp_path / "damaged")
    with pytest.raises(InvalidInput):
        Versioned(5)  # type: ignore[arg-type]


class Unsure(StoreWrapper):
    """A store that loses answers, carries some writes out later, and stays away for a while."""

    def __init__(self, store: KVStore, chance: random.Random) -> None:
        super().__init__(store)
        self.chance, self.share, self.away = chance, 0.0, 0
        self.later: Callable[[], object] | None = None

    def carry_out(self) -> None:
        later, self.later = self.later, None
        if later is not None:
            later()

    def reach(self) -> None:
        if self.chance.random() < 0.4:
            self.carry_out()
        if self.away:
            self.away -= 1
            raise StoreUnavailable("away")

    def get(self, key: str) -> bytes | None:
        self.reach()
        return super().get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        self.reach()
        return super().get_many(keys)

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        self.reach()
        if self.chance.random() >= self.share:
            return super().transact(writes, expected)
        self.away = self.chance.choice([0, 0, 1, 2, 4])
        transact = partial(super().transact, writes, expected)
        match self.chance.choice(["lost", "landed", "late"]):
            case "landed":
                transact()
            case "late" if self.later is None:
                self.later = transact
        raise StoreUnavailable("no answer", outcome_unknown=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(sized(4, 400)))
def test_any_mixture_of_calls_on_a_store_that_is_unsure(seed: int) -> None:
    """The one writer's values are those of a dict, each event is there once, and an update or a transaction
    that raised is there once or not at all.
    """
    for number in range(50):
        run_on_an_unsure_store(random.Random(seed * 1000 + number))


def run_on_an_unsure_store(chance: random.Random) -> None:
    memory = Memory()
    store = Unsure(memory, chance)
    state = Versioned(store, branch="main")
    state["update"], state["transaction"], state["list"] = 0, 0, []
    state.commit()
    model: dict[str, Any] = {"list": []}
    done = {"update": [0, 0], "transaction": [0, 0], "record": [0, 0]}

    def count(now: Versioned) -> None:
        now["update"] += 1

    def transact() -> None:
        with state.transaction():
            state["transaction"] += 1

    calls: dict[str, Callable[[int], object]] = {
        "set": lambda number: state.__setitem__("ab"[number % 2], [number]),
        "delete": lambda number: state.pop("ab"[number % 2], None),
        "edit": lambda number: state["list"].append(number),
        "take back": lambda number: state["list"] and state["list"].pop(),
        "never": lambda number: state.expire("list", None),
        "commit": lambda number: state.commit(),
        "commit a key": lambda number: state.commit(keys=["list"]),
        "record": lambda number: state.record(f"{number}"),
        "refresh": lambda number: state.refresh(),
        "update": lambda number: state.apply(count),
        "transaction": lambda number: transact(),
        "undone": lambda number: failing_transaction(state, lambda state: state.commit(keys=["update"])),
    }
    store.share = 0.3
    for number in range(chance.randrange(5, 40)):
        name = chance.choice([*calls, "commit", "commit"])
        try:
            calls[name](number)
        except StoreUnavailable:
            if name in done:
                done[name][1] += name != "record"  # perhaps
            continue
        except UncommittedChanges:
            continue
        if name == "set":
            model["ab"[number % 2]] = [number]
        elif name == "delete":
            model.pop("ab"[number % 2], None)
        elif name == "edit":
            model["list"].append(number)
        elif name == "take back":
            model["list"] = model["list"][:-1]
        elif name in done:
            done[name][0] += 1
    store.share = store.away = 0
    store.carry_out()
    state.commit()
    state.refresh()
    state.commit()
    fresh = Versioned(memory, branch="main")
    found = dict(fresh)
    assert dict(state) == found
    kinds = events_of(fresh)
    assert len(kinds) == len(set(kinds)) == done["record"][0]
    for name in ("update", "transaction"):
        certain, perhaps = done[name]
        assert certain <= found.pop(name) <= certain + perhaps
    assert found == model
