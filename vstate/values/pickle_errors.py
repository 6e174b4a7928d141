"""Errors of pickling: which part of a value cannot be stored, and whether an error is the value's at all."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any, Final

from vstate.errors import CannotLoad
from vstate.values.loading import Tracer
from vstate.values.pickling import Pickler, dumps_unproven

_DEEP_PATH_LIMIT: Final = 3


def culprit(value: Any, path: str, error: Exception) -> str:
    """Where in `value` storing it fails: `'state["job"]["conn"]: sqlite3.Connection (reason)'`.

    `path` leads to the value itself. The value is pickled once more. Raises `error` if another one comes, or
    none: see `own_error`.
    """
    if isinstance(error, MemoryError):
        raise error
    too_deep = _is_recursion(error)
    while True:
        found, again = _failing(value)
        steps, last = _path(found[: 1 + _DEEP_PATH_LIMIT] if too_deep else found)
        path += steps
        if last is value or too_deep or again is None or not _is_recursion(again):
            break
        value = last  # the pickler in Python follows no value as deep as the one in C
    if not isinstance(error, CannotLoad) and type(again) is not type(error) and not too_deep:
        raise error
    kind = type(last)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if too_deep:
        return f"{path}: {name} (nested deeper than pickle can follow)"
    if isinstance(error, CannotLoad):
        return f"{path}: {name} (it would not load again: {error.name}: {error.reason})"
    return f"{path}: {name} ({again})"


def _is_recursion(error: Exception) -> bool:
    return isinstance(error, RecursionError) or "recursion" in str(error)


_PurePickler: Any = pickle._Pickler  # typeshed does not know its methods


class _Path(_PurePickler):  # type: ignore[misc]
    """The pickler in Python, which knows the way to the object that it pickles."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.dispatch_table = Pickler.dispatch_table
        self.reducer_override = Pickler(io.BytesIO(), protocol=5).reducer_override
        self.at: Any = None
        self._above: dict[int, tuple[Any, Any]] = {}
        """Each object, by its id, and the one that it was first met in."""

    def save(self, obj: Any, *options: Any) -> None:
        above = self.at
        self._above.setdefault(id(obj), (obj, above))
        self.at = obj
        super().save(obj, *options)
        self.at = above

    def to(self, obj: Any, root: Any) -> list[Any]:
        """The objects on the way from the root to this one."""
        way = [obj]
        while way[-1] is not root:
            way.append(self._above[id(way[-1])][1])
        return way[::-1]


def _failing(value: Any) -> tuple[list[Any], Exception | None]:
    """The objects on the way to the one that fails, and the error of pickling it. None: it does not load."""
    path: _Path

    def make(*args: Any, **options: Any) -> _Path:
        nonlocal path
        path = _Path(*args, **options)
        return path

    try:
        data, buffers = dumps_unproven(value, make)
    except MemoryError:
        raise
    except Exception as error:  # the value's own code may raise anything
        return path.to(path.at, value), error
    tracer = Tracer(io.BytesIO(data), buffers=[bytearray(buffer) for buffer in buffers])
    try:
        tracer.load()
    except Exception:  # as above
        number = tracer.failing
        return next((path.to(obj, value) for at, obj in path.memo.values() if at == number), [value]), None
    return [value], None


def _path(way: list[Any]) -> tuple[str, Any]:
    """The steps that lead through the parts of the first object, as far as they have names; the last part."""
    path, last = "", way[0]
    for obj in way[1:]:
        for step, part in _parts(last):
            if part is obj:
                path, last = path + step, part
                break
    return path, last


def own_error(action: Callable[[], object], error: Exception) -> Exception:
    """The error that `action` raises again. `error` is the first one.

    An error that does not come again is not the value's: a signal handler raised it, say. It comes out as it
    is, and so does MemoryError.
    """
    if isinstance(error, MemoryError):
        raise error
    try:
        action()
    except MemoryError:
        raise
    except Exception as again:  # the value's own code may raise anything
        if type(again) is type(error):
            return again
    raise error


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
