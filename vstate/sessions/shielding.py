"""Shielding: work that goes on to its end when its caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from vstate.aio.workers import settled

_T = TypeVar("_T")
_P = ParamSpec("_P")


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


def awaited(
    method: Callable[Concatenate[Any, _P], _T],
) -> Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]]:
    """The same method for an event loop: a call of it is `in_thread`."""

    async def call(self: Any, /, *args: _P.args, **options: _P.kwargs) -> _T:
        return await in_thread(partial(method, self, *args, **options))

    call.__doc__ = f"As `{method.__name__}`, in a thread."
    call.__wrapped__ = method  # type: ignore[attr-defined]  # for inspect.signature
    return call
