"""Values that do not load are refused before they are stored, and errors name the code that fails."""

from __future__ import annotations

import io
import signal
from collections.abc import Callable, Iterator
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from vstate import CannotLoad, Unpicklable, Versioned
from vstate.patterns.copies import checked_copy
from vstate.values.allow import Allow
from vstate.values.pickling import _Pickler, dumps, loads


class WrongReduce:
    """Its pickle calls it without the argument that it needs."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> Any:
        return WrongReduce, ()


class WrongState:
    def __setstate__(self, state: dict[str, Any]) -> None:
        raise LookupError("no such state")

    def __getstate__(self) -> Any:
        return {"a": 1}


class WrongNew:
    def __new__(cls, name: str) -> WrongNew:
        return super().__new__(cls)


class WrongHash:
    """A cycle through a set: its pickle needs the hash before the field that the hash is made of."""

    def __init__(self) -> None:
        self.field = 1
        self.among = {self}

    def __hash__(self) -> int:
        return hash(self.field)


class WrongItem(dict):
    def __setitem__(self, key: Any, value: Any) -> None:
        raise ValueError("closed")


class WrongExtension(list):
    def __reduce__(self) -> Any:
        return WrongExtension, (), None, iter(self)

    def extend(self, items: Any) -> None:
        raise ValueError("closed")

    append = extend


def _fails(name: str) -> Any:
    raise ValueError(f"{name} is gone")


class ByFunction:
    works = True

    def __reduce__(self) -> Any:
        return (ByFunction, ()) if self.works else (_fails, ("it",))


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (WrongReduce("a"), "WrongReduce: TypeError: "),
        (WrongState(), "WrongState: LookupError: no such state"),
        (WrongNew("a"), "WrongNew: TypeError: "),
        (WrongExtension([1]), "WrongExtension: ValueError: closed"),
        (WrongItem(a=1), "WrongItem: ValueError: closed"),
        (WrongHash(), "WrongHash: AttributeError: "),
    ],
)
def test_refused_by_key_and_path(value: Any, named: str) -> None:
    """A value that would not load is refused at its first commit, and nothing is stored."""
    state = Versioned()
    state["good"] = 1
    state["job"] = {"steps": [1, {"result": value}]}
    with pytest.raises(Unpicklable) as caught:
        state.commit()
    assert 'state["job"]["steps"][1]["result"]: ' in str(caught.value)
    assert f"it would not load again: {__name__}.{named}" in str(caught.value)
    assert state.head is None
    del state["job"]
    assert state.commit() is not None


def test_another_function_of_a_known_class() -> None:
    """A class that loaded once is looked at again if another function makes its value."""
    state = Versioned()
    state["a"] = ByFunction()
    state.commit()
    state["a"] = wrong = ByFunction()
    wrong.works = False
    with pytest.raises(Unpicklable, match="_fails: ValueError: it is gone"):
        state.commit()


class Counted:
    loads = 0

    def __reduce__(self) -> Any:
        return _counted, ()


def _counted() -> Counted:
    Counted.loads += 1
    return Counted()


def test_one_load_for_all_values_of_a_class() -> None:
    """Ten thousand values of one class are loaded once, all together."""
    state = Versioned()
    for i in range(100):
        state[f"k{i}"] = [Counted() for _ in range(100)]
    state.commit()
    assert Counted.loads == 100, "the first key, whose value has a hundred of them"


@pytest.mark.parametrize("allow", [None, Allow([__name__])], ids=["any", "allowed"])
@pytest.mark.parametrize(
    "value",
    [WrongReduce("a"), WrongState(), WrongNew("a"), WrongItem(a=1), WrongHash()],
    ids=lambda v: type(v).__name__,
)
def test_cannot_load_names_the_code_that_fails(value: Any, allow: Allow | None) -> None:
    """The error names the class whose code failed, not the name that the pickle found last."""

    def closure() -> Any:
        return value

    kind = f"{__name__}.{type(value).__name__}"
    for each in (value, [{"a": value}, Unrelated()], *([closure] if allow is None else [])):
        with pytest.raises(CannotLoad) as caught:
            loads(_stored(each), allow=allow)
        assert caught.value.name == kind
        assert caught.value.called
        assert f"because {kind} fails" in str(caught.value)
        assert "importable" not in str(caught.value)


class Unrelated:
    pass


def _stored(value: Any) -> bytes:
    """The pickle of a value as an earlier version stored it, without a look whether it loads."""
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump(value)
    return file.getvalue()


class Interrupted:
    """Its pickling and its loading are interrupted by a signal once."""

    armed = False

    def __getstate__(self) -> Any:
        _interrupt()
        return {"a": 1}

    def __setstate__(self, state: Any) -> None:
        _interrupt()


def _interrupt() -> None:
    if Interrupted.armed:
        Interrupted.armed = False
        signal.raise_signal(signal.SIGALRM)


class OutOfTimeError(Exception):
    """The error of a program's time limit: like most such classes it is an Exception."""


@pytest.fixture
def interrupts() -> Iterator[Callable[[], None]]:
    def out_of_time(number: int, frame: FrameType | None) -> None:
        raise OutOfTimeError

    def arm() -> None:
        Interrupted.armed = True

    before = signal.signal(signal.SIGALRM, out_of_time)
    yield arm
    Interrupted.armed = False
    signal.signal(signal.SIGALRM, before)


def test_a_time_limit_comes_out_as_it_is(interrupts: Callable[[], None]) -> None:
    """An error of a signal handler is not taken for one of the value that is pickled or loaded meanwhile."""
    dumps(Interrupted())
    state = Versioned()
    state["fine"] = [1]
    for value in ([Interrupted()], [Interrupted(), (i for i in "")]):
        state["k"] = value
        interrupts()
        with pytest.raises(OutOfTimeError):
            state.commit()
        assert state["fine"] == [1]
        assert state.head is None
    state["k"] = [Interrupted()]
    assert state.commit() is not None
    for act in (lambda: Versioned(state.store)["k"], lambda: checked_copy(state["k"], "k")):
        interrupts()
        with pytest.raises(OutOfTimeError):
            act()
    assert isinstance(Versioned(state.store)["k"][0], Interrupted)


class OutOfMemory:
    limit = False

    def __getstate__(self) -> Any:
        if self.limit:
            raise MemoryError
        return {"limit": True}


def test_memory_errors_come_out_as_they_are() -> None:
    """MemoryError is never an error of the value, however often it comes."""
    state = Versioned()
    state["k"] = value = [OutOfMemory()]
    state.commit()
    value[0].limit = True
    for act in (state.commit, state.status, state.discard, lambda: checked_copy(value, "k")):
        with pytest.raises(MemoryError):
            act()
    value[0].limit = False
    assert state.commit() is None


class _Refusing:
    def __init__(self) -> None:
        self.held = (j for j in "")

    def __getstate__(self) -> object:
        raise TypeError("a _Refusing stays here")


def test_an_object_that_refuses_is_named_itself() -> None:
    """Its own message says why, so the search does not go on to its attributes: a state in an agent, say."""
    state = Versioned()
    for value, reason in ((state, "a Versioned cannot be"), (_Refusing(), "a _Refusing stays here")):
        state["agent"] = [SimpleNamespace(state=value)]
        with pytest.raises(Unpicklable, match=rf'state\["agent"\]\[0\]\.state: [\w.]+ \({reason}'):
            state.commit()
    state.discard()


def test_the_path_leads_through_an_exception() -> None:
    """A part of an exception, or of one that it came from, is named by its path."""
    error, cause = ValueError("x"), KeyError([(j for j in "")])
    error.__cause__ = cause
    state = Versioned()
    state["e"] = [error]
    with pytest.raises(Unpicklable, match=r'state\["e"\]\[0\]\.__cause__\.args\[0\]\[0\]: generator'):
        state.commit()
