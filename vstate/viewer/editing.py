"""Editing: plain data with one part replaced, without running anything of it."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Sequence
from typing import Any, Final

from vstate.errors import InvalidInput
from vstate.repo.compare.fingerprints import Fingerprints
from vstate.repo.compare.paths import Part, find_part
from vstate.values.instance import Global, Instance

_TYPES: Final = {"int": int, "float": float, "str": str, "bool": bool, "NoneType": type(None)}
_DIGITS: Final = re.compile(r"[-+]?[0-9]{1,4000}")
_PLAIN: Final = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    datetime.timezone,
)
_LONGEST: Final = 1_000_000  # characters
_MOST_PARTS: Final = 200_000


def edited(value: object, path: str, type_name: str, new: object) -> object:
    """The value with `new` at `path`, of the type that is named: int, float, str, bool or NoneType.

    Only plain data can be edited, since objects are known by the pickle alone. Raises InvalidInput for
    other values, and if `new` is not of that type, and NotFound if nothing is at the path.
    """
    _require_plain(value)
    return _replaced(value, find_part(value, path, Fingerprints()), _checked(type_name, new))


def _checked(type_name: str, new: object) -> object:
    if type_name == "int" and isinstance(new, str) and _DIGITS.fullmatch(new):
        new = int(new)  # the numbers of JavaScript have 53 bits
    kind = _TYPES.get(type_name)
    if kind is None:
        known = ", ".join(_TYPES)
        raise InvalidInput(f"a value of the type {type_name[:50]!r} is not edited here; these are: {known}")
    if kind is float and type(new) is int:
        new = float(new)
    if type(new) is not kind or (isinstance(new, str) and len(new) > _LONGEST):
        raise InvalidInput(f"the new value is of the type {type(new).__name__}, and not {type_name}")
    if isinstance(new, float) and not math.isfinite(new):
        raise InvalidInput("the new number is not finite")
    return new


def _require_plain(value: object) -> None:
    waiting, seen, parts = [value], set(), 0
    while waiting:
        each = waiting.pop()
        parts += 1
        if parts > _MOST_PARTS:
            raise InvalidInput(
                f"a value of more than {_MOST_PARTS:,} parts is not edited here; do so in Python"
            )
        if each is None or isinstance(each, _PLAIN) or id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, dict):
            waiting += [*each, *each.values()]
        elif isinstance(each, list | tuple | set | frozenset):
            waiting += each
        else:
            name = each.type if isinstance(each, Instance) else type(each).__name__
            name = each.name if isinstance(each, Global) else name
            raise InvalidInput(
                f"the value holds an object ({name[:100]}): edit it in Python, where its class is"
            )


def _replaced(value: Any, trail: Sequence[Part], new: object) -> object:
    """A copy of the containers along the trail, with `new` at its end."""
    if not trail:
        return new
    part, *rest = trail
    inner = _replaced(part.value, rest, new)
    if isinstance(value, dict) and isinstance(part.place, str) and part.place in value:
        return {key: inner if key == part.place else item for key, item in value.items()}
    if isinstance(value, list | tuple) and isinstance(part.place, int):
        items = [*value]
        items[part.place] = inner
        return items if isinstance(value, list) else tuple(items)
    raise InvalidInput(f"a part of a {type(value).__name__} cannot be edited here; do so in Python")
