"""Expiry: the moment from which on a key counts as absent, kept at the end of its entry.

An entry is an array of two or four elements (see `vstate.values.entry`). An entry that expires has one more
element, of 8 bytes. So the moment can be read and cut off, and the rest of the entry is not decoded.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import NamedTuple

from vstate.objects.commit import microseconds, moment

EXPIRING = frozenset({b"\x93", b"\x95"})
"""The first byte of the entries that expire: msgpack's array of three, and of five."""

_FIELD = b"\xc4\x08"  # msgpack's header of 8 bytes
_FIELD_BYTES = len(_FIELD) + 8

_LAST = microseconds(datetime.max.replace(tzinfo=UTC))


def now() -> int:
    """Microseconds since 1970-01-01 UTC: the only clock that decides whether something has expired."""
    return time.time_ns() // 1000


class Expiry(NamedTuple):
    """When a key or a branch expires: `at`, in microseconds since 1970-01-01 UTC."""

    at: int

    @property
    def moment(self) -> datetime:
        """When it expires, as an aware datetime in UTC; at most `datetime.max`."""
        return moment(min(self.at, _LAST))

    @property
    def is_over(self) -> bool:
        """Whether the moment has passed."""
        return self.at <= now()

    def __str__(self) -> str:
        return f"{self.moment:%Y-%m-%d %H:%M:%S}"


def moment_of(entry: bytes) -> int | None:
    """When the key with this entry expires; None if never."""
    if entry[:1] in EXPIRING and entry[-_FIELD_BYTES:-8] == _FIELD:
        return int.from_bytes(entry[-8:], "big")
    return None


def is_expired(entry: bytes | None, at: int | None = None) -> bool:
    """Whether the key with this entry is absent at this moment, by default now."""
    if entry is None or (due := moment_of(entry)) is None:
        return False
    return due <= (now() if at is None else at)


def split_expiry(entry: bytes) -> tuple[bytes, Expiry | None]:
    """The entry without its expiry, and the expiry."""
    due = moment_of(entry)
    if due is None:
        return entry, None
    return bytes((entry[0] - 1,)) + entry[1:-_FIELD_BYTES], Expiry(due)


def with_expiry(entry: bytes, expiry: Expiry | None) -> bytes:
    """An entry without expiry, with this one added."""
    if expiry is None:
        return entry
    return bytes((entry[0] + 1,)) + entry[1:] + _FIELD + expiry.at.to_bytes(8, "big")
