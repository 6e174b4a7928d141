"""Moving: a mapping that goes from commit to commit, by its own commits and with its branch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from vstate.errors import (
    Conflict,
    CorruptObject,
    DetachedHead,
    InvalidInput,
    MergeConflict,
    NotFound,
    RefMoved,
)
from vstate.objects import expiry, tree
from vstate.objects.commit import Commit, Event, microseconds
from vstate.objects.expiry import is_expired
from vstate.objects.tree import KeyChange
from vstate.repo.compare.diff import Diff
from vstate.repo.core import Guard
from vstate.repo.names.refs import HEADS, Head
from vstate.repo.repository import Revision
from vstate.state.mapping import WorkingMapping, alone
from vstate.state.publishing import publish
from vstate.state.staged import Staged
from vstate.state.timed import Asked
from vstate.state.working import WorkingValues

if TYPE_CHECKING:
    from vstate.state.transactions import Savepoint

_T = TypeVar("_T")


class MovingMapping(WorkingMapping):
    """A mapping that commits, and goes where its branch is. It is at one commit or at the other, however it is
    interrupted.
    """

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

    def _note_landed(self, branch: str, commit: Commit, events: tuple[Event, ...], asked: Asked) -> None:
        """Take note of a commit that landed though an interruption kept us from seeing it."""
        if self._repo.has_landed(branch, commit.oid):
            changes = tree.diff(self._repo.objects.nodes, self._tree, commit.tree)
            self._working.landed(asked, [change.key for change in changes])
            _clear(self._savepoints)
            known = set(map(id, events))
            left = [event for event in self._events if id(event) not in known]
            self._head, self._events, self._in_flight = commit, left, None

    # Going elsewhere

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
        self,
        commit: Commit | None,
        moved: Iterable[str],
        *,
        branch: str | None,
        agreed: Mapping[str, bytes | None] = MappingProxyType({}),
    ) -> None:
        """Be at a commit of this branch, in which the values `moved` are not those in hand any more, and the entries
        `agreed` are what is staged here.
        """
        keys, same = list(moved), dict(agreed)

        def arrive() -> None:
            self._working.forget(keys)
            self._working.agree(same)
            self._head, self._branch, self._in_flight = commit, branch, None

        self._unfinished.surely(arrive)

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
            foreign, agreed = [], {}
        self._arrive(commit, foreign, branch=branch, agreed=agreed)

    def _foreign_changes(
        self, base: Commit | None, theirs: Commit, changes: dict[str, bytes | None], branch: str | None
    ) -> tuple[list[str], dict[str, bytes | None]]:
        """The keys that they alone changed since the base, and the entries of those that both changed alike.

        Raises MergeConflict naming those that both changed otherwise.
        """
        foreign: list[str] = []
        agreed: dict[str, bytes | None] = {}
        conflicts: list[str] = []
        at = microseconds(theirs.time)
        for key, old, new in tree.diff(self._repo.objects.nodes, base.tree if base else None, theirs.tree):
            if key in changes and new is None and is_expired(old, at):
                continue  # removing what had expired changed nothing
            if key not in changes:
                foreign.append(key)
            elif changes[key] == new:
                agreed[key] = new
            else:
                conflicts.append(key)
        if agreed and branch is not None:
            policies = self._repo.policies.read(branch)
            conflicts += [key for key in agreed if self._repo.policies.adds_up(policies, key)]
        if conflicts:
            raise MergeConflict(conflicts, branch=branch)
        return foreign, agreed

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

    # Where it is

    def _own_branch(self) -> str:
        if self._branch is None:
            raise DetachedHead(self._head.id if self._head else None)
        return self._branch

    def _own_head(self) -> Head:
        head = self.head
        return Head(self._branch, None if head is None else head.oid)

    def _resolve(self, rev: Revision) -> Commit:
        return self._repo.resolve(rev, head=self._own_head())

    def status(self) -> Diff:
        """The Diff of HEAD to the working state: what `commit` would commit."""
        return self.diff()

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


class _Landing:
    """What is left to do when a commit has ended: once it landed, and `staged` is set, to take that as committed."""

    def __init__(self, working: WorkingValues) -> None:
        self._working = working
        self.staged: Staged | None = None
        self.moved: Iterable[str] = ()
        self.savepoints: Collection[Savepoint] = ()

    def finish(self) -> None:
        """Do it, and hand the values out again."""
        if self.staged is not None:
            self._working.settle(self.staged)
            self._working.forget(self.moved)
            _clear(self.savepoints)
        self._working.let_go()


def _clear(savepoints: Collection[Savepoint]) -> None:
    if savepoints:  # mostly there are none, and going through an empty WeakSet takes longer than asking it
        for savepoint in savepoints:
            savepoint.staged.clear()
