"""Edits of keys, and the pending ones that wait for their commit."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from vstate.aio.workers import LoopLock, shielded
from vstate.errors import InvalidInput, UncommittedWarning
from vstate.forks import renew_in_child
from vstate.patterns.copies import Frozen
from vstate.state.closing import call_at_exit

_log = logging.getLogger("vstate")

_NAMED = 10


@dataclass(frozen=True)
class Edit:
    """An edit of one key.

    With `replaces`, the key gets `value`, or is deleted if that is None. Then the top-level keys in `merged`,
    if that is no None, are set in the dict under the key, which may be a new one.
    """

    replaces: bool = False
    value: Frozen | None = None
    merged: dict[Any, Frozen] | None = None

    def then(self, later: Edit) -> Edit:
        """Both edits as one."""
        if later.replaces:
            return later
        return Edit(self.replaces, self.value, {**(self.merged or {}), **(later.merged or {})})

    def apply(self, values: MutableMapping[str, Any], key: str) -> None:
        """Edit the key in this mapping. Raises InvalidInput if top-level keys are merged into no dict."""
        if self.value is not None:
            values[key] = self.value.thaw()
        elif self.replaces:
            values.pop(key, None)
        if self.merged is not None:
            parts = {name: frozen.thaw() for name, frozen in self.merged.items()}
            require_dict(key, values.setdefault(key, {})).update(parts)


def require_dict(key: str, value: Any) -> dict[Any, Any]:
    """The value, if `update` can merge into it. Raises InvalidInput for anything but a dict."""
    if not isinstance(value, dict):
        raise InvalidInput(
            f"{key!r} holds a {type(value).__name__}, and update() merges into a dict: save() the whole value"
        )
    return value


Commit = Callable[[Mapping[str, Edit], Callable[[], object]], Awaitable[object]]
"""Commits edits. Once that is done, it calls the function, in any thread, even if the caller is cancelled."""


class PendingEdits:
    """The edits by key that are not committed yet, and those that a commit is under way with.

    `interval` is the least time between two commits, in seconds. A task of the event loop commits, or the
    next edit if that loop is gone.
    """

    def __init__(self, interval: float | None, *, in_memory: bool = False) -> None:
        self._interval = interval
        # A store in memory ends with its manager, and its commits too: then no loss is reported.
        self._tells_losses = not in_memory
        self._edits: dict[str, Edit] = {}
        self._under_way: dict[str, Edit] = {}
        self._committing = LoopLock()
        self._next_commit = 0.0
        self._task: asyncio.Task[None] | None = None  # commits once the interval is over
        call_at_exit(self)
        renew_in_child(self, PendingEdits._renew)

    def _renew(self) -> None:
        # The parent commits its edits. The child sees those that no commit was under way with.
        self._under_way, self._task, self._tells_losses = {}, None, False

    def __bool__(self) -> bool:
        return bool(self._edits or self._under_way)

    def __del__(self) -> None:
        self._report("was dropped")

    def _at_exit(self) -> None:
        self._report("was open when the program ended,")

    def _report(self, event: str) -> None:
        """Warn, once, of edits that nobody can commit any more."""
        lost, self._edits = self._edits, {}
        if lost and self._tells_losses:
            keys = ", ".join(map(repr, sorted(lost)[:_NAMED])) + (", ..." if len(lost) > _NAMED else "")
            warnings.warn(
                f"a StateManager {event} with pending changes, which are lost: {keys}; await its flush() or "
                "close() before",
                UncommittedWarning,
                stacklevel=3,
            )

    def get(self, key: str) -> Edit | None:
        """The whole pending edit of a key; None if there is none."""
        earlier, later = self._under_way.get(key), self._edits.get(key)
        return earlier.then(later) if earlier and later else later or earlier

    def _all(self) -> dict[str, Edit]:
        return {key: edit for key in self._under_way.keys() | self._edits if (edit := self.get(key))}

    def keys_after(self, keys: Iterable[str]) -> set[str]:
        """The keys after the edits, if these are the keys before."""
        found = dict.fromkeys(keys)
        for key, edit in self._all().items():
            if edit.value is not None or edit.merged is not None:
                found[key] = None
            else:
                found.pop(key, None)
        return set(found)

    async def add(self, key: str, edit: Edit, commit: Commit) -> None:
        """Add an edit, and commit all pending ones if it is time."""
        before = self._edits.get(key)
        self._edits[key] = before.then(edit) if before else edit
        if self._interval is None:
            return
        if time.monotonic() >= self._next_commit:
            await self.flush(commit)
        else:
            self._flush_later(commit)

    async def flush(self, commit: Commit) -> bool:
        """Commit the pending edits. Returns False without any. If it fails, all edits stay pending.

        A caller that is cancelled first waits for the outcome, which decides which edits stay pending.
        """
        return await shielded(self._flush(commit))

    def stop(self) -> None:
        """Commit nothing any more without a call."""
        if (task := self._waiting()) is not None:
            task.cancel()

    async def _flush(self, commit: Commit) -> bool:
        async with self._committing.here():
            if not self._edits:
                return False
            self._under_way, self._edits = self._edits, {}
            done = threading.Event()
            try:
                await commit(self._under_way, done.set)
            except BaseException:
                # This runs too when the loop ends and cancels this task. If the commit is done, do not repeat
                # it: that would undo later changes of others.
                if not done.is_set():
                    self._edits = self._all()
                raise
            finally:
                self._under_way = {}
                self._next_commit = time.monotonic() + (self._interval or 0)
                if self._edits and self._interval is not None:
                    self._flush_later(commit)
            return True

    def _waiting(self) -> asyncio.Task[None] | None:
        """The task of this loop that commits once the interval is over."""
        task = self._task
        is_here = task is not None and not task.done() and task.get_loop() is asyncio.get_running_loop()
        return task if is_here else None

    def _flush_later(self, commit: Commit) -> None:
        if self._waiting() is None:
            self._task = asyncio.create_task(self._flush_on_time(commit))

    async def _flush_on_time(self, commit: Commit) -> None:
        while self._edits:
            await asyncio.sleep(self._next_commit - time.monotonic())
            try:
                await self.flush(commit)
            except Exception as error:  # no caller waits for it
                _log.warning("not committed yet, and still pending: %s; the next commit tries again", error)
