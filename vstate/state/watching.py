"""Watching: the changes of a branch as they are committed, by whomever."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from fnmatch import translate
from types import TracebackType
from typing import Self

from vstate.arguments import called
from vstate.errors import CorruptObject, CorruptStore, NotFound, StoreUnavailable
from vstate.forks import ForkAware, survive_forks
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.repo.compare.diff import Change
from vstate.repo.names.refs import HEADS, REF
from vstate.repo.repository import Repository

Seen = tuple[str, Change, Commit]
"""A key, what happened to it, and the commit that did it."""

LONGEST_WAIT = 1.0
"""Seconds after which a watch looks at the branch, whether or not the store has told of a change."""

_FIRST_PAUSE = 0.05  # seconds, doubled with each failure of the store
_LONGEST_PAUSE = 5.0

_log = logging.getLogger("vstate")


class Watch(ForkAware):
    """An iterator, and an async iterator, of (key, Change, Commit): it waits for the next change, and ends when it
    is closed.

    Commits come in the order of the branch, the keys of each sorted. None is missed: while the store cannot be
    reached it tries again, and goes on after the last commit that it saw. Where the branch jumps, by a reset or
    over a merge, what differs comes as changes of the commit that it jumped to. That a key expires is no commit; its
    removal by `purge` is one. Raises UntrustedCommit where the state would, and NotFound if gc has removed the commit
    seen last. One thread or task at a time takes from a watch; one that another thread was in ends in a fork.
    """

    def __init__(
        self, repo: Repository, branch: str, pattern: str, seen: Commit | None, *, prefix: str = ""
    ) -> None:
        self._repo = repo
        self._branch = branch
        self._prefix = prefix
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
        survive_forks(self)

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
        return self._take()

    def _take(self) -> Seen:
        # Not popleft: an interruption behind that call would lose it.
        found = self._ready[0]
        del self._ready[0]
        return found

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
            try:
                look = self._threads.submit(self._look)
            except RuntimeError:  # another thread has closed it just now
                continue
            await asyncio.wrap_future(look)
        return self._take()

    def end(self) -> None:
        """End the iteration, after what was found already, without waiting for a look under way."""
        self._closed.set()

    def close(self) -> None:
        """End the iteration, after what was found already. Waits for a look under way, for a second at most."""
        self.end()
        with self._lock:
            self._stop_listening()
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    async def aclose(self) -> None:
        """As `close`, without holding up the event loop meanwhile."""
        self.end()
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        where = "its beginning" if self._seen is None else self._seen.short
        return f"<Watch of {self._prefix + self._pattern!r} on {self._branch}, at {where}>"

    def before_fork(self) -> None:
        """Do nothing: waiting for a look under way could take a second."""

    def after_fork(self, *, child: bool) -> None:
        """Go on, but for a watch in the child that a thread was in which the child has not got."""
        if not child:
            return
        self._threads = None
        if self._lock.locked():
            self._lock = threading.Lock()
            self._wait, self._listening = None, ExitStack()
            self._closed = threading.Event()
            self._closed.set()

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
            oid = self._ahead[0]
            try:
                commit = self._repo.objects.commit(oid)
                self._repo.require_trusted(commit)
                found = deque(self._changes_of(commit))
            except CorruptObject:
                self._require_seen()
                if self._repo.objects.is_stored(oid):
                    raise
                # The branch has left it, and gc has removed it: the way to where the branch is now is another one.
                self._ahead = deque()
                continue
            # Together: an interruption after a call in between would lose them, or tell them twice.
            self._ready, self._seen = found, commit
            del self._ahead[0]

    def _changes_of(self, commit: Commit) -> Iterator[Seen]:
        diff = self._repo.diff(None if self._seen is None else self._seen.tree, commit.tree)
        for key in diff:
            if key.startswith(self._prefix) and self._matches(name := key[len(self._prefix) :]):
                yield name, diff[key], commit

    def _require_seen(self) -> None:
        """NotFound if gc has removed the commit that was seen last, without which nobody knows what changed since."""
        if self._seen is not None and not self._repo.objects.is_stored(self._seen.oid):
            raise NotFound(
                f"gc has removed {self._seen.short}, up to which this watch has seen the branch: watch it anew, "
                "from where it is now",
                name=self._seen.id,
            )

    def _follow(self) -> bool:
        """Find the commits from the one seen last to the head of the branch; whether there are any."""
        head = self._repo.refs.read(HEADS + self._branch)
        if head is None or (self._seen is not None and head == self._seen.oid):
            return False
        between = self._way(self._seen, head)
        if between is None:
            between, at = [], self._seen
            for oid in self._moves(head):
                between += self._way(at, oid) or [oid]
                at = self._repo.objects.commit(oid)
        self._ahead = deque(between)
        return True

    def _way(self, seen: Commit | None, to: ObjectId) -> list[ObjectId] | None:
        """The commits from `seen` up to this one, by first parents; None if it does not come from there."""
        between = []
        for commit in self._repo.history.first_parents(to):
            if seen is not None and commit.time <= seen.time:
                if commit.oid != seen.oid:
                    return None
                break
            between.append(commit.oid)
        return between[::-1]

    def _moves(self, head: ObjectId) -> list[ObjectId]:
        """Where the branch has been since it was at the commit seen last, by its reflog, as far as that is still there."""
        assert self._seen is not None
        moves = [head]
        with suppress(CorruptStore):
            for line in self._repo.refs.reflog(HEADS + self._branch):
                if line.new == self._seen.oid:
                    return moves[::-1]
                if line.new not in (None, moves[-1]) and self._repo.objects.find_commit(line.new) is not None:
                    moves.append(line.new)
        return [head]


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
                    called("the function of subscribe", self._function, key, change, commit)
                except Exception:
                    # The next change may be one that it can deal with; nobody waits here to be told.
                    _log.exception("a subscriber failed at %s %r in %s", change.kind, key, commit.short)
        except Exception:
            _log.exception("%r ended", self)
