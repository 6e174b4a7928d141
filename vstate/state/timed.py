"""Timed: which of the values in hand expire, and when, and what was asked for since the last commit."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from vstate.objects import expiry
from vstate.objects.expiry import Expiry, moment_of
from vstate.repo.dates import parse_ttl


def ttl_microseconds(ttl: float | timedelta) -> int:
    """A time to live in whole microseconds, one at least; InvalidInput."""
    return max(round(parse_ttl(ttl) * 1_000_000), 1)


def make_expiry(ttl: float | timedelta, *, sliding: bool) -> Expiry:
    """The expiry of a key that is to live so many seconds from now on, or from each change on; InvalidInput."""
    length = ttl_microseconds(ttl)
    return Expiry(expiry.now() + length, length if sliding else 0)


class Timed:
    """The keys of one state that expire, as far as they are in hand.

    - `values` are theirs, kept apart from the others: those are handed out without a look at the clock.
    - `due` says when each of them, and of those that are sealed, counts as absent.
    - `wanted` are the expiries that were asked for since the last commit, None to take one away. They go before
      what is committed.
    - `set_at` says when those that were set since then were.
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

    def want(self, key: str, wanted: Expiry | None) -> None:
        """Note an expiry that was asked for."""
        self.wanted[key] = wanted
        if wanted is None:
            self.due.pop(key, None)
        else:
            self.due[key] = wanted.at

    def set(self, key: str) -> None:
        """Take note that the key was given a new value: it is there until the commit decides when it expires."""
        self.values.pop(key, None)
        self.due.pop(key, None)
        self.set_at[key] = expiry.now()
        if (wanted := self.wanted.get(key)) is not None and not wanted.ttl:
            del self.wanted[key]

    def forget(self, key: str) -> None:
        """Drop all that is known of the key."""
        self.values.pop(key, None)
        self.due.pop(key, None)
        self.wanted.pop(key, None)
        self.set_at.pop(key, None)

    def clear(self) -> None:
        """Drop everything."""
        self.values = {}
        self.due = {}
        self.wanted = {}
        self.set_at = {}

    def over(self) -> list[str]:
        """The keys in hand that count as absent by now."""
        at = expiry.now() if self.due else 0
        return [key for key, due in self.due.items() if due <= at]

    def next(self, key: str, before: Expiry | None, *, changed: bool, staged: bool) -> Expiry | None:
        """The expiry that a commit now would give the key, of which `before` is committed."""
        if key in self.wanted:
            wanted = self.wanted[key]
            return None if wanted is None else wanted.begun_anew(expiry.now())
        if before is None or (staged and not before.ttl):
            return None
        return before.begun_anew(expiry.now()) if changed else before

    def settle(self, expiries: dict[str, Expiry | None]) -> None:
        """Take these expiries as committed."""
        self.wanted = {}
        self.set_at = {}
        for key, committed in expiries.items():
            if committed is None:
                self.due.pop(key, None)
            else:
                self.due[key] = committed.at
