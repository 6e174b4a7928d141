"""Leases: rows that say who may do something now, and until when nobody else may.

A lease is a row of its own, changed by compare-and-swap only. It is never deleted: released, it keeps its number,
so that the next holder gets a higher one. No clock of one machine is ever compared with that of another: whoever
wants a lease watches the row, and takes it when it has not changed for as long as it says, by his own clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from vstate.errors import CorruptStore, LeaseHeld
from vstate.kv.base import KVStore
from vstate.repo.checked_row import decode_checked, encode_checked
from vstate.repo.names.refs import check_ref_name
from vstate.repo.objects import DAMAGED

LEASE = "lease/"

MARGIN = 0.1
"""By which part of its time a lease is waited for longer than that: two clocks may run so differently."""

SHORTEST_TTL = 0.1
"""Seconds. A third of it has to do for a thread to wake up and for one swap in the store, an fsync or a round trip: tens of
milliseconds on a machine that is busy. With less a lease is lost by whoever has it, again and again."""

LONGEST_WAIT = 1.0
"""Seconds after which whoever waits for a lease looks at its row, and whether he still is to wait."""


def clock() -> float:
    """Seconds by a clock that nobody sets, and that goes on while the machine sleeps, if it has such a one."""
    return time.clock_gettime(_BOOT_CLOCK) if _BOOT_CLOCK is not None else time.monotonic()


_BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class LeaseRow(NamedTuple):
    """What a store holds for a lease. `owner` is a random token, empty when nobody has it; `holder` says who
    that is, to people; `ttl` is in seconds; `fence` counts the holders, `renewals` what this one renewed.
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
        """The same lease, begun anew."""
        return self._replace(renewals=self.renewals + 1)

    def released(self) -> LeaseRow:
        """The row of a lease that nobody has any more."""
        return self._replace(owner="", holder="", renewals=0)


def parse_lease(row: bytes) -> LeaseRow:
    """The lease in a row; ValueError if the row is damaged."""
    fields = decode_checked(row)
    if not isinstance(fields, list) or [type(field) for field in fields] != [str, str, float, int, int]:
        raise ValueError("it is no lease")
    return LeaseRow(*fields)


def lease_key(name: str) -> str:
    """The key of a lease's row; InvalidInput unless the name is one that a branch could have."""
    return LEASE + check_ref_name(name, "lease")


class Leases:
    """The leases of one store."""

    def __init__(self, store: KVStore) -> None:
        self._store = store
        # Since when rows have been as they are. Kept, so that who asks now and then without waiting gets it too.
        self._watched: dict[str, tuple[bytes, float]] = {}

    def read(self, name: str) -> LeaseRow | None:
        """Who has the lease, or had it; None if nobody ever did."""
        raw = self._store.get(lease_key(name))
        return None if raw is None else self.parse(name, raw)

    def parse(self, name: str, raw: bytes) -> LeaseRow:
        """What the row of this lease says; CorruptStore if it is damaged."""
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
        """Become the holder; the new row, and a time by `clock` before it was there.

        Waits so many seconds, None for ever, or until `given_up` says true, and raises LeaseHeld then. Whatever else it
        raises, this owner may have the lease: `give_back` sees to that.
        """
        key = lease_key(name)
        limit = None if wait is None else clock() + wait
        with self._store.listening(key) as listen:
            while True:
                raw = self._store.get(key)
                before = None if raw is None else self.parse(name, raw)
                now = clock()  # after the read: the row was there by now
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
        """Let the next one have the lease, if it is this owner's."""
        key = lease_key(name)
        while (raw := self._store.get(key)) is not None:
            row = self.parse(name, raw)
            if row.owner != owner or self._store.compare_and_swap(key, raw, row.released().encode()):
                return

    def _free_at(self, name: str, raw: bytes | None, row: LeaseRow | None, now: float) -> float:
        """When the lease may be taken, if its row does not change before."""
        if raw is None or row is None or not row.owner:
            return now
        seen, since = self._watched.get(name, (None, now))
        if seen != raw:
            since = now
            self._watched[name] = raw, since
        return since + row.ttl * (1 + MARGIN)

    def _first_fence(self, key: str) -> int:
        """One; more than any number that was ever given, where the row was damaged and a repair moved it aside."""
        return 1 if DAMAGED + key not in self._store else time.time_ns() // 1000
