"""Expiry: the moment from which on a key counts as absent, kept at the end of its entry.

An entry is an array of two or four elements (see `vstate.values.entry`). An entry that expires has one more
element, of 16 bytes. So the moment can be read and cut off, and the rest of the entry is not decoded.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from vstate.objects.commit import microseconds, moment

EXPIRING = frozenset({b"\x93", b"\x95"})
"""The first byte of the entries that expire: msgpack's array of three, and of five."""

_FIELD = b"\xc4\x10"  # msgpack's header of 16 bytes
_FIELD_BYTES = len(_FIELD) + 16

_LAST = microseconds(datetime.max.replace(tzinfo=UTC))


def now() -> int:
    """Microseconds since 1970-01-01 UTC: the only clock that decides whether something has expired."""
    return time.time_ns() // 1000


class Expiry(NamedTuple):
    """When a key expires: `at`, in microseconds since 1970-01-01 UTC.

    A commit that changes the key moves `at` to `ttl` microseconds after the commit; a `ttl` of 0 leaves it.
    """

    at: int
    ttl: int = 0

    @property
    def moment(self) -> datetime:
        """When it expires, as an aware datetime in UTC; at most `datetime.max`."""
        return moment(min(self.at, _LAST))

    @property
    def is_over(self) -> bool:
        """Whether the moment has passed."""
        return self.at <= now()

    def __str__(self) -> str:
        slides = f", {timedelta(microseconds=self.ttl)} after each change" if self.ttl else ""
        return f"{self.moment:%Y-%m-%d %H:%M:%S}{slides}"

    def begun_anew(self, at: int) -> Expiry:
        """The expiry after a change at this moment: it moves if it has a `ttl`."""
        return Expiry(at + self.ttl, self.ttl) if self.ttl else self


def moment_of(entry: bytes) -> int | None:
    """When the key with this entry expires; None if never."""
    if entry[:1] in EXPIRING and entry[-_FIELD_BYTES:-16] == _FIELD:
        return int.from_bytes(entry[-16:-8], "big")
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
    return bytes((entry[0] - 1,)) + entry[1:-_FIELD_BYTES], Expiry(due, int.from_bytes(entry[-8:], "big"))


def with_expiry(entry: bytes, expiry: Expiry | None) -> bytes:
    """An entry without expiry, with this one added."""
    if expiry is None:
        return entry
    field = expiry.at.to_bytes(8, "big") + expiry.ttl.to_bytes(8, "big")
    return bytes((entry[0] + 1,)) + entry[1:] + _FIELD + field
