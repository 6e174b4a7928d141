"""Turns: transactions on one state follow one another, and nest within one."""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from vstate.errors import Conflict

_WARN_AFTER_SECONDS = 30.0

_holding: ContextVar[tuple[object, ...]] = ContextVar("vstate_turns", default=())


def _in_event_loop() -> bool:
    asyncio = sys.modules.get("asyncio")  # who has not imported it is in no event loop of its
    return asyncio is not None and asyncio._get_running_loop() is not None


class Turns:
    """Who may run a transaction on a state now.

    Nesting is by context, not by thread: what an asyncio task or `asyncio.to_thread` starts inside a
    transaction is part of it. A thread started otherwise is not, unless it runs in a copy of the context.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: object = None

    @property
    def nested(self) -> bool:
        """Whether this context is inside a transaction already."""
        return self._holder is not None and self._holder in _holding.get()

    def after_fork_in_child(self) -> None:
        """Forget a holder that was another thread, which is not in this process."""
        if not self.nested:
            self._lock = threading.Lock()
            self._holder = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Wait for the turn, blocking the thread, and hold it for the with block."""
        if not self._lock.acquire(blocking=False):
            if _in_event_loop():
                raise Conflict(
                    "another task or transaction on the same state is under way, and waiting for it would "
                    "stop the event loop that it may run in; make this task an async def, or use "
                    "asyncio.to_thread"
                )
            if not self._lock.acquire(timeout=_WARN_AFTER_SECONDS):
                self._warn()
                self._lock.acquire()
        with self._marked():
            yield

    async def acquire(self) -> None:
        """Wait for the turn without blocking the event loop."""
        import asyncio  # late, for a quick `import vstate`: whoever awaits has it already

        began = time.monotonic()
        warned = False
        pause = 0.0005
        while not self._lock.acquire(blocking=False):
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.02)
            if not warned and time.monotonic() - began > _WARN_AFTER_SECONDS:
                warned = True
                self._warn()

    @contextmanager
    def _marked(self) -> Iterator[None]:
        # A mark of this turn alone: what outlives it and kept the context is not inside the next one.
        self._holder = holder = object()
        token = _holding.set((*_holding.get(), holder))
        try:
            yield
        finally:
            self._holder = None
            self._lock.release()
            # A with block may end in another context than it began in; the mark it leaves there marks nothing.
            with suppress(ValueError):
                _holding.reset(token)

    @contextmanager
    def acquired(self) -> Iterator[None]:
        """Hold, for the with block, the turn that `acquire` waited for."""
        with self._marked():
            yield

    def _warn(self) -> None:
        warnings.warn(
            f"waiting for over {_WARN_AFTER_SECONDS:.0f} s for another task or transaction on the same "
            "state; if that one waits for this thread, start the thread's work with "
            "contextvars.copy_context().run, which makes it a part of the other",
            RuntimeWarning,
            stacklevel=4,
        )
