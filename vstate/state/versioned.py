"""Versioned: a branch that a program can write to."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import timedelta
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, TypeVar

from vstate.arguments import check_limit, require_plain
from vstate.errors import (
    AlreadyExists,
    InvalidInput,
    RefMoved,
    StorageError,
    UncommittedChanges,
)
from vstate.objects.commit import Commit
from vstate.repo.compare.diff import Change
from vstate.repo.core import Revision
from vstate.repo.history import Log
from vstate.repo.names.dates import parse_ttl
from vstate.repo.names.refs import HEADS, check_ref_name
from vstate.repo.rules.policies import Policy
from vstate.state.base import check_key
from vstate.state.mapping import alone
from vstate.state.snapshot import Snapshot
from vstate.state.worktree import Worktree

if TYPE_CHECKING:
    from vstate.kv.base import KVStore
    from vstate.objects.ids import ObjectId
    from vstate.repo.exchange.progress import TransferProgress
    from vstate.repo.exchange.sync import SyncReport
    from vstate.repo.merge.apply import Given, Landing
    from vstate.repo.merge.three_way import MergeResult
    from vstate.repo.names.undo import Undo
    from vstate.state.lease import Lease
    from vstate.state.watching import Subscription, Watch

_T = TypeVar("_T")

_ATTEMPTS = 10


class Versioned(Worktree):
    """A dict-like state whose commits are kept: `Versioned(store)` is a branch that you can write to.

    `store` is a KVStore, a path, a URL, or None for memory. `branch=None` follows the store's HEAD: "main"
    in a new store; a service names its branch instead. Every value that Python can pickle goes in; edits
    in place are committed too. Threads may share one handle; processes each open their own.

    Reading a value unpickles it, which can run code: open stores that you trust, or narrow that down.

    - `sign` is a key, or the path of its file, that signs every commit made here.
    - `trust` are public keys: a commit that neither they signed, nor is behind one that they signed, is not
      unpickled and not built upon, but raises UntrustedCommit. One's own key is among them.
    - `ttl`, in seconds or as a timedelta, lets the named branch expire: so long after the first commit that is made
      with it, or with `sliding` after each time that anybody moves the branch. An expired branch is in no list
      and no revision leads to it; who opens it begins a new, empty one; `gc` removes what it held, reflog and all.
    - `allow` are the names of what unpickling may import, such as `["app.*", "numpy"]`, besides plain data;
      anything else raises CannotLoad.
    """

    # Other processes

    def watch(self, pattern: str = "*", *, since: Revision | None = None) -> Watch:
        """The changes of keys like `agent:*` as they are committed to the branch, here or by other processes.

        An iterator and an async iterator of (key, Change, Commit) that waits for the next one; it begins after
        `since`, a commit of this branch, or after the commit that this state is at. This state itself does not
        move: `refresh` it to read the new values there, or read `change.new`. Raises DetachedHead, NotFound.
        """
        return self.watch_within("", pattern, since)

    def watch_within(self, prefix: str, pattern: str, since: Revision | None) -> Watch:
        """As `watch`, of keys that begin with `prefix`, told without it."""
        from vstate.state.watching import Watch  # late, for a quick `import vstate`

        seen = self._head if since is None else self._trusted(self._resolve(since))
        watch = Watch(self._repo, self._own_branch(), pattern, seen, prefix=prefix)
        self._watches.add(watch)
        return watch

    def subscribe(self, pattern: str, function: Callable[[str, Change, Commit], object]) -> Subscription:
        """Have `function(key, change, commit)` called for each change that `watch` would give, in a thread of its own.

        One call at a time, in order. What the function raises is logged, to the logger "vstate", and the next
        change comes all the same. Ends when the subscription or this state is closed.
        """
        from vstate.state.watching import Subscription

        require_plain("the function of subscribe", function)
        return Subscription(self.watch(pattern), function)

    def lease(self, name: str, ttl: float | timedelta = 30, *, wait: float | None = None) -> Lease:
        """A lease, to be entered by `with`: nobody else has one of that name in this store meanwhile.

        A thread renews it. If this process stops for longer than `ttl`, or is gone, another one may take it over;
        `lease.commit` then raises LeaseLost and commits nothing. `lease.fence` is a number that grows with each
        holder. Entering waits `wait` seconds for another holder, None for ever, 0 not at all, and then
        raises LeaseHeld, which names him. InvalidInput for a `ttl` below a tenth of a second. A lease whose holder has died is free once its row has been seen
        not to change for its `ttl` and a tenth more: no clocks of different machines are compared.
        """
        from vstate.state.lease import Lease  # late, for a quick `import vstate`

        return Lease(self, name, ttl=parse_ttl(ttl), wait=wait)

    # Expiry

    @alone
    def purge(self) -> Commit | None:
        """Commit the removal of what has expired on this branch, by itself; None if nothing has.

        It reads no value, and tries again when others commit meanwhile. What is uncommitted here stays so. A
        merge with somebody who gave such a key a new value keeps that. Raises DetachedHead, StorageError.
        """
        from vstate.repo.merge.expiring import purge  # late, for a quick `import vstate`

        # An interruption behind it leaves this state as if somebody else had purged.
        purged = purge(self._repo, self._own_branch())
        if purged is None:
            return None
        before, commit = purged
        if before == self._head:
            self._move(commit, self._branch)
        return commit

    # History

    def log(self, rev: Revision = "HEAD", *, key: str | None = None, limit: int | None = None) -> Log:
        """An iterator of the commits from `rev` back, newest first; with `key`, only those that changed it.

        Empty before the first commit; NotFound for a revision that is not there.
        """
        check_limit(limit)
        if rev == "HEAD" and self.head is None:
            return Log(lambda: iter(()))
        return self._repo.log(rev, key=key, limit=limit, head=self._own_head())

    def checkout(self, rev: Revision) -> Snapshot:
        """The state at a revision, to look at: a read-only mapping. This state does not move."""
        return Snapshot(self._repo, self._trusted(self._resolve(rev)))

    def blame(self, key: str, path: str | None = None) -> Commit:
        """The commit that last changed the key, or what is at `path` inside its value, as seen from HEAD.

        The path is written as `diff.details` prints it, `messages[3].content`. What is not committed does not
        count, and nothing is unpickled. Raises KeyNotFound, NotFound for a path that leads nowhere.
        """
        return self._repo.blame("HEAD", check_key(key), path, head=self._own_head())

    def bisect(
        self, predicate: Callable[[Snapshot], object], good: Revision, bad: Revision = "HEAD"
    ) -> Commit:
        """The first commit at which `predicate` no longer holds, in about log2 as many tests as commits.

        It gets the Snapshot of a commit, and returns something true while all is well; `good` is a commit where
        it does, `bad` a later one where it does not. Raises InvalidInput if that is not so.
        """
        return self._repo.bisect(
            lambda commit: predicate(self.checkout(commit)), good, bad, head=self._own_head()
        )

    @alone
    def rollback(self, rev: Revision | None = None, *, steps: int = 1, message: str = "") -> Commit:
        """Make the state what it was at `rev`, or `steps` commits ago, as a new commit on top.

        Nothing is lost: uncommitted changes are committed first, on their own, and the commits between
        stay in the history. Raises DetachedHead, NotFound, RefMoved.
        """
        if rev is not None and steps != 1:
            raise InvalidInput("rollback takes a revision, or a number of steps, not both")
        branch = self._own_branch()
        target = self._trusted(self._resolve(f"HEAD~{steps}" if rev is None else rev))
        self.commit("Before rollback")
        # Found now, because nothing may fail once the branch has moved.
        foreign = list(self._repo.diff(self._tree, target.tree))
        commit = self._moved(lambda: self._repo.rollback(branch, target, message=message, seen=self._head))
        self._arrive(commit, foreign, branch=branch)
        return commit

    @alone
    def reset(self, rev: Revision) -> Commit:
        """Move the branch itself to `rev`; uncommitted changes and recorded events are gone.

        The old head stays in the branch's reflog. Raises DetachedHead, NotFound, RefMoved.
        """
        branch, target = self._own_branch(), self._trusted(self._resolve(rev))
        self._moved(
            lambda: self._repo.move_branch(branch, target, seen=self._head),
            note=partial(self._note_reset, self._head, target),
        )
        self._begin_anew(target)
        return target

    def _note_reset(self, old: Commit | None, target: Commit) -> None:
        """Find out whether an interrupted reset has happened."""
        if old != target and self._repo.refs.read(HEADS + self._own_branch()) == target.oid:
            self._begin_anew(target)
        else:
            self._note_moved()

    def _begin_anew(self, commit: Commit) -> None:
        """Be at a commit of this branch, with nothing in hand."""

        def begin() -> None:
            self._working.clear()
            self._head, self._events, self._in_flight = commit, [], None

        self._unfinished.surely(begin)

    def undo(self, *, steps: int = 1) -> Commit:
        """Put the branch where it was before its last `steps` moves, whatever these were; nothing is lost.

        Undoing twice goes two moves back, `redo` forward again; the reflog has it all. Raises UncommittedChanges,
        DetachedHead, InvalidInput if there is nothing to undo, and RefMoved.
        """
        return self._carried_out(
            "undo", lambda name: self._repo.find_undo(name, steps=steps, seen=self._head)
        )

    def redo(self) -> Commit:
        """Take back the last undo, if nothing else has moved the branch since; raises as `undo` does."""
        return self._carried_out("redo", lambda name: self._repo.find_redo(name, seen=self._head))

    @alone
    def _carried_out(self, operation: str, find: Callable[[str], Undo]) -> Commit:
        branch = self._own_branch()
        self._require_clean(operation)
        found = find(branch)
        self._trusted(found.new)
        # Found now, because nothing may fail once the branch has moved.
        foreign = list(self._repo.diff(self._tree, found.new.tree))
        commit = self._moved(lambda: self._repo.carry_out(found))
        self._arrive(commit, foreign, branch=branch)
        return commit

    @alone
    def merge(self, rev: Revision, *, policy: Given = None, message: str = "") -> MergeResult:
        """Merge what `rev` holds into this branch, three-way by key from where the two parted.

        A key that one side changed is taken from there. One that both changed is resolved by its policy:
        `policy` is one for all keys, or a mapping by prefix that goes before the branch's own (`set_policy`).
        Raises MergeConflict, whose `conflicts` have base, ours and theirs for each key that is left, and
        UncommittedChanges; nothing has changed then.
        """
        # Once, though another commit may be HEAD by the time that this one is merged.
        theirs, name = self._trusted(self._resolve(rev)), rev if isinstance(rev, str) else None
        return self._merge(theirs, name, policy, message)

    def _merge(self, theirs: Commit, name: str | None, policy: Given, message: str) -> MergeResult:
        result = self._combined(
            "merge",
            lambda branch, landing: self._repo.merge(
                branch,
                theirs,
                policy=policy,
                message=message,
                seen=self._head,
                name=name,
                landing=landing,
            ),
        )
        self._arrive(result.commit or self._head, result.merged_keys, branch=self._branch)
        return result

    def pull(
        self,
        store: KVStore | str | PathLike[str] | None = None,
        *,
        policy: Given = None,
        message: str = "",
        progress: TransferProgress | None = None,
    ) -> MergeResult:
        """Fetch this branch from another store, and merge it into this state as `merge` does.

        `store` is a store, the name of a remote, a path or URL, or None for the remote `origin`. Raises
        NotFound if the branch is not there, MergeConflict and UncommittedChanges as `merge` does: what was
        fetched stays then, as `origin/main`.
        """
        from vstate.repo.exchange import sync  # late, for a quick `import vstate`

        branch = self._own_branch()
        self._require_clean("pull")
        # What takes long, fetching, does not keep other threads from the state.
        _, result = sync.pull(
            self._repo,
            store,
            branch,
            lambda commit, name: self._merge_fetched(commit, name, policy, message),
            remote=None,
            progress=progress,
        )
        if self._head is None:
            self._go_to_fetched()
        return result

    @alone
    def _merge_fetched(self, commit: ObjectId, name: str, policy: Given, message: str) -> MergeResult:
        return self._merge(self._trusted(self._resolve(commit)), name, policy, message)

    @alone
    def _go_to_fetched(self) -> None:
        if self._head is None:
            self._go_to_newest()

    def push(
        self,
        store: KVStore | str | PathLike[str] | None = None,
        *,
        force: bool = False,
        create: bool = False,
        progress: TransferProgress | None = None,
    ) -> SyncReport:
        """Bring this branch to another store, given as for `pull`; what is not committed stays here.

        Raises Diverged if the branch there has commits that this one lacks: `pull` first. See `repo.push`,
        which also brings other branches, and tags.
        """
        return self._repo.push(store, self._own_branch(), force=force, create=create, progress=progress)

    def cherry_pick(self, rev: Revision, *, policy: Given = None, message: str = "") -> Commit | None:
        """Commit here what the commit `rev` changed against its first parent; None if that is so already.

        Raises MergeConflict and UncommittedChanges as `merge` does.
        """
        return self._picked("cherry_pick", self._repo.cherry_pick, rev, policy, message)

    def revert(self, rev: Revision, *, policy: Given = None, message: str = "") -> Commit | None:
        """Commit the opposite of what the commit `rev` changed; None if that is so already.

        Raises MergeConflict and UncommittedChanges as `merge` does.
        """
        return self._picked("revert", self._repo.revert, rev, policy, message)

    @alone
    def _picked(
        self,
        operation: str,
        pick: Callable[..., Commit | None],
        rev: Revision,
        policy: Given,
        message: str,
    ) -> Commit | None:
        picked = self._trusted(self._resolve(rev))
        commit = self._combined(
            operation,
            lambda branch, landing: pick(
                branch, picked, policy=policy, message=message, seen=self._head, landing=landing
            ),
        )
        foreign = [] if commit is None else list(self._repo.diff(self._tree, commit.tree))
        self._arrive(commit or self._head, foreign, branch=self._branch)
        return commit

    def _combined(self, operation: str, combine: Callable[[str, Landing], _T]) -> _T:
        """Combine the branch with something, on top of what others commit to it meanwhile.

        The values in hand are held still, and an edit of one that is about to be replaced stops it.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            self._require_clean(operation)

            def combined() -> _T:
                staged = self._working.collect(self._tree)

                def landing(keys: Collection[str]) -> None:
                    if self._working.edited_meanwhile(staged, keys):
                        raise UncommittedChanges(operation)

                return combine(self._own_branch(), landing)

            try:
                return self._moved(combined)
            except RefMoved:
                if attempt == _ATTEMPTS:
                    raise
            self._go_to_newest()
        raise AssertionError("the last attempt returns or raises")

    def set_policy(self, prefix: str, policy: Policy | None) -> None:
        """Say how keys that begin with `prefix` are merged when both sides changed them; None: not at all.

        It is kept with the branch, and every process uses it, for commits that lost a race too; the longest
        prefix counts. A policy is one of

        - "ours", "theirs", "newest": the one side, the other, or the one whose commit is later;
        - "counter": a number, to which both sides' differences are added;
        - "union": a set, or a list as one, with what either side added and without what either removed;
        - "append": a list, text or bytes with what both sides appended, in the order of the commits; what a
          commit that lost a race appended goes behind all that the branch has by then;
        - "deep": a dict, merged by path; "text": a text, merged by lines;
        - a function of (base, ours, theirs), importable by others, that returns the merged value. It gets
          ABSENT for a side without the key, returns ABSENT to delete it, and raises if it cannot decide.
        """
        self._repo.policies.set(self._own_branch(), prefix, policy)

    def policies(self) -> dict[str, str]:
        """The merge policies of this branch, by prefix; a function by its name."""
        return self._repo.policies.read(self._own_branch())

    # Branches and tags

    def create_branch(self, name: str, at: Revision = "HEAD") -> Commit:
        """Make a branch at a revision, without going there; AlreadyExists if the name is taken.

        It gets this branch's merge policies.
        """
        return self._repo.create_branch(name, at, head=self._own_head(), like=self._branch)

    @alone
    def switch(self, name: str, *, create: bool = False) -> Commit | None:
        """Go to another branch, made here with `create`; a handle that follows HEAD takes HEAD along.

        Raises UncommittedChanges rather than lose any, NotFound with the branches there are.
        """
        check_ref_name(name)
        if name == self._branch:
            return self._head
        target, foreign = self._head, list[str]()
        if not create:
            self._require_clean("switch")
            target = self._trusted(self._repo.branch(name))
            # Found now, because nothing may fail once HEAD has moved.
            foreign = list(self._repo.diff(self._tree, target.tree))
        elif self._head is not None:
            self.create_branch(name)
        elif self._repo.refs.read(HEADS + name) is not None:
            # Nothing is committed here yet: the first commit will make the branch, so it must be free.
            raise AlreadyExists(f"there is a branch {name!r} already; switch to it without create", name=name)
        if self._follows_head:
            self._take_head_along(name, created=create)
        self._arrive(target, foreign, branch=name)
        return target

    def _take_head_along(self, name: str, *, created: bool) -> None:
        try:
            self._repo.refs.set_head(branch=name, action=f"switch: to {name}")
        except StorageError:
            if created and self._head is not None:
                with suppress(StorageError):
                    # The answer may be all that was lost: HEAD must not be left on a branch that is gone.
                    if self._repo.refs.head().branch != name:
                        ref, action = HEADS + name, "branch: not switched to"
                        self._repo.refs.compare_and_swap(
                            ref, expected=self._head.oid, new=None, action=action
                        )
            raise

    def branches(self) -> dict[str, Commit]:
        """The newest commit of each branch, by name."""
        return self._repo.branches()

    def delete_branch(self, name: str) -> Commit:
        """Delete a branch, whose reflog keeps its newest commit; not the one that this handle is on."""
        if name == self._branch:
            raise InvalidInput(f"this state is on branch {name!r}; switch to another before deleting it")
        return self._repo.delete_branch(name)

    def fork(self, name: str, at: Revision = "HEAD") -> Versioned:
        """A new branch at a revision, as a state of its own: "what if". Uncommitted changes stay here."""
        self._trusted(self.create_branch(name, at))
        forked = Versioned.__new__(Versioned)
        forked._open(self.store, name, self._repo.security)
        forked._owned = False
        return forked

    def tag(self, name: str, rev: Revision = "HEAD") -> Commit:
        """Name a revision for good; AlreadyExists if the name is taken."""
        return self._repo.create_tag(name, rev, head=self._own_head())

    def tags(self) -> dict[str, Commit]:
        """The commit of each tag, by name."""
        return self._repo.tags()

    def delete_tag(self, name: str) -> Commit:
        """Delete a tag; the commit stays."""
        return self._repo.delete_tag(name)
