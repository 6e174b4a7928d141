"""A time limit that ends in the code of a value comes out as it is, wherever that code runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

import pytest

from vstate import Versioned
from vstate.patterns import EventStream
from vstate.patterns.copies import checked_copy
from vstate.sessions import StateModule
from vstate.values.merging import POLICIES


class TimeLimit(Exception):
    """Raised once, as the handler of an alarm raises it in the middle of any call."""


class Slow:
    """The alarm rings while it is pickled or copied for the first time."""

    due: ClassVar[int] = 0

    def __init__(self, number: int = 0) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        if Slow.due:
            Slow.due -= 1
            raise TimeLimit
        return Slow, (self.number,)

    def __deepcopy__(self, memo: object) -> Self:
        self.__reduce__()
        return self


class Refused(Slow):
    """Its pickling always fails, so the failure is its own."""

    def __reduce__(self) -> Any:
        super().__reduce__()
        raise ValueError("never")


def _module(value: Any) -> StateModule:
    class Module(StateModule):
        def __init__(self) -> None:
            super().__init__()
            self.value: Any = None
            self.register_state("value")

    module = Module()
    module.value = value
    return module


def _fold(initial: Any, result: Any) -> None:
    stream = EventStream[int](Versioned(), "log")
    stream.extend(range(10))
    stream.fold(lambda so_far, _: result, initial, every=3, name="it")


CALLS: dict[str, Callable[[Callable[[int], Any]], object]] = {
    "the result of a fold": lambda make: _fold(0, make(1)),
    "the initial value of a fold": lambda make: _fold(make(1), 0),
    "a merge by fields": lambda make: POLICIES["deep"](make(1), make(1), make(2)),
    "a union": lambda make: POLICIES["union"]([make(1)], [make(1), make(2)], [make(1)]),
    "the state of a module": lambda make: _module(make(1)).state_dict(),
    "a copy": lambda make: checked_copy(make(1), "value"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_time_limit_comes_out_as_it_is(call: Callable[[Callable[[int], Any]], object]) -> None:
    """It is no failure of the value, which would be passed over."""
    Slow.due = 0
    call(Slow)
    Slow.due = 1
    with pytest.raises(TimeLimit):
        call(Slow)
    assert Slow.due == 0


@pytest.mark.parametrize("name", ["the result of a fold", "the state of a module"])
def test_a_failure_of_the_value_is_passed_over(name: str) -> None:
    """A fold keeps no checkpoint of such a result, and a module hands such a value over as it is."""
    Slow.due = 0
    CALLS[name](Refused)
