"""Versioned: a branch that a program can write to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from functools import partial, wraps
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from vstate.arguments import check_flag, check_limit, check_state_key
from vstate.errors import (
    AlreadyExists,
    InvalidInput,
    NotFound,
    RefMoved,
    UncommittedChanges,
)
from vstate.kv.base import KVStore
from vstate.kv.memory import Memory
from vstate.kv.url import open_store
from vstate.objects.commit import Commit, Event
from vstate.repo.compare.diff import Diff
from vstate.repo.core import Revision
from vstate.repo.history import Log
from vstate.repo.names.dates import parse_ttl
from vstate.repo.names.refs import HEADS, Head, check_ref_name
from vstate.repo.repository import Repository
from vstate.repo.rules.policies import Policy
from vstate.repo.rules.security import Security
from vstate.repo.rules.signing import KeyToSign, KeyToTrust
from vstate.state.base import ATTEMPTS, Message, State
from vstate.state.closing import Leftovers
from vstate.state.committing import OnRace, commit, commit_now
from vstate.state.handle import Handle
from vstate.state.moving import arrive, begin_anew, go_to_newest, look_at_branch, move, moving, refresh
from vstate.state.namespace import Namespace
from vstate.state.snapshot import Snapshot
from vstate.state.transactions import Transaction, run_update

if TYPE_CHECKING:
    from vstate.objects.ids import ObjectId
    from vstate.repo.exchange.difference import TransferProgress
    from vstate.repo.exchange.sync import SyncReport
    from vstate.repo.merge.apply import BeforeMove, PolicyOption
    from vstate.repo.merge.three_way import MergeResult
    from vstate.repo.names.undo import Undo
    from vstate.repo.runs import RunInfo
    from vstate.repo.upkeep.erasing import EraseReport
    from vstate.repo.upkeep.reach import UpkeepProgress
    from vstate.repo.upkeep.selecting import Edit, Where
    from vstate.state.lease import Lease
    from vstate.state.run import Run
    from vstate.state.watching import Watch
    from vstate.viewer.exporting import Window

_P = ParamSpec("_P")
_T = TypeVar("_T")

_ATTEMPTS = 10


def alone(
    method: Callable[Concatenate[Versioned, _P], _T],
) -> Callable[Concatenate[Versioned, _P], _T]:
    """A method that waits until no other thread's transaction is open, and runs with the lock held."""

    @wraps(method)
    def call(self: Versioned, /, *args: _P.args, **options: _P.kwargs) -> _T:
        return self._handle.alone(method, self, *args, **options)

    return call


def _of_repository(method: Callable[Concatenate[Any, _P], _T]) -> Callable[Concatenate[Any, _P], _T]:
    """A method that calls the repository's one of the same name."""

    @wraps(method)
    def call(self: Any, /, *args: _P.args, **options: _P.kwargs) -> _T:
        return method(self.repo, *args, **options)

    return call


class Versioned(State):
    """A dict-like state whose commits are kept: `Versioned(store)` is a branch that you can write to.

    `store` is a KVStore, a path, a URL, or None for memory. `branch=None` follows the store's HEAD: "main"
    in a new store; a service names its branch instead. Every value that Python can pickle goes in; edits
    in place are committed too. Threads may share one handle; processes each open their own.

    Reading a value unpickles it, which can run code: open stores that you trust, or narrow that down.

    - `sign` is a key, or the path of its file, that signs every commit made here.
    - `trust` are public keys, your own among them. A commit is trusted if one of the keys signed it, or
      signed a commit that leads to it. Any other commit raises UntrustedCommit: it is not unpickled, and not
      built upon.
    - `allow` are the names that unpickling may import besides plain data, such as `["app.*", "numpy"]`;
      anything else raises CannotLoad.
    - `autocommit` commits the changes that are left at the end of the with block, at `close()`, or when the
      program ends. If the block raises, it commits nothing. SIGTERM and `os._exit` end a program before it
      can commit: see docs/concepts.md. Without `autocommit`, changes that are left then are lost, with an
      UncommittedWarning that names their keys.
    """

    _handle: Handle
    _leftovers: Leftovers

    def __init__(
        self,
        store: KVStore | str | PathLike[str] | None = None,
        *,
        branch: str | None = None,
        sign: KeyToSign | None = None,
        trust: Iterable[KeyToTrust] | KeyToTrust | None = None,
        allow: Iterable[str] | None = None,
        autocommit: bool = False,
    ) -> None:
        check_flag("autocommit", autocommit)
        security = Security(sign=sign, trust=trust, allow=allow)
        opened = open_store(store)
        try:
            in_memory = opened is not store and isinstance(opened, Memory)
            if branch is not None:
                check_ref_name(branch)
            repo, head = Repository.opened(opened, security, branch)
            self._open(repo, head, branch is None, autocommit=autocommit, in_memory=in_memory)
        except BaseException:
            if opened is not store:
                opened.close()
            raise
        self._owned = opened is not store

    def _open(
        self, repo: Repository, head: Head, follows_head: bool, *, autocommit: bool, in_memory: bool
    ) -> None:
        self._handle = Handle(repo, head, follows_head=follows_head)
        self._leftovers = Leftovers(self._handle, self, autocommit=autocommit, in_memory=in_memory)

    def close(self) -> None:
        """Close its watches, and the store if this handle opened it, and let go of all values.

        With `autocommit`, commit first: if that raises, nothing is closed. Otherwise uncommitted changes are
        lost, with an UncommittedWarning. It names the keys that were set, and those edited in place that a
        look of 5 ms finds, the values that were read last first.
        """
        self._close(None)

    def _close(self, error: BaseException | None) -> None:
        self._leftovers.settle(self, failed=error is not None, stacklevel=3)
        watches = list(self._handle.watches)
        for watch in watches:  # all of them first, because each close() waits for a look under way
            watch.end()
        for watch in watches:
            watch.close()
        for companion in self._handle.companions:
            companion.close()
        self._handle.close()
        if self._owned:
            self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(error)

    def _at_exit(self) -> None:
        self._leftovers.at_exit()

    # Where it is

    @property
    def repo(self) -> Repository:
        """The repository that the branch is in."""
        return self._handle.repo

    @property
    def store(self) -> KVStore:
        """The store that the bytes are in."""
        return self._handle.repo.store

    @property
    def head(self) -> Commit | None:
        """The commit that the next one is made on; None before the first."""
        return self._handle.head

    @property
    def branch(self) -> str | None:
        """The branch that `commit` moves; None when HEAD is detached."""
        return self._handle.branch

    def _title(self) -> str:
        return self._handle.title()

    # The mapping

    def __getitem__(self, key: str) -> Any:
        try:
            return self._handle.at.hot[key]
        except (KeyError, TypeError):
            pass  # read outside the handler: a missing key has one traceback
        return self._handle.read(key)

    def _ready(self, key: object, absent: Any) -> Any:
        return self._handle.at.hot.get(key, absent) if isinstance(key, str) else absent

    def _in_batches(self, keys: Iterable[str]) -> Iterator[Iterable[str]]:
        return self._handle.in_batches(keys)

    def __setitem__(self, key: str, value: Any) -> None:
        self._handle.write(key, value)

    def __delitem__(self, key: str) -> None:
        self._handle.delete(key)

    def __contains__(self, key: object) -> bool:
        if isinstance(key, str) and key in self._handle.at.hot:
            return True
        return self._handle.contains(key)

    def _scan(self, prefix: str, *, reverse: bool = False) -> Iterator[str]:
        return self._handle.scan(prefix, reverse=reverse)

    def _count(self, prefix: str) -> int:
        return self._handle.count(prefix)

    def _describe(self, key: str) -> str:
        return self._handle.describe(key)

    def namespace(self, name: str) -> Namespace:
        return Namespace(self, name)

    def expire(self, key: str, ttl: float | timedelta | None) -> None:
        self._handle.expire(key, ttl)

    def expires(self, key: str) -> datetime | None:
        found = self._handle.expires(key)
        return None if found is None else found.moment

    @alone
    def purge(self) -> Commit | None:
        """Commit the removal of expired keys on this branch, in a commit of its own; None if none has
        expired.

        It reads no value, and tries again when others commit meanwhile. Uncommitted changes here stay so. In
        a merge, a new value that somebody gave an expired key stays. Raises DetachedHead, StorageError.
        """
        from vstate.repo.merge.apply import purge  # late, for a quick `import vstate`

        handle = self._handle
        # If an exception comes in between, this state is where it would be if somebody else had purged.
        purged = purge(self.repo, handle.own_branch())
        if purged is None:
            return None
        before, commit = purged
        if before == handle.at.head:
            move(handle, commit, handle.at.branch)
        return commit

    # Committing

    @property
    def has_uncommitted(self) -> bool:
        return self._handle.has_uncommitted()

    def discard(self, *keys: str) -> None:
        """Forget the uncommitted changes, of these keys or of all. Recorded events stay.

        Raises UncommittedChanges for edited files of a Workspace: its `restore` throws them away.
        """
        self._handle.require_unedited("discard", keys)
        self._handle.discard(keys)

    def commit(
        self,
        /,
        message: str = "",
        *,
        keys: Iterable[str] | None = None,
        on_race: OnRace = "merge",
        **info: Any,
    ) -> Commit | None:
        """Commit all changes, in place or by key, and the recorded events; None if there are none.

        With `keys`, commit the changes of these keys, and the events. The changes of other keys stay
        uncommitted. KeyNotFound for a key that is neither here nor deleted here.

        `info` is plain data kept with the commit; InvalidInput for a name that is an argument elsewhere.

        If another writer moved the branch, vstate merges and keeps both changes, in a merge commit whose
        second parent is this change alone. Read the merged keys again. With `on_race="raise"`, it raises
        RefMoved instead.

        Raises MergeConflict for a key that both changed, if the branch has no policy for it, RefMoved if
        `head` is no longer in the history of the branch (`refresh` first), Unpicklable naming every value
        that cannot be stored, DetachedHead, StorageError. If it raises, nothing was committed and everything
        is still staged, unless a StorageError says `outcome_unknown`: then the next call finds out, and
        `head` tells.
        """
        return commit(self._handle, message, info, on_race=on_race, keys=keys)

    def transaction(self, message: str = "", **info: Any) -> AbstractContextManager[Self]:
        """Commit at the end of the with block; on an exception discard the changes made inside.

        Inside another transaction, or a task, the outer one commits. Transactions of several threads on one
        handle follow one another. A failing transaction discards every change made on the handle since it
        began, so give independent work handles of its own.
        """
        return Transaction(self._handle, self, message, info)

    def _update(
        self, function: Callable[[], object], *, attempts: int = ATTEMPTS, message: Message = "", **info: Any
    ) -> Commit | None:
        return run_update(self._handle, function, attempts=attempts, message=message, **info)

    # Other processes

    @alone
    def refresh(self) -> Commit | None:
        """Load the commits of other processes on the branch; uncommitted changes stay staged on top.

        Raises MergeConflict, and changes nothing, if they changed a key that is changed here too. A handle
        that follows HEAD goes to the branch that HEAD is on now; UncommittedChanges if that would lose some.
        """
        return refresh(self._handle)

    def _watch(self, prefix: str, pattern: str, since: Revision | None) -> Watch:
        from vstate.state.watching import Watch  # late, for a quick `import vstate`

        handle = self._handle
        seen = handle.head if since is None else handle.trusted(handle.resolve(since))
        watch = Watch(self.repo, handle.own_branch(), pattern, seen, prefix=prefix)
        handle.watches.add(watch)
        return watch

    def lease(self, name: str, ttl: float | timedelta = 30, *, wait: float | None = None) -> Lease:
        """A lease, to be entered by `with`: nobody else holds one of that name in this store meanwhile.

        The state stays at its commit: call `refresh` first thing, to see what the holder before committed.
        A thread renews it. If this process stops for longer than `ttl`, or dies, another holder may take it
        over; `lease.commit` then raises LeaseLost and commits nothing. `lease.fence` is a fencing token: a
        number that grows with each holder. Entering waits `wait` seconds for another holder, None for ever, 0
        not at all, and then raises LeaseHeld, which names the holder. InvalidInput for a `ttl` below a tenth
        of a second. The lease of a dead holder is free once its row has not changed for its `ttl` and a tenth
        more, by the waiting process's own clock: no clocks of different machines are compared.
        """
        from vstate.state.lease import Lease  # late, for a quick `import vstate`

        return Lease(self._handle, name, ttl=parse_ttl(ttl), wait=wait)

    # Runs

    def run(
        self, name: str, *, of: str | None = None, ttl: float | timedelta = 30, wait: float | None = None
    ) -> Run:
        """A run, to be entered by `with`: steps that are done once, whatever happens to this program.

        The same name again goes on: `run.step(function, …)` gives the result that is recorded. Its records
        lie on the branch `runs/<name>`, which no verb moves that moves this one. A run that began on another
        branch is another run, `<name>@<branch>`, and a ForkedRunWarning says so. With the name of that branch
        as `of` it is the same run.

        Entering waits as that of a lease does, whose `ttl` and `wait` these are; LeaseHeld. It goes to the
        newest commit of the branch. Raises UncommittedChanges, DetachedHead.
        """
        from vstate.state.run import Run  # late, for a quick `import vstate`

        return Run(self._handle, name, of=of, ttl=parse_ttl(ttl), wait=wait)

    def runs(self) -> list[RunInfo]:
        """The runs of the store, the newest first: their steps, and those whose effect is unknown."""
        from vstate.repo.runs import list_runs  # late, for a quick `import vstate`

        return list_runs(self.repo)

    # History

    def log(
        self,
        rev: Revision = "HEAD",
        *,
        since: Revision | None = None,
        key: str | None = None,
        limit: int | None = None,
        first_parent: bool = False,
    ) -> Log:
        """An iterator of the commits from `rev` back, newest first; with `key`, only those that changed it.

        With `since`, only the commits that are new since that commit: neither it nor an ancestor of it. On a
        server they come in a few round trips. With `first_parent`, it follows only the first parent of a
        merge: the branch as it was, without the commits that merges brought in. Empty before the first
        commit; NotFound for a revision that does not exist.
        """
        check_limit(limit)
        if rev == "HEAD" and self.head is None:
            return Log(lambda: iter(()))
        key = None if key is None else check_state_key(key)
        head = self._handle.own_head()
        return self.repo.log(rev, since=since, key=key, limit=limit, first_parent=first_parent, head=head)

    def merge_base(self, one: Revision, other: Revision = "HEAD") -> Commit | None:
        """The newest common ancestor of two revisions, where a merge of them begins; None if they have none.

        Raises NotFound for a revision that does not exist.
        """
        return self.repo.merge_base(one, other, self._handle.own_head())

    def checkout(self, rev: Revision) -> Snapshot:
        """The state at a revision, to look at: a read-only mapping. This state does not move."""
        return Snapshot(self.repo, self._handle.trusted(self._handle.resolve(rev)))

    def inert(self, key: str) -> Any:
        """The committed value of a key as data, as `Snapshot.inert` reads it at HEAD."""
        return self.checkout("HEAD").inert(key)

    def status(self) -> Diff:
        """The Diff of HEAD to the working state: the changes that `commit` would commit."""
        return self._handle.diff(None, None)

    def diff(self, old: Revision | None = None, new: Revision | None = None) -> Diff:
        """The keys that differ: HEAD to the working state, `old` to the working state, or `old` to `new`.

        The working state has no expired keys. Since `old` they count as removed; since HEAD they do not,
        because no commit is due for them.
        """
        return self._handle.diff(old, new)

    def blame(self, key: str, path: str | None = None) -> Commit:
        """The commit that last changed the key, or the part of its value at `path`, as seen from HEAD.

        The path is written as `diff.details` prints it, `messages[3].content`. Uncommitted changes do not
        count, and nothing is unpickled. Raises KeyNotFound, and NotFound for a path that leads nowhere.
        """
        return self.repo.blame("HEAD", check_state_key(key), path, head=self._handle.own_head())

    def view(self, rev: str | None = None, *, height: int = 640) -> Window:
        """The history up to `rev`, by default up to HEAD, as a page in the output of a notebook's cell.

        A range such as v1..main is possible. The page has the newest 200 commits of it, with the values that
        they changed, and without uncommitted changes. The page is sandboxed, and no value is unpickled.
        `height` is in pixels. For a whole history, run `vstate view`.
        """
        from vstate.viewer.exporting import Window  # late: only a notebook asks

        if rev is None:
            head = self.head
            if head is None:
                raise NotFound("there is no commit to view yet: commit first")
            rev = head.id
        return Window(self.repo, rev, height=height)

    def bisect(
        self, predicate: Callable[[Snapshot], object], good: Revision, bad: Revision = "HEAD"
    ) -> Commit:
        """The first commit at which `predicate` is false, found in about log2 as many tests as commits.

        The predicate gets the Snapshot of a commit. It must be true at `good`, and false at `bad`, a later
        commit. Raises InvalidInput otherwise.
        """
        return self.repo.bisect(
            lambda commit: predicate(self.checkout(commit)), good, bad, head=self._handle.own_head()
        )

    # Moving the branch

    @alone
    def rollback(self, rev: Revision | None = None, *, steps: int = 1, message: str = "") -> Commit:
        """Give the state the contents of `rev`, or of `steps` commits ago, as a new commit on top.

        Another `rollback()` goes further back: a rollback counts as the commit that it went back to. Nothing
        is lost: uncommitted changes are committed first, on their own, and the commits between
        stay in the history. Raises DetachedHead, NotFound, RefMoved.
        """
        if rev is not None and steps != 1:
            raise InvalidInput("rollback takes a revision, or a number of steps, not both")
        handle = self._handle
        branch = handle.own_branch()
        target = handle.resolve("HEAD" if rev is None else rev)
        if rev is None:
            target = self.repo.steps_back(target, steps)
        handle.trusted(target)
        commit_now(handle, "Before rollback", {})
        return self._go(
            target, lambda: self.repo.rollback(branch, target, message=message, seen=handle.at.head)
        )

    @alone
    def reset(self, rev: Revision) -> Commit:
        """Move the branch itself to `rev`; uncommitted changes and recorded events are gone.

        The old head stays in the branch's reflog. Raises DetachedHead, NotFound, RefMoved, and
        UncommittedChanges for edited files of a Workspace.
        """
        handle = self._handle
        branch, old = handle.own_branch(), handle.at.head
        target = handle.trusted(handle.resolve(rev))
        handle.require_unedited("reset")

        def look() -> None:
            if old != target and self.repo.refs.read(HEADS + branch) == target.oid:
                begin_anew(handle, target)
            else:
                look_at_branch(self._handle)

        moving(handle, lambda: self.repo.move_branch(branch, target, seen=old), look=look)
        begin_anew(handle, target)
        return target

    @alone
    def erase(
        self,
        *keys: str,
        all_branches: bool = False,
        path: str | None = None,
        where: Where | None = None,
        edit: Edit | None = None,
        events: bool | Callable[[Event], object] = False,
        dry_run: bool = False,
        progress: UpkeepProgress | None = None,
    ) -> EraseReport:
        """Remove keys, or parts of their values, from every commit of this branch or of `all_branches`.

        No byte of them stays in the store, and this state goes to the new head of its branch. The arguments
        are those of `Repository.erase`. Raises UncommittedChanges and DetachedHead, with nothing changed.
        """
        handle = self._handle
        branch = handle.own_branch()
        handle.require_clean("erase")

        erased = partial(
            self.repo.erase,
            *keys,
            branch=None if all_branches else branch,
            all_branches=all_branches,
            path=path,
            where=where,
            edit=edit,
            events=events,
            dry_run=dry_run,
            progress=progress,
        )
        if dry_run:
            return erased()
        report = moving(handle, erased)
        go_to_newest(handle)
        handle.at = handle.at.moved(pending=None)
        return report

    def undo(self, *, steps: int = 1) -> Commit:
        """Put the branch where it was before its last `steps` moves, of whatever kind; nothing is lost.

        Undoing twice goes two moves back, `redo` forward again; the reflog has all moves. Raises
        UncommittedChanges, DetachedHead, InvalidInput if there is nothing to undo, and RefMoved.
        """
        return self._move_back(
            "undo", lambda branch: self.repo.find_undo(branch, steps=steps, seen=self._handle.at.head)
        )

    def redo(self) -> Commit:
        """Take back the last undo, if nothing else has moved the branch since; raises as `undo` does."""
        return self._move_back("redo", lambda branch: self.repo.find_redo(branch, seen=self._handle.at.head))

    @alone
    def _move_back(self, operation: str, find: Callable[[str], Undo]) -> Commit:
        branch = self._handle.own_branch()
        self._handle.require_clean(operation)
        found = find(branch)
        return self._go(self._handle.trusted(found.new), lambda: self.repo.carry_out(found))

    def _go(self, target: Commit, move: Callable[[], Commit]) -> Commit:
        """Move the branch to a commit with the contents of `target`, and this state with it."""
        handle = self._handle
        # Found before the move: nothing may fail once the branch has moved.
        moved = list(self.repo.diff(handle.tree, target.root))
        commit = moving(handle, move)
        arrive(handle, commit, moved, branch=handle.at.branch)
        return commit

    # Merging

    @alone
    def merge(
        self, rev: Revision, *, policy: PolicyOption = None, message: str = "", fast_forward: bool = True
    ) -> MergeResult:
        """Merge `rev` into this branch, three-way by key from the merge base.

        A key that one side changed is taken from there. A key that both changed is resolved by its policy:
        `policy` is one for all keys, or a mapping by prefix that goes before the branch's own (`set_policy`).
        Raises MergeConflict, whose `conflicts` have base, ours and theirs for each key that is left, and
        UncommittedChanges; nothing has changed then. If this branch has no commit that `rev` lacks, it moves
        to `rev`; with `fast_forward=False` it gets a merge commit then too.
        """
        # Resolved once: another commit may be HEAD by the time that this one is merged.
        theirs, name = self._handle.trusted(self._handle.resolve(rev)), rev if isinstance(rev, str) else None
        return self._merge(theirs, name, policy, message, fast_forward)

    def _merge(
        self,
        theirs: Commit,
        name: str | None,
        policy: PolicyOption,
        message: str,
        fast_forward: bool = True,
    ) -> MergeResult:
        handle = self._handle
        result = self._combine(
            "merge",
            lambda branch, before_move: self.repo.merge(
                branch,
                theirs,
                policy=policy,
                message=message,
                seen=handle.at.head,
                name=name,
                fast_forward=fast_forward,
                before_move=before_move,
            ),
        )
        arrive(handle, result.commit or handle.at.head, result.merged_keys, branch=handle.at.branch)
        return result

    def cherry_pick(self, rev: Revision, *, policy: PolicyOption = None, message: str = "") -> Commit | None:
        """Commit here the changes of the commit `rev` against its first parent; None if they are here
        already.

        Raises MergeConflict and UncommittedChanges as `merge` does.
        """
        return self._pick("cherry_pick", self.repo.cherry_pick, rev, policy, message)

    def revert(self, rev: Revision, *, policy: PolicyOption = None, message: str = "") -> Commit | None:
        """Commit the opposite of the changes of the commit `rev`; None if they are not here.

        Raises MergeConflict and UncommittedChanges as `merge` does.
        """
        return self._pick("revert", self.repo.revert, rev, policy, message)

    @alone
    def _pick(
        self,
        operation: str,
        pick: Callable[..., Commit | None],
        rev: Revision,
        policy: PolicyOption,
        message: str,
    ) -> Commit | None:
        handle = self._handle
        picked = handle.trusted(handle.resolve(rev))
        commit = self._combine(
            operation,
            lambda branch, before_move: pick(
                branch, picked, policy=policy, message=message, seen=handle.at.head, before_move=before_move
            ),
        )
        moved = [] if commit is None else list(self.repo.diff(handle.tree, commit.root))
        arrive(handle, commit or handle.at.head, moved, branch=handle.at.branch)
        return commit

    def _combine(self, operation: str, combine: Callable[[str, BeforeMove], _T]) -> _T:
        """Combine the branch with other commits, on top of the commits that others make meanwhile.

        An edit in place of a value that is about to be replaced stops it.
        """
        handle = self._handle
        for attempt in range(1, _ATTEMPTS + 1):
            handle.require_clean(operation)

            def combined() -> _T:
                plan = handle.compare()

                def before_move(keys: Collection[str]) -> None:
                    if handle.edited(plan, keys):
                        raise UncommittedChanges(operation)

                return combine(handle.own_branch(), before_move)

            try:
                return moving(handle, combined)
            except RefMoved:
                if attempt == _ATTEMPTS:
                    raise
            go_to_newest(self._handle)
        raise AssertionError("the last attempt returns or raises")

    def set_policy(self, prefix: str, policy: Policy | None) -> None:
        """Say how keys that begin with `prefix` are merged when both sides changed them; None: not at all.

        The policy is kept with the branch. Every process uses it, for commits that lost a race too; the
        longest prefix counts. A policy is one of

        - "ours", "theirs", "newest": one side, the other, or the side whose commit is later;
        - "counter": a number, to which the differences of both sides are added;
        - "union": a set, or a list as one, with the additions of both sides and without the removals of
          either;
        - "append": a list, text or bytes with the additions of both sides at its end, in the order of the
          commits; if two commits race, the loser's additions come last;
        - "deep": a dict or an object, merged by path: by the entries of dicts and the fields of objects;
        - "text": a text, merged by lines;
        - a function of (base, ours, theirs), importable by others, that returns the merged value. It gets
          ABSENT for a side without the key, returns ABSENT to delete the key, and raises if it cannot decide.
          It is not called if both sides have the same value.

        Raises InvalidInput for a function that other programs cannot import: a lambda, a closure, a method of
        an object, a function of `__main__`.
        """
        self.repo.policies.set(self._handle.own_branch(), prefix, policy)

    def policies(self) -> dict[str, str]:
        """The merge policies of this branch, by prefix; a function by its name."""
        return self.repo.policies.read(self._handle.own_branch())

    # Other stores

    def pull(
        self,
        store: KVStore | str | PathLike[str] | None = None,
        *,
        policy: PolicyOption = None,
        message: str = "",
        progress: TransferProgress | None = None,
    ) -> MergeResult:
        """Fetch this branch from another store, and merge it into this state as `merge` does.

        `store` is a store, the name of a remote, a path or URL, or None for the remote `origin`. Raises
        NotFound if the branch is not there, MergeConflict and UncommittedChanges as `merge` does: the fetched
        commits stay then, as `origin/main`. Raises Diverged if the branch there was reset or squashed, so
        that a merge would bring back what it dropped, or has no history in common with this one.
        """
        from vstate.repo.exchange import sync  # late, for a quick `import vstate`

        branch = self._handle.own_branch()
        self._handle.require_clean("pull")
        # Outside of the lock, because fetching takes long: other threads go on meanwhile.
        _, result = sync.pull(
            self.repo,
            store,
            branch,
            lambda commit, name: self._merge_fetched(commit, name, policy, message),
            remote=None,
            progress=progress,
        )
        if self.head is None:
            self._go_to_fetched()
        return result

    @alone
    def _merge_fetched(self, commit: ObjectId, name: str, policy: PolicyOption, message: str) -> MergeResult:
        return self._merge(self._handle.trusted(self._handle.resolve(commit)), name, policy, message)

    @alone
    def _go_to_fetched(self) -> None:
        if self._handle.at.head is None:
            go_to_newest(self._handle)

    def push(
        self,
        store: KVStore | str | PathLike[str] | None = None,
        *,
        force: bool = False,
        create: bool = False,
        progress: TransferProgress | None = None,
    ) -> SyncReport:
        """Bring this branch to another store, given as for `pull`; uncommitted changes stay here.

        Raises Diverged if the branch there has commits that this one lacks: `pull` first. See `repo.push`,
        which also brings other branches, and tags.
        """
        return self.repo.push(store, self._handle.own_branch(), force=force, create=create, progress=progress)

    # Branches and tags

    def create_branch(self, name: str, at: Revision = "HEAD") -> Commit:
        """Make a branch at a revision, without going there; AlreadyExists if the name is taken.

        It gets this branch's merge policies and labels.
        """
        return self.repo.create_branch(name, at, head=self._handle.own_head(), like=self._handle.branch)

    @alone
    def switch(self, name: str, *, create: bool = False) -> Commit | None:
        """Go to another branch, made here with `create`; a handle that follows HEAD takes HEAD along.

        Raises UncommittedChanges rather than lose any, NotFound with the existing branches, AlreadyExists.
        """
        handle, repo = self._handle, self.repo
        check_ref_name(name)
        target, old, moved = handle.at.head, handle.at.branch, list[str]()
        if name == old:
            return target
        if not create:
            handle.require_clean("switch")
            target = handle.trusted(repo.branch(name))
            # Found before the move: nothing may fail once HEAD has moved.
            moved = list(repo.diff(handle.tree, target.root))
        elif target is not None:
            self._create_to_switch(name, target)
        elif repo.refs.read(HEADS + name) is not None:
            # Nothing is committed here yet: the first commit makes the branch, so the name must be free.
            raise AlreadyExists(f"there is a branch {name!r} already; switch to it without create", name=name)

        def look() -> None:
            if repo.refs.head().branch == name:
                arrive(handle, target, moved, branch=name)
            else:
                handle.at = handle.at.moved(pending=None)

        if handle.follows_head:
            born = target is not None
            moving(handle, lambda: repo.take_head(name, "switch", existing=born), look=look)
        arrive(handle, target, moved, branch=name)
        handle.created = None
        return target

    def _create_to_switch(self, name: str, target: Commit) -> None:
        """Make a branch here; a branch that an earlier call made, whose outcome it did not see, is taken."""
        handle = self._handle
        made = name, target.oid
        if handle.created == made and self.repo.refs.read(HEADS + name) == target.oid:
            return
        handle.created = made
        try:
            self.create_branch(name)
        except AlreadyExists:
            handle.created = None
            raise
        except NotFound:
            raise NotFound(
                f"gc has removed commit {target.short}, which the changes were made on, with its branch: "
                "open the state again, and make them there; status() names them",
                name=target.id,
            ) from None

    branches = _of_repository(Repository.branches)
    branch_names = _of_repository(Repository.branch_names)
    tags = _of_repository(Repository.tags)
    delete_tag = _of_repository(Repository.delete_tag)

    def delete_branch(self, name: str, *, forget: bool = False) -> Commit:
        """Delete a branch, whose reflog keeps it for 30 days; not the branch that this handle is on.

        With `forget`, its reflog and every object that nothing else leads to are gone too when this returns.
        `Repository.delete_branch` says more, also about stores without transactions.
        """
        if name == self.branch:
            raise InvalidInput(f"this state is on branch {name!r}; switch to another before deleting it")
        return self.repo.delete_branch(name, forget=forget)

    def fork(self, name: str, at: Revision = "HEAD") -> Versioned:
        """A new branch at a revision, as a state of its own: "what if". Uncommitted changes stay here."""
        self._handle.trusted(self.create_branch(name, at))
        forked = Versioned.__new__(Versioned)
        ends = self._leftovers
        # With the same repository: a merge finds in memory all that the fork has committed.
        head = Head(name, self.repo.refs.read(HEADS + name))
        forked._open(self.repo, head, False, autocommit=ends.autocommit, in_memory=ends.in_memory)
        forked._owned = False
        return forked

    def tag(self, name: str, rev: Revision = "HEAD") -> Commit:
        """Name a revision for good; AlreadyExists if the name is taken."""
        return self.repo.create_tag(name, rev, head=self._handle.own_head())
