"""Turns: transactions on one state follow one another, and nest within one."""

from __future__ import annotations

import sys
import time
import warnings
from collections import deque
from contextvars import ContextVar
from threading import Lock, RLock
from typing import TYPE_CHECKING
from weakref import ReferenceType, ref

from vstate.errors import Conflict

if TYPE_CHECKING:
    import asyncio

_WARN_AFTER_SECONDS = 30.0
_LOOK_AGAIN_SECONDS = 1.0

_holding: ContextVar[tuple[Turn, ...]] = ContextVar("vstate_turns", default=())


def _in_event_loop() -> bool:
    asyncio = sys.modules.get("asyncio")  # who has not imported it is in no event loop of its
    return asyncio is not None and asyncio._get_running_loop() is not None


class Bell:
    """What rings when a turn is over, for the threads and the tasks that wait for theirs.

    Only a hint: one who is interrupted may leave it unrung, and those that wait look again by themselves.
    """

    __slots__ = ("_lock", "turns")

    def __init__(self) -> None:
        self._lock = Lock()
        self.turns: Turns | None = None

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self._lock.release()
        if self.turns is not None:
            self.turns.ring()

    def wait(self, seconds: float) -> None:
        """Block the thread until it rings, or for so long."""
        if self._lock.acquire(timeout=seconds):
            self._lock.release()


class Turn:
    """One turn: `with turn.bell, turn.held: turns.take(turn)`, and it is over however that block ends.

    `held` is the truth, and a lock, not a context manager of our own, whose `__exit__` an interruption could keep from
    running, so that nobody would ever have a turn again. `bell`, which rings after it, is what others wait for.
    """

    __slots__ = ("bell", "held")

    def __init__(self) -> None:
        self.bell = Bell()
        self.held = Lock()


class _Waiter:
    """A task that waits for its turn."""

    __slots__ = ("__weakref__", "_woken", "loop", "rung")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.rung = False  # and it has not looked since
        self._woken = loop.create_future()

    def wake(self) -> None:
        """Let it look, in its loop."""
        if not self._woken.done():
            self._woken.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Wait until it is to look, at the latest in so many seconds."""
        timer = self.loop.call_later(seconds, self.wake)
        try:
            await self._woken
        finally:
            timer.cancel()
        self._woken = self.loop.create_future()
        self.rung = False


class Turns:
    """Who may run a transaction on a state now.

    Nesting is by context, not by thread: what an asyncio task or `asyncio.to_thread` starts inside a
    transaction is part of it. A thread started otherwise is not, unless it runs in a copy of the context.
    """

    def __init__(self) -> None:
        # One that its thread can take again: a task that the collector ends leaves the queue wherever that happens.
        self._guard = RLock()
        self._now: Turn | None = None
        # Weak, since an interrupted one may not have left: a task keeps its waiter for as long as it waits.
        self._waiting: deque[ReferenceType[_Waiter]] = deque()

    @property
    def nested(self) -> bool:
        """Whether this context is inside a transaction already."""
        # A mark that outlives its turn, in a context that was kept or interrupted, marks nothing.
        now = self._now
        return now is not None and now.held.locked() and now in _holding.get()

    def after_fork_in_child(self) -> None:
        """Forget a holder that was another thread, which is not in this process."""
        if not self.nested:
            self._guard = RLock()
            self._now = None
            self._waiting = deque()

    def take(self, turn: Turn) -> None:
        """Wait for the turn, blocking the thread; it is taken for as long as `turn.held` is."""
        if self._taken(turn):
            return
        if _in_event_loop():
            raise Conflict(
                "another task or transaction on the same state is under way, and waiting for it would "
                "stop the event loop that it may run in; make this task an async def, or use "
                "asyncio.to_thread"
            )
        began = time.monotonic()
        warned = False
        while not self._taken(turn):
            now = self._now
            if now is not None:
                now.bell.wait(_LOOK_AGAIN_SECONDS)
            warned = warned or self._warned(began)

    async def take_async(self, turn: Turn) -> None:
        """As `take`, without blocking the event loop, and after the tasks that wait already."""
        # Not past these, or a task that takes one turn after another would never let them have one.
        if not self._waiting and self._taken(turn):
            return
        import asyncio  # late, for a quick `import vstate`: whoever awaits has it already

        began = time.monotonic()
        warned = False
        waiter = _Waiter(asyncio.get_running_loop())
        place = ref(waiter)
        with self._guard:
            self._waiting.append(place)
        try:
            self.ring()  # the turn may have ended just before, for nobody who waited
            await waiter.wait(_LOOK_AGAIN_SECONDS)
            while not self._taken(turn):
                warned = warned or self._warned(began)
                await waiter.wait(_LOOK_AGAIN_SECONDS)
        except BaseException:
            self._leave(place)
            self.ring()  # what rang for this one was for whoever comes next
            raise
        self._leave(place)

    def ring(self) -> None:
        """Have the next task look, if nobody has the turn: of those that wait the first that was not told to yet."""
        if not self._waiting:  # whoever comes now looks for itself
            return
        while (waiter := self._next()) is not None:
            try:
                waiter.loop.call_soon_threadsafe(waiter.wake)
                return
            except RuntimeError:  # its loop has ended
                self._leave(ref(waiter))

    def _next(self) -> _Waiter | None:
        with self._guard:
            if self._now is not None and self._now.held.locked():
                return None
            for waiter in self._in_line():
                if not waiter.rung:
                    waiter.rung = True
                    return waiter
            return None

    def _in_line(self) -> list[_Waiter]:
        """The tasks that wait, in the order in which they came."""
        with self._guard:
            while self._waiting and self._waiting[0]() is None:
                self._waiting.popleft()
            places = list(self._waiting)  # which the collector may make shorter while we look at them
            return [waiter for place in places if (waiter := place()) is not None]

    def _leave(self, place: ReferenceType[_Waiter]) -> None:
        with self._guard:
            if place in self._waiting:
                self._waiting.remove(place)

    def _taken(self, turn: Turn) -> bool:
        with self._guard:
            if self._now is not None and self._now.held.locked():
                return False
            turn.bell.turns = self
            self._now = turn
        _holding.set((*(other for other in _holding.get() if other.held.locked()), turn))
        return True

    def _warned(self, began: float) -> bool:
        if time.monotonic() - began < _WARN_AFTER_SECONDS:
            return False
        warnings.warn(
            f"waiting for over {_WARN_AFTER_SECONDS:.0f} s for another task or transaction on the same "
            "state; if that one waits for this thread, start the thread's work with "
            "contextvars.copy_context().run, which makes it a part of the other",
            RuntimeWarning,
            stacklevel=4,
        )
        return True
