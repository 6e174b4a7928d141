"""EventStream: folds that are what they would be without anything kept."""

from __future__ import annotations

import operator
from collections.abc import Callable
from fractions import Fraction
from functools import partial, reduce
from typing import Any

import pytest
from agent_stores import AgentStore
from clock import standing_still
from conftest import RunPython
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from vstate import Live, Versioned
from vstate.errors import InvalidInput
from vstate.kv import Memory
from vstate.patterns import EventStream, scope


def in_order(so_far: list[Any], event: Any) -> list[Any]:
    return [*so_far, event]


class Counting:
    """A fold that knows how many events it was given."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, so_far: int, event: int) -> int:
        self.calls += 1
        return so_far + event

    def fold(self, stream: EventStream[int], **options: Any) -> tuple[int, int]:
        """What it comes to, and how many events it took."""
        self.calls = 0
        return stream.fold(self, 0, name="counting", **options), self.calls


def test_a_stream_is_what_was_appended(agent_store: AgentStore) -> None:
    """Another handle reads the events in their order, and folds them to the same."""
    state = Versioned(agent_store(), branch="main")
    stream: EventStream[dict[str, int]] = EventStream(state, "orders")
    events = [{"amount": number} for number in range(120)]
    key = stream.append(events[0])
    assert (list(state), state[key]) == ([key], {"amount": 0})
    stream.extend(events[1:])
    state.commit()
    again: EventStream[dict[str, int]] = EventStream(Versioned(agent_store(), branch="main"), "orders")
    assert list(again) == events
    assert (len(again), again[5], again[-1], again[3:5], again.last(2)) == (
        120,
        events[5],
        events[-1],
        events[3:5],
        events[-2:],
    )
    assert next(reversed(again)) == events[-1]
    total = again.fold(lambda so_far, event: so_far + event["amount"], 0, every=50)
    assert total == sum(range(120))
    assert repr(again) == "<EventStream 'orders', 120 items>"


def test_a_fold_leaves_nothing_to_commit(agent_store: AgentStore) -> None:
    """After a fold, in which `apply` changes what it gets, an update finds nothing uncommitted."""
    state = Versioned(agent_store(), branch="main")
    stream: EventStream[list[int]] = EventStream(state, "log")
    stream.extend([[number] for number in range(25)])
    state.commit()

    def spoil(so_far: list[int], event: list[int]) -> list[int]:
        so_far.extend(event)
        event.append(99)
        return so_far

    initial: list[int] = []
    assert stream.fold(spoil, initial, every=10) == list(range(25))
    assert initial == []
    assert stream.fold(spoil, initial, every=10) == list(range(25))
    assert not state.has_uncommitted()
    state.update(lambda inner: inner.update({"other": 1}))
    kept = stream.fold(spoil, initial, every=10)
    kept.append(7)
    assert stream.fold(spoil, initial, every=10) == list(range(25))


def test_only_the_tail_is_folded_again(agent_store: AgentStore) -> None:
    """In this handle from memory, and in another, once an append has brought along what was kept."""
    state = Versioned(agent_store(), branch="main")
    stream: EventStream[int] = EventStream(state, "log")
    stream.extend(range(1000))
    state.commit()
    counting = Counting()
    assert counting.fold(stream) == (sum(range(1000)), 1000)
    assert counting.fold(stream) == (sum(range(1000)), 0)
    state.update(lambda inner: EventStream(inner, "log").append(1000))
    other: EventStream[int] = EventStream(Versioned(agent_store(), branch="main"), "log")
    assert counting.fold(other) == (sum(range(1001)), 1)
    assert counting.fold(other) == (sum(range(1001)), 1)
    # Kept for the past, too, and for a branch.
    past = EventStream[int](state.checkout("HEAD"), "log")
    assert counting.fold(past)[1] == 1
    branch: EventStream[int] = EventStream(state.fork("branch"), "log")
    branch.extend(range(150))
    assert counting.fold(branch) == (sum(range(1001)) + sum(range(150)), 151)


FOLDING = """
import sys
from vstate import Versioned
from vstate.patterns import EventStream
calls = 0
def add(so_far, event):
    global calls
    calls += 1
    words, total = so_far
    return (words | {event["word"]}, total + event["number"]) if event["word"] in {"a", "b"} else so_far
state = Versioned(sys.argv[1], branch="main")
stream = EventStream(state, "log")
words, total = stream.fold(add, (frozenset(), 0), every=100)
print(sorted(words), total, calls)
stream.append({"word": "a", "number": 1})
state.commit()
"""


def test_another_process_folds_the_tail(shared_store: AgentStore, run_python: RunPython) -> None:
    """The same program, run again with another hash seed, knows its fold."""
    assert shared_store.url is not None
    state = Versioned(shared_store(), branch="main")
    EventStream(state, "log").extend([{"word": "ab"[number % 2], "number": 1} for number in range(350)])
    state.commit()
    assert run_python(FOLDING, shared_store.url, seed=1) == "['a', 'b'] 350 350\n"
    assert run_python(FOLDING, shared_store.url, seed=2) == "['a', 'b'] 351 51\n"
    assert run_python(FOLDING, shared_store.url, seed=3) == "['a', 'b'] 352 52\n"


def test_another_function_is_another_fold() -> None:
    """Other code, another closure, default, partial argument, initial value or name: nothing of the one is the other's."""
    stream: EventStream[int] = EventStream(Versioned(), "log")
    stream.extend(range(300))

    def scaled(factor: int) -> Callable[[int, int], int]:
        return lambda so_far, event: so_far + factor * event

    def default(so_far: int, event: int, factor: int = 5) -> int:
        return so_far + factor * event

    total = sum(range(300))
    for _ in range(2):
        assert stream.fold(lambda so_far, event: so_far + event, 0) == total
        assert stream.fold(lambda so_far, event: so_far - event, 0) == -total
        assert stream.fold(scaled(2), 0) == 2 * total
        assert stream.fold(scaled(3), 0) == 3 * total
        assert stream.fold(scaled(3), 1) == 3 * total + 1
        assert stream.fold(default, 0) == 5 * total
        assert stream.fold(partial(default, factor=7), 0) == 7 * total
        assert stream.fold(partial(default, factor=9), 0) == 9 * total
        assert stream.fold(operator.add, 0) == total
        assert stream.fold(operator.sub, 0) == -total
        assert stream.fold(max, 0) == 299


def test_what_cannot_be_told_or_pickled_is_folded_without() -> None:
    """A callable object without a name, and a result that cannot be pickled, are right each time, and block no append."""
    state = Versioned()
    stream: EventStream[int] = EventStream(state, "log")
    stream.extend(range(200))
    counting = Counting()
    for _ in range(2):
        counting.calls = 0
        assert stream.fold(counting, 0) == sum(range(200))
        assert counting.calls == 200
    for _ in range(2):
        made = stream.fold(lambda so_far, event: lambda: event, lambda: -1)
        assert made() == 199
    stream.append(200)
    assert state.commit() is not None
    with pytest.raises(InvalidInput):
        stream.fold(operator.add, 0, every=0)


def test_a_fold_that_raises_has_kept_nothing_wrong() -> None:
    """What `apply` raises comes through; once that is mended, the fold is right."""
    stream: EventStream[int] = EventStream(Versioned(), "log")
    stream.extend(range(200))
    at_fault = {150}

    def apply(so_far: int, event: int) -> int:
        if event in at_fault:
            raise ZeroDivisionError
        return so_far + event

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            stream.fold(apply, 0, name="sum", every=10)
    at_fault.clear()
    assert stream.fold(apply, 0, name="sum", every=10) == sum(range(200))


def test_what_is_kept_stays_little() -> None:
    """Of five hundred folds, one after each event, no more than a dozen are kept."""
    state = Versioned()
    stream: EventStream[int] = EventStream(state, "log")
    for number in range(500):
        stream.append(number)
        stream.fold(operator.add, 0, every=2)
    assert state.count_keys("log/folds/") <= 12
    assert len(stream) == 500


def test_deleted_replaced_and_expired_events() -> None:
    """A fold is of the events that there are: none that is deleted, none that is expired, and what was put in place."""
    with standing_still() as time:
        state = Versioned()
        stream: EventStream[int] = EventStream(state, "log")
        keys = [stream.append(number) for number in range(30)]
        state.expire(keys[3], 60)
        state.commit()
        counting = Counting()
        assert counting.fold(stream, every=10)[0] == sum(range(30))
        stream.append(30)
        state.commit()
        time.pass_(100)
        assert counting.fold(stream, every=10)[0] == sum(range(31)) - 3
        del stream.sequence[0:2]
        assert counting.fold(stream, every=10)[0] == sum(range(31)) - 3 - 1
        stream.sequence[0] = 1000
        assert counting.fold(stream, every=10)[0] == sum(range(31)) - 3 - 1 - 2 + 1000
        stream.sequence[0] = 2000
        assert counting.fold(stream, every=10)[0] == sum(range(31)) - 3 - 1 - 2 + 2000


def test_both_branches_kept_a_fold() -> None:
    """What both brought along merges without a conflict."""
    one = Versioned(branch="main")
    stream: EventStream[int] = EventStream(one, "log")
    stream.extend(range(100))
    one.commit()
    other = one.fork("other")
    for state, number in ((one, 1), (other, 2)):
        mine: EventStream[int] = EventStream(state, "log")
        mine.fold(operator.add, 0, every=10)
        mine.extend([number] * 20)
        mine.fold(operator.add, 0, every=10)
        mine.append(number)
        state.commit()
    one.merge("other")
    assert stream.fold(operator.add, 0, every=10) == sum(range(100)) + 21 * 1 + 21 * 2


def test_on_live_and_in_scopes() -> None:
    """A stream of a scope, in memory alone."""
    live = Live()
    stream: EventStream[int] = EventStream(scope(live, "user", "a/b"), "log")
    stream.extend(range(250))
    counting = Counting()
    assert counting.fold(stream) == (sum(range(250)), 250)
    stream.append(1)
    assert counting.fold(EventStream(scope(live, "user", "a/b"), "log")) == (sum(range(250)) + 1, 51)
    assert list(EventStream(scope(live, "user"), "log")) == []


class Stream(RuleBasedStateMachine):
    """Branches of one store, each with a stream: whatever is done, every fold is the naive one."""

    @initialize()
    def begin(self) -> None:
        self.store = Memory()
        self.handles = {name: Versioned(self.store, branch=name) for name in ("main",)}
        self.event = 0
        self.streams = {"main": EventStream[int](self.handles["main"], "log")}

    def pick(self, data: st.DataObject) -> tuple[str, Versioned, EventStream[int]]:
        name = data.draw(st.sampled_from(sorted(self.handles)))
        return name, self.handles[name], self.streams[name]

    @rule(data=st.data(), count=st.integers(1, 7))
    def append(self, data: st.DataObject, count: int) -> None:
        stream = self.pick(data)[2]
        before = list(stream)
        added = list(range(self.event, self.event + count))
        self.event += count
        stream.extend(added)
        assert list(stream) == before + added

    @rule(data=st.data(), count=st.integers(1, 3))
    def append_elsewhere(self, data: st.DataObject, count: int) -> None:
        """Another process appends to the same branch."""
        name, state, _ = self.pick(data)
        if state.head is None:
            return
        other = Versioned(self.store, branch=name)
        for _ in range(count):
            self.event += 1
            other.update(lambda inner: EventStream(inner, "log").append(self.event))
        EventStream[int](other, "log").fold(in_order, [], every=3)

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        self.pick(data)[1].commit()

    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        self.pick(data)[1].discard()

    @rule(data=st.data(), steps=st.integers(1, 3))
    def rollback(self, data: st.DataObject, steps: int) -> None:
        _, state, _ = self.pick(data)
        if len(list(state.log())) > steps:
            state.rollback(steps=steps)

    @rule(data=st.data(), position=st.integers(0, 30), much=st.integers(1, 3))
    def delete(self, data: st.DataObject, position: int, much: int) -> None:
        del self.pick(data)[2].sequence[position : position + much]

    @rule(data=st.data(), position=st.integers(0, 30))
    def replace(self, data: st.DataObject, position: int) -> None:
        stream = self.pick(data)[2]
        if len(self.handles) == 1 and position < len(stream):  # of two branches it would be a conflict
            self.event += 1
            stream.sequence[position] = self.event

    @rule(data=st.data())
    def branch(self, data: st.DataObject) -> None:
        _, state, _ = self.pick(data)
        if state.head is not None and len(self.handles) < 3 and not state.has_uncommitted():
            name = f"branch-{self.event}-{len(self.handles)}"
            if name not in state.branches():
                self.handles[name] = state.fork(name)
                self.streams[name] = EventStream(self.handles[name], "log")

    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        _, state, stream = self.pick(data)
        other = data.draw(st.sampled_from(sorted(self.handles)))
        state.commit()
        theirs = self.handles[other]
        if state.head is not None and theirs.head is not None and other != state.branch:
            both = {*stream, *EventStream[int](theirs.checkout("HEAD"), "log")}
            state.merge(other, policy="ours")
            assert len(list(stream)) == len(set(stream))
            assert set(stream) <= both

    @rule(data=st.data(), every=st.integers(1, 5))
    def fold(self, data: st.DataObject, every: int) -> None:
        _, state, stream = self.pick(data)
        dirty = state.has_uncommitted()
        assert stream.fold(in_order, [], every=every) == list(stream)
        assert stream.fold(operator.add, 0, every=every) == reduce(operator.add, stream, 0)
        assert state.has_uncommitted() == dirty

    @rule(data=st.data(), every=st.integers(1, 5))
    def fold_elsewhere(self, data: st.DataObject, every: int) -> None:
        name = self.pick(data)[0]
        other: EventStream[int] = EventStream(Versioned(self.store, branch=name), "log")
        assert other.fold(in_order, [], every=every) == list(other)

    @invariant()
    def positions(self) -> None:
        for stream in getattr(self, "streams", {}).values():
            events = list(stream)
            assert len(stream) == len(events)
            assert stream.last(2) == events[-2:]


Stream.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
TestStream = Stream.TestCase


def test_a_fold_of_a_class_that_is_not_here() -> None:
    """A handle that may not, or cannot, import what the fold is made of folds anew, and raises for nothing else."""
    store = Memory()
    state = Versioned(store, branch="main")
    stream: EventStream[int] = EventStream(state, "log")
    stream.extend(range(20))
    stream.fold(operator.add, Fraction(1, 2), every=10)
    stream.append(1)
    state.commit()
    counts = [int(key.split("/")[3][:12]) for key in state.keys("log/folds/")]
    assert counts == [20]
    again: EventStream[int] = EventStream(Versioned(store, branch="main", allow=["collections.*"]), "log")
    assert again.fold(operator.add, Fraction(1, 2), every=10) == sum(range(20)) + 1 + Fraction(1, 2)
