"""Leases: rows that give one holder at a time an exclusive right.

A lease is a row of its own, changed only by compare-and-swap. A released row stays and keeps its fencing
token, so the next holder gets a higher one. Clocks of two machines are never compared: a contender watches
the row, and takes the lease once the row has not changed for the lease's `ttl` by the contender's own
clock. A contender that gives up leaves the time of its first sight in the store, for the next process on
the same machine.
"""

from __future__ import annotations

import os
import platform
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from vstate.errors import CorruptStore, InvalidInput, LeaseHeld, VStateError
from vstate.kv.base import KVStore, check_key
from vstate.objects.canonical import decode_checked, encode_checked
from vstate.repo.objects import DAMAGED

LEASE = "lease/"
SIGHT = "lease-seen/"

MARGIN = 0.1
"""The part of its `ttl` by which contenders wait longer, since two clocks may differ this much in speed."""

SHORTEST_TTL = 0.1
"""Seconds. A third of it must suffice to wake a thread and to make one swap in the store, an fsync or a
round trip: tens of milliseconds on a busy machine. With less, holders lose their leases again and again."""

_LONGEST_NAME = 200
_MOST_SIGHTS = 15  # of other clocks

LONGEST_WAIT = 1.0
"""Seconds between two looks of a waiting contender at the row and at `given_up`."""


def clock() -> float:
    """Seconds by a clock that cannot be set and, if possible, runs while the machine sleeps."""
    return time.clock_gettime(_BOOT_CLOCK) if _BOOT_CLOCK is not None else time.monotonic()


_BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def clock_name() -> str:
    """A name for this machine's `clock`. Processes that get the same name may compare their times.

    On Linux the name changes with each boot, and with the time namespace of a container. Elsewhere the clock
    starts anew with each boot. So a time of an earlier boot makes a wait longer, never shorter.
    """
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    return f"{uuid.getnode():x} {platform.node()}"


class LeaseRow(NamedTuple):
    """The row of a lease.

    `owner` is a random token, empty when the lease is free; `holder` names the owner
    to people; `ttl` is in seconds; `fence` is the fencing token; `renewals` counts the renewals of this
    holder.
    """

    owner: str
    holder: str
    ttl: float
    fence: int
    renewals: int = 0

    def encode(self) -> bytes:
        """The row."""
        return encode_checked([self.owner, self.holder, self.ttl, self.fence, self.renewals])

    def renewed(self) -> LeaseRow:
        """The row after one more renewal."""
        return self._replace(renewals=self.renewals + 1)

    def released(self) -> LeaseRow:
        """The row after its release."""
        return self._replace(owner="", holder="", renewals=0)


def parse_lease(row: bytes) -> LeaseRow:
    """The lease in a row; ValueError if the row is damaged."""
    fields = decode_checked(row)
    if not isinstance(fields, list) or [type(field) for field in fields] != [str, str, float, int, int]:
        raise ValueError("it is no lease")
    return LeaseRow(*fields)


def parse_sights(row: bytes) -> tuple[bytes, dict[str, float]]:
    """The digest of the lease's row that was seen, and by clock the time of its first sight.

    ValueError if the row is damaged.
    """
    match decode_checked(row):
        case [bytes(digest), dict(times)] if {*map(type, times.values())} <= {float}:
            return digest, times
    raise ValueError("it holds no times of sight")


def lease_key(name: str) -> str:
    """The key of a lease's row.

    The name is any text of 1 to 200 characters, without NUL; else InvalidInput.
    """
    if not isinstance(name, str):
        raise TypeError(f"a lease name is a str, not {type(name).__name__}")
    if not 0 < len(name) <= _LONGEST_NAME:
        raise InvalidInput(
            f"a lease name has 1 to {_LONGEST_NAME} characters, not {len(name):,}: {name[:40]!r}"
        )
    return check_key(LEASE + name)


class Leases:
    """The leases of one store."""

    def __init__(self, store: KVStore) -> None:
        self._store = store

    def read(self, name: str) -> LeaseRow | None:
        """The row of the lease, held or free; None if nobody ever had the lease."""
        raw = self._store.get(lease_key(name))
        return None if raw is None else self.parse(name, raw)

    def parse(self, name: str, raw: bytes) -> LeaseRow:
        """The lease in this row; CorruptStore if the row is damaged."""
        try:
            return parse_lease(raw)
        except ValueError as error:
            raise CorruptStore(self._store.location, f"lease {name!r}: {error}", repairable=True) from error

    def take(
        self,
        name: str,
        *,
        owner: str,
        holder: str,
        ttl: float,
        wait: float | None,
        given_up: Callable[[], bool] = lambda: False,
    ) -> tuple[LeaseRow, float]:
        """Become the holder; the new row, and a time by `clock` before the row was written.

        Waits `wait` seconds, for ever if None, or until `given_up` is true, and raises LeaseHeld then.
        After any other exception this owner may have the lease: call `give_back`.
        """
        key = lease_key(name)
        limit = None if wait is None else clock() + wait
        seen, since = None, 0.0
        with self._store.listening(key) as listen:
            while True:
                raw = self._store.get(key)
                before = None if raw is None else self.parse(name, raw)
                now = free_at = clock()  # after the read, so the row is at least this old
                if raw is not None and before is not None and before.owner:
                    if raw != seen:
                        # A sight after now is one of an earlier boot.
                        sight = now if seen is not None else self._sights(name, raw).get(clock_name(), now)
                        since = min(sight, now)
                        seen = raw
                    free_at = since + before.ttl * (1 + MARGIN)
                if before is None or raw is None or now >= free_at:
                    fence = self._first_fence(key) if before is None else before.fence + 1
                    mine = LeaseRow(owner, holder, ttl, fence)
                    if self._store.compare_and_swap(key, raw, mine.encode()):
                        return mine, now
                elif given_up() or (limit is not None and now >= limit):
                    self._note_sight(name, raw, since)
                    raise LeaseHeld(name, holder=before.holder, fence=before.fence)
                else:
                    until = free_at if limit is None else min(free_at, limit)
                    listen(min(until - now, LONGEST_WAIT))

    def give_back(self, name: str, owner: str) -> None:
        """Free the lease, if this owner has it."""
        key = lease_key(name)
        while (raw := self._store.get(key)) is not None:
            row = self.parse(name, raw)
            if row.owner != owner or self._store.compare_and_swap(key, raw, row.released().encode()):
                return

    def _sights(self, name: str, raw: bytes) -> dict[str, float]:
        """By clock, the first sight of this row of the lease."""
        with suppress(ValueError, CorruptStore):  # a damaged row costs time, no more
            row = self._store.get(SIGHT + name)
            digest, times = (b"", {}) if row is None else parse_sights(row)
            return times if digest == _digest(raw) else {}
        return {}

    def _note_sight(self, name: str, raw: bytes, since: float) -> None:
        """Leave the time of the first sight in the store. Of two at once, one time may be lost."""
        times = self._sights(name, raw)
        if since != times.get(clock_name()):
            others = list(times.items())[:_MOST_SIGHTS]
            row = encode_checked([_digest(raw), {**dict(others), clock_name(): since}])
            with suppress(VStateError):  # the lease is held, whether this works or not
                self._store.set(SIGHT + name, row)

    def _first_fence(self, key: str) -> int:
        """1, or more than any earlier token if the row was damaged and a repair moved it aside."""
        return 1 if DAMAGED + key not in self._store else time.time_ns() // 1000


def _digest(raw: bytes) -> bytes:
    return blake3(raw).digest(length=16)
