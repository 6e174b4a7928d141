"""Beside: carries out the rules of a store while a program commits to it."""

from __future__ import annotations

import logging
import time
from typing import Final

from vstate.repo.core import Core
from vstate.repo.upkeep.gc import Collector

_log = logging.getLogger("vstate")

_SHARE: Final = 0.1
_MOST_SAVED: Final = 1.0  # seconds
_LONGEST: Final = 0.05  # seconds, for room 0


class Beside:
    """Looks at one room after the other, for a tenth of the time that commits take.

    Each commit saves a tenth of its time. When that is as long as the last look took, the thread of the
    commit looks at the next room. So a look that took long is paid for before the next one. Room 0, which
    grows with all branches of the store, comes last; if a look at it took long, it is left to `gc`.
    """

    def __init__(self, repo: Core) -> None:
        # A Core of its own, so that these reads push nothing out of the writer's caches.
        self._repo = Core(repo.store, repo.security)
        self._saved = self._price = 0.0
        self._first = 0
        """The number of the room to begin a round with."""
        self._next = 1
        """The least number of the room to look at."""

    def __call__(self, seconds: float) -> None:
        """Note that a commit took so long."""
        self._saved = min(self._saved + seconds * _SHARE, _MOST_SAVED)
        if self._saved < self._price:
            return
        self._saved -= self._price  # before the look: threads commit at once
        began, number = time.monotonic(), self._next
        try:
            work = Collector(self._repo)
            self._next = work.collect_from(number, began) or self._first
            failure: Exception | None = work.damage
        except Exception as error:  # the commit has landed, and nothing may say otherwise
            failure = error
        if failure is not None:
            _log.warning("what no rule keeps takes up room until a later gc: %s", failure)
        took = time.monotonic() - began
        if not number and took > _LONGEST:
            self._first = 1
        self._saved += self._price - took
        self._price = took
