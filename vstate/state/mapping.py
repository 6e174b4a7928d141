"""Mapping: the keys and values of one commit, with what a program changed in them since."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial, wraps
from heapq import merge
from threading import Lock
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakSet

from vstate.errors import StorageError, UncommittedChanges
from vstate.kv.base import KVStore
from vstate.objects import expiry, tree
from vstate.objects.commit import Commit, Event
from vstate.objects.expiry import is_expired
from vstate.objects.ids import ObjectId
from vstate.repo.names.refs import HEADS, Head, check_ref_name
from vstate.repo.repository import Repository
from vstate.repo.rules.security import Security
from vstate.state.base import RootState, check_key, missing
from vstate.state.staged import Staged
from vstate.state.timed import make_expiry
from vstate.state.turns import Turn
from vstate.state.unfinished import Unfinished
from vstate.state.working import WorkingValues
from vstate.values.inspection import describe

if TYPE_CHECKING:
    from vstate.state.transactions import Savepoint
    from vstate.state.watching import Watch

_P = ParamSpec("_P")
_T = TypeVar("_T")
_W = TypeVar("_W", bound="WorkingMapping")


def alone(method: Callable[Concatenate[_W, _P], _T]) -> Callable[Concatenate[_W, _P], _T]:
    """A method that waits for the transaction of another thread, if there is one, to end: its half is not ours
    to move."""

    @wraps(method)
    def call(self: _W, /, *args: _P.args, **options: _P.kwargs) -> _T:
        if self.turns.nested:
            with self._lock:
                self._require_no_hook()
                self._catch_up()
                return method(self, *args, **options)
        turn = Turn()
        with turn.bell, turn.held:
            self.turns.take(turn)
            with self._lock:
                self._catch_up()
                return method(self, *args, **options)

    return call


class WorkingMapping(RootState):
    """The mapping of a `Worktree`, what of it is not committed, and how it recovers from interruptions."""

    def _open(self, store: KVStore, branch: str | None, security: Security) -> None:
        super().__init__()
        self._repo = Repository(store, security)
        self._follows_head = branch is None
        if branch is None:
            head = self._repo.refs.head()
        else:
            check_ref_name(branch)
            head = Head(branch, self._repo.refs.read(HEADS + branch))
        self._head = None if head.commit is None else self._trusted(self._repo.objects.commit(head.commit))
        self._branch = head.branch
        self._working = WorkingValues(self._repo)
        self._events: list[Event] = []
        self._unfinished = Unfinished()
        # How to find out, after an interruption, whether what was about to move the branch has done so.
        self._in_flight: Callable[[], None] | None = None
        self._running: Lock | None = None  # held while the function of an update runs
        self._update_seconds = 0.0  # how long the function of the last update took
        self._savepoints: WeakSet[Savepoint] = WeakSet()
        self._watches: WeakSet[Watch] = WeakSet()

    def _trusted(self, commit: Commit) -> Commit:
        self._repo.require_trusted(commit)
        return commit

    # What it is

    @property
    def repo(self) -> Repository:
        """The repository that the branch is in."""
        return self._repo

    @property
    def store(self) -> KVStore:
        """The store that the bytes are in."""
        return self._repo.store

    @property
    def head(self) -> Commit | None:
        """The commit that the next one is made on; None before the first."""
        # Otherwise without the lock, for which one would wait as long as a commit takes.
        if self._in_flight is not None and not self._unfinished.in_a_span():
            with self._lock:
                self._look()
        return self._head

    @property
    def branch(self) -> str | None:
        """The branch that `commit` moves; None when HEAD is detached."""
        return self._branch

    @property
    def _tree(self) -> ObjectId | None:
        return None if self._head is None else self._head.tree

    def title(self) -> str:
        where = f"branch {self._branch!r}" if self._branch else "detached HEAD"
        at = f"at {self._head.short}" if self._head else "without a commit yet"
        return f"Versioned({self.store.location}) on {where} {at}"

    # The mapping

    def __getitem__(self, key: str) -> Any:
        try:
            if self._in_flight is None:
                return self._working.values[key]
        except (KeyError, TypeError):
            pass
        if not isinstance(key, str):
            raise missing(key)
        with self._lock:
            self._look()
            return self._working.load(str.__str__(key), self._tree)

    def __setitem__(self, key: str, value: Any) -> None:
        key = check_key(key)
        with self._lock:
            self._look()
            self._working.set(key, value)

    def __delitem__(self, key: str) -> None:
        key = check_key(key)
        with self._lock:
            self._look()
            if key not in self:
                raise missing(key)
            self._working.delete(key)

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, str):
            return False
        if self._in_flight is None and key in self._working.values:
            return True
        with self._lock:
            self._look()
            return self._working.contains(str.__str__(key), self._tree)

    def scan_keys(self, prefix: str) -> Iterator[str]:
        with self._lock:
            self._look()
            self._working.notice_scan(prefix)
            staged = sorted(self._touched(prefix))
            # Of what is staged, or is to expire otherwise, the tree does not say whether it is there.
            hidden = {*self._working.deleted, *staged}
            root = self._tree
            here = [key for key in staged if not self._working.timed.is_over(key)]
        node = self._repo.objects.node
        entries = tree.scan(node, root, prefix)
        if tree.expires(node, root):
            entries = ((key, entry) for key, entry in entries if not is_expired(entry))
        return merge((key for key, _ in entries if key not in hidden), here)

    def count_keys(self, prefix: str) -> int:
        with self._lock:
            self._look()
            self._working.notice_scan(prefix)
            node = self._repo.objects.node
            over: set[str] = set()
            if tree.expires(node, self._tree):
                over.update(tree.expired(node, self._tree, expiry.now(), prefix))
            count = tree.count_prefix(node, self._tree, prefix) - len(over)
            if not (self._working.staged or self._working.deleted or self._working.timed.wanted):
                return count
            for key in self._touched(prefix):
                count += not self._working.timed.is_over(key)
            for key in {*self._touched(prefix), *self._working.deleted}:
                if key.startswith(prefix) and key not in over:
                    count -= tree.lookup(node, self._tree, key) is not None
            return count

    def _touched(self, prefix: str) -> set[str]:
        """The keys with this prefix that are there whatever the tree says, unless they have expired."""
        touched = self._working.staged | self._working.timed.wanted.keys()
        return {key for key in touched if key.startswith(prefix)}

    def describe_key(self, key: str) -> str:
        with self._lock:
            self._look()
        if self._working.holds(key):
            return super().describe_key(key)
        entry = self._repo.entry(self._tree, key)
        if entry is None or key not in self:
            raise missing(key)
        return describe(entry)

    def may_have_changed(self, prefix: str) -> bool:
        with self._lock:
            self._look()
            return self._working.may_have_changed(prefix)

    # Expiry

    def expire(self, key: str, ttl: float | timedelta | None, *, sliding: bool = False) -> None:
        key = check_key(key)
        wanted = None if ttl is None else make_expiry(ttl, sliding=sliding)
        with self._lock:
            if key not in self:
                raise missing(key)
            self._working.expire(key, wanted)

    def expires(self, key: str) -> datetime | None:
        key = check_key(key)
        with self._lock:
            if key not in self:
                raise missing(key)
            found = self._working.expiry(key, self._tree)
        return None if found is None else found.moment

    # What is not committed

    def has_uncommitted(self) -> bool:
        """Whether `commit` would make a commit."""
        with self._lock:
            self._catch_up()
            if not self._events and not self._working.may_have_changed(""):
                return False
            return bool(self._events or self._compared(self._tree).changes)

    def _require_clean(self, operation: str) -> None:
        if self.has_uncommitted():
            raise UncommittedChanges(operation)

    def discard(self, *keys: str) -> None:
        """Forget the uncommitted changes, of these keys or of all. Recorded events stay."""
        with self._lock:
            self._look()
            if not keys and self._is_base_gone():
                self._unfinished.surely(self._working.clear)
                return
            staged = self._compared(self._tree, tolerant=True)
            # What has not changed stays the same object: the program may be about to edit it.
            changed = {*staged.changes, *staged.unpicklable, *staged.set_alike}
            chosen = changed.intersection(map(check_key, keys)) if keys else changed
            self._unfinished.surely(partial(self._working.forget, chosen))

    def _is_base_gone(self) -> bool:
        return self._head is not None and not self._repo.objects.is_stored(self._head.oid)

    def record_event(self, event: Event) -> None:
        """Keep an event for the next commit."""
        with self._lock:
            self._look()
            self._events.append(event)

    def pending_events(self) -> list[Event]:
        """The events that no commit holds yet, oldest first."""
        with self._lock:
            self._look()
            return list(self._events)

    def _compared(self, root: ObjectId | None, *, tolerant: bool = False) -> Staged:
        """What differs from the tree now; the values are held still for no longer than this takes."""
        self._put_right()
        self._working.require_free("compared")
        span = Lock()
        try:
            with span:
                self._unfinished.begin(span, self._working.let_go)
                return self._working.collect(root, tolerant=tolerant)
        finally:
            self._unfinished.finish()

    # After an interruption

    def _put_right(self) -> bool:
        """Finish what an interruption cut short; what holds the lock does so first. False inside a span."""
        return not self._unfinished.steps or self._unfinished.finish()

    def _catch_up(self) -> None:
        """Finish what an interruption cut short, and find out what it kept us from seeing."""
        if self._put_right() and self._in_flight is not None:
            self._in_flight()  # if the store fails, the next call asks again
            self._in_flight = None

    def _look(self) -> None:
        """As `_catch_up`, before the mapping is used: if the store fails, that is the next operation's matter."""
        if self._unfinished or self._in_flight is not None:
            with suppress(StorageError):
                self._catch_up()

    def after_fork(self, *, child: bool) -> None:
        if child and not self.turns.nested:
            self._unfinished.forget_spans()
            self._running = None
        super().after_fork(child=child)
