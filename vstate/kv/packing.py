"""Packing: how a key is stored where keys are bytes in order, in 33 of them if it is that of an object."""

from __future__ import annotations

from collections.abc import Iterator

from vstate.kv.base import OBJECT_PREFIX, check_key

OBJECT_MARK = b"\xff"
"""What the packed key of an object starts with; no UTF-8 text holds this byte."""

_OBJECT_KEY_LENGTH = len(OBJECT_PREFIX) + 64


def pack(key: str) -> bytes:
    """A key as it is stored: "o/" and 64 hex digits as the mark and 32 bytes, any other as UTF-8."""
    if type(key) is not str:
        key = str.__str__(check_key(key))  # a member of an enum, say, is stored as the text that it is
    if len(key) == _OBJECT_KEY_LENGTH and key.startswith(OBJECT_PREFIX):
        digits = key[2:]
        try:
            packed = bytes.fromhex(digits)
        except ValueError:
            packed = b""
        # fromhex also takes capitals and spaces, which would not come back.
        if packed.hex() == digits:
            return OBJECT_MARK + packed
    return check_key(key).encode()


def unpack(stored: bytes) -> str:
    """The key that `pack` made `stored` of."""
    return OBJECT_PREFIX + stored[1:].hex() if stored.startswith(OBJECT_MARK) else stored.decode()


def ranges(prefix: str) -> Iterator[tuple[bytes, bytes]]:
    """Where the stored forms of the keys with this prefix lie: from the first to the second, inclusive."""
    text = check_key(prefix).encode()
    yield text, text + OBJECT_MARK
    if OBJECT_PREFIX.startswith(prefix[:2]):
        digits = prefix[2:]
        if len(digits) <= 64 and not digits.strip("0123456789abcdef"):
            first, last = (bytes.fromhex(digits.ljust(64, fill)) for fill in "0f")
            yield OBJECT_MARK + first, OBJECT_MARK + last
