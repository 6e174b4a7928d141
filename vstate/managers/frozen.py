"""Frozen: a value as it was at one moment, whatever becomes of the object itself."""

from __future__ import annotations

from typing import Any, Final

from vstate.errors import Unpicklable
from vstate.values.pickling import culprit, dumps, loads

_ATOMS: Final = frozenset((str, int, float, bool, bytes, type(None)))


class Frozen:
    """A value by its pickle, which `thaw` makes an object of that is nobody else's, a new one each time.

    Raises Unpicklable, which says where in the value of `key` the trouble is.
    """

    __slots__ = ("_buffers", "_data")

    def __init__(self, value: Any, key: str) -> None:
        self._data: Any = value
        self._buffers: list[bytes] | None = None
        if type(value) in _ATOMS:
            return
        try:
            data, buffers = dumps(value)
        except Exception as error:
            raise Unpicklable({key: culprit(value, f'state["{key}"]', error)}) from error
        self._data, self._buffers = data, [bytes(buffer) for buffer in buffers]

    def thaw(self) -> Any:
        """The value, in an object of its own."""
        if self._buffers is None:
            return self._data
        # Arrays are made on these buffers, and may be written to.
        return loads(self._data, [bytearray(buffer) for buffer in self._buffers])


def copied(value: Any, key: str) -> Any:
    """A copy of the value of `key`, which shares nothing with it."""
    return value if type(value) in _ATOMS else Frozen(value, key).thaw()
