"""Tracking: whether anything outside can still reach, and so change, a value that the state holds.

On CPython every reference is counted. A value is *unshared* when each object in it is referenced exactly
as often as the value itself explains. In doubt a value counts as shared: that costs a comparison at the next
commit, and never loses an edit.
"""

from __future__ import annotations

import gc
import sys
from copyreg import dispatch_table
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from types import BuiltinFunctionType, ModuleType
from typing import Any
from weakref import getweakrefcount

from vstate.values.fields import by_class
from vstate.values.file import File

NODE_BUDGET = 20_000
"""A value of more objects is not walked: pickling it costs about as much as the walk."""

CYCLE_BUDGET = 200
"""The budget when the value itself has more references than its holder's. Mostly somebody outside has one. In
a small value a look is worth its cost: the references may come from inside, as from a child to its parent."""

IMMUTABLE = frozenset(
    {
        type(None), bool, int, float, complex, str, bytes, range, type(Ellipsis),
        date, datetime, time, timedelta, timezone, Decimal, File,
    }
)  # fmt: skip
"""Types whose instances cannot change, and hold nothing that can."""

CONTAINERS = frozenset({list, dict, set, bytearray})
_FROZEN = frozenset({tuple, frozenset})
_NEVER_WEAK = frozenset({list, dict, tuple, bytearray})
_BUFFERS = frozenset({memoryview, *map(type, gc.get_referents(memoryview(b"")))})
"""The classes between an array that was loaded and the bytearray that holds its numbers."""

_COUNTED = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()


def is_immutable(value: Any) -> bool:
    """Whether no program can change the value in place."""
    kind = type(value)
    if kind in IMMUTABLE:
        return True
    if kind in _FROZEN:
        return all(type(item) in IMMUTABLE for item in value)
    if kind is BuiltinFunctionType:  # `len`, but not `[].append`, which holds a list
        return value.__self__ is None or isinstance(value.__self__, ModuleType)
    return False


def is_unshared(objects: list[Any]) -> bool:
    """Whether the one item of a new list, and everything in it, can be reached through one holder only.

    The holder of the item has one reference to it, and the list the other one. True is certain, for the
    moment of the call; False may be caution. The list grows.
    """
    if not _COUNTED or _BASELINE is None:
        return False
    budget = NODE_BUDGET if sys.getrefcount(objects[0]) <= _BASELINE[0] else CYCLE_BUDGET
    return _walk(objects, budget) == _BASELINE


def _walk(objects: list[Any], budget: int) -> tuple[int, int] | None:
    """The surplus references of the root and of each inner object, beyond those that the value explains; or
    None.

    `objects` holds the root alone at first, and grows. The root has one reference more, from its holder.
    """
    inside = {id(objects[0]): 0}
    position = 0
    while position < len(objects):
        kind = type(objects[position])
        if (
            kind not in CONTAINERS
            and kind not in _FROZEN
            and not _plain_instance(kind)
            and kind not in _BUFFERS
            and not (_is_array(kind) and not objects[position].dtype.hasobject)
        ):
            return None
        if kind not in _NEVER_WEAK and getweakrefcount(objects[position]):
            return None
        if position > budget:
            return None
        for part in gc.get_referents(objects[position]) or _below(objects[position]):
            if type(part) in IMMUTABLE or part is kind:
                continue
            if type(part) in _FROZEN and all(type(item) in IMMUTABLE for item in part):
                continue
            known = id(part)
            if known in inside:
                inside[known] += 1
            else:
                inside[known] = 1
                objects.append(part)
                if len(objects) > budget + 1:  # too many to walk
                    return None
            part = None
        position += 1
    root = sys.getrefcount(objects[0]) - inside[id(objects[0])]
    if len(objects) == 1:
        return root, _INNER
    rest = [sys.getrefcount(objects[i]) - inside[id(objects[i])] for i in range(1, len(objects))]
    if len(set(rest)) > 1:
        return None
    return root, rest[0]


def _is_array(kind: type) -> bool:
    return kind.__module__ == "numpy" and kind.__qualname__ == "ndarray"


def _below(value: Any) -> tuple[Any, ...]:
    """The object whose memory an array shows; the collector does not see it."""
    return (value.base,) if _is_array(type(value)) else ()


_HOOKS = ("__reduce__", "__reduce_ex__", "__getstate__", "__getnewargs__", "__getnewargs_ex__", "__del__")

_INSTANCES = True
"""Whether a walk notices that somebody holds an instance's `__dict__`; tried below. CPython 3.13 hides it."""


def _plain_instance(kind: type) -> bool:
    """Whether this is a class written in Python without hooks for pickling.

    Then pickle takes only its attributes, which the collector sees.
    """
    if kind in dispatch_table:  # asked each time: `copyreg.pickle` may have added a reducer since
        return False
    return (_INSTANCES or not kind.__dictoffset__) and _has_no_hooks(kind)


@by_class
def _has_no_hooks(kind: type) -> bool:
    bases = kind.__mro__[1:]
    return (
        bool(kind.__flags__ & 1 << 9)  # a class written in Python
        and all(base is object or (base.__flags__ & 1 << 9) for base in bases)
        and not any(
            name in base.__dict__
            for base in kind.__mro__[:-1]
            for name in _HOOKS
            if base.__module__ != "pydantic.main"  # its hook takes the attributes alone too
        )
    )


def _calibrate() -> tuple[int, int] | None:
    """The result of `_walk` for a value that is certainly unshared: the walk's own references."""
    holder = {"": [[]]}  # type: ignore[var-annotated]
    objects = [holder[""]]
    return _walk(objects, NODE_BUDGET)


_INNER = 0
if _COUNTED:
    _found = _calibrate()
    _INNER = _found[1] if _found else 0
_BASELINE = _calibrate() if _COUNTED else None


class _Probe:
    def __init__(self) -> None:
        self.part: list[int] = []


def _sees_dicts() -> bool:
    holder = {"free": _Probe(), "held": _Probe()}
    attributes = vars(holder["held"])
    seen = is_unshared([holder["free"]]) and not is_unshared([holder["held"]])
    del attributes
    return seen


_INSTANCES = _sees_dicts()
