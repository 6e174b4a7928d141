"""Watching: the changes of a branch, as anybody commits them."""

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
from typing import Self

from vstate.arguments import called, check_text
from vstate.errors import CorruptObject, CorruptStore, NotFound, StoreUnavailable
from vstate.forks import Uncopied, new_lock, renew_in_child
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.repo.compare.diff import Change
from vstate.repo.names.refs import HEADS, REF
from vstate.repo.repository import Repository

Seen = tuple[str, Change, Commit]
"""A key, its change, and the commit that made the change."""

LONGEST_WAIT = 1.0
"""Seconds after which a watch looks at the branch, even if the store has not reported a change."""

_FIRST_PAUSE = 0.05  # seconds, doubled with each failure of the store
_LONGEST_PAUSE = 5.0

_log = logging.getLogger("vstate")


class Watch(Uncopied):
    """An iterator, and an async iterator, of (key, Change, Commit). It waits for the next change until it is
    closed.

    Commits come in the order of the branch, the keys of each commit sorted. No commit is missed: while the
    store cannot be reached, the watch tries again, and goes on after the last commit that it saw. If the
    branch jumps, by a reset or over a merge, the differences come as changes of the commit that it jumped to.
    An expiry makes no commit; the removal of the key by `purge` does. If `erase` made the commits anew, the
    watch goes on there, and reports no change for the erased keys. Raises UntrustedCommit where the state
    would, and NotFound if gc has removed the last commit that it saw. One thread or task at a time takes from
    a watch. In a forked child it goes on after the last commit that it saw.
    """

    def __init__(
        self, repo: Repository, branch: str, pattern: str, seen: Commit | None, *, prefix: str = ""
    ) -> None:
        check_text("pattern", pattern)
        self._repo = repo
        self._branch = branch
        self._prefix = prefix
        self._pattern = pattern
        self._matches = re.compile(translate(pattern)).match
        self._seen = seen
        self._ahead: deque[ObjectId] = deque()  # the commits that the branch went through since
        self._ready: deque[Seen] = deque()
        self._lock = new_lock()
        self._closed = threading.Event()
        self._failures = 0
        self._listening = ExitStack()
        self._wait: Callable[[float], None] | None = None
        renew_in_child(self, Watch._renew)

    @property
    def seen(self) -> Commit | None:
        """The last commit that the watch saw.

        `watch(since=...)` goes on there; changes of it may still come.
        """
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
        # Not popleft: an exception right after that call would lose the change.
        found = self._ready[0]
        del self._ready[0]
        return found

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Seen:
        # The changes that a thread finds stay ready, even if the task that waits for them is cancelled.
        while not self._ready:
            if self._closed.is_set():
                raise StopAsyncIteration
            # A thread of its own, which mostly waits: many watches would use up the loop's threads.
            look = ThreadPoolExecutor(1, thread_name_prefix="vstate watch").submit(self._look)
            await asyncio.wrap_future(look)
        return self._take()

    def end(self) -> None:
        """End the iteration after the changes found so far, without waiting for a look under way."""
        self._closed.set()

    def close(self) -> None:
        """End the iteration after the changes found so far.

        Waits for a look under way, for a second at most.
        """
        self.end()
        with self._lock:
            self._stop_listening()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = "its beginning" if self._seen is None else self._seen.short
        return f"<Watch of {self._prefix + self._pattern!r} on {self._branch}, at {where}>"

    def _renew(self) -> None:
        self._listening.pop_all()  # its connection is the parent's
        self._wait = None
        closed, self._closed = self._closed.is_set(), threading.Event()
        if closed:
            self._closed.set()

    def _look(self) -> None:
        """Find new changes; if there are none, wait a while for them."""
        with self._lock:
            if self._ready or self._closed.is_set():
                return
            try:
                # Listening begins before the branch is read, so that no change falls between the two.
                if self._wait is None:
                    self._wait = self._listening.enter_context(
                        self._repo.view.listening(f"{REF}{HEADS}{self._branch}")
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
            pass  # the connection is gone already

    def _advance(self) -> None:
        """Follow the branch to its head, or to a commit with a change that matches."""
        while not self._ready:
            if not self._ahead and not self._follow():
                return
            oid = self._ahead[0]
            try:
                commit = self._repo.objects.commit(oid)
                self._repo.require_trusted(commit)
                found = deque(self._changes_of(commit))
            except CorruptObject:
                if self._repo.objects.is_stored(oid):
                    self._require_seen()
                    raise
                # The branch has left this commit, and it was removed. Find the way to the new head.
                self._ahead = deque()
                continue
            # No call in between: an exception there would lose the changes, or report them twice.
            self._ready, self._seen = found, commit
            del self._ahead[0]

    def _changes_of(self, commit: Commit) -> Iterator[Seen]:
        seen = self._seen
        commits = [commit] if seen is None else [seen, commit]
        diff = self._repo.diff(None if seen is None else seen.root, commit.root, commits)
        for key in diff:
            if key.startswith(self._prefix) and self._matches(name := key[len(self._prefix) :]):
                yield name, diff[key], commit

    def _require_seen(self) -> None:
        """Raise NotFound if gc has removed the last commit seen: the changes since then cannot be found."""
        if self._seen is not None and not self._repo.objects.is_stored(self._seen.oid):
            raise NotFound(
                f"gc has removed {self._seen.short}, the last commit that this watch saw: watch it anew, "
                "from the newest commit",
                name=self._seen.id,
            )

    def _follow(self) -> bool:
        """Find the commits between the last one seen and the head of the branch.

        Returns whether there are any.
        """
        objects, seen = self._repo.objects, self._seen
        head = self._repo.refs.read(HEADS + self._branch)
        if head is None or (seen is not None and head == seen.oid):
            return False
        between = self._course(seen, head)
        if between is None and seen is not None and (made := objects.replacement(seen.oid)) is not None:
            between = self._course(made, head)  # None if `erase` changed another branch
            if between is not None or not objects.is_stored(seen.oid):
                self._seen = made
        self._ahead = deque([head] if between is None else between)
        return bool(self._ahead)

    def _course(self, seen: Commit | None, head: ObjectId) -> list[ObjectId] | None:
        """The commits from `seen` up to the head, by parents or the reflog; None if neither leads there."""
        between = self._way(seen, head)
        if between is None and seen is not None and (moves := self._moves(seen, head)) is not None:
            between = []
            for oid in moves:
                between += self._way(seen, oid) or [oid]
                seen = self._repo.objects.commit(oid)
        return between

    def _way(self, seen: Commit | None, to: ObjectId) -> list[ObjectId] | None:
        """The commits from `seen` up to this one, by first parents; None if `seen` is no ancestor of it."""
        between = []
        for commit in self._repo.history.first_parents(to):
            if seen is not None and commit.order <= seen.order:
                if commit.oid != seen.oid:
                    return None
                break
            between.append(commit.oid)
        return between[::-1]

    def _moves(self, seen: Commit, head: ObjectId) -> list[ObjectId] | None:
        """The stored commits that the branch was at since `seen`; None if its reflog lacks `seen`."""
        moves = [head]
        with suppress(CorruptStore):
            for line in self._repo.refs.reflog(HEADS + self._branch):
                if line.new == seen.oid:
                    return moves[::-1]
                if line.new not in (None, moves[-1]) and self._repo.objects.find_commit(line.new) is not None:
                    moves.append(line.new)
        return None


class Subscription:
    """A thread that calls a function for each change; `close` ends it."""

    def __init__(self, watch: Watch, function: Callable[[str, Change, Commit], object]) -> None:
        self._watch = watch
        self._function = function
        self._thread = threading.Thread(target=self._run, name=f"vstate {watch!r}", daemon=True)
        self._thread.start()

    @property
    def active(self) -> bool:
        """Whether the function is still called for new changes."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Stop calling the function. Waits for a call under way, unless that call closes the subscription."""
        self._watch.close()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
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
                    # The function may manage the next change, and there is no caller to raise this to.
                    _log.exception("a subscriber failed at %s %r in %s", change.kind, key, commit.short)
        except Exception:
            _log.exception("%r ended", self)
