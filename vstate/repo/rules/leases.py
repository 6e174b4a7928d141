"""Leases: rows that give one holder at a time an exclusive right.

A lease is a row of its own, changed only by compare-and-swap. A released row stays and keeps its fencing
token, so the next holder gets a higher one. Clocks of two machines are never compared: a contender watches
the row, and takes the lease once the row has not changed for the lease's `ttl` by the contender's own
clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from vstate.errors import CorruptStore, InvalidInput, LeaseHeld
from vstate.kv.base import KVStore, check_key
from vstate.repo.checked_row import decode_checked, encode_checked
from vstate.repo.objects import DAMAGED

LEASE = "lease/"

MARGIN = 0.1
"""The part of its `ttl` by which contenders wait longer, since two clocks may differ this much in speed."""

SHORTEST_TTL = 0.1
"""Seconds. A third of it must suffice to wake a thread and to make one swap in the store, an fsync or a
round trip: tens of milliseconds on a busy machine. With less, holders lose their leases again and again."""

_LONGEST_NAME = 200

LONGEST_WAIT = 1.0
"""Seconds between two looks of a waiting contender at the row and at `given_up`."""


def clock() -> float:
    """Seconds by a clock that cannot be set and, if possible, runs while the machine sleeps."""
    return time.clock_gettime(_BOOT_CLOCK) if _BOOT_CLOCK is not None else time.monotonic()


_BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)


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
        # Each row with the time of its first sight. Kept between calls, for contenders that poll without
        # waiting.
        self._watched: dict[str, tuple[bytes, float]] = {}

    def read(self, name: str) -> LeaseRow | None:
        """The row of the lease, held or free; None if nobody ever had the lease."""
        raw = self._store.get(lease_key(name))
        return None if raw is None else self.parse(name, raw)

    def parse(self, name: str, raw: bytes) -> LeaseRow:
        """The lease in this row; CorruptStore if the row is damaged."""
        try:
            return parse_lease(raw)
        except ValueError as error:
            reason = f"lease {name!r}: {error}; `vstate fsck --repair` moves it aside"
            raise CorruptStore(self._store.location, reason) from error

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
        with self._store.listening(key) as listen:
            while True:
                raw = self._store.get(key)
                before = None if raw is None else self.parse(name, raw)
                now = clock()  # after the read, so the row is at least this old
                free_at = self._free_at(name, raw, before, now)
                if before is None or raw is None or now >= free_at:
                    fence = self._first_fence(key) if before is None else before.fence + 1
                    mine = LeaseRow(owner, holder, ttl, fence)
                    if self._store.compare_and_swap(key, raw, mine.encode()):
                        self._watched.pop(name, None)
                        return mine, now
                elif given_up() or (limit is not None and now >= limit):
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

    def _free_at(self, name: str, raw: bytes | None, row: LeaseRow | None, now: float) -> float:
        """The time from which the lease may be taken, unless its row changes before."""
        if raw is None or row is None or not row.owner:
            return now
        seen, since = self._watched.get(name, (None, now))
        if seen != raw:
            since = now
            self._watched[name] = raw, since
        return since + row.ttl * (1 + MARGIN)

    def _first_fence(self, key: str) -> int:
        """1, or more than any earlier token if the row was damaged and a repair moved it aside."""
        return 1 if DAMAGED + key not in self._store else time.time_ns() // 1000
