"""EventStream: each fold is the same as without checkpoints."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import pytest
from agent_stores import AgentStore
from clock import standing_still

from vstate import Live, Versioned
from vstate.errors import CannotLoad, InvalidInput
from vstate.kv import Memory
from vstate.patterns import EventStream, scope


class Counting:
    """A function for folds that counts the events it gets."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, so_far: int, event: int) -> int:
        self.calls += 1
        return so_far + event

    def fold(self, stream: EventStream[int], **options: Any) -> tuple[int, int]:
        """The result, and the number of events that the function got."""
        self.calls = 0
        return stream.fold(self, 0, name="counting", **options), self.calls


def test_a_fold_leaves_nothing_to_commit(local_store: AgentStore) -> None:
    """After a fold, in which `apply` changes its argument, an update finds nothing uncommitted."""
    state = Versioned(local_store(), branch="main")
    stream: EventStream[list[int]] = EventStream(state, "log")
    stream.extend([[number] for number in range(25)])
    state.commit()

    def spoil(so_far: list[int], event: list[int]) -> list[int]:
        so_far.extend(event)
        event.append(99)
        return so_far

    initial: list[int] = []
    assert stream.fold(spoil, initial, every=10, name="spoil") == list(range(25))
    assert initial == []
    assert stream.fold(spoil, initial, every=10, name="spoil") == list(range(25))
    assert not state.has_uncommitted
    state.apply(lambda inner: inner.update({"other": 1}))
    kept = stream.fold(spoil, initial, every=10, name="spoil")
    kept.append(7)
    assert stream.fold(spoil, initial, every=10, name="spoil") == list(range(25))


def test_only_the_tail_is_folded_again(local_store: AgentStore) -> None:
    """This handle has the checkpoint in memory; another one has it after an append."""
    state = Versioned(local_store(), branch="main")
    stream: EventStream[int] = EventStream(state, "log")
    stream.extend(range(1000))
    state.commit()
    counting = Counting()
    assert counting.fold(stream) == (sum(range(1000)), 1000)
    assert counting.fold(stream) == (sum(range(1000)), 0)
    state.apply(lambda inner: EventStream(inner, "log").append(1000))
    other: EventStream[int] = EventStream(Versioned(local_store(), branch="main"), "log")
    assert counting.fold(other) == (sum(range(1001)), 1)
    assert counting.fold(other) == (sum(range(1001)), 1)
    # Kept for the past, too, and for a branch.
    past = EventStream[int](state.checkout("HEAD"), "log")
    assert counting.fold(past)[1] == 1
    branch: EventStream[int] = EventStream(state.fork("branch"), "log")
    branch.extend(range(150))
    assert counting.fold(branch) == (sum(range(1001)) + sum(range(150)), 151)


def test_folds_without_identity_or_pickle_have_no_checkpoints() -> None:
    """A callable without a name, a result that cannot be pickled, and a function that raises: the next fold
    is right, and append still works.
    """
    state = Versioned()
    stream: EventStream[int] = EventStream(state, "log")
    stream.extend(range(200))
    counting = Counting()
    for _ in range(2):
        counting.calls = 0
        assert stream.fold(counting, 0) == sum(range(200))
        assert counting.calls == 200
        for initial in (None, lambda: -1):
            assert stream.fold(lambda so_far, event: lambda: event, initial, name="makes")() == 199
    stream.append(200)
    assert state.commit() is not None
    with pytest.raises(InvalidInput):
        stream.fold(operator.add, 0, every=0)
    at_fault = {150}

    def apply(so_far: int, event: int) -> int:
        if event in at_fault:
            raise ZeroDivisionError
        return so_far + event

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            stream.fold(apply, 0, name="sum", every=10)
    at_fault.clear()
    assert stream.fold(apply, 0, name="sum", every=10) == sum(range(201))


def test_few_checkpoints_are_kept() -> None:
    """Of a hundred folds, one after each event, eight checkpoints are kept, also of as many other events."""
    state = Versioned()
    stream: EventStream[int] = EventStream(state, "log")
    for number in range(100):
        stream.append(number)
        stream.fold(operator.add, 0, every=2, name="sum")
    assert 0 < len(state.keys("log/folds/")) <= 8
    for number in range(30):
        stream[0] = number
        stream.fold(operator.add, 0, every=100, name="sum")
        stream.append(0)
        stream.fold(operator.add, 0, every=100, name="sum")
        del stream[-1]
    assert len(state.keys("log/folds/")) <= 8
    assert len(stream) == 100


def test_replaced_and_expired_events() -> None:
    """A fold covers the present events: no expired one, and replaced ones by their new value."""
    with standing_still() as time:
        state = Versioned()
        stream: EventStream[int] = EventStream(state, "log")
        keys = [stream.append(number) for number in range(30)]
        state.expire(keys[3], 60)
        state.commit()
        counting = Counting()
        assert counting.fold(stream, every=10)[0] == sum(range(30))
        time.pass_(100)
        for value in (0, 1000, 2000):
            stream[0] = value
            assert counting.fold(stream, every=10)[0] == sum(range(30)) - 3 + value


@pytest.mark.parametrize("name", ["my log", ("a b", "c/d"), "log", "% 0 é"])
@pytest.mark.parametrize("make", [Versioned, Live, lambda: scope(Live(), "user", "a/b")])
def test_a_stream_of_any_name_is_folded(name: Any, make: Any) -> None:
    """Anywhere; also with a replaced event, whose mark is beside its key."""
    state = make()
    stream: EventStream[int] = EventStream(state, name)
    stream.extend(range(20))
    assert stream.fold(operator.add, 0, every=5, name="sum") == sum(range(20))
    stream[3] = 100
    for result in ((sum(range(20)) - 3 + 100, 20), (sum(range(20)) - 3 + 100, 0)):
        assert Counting().fold(EventStream(state, name), every=5) == result
    assert repr(stream).startswith("<EventStream ")


def test_an_event_that_is_gone_when_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event that is deleted between the listing and its reading does not count, and no result is kept."""
    state = Versioned()
    stream: EventStream[int] = EventStream(scope(state, "part"), "log")
    stream.extend([1, 2, 3, 4])
    get = Versioned.get
    with monkeypatch.context() as patched:
        patched.setattr(
            Versioned,
            "get",
            lambda self, key, other: other if "/000000000000-" in key else get(self, key, other),
        )
        assert stream.fold(operator.add, 0, every=2, name="sum") == 9
    assert stream.fold(operator.add, 0, every=2, name="sum") == 10


def test_foreign_keys_among_the_checkpoints() -> None:
    """Foreign keys beside the checkpoints are not read, not deleted, and block nothing."""
    state = Versioned()
    stream: EventStream[int] = EventStream(state, "log")
    stream.extend(range(20))
    stream.fold(operator.add, 0, every=5, name="sum")
    stream.append(20)
    place = next(iter(state.keys("log/folds/"))).rpartition("/")[0]
    odd = [f"{place}/{name}" for name in ("x", "1-2-3-4", "a-b-c", "000000000020-zz-1")]
    state.update(dict.fromkeys(odd, "not a fold"))
    for _ in range(3):
        stream.extend(range(10))
        assert stream.fold(operator.add, 0, every=5, name="sum") == sum(stream)
    assert all(key in state for key in odd)


def test_checkpoints_from_before_a_rollback_block_nothing() -> None:
    """Checkpoints of removed events block neither newer checkpoints nor their storing."""
    store = Memory()
    state = Versioned(store, branch="main")
    stream: EventStream[int] = EventStream(state, "log")
    counting = Counting()
    stream.extend(range(900))
    state.commit()
    counting.fold(stream)
    stream.extend(range(150))
    state.commit()
    counting.fold(stream)
    state.rollback(steps=1)
    stream.append(0)
    state.commit()
    again: EventStream[int] = EventStream(Versioned(store, branch="main"), "log")
    assert counting.fold(again) == (sum(range(900)), 1)
    other: EventStream[int] = EventStream(state, "other")
    other.extend(range(1000))
    counting.fold(other)
    del other[:101]
    assert counting.fold(other)[1] == 899
    assert counting.fold(other)[1] == 99


@dataclass(frozen=True)
class Total:
    """A class that only some programs may load."""

    number: int


def test_a_kept_fold_that_does_not_load_is_left_for_an_older_one() -> None:
    """A handle that cannot load a checkpoint goes on from an older one, and raises nothing."""
    store = Memory()
    state = Versioned(store, branch="main")
    stream: EventStream[int] = EventStream(state, "log")
    calls: list[int] = []

    def add(so_far: int | Total, event: int) -> int | Total:
        calls.append(event)
        number = so_far.number if isinstance(so_far, Total) else so_far
        return number + event if event < 100 else Total(number + event)

    for end in (41, 141):
        stream.extend(range(len(stream), end - 1))
        stream.fold(add, 0, every=10, name="add")
        stream.append(end - 1)
    state.commit()
    assert [int(key.split("/")[3][:12]) for key in state.keys("log/folds/")] == [40, 140]
    again = Versioned(store, branch="main", allow=["collections.*"])
    with pytest.raises(CannotLoad):
        again[list(state.keys("log/folds/"))[-1]]
    for expected in (101, 1):
        calls.clear()
        assert EventStream[int](again, "log").fold(add, 0, every=10, name="add") == Total(sum(range(141)))
        assert len(calls) == expected
    nothing_loads = Versioned(store, branch="main", allow=["collections.*"])
    del nothing_loads[next(iter(nothing_loads.keys("log/folds/")))]
    assert EventStream[int](nothing_loads, "log").fold(add, 0, every=10, name="add") == Total(sum(range(141)))
