"""Values that do not load are refused before they are stored, and errors name the code that fails."""

from __future__ import annotations

import copyreg
import io
import signal
from collections import OrderedDict, UserString
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from http import HTTPStatus
from importlib.util import find_spec
from itertools import product
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from vstate import CannotLoad, Memory, Unpicklable, Versioned
from vstate.patterns.copies import checked_copy
from vstate.values.allow import Allow
from vstate.values.pickling import Pickler, dumps, loads


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


WRONG = [
    (WrongReduce("a"), "WrongReduce: TypeError: "),
    (WrongState(), "WrongState: LookupError: no such state"),
    (WrongNew("a"), "WrongNew: TypeError: "),
    (WrongExtension([1]), "WrongExtension: ValueError: closed"),
    (WrongItem(a=1), "WrongItem: ValueError: closed"),
    (WrongHash(), "WrongHash: AttributeError: "),
]


@pytest.mark.parametrize(("value", "named"), WRONG, ids=lambda value: type(value).__name__)
def test_refused_by_key_and_path(value: Any, named: str) -> None:
    """A value that would not load is refused at its first commit, and nothing is stored.

    An error of loading names the class whose code failed, not the name that the pickle found last.
    """
    state = Versioned()
    state["good"] = 1
    state["job"] = {"steps": [1, {"result": value}]}
    with pytest.raises(Unpicklable) as refused:
        state.commit()
    assert 'state["job"]["steps"][1]["result"]: ' in str(refused.value)
    assert f"it would not load again: {__name__}.{named}" in str(refused.value)
    assert state.head is None
    del state["job"]
    assert state.commit() is not None

    def closure() -> Any:
        return value

    kind = f"{__name__}.{type(value).__name__}"
    for each, allow in product((value, [{"a": value}, Unrelated()], closure), (None, Allow([__name__]))):
        if each is closure and allow is not None:
            continue
        with pytest.raises(CannotLoad) as caught:
            loads(_stored(each), allow=allow)
        assert caught.value.name == kind
        assert caught.value.called
        assert f"because {kind} fails" in str(caught.value)
        assert "importable" not in str(caught.value)


class Entries(dict):
    """It has no `limit` when its items are set: pickle gives it its attributes last."""

    def __init__(self) -> None:
        self.limit = 9

    def __setitem__(self, key: Any, value: Any) -> None:
        if len(self) < self.limit:
            super().__setitem__(key, value)


class Items(list):
    def __init__(self) -> None:
        self.limit = 9

    def extend(self, items: Any) -> None:
        super().extend(list(items)[: self.limit])

    def append(self, item: Any) -> None:
        self.extend([item])


class Ordered(OrderedDict):
    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, checked(value))


def checked(n: int) -> int:
    if n < 0:
        raise ValueError("below zero")
    return n


class Holds:
    def __init__(self, n: int) -> None:
        self.n = n


class Checks(Holds):
    def __setstate__(self, state: dict[str, Any]) -> None:
        self.n = checked(state["n"])


class ByReduce(Holds):
    def __reduce__(self) -> Any:
        return checked, (self.n,)


class ByReduceEx(Holds):
    def __reduce_ex__(self, protocol: object) -> Any:
        return checked, (self.n,)


class ByCopyreg(Holds):
    pass


copyreg.pickle(ByCopyreg, lambda value: (checked, (value.n,)))  # type: ignore[arg-type, return-value]


class ByNew(Holds):
    def __new__(cls, n: int) -> ByNew:
        checked(n)
        return super().__new__(cls)

    def __getnewargs__(self) -> tuple[int]:
        return (self.n,)


class ByState(Holds):
    """Its state is not always one that an object without `__setstate__` takes."""

    def __getstate__(self) -> Any:
        return self.__dict__ if self.n >= 0 else [1]


class Narrow:
    __slots__ = ("n",)

    def __init__(self, n: int) -> None:
        object.__setattr__(self, "n", n)

    def __setattr__(self, name: str, value: Any) -> None:
        checked(value)
        object.__setattr__(self, name, value)


class Refuses(Exception):
    def __reduce__(self) -> Any:
        return checked, self.args


class Number(int):
    def __getnewargs__(self) -> Any:
        return (int(self),) if self >= 0 else ("below",)


class Odd(Enum):
    ONE = 1
    OTHER = Checks(1)  # once loaded it equals no member


class Node:
    def __init__(self, name: str) -> None:
        self.name, self.kids = name, set[Node]()
        self.by_node = dict[Node, int]()
        self.parent: Node | None = None

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True)
class Frozen:
    name: str
    among: list[Any] = field(default_factory=list, hash=False)


def _filled(made: Any, fill: Callable[..., Any], *args: Any) -> Any:
    fill(made, *args)
    return made


def _child() -> Node:
    """Its pickle needs its hash before its name: a node above it holds it in a set."""
    root, child = Node("root"), Node("child")
    root.kids.add(child)
    child.parent = root
    return child


def _unknown(kind: Any, base: Any, value: int) -> Any:
    """A member that its enum does not know."""
    made = base.__new__(kind, *([value] if base is int else []))
    made._value_, made._name_ = value, "OTHER"
    return made


class Known(Enum):
    ONE = 1


def _in_its_own_set(made: Any) -> Any:
    made.among = {made}
    return made


LATER: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "a dict whose __setitem__ needs its attributes": (
        Entries,
        lambda: _filled(Entries(), dict.update, {1: 2}),
    ),
    "a list whose extend needs its attributes": (Items, lambda: _filled(Items(), list.extend, [1, 2])),
    "a list whose append needs its attributes": (Items, lambda: _filled(Items(), list.append, 1)),
    "an OrderedDict that checks": (Ordered, lambda: _filled(Ordered(), OrderedDict.__setitem__, 1, -1)),
    **{
        kind.__name__: (partial(kind, 1), partial(kind, -1))
        for kind in (Checks, ByReduce, ByReduceEx, ByCopyreg, ByState, Narrow, Refuses, Number)
    },
    "__new__": (lambda: ByNew(1), lambda: _filled(ByNew(1), lambda it: vars(it).update(n=-1))),
    "a member of an enum": (lambda: Odd.ONE, lambda: Odd.OTHER),
    "a status that its enum does not know": (lambda: HTTPStatus.OK, lambda: _unknown(HTTPStatus, int, 799)),
    "a member that its enum does not know": (lambda: Known.ONE, lambda: _unknown(Known, object, 7)),
    "of the standard library, in its own set": (
        partial(UserString, "a"),
        lambda: _in_its_own_set(UserString("a")),
    ),
    "in a set of its cycle": (partial(Node, "a"), _child),
    "as a key of its cycle": (
        partial(Node, "a"),
        lambda: _filled(Node("a"), lambda it: it.by_node.update({it: 1})),
    ),
    "frozen, in a set of its cycle": (
        partial(Frozen, "a"),
        lambda: _filled(Frozen("a"), lambda it: it.among.append({it})),
    ),
}


if find_spec("msgspec"):
    import msgspec  # late: it may not be installed

    class Strict(type(msgspec.Struct)):  # type: ignore[misc]
        def __call__(cls, n: int) -> Any:
            return super().__call__(checked(n))

    class Struct(msgspec.Struct, metaclass=Strict):
        n: int

    LATER["a metaclass"] = lambda: Struct(1), lambda: _filled(Struct(1), lambda it: setattr(it, "n", -1))


@pytest.mark.parametrize("name", LATER)
@pytest.mark.parametrize("first", ["committed", "only read"])
def test_a_later_value_that_does_not_load(name: str, first: str) -> None:
    """It is refused although an earlier one of its class was stored or read, and good ones still commit."""
    good, bad = LATER[name]
    store = Memory()
    state = Versioned(store)
    state["v"] = [good()]
    state.commit("good")
    if first == "only read":
        state = Versioned(store)
        assert len(state["v"]) == 1
        assert state.commit() is None
    state["w"] = {"deep": [bad()]}
    with pytest.raises(Unpicklable, match="it would not load again"):
        state.commit("bad")
    with pytest.raises(Unpicklable, match="it would not load again"):
        state.repo.commit("other", set={"w": bad()})
    state["w"] = good()
    assert state.commit("good again") is not None
    assert dict(Versioned(store)).keys() == {"v", "w"}


class Unrelated:
    pass


def _stored(value: Any) -> bytes:
    """The pickle of a value as an earlier version stored it, without a look whether it loads."""
    file = io.BytesIO()
    Pickler(file, protocol=5).dump(value)
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
