"""The form in which a bucket stores values, and the values that a handle saw last.

- An object of 8 bytes or more is stored as `v` and the object: the same bytes, from every writer.
- Any other value is stored as `s`, 8 random bytes, and the value. By these bytes a writer whose answer was
  lost tells its own write from another's write of the same value; and no ETag, which may be a hash, comes up
  twice.
- 8 random bytes alone stand for a key that a swap deleted. So 8 bytes or fewer are never a value, also where
  only the size is known, as in a listing.
"""

from __future__ import annotations

import os

from vstate.kv.base import is_object
from vstate.kv.s3.bucket import Mark
from vstate.recent import Recent

NONCE_BYTES = 8

_VALUE = b"v"
_MARKED = b"s"

_KEYS = 1024
_VALUE_BYTES = 4096


def frame(key: str, value: bytes) -> bytes:
    """The stored bytes for a key's value."""
    return _VALUE + value if is_object(key) and len(value) >= NONCE_BYTES else frame_of_swap(value)


def frame_of_swap(value: bytes | None) -> bytes:
    """The stored bytes for a swapped value, or in the place of a deleted one: different bytes each time."""
    nonce = os.urandom(NONCE_BYTES)
    return nonce if value is None else _MARKED + nonce + value


def is_value(size: int | None) -> bool:
    """Whether a value is stored in so many bytes. None: there is no object at all."""
    return size is not None and size > NONCE_BYTES


def value_of(stored: bytes) -> bytes | None:
    """The value in the stored bytes, None for a deleted key. ValueError if they are neither."""
    if not is_value(len(stored)):
        return None
    if stored.startswith(_VALUE):
        return stored[1:]
    if stored.startswith(_MARKED):
        return stored[1 + NONCE_BYTES :]
    raise ValueError("no value of vstate")


class Marks:
    """The value and mark of each key, as this handle saw them last, so that a swap need not read first.

    It keeps the last 1,024 keys, without large values, and without objects: nobody swaps those.
    """

    def __init__(self) -> None:
        self._keys = Recent[str, tuple[bytes | None, Mark]](_KEYS)

    def note(self, key: str, value: bytes | None, mark: Mark | None) -> None:
        """Keep the value of the key, None if a swap deleted it; without a mark, forget the key."""
        if is_object(key):
            return
        if mark and len(value or b"") <= _VALUE_BYTES:
            self._keys[key] = value, mark
        else:
            self._keys.discard(key)

    def mark_of(self, key: str, value: bytes | None) -> Mark | None:
        """The mark of the key, if it had this value when it was last seen."""
        known = self._keys.get(key)
        return known[1] if known is not None and known[0] == value else None
