"""Identity: which fold it is, so that what is kept of one is never taken for another's."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

_DIGEST_BYTES = 16


def identity_of(apply: Callable[..., Any], initial: Any, name: str | None) -> str | None:
    """What the fold is kept under, made of its function, or its name, and `initial`; None if it cannot be told from others."""
    try:
        # repr of plain texts, since what pickle writes depends on which of them are the same objects.
        what = repr((("name", name) if name is not None else _function(apply), pickle.dumps(initial, 5)))
    except Exception:  # whatever the pickling of somebody's class raises
        return None
    return hashlib.blake2b(what.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _function(apply: Any) -> Any:
    # Values that mean something else by their place are in lists of their own, so that none can look like another.
    if isinstance(apply, partial):
        named = [(name, _closed(value)) for name, value in sorted(apply.keywords.items())]
        return "partial", _function(apply.func), list(map(_closed, apply.args)), named
    if isinstance(apply, FunctionType):
        closed = [_closed(cell.cell_contents) for cell in apply.__closure__ or ()]
        named = [(name, _closed(value)) for name, value in sorted((apply.__kwdefaults__ or {}).items())]
        return (
            apply.__module__,
            apply.__qualname__,
            _code(apply.__code__),
            closed,
            list(map(_closed, apply.__defaults__ or ())),
            named,
        )
    if isinstance(apply, BuiltinFunctionType) and isinstance(apply.__self__, ModuleType):
        return apply.__module__, apply.__qualname__
    raise TypeError(f"{apply!r} is no function")


def _closed(value: Any) -> Any:
    return (
        _function(value) if isinstance(value, FunctionType | partial) else ("value", pickle.dumps(value, 5))
    )


def _code(code: CodeType) -> Any:
    return (
        code.co_code,
        code.co_exceptiontable,
        list(map(_constant, code.co_consts)),
        code.co_names,
        code.co_varnames,
        code.co_freevars,
    )


def _constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return _code(value)
    return sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)
