"""Editing: a new value for one part of plain data, as a request gives it."""

from __future__ import annotations

import math
import re
from typing import Final

from vstate.errors import InvalidInput
from vstate.repo.compare.fingerprints import Fingerprints
from vstate.repo.compare.paths import find_part
from vstate.repo.compare.plain import find_object, with_part

_TYPES: Final = {"int": int, "float": float, "str": str, "bool": bool, "NoneType": type(None)}
_DIGITS: Final = re.compile(r"[-+]?[0-9]{1,4000}")
_LONGEST: Final = 1_000_000  # characters
_MOST_PARTS: Final = 200_000


def edited(value: object, path: str, type_name: str, new: object) -> object:
    """The value with `new` at `path`, of the type that is named: int, float, str, bool or NoneType.

    Only plain data can be edited, since objects are known by the pickle alone. Raises InvalidInput for
    other values, and if `new` is not of that type, and NotFound if nothing is at the path.
    """
    if (name := find_object(value, _MOST_PARTS)) is not None:
        raise InvalidInput(f"the value holds an object ({name[:100]}): edit it in Python, where its class is")
    prints = Fingerprints()
    return with_part(value, find_part(value, path, prints), _checked(type_name, new), prints)


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
