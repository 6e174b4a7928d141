"""Exceptions: how one is pickled so that it loads again, with the exceptions that led to it.

To load an exception, Python's pickle calls the class with `args`. A class with an `__init__` of its own often
takes other arguments. So such an exception is made without `__init__`, and then its parts are set. The
traceback is not stored, because it refers to frames.
"""

from __future__ import annotations

import copyreg
from collections.abc import Iterator
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, Final

_HEAP_TYPE: Final = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made at run time, as by every `class` statement
_NOTES: Final = "__notes__"
_READ_ONLY: Final = frozenset({BaseException, BaseExceptionGroup})
"""Their members are parts of the chain, or arguments of `__new__`."""


def reduce_exception(error: BaseException) -> Any:
    """The exception in the form that `__reduce_ex__` returns, with its chain of exceptions and its notes.

    A class with a `__reduce__` of its own, or without an `__init__` of its own, is made as pickle makes it.
    """
    kind = type(error)
    parts = _chain(error)
    reducer = copyreg.dispatch_table.get(kind)
    reduces_itself = reducer is not None or _overrides(kind, "__reduce_ex__", "__reduce__")
    if not reduces_itself and (_overrides(kind, "__init__", "__new__", "__setattr__") or _has_slots(kind)):
        made_of: tuple[Any, ...] = error.args
        if isinstance(error, BaseExceptionGroup):
            made_of = error.message, list(error.exceptions)
            parts["args"] = error.args
        parts = {**dict(_members(error)), **vars(error), **parts}
        return new_exception, (kind, *made_of), (None, parts), None, None, restore_exception
    if reduces_itself and _NOTES in vars(error):
        parts[_NOTES] = vars(error)[_NOTES]
    reduced = error.__reduce_ex__(5) if reducer is None else reducer(error)
    if type(reduced) is not tuple or (len(reduced) == 6 and reduced[5] is not None):
        return reduced
    function, args, state, items, entries = (*reduced, None, None, None)[:5]
    if not reduces_itself:
        state = state or None  # a look at `__dict__` makes an empty one, and is no change
    if not parts:
        return reduced if reduces_itself else (function, args, state)
    return function, args, (state, parts), items, entries, restore_exception


def new_exception(kind: type[BaseException], *args: Any) -> BaseException:
    """An exception of this class with these `args`. Neither `__init__` nor `__new__` of the class runs.

    The `args` of an exception group are its message and its exceptions.
    """
    builtin = next(base for base in kind.__mro__ if not base.__flags__ & _HEAP_TYPE)
    if not issubclass(builtin, BaseException):
        raise TypeError(f"{kind.__qualname__} is not a class of exceptions")
    made = builtin.__new__(kind, *args)
    _descriptor(kind, "args").__set__(made, args)
    return made


def restore_exception(error: BaseException, state: tuple[Any, dict[str, Any]]) -> None:
    """Give a new exception the state that its own `__reduce__` returned, None for none, and its parts."""
    if not isinstance(error, BaseException):
        raise TypeError(f"a {type(error).__qualname__} is not an exception")
    own, parts = state
    if own is not None:
        error.__setstate__(own)
    for name, value in parts.items():
        # Not by setattr: the class may forbid it, as a frozen dataclass does.
        descriptor = _descriptor(type(error), name)
        if descriptor is not None:
            descriptor.__set__(error, value)
        else:
            vars(error)[name] = value


def _chain(error: BaseException) -> dict[str, Any]:
    """The exceptions before this one, as far as there are any. The order counts: a cause sets the third."""
    found: dict[str, Any] = {}
    if error.__cause__ is not None:
        found["__cause__"] = error.__cause__
    if error.__context__ is not None:
        found["__context__"] = error.__context__
    if error.__suppress_context__ or "__cause__" in found:
        found["__suppress_context__"] = error.__suppress_context__
    return found


def _overrides(kind: type, *names: str) -> bool:
    """Whether the first class that defines one of the names is not built in."""
    for name in names:
        owner = next(base for base in kind.__mro__ if name in vars(base))
        if owner.__flags__ & _HEAP_TYPE:
            return True
    return False


def _has_slots(kind: type) -> bool:
    return any(
        type(member) is MemberDescriptorType
        for base in kind.__mro__
        if base.__flags__ & _HEAP_TYPE
        for member in vars(base).values()
    )


def _members(error: BaseException) -> Iterator[tuple[str, Any]]:
    """The `__slots__` that are set, and the fields of built-in exceptions such as `OSError.errno`."""
    for base in reversed(type(error).__mro__):
        if base in _READ_ONLY:
            continue
        for name, member in vars(base).items():
            # CPython leaves out `obj` too: it may be any object.
            if type(member) is not MemberDescriptorType or (base is AttributeError and name == "obj"):
                continue
            try:
                value = member.__get__(error)
            except AttributeError:  # not set
                continue
            if value is not None or base.__flags__ & _HEAP_TYPE:  # a field that is not set reads as None
                yield name, value


def _descriptor(kind: type, name: str) -> Any:
    """The class's slot or built-in field of this name; None if the name is an entry of `__dict__`."""
    for base in kind.__mro__:
        if type(found := vars(base).get(name)) in (MemberDescriptorType, GetSetDescriptorType):
            return found
    return None
