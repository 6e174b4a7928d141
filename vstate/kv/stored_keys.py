"""The stored form of a key, where keys are bytes in order.

An object's key takes 33 bytes: the mark 0xFF, and the id. A key in a room is the mark 0xFE, the number of the
room in 8 bytes, and the stored form of the key within. Any other key is its UTF-8, which holds neither mark.
So the ordinary keys come first, then the rooms one after the other, then the objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from vstate.errors import InvalidInput
from vstate.kv.base import OBJECT_PREFIX, ROOM_PREFIX, check_key, check_value, split_room

OBJECT_MARK = b"\xff"
"""The first byte of an object's stored key, within its room if it is in one."""

ROOM_MARK = b"\xfe"
"""The first byte of the stored keys in rooms."""

ROOM_BYTES = 9
"""The length of the mark and the number."""

_DIGITS = "0123456789abcdef"
_OBJECT_LENGTH = len(OBJECT_PREFIX) + 64
_PREFIX_LENGTH = len(ROOM_PREFIX) + 17
_IN_ROOM_LENGTH = _PREFIX_LENGTH + _OBJECT_LENGTH


def stored_key(key: str) -> bytes:
    """The stored form of a key."""
    return stored_keys((key,))[0]


def is_stored_object(stored: bytes) -> bool:
    """Whether this is the stored key of an object, in a room or not."""
    return stored[:1] == OBJECT_MARK or stored[ROOM_BYTES : ROOM_BYTES + 1] == OBJECT_MARK


def room_of(stored: bytes) -> bytes:
    """What the stored keys of the room of a stored key begin with; nothing if it is in none."""
    return stored[:ROOM_BYTES] if stored.startswith(ROOM_MARK) else b""


def stored_keys(keys: Iterable[str]) -> list[bytes]:
    """The stored forms of keys, in their order."""
    stored = []
    for key in keys:
        if type(key) is not str:
            key = str.__str__(check_key(key))  # a member of an enum, say, is stored as its text
        digits = ""
        if len(key) == _OBJECT_LENGTH and key.startswith(OBJECT_PREFIX):
            digits = "ff" + key[2:]
        elif len(key) == _IN_ROOM_LENGTH and key.startswith(ROOM_PREFIX) and key[21:24] == "/o/":
            digits = f"fe{key[5:21]}ff{key[24:]}"
        if digits:
            try:
                name = bytes.fromhex(digits)
            except ValueError:
                name = b""
            # fromhex also takes capitals and spaces, which key_of() would not give back.
            if name.hex() == digits:
                stored.append(name)
                continue
        if "\0" in key or not key.isascii():
            check_key(key)
        mark = _room_mark(key[:_PREFIX_LENGTH]) if key.startswith(ROOM_PREFIX) else b""
        stored.append(mark + key[_PREFIX_LENGTH:].encode() if mark else key.encode())
    return stored


@lru_cache(1024)  # a program writes into the same rooms again and again
def _room_mark(start: str) -> bytes:
    """What the stored keys in a room begin with whose keys begin so; nothing if there is no such room."""
    return ROOM_MARK + bytes.fromhex(start[len(ROOM_PREFIX) : -1]) if split_room(start)[0] else b""


def key_of(stored: bytes) -> str:
    """The key whose stored form is `stored`."""
    if stored.startswith(OBJECT_MARK):
        return OBJECT_PREFIX + stored[1:].hex()
    if not stored.startswith(ROOM_MARK):
        return stored.decode()
    room, within = f"{ROOM_PREFIX}{stored[1:ROOM_BYTES].hex()}/", stored[ROOM_BYTES:]
    return room + (OBJECT_PREFIX + within[1:].hex() if within.startswith(OBJECT_MARK) else within.decode())


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
    room, within = split_room(check_key(prefix))
    mark, text = _room_mark(room), within.encode()
    yield mark + text, mark + text + ROOM_MARK
    if not room:
        for first, last in _filled(prefix, ROOM_PREFIX, 16):
            yield ROOM_MARK + first, ROOM_MARK + last + OBJECT_MARK * 33  # the last object of the last room
    for first, last in _filled(within, OBJECT_PREFIX, 64):
        yield mark + OBJECT_MARK + first, mark + OBJECT_MARK + last


def _filled(prefix: str, beginning: str, count: int) -> Iterator[tuple[bytes, bytes]]:
    """The first and the last number of so many digits, behind `beginning`, in keys with the prefix."""
    digits = prefix[len(beginning) :]
    if beginning.startswith(prefix[: len(beginning)]) and len(digits) <= count and not digits.strip(_DIGITS):
        yield bytes.fromhex(digits.ljust(count, "0")), bytes.fromhex(digits.ljust(count, "f"))
