"""Watching: the changes of a branch as they are committed, by whomever."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from fnmatch import translate
from types import TracebackType
from typing import Self

from vstate.errors import StoreUnavailable
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.repo.diff import Change
from vstate.repo.refs import HEADS
from vstate.repo.refs import PREFIX as REF
from vstate.repo.repository import Repository

Seen = tuple[str, Change, Commit]
"""A key, what happened to it, and the commit that did it."""

LONGEST_WAIT = 1.0
"""Seconds after which a watch looks at the branch, whether or not the store has told of a change."""

_FIRST_PAUSE = 0.05  # seconds, doubled with each failure of the store
_LONGEST_PAUSE = 5.0

_log = logging.getLogger("vstate")


class Watch:
    """An iterator, and an async iterator, of (key, Change, Commit): it waits for the next change, and ends when it
    is closed.

    Commits come in the order of the branch, the keys of each sorted. None is missed: while the store cannot be
    reached it tries again, and goes on after the last commit that it saw. Where the branch jumps, by a reset or
    over a merge, what differs comes as changes of the commit that it is on then. Raises UntrustedCommit where
    the state would. One thread or task at a time takes from a watch.
    """

    def __init__(self, repo: Repository, branch: str, pattern: str, seen: Commit | None) -> None:
        self._repo = repo
        self._branch = branch
        self._pattern = pattern
        self._matches = re.compile(translate(pattern)).match
        self._seen = seen
        self._ahead: deque[ObjectId] = deque()  # the commits that the branch went through since
        self._ready: deque[Seen] = deque()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._failures = 0
        self._listening = ExitStack()
        self._wait: Callable[[float], None] | None = None
        self._threads: ThreadPoolExecutor | None = None

    @property
    def seen(self) -> Commit | None:
        """The last commit that was looked at: `watch(since=...)` goes on from there. Changes of it may still come."""
        return self._seen

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed.is_set()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Seen:
        while not self._ready:
            if self._closed.is_set():
                raise StopIteration
            self._look()
        return self._ready.popleft()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Seen:
        # What a look in a thread finds stays ready, also if whoever waits for it is cancelled.
        while not self._ready:
            if self._closed.is_set():
                raise StopAsyncIteration
            if self._threads is None:
                # Its own, since it waits most of the time: many watches would use up the loop's threads.
                self._threads = ThreadPoolExecutor(1, thread_name_prefix="vstate watch")
            await asyncio.get_running_loop().run_in_executor(self._threads, self._look)
        return self._ready.popleft()

    def close(self) -> None:
        """End the iteration, after what was found already. Waits for a look under way, for a second at most."""
        self._closed.set()
        with self._lock:
            self._stop_listening()
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        where = "its beginning" if self._seen is None else self._seen.short
        return f"<Watch of {self._pattern!r} on {self._branch}, at {where}>"

    def _look(self) -> None:
        """Find what is new; if nothing is, wait a while for it."""
        with self._lock:
            if self._ready or self._closed.is_set():
                return
            try:
                # Listening begins before the branch is read, so that no change falls between the two.
                if self._wait is None:
                    self._wait = self._listening.enter_context(
                        self._repo.store.listening(f"{REF}{HEADS}{self._branch}")
                    )
                self._advance()
                self._failures = 0
                if not self._ready:
                    self._wait(LONGEST_WAIT)
            except StoreUnavailable as error:
                self._stop_listening()
                if not self._failures:
                    _log.warning("watching %s: %s; trying again", self._branch, error)
                self._failures += 1
                self._closed.wait(min(_FIRST_PAUSE * 2**self._failures, _LONGEST_PAUSE))

    def _stop_listening(self) -> None:
        self._wait = None
        try:
            self._listening.close()
        except StoreUnavailable:
            pass  # it is gone already

    def _advance(self) -> None:
        """Go through the branch up to its head, or up to a commit with a change that is asked for."""
        while not self._ready:
            if not self._ahead and not self._follow():
                return
            commit = self._repo.objects.commit(self._ahead[0])
            self._repo.require_trusted(commit)
            before = None if self._seen is None else self._seen.tree
            diff = self._repo.diff(before, commit.tree)
            found = [(key, diff[key], commit) for key in diff if self._matches(key)]
            self._seen = commit
            self._ahead.popleft()
            self._ready.extend(found)

    def _follow(self) -> bool:
        """Find the commits from the one seen last to the head of the branch; whether there are any."""
        head = self._repo.refs.read(HEADS + self._branch)
        seen = self._seen
        if head is None or (seen is not None and head == seen.oid):
            return False
        between: deque[ObjectId] = deque()
        for commit in self._repo.history.first_parents(head):
            if seen is not None and commit.time <= seen.time:
                if commit.oid != seen.oid:
                    between = deque([head])  # the branch did not come from there
                break
            between.appendleft(commit.oid)
        self._ahead = between
        return True


class Subscription:
    """A thread that calls a function for each change; `close` ends it."""

    def __init__(self, watch: Watch, function: Callable[[str, Change, Commit], object]) -> None:
        self._watch = watch
        self._function = function
        self._thread = threading.Thread(target=self._run, name=f"vstate {watch!r}", daemon=True)
        self._thread.start()

    @property
    def active(self) -> bool:
        """Whether the function is still called for what comes."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Call the function no more; waits for a call under way, unless it is that call which closes."""
        self._watch.close()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Subscription {'to' if self.active else 'that ended, to'} {self._watch!r}>"

    def _run(self) -> None:
        try:
            for key, change, commit in self._watch:
                if self._watch.closed:
                    return
                try:
                    self._function(key, change, commit)
                except Exception:
                    # The next change may be one that it can deal with; nobody waits here to be told.
                    _log.exception("a subscriber failed at %s %r in %s", change.kind, key, commit.short)
        except Exception:
            _log.exception("%r ended", self)
