"""The canonical encoding: msgpack with one spelling for equal plain data.

Fixed field order is up to the caller (lists); here maps get their keys sorted and integers their
shortest form. Plain data is None, bool, int of 64 bits, float, str, bytes, and lists, tuples and dicts
with str keys of these.
"""

from __future__ import annotations

from typing import Any

import msgpack

from vstate.errors import InvalidInput

MAX_DEPTH = 100
_ARRAY_16, _ARRAY_32 = b"\xdc", b"\xdd"
_SHORT = 2048  # bytes, up to which arrays cannot say to have items of more than some megabytes
_MOST_DECLARED = 1_000_000  # items that longer data may say to have without being looked through first
_Packer = msgpack.Packer
_ATOMS = frozenset({type(None), bool, float, bytes})


def encode(value: Any) -> bytes:
    """Plain data that has passed `plain`, or an object's own fields, as canonical msgpack."""
    # What `msgpack.packb` does, but for its detour through Python, which takes as long again.
    return _Packer().pack(value)  # type: ignore[no-any-return]


def decode(data: bytes) -> Any:
    """What `encode` encoded; ValueError when `data` is not one whole value of plain data."""
    try:
        if (
            len(data) > _SHORT
            and (data.count(_ARRAY_16) + data.count(_ARRAY_32)) * len(data) > _MOST_DECLARED
        ):
            # Memory for an array is taken before its items are read: for those inside each other it adds up.
            unpacker = msgpack.Unpacker(max_buffer_size=len(data))
            unpacker.feed(data)
            unpacker.skip()
        return msgpack.unpackb(data, ext_hook=_refuse)
    except (msgpack.UnpackException, UnicodeDecodeError, RecursionError, TypeError) as error:
        raise ValueError(f"not msgpack: {error}") from error


def _refuse(code: int, data: bytes) -> Any:
    raise ValueError("an extension type")


def plain(value: Any, where: str, depth: int = 0) -> Any:
    """A copy of `value` as plain data with sorted maps and lists for tuples.

    Raises InvalidInput, naming the place under `where`, for anything that plain data cannot hold.
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
        return {plain(key, where): plain(value[key], f"{where}[{key!r}]", depth + 1) for key in sorted(value)}
    if kind is list or kind is tuple:
        return [plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    raise InvalidInput(
        f"{where} is a {kind.__module__}.{kind.__qualname__}; only plain data goes here: None, bool, int, "
        "float, str, bytes, and lists and dicts of these"
    )
