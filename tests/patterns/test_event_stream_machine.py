"""EventStream: branches diverge, merge and roll back, and each fold equals the naive one."""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from soak import sized

from vstate import Versioned
from vstate.kv import Memory
from vstate.patterns import EventStream


def in_order(so_far: list[Any], event: Any) -> list[Any]:
    return [*so_far, event]


class Stream(RuleBasedStateMachine):
    """Branches of one store, each with a stream. After any steps, every fold equals the naive one."""

    @initialize()
    def begin(self) -> None:
        self.store = Memory()
        self.handles = {name: Versioned(self.store, branch=name) for name in ("main",)}
        self.event = 0  # the next one: no event is there twice
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
            other.apply(lambda inner: EventStream(inner, "log").append(self.event))
            self.event += 1
        EventStream[int](other, "log").fold(in_order, [], every=3, name="list")

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
            state.commit()
            state.refresh()  # others may have appended to the branch
            state.rollback(f"HEAD~{steps}")

    @rule(data=st.data(), position=st.integers(0, 30), much=st.integers(1, 3))
    def delete(self, data: st.DataObject, position: int, much: int) -> None:
        del self.pick(data)[2][position : position + much]

    @rule(data=st.data(), position=st.integers(0, 30))
    def replace(self, data: st.DataObject, position: int) -> None:
        stream = self.pick(data)[2]
        if len(self.handles) == 1 and position < len(stream):  # of two branches it would be a conflict
            stream[position] = self.event
            self.event += 1

    @rule(data=st.data())
    def branch(self, data: st.DataObject) -> None:
        _, state, _ = self.pick(data)
        if state.head is not None and len(self.handles) < 3 and not state.has_uncommitted:
            name = f"branch-{self.event}-{len(self.handles)}"
            if name not in state.branches():
                self.handles[name] = state.fork(name)
                self.streams[name] = EventStream(self.handles[name], "log")

    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        _, state, stream = self.pick(data)
        other = data.draw(st.sampled_from(sorted(self.handles)))
        state.commit()
        # Others may have appended to either branch: the merge goes by the newest commits.
        state.refresh()
        theirs = Versioned(self.store, branch=other)
        if state.head is not None and theirs.head is not None and other != state.branch:
            both = {*stream, *EventStream[int](theirs.checkout("HEAD"), "log")}
            state.merge(other, policy="ours")
            assert len(list(stream)) == len(set(stream))
            assert set(stream) <= both

    @rule(data=st.data(), every=st.integers(1, 5))
    def fold(self, data: st.DataObject, every: int) -> None:
        _, state, stream = self.pick(data)
        dirty = state.has_uncommitted
        assert stream.fold(in_order, [], every=every, name="list") == list(stream)
        assert stream.fold(operator.add, 0, every=every, name="sum") == reduce(operator.add, stream, 0)
        assert state.has_uncommitted == dirty

    @rule(data=st.data(), every=st.integers(1, 5))
    def fold_elsewhere(self, data: st.DataObject, every: int) -> None:
        name = self.pick(data)[0]
        other: EventStream[int] = EventStream(Versioned(self.store, branch=name), "log")
        assert other.fold(in_order, [], every=every, name="list") == list(other)

    @invariant()
    def positions(self) -> None:
        for stream in getattr(self, "streams", {}).values():
            events = list(stream)
            assert len(stream) == len(events)
            assert stream.last(2) == events[-2:]


Stream.TestCase.settings = settings(max_examples=sized(20, 300), stateful_step_count=30)
TestStream = pytest.mark.slow(Stream.TestCase)
