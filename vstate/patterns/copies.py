"""Copies of values that enter or leave a state, so that later edits of one never reach the other."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from enum import Enum
from functools import partial
from typing import Any

from vstate.errors import Unpicklable
from vstate.state.tracking import IMMUTABLE
from vstate.values.pickle_errors import culprit, own_error
from vstate.values.pickling import dumps, loads


def deep_copy(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """Copy a value; the copy shares nothing mutable with the original.

    `memo` maps ids to copies that are already made. Pass it on inside a `__deepcopy__`.
    """
    kind = type(value)
    if kind in IMMUTABLE:
        return value
    # Most containers hold only immutable values. For those, copy.deepcopy takes ten times as long.
    if (kind is dict or kind is list) and (memo is None or id(value) not in memo):
        # Copy first, inspect the copy: another thread may add to the value meanwhile.
        own = value.copy()
        if _are_immutable(own) and (kind is list or _are_immutable(own.values())):
            if memo is not None:
                memo[id(value)] = own
            return own
    return copy.deepcopy(value, memo)


def checked_copy(value: Any, name: str) -> Any:
    """Copy a value as `deep_copy` does. Raises Unpicklable, which shows the place under `name`."""
    try:
        return deep_copy(value)
    except Exception as error:  # the copy hook of any class may raise anything
        own_error(partial(deep_copy, value), error)
        # An exception with an `__init__` of its own has no deep copy, and yet can be stored.
        return Frozen(value, name, name).thaw()


def plain_copy(data: Any) -> Any:
    """Copy the data of a record; each member of an enum becomes its value."""
    kind = type(data)
    if kind in IMMUTABLE:
        return data
    if kind is dict:
        # Copied first: another thread may add to the data meanwhile.
        return {plain_copy(key): plain_copy(item) for key, item in data.copy().items()}
    if kind in (list, tuple, set, frozenset):
        return kind(map(plain_copy, data))
    if isinstance(data, Enum):
        return plain_copy(data.value)
    return copy.deepcopy(data)


class Frozen:
    """A value as it is now. Each `thaw` makes an equal object that shares nothing mutable with any other.

    It is pickled as a commit pickles it. For a value that no commit can pickle it raises Unpicklable, which
    names `key` and shows the place under `name`.
    """

    __slots__ = ("_buffers", "_data")

    def __init__(self, value: Any, key: str, name: str) -> None:
        self._data: Any = value
        self._buffers: list[bytes] | None = None
        if type(value) in IMMUTABLE:
            return
        try:
            data, buffers = dumps(value)
        except Exception as error:  # the pickling of any class may raise anything
            raise Unpicklable({key: culprit(value, name, error)}, staged=False) from error
        self._data, self._buffers = data, [bytes(buffer) for buffer in buffers]

    def thaw(self) -> Any:
        """Make the value anew."""
        if self._buffers is None:
            return self._data
        # This process made the pickle a moment ago. An array works on its buffer, and must be writable.
        return loads(self._data, [bytearray(buffer) for buffer in self._buffers])


def _are_immutable(values: Iterable[Any]) -> bool:
    return IMMUTABLE.issuperset(map(type, values))
