"""The stored form of a key, where keys are bytes in order. The key of an object takes 33 bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from vstate.errors import InvalidInput
from vstate.kv.base import OBJECT_PREFIX, check_key, check_value

OBJECT_MARK = b"\xff"
"""The first byte of an object's stored key. No UTF-8 text holds this byte."""

_OBJECT_KEY_LENGTH = len(OBJECT_PREFIX) + 64


def stored_key(key: str) -> bytes:
    """The stored form of a key: for "o/" and 64 hex digits the mark and 32 bytes, for any other its UTF-8."""
    return stored_keys((key,))[0]


def stored_keys(keys: Iterable[str]) -> list[bytes]:
    """The stored forms of keys, in their order."""
    stored = []
    for key in keys:
        if type(key) is not str:
            key = str.__str__(check_key(key))  # a member of an enum, say, is stored as its text
        if len(key) == _OBJECT_KEY_LENGTH and key.startswith(OBJECT_PREFIX):
            digits = key[2:]
            try:
                oid = bytes.fromhex(digits)
            except ValueError:
                oid = b""
            # fromhex also takes capitals and spaces, which key_of() would not give back.
            if oid.hex() == digits:
                stored.append(OBJECT_MARK + oid)
                continue
        if "\0" in key or not key.isascii():
            check_key(key)
        stored.append(key.encode())
    return stored


def key_of(stored: bytes) -> str:
    """The key whose stored form is `stored`."""
    return OBJECT_PREFIX + stored[1:].hex() if stored.startswith(OBJECT_MARK) else stored.decode()


def stored_writes(
    writes: Mapping[str, bytes | None], *, longest: int, store: str
) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
    """The rows to set, and the stored keys to delete.

    Raises InvalidInput for a value of more than `longest` bytes, which `store` does not take.
    """
    sets: list[tuple[bytes, bytes]] = []
    deletes: list[bytes] = []
    for key, stored, value in zip(writes, stored_keys(writes), writes.values(), strict=True):
        if type(value) is bytes and len(value) <= longest:  # mostly so
            sets.append((stored, value))
        elif value is None:
            deletes.append(stored)
        else:
            value = check_value(value)
            if len(value) > longest:
                size, most = f"{len(value):,} bytes", f"{longest:,} at most"
                raise InvalidInput(f"the value of {key!r} has {size}; {store} takes {most}: split it")
            sets.append((stored, value))
    return sets, deletes


def ranges(prefix: str) -> Iterator[tuple[bytes, bytes]]:
    """The ranges of the stored keys with this prefix: from the first to the second, inclusive."""
    text = check_key(prefix).encode()
    yield text, text + OBJECT_MARK
    if OBJECT_PREFIX.startswith(prefix[:2]):
        digits = prefix[2:]
        if len(digits) <= 64 and not digits.strip("0123456789abcdef"):
            first, last = (bytes.fromhex(digits.ljust(64, fill)) for fill in "0f")
            yield OBJECT_MARK + first, OBJECT_MARK + last
