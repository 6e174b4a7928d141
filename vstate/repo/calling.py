"""Calling: functions that others give to be called, whose results are looked at here and awaited by nobody."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

_NOT_PLAIN = CoroutineType, GeneratorType, AsyncGeneratorType


def called(what: str, function: Callable[_P, _T], /, *args: _P.args, **options: _P.kwargs) -> _T:
    """What the function returns; TypeError, naming `what` it is, for a coroutine or generator: nothing of it has run."""
    result = function(*args, **options)
    if not isinstance(result, _NOT_PLAIN):
        return result
    if not isinstance(result, AsyncGeneratorType):
        result.close()
    raise _not_plain(what)


def require_plain(what: str, function: Callable[..., object]) -> None:
    """TypeError for what is seen to be no plain function, before it is called, where a later error would reach nobody."""
    if (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    ):
        raise _not_plain(what)


def _not_plain(what: str) -> TypeError:
    return TypeError(f"{what} is called, not awaited nor gone through: give it a plain def")
