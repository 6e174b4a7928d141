"""Workers: the threads in which what may wait for a store is called."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from vstate.errors import InvalidInput

_R = TypeVar("_R")

_THREADS = 4  # a handle does one thing at a time, mostly; reads beside a commit go on


class Workers:
    """The threads of a handle, and of what was made from it."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="vstate")

    async def run(
        self,
        function: Callable[[], _R],
        *,
        surely: bool = False,
        undo: Callable[[_R], object] | None = None,
    ) -> _R:
        """Call the function in a thread, in a copy of this context; if cancelled, not, or when it has returned.

        `surely` calls it, cancelled or not. `undo` is called with what nobody gets, as it was cancelled. InvalidInput
        once the state is closed.
        """
        try:
            work = self._threads.submit(contextvars.copy_context().run, function)
        except RuntimeError:
            raise InvalidInput("this state is closed") from None
        future = asyncio.wrap_future(work)
        try:
            # Without a shield where none is needed: that would be another round of the loop for each call.
            return await (asyncio.shield(future) if surely else future)
        except asyncio.CancelledError:
            if surely or not work.cancel():  # it may have begun
                future = asyncio.wrap_future(work)  # the other one is cancelled
                await settled(future)
                if undo is not None and future.exception() is None:
                    await self.run(partial(undo, future.result()), surely=True)
            raise

    def stop(self) -> None:
        self._threads.shutdown(wait=False)


async def settled(future: asyncio.Future[Any]) -> None:
    """Wait until the future is done, however often this is cancelled."""
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            pass  # the first one is passed on
    if not future.cancelled():
        future.exception()  # looked at, so that nobody is told that nobody did
