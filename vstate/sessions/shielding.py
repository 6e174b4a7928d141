"""Shielding: work that goes on to its end when its caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from vstate.aio.workers import settled

_T = TypeVar("_T")


async def shielded(work: Awaitable[_T]) -> _T:
    """Await the work. A caller that is cancelled, even twice, first waits for the end of the work."""
    future = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await settled(future)
        raise


async def in_thread(function: Callable[[], _T]) -> _T:
    """Call the function in a thread, shielded."""
    # A future, not a task: the end of the loop would cancel a task while the thread goes on.
    return await shielded(asyncio.get_running_loop().run_in_executor(None, function))
