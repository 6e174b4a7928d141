"""Worktree: the mapping over one commit of a branch, and what a program changed in it."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta
from heapq import merge
from os import PathLike
from typing import TYPE_CHECKING, Any, Self
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
from vstate.state.timed import make_expiry, ttl_microseconds
from vstate.state.working import WorkingValues
from vstate.values.entry import Encoded
from vstate.values.inspection import describe

if TYPE_CHECKING:
    from vstate.state.watching import Watch

_SHORT = 0.05  # seconds
_PAUSE = 0.001  # seconds, doubled with each attempt


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
        self._updating = False  # while the function of an update runs
        self._in_flight: Commit | None = None  # what an interrupted commit was about to put on the branch
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
            return self._working.values[key]
        except (KeyError, TypeError):
            if not isinstance(key, str):
                raise missing(key) from None
        with self._lock:
            return self._working.load(str.__str__(key), self._tree)

    def __setitem__(self, key: str, value: Any) -> None:
        key = check_key(key)
        with self._lock:
            self._working.set(key, value)

    def __delitem__(self, key: str) -> None:
        key = check_key(key)
        with self._lock:
            if key not in self:
                raise missing(key)
            self._working.delete(key)

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, str):
            return False
        if key in self._working.values:
            return True
        with self._lock:
            return self._working.contains(str.__str__(key), self._tree)

    def scan_keys(self, prefix: str) -> Iterator[str]:
        with self._lock:
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
        if self._working.holds(key):
            return super().describe_key(key)
        entry = self._repo.entry(self._tree, key)
        if entry is None or key not in self:
            raise missing(key)
        return describe(entry)

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
        if self._updating:
            raise InvalidInput(
                "an update commits by itself, once its function has returned; leave commit() out"
            )
        with self._alone():
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
        self._settle_landed(branch)
        with self._working.collected(self._tree) as staged:
            root, objects, nodes = tree.update(self._repo.objects.node, self._tree, staged.changes)
            if root == self._tree and not self._events:
                staged.settle()
                return None
            events = tuple(self._events)
            parents = () if self._head is None else (self._head,)
            commit = self._repo.build_commit(root, parents, message=message, info=info, events=events)
            self._in_flight = commit
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
            staged.settle()
        self._head = head = published.head
        self._in_flight = None
        del self._events[: len(events)]
        self._working.forget(published.moved)
        for savepoint in self._savepoints:
            savepoint.staged.clear()
        return head

    def _settle_landed(self, branch: str) -> None:
        """Take note of a commit that landed though an interruption kept us from seeing it."""
        commit, self._in_flight = self._in_flight, None
        if commit is not None and self._repo.has_landed(branch, commit.oid):
            self._head = commit
            del self._events[: len(commit.events)]

    def _own_branch(self) -> str:
        if self._branch is None:
            raise DetachedHead(self._head.id if self._head else None)
        return self._branch

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait for the transaction of another thread, if there is one, to end: its half is not ours to move."""
        if self.turns.nested:
            with self._lock:
                yield
        else:
            with self.turns.held(), self._lock:
                yield

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
            if self._events:
                return True
            with self._working.collected(self._tree) as staged:
                return bool(staged.changes)

    def status(self) -> Diff:
        """The Diff of HEAD to the working state: what `commit` would commit."""
        return self.diff()

    def discard(self, *keys: str) -> None:
        """Forget the uncommitted changes, of these keys or of all. Recorded events stay."""
        with self._lock:
            if not keys and self._is_base_gone():
                self._working.clear()
                return
            with self._working.collected(self._tree, tolerant=True) as staged:
                changed = {*staged.changes, *staged.unpicklable}
            # What has not changed stays the same object: the program may be about to edit it.
            self._working.forget(changed.intersection(map(check_key, keys)) if keys else changed)

    def record_event(self, event: Event) -> None:
        """Keep an event for the next commit."""
        with self._lock:
            self._events.append(event)

    def pending_events(self) -> list[Event]:
        """The events that no commit holds yet, oldest first."""
        with self._lock:
            return list(self._events)

    @contextmanager
    def transaction(self, message: str = "", **info: Any) -> Iterator[Self]:
        """Commit at the end of the with block; on an exception discard what was changed inside.

        Inside another transaction, or a task, it leaves the commit to that one. Transactions of several
        threads on one handle follow one another; a failing one discards whatever changed on the handle
        since it began, so give independent work handles of its own.
        """
        if self.turns.nested:
            with self.discarding():
                yield self
            return
        with self.turns.held(), self.committing(message, info):
            yield self

    @contextmanager
    def committing(self, message: str, info: Mapping[str, Any]) -> Iterator[None]:
        """A transaction for whoever has the turn."""
        with self.discarding():
            yield
        # Not commit(): this block may end in another context than the one that has the turn.
        with self._lock:
            self._commit(message, info)

    @contextmanager
    def discarding(self) -> Iterator[None]:
        """Take the mapping back, on an exception, to what it was before the with block."""
        restore = self.savepoint()
        try:
            yield
        except BaseException as error:
            try:
                restore()
            except VStateError as failure:
                error.add_note(f"vstate, while it undid what changed: {failure}")
            raise

    def savepoint(self) -> Callable[[], None]:
        """A function that takes the mapping back to what it is now; recorded events stay."""
        with self._lock:
            with self._working.collected(self._tree) as staged:
                saved = _Savepoint(self, dict(staged.encoded))
            self._savepoints.add(saved)
        return saved.restore

    def _restore(self, saved: dict[str, Encoded | None]) -> None:
        with self._lock:
            with self._working.collected(self._tree, tolerant=True) as now:
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
            self._working.forget(moved)
            for key in moved & saved.keys():
                if key in restored:
                    self._working.set(key, restored[key])
                    encoded = saved[key]
                    wanted = None if encoded is None else split_expiry(encoded.entry)[1]
                    if wanted != self._working.expiry(key, self._tree):
                        self._working.expire(key, wanted)
                else:
                    self._working.delete(key)
            if failures:
                raise failures[0]

    def run_update(
        self, function: Callable[[], object], *, attempts: int = 10, message: str = "", **info: Any
    ) -> Commit | None:
        if attempts < 1:
            raise InvalidInput(f"attempts is a number from 1 on, not {attempts}")
        if self.turns.nested:
            _called(function)
            return None
        # The turn only, not the lock: what the function starts in other threads may read and write too.
        with self.turns.held():
            return self.update_in_turn(function, attempts, message, info)

    def update_in_turn(
        self, function: Callable[[], object], attempts: int, message: str, info: Mapping[str, Any]
    ) -> Commit | None:
        """`run_update` for whoever has the turn."""
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
        with self._lock:
            self._go_to_newest()
            noticed = self._working.notice()
        recorded, began = len(self._events), time.monotonic()
        self._updating = True
        try:
            _called(function)
            self._updating = False
            self._update_seconds = time.monotonic() - began
            with self._lock:
                self._working.end_notice()
                try:
                    return self._commit(message, info, noticed.__contains__)
                except Conflict as conflict:
                    raise _LostRace(conflict) from None
        except BaseException:
            self._updating = False
            with self._lock:
                self._working.end_notice()
                del self._events[recorded:]
                with self._working.collected(self._tree, tolerant=True) as staged:
                    changed = {*staged.changes, *staged.unpicklable}
                # What it neither read nor wrote is another thread's, and stays.
                self._working.forget(key for key in changed if key in noticed)
            raise

    # Where it is

    def _own_head(self) -> Head:
        return Head(self._branch, None if self._head is None else self._head.oid)

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
            with self._working.collected(self._tree) as staged:
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

    def refresh(self) -> Commit | None:
        """Load what other processes committed to the branch; uncommitted changes stay staged on top.

        Raises MergeConflict, and changes nothing, if they changed a key that is changed here too. A handle
        that follows HEAD goes to the branch that HEAD is on now; UncommittedChanges if that would lose some.
        """
        with self._alone():
            head = self._repo.refs.head()
            if self._follows_head and head.branch != self._branch:
                self._require_clean("refresh")
                self._go_to(head)
            else:
                self._go_to_newest()
            return self._head

    def _go_to_newest(self) -> None:
        """Go to the newest commit of the branch that this state is on, wherever HEAD is."""
        if self._branch is not None:
            self._settle_landed(self._branch)
        if self._branch is None:
            self._go_to(self._repo.refs.head())
        else:
            self._go_to(Head(self._branch, self._repo.refs.read(HEADS + self._branch)))

    def _go_to(self, head: Head) -> None:
        if head.commit is not None:
            self._move(self._trusted(self._repo.objects.commit(head.commit)))
        elif self._head is not None:
            raise RefMoved(f"{HEADS}{head.branch}", expected=self._head.id, actual=None)
        self._branch = head.branch

    def _move(self, commit: Commit) -> None:
        """Go to another commit with what is staged; values that are the same there stay the same objects."""
        try:
            with self._working.collected(self._tree, tolerant=True) as staged:
                changes = staged.changes | dict.fromkeys(staged.unpicklable, b"")
            foreign, agreed = self._foreign_changes(self._head, commit, changes, self._branch)
        except CorruptObject:
            if not self._is_base_gone():
                raise
            self._leave_gone_base()
            foreign, agreed = [], []
        self._working.forget(foreign)
        self._working.agree(agreed)
        self._head = commit

    def _is_base_gone(self) -> bool:
        return self._head is not None and not self._repo.objects.is_stored(self._head.oid)

    def _leave_gone_base(self) -> None:
        """Drop what is held of a commit that gc has removed; NotFound, with all kept, if some of it is new."""
        assert self._head is not None
        with self._working.collected(None, tolerant=True) as staged:
            changed = bool(staged.changes or staged.unpicklable or self._working.deleted)
        if changed or self._events:
            raise NotFound(
                f"gc has removed {self._head.short}, which the uncommitted changes here were made on: take what "
                "you need of them, discard() and refresh()",
                name=self._head.id,
            )
        self._working.clear()

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
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError("the function of an update is called and not awaited: give it a plain def")


class _Savepoint:
    """What was staged at some time; empty once a commit made that the committed state."""

    def __init__(self, state: Worktree, staged: dict[str, Encoded | None]) -> None:
        self._state = state
        self.staged = staged

    def restore(self) -> None:
        self._state._restore(self.staged)


def _same(one: Encoded | None, other: Encoded | None) -> bool:
    """Whether the two are the same change. What slides is begun anew each time that one looks."""
    if one is None or other is None:
        return one is other
    if one.entry == other.entry:
        return True
    (bare, expiry), (other_bare, other_expiry) = split_expiry(one.entry), split_expiry(other.entry)
    slides = expiry is not None and other_expiry is not None and 0 < expiry.ttl == other_expiry.ttl
    return bare == other_bare and (slides or expiry == other_expiry)
