"""Tracking: the values that count as unshared."""

from __future__ import annotations

import pickle
import weakref
from abc import ABC
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import pytest
from numpy import arange, array
from pydantic import BaseModel

from vstate import Memory, Versioned
from vstate.repo.repository import Repository
from vstate.state import tracking
from vstate.state.tracking import is_immutable, is_unshared


class Plain:
    def __init__(self) -> None:
        self.items = [1]


class Slots:
    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items = {"a": [1]}


class Abstract(ABC):
    """It has a metaclass."""

    def __init__(self) -> None:
        self.items = [1]


class Model(BaseModel):
    items: list[int] = [1]
    inner: Model | None = None


def numbers() -> Any:
    """An array as a state loads it: its numbers are in a bytearray, behind three other objects."""
    return pickle.loads(
        pickle.dumps(arange(1000.0), 5, buffer_callback=(held := []).append),
        buffers=[bytearray(buffer.raw()) for buffer in held],
    )


class WithDel(Plain):
    def __del__(self) -> None:
        pass


def cycle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def inner_twice() -> list[Any]:
    inner = [1]
    return [inner, inner, {"k": inner}]


@pytest.mark.parametrize(
    "make",
    [list, dict, lambda: {"a": [1, {"b": {2}}]}, lambda: bytearray(b"x"), lambda: {1, "a"}, Plain, Slots,
     cycle,
     inner_twice, Abstract, numbers, lambda: {"a": arange(3), "b": [numbers()]},
     lambda: [Model(inner=Model())],
     lambda: [Plain(), Slots()], lambda: ([1], (2, [3])), lambda: {"x": "y" * 1000, "n": 1.5}],
)  # fmt: skip
def test_alone_is_unshared(make: Callable[[], Any]) -> None:
    """A value that only its holder refers to is unshared."""
    if not tracking._INSTANCES and "Plain" in repr(make()):
        pytest.skip("this interpreter does not show who holds an instance's attributes")
    holder = {"k": make()}
    assert is_unshared([holder["k"]])


@pytest.mark.parametrize(
    ("make", "hold"),
    [
        (lambda: [1], lambda v: v),
        (lambda: {"a": [1]}, lambda v: v["a"]),
        (lambda: {"a": {"b": [1]}}, lambda v: v["a"]["b"]),
        (lambda: [1], iter),
        (lambda: {"a": 1}, lambda v: v.items()),
        (lambda: bytearray(b"abc"), memoryview),
        (lambda: [[1]], lambda v: v[0].append),
        (Plain, lambda v: v.__dict__),
        (Plain, lambda v: v.items),
        (Slots, lambda v: v.items["a"]),
        (lambda: [Plain()], lambda v: weakref.ref(v[0])),
        (lambda: {1, 2}, weakref.ref),
        (lambda: [{1, 2}], lambda v: weakref.ref(v[0])),
        (cycle, lambda v: v),
        (inner_twice, lambda v: v[0]),
        (lambda: [1], lambda v: lambda: v),
        (lambda: ([1],), lambda v: v[0]),
        (lambda: [(1, [2])], lambda v: v[0]),
        (Abstract, lambda v: v.items),
        (Model, lambda v: v.items),
        (lambda: [Model(inner=Model())], lambda v: v[0].inner),
        (numbers, lambda v: v),
        (numbers, lambda v: v[1:]),
        (numbers, lambda v: v.base),
        (numbers, lambda v: v.base.base),
        (numbers, lambda v: v.base.base.obj),
        (numbers, memoryview),
        (numbers, weakref.ref),
        (lambda: {"a": [arange(3)]}, lambda v: v["a"][0].T),
    ],
)
def test_a_reference_outside_is_seen(make: Callable[[], Any], hold: Callable[[Any], Any]) -> None:
    """A reference from outside to any part, weak or hidden in another object, makes a value shared."""
    holder = {"k": make()}
    held = hold(holder["k"])
    assert not is_unshared([holder["k"]])
    del held


@pytest.mark.parametrize(
    "make",
    [deque, OrderedDict, lambda: array([[1], None], dtype=object), lambda: {"f": lambda: 1}, WithDel,
     lambda: [deque([1])],
     lambda: [list(range(1000, 1300)), [[]] * 3, object()]],
)  # fmt: skip
def test_doubt_is_shared(make: Callable[[], Any]) -> None:
    """A type whose references cannot be seen counts as shared."""
    holder = {"k": make()}
    assert not is_unshared([holder["k"]])


BOUND = [1].append


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, True), (1, True), ("a", True), ((1, "a"), True), (frozenset({1}), True), (len, True),
     ((1, (2,)), False), ([], False), (([],), False), (BOUND, False), ({}.get, False), (bytearray(), False),
     (Plain, False)],
)  # fmt: skip
def test_immutable(value: Any, expected: bool) -> None:
    """Only values that cannot change, and hold none that can, are immutable.

    A list's bound method holds the list.
    """
    assert is_immutable(value) is expected


def test_an_edit_through_the_method_of_a_part() -> None:
    """A part that a stored method of its own leads to is compared at each commit."""
    state = Versioned()
    log: list[int] = []
    state["tool"] = {"write": log.append}
    state.commit()
    log.append(1)
    assert state.commit() is not None
    assert Versioned(state.store)["tool"]["write"].__self__ == [1]


def test_a_value_that_pickles_otherwise_is_compared_with_a_second_copy_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Attribute names that were several objects are one after loading: no change, and recognised from then
    on.
    """
    store, values = Memory(), [Plain(), Plain()]
    values[1].__dict__ = {"".join(["it", "ems"]): [1]}
    state = Versioned(store)
    state["k"] = values
    state.commit()
    loads, load = list[str](), Repository.load

    def counting(self: Repository, key: str, *arguments: Any) -> Any:
        loads.append(key)
        return load(self, key, *arguments)

    other = Versioned(store)
    held = other["k"]
    monkeypatch.setattr(Repository, "load", counting)
    for _ in range(3):
        assert not other.has_uncommitted
        assert loads == ["k"]
    other["x"] = 1
    other.commit()
    held[0].items.append(2)  # after a commit that found it unchanged
    assert other.has_uncommitted
    assert other.commit() is not None
