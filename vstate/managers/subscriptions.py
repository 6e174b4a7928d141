"""Subscriptions: functions of a program with an event loop that are called when keys change, by whomever."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from threading import Thread
from typing import Any

from vstate import aio
from vstate.errors import VStateError
from vstate.managers.waiting import LoopLock, Wait
from vstate.state.watching import Watch

Subscriber = Callable[[str, Any, Any], Awaitable[object] | object]
"""`function(key, old, new)`, None for a value that was not there or is not any more; sync or async."""

_log = logging.getLogger("vstate")


class Subscriptions:
    """Those of one part of a state. Each has a watch, and a task in the event loop that it was last used in.

    Nothing here knows the manager: one that is dropped takes its subscriptions along, if its functions let it.
    """

    def __init__(self, state: aio.Versioned, part: str) -> None:
        self._state = state
        self._part = part
        self._all: list[_Subscription] = []
        self._beginning = LoopLock()

    def add(self, pattern: str, function: Subscriber) -> Wait:
        """Have the function called from now on; nothing new if it is already."""
        if not callable(function):
            raise TypeError(f"a subscriber is a function of (key, old, new), not {function!r}")
        if not self._found(pattern, function):
            self._all.append(_Subscription(pattern, function))
            try:
                task = asyncio.get_running_loop().create_task(self._begin_alone())
            except RuntimeError:
                return Wait(self.begin)  # the next call of the manager's is in a loop
            _tasks.add(task)
            task.add_done_callback(_tasks.discard)
        return Wait(self.begin)

    def remove(self, pattern: str, function: Subscriber) -> Wait:
        """Call the function no more; awaited, a call under way has ended. Nothing if it is not subscribed."""
        found = self._found(pattern, function)
        self._all = [subscription for subscription in self._all if subscription not in found]
        for subscription in found:
            subscription.end()

        async def until_ended() -> None:
            for subscription in found:
                await subscription.ended()

        return Wait(until_ended)

    def end_all(self) -> None:
        """Call none of the functions any more."""
        for subscription in self._all:
            subscription.end()
        self._all = []

    async def begin(self) -> None:
        """See to it that all that are subscribed hear of whatever is committed after this. Raises StorageError."""
        if all(subscription.runs() for subscription in self._all):
            return
        async with self._beginning.here():
            for subscription in list(self._all):
                if not subscription.runs():
                    await subscription.begin(self._state, self._part)

    async def _begin_alone(self) -> None:
        try:
            await self.begin()
        except VStateError as error:
            _log.warning("not subscribed yet: %s; the next call of the manager tries again", error)

    def _found(self, pattern: str, function: Subscriber) -> list[_Subscription]:
        return [found for found in self._all if (found.pattern, found.function) == (pattern, function)]


_tasks: set[asyncio.Task[None]] = set()  # a loop itself does not keep its tasks


class _Subscription:
    def __init__(self, pattern: str, function: Subscriber) -> None:
        self.pattern = pattern
        self.function = function
        self._watch: Watch | None = None
        self._task: asyncio.Task[None] | None = None
        self._over = False
        self._calling = False

    def runs(self) -> bool:
        """Whether it is at work in this event loop, or has nothing to do any more."""
        if self._over:
            return True
        task = self._task
        return task is not None and not task.done() and task.get_loop() is asyncio.get_running_loop()

    async def begin(self, state: aio.Versioned, part: str) -> None:
        if self._watch is None:
            prefix = f"{part}/"

            def watch(handle: Any) -> Watch:
                # In the turn, at the newest commit: what is committed from here on is heard of.
                made: Watch = handle.watch(prefix + self.pattern)
                return made

            self._watch = await state.read(watch)
        if self._over:
            self._close()
            return
        # In another loop than before it goes on after what was found there.
        self._task = asyncio.create_task(self._run(self._watch, len(part) + 1))

    def end(self) -> None:
        """No call begins any more. From any thread: the last one who knew a manager may be the collector's."""
        self._over = True
        task = self._task
        if task is None or task.done():
            self._close()
            return
        try:
            task.get_loop().call_soon_threadsafe(self._stop, task)
        except RuntimeError:  # the loop has ended
            self._close()

    def _stop(self, task: asyncio.Task[None]) -> None:
        if not self._calling:
            task.cancel()

    def _is_over(self) -> bool:
        return self._over

    async def ended(self) -> None:
        task = self._task
        if task is not None and task is not asyncio.current_task():
            await asyncio.wait([task])

    async def _run(self, watch: Watch, prefix: int) -> None:
        try:
            async for key, change, commit in watch:
                old, new = await asyncio.to_thread(lambda change=change: (change.old, change.new))  # type: ignore[misc]
                if self._is_over():
                    return
                self._calling = True
                try:
                    returned = self.function(key[prefix:], old, new)
                    if inspect.isawaitable(returned):
                        await returned
                except Exception:
                    # The next change may be one that it can deal with; nobody waits here to be told.
                    _log.exception(
                        "a subscriber failed at %s %r in %s", change.kind, key[prefix:], commit.short
                    )
                finally:
                    self._calling = False
                if self._is_over():
                    return
        except VStateError:
            _log.exception("a subscription to %r ended", self.pattern)
        finally:
            if self._over:
                self._close()

    def _close(self) -> None:
        """Close the watch, in a thread, since that waits for a look at the store to end."""
        if self._watch is not None:
            Thread(target=self._watch.close, name="vstate close", daemon=True).start()
