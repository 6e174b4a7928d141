"""Backoff: the growing pauses between the attempts of one call."""

from __future__ import annotations

import math
import os
import time


class Backoff:
    """Pauses from `first` to `longest` seconds, each `growth` times the one before, for `seconds` in all.

    Each pause is longer or shorter by up to half, at random: callers that collide once do not collide again.
    """

    __slots__ = ("_end", "_growth", "_longest", "_next", "_start")

    def __init__(
        self, first: float, longest: float, *, seconds: float = math.inf, growth: float = 2.0
    ) -> None:
        self._next = first
        self._longest = longest
        self._growth = growth
        self._start = time.monotonic()
        self._end = self._start + seconds

    @property
    def elapsed(self) -> float:
        """Seconds since the pauses began."""
        return time.monotonic() - self._start

    def next(self, *, longest: float | None = None) -> float:
        """The next pause in seconds. Later ones do not exceed `longest`, if it is given."""
        # One random byte is enough, and does without `import random`.
        pause = self._next * (0.5 + os.urandom(1)[0] / 256)
        self._next = min(self._next * self._growth, self._longest if longest is None else longest)
        return pause

    def pause(self, *, longest: float | None = None) -> bool:
        """Sleep before the next attempt. Return False at once if the time is over."""
        left = self._end - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(self.next(longest=longest), left))
        return True
