"""Copies: of what goes into a state and comes out of it, so that nobody changes it unseen."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from enum import Enum
from typing import Any

from vstate.state.tracking import IMMUTABLE


def copied(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """A copy of a value, which shares nothing with it that can change. `memo` is that of the deep copy that this is
    a part of: what was copied before, by its id.
    """
    kind = type(value)
    if kind in IMMUTABLE:
        return value
    # Most containers hold nothing that can change, and for each of those a deep copy takes ten times as long.
    if (kind is dict or kind is list) and (memo is None or id(value) not in memo):
        # Before it is looked through: another thread may put something into the value meanwhile.
        own = value.copy()
        if _are_immutable(own) and (kind is list or _are_immutable(own.values())):
            if memo is not None:
                memo[id(value)] = own
            return own
    return copy.deepcopy(value, memo)


def _are_immutable(values: Iterable[Any]) -> bool:
    return IMMUTABLE.issuperset(map(type, values))


def plainly(value: Any) -> Any:
    """A copy of a record's data, a tree, in plain values: with the values of enums in their place."""
    kind = type(value)
    if kind in IMMUTABLE:
        return value
    # Most of what is in a record is immutable, and a call for each of that would be most of the time.
    if kind is dict:
        return {
            key if type(key) is str else plainly(key): item if type(item) in IMMUTABLE else plainly(item)
            for key, item in value.items()
        }
    if kind in (list, tuple, set, frozenset):
        return kind([item if type(item) in IMMUTABLE else plainly(item) for item in value])
    if isinstance(value, Enum):
        return plainly(value.value)
    return copy.deepcopy(value)
