"""Checked row: plain data with a checksum. Nothing else reveals damage in a row that no id covers."""

from __future__ import annotations

from typing import Any

from blake3 import blake3

from vstate.objects.canonical import decode, encode

_CHECK_BYTES = 4


def encode_checked(data: Any) -> bytes:
    """The canonical encoding of `data`, followed by its checksum."""
    encoded = encode(data)
    return encoded + blake3(encoded).digest(length=_CHECK_BYTES)


def decode_checked(row: bytes) -> Any:
    """The data in a row; ValueError if the row is damaged."""
    return decode(checked(row))


def checked(row: bytes) -> bytes:
    """The encoding in a row; ValueError if the row is damaged."""
    encoded, check = row[:-_CHECK_BYTES], row[-_CHECK_BYTES:]
    if blake3(encoded).digest(length=_CHECK_BYTES) != check:
        raise ValueError("its checksum does not match")
    return encoded
