"""Backoff: the growing pauses between the attempts of one call."""

from __future__ import annotations

import math
import os
import time
from typing import Final, NamedTuple

REACH_SECONDS: Final = 5.0
"""How long a call waits, by default, for a server that refuses connections or cannot be reached."""


class Timeout(NamedTuple):
    """How many seconds a call waits in all, and of these for a server that cannot be reached."""

    seconds: float
    to_reach: float

    @classmethod
    def of(cls, given: float | None, default: float) -> Timeout:
        """The given seconds for both; else `default`, and REACH_SECONDS for a server out of reach."""
        if given is None:
            return cls(default, min(default, REACH_SECONDS))
        return cls(float(given), float(given))


class Backoff:
    """Pauses from `first` to `longest` seconds, each `growth` times the one before, for `seconds` in all.

    Each pause is longer or shorter by up to half, at random: callers that collide once do not collide again.
    A server that cannot be reached gets `to_reach` seconds of them.
    """

    __slots__ = ("_end", "_growth", "_longest", "_lost_at", "_next", "_to_reach")

    def __init__(
        self,
        first: float,
        longest: float,
        *,
        seconds: float = math.inf,
        to_reach: float = math.inf,
        growth: float = 2.0,
    ) -> None:
        self._next = first
        self._longest = longest
        self._growth = growth
        self._end = time.monotonic() + seconds
        self._to_reach = to_reach
        self._lost_at: float | None = None

    def pause(self, *, lost_at: float | None = None) -> bool:
        """Sleep before the next attempt. Return False at once if the time is over.

        `lost_at` is the time since when the server cannot be reached, if the last attempt failed by that.
        """
        left = self._end - (now := time.monotonic())
        if lost_at is None:
            self._lost_at = None
        else:
            self._lost_at = lost_at if self._lost_at is None else self._lost_at
            left = min(left, self._lost_at + self._to_reach - now)
        if left <= 0:
            return False
        # One random byte is enough, and does without `import random`.
        pause = self._next * (0.5 + os.urandom(1)[0] / 256)
        self._next = min(self._next * self._growth, self._longest)
        time.sleep(min(pause, left))
        return True
