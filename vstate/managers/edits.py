"""Edits: what is to become of keys, and the values for that as they were when it was asked for."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final

from vstate.errors import InvalidInput, Unpicklable
from vstate.managers.waiting import LoopLock
from vstate.values.pickling import culprit, dumps, loads

_ATOMS: Final = frozenset((str, int, float, bool, bytes, type(None)))


class Frozen:
    """A value by its pickle, which `thaw` makes an object of that is nobody else's, a new one each time.

    Raises Unpicklable, which says where in the value of `key` the trouble is.
    """

    __slots__ = ("_buffers", "_data")

    def __init__(self, value: Any, key: str) -> None:
        self._data: Any = value
        self._buffers: list[bytes] | None = None
        if type(value) in _ATOMS:
            return
        try:
            data, buffers = dumps(value)
        except Exception as error:
            raise Unpicklable({key: culprit(value, f'state["{key}"]', error)}, staged=False) from error
        self._data, self._buffers = data, [bytes(buffer) for buffer in buffers]

    def thaw(self) -> Any:
        """The value, in an object of its own."""
        if self._buffers is None:
            return self._data
        # Arrays are made on these buffers, and may be written to.
        return loads(self._data, [bytearray(buffer) for buffer in self._buffers])


def copied(value: Any, key: str) -> Any:
    """A copy of the value of `key`, which shares nothing with it."""
    return value if type(value) in _ATOMS else Frozen(value, key).thaw()


@dataclass(frozen=True)
class Edit:
    """What is to become of one key: with `replaces`, `value`, or nothing if that is None; then top-level keys."""

    replaces: bool = False
    value: Frozen | None = None
    merged: dict[str, Frozen] = field(default_factory=dict)

    def then(self, later: Edit) -> Edit:
        """Both, one after the other."""
        if later.replaces:
            return later
        return Edit(self.replaces, self.value, {**self.merged, **later.merged})

    @property
    def deletes(self) -> bool:
        return self.replaces and self.value is None and not self.merged

    def carry_out(self, values: MutableMapping[str, Any], key: str) -> None:
        """Change the key in this mapping, whose values are its own. InvalidInput for top-level keys of no dict."""
        if self.deletes:
            values.pop(key, None)
            return
        if self.replaces:
            values[key] = {} if self.value is None else self.value.thaw()
        if self.merged:
            require_dict(key, values.setdefault(key, {})).update(
                {name: frozen.thaw() for name, frozen in self.merged.items()}
            )


def require_dict(key: str, value: Any) -> dict[Any, Any]:
    """The value, if its top-level keys can be updated; InvalidInput."""
    if not isinstance(value, dict):
        raise InvalidInput(
            f"{key!r} holds a {type(value).__name__}, and update() merges into a dict: save() it as a whole"
        )
    return value


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
