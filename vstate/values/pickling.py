"""Pickling: any Python value as a frameless pickle and its out-of-band buffers, and back."""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
import threading
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import cloudpickle
from cloudpickle import cloudpickle as by_value

from vstate.errors import CannotLoad
from vstate.values.allow import Allow
from vstate.values.exceptions import reduce_exception
from vstate.values.opcodes import framed, frameless

OUT_OF_BAND_BYTES = 1024
"""A contiguous buffer from this size on leaves the pickle and is stored beside it."""

OUT_OF_BAND_LIMIT = 64
"""Buffers after this many stay in the pickle: the entry of a list of a million arrays stays short."""

_NAMES = b"\x93"
"""The opcode STACK_GLOBAL, which is before each class in a pickle of protocol 4 or later."""

_RETRIES = 20
_LONG_SWITCH_SECONDS = 10.0


def dumps(value: Any) -> tuple[bytes, list[memoryview]]:
    """The value as a frameless pickle and its large contiguous buffers, not copied.

    Classes and functions that another process cannot import, above all those of `__main__`, are stored by
    value. Passes on every error of pickling.
    """
    try:
        return _dumps(value)
    except RuntimeError as error:
        # Another thread edited a dict or set of the value during the walk.
        if "during iteration" not in str(error):
            raise
    with _undisturbed():
        for _ in range(_RETRIES):
            try:
                return _dumps(value)
            except RuntimeError as error:
                if "during iteration" not in str(error):
                    raise
        return _dumps(value)


_switching = threading.Lock()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep other threads from running, as far as the interpreter allows."""
    with _switching:
        usual = sys.getswitchinterval()
        sys.setswitchinterval(_LONG_SWITCH_SECONDS)
        try:
            yield
        finally:
            sys.setswitchinterval(usual)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no annotations
    """cloudpickle's pickler, but exceptions load again, and an open file is refused, as pickle does.

    cloudpickle would store a copy of the file.
    """

    dispatch_table: ClassVar[Mapping[type, Any]] = ChainMap(
        {
            kind: reduce
            for kind, reduce in cloudpickle.Pickler._dispatch_table.items()
            if kind is not io.TextIOWrapper
        },
        copyreg.dispatch_table,
    )

    def reducer_override(self, obj: Any) -> Any:
        if issubclass(type(obj), BaseException):
            return reduce_exception(obj)
        return super().reducer_override(obj)


def _dumps(value: Any) -> tuple[bytes, list[memoryview]]:
    buffers: list[memoryview] = []

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous
            return True
        if raw.nbytes < OUT_OF_BAND_BYTES or len(buffers) == OUT_OF_BAND_LIMIT:
            return True
        buffers.append(raw)
        return False

    file = io.BytesIO()
    _Pickler(file, protocol=5, buffer_callback=keep_in_band).dump(value)
    return frameless(file.getvalue()), buffers


def loads(
    data: bytes | bytearray, buffers: Sequence[bytearray | memoryview] = (), *, allow: Allow | None = None
) -> Any:
    """The value that `dumps` stored in `data` and `buffers`.

    Unpickling runs the code that the pickle names: any, or with `allow` only names that it covers. Raises
    CannotLoad with the name of the class or function that cannot be loaded.
    """
    if allow is not None:
        # Late: it imports this module, and a program without an allow-list never needs it.
        from vstate.values.guarded import loads_allowed

        return loads_allowed(data, buffers, allow)
    if _NAMES not in data and not buffers:
        # Plain data names no class, and needs no Loader: a third of its time.
        return loaded(partial(pickle.loads, data), str)
    loader = Loader(io.BytesIO(framed(bytes(data))), buffers=buffers)
    return loaded(loader.load, lambda: loader.last_global)


def loaded(load: Callable[[], Any], last_global: Callable[[], str]) -> Any:
    """The result of `load`. Any error becomes CannotLoad with the name that the pickle found last."""
    try:
        return load()
    except CannotLoad:
        raise
    except Exception as error:  # the code that a pickle names may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise CannotLoad(last_global() or "its pickle", reason) from error


class Loader(pickle.Unpickler):
    """Finds classes as pickle does, but for a class of `__main__` it takes the running program's own.

    cloudpickle would make a second class of the same name. In a program that was started again, isinstance()
    with the program's own class would then be False.
    """

    last_global = ""

    def find_class(self, module: str, name: str) -> Any:
        self.last_global = f"{module}.{name}"
        own = own_builder(module, name)
        if own is not None:
            return own
        try:
            return super().find_class(module, name)
        except Exception as error:  # the import runs the module's code, which may raise anything
            raise CannotLoad(self.last_global, f"{type(error).__name__}: {error}") from error


def own_builder(module: str, name: str) -> Callable[..., Any] | None:
    """The function that replaces this one of cloudpickle's, if any."""
    return _BUILDERS.get(name) if module == by_value.__name__ else None


def _own_class(module: str | None, name: str) -> type | None:
    """The running program's class of this name, nested ones included, if there is exactly one."""
    main = sys.modules.get("__main__") if module == "__main__" else None
    if main is None:
        return None
    found = [cls for cls in _classes(vars(main), "") if cls.__name__ == name]
    return found[0] if len(found) == 1 else None


def _classes(names: Mapping[str, Any], path: str) -> Iterator[type]:
    for name, value in list(names.items()):
        if isinstance(value, type) and value.__module__ == "__main__" and value.__qualname__ == path + name:
            yield value
            yield from _classes(vars(value), f"{path}{name}.")


def _make_skeleton_class(
    type_constructor: Any, name: str, bases: Any, type_kwargs: dict[str, Any], tracker: Any, extra: Any
) -> type:
    own = _own_class(type_kwargs.get("__module__"), name)
    if own is not None:
        return own
    return by_value._make_skeleton_class(  # type: ignore[no-any-return]
        type_constructor, name, bases, type_kwargs, tracker, extra
    )


def _make_skeleton_enum(
    bases: Any, name: str, qualname: str, members: Any, module: str, tracker: Any, extra: Any
) -> type:
    own = _own_class(module, name)
    if own is not None:
        return own
    return by_value._make_skeleton_enum(  # type: ignore[no-any-return]
        bases, name, qualname, members, module, tracker, extra
    )


def _class_setstate(made: type, state: Any) -> type:
    if _own_class(made.__module__, made.__name__) is made:
        return made
    return by_value._class_setstate(made, state)  # type: ignore[no-any-return]


_BUILDERS: dict[str, Callable[..., Any]] = {
    "_make_skeleton_class": _make_skeleton_class,
    "_make_skeleton_enum": _make_skeleton_enum,
    "_class_setstate": _class_setstate,
}


# Where a value cannot be pickled


_SEARCH_LIMIT = 10_000
_PATH_LIMIT = 100
_DEEP_PATH_LIMIT = 3


def culprit(value: Any, path: str, error: BaseException) -> str:
    """Where in `value` pickling fails: `'state["job"]["conn"]: sqlite3.Connection (reason)'`.

    `path` leads to the value itself. Follows the first part that cannot be pickled by itself, down to a part
    without such parts. Tries at most 10,000 parts.
    """
    tried = 0
    # A value that is too deep has no single culprit: a few steps show where it begins.
    for _ in range(_DEEP_PATH_LIMIT if _is_recursion(error) else _PATH_LIMIT):
        for step, part in _parts(value):
            tried += 1
            if tried > _SEARCH_LIMIT:
                break
            failure = _failure(part)
            if failure is not None:
                path, value, error = path + step, part, failure
                break
        else:
            break
        if tried > _SEARCH_LIMIT:
            break
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if _is_recursion(error):
        return f"{path}: {name} (nested deeper than pickle can follow)"
    return f"{path}: {name} ({error})"


def _is_recursion(error: BaseException) -> bool:
    return isinstance(error, RecursionError) or "recursion" in str(error)


def _failure(value: Any) -> BaseException | None:
    try:
        dumps(value)
    except Exception as error:  # the value's own code may raise anything
        return error
    return None


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
