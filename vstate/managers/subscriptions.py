"""Subscriptions: functions that the event loop calls when this or another process changes keys."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from operator import attrgetter
from typing import Any

from vstate import aio
from vstate.aio.workers import LoopLock
from vstate.errors import StoreUnavailable, VStateError
from vstate.forks import renew_in_child
from vstate.managers.manager import Wait
from vstate.objects.commit import Commit
from vstate.repo.compare.diff import Change
from vstate.state.watching import Watch

Subscriber = Callable[[str, Any, Any], Awaitable[object] | object]
"""`function(key, old, new)`, sync or async; None stands for an absent value."""

_log = logging.getLogger("vstate")

_PAUSE = 1.0  # seconds

_tasks: set[asyncio.Task[None]] = set()  # an event loop holds its tasks weakly


class Subscriptions:
    """The subscriptions to one part of a state. Each has a watch, and a task in the last event loop.

    They do not refer to the manager, so they are dropped with it, unless a function refers to it.
    """

    def __init__(self, state: aio.Versioned, part: str) -> None:
        self._state = state
        self._part = part
        self._all: list[_Subscription] = []
        self._beginning = LoopLock()

    def add(self, pattern: str, function: Subscriber) -> Wait:
        """Call the function from now on. A second subscription of the same function does nothing."""
        if not self._found(pattern, function):
            self._all.append(_Subscription(pattern, function))
            try:
                task = asyncio.get_running_loop().create_task(self._begin_or_log())
            except RuntimeError:
                return Wait(self.begin)  # the next call of the manager begins it
            _tasks.add(task)
            task.add_done_callback(_tasks.discard)
        return Wait(self.begin)

    def remove(self, pattern: str, function: Subscriber) -> Wait:
        """Stop the calls of the function. Await the result to wait for a call under way."""
        found = self._found(pattern, function)
        self._all = [subscription for subscription in self._all if subscription not in found]
        for subscription in found:
            subscription.end()

        async def until_ended() -> None:
            for subscription in found:
                await subscription.ended()

        return Wait(until_ended)

    def end_all(self) -> None:
        """Stop the calls of all functions."""
        for subscription in self._all:
            subscription.end()
        self._all = []

    async def begin(self) -> None:
        """Start all subscriptions: they hear of all later commits. Raises StorageError."""
        if all(subscription.runs() for subscription in self._all):
            return
        async with self._beginning.here():
            for subscription in list(self._all):
                if not subscription.runs():
                    await subscription.begin(self._state, self._part)

    async def _begin_or_log(self) -> None:
        try:
            await self.begin()
        except VStateError as error:
            _log.warning("not subscribed yet: %s; the next call of the manager tries again", error)

    def _found(self, pattern: str, function: Subscriber) -> list[_Subscription]:
        return [found for found in self._all if (found.pattern, found.function) == (pattern, function)]


class _Subscription:
    def __init__(self, pattern: str, function: Subscriber) -> None:
        self.pattern = pattern
        self.function = function
        self._watch: Watch | None = None
        self._task: asyncio.Task[None] | None = None
        self._over = False
        self._calling = LoopLock()
        renew_in_child(self, _Subscription._renew)

    def _renew(self) -> None:
        self._task = None  # it goes on in the parent alone

    def runs(self) -> bool:
        """Whether it runs in this event loop, or is over."""
        task = self._task
        is_here = task is not None and not task.done() and task.get_loop() is asyncio.get_running_loop()
        return self._over or is_here

    async def begin(self, state: aio.Versioned, part: str) -> None:
        if self._watch is None:
            pattern = f"{part}/{self.pattern}"
            # read() is at the newest commit, between updates: the watch sees all later commits.
            self._watch = await state.read(lambda handle: handle.watch(pattern))
        if self._over:
            self._watch.end()
        else:  # in a new loop, the watch goes on from its last commit
            self._task = asyncio.create_task(self._run(self._watch, len(part) + 1))

    def end(self) -> None:
        """Begin no more calls. Any thread may call this: the garbage collector may drop a manager in any."""
        self._over = True
        if self._watch is not None:
            self._watch.end()

    async def ended(self) -> None:
        """Wait for a call under way, unless it is the caller."""
        if self._task is not asyncio.current_task():
            async with self._calling.here():
                pass

    async def _run(self, watch: Watch, prefix: int) -> None:
        try:
            async for key, change, commit in watch:
                async with self._calling.here():
                    await self._call(key[prefix:], change, commit)
            await asyncio.to_thread(watch.close)
        except VStateError:
            if not self._over:  # otherwise the store may be closed by now
                _log.exception("a subscription to %r ended", self.pattern)

    async def _call(self, key: str, change: Change, commit: Commit) -> None:
        try:
            old, new = await _values(change)
            returned = None if self._over else self.function(key, old, new)
            if inspect.isawaitable(returned):
                await returned
        except Exception:  # no caller waits for this error, and the function may manage the next change
            _log.exception("a subscriber failed at %s %r in %s", change.kind, key, commit.short)


async def _values(change: Change) -> tuple[Any, Any]:
    """The old and the new value. While the store cannot be reached, it is asked again."""
    while True:
        try:
            return await asyncio.to_thread(attrgetter("old", "new"), change)
        except StoreUnavailable as error:
            _log.warning("a change waits for its subscriber: %s; trying again", error)
            await asyncio.sleep(_PAUSE)
