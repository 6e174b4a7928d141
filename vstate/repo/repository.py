"""Repository: commits, branches and tags over one KVStore."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING

from vstate.errors import (
    AlreadyExists,
    InvalidInput,
    NotFound,
    RefMoved,
)
from vstate.objects.commit import Commit
from vstate.repo.core import FORMAT, Commits, Revision
from vstate.repo.names.refs import DEFAULT_BRANCH, HEADS, TAGS, Head, check_ref_name

if TYPE_CHECKING:
    from vstate.kv.base import KVStore
    from vstate.repo.exchange.bundle import BundleReport, File
    from vstate.repo.exchange.progress import TransferProgress
    from vstate.repo.exchange.sync import SyncReport
    from vstate.repo.merge.apply import Given
    from vstate.repo.merge.three_way import MergeResult
    from vstate.repo.names.remotes import Remotes
    from vstate.repo.names.undo import Undo
    from vstate.repo.search.bisection import Report
    from vstate.repo.search.blame import Blamed
    from vstate.repo.upkeep.fsck import FsckReport
    from vstate.repo.upkeep.gc import GcReport, UpkeepProgress


Landing = Callable[[Collection[str]], None] | None
"""Called with the keys whose values are about to change, before the branch moves; what it raises stops that.
"""


class Repository(Commits):
    """Everything that does not depend on one mapping: what the command line and `Versioned` stand on.

    Opening reads one key and writes nothing. Raises UnsupportedFormat for a store of a newer vstate.
    """

    @cached_property
    def remotes(self) -> Remotes:
        """The other stores that this one knows by name."""
        from vstate.repo.names.remotes import Remotes  # late, for a quick `import vstate`

        return Remotes(self.store)

    # Reading

    def blame(
        self,
        rev: Revision,
        key: str,
        path: str | None = None,
        *,
        head: Head | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Commit:
        """The commit that last changed the key, or what is at `path` inside its value, as seen from `rev`.

        The path is written as `details` prints it, `messages[3].content`; "" is the whole value. What stands
        in a list keeps its commit when something is put in or taken out before it: lists are aligned from one
        version to the next. A merge that took the key, or the part, over from a parent did not change it.
        Reads the versions of that one key that differ; runs nothing that is stored. What of an older version
        cannot be read counts as different. Raises KeyNotFound, which names the commit that removed the key,
        NotFound for a path that leads nowhere, InvalidInput for what is no path.
        """
        from vstate.repo.search.blame import blame  # late, for a quick `import vstate`

        return blame(self, self.resolve(rev, head=head), key, path, progress=progress)

    def blame_items(
        self,
        rev: Revision,
        key: str,
        *,
        head: Head | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[Blamed]:
        """For each element of the key's value at `rev`, the commit that last changed it, in one walk.

        The elements are the lines of a text, the entries of a dict, the items of a list, the members of a
        set, the fields of an object; a value without any is one element itself. Items of lists and lines are
        aligned from one version to the next, see `vstate.repo.search.blame.align`. Otherwise as `blame`.
        """
        from vstate.repo.search.blame import blame_items  # late, for a quick `import vstate`

        return blame_items(self, self.resolve(rev, head=head), key, progress=progress)

    def bisect(
        self,
        predicate: Callable[[Commit], object],
        good: Revision,
        bad: Revision = "HEAD",
        *,
        head: Head | None = None,
        report: Report | None = None,
    ) -> Commit:
        """The first commit for which `predicate`, true while all is well, is false: its parents are all good.

        Takes for granted that what comes after a bad commit is bad. Tests `good` and `bad`, and then about
        log2 of the commits between; at a merge it goes on where the bad came from. No commit is tested
        twice. Raises InvalidInput if `good` is not good, `bad` not bad, or `good` not before `bad`.
        """
        start, end = self.resolve(good, head=head), self.resolve(bad, head=head)
        from vstate.repo.search import bisection  # late, for a quick `import vstate`

        return bisection.bisect(self.objects, self.history, predicate, start, end, report=report)

    # Commits

    def rollback(
        self, branch: str, rev: Revision, *, message: str = "", seen: Commit | None = None
    ) -> Commit:
        """A new commit on the branch whose state is that of `rev`; the commits between stay in history.

        Raises RefMoved if another writer got in between, or since the branch was at `seen`.
        """
        old = seen or self.branch(branch)
        target = self.resolve(rev)
        self.require_trusted(old)
        self.require_trusted(target)
        commit = self.build_commit(target.tree, (old,), message=message or _rollback_message(target))
        action = f"rollback: to {target.short}"
        if not self.publish(branch, [commit], {}, [], expected=old.oid, action=action, needs=[target.oid]):
            self._raise_moved(HEADS + branch, old.oid)
        return commit

    def merge(
        self,
        branch: str,
        rev: Revision,
        *,
        policy: Given = None,
        message: str = "",
        seen: Commit | None = None,
        name: str | None = None,
        landing: Landing = None,
    ) -> MergeResult:
        """Merge what `rev` holds into the branch, three-way by key from where the two parted.

        A key that one side changed is taken from there; one that both changed is resolved by its policy:
        `policy` is one for all keys, or a mapping by prefix that goes before the branch's own. Raises
        MergeConflict with the rest, and RefMoved as `rollback` does; nothing has changed then. `name` is what
        to call `rev` in the commit's message.
        """
        old = seen or self.newest(branch)
        if old is not None:
            self.require_trusted(old)
        theirs = self.resolve(rev)
        name = name or (rev if isinstance(rev, str) else theirs.short)
        from vstate.repo.merge import apply  # late, for a quick `import vstate`

        return apply.merge(
            self, branch, old, theirs, policy=policy, message=message, name=name, landing=landing
        )

    def cherry_pick(
        self,
        branch: str,
        rev: Revision,
        *,
        policy: Given = None,
        message: str = "",
        seen: Commit | None = None,
        landing: Landing = None,
    ) -> Commit | None:
        """Commit to the branch what the commit `rev` changed against its first parent; None if nothing.

        Raises MergeConflict and RefMoved as `merge` does.
        """
        old, picked = seen or self.branch(branch), self.resolve(rev)
        self.require_trusted(old)
        from vstate.repo.merge import apply  # late, for a quick `import vstate`

        return apply.cherry_pick(self, branch, old, picked, policy=policy, message=message, landing=landing)

    def revert(
        self,
        branch: str,
        rev: Revision,
        *,
        policy: Given = None,
        message: str = "",
        seen: Commit | None = None,
        landing: Landing = None,
    ) -> Commit | None:
        """Commit to the branch the opposite of what the commit `rev` changed; None if that is so already.

        Raises MergeConflict and RefMoved as `merge` does.
        """
        old, reverted = seen or self.branch(branch), self.resolve(rev)
        self.require_trusted(old)
        from vstate.repo.merge import apply  # late, for a quick `import vstate`

        return apply.revert(self, branch, old, reverted, policy=policy, message=message, landing=landing)

    def fast_forward(self, branch: str, old: Commit | None, new: Commit, *, action: str) -> None:
        """Put the branch, which is at `old`, on a commit behind which that is; RefMoved if it is elsewhere."""
        expected = None if old is None else old.oid
        if not self._move(HEADS + branch, expected=expected, to=new.oid, action=action):
            self._raise_moved(HEADS + branch, expected)

    def newest(self, branch: str) -> Commit | None:
        """The newest commit of a branch, None if there is no such branch."""
        oid = self.refs.read(HEADS + check_ref_name(branch))
        return None if oid is None else self.objects.commit(oid)

    # Branches, tags and HEAD

    def branch(self, name: str) -> Commit:
        """The newest commit of a branch; NotFound, with the branches there are, if there is no such one."""
        oid = self.refs.read(HEADS + check_ref_name(name))
        if oid is None:
            raise NotFound(f"no branch {name!r}", name=name, candidates=list(self.refs.list(HEADS))[:10])
        return self.objects.commit(oid)

    def create_branch(
        self, name: str, at: Revision = "HEAD", *, head: Head | None = None, like: str | None = None
    ) -> Commit:
        """A new branch at a revision, with the merge policies of the branch `like`; AlreadyExists."""
        commit = self.resolve(at, head=head)
        check_ref_name(name)
        rows = {} if like is None else self.policies.rows_for(name, like)
        self._create_branch(name, commit, at if isinstance(at, str) else commit.short, rows)
        return commit

    def _create_branch(
        self, name: str, commit: Commit, origin: str, rows: Mapping[str, bytes | None]
    ) -> None:
        action = f"branch: created from {origin}"
        if not self._move(HEADS + name, expected=None, to=commit.oid, action=action, rows=rows):
            raise AlreadyExists(
                f"there is a branch {name!r} already; choose another name or delete it first", name=name
            )

    def delete_branch(self, name: str) -> Commit:
        """Delete a branch other than HEAD's; its newest commit, which the reflog keeps."""
        commit = self.branch(name)
        if self.refs.head().branch == name:
            raise InvalidInput(f"HEAD is on branch {name!r}; switch to another branch before deleting it")
        self._delete_branch(name, commit, "branch: deleted")
        return commit

    def _delete_branch(self, name: str, commit: Commit, action: str) -> None:
        """Delete a branch with its policies; RefMoved if it is not at the commit."""
        rows = self.policies.rows_without(name)
        if not self.refs.publish(HEADS + name, rows, expected=commit.oid, new=None, action=action):
            self._raise_moved(HEADS + name, commit.oid)

    def rename_branch(self, old: str, new: str) -> Commit:
        """Give a branch another name, HEAD following; AlreadyExists if the name is taken.

        Raises RefMoved, and leaves both branches, if a commit came to the old one in between.
        """
        commit = self.branch(old)
        rows = self.policies.rows_for(check_ref_name(new), old)
        rows |= self.refs.lifetimes.rows_for(HEADS + new, HEADS + old)
        self._create_branch(new, commit, commit.short, rows)
        follows = self.refs.head().branch == old
        if follows:
            self.refs.set_head(branch=new, action=f"branch: renamed {old} to {new}")
        try:
            self._delete_branch(old, commit, f"branch: renamed to {new}")
        except RefMoved:
            if follows:
                self.refs.set_head(branch=old, action=f"branch: not renamed to {new}")
            raise
        return commit

    def move_branch(self, name: str, rev: Revision, *, seen: Commit | None = None) -> Commit:
        """Put an existing branch on another commit; the reflog keeps the old one.

        Raises RefMoved if another writer got in between, or since the branch was at `seen`.
        """
        old, target = seen or self.branch(name), self.resolve(rev)
        ref, action = HEADS + name, f"reset: to {target.short}"
        if not self._move(ref, expected=old.oid, to=target.oid, action=action):
            self._raise_moved(ref, old.oid)
        return target

    def undo(self, branch: str, *, steps: int = 1, seen: Commit | None = None) -> Commit:
        """Put the branch where it was before its last `steps` moves by its reflog; nothing is lost.

        A move is whatever changed where the branch is: a commit, a merge, a reset, a rollback. One that was
        undone is passed over, so that undoing twice goes two moves back; `redo` takes the last undo back.
        Raises InvalidInput if there is nothing to undo, NotFound if gc has removed what was there, and
        RefMoved if another writer got in between, or since the branch was at `seen`.
        """
        return self.carry_out(self.find_undo(branch, steps=steps, seen=seen))

    def redo(self, branch: str, *, seen: Commit | None = None) -> Commit:
        """Take back the last undo of the branch, unless it has moved since; raises as `undo` does."""
        return self.carry_out(self.find_redo(branch, seen=seen))

    def find_undo(self, branch: str, *, steps: int = 1, seen: Commit | None = None) -> Undo:
        """What `undo` would do."""
        from vstate.repo.names.undo import find_undo  # late, for a quick `import vstate`

        return find_undo(self.objects, self.refs, branch, seen or self.branch(branch), steps)

    def find_redo(self, branch: str, *, seen: Commit | None = None) -> Undo:
        """What `redo` would do."""
        from vstate.repo.names.undo import find_redo  # late, for a quick `import vstate`

        return find_redo(self.objects, self.refs, branch, seen or self.branch(branch))

    def carry_out(self, found: Undo) -> Commit:
        """Do what was found: move the branch; where it is now."""
        ref = HEADS + found.branch
        if not self._move(ref, expected=found.old.oid, to=found.new.oid, action=found.action):
            self._raise_moved(ref, found.old.oid)
        return found.new

    def create_tag(self, name: str, rev: Revision = "HEAD", *, head: Head | None = None) -> Commit:
        """A new tag at a revision; AlreadyExists if the name is taken."""
        commit = self.resolve(rev, head=head)
        ref = TAGS + check_ref_name(name, "tag")
        if not self._move(ref, expected=None, to=commit.oid, action="tag: created"):
            raise AlreadyExists(f"there is a tag {name!r} already; delete it first to move it", name=name)
        return commit

    def delete_tag(self, name: str) -> Commit:
        """Delete a tag; the commit it named."""
        ref = TAGS + check_ref_name(name, "tag")
        oid = self.refs.read(ref)
        if oid is None:
            raise NotFound(f"no tag {name!r}", name=name, candidates=list(self.refs.list(TAGS))[:10])
        if not self.refs.compare_and_swap(ref, expected=oid, new=None, action="tag: deleted"):
            self._raise_moved(ref, oid)
        return self.objects.commit(oid)

    def branches(self) -> dict[str, Commit]:
        """The newest commit of each branch, by name."""
        return {name: self.objects.commit(oid) for name, oid in self.refs.list(HEADS).items()}

    def tags(self) -> dict[str, Commit]:
        """The commit of each tag, by name."""
        return {name: self.objects.commit(oid) for name, oid in self.refs.list(TAGS).items()}

    def checkout(self, target: str) -> Head:
        """Move HEAD to a branch of that name, else, detached, to the commit that the revision names."""
        head = self.refs.head()
        if target == head.branch or self.refs.read(HEADS + target) is not None:
            check_ref_name(target)
            self.refs.set_head(branch=target, action=f"checkout: to {target}")
        else:
            commit = self.resolve(target)
            action = f"checkout: to {commit.short}"
            self._keeping(
                [commit.oid], lambda sweep: self.refs.set_head(commit=commit.oid, action=action, sweep=sweep)
            )
        return self.refs.head()

    # Upkeep

    def gc(
        self,
        *,
        keep_reflog: str | timedelta = "30d",
        branch: str | Sequence[str] | None = None,
        keep_last: int | None = None,
        keep_since: str | timedelta | None = None,
        grace: str | timedelta = "1h",
        dry_run: bool = False,
        progress: UpkeepProgress | None = None,
    ) -> GcReport:
        """Remove every object that no branch, tag, HEAD or reflog line of the last `keep_reflog` leads to.

        `keep_last=N` or `keep_since="30d"` cuts the history of a `branch`, or of several, off first: older
        commits go, unless another ref leads to them, and `log` ends there. What they share with a branch that
        is not named is not cut. Ages are a number with s, m, h, d or w behind it.

        Safe beside writers in other processes, which wait for no more than a thousand deletions at a time. A
        store without transactions keeps garbage for `grace` after it was found, and removes it in a later
        run. Raises CorruptObject, having cut and removed nothing, if what is in use is damaged: see `fsck`.
        """
        from vstate.repo.upkeep import gc  # late, for a quick `import vstate`

        cut = gc.check_cut(branch, keep_last, keep_since)
        return gc.collect(
            self, keep_reflog=keep_reflog, cut=cut, grace=grace, dry_run=dry_run, progress=progress
        )

    def fsck(
        self, *, full: bool = True, repair: bool = False, progress: UpkeepProgress | None = None
    ) -> FsckReport:
        """Check all that the store holds, each object once: its content against its id, its form against the
        format, and whatever it links to; say what is lost, by branch, commit and key.

        `full=False` reads no blobs, looks for no orphans, and not at the store's own files. `repair` puts
        each branch whose newest state is not whole on the newest commit whose state is, and refs back whose
        rows are lost or cannot be read; it lets histories end where a commit is lost, where a tag `fsck/...`
        keeps what was before that; and it moves what is damaged to rows under `damaged/`, so that writing the
        same again heals it. Without it nothing is written. Other processes may work meanwhile. Never raises
        CorruptObject or CorruptStore: what cannot be listed or read is damage.
        """
        from vstate.repo.upkeep import fsck  # late, for a quick `import vstate`

        return fsck.check(self, full=full, repair=repair, progress=progress)

    def export(
        self,
        file: File,
        revs: Sequence[Revision],
        *,
        since: Sequence[Revision] = (),
        as_branch: str | None = None,
        progress: TransferProgress | None = None,
    ) -> BundleReport:
        """Write branches and tags, with their history and all that it needs, to a bundle: one file, at a path
        or open for writing. A path gets it whole or keeps what it has.

        What the commits `since` hold, and all before them, is left out: whoever imports has to have those
        commits. HEAD stands for its branch; a revision that is no branch and no tag needs `as_branch`, the
        name that it is to get. Raises CorruptObject if something is damaged.
        """
        from vstate.repo.exchange import bundle_export  # late, for a quick `import vstate`

        return bundle_export.export(self, file, revs, since=since, as_branch=as_branch, progress=progress)

    def push(
        self,
        store: Repository | KVStore | str | PathLike[str] | None = None,
        branches: str | Iterable[str] | None = None,
        *,
        force: bool = False,
        tags: bool = False,
        delete: str | Iterable[str] = (),
        remote: str | None = None,
        create: bool = False,
        progress: TransferProgress | None = None,
    ) -> SyncReport:
        """Bring branches, HEAD's by default, to another store: the objects that it lacks, and then each
        branch by itself.

        `store` is a store, the name of a remote, a path or URL (a new one only with `create`), or None for
        the remote `origin`. It costs what the two differ by. `tags` brings all tags too, `delete` deletes
        branches there. A branch that is made there takes its merge policies along. Killed or interrupted and
        called again, it goes on where it was; beside `gc` and writers there it is safe.

        Raises Diverged, before anything is sent, if a branch there has commits that the one here does not
        follow; `force` puts it here all the same, and its reflog there keeps what it was at. Also if another
        writer got there meanwhile: the branches before that one are pushed then. `remote` is the name under
        which the branches there are noted here, as `origin/main`, by default that of the remote. Where that
        cannot be done, since this store is read only, say, the report has why: `not_noted`.
        """
        from vstate.repo.exchange import sync  # late, for a quick `import vstate`

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

    def fetch(
        self,
        store: Repository | KVStore | str | PathLike[str] | None = None,
        branches: str | Iterable[str] | None = None,
        *,
        remote: str | None = None,
        tags: bool = False,
        progress: TransferProgress | None = None,
    ) -> SyncReport:
        """Bring branches, all by default, from another store, which is given as for `push`; no branch moves
        here.

        `origin/main` is then the branch `main` of the remote `origin`. Without a name, of a remote or
        `remote`, nothing leads to what was fetched but the report, until it is merged: `gc` may remove it.
        `tags` makes the tags that are not here. Every object is checked, nothing is unpickled; interrupted,
        it goes on where it was.
        """
        from vstate.repo.exchange import sync  # late, for a quick `import vstate`

        return sync.fetch(self, store, branches, remote=remote, tags=tags, progress=progress)

    def import_bundle(
        self, file: File, *, prefix: str = "", progress: TransferProgress | None = None
    ) -> BundleReport:
        """Put the contents of a bundle into the store, each object checked against its id; nothing is
        unpickled.

        A branch that is not here is created, one that the bundle's is ahead of is moved; one that has
        diverged, and a tag that is elsewhere, is left, and the report says so: with the prefix `imported/`
        they arrive as `imported/main`. Killed or interrupted and called again, it goes on where it was.
        Raises InvalidInput for a bundle that is damaged or whose commits need what neither it nor the store
        holds whole, NotFound if commits that it continues from are not here; no ref has moved then.
        """
        from vstate.repo.exchange import bundle_import  # late, for a quick `import vstate`

        return bundle_import.load(self, file, prefix=prefix, progress=progress)


def _rollback_message(target: Commit) -> str:
    nested = target.message.startswith("Rollback to ")
    return f"Rollback to {target.short}" + ("" if nested or not target.message else f" {target.message}")


__all__ = ["DEFAULT_BRANCH", "FORMAT", "Repository", "Revision"]
