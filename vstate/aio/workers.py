"""Workers: threads for calls that may wait for a store, and calls that end before their caller goes on."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from vstate.errors import InvalidInput
from vstate.forks import Uncopied, renew_in_child

_R = TypeVar("_R")
_P = ParamSpec("_P")

_THREADS = 4  # a handle does one thing at a time, mostly; reads beside a commit go on
_BREATH = 64  # reads from memory
_PAUSE = 0.001  # seconds between two looks at the calls under way


class Workers(Uncopied):
    """The threads of a handle, and of the handles made from it."""

    _instead = "each process opens a state, a manager or a session of its own, so pass on the path or URL"

    def __init__(self) -> None:
        self._begin()
        self._reads = 0
        self.are_open = True
        renew_in_child(self, Workers._renew)

    def _begin(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="vstate")

    def _renew(self) -> None:
        self._begin()  # the threads of the parent are not here
        if not self.are_open:
            self.stop()

    async def breathe(self) -> None:
        """Let the event loop run now and then: a task may poll a value without another pause."""
        self._reads += 1
        if self._reads % _BREATH == 0:
            await asyncio.sleep(0)

    async def run(
        self,
        function: Callable[[], _R],
        *,
        shielded: bool = False,
        undo: Callable[[_R], object] | None = None,
    ) -> _R:
        """Call the function in a thread, in a copy of this context. Cancelled, it has not begun, or it ended.

        If `shielded`, it is called even if this is cancelled. If this is cancelled after the call, `undo`
        gets its result. InvalidInput once the state is closed.
        """
        try:
            work = self._threads.submit(contextvars.copy_context().run, function)
        except RuntimeError:
            raise InvalidInput("this state is closed; open it again") from None
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def wake(work: object) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(_end, done)

        # Not `wrap_future`: it takes more steps, and would cancel the call together with this one.
        work.add_done_callback(wake)
        try:
            await done
        except asyncio.CancelledError:
            if shielded or not work.cancel():  # the call may have begun
                future = asyncio.wrap_future(work)
                await settled(future)
                if undo is not None and future.exception() is None:
                    await self.run(partial(undo, future.result()), shielded=True)
            raise
        try:
            return work.result()
        finally:
            del work  # it holds the exception, whose traceback holds this frame: a cycle

    def stop(self) -> None:
        self.are_open = False
        self._threads.shutdown(wait=False)


def _end(done: asyncio.Future[None]) -> None:
    if not done.done():  # it may be cancelled
        done.set_result(None)


async def settled(future: asyncio.Future[Any]) -> None:
    """Wait until the future is done, however often this is cancelled."""
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            pass  # the caller raises the first cancellation again
    if not future.cancelled():
        future.exception()  # marks it as retrieved, so that asyncio does not warn


async def shielded(work: Awaitable[_R]) -> _R:
    """Await the work. A caller that is cancelled, even twice, first waits for the end of the work."""
    future = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await settled(future)
        raise


async def in_thread(function: Callable[[], _R]) -> _R:
    """Call the function in a thread, shielded."""
    # A future, not a task: the end of the loop would cancel a task while the thread goes on.
    return await shielded(asyncio.get_running_loop().run_in_executor(None, function))


def awaited(
    method: Callable[Concatenate[Any, _P], _R],
) -> Callable[Concatenate[Any, _P], Coroutine[Any, Any, _R]]:
    """The same method for an event loop: a call of it is `in_thread`."""

    @wraps(method)
    async def call(self: Any, /, *args: _P.args, **options: _P.kwargs) -> _R:
        return await in_thread(partial(method, self, *args, **options))

    return call


class UnderWay:
    """Counts the calls inside its `with` blocks, so that a close can wait for their end."""

    def __init__(self) -> None:
        self._count = 0
        renew_in_child(self, UnderWay._renew)

    def _renew(self) -> None:
        self._count = 0  # the calls go on in the parent alone

    def __enter__(self) -> None:
        self._count += 1

    def __exit__(self, *raised: object) -> None:
        self._count -= 1

    async def ended(self) -> None:
        """Wait until no call is under way, in any event loop."""
        while self._count > 0:
            await asyncio.sleep(_PAUSE)


class LoopLock:
    """A lock for the tasks of each event loop in turn. An `asyncio.Lock` works in one loop only."""

    def __init__(self) -> None:
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    def here(self) -> asyncio.Lock:
        """The lock of the running loop."""
        return self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
