"""Turns: the transactions on one state follow one another, and nest within one."""

from __future__ import annotations

import sys
import time
import warnings
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from threading import Lock
from typing import TYPE_CHECKING
from weakref import ReferenceType, ref

from vstate.errors import Conflict
from vstate.forks import new_lock

if TYPE_CHECKING:
    import asyncio

_WARN_AFTER_SECONDS = 30.0
_LOOK_AGAIN_SECONDS = 1.0

_holding: ContextVar[tuple[ReferenceType[Turn], ...]] = ContextVar("vstate_turns", default=())


def _in_event_loop() -> bool:
    asyncio = sys.modules.get("asyncio")  # a program that has not imported asyncio runs no event loop of it
    return asyncio is not None and asyncio._get_running_loop() is not None


class Bell:
    """Rings when a turn is over, for the threads and tasks that wait for theirs.

    The bell is a hint. An exception may keep it from ringing, so waiters also look again by themselves.
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
        """Block the thread until the bell rings, or for so many seconds."""
        if self._lock.acquire(timeout=seconds):
            self._lock.release()


class Turn:
    """One turn: `with turn.bell, turn.held: turns.take(turn)`. It is over however the block ends.

    `held` is the truth. It is a lock, whose release in a `with` no exception prevents; the `__exit__` of a
    class written in Python may never begin. `bell` rings after it.
    """

    __slots__ = ("__weakref__", "bell", "held", "undo")

    def __init__(self) -> None:
        self.bell = Bell()
        self.held = Lock()
        self.undo: Callable[[], object] | None = None
        """Takes the changes of the turn back in a forked child, which lacks the thread of the turn."""

    def begin(self) -> None:
        """As the beginning of the with block, for a turn that lasts longer than a function."""
        self.bell.__enter__()
        self.held.acquire()

    def end(self) -> None:
        """As the end of the with block; harmless if the turn has not begun."""
        if self.held.locked():
            self.held.release()
            self.bell.__exit__()


class _Waiter:
    """A task that waits for its turn."""

    __slots__ = ("__weakref__", "_woken", "loop", "rung")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.rung = False
        """Whether the bell rang for the task since it last looked."""
        self._woken = loop.create_future()

    def wake(self) -> None:
        """Let the task look, in its loop."""
        if not self._woken.done():
            self._woken.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Wait for `wake`, at most so many seconds."""
        timer = self.loop.call_later(seconds, self.wake)
        try:
            await self._woken
        finally:
            timer.cancel()
        self._woken = self.loop.create_future()
        self.rung = False


class Turns:
    """Whose transaction may run on a state now.

    Nesting goes by context, not by thread: a task or an `asyncio.to_thread` call that starts inside a
    transaction is part of it. Any other thread is not, unless it runs in a copy of the context.
    """

    def __init__(self) -> None:
        # Re-entrant: the collector may end a waiting task anywhere, and the task then leaves the queue.
        self._guard = new_lock()
        # Weak: a turn that nothing holds any more is over, even if its lock was never released.
        self._current: ReferenceType[Turn] | None = None
        # Weak: a task holds its waiter for as long as it waits, and an interrupted one may not have left.
        self._waiting: deque[ReferenceType[_Waiter]] = deque()

    @property
    def _now(self) -> Turn | None:
        """The turn that is under way."""
        current = self._current
        now = None if current is None else current()
        return now if now is not None and now.held.locked() else None

    @property
    def is_taken(self) -> bool:
        """Whether a transaction is under way, in any context."""
        return self._now is not None

    @property
    def nested(self) -> bool:
        """Whether this context is inside a transaction already."""
        # A context that was kept may name a turn that is over: such a turn is not `_now`.
        return self._now is not None and self._current in _holding.get()

    def renew(self) -> None:
        """In a forked child: end a turn of another thread or task, which does not go on in this process."""
        now = None if self.nested else self._now
        if now is not None and now.undo is not None:
            now.undo()
        if not self.nested:
            self._current = None
        self._waiting = deque()

    def take(self, turn: Turn) -> None:
        """Wait for the turn, blocking the thread. The turn lasts while `turn.held` is locked."""
        if self._taken(turn):
            return
        if _in_event_loop():
            raise Conflict(
                "another task or transaction on the same state is under way, and waiting for it would stop "
                "the event loop that it may run in; make this task an async def, or use asyncio.to_thread"
            )
        began = time.monotonic()
        warned = False
        while not self._taken(turn):
            if (now := self._now) is not None:
                bell = now.bell
                del now  # or this thread would keep a lost turn alive
                bell.wait(_LOOK_AGAIN_SECONDS)
            warned = warned or self._warned(began)

    async def take_async(self, turn: Turn) -> None:
        """As `take`, without blocking the event loop, and after the tasks that wait already."""
        # Not past waiting tasks: a task that takes one turn after another would never let them have one.
        if not self._waiting and self._taken(turn):
            return
        import asyncio  # late, for a quick `import vstate`: a program that awaits has imported it

        began = time.monotonic()
        warned = False
        waiter = _Waiter(asyncio.get_running_loop())
        place = ref(waiter)
        with self._guard:
            self._waiting.append(place)
        try:
            self.ring()  # a turn may have ended just before, when nobody waited
            await waiter.wait(_LOOK_AGAIN_SECONDS)
            while not self._taken(turn):
                warned = warned or self._warned(began)
                await waiter.wait(_LOOK_AGAIN_SECONDS)
        except BaseException:
            self._leave(place)
            self.ring()  # pass the bell on to the next task
            raise
        self._leave(place)

    def join(self, turn: Turn) -> None:
        """Make this context part of a turn that another context has taken."""
        _holding.set((*_holding.get(), ref(turn)))

    def ring(self) -> None:
        """If nobody has the turn, let the first waiting task look that the bell has not rung for yet."""
        if not self._waiting:  # a newcomer looks by itself
            return
        while (waiter := self._next()) is not None:
            try:
                waiter.loop.call_soon_threadsafe(waiter.wake)
                return
            except RuntimeError:  # its loop has ended
                self._leave(ref(waiter))

    def _next(self) -> _Waiter | None:
        with self._guard:
            if self._now is not None:
                return None
            for waiter in self._in_line():
                if not waiter.rung:
                    waiter.rung = True
                    return waiter
            return None

    def _in_line(self) -> list[_Waiter]:
        """The waiting tasks, in the order in which they came."""
        with self._guard:
            while self._waiting and self._waiting[0]() is None:
                self._waiting.popleft()
            places = list(self._waiting)  # a copy: the collector may shorten the queue meanwhile
            return [waiter for place in places if (waiter := place()) is not None]

    def _leave(self, place: ReferenceType[_Waiter]) -> None:
        with self._guard:
            if place in self._waiting:
                self._waiting.remove(place)

    def _taken(self, turn: Turn) -> bool:
        place = ref(turn)
        mine = [
            other
            for other in _holding.get()
            if other is not place and (held := other()) is not None and held.held.locked()
        ]
        # First: a signal handler that runs once the turn is taken is nested in it, and does not wait for it.
        _holding.set((*mine, place))
        with self._guard:
            if self._now is not None:
                return False
            turn.bell.turns = self
            self._current = place
        return True

    def _warned(self, began: float) -> bool:
        if time.monotonic() - began < _WARN_AFTER_SECONDS:
            return False
        warnings.warn(
            f"waiting for over {_WARN_AFTER_SECONDS:.0f} s for another task or transaction on the same "
            "state; if the other one waits for this thread, start the thread's work with "
            "contextvars.copy_context().run, which makes it a part of the other",
            RuntimeWarning,
            stacklevel=4,
        )
        return True
