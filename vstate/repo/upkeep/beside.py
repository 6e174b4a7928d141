"""Beside: carries out the rules of a store while a program commits to it."""

from __future__ import annotations

import logging
import time
from typing import Final

from vstate.errors import VStateError
from vstate.repo.core import Core
from vstate.repo.upkeep.gc import Collector

_log = logging.getLogger("vstate")

_SHARE: Final = 0.1
_MOST_SAVED: Final = 1.0  # seconds


class Beside:
    """Looks at one room after the other, for a tenth of the time that commits take.

    Each commit saves a tenth of its time. When that is as long as the last look took, the thread of the
    commit looks at the next room. So a look that took long is paid for before the next one.
    """

    def __init__(self, repo: Core) -> None:
        self._repo = Core(
            repo.store, repo.security
        )  # what it reads takes no place in the caches of the writer
        self._saved = self._price = 0.0
        self._next = 0
        """The number of the room to look at."""

    def __call__(self, seconds: float) -> None:
        """Note that a commit took so long."""
        self._saved = min(self._saved + seconds * _SHARE, _MOST_SAVED)
        if self._saved < self._price:
            return
        self._saved -= self._price  # before the look: threads commit at once
        began = time.monotonic()
        try:
            work = Collector(self._repo)
            self._next = work.collect_from(self._next, began) or 0
            failure: VStateError | None = work.damage
        except VStateError as error:
            failure = error
        if failure is not None:
            _log.warning("what no rule keeps takes up room until a later gc: %s", failure)
        took = time.monotonic() - began
        self._saved += self._price - took
        self._price = took
