"""Culprits: which part of a value cannot be pickled, and whether an error is the value's at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pickle import HIGHEST_PROTOCOL
from typing import Any, Final

from vstate.errors import CannotLoad
from vstate.values.pickling import dumps

_REDUCERS: Final = ("__reduce_ex__", "__reduce__", "__getstate__")
_SEARCH_LIMIT: Final = 10_000
_PATH_LIMIT: Final = 100
_DEEP_PATH_LIMIT: Final = 3


def culprit(value: Any, path: str, error: Exception) -> str:
    """Where in `value` pickling fails: `'state["job"]["conn"]: sqlite3.Connection (reason)'`.

    `path` leads to the value itself. Follows the first part that cannot be pickled by itself, down to a part
    without such parts, or whose own method refuses. Tries at most 10,000 parts.
    """
    tried = 0
    error = own_error(partial(dumps, value), error)
    # A value that is too deep has no single culprit: a few steps show where it begins.
    for _ in range(_DEEP_PATH_LIMIT if _is_recursion(error) else _PATH_LIMIT):
        for step, part in () if _refuses(value) else _parts(value):
            tried += 1
            if tried > _SEARCH_LIMIT:
                break
            pickling = partial(dumps, part)
            failure = _failure(pickling)
            if failure is not None:
                path, value, error = path + step, part, own_error(pickling, failure)
                break
        else:
            break
        if tried > _SEARCH_LIMIT:
            break
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if _is_recursion(error):
        return f"{path}: {name} (nested deeper than pickle can follow)"
    if isinstance(error, CannotLoad):
        return f"{path}: {name} (it would not load again: {error.name}: {error.reason})"
    return f"{path}: {name} ({error})"


def _is_recursion(error: Exception) -> bool:
    return isinstance(error, RecursionError) or "recursion" in str(error)


def own_error(action: Callable[[], object], error: Exception) -> Exception:
    """The error that `action` raises each time. `error` is the first one.

    An error that does not come again is not the value's: a signal handler raised it, say. It comes out as it
    is, and so does MemoryError.
    """
    if isinstance(error, MemoryError):
        raise error
    again = _failure(action)
    if again is not None and type(again) is type(error):
        return again
    third = None if again is None else _failure(action)
    raise error if again is None or type(third) is type(again) else again


def _failure(action: Callable[[], object]) -> Exception | None:
    try:
        action()
    except MemoryError:
        raise
    except Exception as error:  # the value's own code may raise anything
        return error
    return None


def _refuses(value: Any) -> bool:
    """Whether the class of `value` has a method for pickling it, and that raises: no part is at fault."""
    own = (vars(cls) for cls in type(value).__mro__[:-1])
    if not any(name in names for names in own for name in _REDUCERS):
        return False
    return _failure(partial(value.__reduce_ex__, HIGHEST_PROTOCOL)) is not None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    try:
        if isinstance(value, dict):
            for key, item in list(value.items()):
                shown = f'"{key}"' if isinstance(key, str) else repr(key)
                yield f"[{shown}]", item
                yield f".keys()[{shown}]", key
        elif isinstance(value, list | tuple):
            for i, item in enumerate(list(value)):
                yield f"[{i}]", item
        elif isinstance(value, set | frozenset):
            for item in list(value):
                yield "{…}", item
        if isinstance(value, BaseException):
            for i, item in enumerate(value.args):
                yield f".args[{i}]", item
            yield ".__cause__", value.__cause__
            yield ".__context__", value.__context__
        attributes: dict[str, Any] = dict(getattr(value, "__dict__", None) or {})
        for cls in type(value).__mro__:
            slots = cls.__dict__.get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                if slot not in ("__dict__", "__weakref__") and hasattr(value, slot):
                    attributes[slot] = getattr(value, slot)
        if not isinstance(value, type):
            for name, item in attributes.items():
                yield f".{name}", item
    except Exception:  # the value's own __getattr__ or __repr__ failed: it is the culprit itself
        return
