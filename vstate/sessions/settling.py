"""Settling: calls that are cancelled when they have ended, and not half done before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

_T = TypeVar("_T")


async def to_the_end(work: Awaitable[_T]) -> _T:
    """What the work returns or raises; who is cancelled meanwhile, be it twice, waits for its end first."""
    future = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            with suppress(asyncio.CancelledError):  # the first one is passed on
                await asyncio.wait([future])
        if not future.cancelled():
            future.exception()  # looked at, so that nobody is told that nobody did
        raise


async def in_a_thread(function: Callable[[], _T]) -> _T:
    """What the function returns or raises, called in a thread, to its end."""
    # A future and not a task, which the end of the loop would cancel while the thread goes on.
    return await to_the_end(asyncio.get_running_loop().run_in_executor(None, function))
