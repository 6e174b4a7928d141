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
from typing import Any, ClassVar

import cloudpickle
from cloudpickle import cloudpickle as by_value

from vstate.errors import CannotLoad
from vstate.values.allow import Allow
from vstate.values.opcodes import framed, frameless

OUT_OF_BAND_BYTES = 1024
"""A contiguous buffer from this size on leaves the pickle and is stored beside it."""

OUT_OF_BAND_LIMIT = 64
"""The buffers beyond these stay in the pickle, so that the entry of a list of a million arrays stays short."""

_RETRIES = 20
_LONG_SWITCH_SECONDS = 10.0


def dumps(value: Any) -> tuple[bytes, list[memoryview]]:
    """The value as a frameless pickle and its large contiguous buffers, not copied.

    Classes and functions that another process could not import, those of `__main__` above all, go in by
    value. Raises whatever pickling raises.
    """
    try:
        return _dumps(value)
    except RuntimeError as error:
        # Another thread edited a dict or set of the value while it was walked.
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
    """Keep other threads from running in between, as far as the interpreter lets us."""
    with _switching:
        usual = sys.getswitchinterval()
        sys.setswitchinterval(_LONG_SWITCH_SECONDS)
        try:
            yield
        finally:
            sys.setswitchinterval(usual)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no annotations
    """cloudpickle's, but an open file is refused, as pickle does: it would read the file and store a copy of it."""

    dispatch_table: ClassVar[Mapping[type, Any]] = ChainMap(
        {
            kind: reduce
            for kind, reduce in cloudpickle.Pickler._dispatch_table.items()
            if kind is not io.TextIOWrapper
        },
        copyreg.dispatch_table,
    )


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
    """The value that `dumps` gave `data` and `buffers` for. Runs the code that the pickle names: any, or with
    `allow` only what that covers.

    Raises CannotLoad, naming the class or function that is in the way.
    """
    if allow is not None:
        # Late, because it builds on this module; and a program without an allow-list never needs it.
        from vstate.values.guarded import loads_allowed

        return loads_allowed(data, buffers, allow)
    loader = Loader(io.BytesIO(framed(bytes(data))), buffers=buffers)
    return loaded(loader.load, lambda: loader.last_global)


def loaded(load: Callable[[], Any], last_global: Callable[[], str]) -> Any:
    """What `load` returns; CannotLoad, with the name that was found last, for whatever it raises."""
    try:
        return load()
    except CannotLoad:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise CannotLoad(last_global() or "its pickle", reason) from error


class Loader(pickle.Unpickler):
    """Finds classes as pickle does, but takes the running program's own class for one of `__main__`.

    cloudpickle would make a second class of the same name, to which isinstance() answers no in a program
    that was started again.
    """

    last_global = ""

    def find_class(self, module: str, name: str) -> Any:
        self.last_global = f"{module}.{name}"
        own = own_builder(module, name)
        if own is not None:
            return own
        try:
            return super().find_class(module, name)
        except Exception as error:
            raise CannotLoad(self.last_global, f"{type(error).__name__}: {error}") from error


def own_builder(module: str, name: str) -> Callable[..., Any] | None:
    """What is called instead of a function of cloudpickle's."""
    return _BUILDERS.get(name) if module == by_value.__name__ else None


def _own_class(module: str | None, name: str) -> type | None:
    """The class of the running program with this name, if there is one and only one, nested ones included."""
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


# What cannot be pickled, and where it is


_SEARCH_LIMIT = 10_000
_PATH_LIMIT = 100
_DEEP_PATH_LIMIT = 3


def culprit(value: Any, path: str, error: BaseException) -> str:
    """Where in `value` pickling fails: `'state["job"]["conn"]: sqlite3.Connection (reason)'`.

    `path` is how the value itself is reached. Follows the first part that fails by itself, down to one
    that has no such part; looks at 10,000 parts at the most.
    """
    tried = 0
    # What is too deep has no one culprit: a few steps show where it begins.
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
    except Exception as error:
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
    except Exception:  # a hostile __getattr__ or __repr__: then the value itself is the answer
        return
