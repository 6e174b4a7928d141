"""Tracking: whether anything outside can still reach, and so change, a value that the state holds.

On CPython every reference is counted. A value is *unshared* when each object in it is referenced exactly
as often as the value itself explains. Whatever this cannot decide counts as shared: that costs a check at
the next commit, never an edit.
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

NODE_BUDGET = 20_000
"""A value of more objects is not walked: pickling it costs about as much as the walk."""

CYCLE_BUDGET = 200
"""The budget when the value itself has more references than its holder's: mostly somebody else has one, but
in a small value it is worth a look whether they come from inside, as those of a child to its parent do."""

IMMUTABLE = frozenset(
    {
        type(None), bool, int, float, complex, str, bytes, range, type(Ellipsis),
        date, datetime, time, timedelta, timezone, Decimal,
    }
)  # fmt: skip
"""Types whose instances nothing can change, nor anything that they hold."""

_CONTAINERS = frozenset({list, dict, set, bytearray})
_FROZEN = frozenset({tuple, frozenset})
_NEVER_WEAK = frozenset({list, dict, tuple, bytearray})

_COUNTED = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()


def is_immutable(value: Any) -> bool:
    """Whether no program can change the value in place."""
    kind = type(value)
    if kind is BuiltinFunctionType:  # `len`, but not `[].append`, which holds a list
        return value.__self__ is None or isinstance(value.__self__, ModuleType)
    return kind in IMMUTABLE or (kind in _FROZEN and all(type(item) in IMMUTABLE for item in value))


def is_unshared(holder: Any, key: Any) -> bool:
    """Whether `holder[key]` and everything in it can be reached through `holder`, a dict or tuple, only.

    True is certain, for the moment of the call; False may be caution.
    """
    if not _COUNTED or _BASELINE is None:
        return False
    objects = [holder[key]]
    budget = NODE_BUDGET if sys.getrefcount(objects[0]) <= _BASELINE[0] else CYCLE_BUDGET
    return _walk(objects, budget) == _BASELINE


def _walk(objects: list[Any], budget: int) -> tuple[int, int] | None:
    """How many references more than the value explains its root and its inner objects have; or None.

    `objects` holds the root alone, and grows. The root has one reference more, that of its holder.
    """
    inside = {id(objects[0]): 0}
    position = 0
    while position < len(objects):
        kind = type(objects[position])
        if kind not in _CONTAINERS and kind not in _FROZEN and not _plain_instance(kind):
            return None
        if kind not in _NEVER_WEAK and getweakrefcount(objects[position]):
            return None
        if position > budget:
            return None
        for part in gc.get_referents(objects[position]):
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
                if len(objects) > budget + 1:  # each is to be walked, which would be too many
                    return None
            part = None
        position += 1
    root = sys.getrefcount(objects[0]) - inside[id(objects[0])]
    rest = [sys.getrefcount(objects[i]) - inside[id(objects[i])] for i in range(1, len(objects))]
    if len(set(rest)) > 1:
        return None
    return root, rest[0] if rest else _INNER


_HOOKS = ("__reduce__", "__reduce_ex__", "__getstate__", "__getnewargs__", "__getnewargs_ex__", "__del__")

_INSTANCES = True
"""Whether a walk sees that somebody holds an instance's `__dict__`; tried out below. CPython 3.13 hides it."""

_PLAIN_CLASSES: dict[type, bool] = {}


def _plain_instance(kind: type) -> bool:
    """Whether this is a class written in Python that keeps to the usual protocol.

    That is: all that pickle would take of it is in its attributes, where the collector sees them.
    """
    if kind in dispatch_table:  # where `copyreg.pickle` put a reducer, perhaps just now
        return False
    if not _INSTANCES and kind.__dictoffset__:
        return False
    known = _PLAIN_CLASSES.get(kind)
    if known is None:
        heap_type = bool(kind.__flags__ & 1 << 9)
        bases = kind.__mro__[1:]
        known = (
            heap_type
            and type(kind) is type
            and all(base is object or (base.__flags__ & 1 << 9) for base in bases)
            and not any(name in base.__dict__ for base in kind.__mro__[:-1] for name in _HOOKS)
        )
        if len(_PLAIN_CLASSES) > 10_000:
            _PLAIN_CLASSES.clear()
        _PLAIN_CLASSES[kind] = known
    return known


def _calibrate() -> tuple[int, int] | None:
    """What `_walk` finds for a value that is certainly unshared: the references it takes itself."""
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
    seen = is_unshared(holder, "free") and not is_unshared(holder, "held")
    del attributes
    return seen


_INSTANCES = _sees_dicts()
