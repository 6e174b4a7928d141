"""Timed: which of the values in hand expire, and when, and what was asked for since the last commit."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

from vstate.objects import expiry
from vstate.objects.expiry import Expiry, moment_of
from vstate.repo.names.dates import parse_ttl


def ttl_microseconds(ttl: float | timedelta) -> int:
    """A time to live in whole microseconds, one at least; InvalidInput."""
    return max(round(parse_ttl(ttl) * 1_000_000), 1)


def make_expiry(ttl: float | timedelta, *, sliding: bool) -> Expiry:
    """The expiry of a key that is to live so many seconds from now on, or from each change on; InvalidInput."""
    length = ttl_microseconds(ttl)
    return Expiry(expiry.now() + length, length if sliding else 0)


class Asked(NamedTuple):
    """What was `wanted` and `set_at`, as `Timed` has them, when values were compared, and the `expiries` that followed
    from it, of the keys that expire, or did.
    """

    wanted: dict[str, Expiry | None]
    set_at: dict[str, int]
    expiries: dict[str, Expiry | None]


class Timed:
    """The keys of one state that expire, as far as they are in hand.

    - `values` are theirs, kept apart from the others: those are handed out without a look at the clock.
    - `due` says when each of them, and of those that are sealed, counts as absent.
    - `wanted` are the expiries that were asked for since the last commit, None to take one away. They go before
      what is committed.
    - `set_at` says when those that were set since then were. Such a key is there until the commit decides when it
      expires, so it is not in `due`, unless that was asked for afterwards.

    `WorkingValues` changes all of them itself, together with what it has: a call between two changes could be
    interrupted.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.due: dict[str, int] = {}
        self.wanted: dict[str, Expiry | None] = {}
        self.set_at: dict[str, int] = {}

    def is_over(self, key: str) -> bool:
        """Whether the key, which is in hand, counts as absent by now."""
        due = self.due.get(key)
        return due is not None and due <= expiry.now()

    def hides(self, key: str, entry: bytes) -> bool:
        """Whether the key counts as absent, though this entry is committed: by now, or when it was set."""
        due = moment_of(entry)
        if due is None:
            return False
        if key in self.wanted:
            return self.is_over(key)
        return due <= (self.set_at.get(key) or expiry.now())

    def before_set(self, key: str) -> tuple[int, bool, bool]:
        """For a key about to be given a new value: the moment, whether it is over, whether what was asked for stays."""
        at = expiry.now()
        is_over = key in self.due and self.due[key] <= at
        wanted = self.wanted.get(key)
        return at, is_over, not is_over and wanted is not None and wanted.ttl > 0

    def over(self) -> list[str]:
        """The keys in hand that count as absent by now."""
        at = expiry.now()
        return [key for key, due in self.due.items() if due <= at]

    def next(self, key: str, before: Expiry | None, *, changed: bool, staged: bool) -> Expiry | None:
        """The expiry that a commit now would give the key, of which `before` is committed."""
        if key in self.wanted:
            wanted = self.wanted[key]
            return None if wanted is None else wanted.begun_anew(expiry.now())
        if before is None or (staged and not before.ttl):
            return None
        return before.begun_anew(expiry.now()) if changed else before

    def asked(self) -> Asked:
        """What has been asked for by now."""
        return Asked(dict(self.wanted), dict(self.set_at), {})

    def settle(self, asked: Asked) -> None:
        """Take this as committed; what was asked for since stays. May be done again."""
        for key, committed in asked.expiries.items():
            if self.set_at.get(key) != asked.set_at.get(key) and key in self.set_at:
                continue
            if key in self.wanted and self.wanted[key] is not asked.wanted.get(key):
                continue
            if committed is None:
                self.due.pop(key, None)
            else:
                self.due[key] = committed.at
        for key, wanted in asked.wanted.items():
            if key in self.wanted and self.wanted[key] is wanted:
                del self.wanted[key]
        for key, at in asked.set_at.items():
            if self.set_at.get(key) == at:
                del self.set_at[key]
