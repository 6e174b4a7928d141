"""Turns: those who want to do the same thing on a server follow one another, as a courtesy."""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

PATIENCE: Final = 2.0
"""Seconds after which a turn is not waited for any more: whoever has it is slow, or stopped."""

PAUSE_AFTER_FAILURE: Final = 10.0
"""Seconds for which a server that could not help is not asked again."""

CONTENDED_SECONDS: Final = 0.5
"""For so long after others were met, turns are asked for in advance."""

KEPT_TIMES: Final = 20
KEPT_SECONDS: Final = 0.25
"""How often, and how long, one who comes again at once may have the same turn: to wake another process each time, which
has to read what the others wrote, takes longer than the work."""

AT_ONCE_SECONDS: Final = 0.005
"""Who is usually back after so long comes again at once."""

IDLE_SECONDS: Final = 0.02
"""After so long a turn that was kept for one who did not come is given back."""


class _Queue:
    """What this process knows of the queue of one name, and its turn if it has it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.contended_until = 0.0
        self.taken: Any = None
        self.since = 0.0
        self.times = 0
        self.left = 0.0
        self.away = 0.0
        self.ending: threading.Timer | None = None


class Turns(ABC):
    """A queue for each name, first of the threads of this process and then, on the server, of all the processes.

    Nobody queues before others were met: the caller has lost a race, or heard with the answer to its last write that
    another had the turn. So alone it costs nothing. Who wins all races learns of the others only in that second way.

    One thread of a process at a time queues on the server, so that those who wait leave the connections to the one
    who is at it. Nothing depends on any of this: whatever fails, everybody does without.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._queues: dict[str, _Queue] = {}
        self._watching = threading.local()
        self._next_try = 0.0

    @property
    def watched(self) -> str | None:
        """The name for which this thread works without a turn: its writes ask whether another has it."""
        name: str | None = getattr(self._watching, "name", None)
        return name

    def met(self, name: str) -> None:
        """Note that others are there."""
        self._queue(name).contended_until = time.monotonic() + CONTENDED_SECONDS

    @contextmanager
    def turn(self, name: str, *, lost: bool) -> Iterator[None]:
        """Wait for the turn, for PATIENCE each in this process and on the server, and have it in the with block.

        Who has not `lost` a race waits only if others were met not long ago.
        """
        queue = self._queue(name)
        now = time.monotonic()
        if lost:
            queue.contended_until = now + CONTENDED_SECONDS
        if queue.taken is None and (now >= queue.contended_until or now < self._next_try):
            self._watching.name = name
            try:
                yield
            finally:
                self._watching.name = None
            return
        if not queue.lock.acquire(timeout=PATIENCE):
            # Who has it is slow; or was interrupted, and will never give it back.
            if self._queues.get(name) is queue:
                del self._queues[name]
            yield
            return
        try:
            # Not the last time alone: on a busy machine whoever comes again may be held up.
            queue.away = min(time.monotonic() - queue.left, 2 * max(queue.away, AT_ONCE_SECONDS / 8))
            if queue.taken is None:
                self._take(name, queue)
            queue.times += 1
            yield
        finally:
            try:
                queue.left = time.monotonic()
                until = min(queue.since + KEPT_SECONDS, queue.contended_until)
                if queue.away > AT_ONCE_SECONDS or queue.times >= KEPT_TIMES or queue.left > until:
                    self._give(name, queue)
                elif queue.taken is not None and queue.ending is None:
                    self._end_later(name, queue)
            finally:
                queue.lock.release()
                if queue.taken is not None and queue.ending is None:
                    # It was time to give it back when this thread had left, and still had the lock.
                    self._end_later(name, queue)

    def forget(self) -> None:
        """Begin anew, without the turns that are taken: in a child, whose parent has them."""
        self._process, self._queues = os.getpid(), {}
        self._watching = threading.local()

    def _queue(self, name: str) -> _Queue:
        if self._process != os.getpid():
            # A lock that another thread of the parent's had would never be given back here.
            self.forget()
        return self._queues.setdefault(name, _Queue())

    def _take(self, name: str, queue: _Queue) -> None:
        try:
            queue.taken, waited = self.take(name)
        except self.troubles():
            self._next_try = time.monotonic() + PAUSE_AFTER_FAILURE
            return
        queue.since, queue.times = time.monotonic(), 0
        if waited:
            queue.contended_until = queue.since + CONTENDED_SECONDS

    def _give(self, name: str, queue: _Queue) -> None:
        taken, queue.taken = queue.taken, None
        ending, queue.ending = queue.ending, None
        if ending is not None:
            ending.cancel()
        try:
            if taken is not None:
                self.give(name, taken)
        except self.troubles():
            self._next_try = time.monotonic() + PAUSE_AFTER_FAILURE

    def _end_later(self, name: str, queue: _Queue) -> None:
        """Give the turn back, should its holder not come again."""

        def end() -> None:
            current: threading.Timer | None = timer
            if not queue.lock.acquire(blocking=False):
                if queue.ending is not timer:
                    return
                # Whoever is at it finds this when it has let go of the lock; which may have been just now.
                queue.ending = current = None
                if not queue.lock.acquire(blocking=False):
                    return
            try:
                if queue.ending is current:
                    queue.ending = None
                    if time.monotonic() - queue.left < IDLE_SECONDS:
                        self._end_later(name, queue)
                    else:
                        self._give(name, queue)
            finally:
                queue.lock.release()

        queue.ending = timer = threading.Timer(IDLE_SECONDS, end)
        try:
            timer.start()
        except RuntimeError:
            # No more threads: the process is about to end.
            queue.ending = None
            self._give(name, queue)

    def close(self) -> None:
        """Give back what is kept and not in use."""
        for name, queue in list(self._queues.items()):
            if queue.lock.acquire(blocking=False):
                try:
                    self._give(name, queue)
                finally:
                    queue.lock.release()

    @abstractmethod
    def take(self, name: str) -> tuple[Any, bool]:
        """Wait on the server, and return what `give` gives back, or None if it took too long; and whether another was
        met.
        """

    @abstractmethod
    def give(self, name: str, taken: Any) -> None:
        """Let the next one have it."""

    @abstractmethod
    def troubles(self) -> tuple[type[Exception], ...]:
        """What a server that cannot help raises."""
