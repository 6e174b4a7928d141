"""How values are stored in a bucket, and what a handle remembers of those it has seen.

- An object of 8 bytes or more is stored as `v` and the object: the same bytes, whoever writes it.
- Any other value as `s`, 8 random bytes, and the value. By these a writer whose answer was lost knows its own write
  from another's of the same value; and no ETag, which may be a hash, comes up twice.
- 8 random bytes alone stand for a key that was deleted by a swap. So what has at most 8 bytes is no value, also
  where only its size is known, as in a listing.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict

from vstate.forks import ForkAware, survive_forks
from vstate.kv.base import OBJECT_PREFIX
from vstate.kv.bucket import Mark

NONCE_BYTES = 8

_VALUE = b"v"
_MARKED = b"s"
_KEYS = 1024
_VALUE_BYTES = 4096


def frame(key: str, value: bytes) -> bytes:
    """What is stored for a key's value."""
    return _VALUE + value if is_object(key) and len(value) >= NONCE_BYTES else frame_of_swap(value)


def frame_of_swap(value: bytes | None) -> bytes:
    """What a swap stores for a value, or in the place of a deleted one: different bytes each time."""
    nonce = os.urandom(NONCE_BYTES)
    return nonce if value is None else _MARKED + nonce + value


def is_object(key: str) -> bool:
    return key.startswith(OBJECT_PREFIX)


def is_value(size: int | None) -> bool:
    """Whether so many bytes, None for nothing at all, are what is stored for a value."""
    return size is not None and size > NONCE_BYTES


def value_of(stored: bytes) -> bytes | None:
    """The value that is stored so, None for a deleted key; ValueError for what is neither."""
    if not is_value(len(stored)):
        return None
    if stored.startswith(_VALUE):
        return stored[1:]
    if stored.startswith(_MARKED):
        return stored[1 + NONCE_BYTES :]
    raise ValueError("no value of vstate")


class Known(ForkAware):
    """The values that keys had when they were last seen, with their marks: what a swap needs to do without reading.

    Of objects nothing is remembered: nobody swaps them. The last 1,024 keys are, unless their values are large.
    """

    def __init__(self) -> None:
        self._keys: OrderedDict[str, tuple[bytes | None, Mark]] = OrderedDict()
        self._lock = threading.Lock()
        survive_forks(self)

    def learn(self, key: str, value: bytes | None, mark: Mark | None) -> None:
        """That the key has the value, None if it was deleted by a swap; no mark if there is nothing."""
        if is_object(key):
            return
        with self._lock:
            self._keys.pop(key, None)
            if mark and len(value or b"") <= _VALUE_BYTES:
                self._keys[key] = value, mark
                if len(self._keys) > _KEYS:
                    self._keys.popitem(last=False)

    def mark_of(self, key: str, value: bytes | None) -> Mark | None:
        """The mark with which the key had that value when it was last seen; None if it was not seen so."""
        with self._lock:
            known = self._keys.get(key)
        return known[1] if known is not None and known[0] == value else None

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:
        if child:
            self._lock = threading.Lock()
        else:
            self._lock.release()
