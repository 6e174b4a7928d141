"""The canonical encoding: msgpack with one spelling for equal plain data.

Maps have their keys sorted, and integers have their shortest form. Structures are lists, whose order the
caller fixes. Plain data is None, bool, int of 64 bits, float, str, bytes, and lists, tuples and dicts with
str keys of these.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgpack
from blake3 import blake3

from vstate.errors import InvalidInput

MAX_DEPTH = 100
_ARRAY_16, _ARRAY_32 = b"\xdc", b"\xdd"
_LONG_ARRAY = 1000  # items; nested arrays that claim no more can claim no more than a few megabytes
_MOST_DECLARED = 1_000_000  # items that longer arrays may claim before the data is checked
Packer = msgpack.Packer
"""`Packer().pack(value)` is `encode(value)`."""
_CHECK_BYTES = 4
_ATOMS = frozenset({type(None), bool, float, bytes})


def encode(value: Any) -> bytes:
    """Plain data that has passed `plain`, or an object's own fields, as canonical msgpack."""
    # Not `msgpack.packb`: its detour through Python takes as long again.
    return Packer().pack(value)  # type: ignore[no-any-return]


def decode(data: bytes) -> Any:
    """The plain data that `encode` encoded; ValueError when `data` is not one whole value."""
    try:
        try:
            return decode_short(data)
        except ValueError:
            pass  # a longer array, or an error that comes again
        if (data.count(_ARRAY_16) + data.count(_ARRAY_32)) * len(data) > _MOST_DECLARED:
            # msgpack allocates an array before it reads the items, and nested arrays add up.
            unpacker = msgpack.Unpacker(max_buffer_size=len(data))
            unpacker.feed(data)
            unpacker.skip()
        return msgpack.unpackb(data, ext_hook=_refuse)
    except (msgpack.UnpackException, UnicodeDecodeError, RecursionError, TypeError) as error:
        raise ValueError(f"not msgpack: {error}") from error


def encode_checked(data: Any) -> bytes:
    """The encoding and its checksum: nothing else reveals damage in a row that no id covers."""
    encoded = encode(data)
    return encoded + blake3(encoded).digest(length=_CHECK_BYTES)


def decode_checked(row: bytes) -> Any:
    """The data in a row of `encode_checked`; ValueError if the row is damaged."""
    return decode(checked(row))


def checked(row: bytes) -> bytes:
    """The encoding in a row; ValueError if the row is damaged."""
    encoded, check = row[:-_CHECK_BYTES], row[-_CHECK_BYTES:]
    if blake3(encoded).digest(length=_CHECK_BYTES) != check:
        raise ValueError("its checksum does not match")
    return encoded


def _refuse(code: int, data: bytes) -> Any:
    raise ValueError("an extension type")


decode_short = partial(msgpack.unpackb, ext_hook=_refuse, max_array_len=_LONG_ARRAY)
"""As `decode`, in C: an array of more than 1,000 items is an error here, and not each error a ValueError."""


def plain(value: Any, where: str, depth: int = 0) -> Any:
    """A copy of `value` as plain data with sorted maps and lists for tuples.

    Raises InvalidInput for anything that plain data cannot hold. The message names the place, under `where`.
    """
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is int:
        if -(2**63) <= value < 2**64:
            return value
        raise InvalidInput(f"{where} is an integer of more than 64 bits; pass it as a str")
    if kind is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidInput(f"{where} holds a lone surrogate, which UTF-8 cannot encode") from None
        return value
    if depth >= MAX_DEPTH:
        raise InvalidInput(f"{where} is nested more than {MAX_DEPTH} deep")
    if kind is dict:
        for key in value:
            if type(key) is not str:
                raise InvalidInput(f"{where} has the key {key!r}; keys of plain data are str")
        copy = {}
        for key in sorted(value):
            item = value[key]
            if type(item) not in _ATOMS and not (type(item) is str and item.isascii()):
                item = plain(item, f"{where}[{key!r}]", depth + 1)
            copy[key if key.isascii() else plain(key, where)] = item
        return copy
    if kind is list or kind is tuple:
        return [plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    raise InvalidInput(
        f"{where} is a {kind.__module__}.{kind.__qualname__}; only plain data goes here: None, bool, int, "
        "float, str, bytes, and lists and dicts of these"
    )
