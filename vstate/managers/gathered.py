"""Gathered: edits that wait for their commit."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

from vstate.managers.edits import Edit
from vstate.managers.waiting import LoopLock

Commit = Callable[[Mapping[str, Edit], Callable[[], object]], Awaitable[object]]
"""Commits the edits, and calls the function, in any thread, when that is done: whoever is cancelled meanwhile would not
know otherwise."""

_log = logging.getLogger("vstate")


class Gathered:
    """The edits that are not committed yet, by key, and those that a commit is under way with.

    With an `interval` they are committed as they come, but so many seconds after the last commit at the soonest: by
    a timer of the event loop, or by the next edit if that loop is gone. The timer alone keeps what it is to call;
    nothing else here knows how to commit, so a manager that is dropped is gone at once.
    """

    def __init__(self, interval: float | None) -> None:
        self._interval = interval
        self._edits: dict[str, Edit] = {}
        self._under_way: dict[str, Edit] = {}
        self._committing = LoopLock()
        self._next_commit = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[bool]] = set()  # a loop itself does not keep them

    def __bool__(self) -> bool:
        return bool(self._edits or self._under_way)

    def __iter__(self) -> Iterator[str]:
        return iter(self._under_way.keys() | self._edits.keys())

    def get(self, key: str) -> Edit | None:
        """All that is to become of a key; None if it is not to change."""
        earlier, later = self._under_way.get(key), self._edits.get(key)
        return earlier.then(later) if earlier and later else later or earlier

    def keys_after(self, keys: Iterable[str]) -> set[str]:
        """The keys that there would be after the edits, where these are there now."""
        found = set(keys)
        for key in self:
            edit = self.get(key)
            if edit is not None:
                (found.discard if edit.deletes else found.add)(key)
        return found

    async def add(self, key: str, edit: Edit, commit: Commit) -> None:
        """Gather an edit, and commit all of them if it is time."""
        before = self._edits.get(key)
        self._edits[key] = before.then(edit) if before else edit
        if self._interval is None:
            return
        if time.monotonic() >= self._next_commit:
            await self.flush(commit)
        else:
            self._set_timer(commit)

    async def flush(self, commit: Commit) -> bool:
        """Commit what is gathered; False if nothing is. If that fails, all of it stays gathered.

        Who is cancelled meanwhile goes, and the commit goes on: only so it is known whether it is to be made again.
        """
        task = self._begin_flush(commit)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_warn)
            raise

    def stop(self) -> None:
        """Commit nothing by the clock any more."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _begin_flush(self, commit: Commit) -> asyncio.Task[bool]:
        task = asyncio.get_running_loop().create_task(self._flush(commit))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def _flush(self, commit: Commit) -> bool:
        async with self._committing.here():
            if not self._edits:
                return False
            self._under_way, self._edits = self._edits, {}
            done = threading.Event()
            try:
                await commit(self._under_way, done.set)
            except BaseException:
                # Also where the loop ends, which cancels this very task. Made again, what others have written since would
                # be gone.
                if not done.is_set():
                    self._edits = {key: edit for key in self if (edit := self.get(key))}
                raise
            finally:
                self._under_way = {}
                self._next_commit = time.monotonic() + (self._interval or 0)
                if self._edits and self._interval is not None:
                    self._set_timer(commit)
            return True

    def _ended(self, task: asyncio.Task[bool]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, so that nobody is told that nobody did

    def _set_timer(self, commit: Commit) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is None or self._timer_loop is not loop:
            self._timer_loop = loop
            self._timer = loop.call_later(self._next_commit - time.monotonic(), self._on_time, commit)

    def _on_time(self, commit: Commit) -> None:
        self._timer = None
        self._begin_flush(commit).add_done_callback(_warn)


def _warn(task: asyncio.Task[bool]) -> None:
    """Tell the log of a failure that nobody waits for."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        _log.warning("not committed, and still gathered: %s; it is tried again", error)
