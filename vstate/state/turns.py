"""Turns: transactions on one state follow one another, and nest within one."""

from __future__ import annotations

import sys
import time
import warnings
from contextvars import ContextVar
from threading import Lock

from vstate.errors import Conflict

_WARN_AFTER_SECONDS = 30.0
_LOOK_AGAIN_SECONDS = 1.0

_holding: ContextVar[tuple[Turn, ...]] = ContextVar("vstate_turns", default=())


def _in_event_loop() -> bool:
    asyncio = sys.modules.get("asyncio")  # who has not imported it is in no event loop of its
    return asyncio is not None and asyncio._get_running_loop() is not None


class Turn:
    """One turn: `with turn.bell, turn.held: turns.take(turn)`, and it is over however that block ends.

    Two locks and not a context manager of our own, whose `__exit__` an interruption could keep from running, so
    that nobody would ever have a turn again. `held` is the truth; `bell` is what others wait for, and somebody
    interrupted at that may leave it taken.
    """

    __slots__ = ("bell", "held")

    def __init__(self) -> None:
        self.bell = Lock()
        self.held = Lock()


class Turns:
    """Who may run a transaction on a state now.

    Nesting is by context, not by thread: what an asyncio task or `asyncio.to_thread` starts inside a
    transaction is part of it. A thread started otherwise is not, unless it runs in a copy of the context.
    """

    def __init__(self) -> None:
        self._guard = Lock()
        self._now: Turn | None = None

    @property
    def nested(self) -> bool:
        """Whether this context is inside a transaction already."""
        # A mark that outlives its turn, in a context that was kept or interrupted, marks nothing.
        now = self._now
        return now is not None and now.held.locked() and now in _holding.get()

    def after_fork_in_child(self) -> None:
        """Forget a holder that was another thread, which is not in this process."""
        if not self.nested:
            self._guard = Lock()
            self._now = None

    def take(self, turn: Turn) -> None:
        """Wait for the turn, blocking the thread; it is taken for as long as `turn.held` is."""
        if self._taken(turn):
            return
        if _in_event_loop():
            raise Conflict(
                "another task or transaction on the same state is under way, and waiting for it would "
                "stop the event loop that it may run in; make this task an async def, or use "
                "asyncio.to_thread"
            )
        began = time.monotonic()
        warned = False
        while not self._taken(turn):
            now = self._now
            if now is not None and now.bell.acquire(timeout=_LOOK_AGAIN_SECONDS):
                now.bell.release()
            warned = warned or self._warned(began)

    async def take_async(self, turn: Turn) -> None:
        """As `take`, without blocking the event loop."""
        import asyncio  # late, for a quick `import vstate`: whoever awaits has it already

        began = time.monotonic()
        warned = False
        pause = 0.0005
        while not self._taken(turn):
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.02)
            warned = warned or self._warned(began)

    def _taken(self, turn: Turn) -> bool:
        with self._guard:
            if self._now is not None and self._now.held.locked():
                return False
            self._now = turn
        _holding.set((*(other for other in _holding.get() if other.held.locked()), turn))
        return True

    def _warned(self, began: float) -> bool:
        if time.monotonic() - began < _WARN_AFTER_SECONDS:
            return False
        warnings.warn(
            f"waiting for over {_WARN_AFTER_SECONDS:.0f} s for another task or transaction on the same "
            "state; if that one waits for this thread, start the thread's work with "
            "contextvars.copy_context().run, which makes it a part of the other",
            RuntimeWarning,
            stacklevel=4,
        )
        return True
