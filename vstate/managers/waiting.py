"""Waiting: what need not be awaited, and what is waited for in one event loop after another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any
from weakref import WeakKeyDictionary


class Wait:
    """The work is done, or goes on by itself; `await` waits until it is done, and raises what it raised."""

    def __init__(self, until_done: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        # A function and not its coroutine, of which Python would complain that nobody awaited it.
        self._until_done = until_done

    def __await__(self) -> Generator[Any, None, None]:
        if self._until_done is not None:
            yield from self._until_done().__await__()


class LoopLock:
    """A lock for the tasks of one event loop after another, each of which an `asyncio.Lock` would hold on to."""

    def __init__(self) -> None:
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    def here(self) -> asyncio.Lock:
        """The lock of the running loop."""
        return self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
