"""Fields: objects whose classes store their fields by place, or drop a field unseen.

A named tuple, a struct of msgspec and a frozen dataclass with slots write the values of their fields in
order. After the fields were reordered, such values would be swapped. A class of attrs with slots drops each
field that it does not have. So vstate stores the fields of all these by name.

The names of the functions `make` and `set_fields` are in stored pickles.
"""

from __future__ import annotations

import copyreg
import dataclasses
import pickle
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import FunctionType, MemberDescriptorType
from typing import Any, Final, TypeVar

from vstate.errors import CannotLoad

_MOST_CLASSES: Final = 10_000
_GENERATED: Final = ["_dataclass_getstate", "_dataclass_setstate"], ["slots_getstate", "slots_setstate"]
"""The functions of dataclasses and of attrs for the state of classes with slots."""
_HASH: Final = "_attrs_cached_hash"
HOLDERS: Final = ("__dict__", "__pydantic_extra__", "__pydantic_private__")
"""The entries of the state that hold fields of the model: declared, extra and private ones."""
FIELDS_SET: Final = "__pydantic_fields_set__"
"""The entry with the names of the fields that were given. It is no field: `==` of pydantic ignores it."""
Fields = dict[str, Any]


_T = TypeVar("_T")


def by_class(function: Callable[[type], _T]) -> Callable[[type], _T]:
    """The function with its results kept, for the classes that were asked for last."""
    return lru_cache(_MOST_CLASSES)(function)


def _module(kind: type, name: str) -> str:
    """The module of the function that the class has under the name."""
    found = getattr(kind, name, None)
    return found.__module__ if isinstance(found, FunctionType) else ""


@by_class
def field_names(kind: type) -> tuple[str, ...] | None:
    """The fields of a class whose objects are made at once, from all of them; None for any other class."""
    if issubclass(kind, tuple):
        new = kind.__new__.__globals__ if isinstance(kind.__new__, FunctionType) else {}
        generated = str(new.get("__name__")).startswith("namedtuple_")
        same = kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__
        same = same and _module(kind, "__getnewargs__") == "collections"
        return kind._fields if generated and same else None  # type: ignore[attr-defined]
    made_by = getattr(kind.__reduce__, "__objclass__", object)
    return kind.__struct_fields__ if made_by.__module__ == "msgspec._core" else None  # type: ignore[attr-defined]


@by_class
def is_by_name(kind: type) -> bool:
    """Whether the objects of the class are stored by the names of their fields."""
    found = [getattr(getattr(kind, name, None), "__name__", "") for name in ("__getstate__", "__setstate__")]
    return field_names(kind) is not None or found in _GENERATED


@by_class
def _names_in_slots(kind: type) -> list[str] | None:
    """The fields of a dataclass with the state of one with slots; None for any other class."""
    is_one = dataclasses.is_dataclass(kind) and _module(kind, "__getstate__") == "dataclasses"
    return [field.name for field in dataclasses.fields(kind)] if is_one else None


def reduce_by_name(obj: Any) -> tuple[Any, ...]:
    """An object of such a class, in the form that `__reduce_ex__` returns."""
    kind = type(obj)
    names, more = field_names(kind), getattr(obj, "__dict__", None)
    if names is None:
        inside = _names_in_slots(kind)
        if inside is None:
            fields = obj.__getstate__()
        else:
            fields = {name: getattr(obj, name) for name in inside if hasattr(obj, name)}
        fields = {**fields, **more} if more else fields
        return copyreg.__newobj__, (kind,), fields, None, None, set_fields  # type: ignore[attr-defined]
    if not issubclass(kind, tuple):
        return make, (kind, {name: getattr(obj, name) for name in names}), more or None
    reduced = obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)  # it may have attributes besides
    return make, (kind, dict(zip(names, obj, strict=True))), *reduced[2:]


def make(kind: type, fields: Fields) -> Any:
    """The object of the class with these fields, and the defaults of others. No `__init__` is called."""
    return kind.__new__(kind, **fields) if issubclass(kind, tuple) else kind(**fields)


def set_fields(obj: Any, fields: Fields) -> Any:
    """Give a new object these fields, past a `__setattr__`. CannotLoad for a field that it cannot have."""
    kind = type(obj)
    if not is_by_name(kind) and (restore := getattr(obj, "__setstate__", None)) is not None:
        restore(fields)
        return obj
    slots = slots_of(kind)
    for name, value in fields.items():
        if name in slots:
            slots[name].__set__(obj, value)
        elif kind.__dictoffset__:
            obj.__dict__[name] = value
        else:
            reason = (
                f"it was stored with the field {name!r}, which the class does not have: use vstate.upgrade"
            )
            raise CannotLoad(f"{kind.__module__}.{kind.__qualname__}", reason, called=True)
    if _HASH in slots:
        slots[_HASH].__set__(obj, None)
    return obj


@by_class
def slots_of(kind: type) -> dict[str, Any]:
    """The slots of the class by their names."""
    found = {name: member for base in reversed(kind.__mro__) for name, member in vars(base).items()}
    return {name: member for name, member in found.items() if type(member) is MemberDescriptorType}


def dicts_of_fields(state: Mapping[object, object]) -> list[dict[object, object]] | None:
    """The dicts that hold the fields of a model; None if this is not the state of one."""
    if FIELDS_SET not in state or not state.keys() <= {*HOLDERS, FIELDS_SET}:
        return None
    held = [state[name] for name in HOLDERS if state.get(name) is not None]
    found = [fields for fields in held if isinstance(fields, dict)]
    names = {name for fields in found for name in fields if isinstance(name, str)}
    return found if len(found) == len(held) and len(names) == sum(map(len, found)) else None
