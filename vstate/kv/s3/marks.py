"""Marks: the values and versions that a handle saw last, so that a swap need not read first."""

from __future__ import annotations

from collections import OrderedDict

from vstate.forks import new_lock
from vstate.kv.base import is_object
from vstate.kv.s3.bucket import Mark

_KEYS = 1024
_VALUE_BYTES = 4096


class Marks:
    """The value and mark of each key, as this handle saw them last.

    It keeps the last 1,024 keys, without large values, and without objects: nobody swaps those.
    """

    def __init__(self) -> None:
        self._lock = new_lock()
        self._keys: OrderedDict[str, tuple[bytes | None, Mark]] = OrderedDict()

    def note(self, key: str, value: bytes | None, mark: Mark | None) -> None:
        """Keep the value of the key, None if a swap deleted it; without a mark, forget the key."""
        if is_object(key):
            return
        with self._lock:
            self._keys.pop(key, None)
            if mark and len(value or b"") <= _VALUE_BYTES:
                self._keys[key] = value, mark
                if len(self._keys) > _KEYS:
                    self._keys.popitem(last=False)

    def mark_of(self, key: str, value: bytes | None) -> Mark | None:
        """The mark of the key, if it had this value when it was last seen."""
        with self._lock:
            known = self._keys.get(key)
        return known[1] if known is not None and known[0] == value else None
