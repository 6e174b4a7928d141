"""Exceptions as values: each one loads again as it was, for any arguments of its `__init__`."""

from __future__ import annotations

import json
import pickle
import subprocess
import threading
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.message import Message
from types import SimpleNamespace
from typing import Any

import pytest

from vstate.errors import CannotLoad, KeyNotFound
from vstate.values import inert
from vstate.values.allow import Allow
from vstate.values.exceptions import new_exception, restore_exception
from vstate.values.opcodes import frameless
from vstate.values.pickling import dumps, loads


class TwoArguments(Exception):
    def __init__(self, tool: str, code: int) -> None:
        super().__init__(f"{tool} failed")
        self.tool, self.code = tool, code


class KeywordOnly(Exception):
    def __init__(self, message: str = "no", *, status: int) -> None:
        self.status = status


class Slotted(Exception):
    __slots__ = ("__hidden", "empty", "status")

    def __init__(self, status: int) -> None:
        self.status, self.__hidden = status, [status]

    @property
    def hidden(self) -> list[int]:
        return self.__hidden


class NoInit(LookupError):
    __slots__ = ("status",)


@dataclass
class Data(Exception):
    status: int
    parts: list[int]


@dataclass(frozen=True)
class FrozenData(Exception):
    status: int


class OfSystem(FileNotFoundError):
    def __init__(self, path: str, *, tries: int) -> None:
        super().__init__(2, "No such file", path)
        self.tries = tries


class OfText(UnicodeDecodeError):
    def __init__(self, path: str) -> None:
        super().__init__("utf-8", b"ab\xff", 2, 3, f"in {path}")


class Unread(StopIteration):
    def __init__(self, *, left: int) -> None:
        super().__init__(left)


class MadeByNew(ValueError):
    def __new__(cls, *, status: int) -> MadeByNew:
        self = super().__new__(cls, "made", status)
        self.status = status
        return self

    def __init__(self, *, status: int) -> None:
        pass

    status: int


class Failures(ExceptionGroup[Exception]):
    def __new__(cls, errors: list[Exception], job: str) -> Failures:
        self = super().__new__(cls, f"{job} failed", errors)
        self.job = job
        return self

    def __init__(self, errors: list[Exception], job: str) -> None:
        pass

    job: str


class Gathered(ExceptionGroup[Exception]):
    """Its `args` are not its message and its exceptions."""

    def __new__(cls, job: str, errors: list[Exception]) -> Gathered:
        return super().__new__(cls, f"{job} failed", errors)


class Doubling(Exception):
    def __setattr__(self, name: str, value: int) -> None:
        super().__setattr__(name, 2 * value)


class NoField(AttributeError):
    """It holds an object that cannot be pickled."""

    def __init__(self, *, status: int) -> None:
        super().__init__("no field", name="field", obj=threading.Lock())
        self.status = status


class ReducesItself(Exception):
    def __init__(self, *, status: int) -> None:
        super().__init__(status)
        self.cache = [0] * 1000

    def __reduce__(self) -> Any:
        return _reduced, (self.args[0],)


def _reduced(status: int) -> ReducesItself:
    return ReducesItself(status=status)


class SetsItsState(Exception):
    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, loaded=True)


class Single(Exception):
    def __reduce__(self) -> str:
        return "SINGLE"


def _with(error: BaseException, **attributes: Any) -> BaseException:
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


SINGLE = _with(Single("one in a process"), __context__=KeyError("k"))


def _chained() -> BaseException:
    try:
        try:
            raise TwoArguments("search", 3)
        except TwoArguments as error:
            raise KeywordOnly(status=5) from error
    except KeywordOnly as error:
        error.add_note("while planning")
        return error


def _in_context(made: BaseException) -> BaseException:
    try:
        try:
            raise KeyError("k")
        except KeyError:
            raise made  # noqa: B904 the context is the point
    except BaseException as error:
        return error


EXAMPLES = [
    TwoArguments("search", 3),
    KeywordOnly(status=4),
    Slotted(4),
    _with(NoInit("x"), status=4),
    _with(Doubling("x"), status=4),
    NoField(status=4),
    Gathered("job", [TwoArguments("a", 1), ValueError("b")]),
    Data(4, [1]),
    FrozenData(4),
    OfSystem("/none", tries=3),
    OfText("a.txt"),
    Unread(left=3),
    MadeByNew(status=4),
    Failures([TwoArguments("a", 1), ValueError("b")], "job"),
    ExceptionGroup("several", [KeywordOnly(status=1), ExceptionGroup("inner", [TwoArguments("a", 1)])]),
    ValueError("x", 1),
    OSError(2, "No such file", "/none"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
    SyntaxError("bad", ("f.py", 1, 2, "x =", 1, 3)),
    json.JSONDecodeError("bad", "{", 1),
    subprocess.CalledProcessError(2, ["ls"], output=b"out", stderr=b"err"),
    urllib.error.HTTPError("http://x.test", 429, "slow down", Message(), None),
    KeyNotFound("k"),
    ReducesItself(status=4),
    _with(ReducesItself(status=4), __notes__=["while planning"]),
    _chained(),
    _with(_in_context(TwoArguments("a", 1)), __suppress_context__=True),
    _with(_chained(), __suppress_context__=False),
    *(_in_context(made) for made in (ValueError("x"), json.JSONDecodeError("bad", "{", 1), FrozenData(4))),
    _in_context(ReducesItself(status=4)),
]


def _seen(value: Any) -> Any:
    """All that a program sees of an exception, to compare with `==`."""
    if not isinstance(value, BaseException):
        return str(value) if isinstance(value, Message) else value
    names = ("status", "hidden", "errno", "filename", "filename2", "start", "reason", "name", "code", "msg")
    fields = {name: getattr(value, name, None) for name in names}
    own = {name: part for name, part in vars(value).items() if name not in ("file", "fp", "_closer")}
    return (
        type(value),
        str(value),
        [_seen(part) for part in value.args if not isinstance(part, list)],
        {name: _seen(part) for name, part in {**fields, **own}.items()},
        [_seen(part) for part in getattr(value, "exceptions", ())],
        _seen(value.__cause__),
        _seen(value.__context__),
        value.__suppress_context__,
    )


def _loaded(error: Any, allow: Allow | None = None) -> Any:
    return loads(*dumps(error), allow=allow)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_exception_loads_as_it_was(error: BaseException) -> None:
    """Class, arguments, attributes, slots, chain and notes come back; the traceback is not stored."""
    other = _loaded(error)
    assert _seen(other) == _seen(error)
    assert other.__traceback__ is None
    assert dumps(other) == dumps(_loaded(error)), "what is loaded pickles alike each time"


def test_an_exception_that_refers_to_itself() -> None:
    """Attributes and contexts may lead back to the exception."""
    error, other = TwoArguments("a", 1), ValueError("b")
    error.self = error  # type: ignore[attr-defined]
    error.__context__, other.__cause__ = other, error
    loaded = _loaded(error)
    assert loaded.self is loaded is loaded.__context__.__cause__


def test_a_working_reduce_decides() -> None:
    """A class with a `__reduce__` or a `__setstate__` of its own is made by them."""
    assert _loaded(ReducesItself(status=4)).cache == [0] * 1000
    assert len(dumps(ReducesItself(status=4))[0]) < 200, "its cache is not stored"
    error = SetsItsState("x")
    error.n = 1  # type: ignore[attr-defined]
    assert vars(_loaded(error)) == vars(_loaded(_in_context(error))) == {"n": 1, "loaded": True}
    assert _loaded(SINGLE) is SINGLE


SHARED = TwoArguments("shared", 1)
"""A program's exception that a hostile pickle may try to change."""


def test_with_an_allow_list() -> None:
    """Exceptions load by the name of their class alone, and a pickle changes no exception of the program."""
    allow = Allow([__name__])
    with ThreadPoolExecutor(1) as thread:  # where no exception is being handled, which would be its context
        chained = thread.submit(_chained).result()
    assert _seen(_loaded(chained, allow)) == _seen(chained)
    with pytest.raises(CannotLoad, match="TwoArguments"):
        _loaded(TwoArguments("a", 1), Allow(["app"]))
    hostile = b"cvstate.values.exceptions\nrestore_exception\n"
    named = f"c{__name__}\nSHARED\n".encode()
    for call in (
        hostile + b"(" + named + b"(N}S'code'\nI9\nsttR.",
        b"(" + hostile + named + b"(N}S'code'\nI9\nsto.",
        b"cvstate.values.fields\nset_fields\n(" + named + b"}S'code'\nI9\nstR.",
        b"(cvstate.values.fields\nset_fields\n" + named + b"}S'code'\nI9\nso.",
    ):
        with pytest.raises(CannotLoad, match=r"whole process|not a class"):
            loads(call, allow=allow)
    assert SHARED.code == 1


def test_only_exceptions_are_made_and_restored() -> None:
    """The two functions that such a pickle calls refuse everything else."""
    for kind in (dict, int, type):
        with pytest.raises(TypeError):
            new_exception(kind)
    for thing in (TwoArguments, SimpleNamespace()):
        with pytest.raises(TypeError):
            restore_exception(thing, (None, {"x": 1}))  # type: ignore[arg-type]


def test_shown_without_loading() -> None:
    """An exception shows as its class, arguments, attributes and chain."""
    shown = repr(inert.read(*dumps(_chained())))
    assert shown.startswith(f"{__name__}.KeywordOnly(")
    assert "status=5" in shown
    assert "__notes__=['while planning']" in shown
    assert f"__cause__={__name__}.TwoArguments('search failed', " in shown
    assert repr(inert.read(*dumps(KeyNotFound("k")))).startswith("vstate.errors.KeyNotFound(\"no key 'k'\", ")


def test_a_plain_exception_keeps_its_form() -> None:
    """Exceptions that pickle itself restores are stored as before, so their stored bytes stay equal."""
    for error in (ValueError("x"), OSError(2, "none", "/a"), json.JSONDecodeError("bad", "{", 1)):
        assert dumps(error)[0] == frameless(pickle.dumps(error, 5))


STORED = {
    "status=5": b"\x80\x05\x8c\x18vstate.values.exceptions\x94\x8c\rnew_exception\x94\x93\x94"
    b"\x8c\x15test_exception_values\x94\x8c\x0bKeywordOnly\x94\x93\x94\x85\x94R\x94"
    b"h\x00\x8c\x11restore_exception\x94\x93\x94h\x07N}\x94\x8c\x06status\x94K\x05s\x86\x94\x86R0.",
    "as pickle wrote it before": b"\x80\x05\x8c\x15test_exception_values\x94\x8c\x0cSetsItsState\x94\x93\x94"
    b"\x8c\x01x\x94\x85\x94R\x94}\x94\x8c\x06status\x94K\x05sb.",
}


@pytest.mark.parametrize("stored", STORED.values(), ids=STORED)
def test_stored_exceptions_stay_readable(stored: bytes) -> None:
    """Stores hold these bytes, so every later version reads them."""
    assert loads(stored).status == 5
    if b"vstate" in stored:
        assert dumps(loads(stored))[0] == stored
