"""Repository: every operation on one store. The command line and `Versioned` stand on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from os import PathLike
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from vstate.arguments import check_flag, check_seconds
from vstate.errors import CorruptObject, DetachedHead, InvalidInput
from vstate.forks import cached_property
from vstate.kv.base import OBJECT_PREFIX
from vstate.objects.commit import Commit, Event
from vstate.objects.ids import ObjectId
from vstate.repo.core import Core, Guard, Revision
from vstate.repo.names.refs import Head
from vstate.repo.rules.labels import Label
from vstate.repo.sweeps import retries_after_sweep, retry_after_sweep
from vstate.repo.writing import BranchChanges, commit_many
from vstate.spans import Attributes, spanned

if TYPE_CHECKING:
    from vstate.kv.base import KVStore
    from vstate.repo.exchange.bundle import BundleReport, File
    from vstate.repo.exchange.difference import TransferProgress
    from vstate.repo.exchange.sync import SyncReport
    from vstate.repo.merge.apply import BeforeMove, PolicyOption
    from vstate.repo.merge.three_way import MergeResult
    from vstate.repo.names.remotes import Remotes
    from vstate.repo.names.undo import Undo
    from vstate.repo.rules.keeps import Keep
    from vstate.repo.search.bisection import Report
    from vstate.repo.search.blame import Blamed
    from vstate.repo.search.classes import Named
    from vstate.repo.upkeep.erasing import EraseReport
    from vstate.repo.upkeep.fsck import FsckReport
    from vstate.repo.upkeep.gc import GcReport
    from vstate.repo.upkeep.reach import UpkeepProgress
    from vstate.repo.upkeep.selecting import Edit, Where


_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Repository(Core):
    """A `Core` and the operations on it. Each operation takes the core, and none imports this class.

    Operations are imported in the method that needs them, for a quick `import vstate`.
    """

    @cached_property
    def remotes(self) -> Remotes:
        """The other stores that this one knows by name."""
        from vstate.repo.names.remotes import Remotes

        return Remotes(self.store)

    def _bring(self, room: int, oid: ObjectId) -> Mapping[str, bytes | None]:
        from vstate.repo.exchange.transfer import Copied, Transfer

        def copy() -> Copied:
            # Through its own room alone: where histories end there is nothing to the others.
            found = 0 if self.rooms is None else self.rooms.room_of_object(OBJECT_PREFIX + oid.hex())
            source = self.room(found)
            return Transfer(source, self.room(room), source, lambda step, count, total: None).copy(oid)

        try:
            copied = retry_after_sweep(self.room(room), copy)  # whose sweep the copy has for a condition
        except CorruptObject:
            self.require_stored(oid)  # it may have been forgotten meanwhile
            raise
        return {**copied.ends.rows, **dict.fromkeys(copied.arrived)}

    # Search

    @retries_after_sweep
    def blame(
        self,
        rev: Revision,
        key: str,
        path: str | None = None,
        *,
        head: Head | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Commit:
        """The commit that last changed the key, or the part of its value at `path`, as seen from `rev`.

        The path is written as `details` prints it, `messages[3].content`; "" is the whole value. An item of
        a list keeps its commit when other items are inserted or removed before it: lists are aligned from
        one version to the next. A merge that took the key, or the part, from a parent did not change it.

        Reads only the versions of that one key that differ; runs no stored code. A part of an older version
        that cannot be read counts as different. Raises KeyNotFound, which names the commit that removed the
        key, NotFound if nothing is at the path, and InvalidInput for a malformed path.
        """
        from vstate.repo.search.blame import blame

        return blame(self, self.resolve(rev, head=head), key, path, progress=progress)

    @retries_after_sweep
    def find_named(
        self, rev: Revision = "HEAD", *, progress: Callable[[int], None] | None = None
    ) -> list[Named]:
        """The classes and functions that values name, from `rev` back, with the commits that stored them.

        Nothing is imported, and nothing is unpickled. Values of more than 64 MiB are left out.
        """
        from vstate.repo.search.classes import find_named

        return find_named(self, self.resolve(rev), progress)

    @retries_after_sweep
    def blame_items(
        self,
        rev: Revision,
        key: str,
        path: str = "",
        *,
        progress: Callable[[int], None] | None = None,
        seconds: float | None = None,
    ) -> list[Blamed]:
        """For each element of the key's value at `rev`, the commit that last changed it, in one walk.

        The elements are the lines of a text, the entries of a dict, the items of a list, the members of a
        set, the fields of an object. Any other value is one element itself. With `path`, they are those of
        the part that it leads to. Items of lists and lines are aligned from one version to the next, see
        `vstate.repo.search.blame.align`. Raises InvalidInput if there is an element without a commit after
        about so many `seconds`. Otherwise as `blame`.
        """
        from vstate.repo.search.blame import blame_items

        return blame_items(self, self.resolve(rev), key, path, progress=progress, seconds=seconds)

    @retries_after_sweep
    def bisect(
        self,
        predicate: Callable[[Commit], object],
        good: Revision,
        bad: Revision = "HEAD",
        *,
        head: Head | None = None,
        report: Report | None = None,
    ) -> Commit:
        """The first commit for which `predicate`, true at good commits, is false: its parents are all good.

        Assumes that every commit after a bad one is bad. Tests `good` and `bad`, and then about log2 of the
        commits between. At a merge, the search goes on in the parent that is bad. No commit is tested
        twice. Raises InvalidInput if `good` is not good, `bad` is not bad, or `good` is not before `bad`.
        """
        start, end = self.resolve(good, head=head), self.resolve(bad, head=head)
        from vstate.repo.search import bisection

        return bisection.bisect(self.objects, self.history, predicate, start, end, report=report)

    # Changes of a branch

    def commit(
        self,
        branch: str,
        *,
        set: Mapping[str, Any] = _NOTHING,
        delete: Iterable[str] = (),
        events: Iterable[Event] = (),
        expire: Mapping[str, float | timedelta] = _NOTHING,
        expect: Commit | Literal["anywhere"] | None = "anywhere",
        labels: Mapping[str, Label] | None = None,
        message: str = "",
        info: Mapping[str, Any] | None = None,
        guard: Guard | None = None,
    ) -> Commit | None:
        """Commit values to a branch without a working tree; None if there is no change and no event.

        `set` has the new values by key. They are pickled now and never compared again. `delete` names keys
        to remove; an absent one is no error. A branch that does not exist is created. `expire` gives keys of
        `set` a time to live, in seconds. Make an event with `Event.now`.

        `expect` is the commit that the branch must be at, None for a branch that must not exist: RefMoved
        if it is elsewhere. By default the changes go on top of its newest commit, wherever that is, and
        nothing is merged: a key that another writer changed gets the value from `set`. With a lease as
        `guard` the commit lands only while the lease is held, or else raises LeaseLost.

        `labels` replaces the labels of the branch, by which `branch_names` finds it: a few texts and numbers
        by name, or lists of these. They belong to the branch, not to its history: a reset leaves them. A
        commit with labels is made even if nothing else changes. A store without transactions writes them
        right before the branch moves, so a commit that fails there may have changed them.

        Raises Unpicklable, which names each value that cannot be stored. After StoreUnavailable with
        `outcome_unknown`, a commit that was made with `expect` may be made again: it never lands twice.
        """
        changes = BranchChanges(
            branch,
            set=set,
            delete=delete,
            events=events,
            expire=expire,
            expect=expect,
            labels=labels,
            message=message,
            info=info,
        )
        return commit_many(self, [changes], guard)[0]

    def commit_many(
        self, changes: Iterable[BranchChanges], *, guard: Guard | None = None
    ) -> list[Commit | None]:
        """Commit to several branches in one transaction: all of the commits land, or none.

        Each `BranchChanges` has the arguments of `commit` for its branch, each with its own `expect`. The
        result has a commit, or None for no change, for each of them, in order. If one branch is not where it
        is expected, RefMoved names that branch and nothing is written. Without `expect` the changes go on
        top of the newest commits of all the branches, as they were at one moment. A branch that gets no
        commit counts too: the others land only if it has not moved meanwhile.

        Otherwise as `commit`. A store without transactions, such as S3, takes changes of one branch only:
        it raises InvalidInput for more, and writes nothing.
        """
        return commit_many(self, changes, guard)

    @spanned("merge", lambda result, *_, **__: _merged(result))
    @retries_after_sweep
    def merge(
        self,
        branch: str,
        rev: Revision,
        *,
        policy: PolicyOption = None,
        message: str = "",
        seen: Commit | None = None,
        name: str | None = None,
        fast_forward: bool = True,
        before_move: BeforeMove = None,
    ) -> MergeResult:
        """Merge `rev` into the branch: a three-way merge by key, from the merge base.

        A key that one side changed is taken from that side. A key that both changed is resolved by its
        policy. `policy` is one for all keys, or a mapping by prefix that overrides the branch's own. Raises
        MergeConflict for unresolved keys, and RefMoved as `rollback` does; the branch is unchanged then.
        `name` stands for `rev` in the commit's message. Without `fast_forward`, a branch that is behind
        `rev` gets a merge commit too.
        """
        from vstate.repo.merge import apply

        check_flag("fast_forward", fast_forward)
        return apply.merge(
            self,
            branch,
            rev,
            policy=policy,
            message=message,
            seen=seen,
            name=name,
            fast_forward=fast_forward,
            before_move=before_move,
        )

    @retries_after_sweep
    def cherry_pick(
        self,
        branch: str,
        rev: Revision,
        *,
        policy: PolicyOption = None,
        message: str = "",
        seen: Commit | None = None,
        before_move: BeforeMove = None,
    ) -> Commit | None:
        """Commit the changes that `rev` made to its first parent to the branch; None if there are none.

        Raises MergeConflict and RefMoved as `merge` does.
        """
        from vstate.repo.merge import apply

        return apply.apply_changes(
            self,
            branch,
            rev,
            backwards=False,
            policy=policy,
            message=message,
            seen=seen,
            before_move=before_move,
        )

    @retries_after_sweep
    def revert(
        self,
        branch: str,
        rev: Revision,
        *,
        policy: PolicyOption = None,
        message: str = "",
        seen: Commit | None = None,
        before_move: BeforeMove = None,
    ) -> Commit | None:
        """Commit the opposite of the changes of `rev` to the branch; None if nothing is left to revert.

        Raises MergeConflict and RefMoved as `merge` does.
        """
        from vstate.repo.merge import apply

        return apply.apply_changes(
            self,
            branch,
            rev,
            backwards=True,
            policy=policy,
            message=message,
            seen=seen,
            before_move=before_move,
        )

    @retries_after_sweep
    def restore(
        self,
        branch: str,
        rev: Revision,
        keys: Iterable[str],
        *,
        message: str = "",
        seen: Commit | None = None,
    ) -> Commit | None:
        """Commit to the branch the values that these keys have at `rev`; None if it has them already.

        NotFound for a key that `rev` lacks, and RefMoved as `rollback` raises it.
        """
        from vstate.repo.merge import apply

        return apply.restore(self, branch, rev, keys, message=message, seen=seen)

    @retries_after_sweep
    def undo(self, branch: str, *, steps: int = 1, seen: Commit | None = None) -> Commit:
        """Put the branch where it was before its last `steps` moves by its reflog; nothing is lost.

        A move is anything that put the branch elsewhere: a commit, a merge, a reset, a rollback. A move
        that was undone is skipped, so undoing twice goes two moves back; `redo` reverses the last undo.
        Raises InvalidInput if there is nothing to undo, NotFound if gc has removed the older commit, and
        RefMoved if another writer moved the branch meanwhile, or since it was at `seen`.
        """
        return self.carry_out(self.find_undo(branch, steps=steps, seen=seen))

    @retries_after_sweep
    def redo(self, branch: str, *, seen: Commit | None = None) -> Commit:
        """Reverse the last undo of the branch, unless the branch has moved since; raises as `undo` does."""
        return self.carry_out(self.find_redo(branch, seen=seen))

    @retries_after_sweep
    def find_undo(self, branch: str, *, steps: int = 1, seen: Commit | None = None) -> Undo:
        """The move that `undo` would make."""
        from vstate.repo.names.undo import find_undo

        return find_undo(self.objects, self.refs, branch, self.branch_at(branch, seen), steps)

    @retries_after_sweep
    def find_redo(self, branch: str, *, seen: Commit | None = None) -> Undo:
        """The move that `redo` would make."""
        from vstate.repo.names.undo import find_redo

        return find_redo(self.objects, self.refs, branch, self.branch_at(branch, seen))

    @retries_after_sweep
    def carry_out(self, found: Undo) -> Commit:
        """Make the move that `find_undo` or `find_redo` found; the branch's new commit."""
        self.swap_branch(found.branch, found.old, found.new, action=found.action)
        return found.new

    # Upkeep

    def delete_branch(self, name: str, *, forget: bool = False, seen: Commit | None = None) -> Commit:
        """Delete a branch other than HEAD's; its newest commit, which the reflog keeps for 30 days.

        With `forget`, the reflog goes too, and so does every object that no other branch, tag, HEAD or reflog
        leads to. Commits that reach the branch meanwhile go with it; with `seen`, RefMoved unless it is there
        still. A handle that is still on the branch gets RefMoved from its next commit. The branch goes with
        its reflog in one transaction, which also deletes its room if nothing else is there. Otherwise the
        garbage of the room goes next, a thousand objects at a time, and the call takes as long as a `gc` of
        that room. An interrupted call leaves the branch as it was, or it leaves garbage, which the next `gc`
        removes. See `docs/architecture.md`.

        A store without transactions, such as S3, leaves the objects to `gc`. One run finds them, and the
        first run after its `grace`, an hour by default, removes them. Raises CorruptObject, and removes
        nothing, if reachable objects are damaged.
        """
        if not forget:
            return super().delete_branch(name, seen=seen)
        from vstate.repo.upkeep import forgetting

        return forgetting.forget(self, name, seen)

    @retries_after_sweep
    def squash(self, branch: str, *, keep: int = 0, message: str = "", seen: Commit | None = None) -> Commit:
        """Fold the history of a branch into one commit, below its newest `keep` commits; its newest commit.

        All in one move of the branch. The new root has the values of the commit that it stands for, and
        `squashed` in its info names that one; the events up to there are left out. The newest commits, along
        first parents, are made again on top with their times, messages, info and events, and have new ids.
        A branch that is short enough stays. The reflog keeps the old history until `gc` removes it.

        A handle whose changes stand on the old history gets RefMoved from its commit, so the history does not
        come back. Commits that reach the branch meanwhile count as its newest; RefMoved instead, if it is not
        at `seen`. UntrustedCommit and ReadOnly as for `rollback`: commits are signed anew.
        """
        from vstate.repo.upkeep import shortening

        return shortening.squash(self, branch, keep, message=message, seen=seen)

    @spanned("gc", lambda report, *_, **__: _collected(report))
    def gc(
        self,
        *,
        keep_reflog: str | timedelta = "30d",
        branch: str | Sequence[str] | None = None,
        keep_last: int | None = None,
        keep_since: str | timedelta | None = None,
        grace: str | timedelta = "1h",
        seconds: float | None = None,
        dry_run: bool = False,
        progress: UpkeepProgress | None = None,
    ) -> GcReport:
        """Remove every object that no branch, tag, HEAD or reflog line of the last `keep_reflog` reaches.

        `keep_last=N` or `keep_since="30d"` first cuts off the history of one `branch` or several. Older
        commits go, unless another ref reaches them, and `log` ends there. History shared with a branch that
        is not named is not cut. Ages are a number followed by s, m, h, d or w. `dry_run` writes nothing, and
        its report says in `garbage` why the objects would go.

        With `seconds` it takes about that time, and the next such call goes on with the next room; the report
        says in `rooms_left` how many are left. A room of more than a thousand rows may take longer, because
        gc first walks through all that its refs reach.

        Safe beside writers in other processes: a writer waits for a thousand deletions at most. A store
        without transactions keeps garbage for `grace` after gc found it, and a later run removes it. Raises
        CorruptObject if reachable objects are damaged: see `fsck`. Then it has neither cut nor removed
        anything in their room, and has collected all others.
        """
        from vstate.repo.upkeep import gc, shortening

        limits = shortening.check_limits(branch, keep_last, keep_since)
        check_seconds("seconds", seconds, zero=True, none="None for no limit")
        return gc.collect(
            self,
            keep_reflog=keep_reflog,
            limits=limits,
            grace=grace,
            seconds=seconds,
            dry_run=dry_run,
            progress=progress,
        )

    def erase(
        self,
        *keys: str,
        branch: str | Sequence[str] | None = None,
        all_branches: bool = False,
        path: str | None = None,
        where: Where | None = None,
        edit: Edit | None = None,
        events: bool | Callable[[Event], object] = False,
        dry_run: bool = False,
        progress: UpkeepProgress | None = None,
    ) -> EraseReport:
        """Remove keys from every commit of branches, by default HEAD's, so that no byte of them stays.

        A key that ends in `*` stands for all keys that begin so. With `where`, only values for which it is
        true are erased; without keys it chooses among all values. It gets plain data: nothing is unpickled.
        `path` names the part of a value to erase; the value must be plain data. `edit` gets each loaded
        value, and returns it without the erased part, or ABSENT. `events` also erases events: those for which
        the function is true; with True those whose data name one of the keys, or fit `where`.

        The first commit with such a key, and each commit after it, is made anew, with the same message, time,
        info, author and merges. Old ids lead to the new commits. Branches, tags, HEAD, tracking refs, reflogs
        and labels of a room move in one transaction. This program's key signs the new commits in the place of
        signed ones; without a key they are unsigned. Then the old objects are removed, and the store's own
        bytes are searched. Other branches keep the commits that they share, and `kept_by` in the report names
        them. `all_branches` erases from every ref and every reflog.

        A program that has the old history open gets RefMoved from its next commit. A push or a pull that
        would bring an old commit back raises Diverged. If a call is cut off, the next one goes on. A store
        without transactions moves one ref after the other: nobody else may write meanwhile.

        Raises NotFound for a branch that is not there, CorruptObject for damage (see `fsck`), InvalidInput
        for a part of a value with classes, UntrustedCommit and ReadOnly as `rollback`.
        """
        from vstate.repo.upkeep import erasing
        from vstate.repo.upkeep.selecting import Selection

        check_flag("all_branches", all_branches)
        check_flag("dry_run", dry_run)
        if all_branches and branch is not None:
            raise InvalidInput("name branches, or take all_branches")
        selection = Selection(self, keys, path=path, where=where, edit=edit, events=events)
        branches = (branch,) if isinstance(branch, str) else branch
        if branches is None and not all_branches:
            branches = (self._branch_of_head(),)
        return erasing.erase(self, selection, branches, dry_run=dry_run, progress=progress)

    def _branch_of_head(self) -> str:
        head = self.refs.head()
        if head.branch is None:
            raise DetachedHead(None if head.commit is None else str(head.commit))
        return head.branch

    def keep(
        self,
        pattern: str,
        *,
        idle: str | timedelta | None = None,
        since: str | timedelta | None = None,
        last: int | None = None,
        hourly: int | None = None,
        daily: int | None = None,
        weekly: int | None = None,
    ) -> None:
        """Set what `gc` keeps of a branch, or with `*` at the end of `pattern` of all that begin so.

        - With `idle`, it deletes a branch that no commit has reached for that long. HEAD's branch stays.
        - With `since` or `last`, it cuts off the history of a branch: commits of that age, and so many of
          the newest, stay. With several limits, a commit stays that any of them keeps.
        - With `hourly`, `daily` or `weekly`, it thins the history: the newest commit of each hour, day or
          week in UTC stays, of so many of these that have commits. Commits with tags stay, and so does what
          other branches lead to. A repository with `trust` refuses: InvalidInput.

        The rule lies in the store, and counts for every program. Of several that fit a branch, the longest
        counts alone. Without a limit, the rule goes. An age is a timedelta, or a number followed by s, m, h,
        d or w.

        From now on the commits of this object carry out all rules, room by room, for a tenth of their time.
        """
        from vstate.repo.rules.keeps import UNSIGNED, Keep, KeepRules
        from vstate.repo.upkeep.beside import Beside

        counts = {"last": last, "hourly": hourly, "daily": daily, "weekly": weekly}
        keep = Keep(idle=idle, since=since, **counts)
        if keep.periods and self.security.trust is not None:
            raise InvalidInput(UNSIGNED)
        KeepRules(self.store).set(pattern, keep)
        self.beside = self.beside or Beside(self)

    def keeps(self) -> Mapping[str, Keep]:
        """What `keep` has set, by pattern."""
        from vstate.repo.rules.keeps import KeepRules

        return KeepRules(self.store).read()

    def fsck(
        self, *, full: bool = True, repair: bool = False, progress: UpkeepProgress | None = None
    ) -> FsckReport:
        """Check everything in the store. Each object is checked once: its id, that it decodes, and its links.

        The report lists losses by branch, commit and key. `full=False` reads no blobs, does not look for
        orphans, and does not check the store's own files. Nothing is written without `repair`, which

        - puts each branch whose newest state is damaged on the newest commit with an intact state,
        - restores refs whose rows are lost or unreadable,
        - ends histories where a commit is lost, and keeps the older part under tags `fsck/...`,
        - moves damaged rows under `damaged/`, so that writing the same content again heals the store.

        Other processes may work meanwhile. Never raises CorruptObject or CorruptStore: anything that cannot
        be listed or read is damage.
        """
        from vstate.repo.upkeep import fsck

        return fsck.check(self, full=full, repair=repair, progress=progress)

    # Exchange with other stores

    def export(
        self,
        file: File,
        revs: Sequence[Revision],
        *,
        since: Sequence[Revision] = (),
        as_branch: str | None = None,
        progress: TransferProgress | None = None,
    ) -> BundleReport:
        """Write branches and tags, with their history and all objects they need, to a bundle: one file.

        `file` is a path or a file open for writing. A file at a path is replaced as a whole, or stays as it
        is. The commits `since`, and everything before them, are left out: an importing store needs to have
        them. HEAD stands for its branch; a revision that is neither a branch nor a tag needs a name,
        `as_branch`. Raises CorruptObject if something is damaged.
        """
        from vstate.repo.exchange import bundle_export

        return bundle_export.export(self, file, revs, since=since, as_branch=as_branch, progress=progress)

    def import_bundle(
        self, file: File, *, prefix: str = "", progress: TransferProgress | None = None
    ) -> BundleReport:
        """Put the contents of a bundle into the store. Objects are checked, nothing is unpickled.

        A branch that is missing here is created, and one that the bundle's branch is ahead of is moved. A
        branch that has diverged, and a tag that is elsewhere, stay, and the report says so: with the prefix
        `imported/` they arrive as `imported/main`. Call an interrupted import again, and it continues.

        Raises InvalidInput for a damaged or incomplete bundle, and NotFound if the store lacks the commits
        that the bundle continues from. Then no ref has moved.
        """
        from vstate.repo.exchange import bundle_import

        return bundle_import.load(self, file, prefix=prefix, progress=progress)

    @spanned("push", lambda report, *_, **__: _sent(report))
    @retries_after_sweep
    def push(
        self,
        store: Core | KVStore | str | PathLike[str] | None = None,
        branches: str | Iterable[str] | None = None,
        *,
        force: bool = False,
        tags: bool = False,
        delete: str | Iterable[str] = (),
        remote: str | None = None,
        create: bool = False,
        progress: TransferProgress | None = None,
    ) -> SyncReport:
        """Send branches, by default HEAD's, to another store: first objects, then each branch.

        `store` is a store, the name of a remote, a path or URL (a new one only with `create`), or None for
        the remote `origin`. The cost depends on the difference between the stores. `tags` sends all tags
        too, and `delete` deletes branches there. A branch that is new there keeps its policies and labels.
        Safe beside `gc` and writers there. Call an interrupted push again, and it continues.

        Raises Diverged, before anything is sent, if a branch there has commits that the branch here lacks.
        `force` moves it anyway, and its reflog there keeps the old commit. Diverged is also raised if
        another writer moves a branch meanwhile; the branches before that one are pushed then. `remote`
        names the tracking branches here, as in `origin/main`; by default it is the remote's name. If they
        cannot be written, because this store is read only, say, the report's `not_noted` says why.
        """
        from vstate.repo.exchange import sync

        return sync.push(
            self,
            store,
            branches,
            force=force,
            tags=tags,
            delete=delete,
            remote=remote,
            create=create,
            progress=progress,
        )

    @spanned("fetch", lambda report, *_, **__: _sent(report))
    @retries_after_sweep
    def fetch(
        self,
        store: Core | KVStore | str | PathLike[str] | None = None,
        branches: str | Iterable[str] | None = None,
        *,
        remote: str | None = None,
        tags: bool = False,
        progress: TransferProgress | None = None,
    ) -> SyncReport:
        """Copy branches, by default all, from another store, given as for `push`; no branch here moves.

        `origin/main` is then the branch `main` of the remote `origin`. Without a name, from a remote or
        `remote`, only the report names the fetched commits: `gc`, or forgetting a branch, may remove them
        until they are merged. `tags` creates the tags that are missing here. Every object is checked, nothing
        is unpickled. Call an interrupted fetch again, and it continues.
        """
        from vstate.repo.exchange import sync

        return sync.fetch(self, store, branches, remote=remote, tags=tags, progress=progress)


# The attributes of spans


def _merged(result: MergeResult) -> Attributes:
    return {
        "strategy": result.strategy,
        "keys": len(result.merged_keys),
        "conflicts": len(result.conflicts),
    }


def _collected(report: GcReport) -> Attributes:
    return {"live": report.live, "removed": report.removed, "bytes": report.removed_bytes}


def _sent(report: SyncReport) -> Attributes:
    return {"refs": len(report.refs), "objects": report.objects, "bytes": report.bytes}
