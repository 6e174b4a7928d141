"""Turns: the transactions on one state follow one another, and nest within one."""

from __future__ import annotations

import sys
import time
import warnings
from _thread import LockType
from collections import deque
from contextlib import suppress
from contextvars import ContextVar
from threading import Lock
from typing import TYPE_CHECKING, Final
from weakref import ReferenceType, ref

from vstate.errors import Conflict
from vstate.forks import new_lock

if TYPE_CHECKING:
    import asyncio

_WARN_AFTER_SECONDS = 30.0
_LOOK_AGAIN_SECONDS = 1.0

Token = LockType
"""Says that an operation is under way: `with token`, in the frame of the operation.

Everybody else refers to the token weakly. The operation is over when the lock is free or nothing holds the
token any more. So no exception can leave it set, and no `finally` has to run.
"""

OVER: Final[ReferenceType[Token]] = ref(Lock())
"""The reference to the token of an operation that is over."""


def is_live(token: ReferenceType[Token]) -> bool:
    """Whether the operation of this token is under way."""
    found = token()
    return found is not None and found.locked()


def end(token: ReferenceType[Token]) -> None:
    """In a forked child: end the operation of a thread that is not here. Its frame looks alive for ever."""
    found = token()
    if found is not None and found.locked():
        found.release()


_MOST_OVER = 4
"""When a context names more turns than these, it forgets those whose token is gone."""

_holding: ContextVar[tuple[ReferenceType[Token], ...]] = ContextVar("vstate_turns", default=())


def _in_event_loop() -> bool:
    asyncio = sys.modules.get("asyncio")  # a program that has not imported asyncio runs no event loop of it
    return asyncio is not None and asyncio._get_running_loop() is not None


class _Waiter:
    """A task that waits for its turn. `rung`: it was woken, and has not looked yet."""

    __slots__ = ("loop", "rung", "woken")

    def __init__(self, loop: asyncio.AbstractEventLoop, woken: asyncio.Event) -> None:
        self.loop = loop
        self.woken = woken
        self.rung = False


class Turns:
    """Whose transaction may run on a state now.

    Nesting goes by context, not by thread: a task or an `asyncio.to_thread` call that starts inside a
    transaction is part of it. Any other thread is not, unless it runs in a copy of the context.

    A turn is a token in the frame of its with block, so it is over however the block ends. At the end of the
    block the Turns wakes the next task that waits.
    """

    def __init__(self) -> None:
        self._current = OVER
        # Re-entrant: a signal handler may look for a turn while this thread does.
        self._guard = new_lock()
        self._waiting: deque[_Waiter] = deque()

    @property
    def is_taken(self) -> bool:
        """Whether a transaction is under way, in any context."""
        return is_live(self._current)

    @property
    def nested(self) -> bool:
        """Whether this context is inside a transaction already."""
        # A context that was kept may name a turn that is over. As `is_live`, without a call in each commit.
        turn = self._current
        token = turn()
        return token is not None and token.locked() and turn in _holding.get()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc_info: object) -> None:
        self.ring()

    def take(self, token: Token) -> bool:
        """Wait, and take the turn. False if this context is inside a turn already; that one goes on.

        Call it as `with turns, token: turns.take(token)`. The turn lasts while the token is locked. That with
        block is of C, so no exception leaves the turn taken.
        """
        if self.nested:
            return False
        if not self._taken(token):
            self._wait(token)
        return True

    async def take_async(self, token: Token) -> bool:
        """As `take`, without blocking the event loop, and after the tasks that wait already."""
        if self.nested:
            return False
        # Not past waiting tasks: one that takes turn after turn would never let them have theirs.
        if self._waiting or not self._taken(token):
            await self._wait_in_line(token)
        return True

    def renew(self) -> None:
        """In a forked child: end a turn of another thread or task, which does not go on in this process."""
        if not self.nested:
            self._current = OVER
        self._waiting = deque()

    def _wait(self, token: Token) -> None:
        if _in_event_loop():
            raise Conflict(
                "another task or transaction on the same state is under way, and waiting for it would stop "
                "the event loop that it may run in; make this task an async def, or use asyncio.to_thread"
            )
        began, warned = time.monotonic(), False
        while not self._taken(token):
            warned = warned or _warned(began)
            other = self._current()
            if other is not None and other.acquire(timeout=_LOOK_AGAIN_SECONDS):
                other.release()
            del other  # or this thread would keep a lost turn alive

    async def _wait_in_line(self, token: Token) -> None:
        import asyncio  # late, for a quick `import vstate`: a program that awaits has imported it

        began, warned = time.monotonic(), False
        waiter = _Waiter(asyncio.get_running_loop(), asyncio.Event())
        self._waiting.append(waiter)
        try:
            self.ring()  # a turn may have ended just before, when nobody waited
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_AGAIN_SECONDS):
                        await waiter.woken.wait()
                waiter.woken.clear()
                waiter.rung = False
                if self._taken(token):
                    return
                warned = warned or _warned(began)
        finally:
            self._leave(waiter)

    def ring(self) -> None:
        """If the turn is free, wake the first sleeping task. Only a hint: each task also looks by itself."""
        if not self._waiting or self.is_taken:
            return
        for waiter in self._waiting.copy():
            if not waiter.rung:
                waiter.rung = True
                try:
                    waiter.loop.call_soon_threadsafe(waiter.woken.set)
                    return
                except RuntimeError:  # its loop has ended
                    self._leave(waiter)

    def _leave(self, waiter: _Waiter) -> None:
        with suppress(ValueError):  # it has left already
            self._waiting.remove(waiter)

    def _taken(self, token: Token) -> bool:
        place, held = ref(token), _holding.get()
        if len(held) > _MOST_OVER:
            held = tuple([other for other in held if other() is not None])
        # First: a signal handler that runs once the turn is taken is nested in it, and does not wait for it.
        if place not in held:  # a thread that waits comes here again and again
            _holding.set((*held, place))
        with self._guard:
            other = self._current()
            if other is not None and other.locked():  # `is_live`, without a call in each commit
                return False
            self._current = place
        return True


def _warned(began: float) -> bool:
    if time.monotonic() - began < _WARN_AFTER_SECONDS:
        return False
    warnings.warn(
        f"waiting for over {_WARN_AFTER_SECONDS:.0f} s for another task or transaction on the same "
        "state; if the other one waits for this thread, start the thread's work with "
        "contextvars.copy_context().run, which makes it a part of the other",
        RuntimeWarning,
        stacklevel=5,
    )
    return True
