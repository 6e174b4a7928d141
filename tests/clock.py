"""A clock that tests move. Keys expire by it, and commits and reflogs take their dates from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from types import SimpleNamespace

import pytest

from vstate.objects import expiry
from vstate.repo import core
from vstate.repo.names import refs
from vstate.repo.upkeep import gc

BEGIN = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)


class Time:
    """The time, which only `pass_` moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def pass_(self, seconds: float) -> None:
        self.seconds += seconds

    @property
    def now(self) -> datetime:
        return BEGIN + timedelta(seconds=self.seconds)

    def after(self, seconds: float) -> datetime:
        return self.now + timedelta(seconds=seconds)


@contextmanager
def standing_still() -> Iterator[Time]:
    """In this block, time passes only when the test says so."""
    time = Time()

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]  # datetime's gives Self
            return time.now

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(expiry, "now", lambda: round(time.now.timestamp() * 1_000_000))
        patched.setattr(refs, "time", SimpleNamespace(time_ns=lambda: expiry.now() * 1000))
        patched.setattr(core, "datetime", Clock)
        patched.setattr(gc, "datetime", Clock)
        yield time
