"""Apply the changes of other commits to a branch: merge, cherry-pick, revert; remove its expired keys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from vstate.arguments import check_several
from vstate.errors import InvalidInput, MergeConflict, NotFound
from vstate.objects import expiry, tree
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.objects.tree import KeyChange
from vstate.repo.core import Core, Revision
from vstate.repo.merge.three_way import (
    Base,
    Merged,
    MergeResult,
    Resolver,
    merge_changes,
    only_version,
    versions_since,
)
from vstate.repo.names.refs import HEADS
from vstate.repo.rules.policies import Policy, check_policy

BeforeMove = Callable[[Collection[str]], None] | None
"""Called with the keys that are about to change, before the branch moves; an exception stops the move."""

PolicyOption = Policy | Mapping[str, Policy] | None
"""A caller's policy: one for every key, or policies by prefix, which override the branch's."""


def merge(
    repo: Core,
    branch: str,
    rev: Revision,
    *,
    policy: PolicyOption,
    message: str,
    seen: Commit | None,
    name: str | None,
    fast_forward: bool,
    before_move: BeforeMove,
) -> MergeResult:
    """As `Repository.merge` promises."""
    head = seen or repo.newest(branch)
    if head is not None:
        repo.require_trusted(head)
    theirs = repo.resolve(rev)
    name = name or (rev if isinstance(rev, str) else theirs.short)
    check_policies(policy)
    repo.require_trusted(theirs)
    base = (
        None if head is None else Base(repo, head, theirs, lambda: effective_policies(repo, branch, policy))
    )
    if base is not None and theirs.oid in base.commits:
        repo.require_at(branch, head)
        return MergeResult(head, "up-to-date")
    if head is None or base is None or (fast_forward and head.oid in base.commits):
        keys = repo.diff(None if head is None else head.root, theirs.root)
        if before_move is not None:
            before_move(keys)
        repo.swap_branch(branch, head, theirs, action=f"merge {name}: fast-forward")
        return MergeResult(theirs, "fast-forward", tuple(keys))
    if not base.commits and any(map(repo.history.is_shallow, repo.history.ancestors(head.oid, theirs.oid))):
        repo.require_at(branch, head)
        raise InvalidInput(
            f"{name} cannot be merged: the commits with its merge base with {branch} may have been removed; "
            "cherry_pick its commits instead"
        )
    changes = list(base.diff(theirs.root))
    merged = merge_changes(
        _changed_in(repo, head, changes),
        changes,
        Resolver(
            repo,
            lambda: effective_policies(repo, branch, policy),
            ours=versions_since(repo, head, base.commits),
            theirs=versions_since(repo, theirs, base.commits),
            reader=base.reader,
        ),
    )
    commit = _land(
        repo,
        branch,
        merged,
        (head, theirs),
        operation=f"merging {name}",
        message=message or f"Merge {name} into {branch}",
        needs=[theirs.oid],
        action=f"merge {name}",
        before_move=before_move,
    )
    return MergeResult(commit, "merge", tuple(sorted({*merged.taken, *merged.resolved})), merged.by)


def apply_changes(
    repo: Core,
    branch: str,
    rev: Revision,
    *,
    backwards: bool,
    policy: PolicyOption,
    message: str,
    seen: Commit | None,
    before_move: BeforeMove,
) -> Commit | None:
    """As `Repository.cherry_pick` promises, and backwards as `Repository.revert` does."""
    head, commit = seen or repo.branch(branch), repo.resolve(rev)
    check_policies(policy)
    before = _before(repo, commit)
    old, new = (commit, before) if backwards else (before, commit)
    info: dict[str, Any]
    if backwards:
        operation, action, info = "reverting", "revert", {"reverted": commit.id}
        message = message or f"Revert {commit.short} {commit.message}".rstrip()
    else:
        operation, action, info = "cherry-picking", "cherry-pick", {**commit.info, "cherry_picked": commit.id}
        message = message or commit.message or f"Cherry-pick {commit.short}"
    for each in (head, old, new):
        if each is not None:
            repo.require_trusted(each)
    old_tree, new_tree = (None if each is None else each.root for each in (old, new))
    theirs = list(tree.diff(repo.objects.nodes, old_tree, new_tree))
    ours = _changed_in(repo, head, theirs)
    resolver = Resolver(
        repo,
        lambda: effective_policies(repo, branch, policy),
        ours=only_version(head.time, ours),
        theirs=only_version(
            head.time if new is None else new.time, {change.key: change.new for change in theirs}
        ),
    )
    merged = merge_changes(ours, theirs, resolver)
    if not (merged.taken or merged.resolved or merged.conflicts):
        repo.require_at(branch, head)
        return None
    return _land(
        repo,
        branch,
        merged,
        (head,),
        operation=f"{operation} {commit.short}",
        message=message,
        info=info,
        needs=[] if new is None else [new.oid],
        action=f"{action}: {commit.short}",
        before_move=before_move,
    )


def restore(
    repo: Core, branch: str, rev: Revision, keys: Iterable[str], *, message: str, seen: Commit | None
) -> Commit | None:
    """As `Repository.restore` promises."""
    head, source = seen or repo.branch(branch), repo.resolve(rev)
    repo.require_trusted(head)
    repo.require_trusted(source)
    node, merged, names = repo.objects.node, Merged(), [*dict.fromkeys(check_several(keys, "restore"))]
    for key in names:
        entry = tree.lookup(node, source.root, key)
        if entry is None:
            raise NotFound(f"no key {key!r} at {source.short}", name=key)
        if entry != tree.lookup(node, head.root, key):
            merged.taken[key] = entry
    if not merged.taken:
        return None
    shown = ", ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")
    return _land(
        repo,
        branch,
        merged,
        (head,),
        operation=f"taking keys from {source.short}",
        message=message or f"Take {shown} from {source.short}",
        info={"restored": source.id},
        needs=[source.oid],
        action=f"checkout: keys from {source.short}",
        before_move=None,
    )


_SHOWN = 5  # keys in a message


def _before(repo: Core, commit: Commit) -> Commit | None:
    """The first parent, None for a first commit; InvalidInput if the parent was cut off."""
    before = next(iter(repo.history.before(commit)), None)
    if before is None and repo.history.is_shallow(commit):
        raise InvalidInput(
            f"the changes of {commit.short} are no longer known: the history before it was cut off"
        )
    return before


def _changed_in(repo: Core, head: Commit, theirs: Sequence[KeyChange]) -> dict[str, bytes | None]:
    """The entries in `head` of those changed keys that differ there from their old entry."""
    found = tree.lookup_many(repo.objects.nodes, head.root, [change.key for change in theirs])
    return {key: found.get(key) for key, before, _ in theirs if found.get(key) != before}


def effective_policies(repo: Core, branch: str, policy: PolicyOption) -> dict[str, Policy]:
    """The branch's policies, overridden by the caller's; or the caller's one policy for every key."""
    if policy is None or isinstance(policy, Mapping):
        return {**repo.policies.read(branch), **check_policies(policy)}
    return check_policies(policy)


def check_policies(policy: PolicyOption) -> dict[str, Policy]:
    """The caller's policies by prefix; InvalidInput and TypeError for anything else."""
    policies = policy if isinstance(policy, Mapping) else {} if policy is None else {"": policy}
    return {prefix: check_policy(value) for prefix, value in policies.items()}


def _land(
    repo: Core,
    branch: str,
    merged: Merged,
    parents: tuple[Commit, ...],
    *,
    operation: str,
    message: str,
    needs: list[ObjectId],
    action: str,
    before_move: BeforeMove,
    info: Mapping[str, Any] | None = None,
) -> Commit:
    """Commit a merge to the branch, which is at the first parent; MergeConflict, RefMoved."""
    changes, head = merged.taken | merged.resolved, parents[0]
    if merged.conflicts:
        repo.require_at(branch, head)  # a conflict with an older commit says nothing about the branch
        raise MergeConflict(merged.conflicts, branch=branch, conflicts=merged.conflicts, operation=operation)
    if before_move is not None:
        before_move(changes)
    read = repo.objects.node
    root, objects, nodes = tree.update(read, head.root, changes)
    # Where only the other side changed a leaf, the merged tree has that leaf, and it is stored.
    known = [repo.objects.commit(oid).root for oid in needs]
    for oid, node in nodes:
        if any(tree.holds(read, there, oid, node) for there in known):
            del objects[oid]
    commit = repo.build_commit(root, parents, message=message, info=info)
    if not repo.publish(
        branch, [commit], merged.objects | objects, nodes, expected=head.oid, action=action, needs=needs
    ):
        raise repo.ref_moved(HEADS + branch, head.oid)
    return commit


def purge(
    repo: Core, branch: str, *, at: int | None = None, prefix: str = ""
) -> tuple[Commit, Commit] | None:
    """Commit the removal of a branch's keys under `prefix` that have expired, by the moment `at` or by now.

    The commits before and after; None if there are no such keys.
    """
    while True:
        head = repo.newest(branch)
        if head is None:
            return None
        repo.require_trusted(head)
        now = expiry.now() if at is None else at
        gone = list(tree.expired(repo.objects.node, head.root, now, prefix))
        if not gone:
            return None
        root, objects, nodes = tree.update(repo.objects.node, head.root, dict.fromkeys(gone))
        message = f"Purge {len(gone)} expired key{'' if len(gone) == 1 else 's'}"
        commit = repo.build_commit(root, (head,), message=message)
        if repo.publish(
            branch, [commit], objects, nodes, expected=head.oid, action=f"purge: {len(gone)} expired"
        ):
            return head, commit
