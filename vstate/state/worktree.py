"""Worktree: the mapping over one commit of a branch, and what a program changed in it."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ContextDecorator, contextmanager, nullcontext, suppress
from datetime import datetime, timedelta
from functools import partial, wraps
from heapq import merge
from os import PathLike
from threading import Lock
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar
from weakref import WeakSet

from vstate.errors import (
    CannotLoad,
    Conflict,
    CorruptObject,
    DetachedHead,
    InvalidInput,
    MergeConflict,
    NotFound,
    RefMoved,
    StorageError,
    UncommittedChanges,
    VStateError,
)
from vstate.kv.base import KVStore
from vstate.kv.url import open_store
from vstate.objects import expiry, tree
from vstate.objects.commit import Commit, Event, microseconds
from vstate.objects.expiry import is_expired, split_expiry
from vstate.objects.ids import ObjectId
from vstate.objects.tree import KeyChange
from vstate.repo.diff import Diff
from vstate.repo.guard import Guard
from vstate.repo.refs import HEADS, Head, check_ref_name
from vstate.repo.repository import Repository, Revision
from vstate.repo.security import Security
from vstate.repo.signing import KeyToSign, KeyToTrust
from vstate.state.base import RootState, check_key, missing
from vstate.state.publishing import publish
from vstate.state.timed import Asked, make_expiry, ttl_microseconds
from vstate.state.turns import Turn
from vstate.state.unfinished import Step, Unfinished
from vstate.state.working import Noticed, Staged, WorkingValues
from vstate.values.entry import Encoded
from vstate.values.inspection import describe

if TYPE_CHECKING:
    from vstate.state.watching import Watch

_SHORT = 0.05  # seconds
_PAUSE = 0.001  # seconds, doubled with each attempt

_P = ParamSpec("_P")
_T = TypeVar("_T")
_W = TypeVar("_W", bound="Worktree")


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


class Worktree(RootState):
    """What a `Versioned` is apart from its history and branches: the mapping, its changes, committing them."""

    def __init__(
        self,
        store: KVStore | str | PathLike[str] | None = None,
        *,
        branch: str | None = None,
        sign: KeyToSign | None = None,
        trust: Iterable[KeyToTrust] | KeyToTrust | None = None,
        allow: Iterable[str] | None = None,
        ttl: float | timedelta | None = None,
        sliding: bool = False,
    ) -> None:
        if (branch is None and ttl is not None) or (sliding and ttl is None):
            raise InvalidInput("ttl is for a branch that is named, and sliding for one with a ttl: give both")
        length = None if ttl is None else ttl_microseconds(ttl)
        security = Security(sign=sign, trust=trust, allow=allow)
        opened = open_store(store)
        try:
            self._open(opened, branch, security)
        except BaseException:
            if opened is not store:
                opened.close()
            raise
        self._owned = opened is not store
        if length is not None:
            self._repo.refs.lifetimes.want(f"{HEADS}{branch}", length, sliding=sliding)

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
        self._savepoints: WeakSet[_Savepoint] = WeakSet()
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

    # Committing

    def commit(self, message: str = "", **info: Any) -> Commit | None:
        """Commit what changed, in place or by key, and the recorded events; None if nothing did.

        `info` is plain data kept with the commit. If another writer moved the branch and changed other
        keys, or the same ones and the branch has a merge policy for them, both are kept: the result is then a
        merge commit, whose second parent is this change alone. Read again what it merged.

        Raises MergeConflict if the other changed the same keys, Unpicklable naming every value that cannot
        be stored, DetachedHead, StorageError. Whatever it raises, nothing was committed and everything is
        still staged.
        """
        return self.commit_guarded(None, message, info)

    def commit_guarded(self, guard: Guard | None, message: str, info: Mapping[str, Any]) -> Commit | None:
        """As `commit`, if the guard allows it at the moment that the branch moves; it raises otherwise."""
        if self._running is not None and self._running.locked():
            raise InvalidInput(
                "an update commits by itself, once its function has returned; leave commit() out"
            )
        return self._commit_alone(guard, message, info)

    @alone
    def _commit_alone(self, guard: Guard | None, message: str, info: Mapping[str, Any]) -> Commit | None:
        return self._commit(message, info, guard=guard)

    def _commit(
        self,
        message: str,
        info: Mapping[str, Any],
        depends_on: Callable[[str], bool] = lambda key: False,
        guard: Guard | None = None,
    ) -> Commit | None:
        """Commit, in whoever's turn it is; the lock is held. Conflict if others changed what it depends on."""
        branch = self._own_branch()
        self._working.require_free("committed")
        self._run_hooks()
        self._working.end_notice()  # of an update, which depends on what these read, too
        landing, span = _Landing(self._working), Lock()
        try:
            with span:
                self._unfinished.begin(span, landing.finish)
                staged = self._working.collect(self._tree)
                root, objects, nodes = tree.update(self._repo.objects.node, self._tree, staged.changes)
                if root == self._tree and not self._events:
                    landing.staged = staged
                    return None
                events = tuple(self._events)
                parents = () if self._head is None else (self._head,)
                commit = self._repo.build_commit(root, parents, message=message, info=info, events=events)
                self._in_flight = partial(self._note_landed, branch, commit, events, staged.asked)
                try:
                    published = publish(
                        self._repo,
                        branch,
                        self._head,
                        commit,
                        staged,
                        staged.objects | objects,
                        nodes,
                        working=self._working,
                        depends_on=depends_on,
                        guard=guard,
                    )
                except Exception:  # it did not land; of an interruption, one cannot know
                    self._in_flight = None
                    raise
                left = self._events[len(events) :]
                self._head, self._events, self._in_flight = published.head, left, None
                landing.staged, landing.moved, landing.savepoints = staged, published.moved, self._savepoints
                return published.head
        finally:
            self._unfinished.finish()

    # After an interruption

    def _put_right(self) -> bool:
        """Finish what an interruption cut short; what holds the lock does so first. False inside a span."""
        return self._unfinished.finish()

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

    def _note_landed(self, branch: str, commit: Commit, events: tuple[Event, ...], asked: Asked) -> None:
        """Take note of a commit that landed though an interruption kept us from seeing it."""
        if self._repo.has_landed(branch, commit.oid):
            changes = tree.diff(self._repo.objects.nodes, self._tree, commit.tree)
            self._working.landed(asked, [change.key for change in changes])
            _clear(self._savepoints)
            known = set(map(id, events))
            left = [event for event in self._events if id(event) not in known]
            self._head, self._events, self._in_flight = commit, left, None

    def _note_moved(self) -> None:
        """Go where the branch is, which another operation than a commit may have moved."""
        # A conflict with what has been changed since is the next commit's, as if others had moved the branch.
        with suppress(Conflict):
            self._go_to_newest()

    def _moved(self, move: Callable[[], _T], *, note: Callable[[], None] | None = None) -> _T:
        """What `move`, which moves the branch, returns; after an interruption `note` finds out if it has.

        `_arrive` has to follow. Values that `move` has held still are let go.
        """
        self._working.require_free("moved")
        span = Lock()
        try:
            with span:
                self._unfinished.begin(span, self._working.let_go)
                self._in_flight = note or self._note_moved
                try:
                    return move()
                except Exception:
                    self._in_flight = None
                    raise
        finally:
            self._unfinished.finish()

    def _arrive(
        self, commit: Commit | None, moved: Iterable[str], *, branch: str | None, agreed: Iterable[str] = ()
    ) -> None:
        """Be at a commit of this branch, in which the values `moved` are not those in hand any more."""
        keys, same = list(moved), list(agreed)

        def arrive() -> None:
            self._working.forget(keys)
            self._working.agree(same)
            self._head, self._branch, self._in_flight = commit, branch, None

        self._unfinished.surely(arrive)

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

    def after_fork(self, *, child: bool) -> None:
        if child and not self.turns.nested:
            self._unfinished.forget_spans()
            self._running = None
        super().after_fork(child=child)

    def _own_branch(self) -> str:
        if self._branch is None:
            raise DetachedHead(self._head.id if self._head else None)
        return self._branch

    def _foreign_changes(
        self, base: Commit | None, theirs: Commit, changes: dict[str, bytes | None], branch: str | None
    ) -> tuple[list[str], list[str]]:
        """The keys that they alone changed since the base, and those that both changed alike.

        Raises MergeConflict naming those that both changed otherwise.
        """
        foreign: list[str] = []
        agreed: list[str] = []
        conflicts: list[str] = []
        at = microseconds(theirs.time)
        for key, old, new in tree.diff(self._repo.objects.nodes, base.tree if base else None, theirs.tree):
            if key in changes and new is None and is_expired(old, at):
                continue  # removing what had expired changed nothing
            if key in changes:
                (agreed if changes[key] == new else conflicts).append(key)
            else:
                foreign.append(key)
        if agreed and branch is not None:
            policies = self._repo.policies.read(branch)
            conflicts += [key for key in agreed if self._repo.policies.adds_up(policies, key)]
        if conflicts:
            raise MergeConflict(conflicts, branch=branch)
        return foreign, agreed

    def has_uncommitted(self) -> bool:
        """Whether `commit` would make a commit."""
        with self._lock:
            self._catch_up()
            return bool(self._events or self._compared(self._tree).changes)

    def status(self) -> Diff:
        """The Diff of HEAD to the working state: what `commit` would commit."""
        return self.diff()

    def discard(self, *keys: str) -> None:
        """Forget the uncommitted changes, of these keys or of all. Recorded events stay."""
        with self._lock:
            self._look()
            if not keys and self._is_base_gone():
                self._unfinished.surely(self._working.clear)
                return
            staged = self._compared(self._tree, tolerant=True)
            # What has not changed stays the same object: the program may be about to edit it.
            changed = {*staged.changes, *staged.unpicklable}
            chosen = changed.intersection(map(check_key, keys)) if keys else changed
            self._unfinished.surely(partial(self._working.forget, chosen))

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

    def transaction(self, message: str = "", **info: Any) -> _Transaction[Self]:
        """Commit at the end of the with block; on an exception discard what was changed inside.

        Inside another transaction, or a task, it leaves the commit to that one. Transactions of several
        threads on one handle follow one another; a failing one discards whatever changed on the handle
        since it began, so give independent work handles of its own.
        """
        return _Transaction(partial(self._transact, message, info))

    def transaction_in_turn(self, message: str, info: Mapping[str, Any]) -> _Transaction[Self]:
        """A transaction for whoever has the turn, and is not inside another one."""
        return _Transaction(partial(self._transact, message, info, in_turn=True))

    def _transact(
        self, message: str, info: Mapping[str, Any], *, in_turn: bool = False
    ) -> Generator[Self, None, None]:
        turn = Turn()
        with turn.bell, turn.held:
            nested = self.turns.nested and not in_turn
            if not nested and not in_turn:
                self.turns.take(turn)
            saved = self._saved()
            try:
                yield self
            except BaseException as error:
                # Written down first, and without calling a function of ours, which an interruption can prevent.
                with self._lock:
                    self._unfinished.steps.append(saved.step)
                _noting(error, saved.restore)
                raise
            if not nested:
                # Not commit(): this block may end in another context than the one that has the turn.
                with self._lock:
                    self._catch_up()
                    self._commit(message, info)

    def savepoint(self) -> Callable[[], None]:
        """A function that takes the mapping back to what it is now; recorded events stay."""
        return self._saved().restore

    def _saved(self) -> _Savepoint:
        with self._lock:
            self._catch_up()
            saved = _Savepoint(self, dict(self._compared(self._tree).encoded))
            self._savepoints.add(saved)
        return saved

    def _restore(self, saved: dict[str, Encoded | None]) -> None:
        with self._lock:
            now = self._compared(self._tree, tolerant=True)
            moved = set(now.unpicklable)
            for key in now.encoded.keys() | saved.keys():
                if key not in saved or key not in now.encoded or not _same(now.encoded[key], saved[key]):
                    moved.add(key)
            # Load first, change then: a value that does not load leaves the others, and itself, in hand.
            restored: dict[str, Any] = {}
            failures: list[CannotLoad] = []
            for key in moved & saved.keys():
                encoded = saved[key]
                if encoded is not None:
                    try:
                        restored[key] = self._working.decoded(key, encoded)
                    except CannotLoad as error:
                        failures.append(error)
                        moved.discard(key)
            back = {key: saved[key] for key in moved & saved.keys()}
            self._unfinished.surely(partial(self._put_back, moved, back, restored))
            if failures:
                raise failures[0]

    def _put_back(
        self, moved: set[str], back: Mapping[str, Encoded | None], values: Mapping[str, Any]
    ) -> None:
        self._working.forget(moved)
        for key, encoded in back.items():
            if encoded is None:
                self._working.delete(key)
                continue
            self._working.set(key, values[key])
            expiry = split_expiry(encoded.entry)[1]
            if expiry != self._working.expiry(key, self._tree):
                self._working.expire(key, expiry)

    def run_update(
        self, function: Callable[[], object], *, attempts: int = 10, message: str = "", **info: Any
    ) -> Commit | None:
        if attempts < 1:
            raise InvalidInput(f"attempts is a number from 1 on, not {attempts}")
        if self.turns.nested:
            _called(function)
            return None
        # The turn only, not the lock: what the function starts in other threads may read and write too.
        turn = Turn()
        with turn.bell, turn.held:
            self.turns.take(turn)
            return self.update_in_turn(function, attempts, message, info)

    def update_in_turn(
        self, function: Callable[[], object], attempts: int, message: str, info: Mapping[str, Any]
    ) -> Commit | None:
        """`run_update` for whoever has the turn, and is not inside another one."""
        self._require_clean("update")
        queue = f"update {self._own_branch()}"
        for attempt in range(1, attempts + 1):
            # Short ones go one after the other, rather than do the work in vain; long ones only when
            # they were in each other's way, since others can go on with other keys meanwhile.
            one_by_one = attempt > 1 or self._update_seconds < _SHORT
            with self.store.turn(queue) if one_by_one else nullcontext():
                try:
                    return self._try_update(function, message, info)
                except _LostRace as lost:
                    if attempt == attempts:
                        raise lost.conflict from None
            time.sleep(_PAUSE * 2 ** min(attempt, 8) * os.urandom(1)[0] / 256)
        raise AssertionError("the last attempt returns or raises")

    def _try_update(
        self, function: Callable[[], object], message: str, info: Mapping[str, Any]
    ) -> Commit | None:
        span, attempt = Lock(), _Attempt(self)
        try:
            with span:
                with self._lock:
                    self._catch_up()
                    self._go_to_newest()
                    self._unfinished.begin(span, attempt.finish)
                    noticed = attempt.begin()
                began, running = time.monotonic(), Lock()
                self._running = running
                with running:
                    _called(function)
                self._update_seconds = time.monotonic() - began
                with self._lock:
                    try:
                        commit = self._commit(message, info, noticed.__contains__)
                    except Conflict as conflict:
                        raise _LostRace(conflict) from None
                    attempt.done = True
                    return commit
        finally:
            with self._lock:
                self._unfinished.finish()

    # Where it is

    def _own_head(self) -> Head:
        head = self.head
        return Head(self._branch, None if head is None else head.oid)

    def _resolve(self, rev: Revision) -> Commit:
        return self._repo.resolve(rev, head=self._own_head())

    def diff(self, old: Revision | None = None, new: Revision | None = None) -> Diff:
        """The keys that differ: HEAD to the working state, `old` to the working state, or `old` to `new`.

        What has expired is not in the working state: it counts as removed since `old`, but not since HEAD, as
        no commit is due for it.
        """
        if new is not None:
            before = self._tree if old is None else self._trusted(self._resolve(old)).tree
            return self._repo.diff(before, self._trusted(self._resolve(new)).tree)
        with self._lock:
            self._catch_up()
            staged = self._compared(self._tree)
            changes, reader = dict(staged.changes), staged.reader()
            node = self._repo.objects.node
            at = expiry.now()
            if old is None:
                pairs = [
                    KeyChange(key, None if is_expired(before, at) else before, data)
                    for key, data in sorted(changes.items())
                    for before in (tree.lookup(node, self._tree, key),)
                ]
                pairs = [change for change in pairs if change.old != change.new]
            else:
                before = self._trusted(self._resolve(old)).tree
                moved = {
                    change.key: change for change in tree.diff(self._repo.objects.nodes, before, self._tree)
                }
                for key, data in [
                    *((key, None) for key in tree.expired(node, self._tree, at)),
                    *changes.items(),
                ]:
                    moved[key] = KeyChange(key, tree.lookup(node, before, key), data)
                pairs = [change for _, change in sorted(moved.items()) if change.old != change.new]
        return self._repo.make_diff(pairs, reader)

    @alone
    def refresh(self) -> Commit | None:
        """Load what other processes committed to the branch; uncommitted changes stay staged on top.

        Raises MergeConflict, and changes nothing, if they changed a key that is changed here too. A handle
        that follows HEAD goes to the branch that HEAD is on now; UncommittedChanges if that would lose some.
        """
        head = self._repo.refs.head()
        if self._follows_head and head.branch != self._branch:
            self._require_clean("refresh")
            self._go_to(head)
        else:
            self._go_to_newest()
        return self._head

    def _go_to_newest(self) -> None:
        """Go to the newest commit of the branch that this state is on, wherever HEAD is."""
        if self._branch is None:
            self._go_to(self._repo.refs.head())
        else:
            self._go_to(Head(self._branch, self._repo.refs.read(HEADS + self._branch)))

    def _go_to(self, head: Head) -> None:
        if self._head is not None and (head.commit, head.branch) == (self._head.oid, self._branch):
            return
        if head.commit is not None:
            self._move(self._trusted(self._repo.objects.commit(head.commit)), head.branch)
        elif self._head is not None:
            raise RefMoved(f"{HEADS}{head.branch}", expected=self._head.id, actual=None)
        else:
            self._branch = head.branch

    def _move(self, commit: Commit, branch: str | None) -> None:
        """Go to another commit with what is staged; values that are the same there stay the same objects."""
        try:
            staged = self._compared(self._tree, tolerant=True)
            changes = staged.changes | dict.fromkeys(staged.unpicklable, b"")
            foreign, agreed = self._foreign_changes(self._head, commit, changes, self._branch)
        except CorruptObject:
            if not self._is_base_gone():
                raise
            self._leave_gone_base()
            foreign, agreed = [], []
        self._arrive(commit, foreign, branch=branch, agreed=agreed)

    def _is_base_gone(self) -> bool:
        return self._head is not None and not self._repo.objects.is_stored(self._head.oid)

    def _leave_gone_base(self) -> None:
        """Drop what is held of a commit that gc has removed; NotFound, with all kept, if some of it is new."""
        assert self._head is not None
        staged = self._compared(None, tolerant=True)
        changed = bool(staged.changes or staged.unpicklable or self._working.deleted)
        if changed or self._events:
            raise NotFound(
                f"gc has removed {self._head.short}, which the uncommitted changes here were made on: take what "
                "you need of them, discard() and refresh()",
                name=self._head.id,
            )
        self._unfinished.surely(self._working.clear)

    def _require_clean(self, operation: str) -> None:
        if self.has_uncommitted():
            raise UncommittedChanges(operation)

    # Closing

    def close(self) -> None:
        """Close what watches it, and the store, if this handle opened it. What is uncommitted is not committed."""
        for watch in list(self._watches):
            watch.close()
        if self._owned:
            self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class _LostRace(Exception):
    """The commit of an update met this conflict."""

    def __init__(self, conflict: Conflict) -> None:
        super().__init__()
        self.conflict = conflict


def _called(function: Callable[[], object]) -> None:
    """Call the function of an update; TypeError for a coroutine, which nobody would await."""
    result = function()
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()
        raise TypeError(
            "the function of an update is called, not awaited nor gone through: give it a plain def"
        )


def _noting(error: BaseException, action: Callable[[], None]) -> None:
    """Carry out the action; if that fails too, say so on the error that is on its way to the caller."""
    try:
        action()
    except VStateError as failure:
        error.add_note(f"vstate, while it undid what changed: {failure}")


class _Transaction(AbstractContextManager[_W], ContextDecorator):
    """The context manager of a generator, which is closed if an interruption keeps its with block from beginning.

    One that keeps `__exit__` itself from beginning leaves it open until the exception is let go of: it is then
    discarded.
    """

    def __init__(self, begin: Callable[[], Generator[_W, None, None]]) -> None:
        self._begin = begin

    def _recreate_cm(self) -> Self:
        return type(self)(self._begin)  # as a decorator, a new one for each call

    def __enter__(self) -> _W:
        self._block = block = contextmanager(self._begin)()
        try:
            return block.__enter__()
        except BaseException:
            block.gen.close()
            raise

    def __exit__(self, *raised: Any) -> bool | None:
        return self._block.__exit__(*raised)


class _Savepoint:
    """What was staged at some time; empty once a commit made that the committed state."""

    def __init__(self, state: Worktree, staged: dict[str, Encoded | None]) -> None:
        self._state = state
        self.staged = staged
        self.step: Step = Lock(), partial(state._restore, staged)
        """`restore`, as a step that is left to do."""

    def restore(self) -> None:
        """Take the mapping back to that."""
        with self._state._lock:
            if self.step not in self._state._unfinished.steps:
                self._state._unfinished.steps.append(self.step)
            self._state._unfinished.finish()


class _Landing:
    """What is left to do when a commit has ended: once it landed, and `staged` is set, to take that as committed."""

    def __init__(self, working: WorkingValues) -> None:
        self._working = working
        self.staged: Staged | None = None
        self.moved: Iterable[str] = ()
        self.savepoints: Iterable[_Savepoint] = ()

    def finish(self) -> None:
        """Do it, and hand the values out again."""
        if self.staged is not None:
            self._working.settle(self.staged)
            self._working.forget(self.moved)
            _clear(self.savepoints)
        self._working.let_go()


class _Attempt:
    """One attempt of an update: what its function reads and writes, to be undone unless it is `done`."""

    def __init__(self, state: Worktree) -> None:
        self._state = state
        self._events: list[Event] = []
        self.noticed: Noticed | None = None
        self.done = False

    def begin(self) -> Noticed:
        """Take note from now on."""
        self._events = list(self._state._events)
        self.noticed = noticed = self._state._working.notice()
        return noticed

    def finish(self) -> None:
        """Take no more notes, and undo what was done."""
        state = self._state
        state._working.end_notice()
        noticed = self.noticed
        if self.done or noticed is None:
            return
        known = set(map(id, self._events))
        state._events = [event for event in state._events if id(event) in known]
        staged = state._compared(state._tree, tolerant=True)
        # What it neither read nor wrote is another thread's, and stays.
        state._working.forget([key for key in {*staged.changes, *staged.unpicklable} if key in noticed])


def _clear(savepoints: Iterable[_Savepoint]) -> None:
    for savepoint in savepoints:
        savepoint.staged.clear()


def _same(one: Encoded | None, other: Encoded | None) -> bool:
    """Whether the two are the same change. What slides is begun anew each time that one looks."""
    if one is None or other is None:
        return one is other
    if one.entry == other.entry:
        return True
    (bare, expiry), (other_bare, other_expiry) = split_expiry(one.entry), split_expiry(other.entry)
    slides = expiry is not None and other_expiry is not None and 0 < expiry.ttl == other_expiry.ttl
    return bare == other_bare and (slides or expiry == other_expiry)
