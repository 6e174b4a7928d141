"""Beside: carries out the rules of a store while a program commits to it."""

from __future__ import annotations

import logging
import time
from random import random
from typing import Final

from vstate.forks import cached_property
from vstate.repo.core import Core
from vstate.repo.upkeep.gc import Collector, step

_log = logging.getLogger("vstate")

_SHARE: Final = 0.1
_MOST_SAVED: Final = 1.0  # seconds
_LONGEST: Final = 0.05  # seconds, for room 0
_FIRST_PRICE: Final = 0.001  # seconds


class Beside:
    """Looks at one room after the other, for a tenth of the time that commits take.

    Each commit saves a tenth of its time. When that is as long as the last look took, the thread of the
    commit looks at the next room. So a look that took long is paid for before the next one. Room 0, which
    is seldom small, comes last; if a look at it took long, it is left to `gc`.

    Many programs, or sessions of one, may live for a commit each. So each begins where the store says that
    the last one began or ended, and with a part of a look saved by chance: together they look at all rooms.
    """

    def __init__(self, repo: Core) -> None:
        self._opened = repo.store, repo.security  # not the repository, which has this object
        self._price = _FIRST_PRICE
        self._saved = random() * _FIRST_PRICE
        self._first = 0
        """The number of the room to begin a round with."""
        self._next: int | None = None
        """The least number of the room to look at; None before the first look."""

    @cached_property
    def _repo(self) -> Core:
        # A Core of its own, so that these reads push nothing out of the writer's caches.
        return Core(*self._opened)

    def __call__(self, seconds: float) -> None:
        """Note that a commit took so long."""
        self._saved = min(self._saved + seconds * _SHARE, _MOST_SAVED)
        if self._saved < self._price:
            return
        self._saved -= self._price  # before the look: threads commit at once
        began, number = time.monotonic(), self._next
        try:
            work = Collector(self._repo)
            after = step(work, began, 1)[0] if number is None else work.collect_from(number, began)
            self._next = after or self._first
            failure: Exception | None = work.damage
        except Exception as error:  # the commit has landed, and nothing may say otherwise
            failure = error
        if failure is not None:
            _log.warning("what no rule keeps takes up room until a later gc: %s", failure)
        took = time.monotonic() - began
        if number == 0 and took > _LONGEST:
            self._first = 1
        self._saved += self._price - took
        self._price = took
