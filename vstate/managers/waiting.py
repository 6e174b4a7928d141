"""Waiting: results that may be awaited, and a lock for several event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any
from weakref import WeakKeyDictionary


class Wait:
    """Work that is done, or goes on by itself. `await` waits for its end, and raises its error."""

    def __init__(self, until_done: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        # A function, not a coroutine: Python warns of a coroutine that is never awaited.
        self._until_done = until_done

    def __await__(self) -> Generator[Any, None, None]:
        if self._until_done is not None:
            yield from self._until_done().__await__()


class LoopLock:
    """A lock for the tasks of each event loop in turn. An `asyncio.Lock` works in one loop only."""

    def __init__(self) -> None:
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    def here(self) -> asyncio.Lock:
        """The lock of the running loop."""
        return self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
