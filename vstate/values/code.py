"""Code: whether loading objects of a class runs code of the program, which may refuse one and take another.

Pickle makes most objects without their classes: it allocates them and fills in their attributes. Such an
object loads whatever it holds, once its class is found. A class with a `__setstate__`, a `__hash__` or a
`__setitem__` of its own is asked for each object. So a pickle with such an object is loaded before it is
stored.
"""

from __future__ import annotations

import copyreg
import sys
from enum import Enum
from types import FunctionType, MemberDescriptorType
from typing import Any, Final

from vstate.values.definitions import needs_definition
from vstate.values.fields import by_class, field_names, is_by_name

__all__ = ["runs_code"]

_HEAP_TYPE: Final = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made at run time, as by every `class` statement
_BUILTINS: Final = frozenset({"", "builtins"})
_LIBRARIES: Final = sys.stdlib_module_names | {"cloudpickle", "numpy", "pandas", "vstate"}
"""The packages whose own classes load all their pickles. A class that a program derives does not count."""
_PYDANTIC: Final = _BUILTINS | {"pydantic"}
_MSGSPEC: Final = _BUILTINS | {"msgspec"}
_LOOKING: Final = ("__hash__", "__getattribute__")
_ALLOCATING: Final = (*_LOOKING, "__new__", "__getnewargs__", "__getnewargs_ex__")
_FILLING: Final = ("__setitem__", "__iter__", "append", "extend", "items")
_MISSING: Final = ("__getattr__",)
_STATE: Final = (*_MISSING, "__getstate__", "__setstate__")
_ENUM: Final = ("__reduce_ex__", "__hash__", "_missing_")
_OF_EXCEPTIONS: Final = ("__reduce_ex__", "__reduce__", "__getattribute__", "__hash__")
"""`reduce_exception` makes an exception without its `__init__` and its `__new__`."""
_PLAIN_VALUES: Final = frozenset({bool, bytes, int, str, type(None)})


@by_class
def runs_code(kind: type) -> bool:
    """Whether loading an object of the class may run code that a program wrote, so that it may fail.

    False is certain. Hashing counts: an object in a set of its own cycle is hashed before it has its state.
    """
    if issubclass(kind, type) or kind is FunctionType:
        return True  # those that are stored by value
    reducer = copyreg.dispatch_table.get(kind)
    if reducer is not None and _root(reducer.__module__) not in _LIBRARIES:
        return True
    pickled: Any = kind.__reduce_ex__, kind.__reduce__
    is_built = pickled == (object.__reduce_ex__, object.__reduce__)
    if _root(kind.__module__) in _LIBRARIES and not (kind.__flags__ & _HEAP_TYPE and needs_definition(kind)):
        # A UserString may be in a set that it holds itself.
        is_hashed = kind.__dictoffset__ != 0 and isinstance(kind.__hash__, FunctionType)
        return is_built and is_hashed and _root(kind.__module__) in sys.stdlib_module_names
    if issubclass(kind, Enum):
        plain = all(type(member._value_) in _PLAIN_VALUES for member in kind.__members__.values())
        return not plain or _packages(kind, _ENUM) - _BUILTINS != {"enum"}
    by_name = is_by_name(kind)
    if _packages(kind, _MISSING if by_name else _STATE) - _PYDANTIC:
        return True
    if issubclass(kind, BaseException):
        return bool(_packages(kind, _OF_EXCEPTIONS) - _BUILTINS)
    if by_name:
        called = (
            _MSGSPEC
            if issubclass(kind, tuple) or field_names(kind) is None
            else {_root(type(kind).__module__)}
        )
        return hasattr(kind, "__post_init__") or bool((called | _packages(kind, _LOOKING)) - _MSGSPEC)
    if not is_built or _packages(kind, _ALLOCATING) - _BUILTINS:
        return True
    if issubclass(kind, dict | list) and _packages(kind, _FILLING) - _BUILTINS:
        return True
    if hasattr(kind, "__setstate__"):  # pydantic's
        return False
    slots: list[str] = copyreg._slotnames(kind)  # type: ignore[attr-defined]  # as pickle itself asks
    set_by = _packages(kind, ("__setattr__",)) if slots else set()
    return bool(set_by - _BUILTINS) or any(
        type(_member(kind, name)[1]) is not MemberDescriptorType for name in slots
    )


def _packages(kind: type, names: tuple[str, ...]) -> set[str]:
    """The packages that define these attributes of the class; "" for one that no class has."""
    return {_package(*_member(kind, name)) for name in names}


def _package(owner: type, member: Any) -> str:
    if member is None:  # none has it, or it is switched off, as `__hash__` often is
        return ""
    function = getattr(member, "__func__", member)
    if isinstance(function, FunctionType):
        return _root(function.__module__)
    found = getattr(
        function, "__objclass__", owner
    )  # of a slot of a built-in class, which `owner` may borrow
    package = _root(found.__module__)
    return "?" if package == "builtins" and found.__flags__ & _HEAP_TYPE else package


def _member(kind: type, name: str) -> tuple[type, Any]:
    return next(((base, vars(base)[name]) for base in kind.__mro__ if name in vars(base)), (object, None))


def _root(module: object) -> str:
    return str(module).partition(".")[0]
