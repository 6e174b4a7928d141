"""Plain data: containers and atoms, without objects of classes. A part of it can be replaced or left out."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, Final

from vstate.errors import InvalidInput
from vstate.repo.compare.fingerprints import Fingerprints
from vstate.repo.compare.paths import Part
from vstate.values.absent import ABSENT
from vstate.values.instance import Global, Instance

_PLAIN: Final = ("builtins", "datetime")  # modules of the types that plain data is made of


def with_part(holder: Any, trail: Sequence[Part], new: object, prints: Fingerprints) -> Any:
    """A copy of plain data with `new` at the end of a trail, or without that part if `new` is ABSENT."""
    if not trail:
        return new
    part, *below = trail
    new = with_part(part.value, below, new, prints)
    left = () if new is ABSENT else (new,)
    if isinstance(holder, dict):
        items = [(name, prints.place(name) == part.place, value) for name, value in holder.items()]
        return {name: new if is_it else value for name, is_it, value in items if left or not is_it}
    if isinstance(holder, set | frozenset):
        return type(holder)(holder - {part.value} | {*left})
    parts, place = list(holder), part.place
    assert isinstance(place, int)
    parts[place : place + 1] = left
    return type(holder)(parts)


def find_object(value: object, most: float = inf) -> str | None:
    """The type of an object of a class inside a value; None for plain data. InvalidInput for many parts."""
    waiting, seen, parts = [value], set[int](), 0
    while waiting:
        each = waiting.pop()
        parts += 1
        if parts > most:
            raise InvalidInput(f"a value of more than {most:,} parts is not edited here; do so in Python")
        if id(each) in seen:
            continue
        seen.add(id(each))
        if type(each).__module__ not in _PLAIN:
            name = each.type if isinstance(each, Instance) else type(each).__name__
            return each.name if isinstance(each, Global) else name
        if isinstance(each, dict):
            waiting += [*each, *each.values()]
        elif isinstance(each, list | tuple | set | frozenset):
            waiting += each
    return None
