"""Apply the changes of other commits to a branch: merge, cherry-pick, revert."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from vstate.errors import InvalidInput, MergeConflict
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.objects.tree import KeyChange
from vstate.repo.core import Core
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

Landing = Callable[[Collection[str]], None] | None
"""Called with the keys that are about to change, before the branch moves; an exception stops the move."""

Given = Policy | Mapping[str, Policy] | None
"""A caller's policy: one for every key, or policies by prefix, which override the branch's."""


def merge(
    repo: Core,
    branch: str,
    head: Commit | None,
    theirs: Commit,
    *,
    policy: Given,
    message: str,
    name: str,
    landing: Landing,
) -> MergeResult:
    """As `Repository.merge` promises; `name` is the caller's name for the commit."""
    check_given(policy)
    repo.require_trusted(theirs)
    base = None if head is None else Base(repo, head, theirs, lambda: effective(repo, branch, policy))
    if base is not None and theirs.oid in base.commits:
        return MergeResult(head, "up-to-date")
    if head is None or base is None or head.oid in base.commits:
        keys = repo.diff(None if head is None else head.tree, theirs.tree)
        if landing is not None:
            landing(keys)
        repo.swap_branch(branch, head, theirs, action=f"merge {name}: fast-forward")
        return MergeResult(theirs, "fast-forward", tuple(keys))
    if not base.commits and any(map(repo.history.is_shallow, repo.history.ancestors(head.oid, theirs.oid))):
        raise InvalidInput(
            f"{name} cannot be merged: the history with its merge base with {branch} was cut off; "
            "cherry_pick its commits instead"
        )
    merged = _merged(
        repo,
        branch,
        {change.key: change.new for change in base.diff(head.tree)},
        base.diff(theirs.tree),
        Resolver(
            repo,
            lambda: effective(repo, branch, policy),
            ours=versions_since(repo, head, base.commits),
            theirs=versions_since(repo, theirs, base.commits),
            reader=base.reader,
        ),
        f"merging {name}",
    )
    commit = _land(
        repo,
        branch,
        head,
        merged,
        parents=(head, theirs),
        message=message or f"Merge {name} into {branch}",
        needs=[theirs.oid],
        action=f"merge {name}",
        landing=landing,
    )
    return MergeResult(commit, "merge", tuple(sorted({*merged.taken, *merged.resolved})), merged.by)


def cherry_pick(
    repo: Core,
    branch: str,
    head: Commit,
    picked: Commit,
    *,
    policy: Given,
    message: str,
    landing: Landing,
) -> Commit | None:
    """As `Repository.cherry_pick` promises."""
    before = _before(repo, picked)
    return _apply(
        repo,
        branch,
        head,
        old=before,
        new=picked,
        policy=policy,
        operation=f"cherry-picking {picked.short}",
        message=message or picked.message or f"Cherry-pick {picked.short}",
        info={**picked.info, "cherry_picked": picked.id},
        action=f"cherry-pick: {picked.short}",
        landing=landing,
    )


def revert(
    repo: Core,
    branch: str,
    head: Commit,
    reverted: Commit,
    *,
    policy: Given,
    message: str,
    landing: Landing,
) -> Commit | None:
    """As `Repository.revert` promises."""
    before = _before(repo, reverted)
    title = f" {reverted.message}" if reverted.message else ""
    return _apply(
        repo,
        branch,
        head,
        old=reverted,
        new=before,
        policy=policy,
        operation=f"reverting {reverted.short}",
        message=message or f"Revert {reverted.short}{title}",
        info={"reverted": reverted.id},
        action=f"revert: {reverted.short}",
        landing=landing,
    )


def _before(repo: Core, commit: Commit) -> Commit | None:
    """The first parent, None for a first commit; InvalidInput if the parent was cut off."""
    before = next(iter(repo.history.before(commit)), None)
    if before is None and repo.history.is_shallow(commit):
        raise InvalidInput(
            f"the changes of {commit.short} are no longer known: the history before it was cut off"
        )
    return before


def _apply(
    repo: Core,
    branch: str,
    head: Commit,
    *,
    old: Commit | None,
    new: Commit | None,
    policy: Given,
    operation: str,
    message: str,
    info: Mapping[str, Any],
    action: str,
    landing: Landing,
) -> Commit | None:
    """Commit the changes from `old` to `new` to the branch; None if the branch has them already."""
    check_given(policy)
    for commit in (old, new):
        if commit is not None:
            repo.require_trusted(commit)
    old_tree, new_tree = (None if commit is None else commit.tree for commit in (old, new))
    theirs = list(tree.diff(repo.objects.nodes, old_tree, new_tree))
    ours = _changes_of_keys(repo, head, theirs)
    merged = _merged(
        repo,
        branch,
        ours,
        theirs,
        Resolver(
            repo,
            lambda: effective(repo, branch, policy),
            ours=only_version(head.time, ours),
            theirs=only_version(
                head.time if new is None else new.time, {change.key: change.new for change in theirs}
            ),
        ),
        operation,
    )
    if not merged.taken and not merged.resolved:
        return None
    return _land(
        repo,
        branch,
        head,
        merged,
        parents=(head,),
        message=message,
        info=info,
        needs=[] if new is None else [new.oid],
        action=action,
        landing=landing,
    )


def _changes_of_keys(repo: Core, head: Commit, theirs: Iterable[KeyChange]) -> dict[str, bytes | None]:
    """The entries in `head` of those changed keys that differ there from their old entry."""
    ours = {}
    for key, before, _ in theirs:
        entry = tree.lookup(repo.objects.node, head.tree, key)
        if entry != before:
            ours[key] = entry
    return ours


def _merged(
    repo: Core,
    branch: str,
    ours: Mapping[str, bytes | None],
    theirs: Iterable[KeyChange],
    resolver: Resolver,
    operation: str,
) -> Merged:
    merged = merge_changes(ours, theirs, resolver)
    if merged.conflicts:
        raise MergeConflict(merged.conflicts, branch=branch, conflicts=merged.conflicts, operation=operation)
    return merged


def effective(repo: Core, branch: str, policy: Given) -> dict[str, Policy]:
    """The branch's policies, overridden by the caller's; or the caller's one policy for every key."""
    if policy is None or isinstance(policy, Mapping):
        return {**repo.policies.read(branch), **check_given(policy)}
    return check_given(policy)


def check_given(policy: Given) -> dict[str, Policy]:
    """The caller's policies by prefix; InvalidInput and TypeError for anything else."""
    given = policy if isinstance(policy, Mapping) else {} if policy is None else {"": policy}
    return {prefix: check_policy(value) for prefix, value in given.items()}


def _land(
    repo: Core,
    branch: str,
    head: Commit,
    merged: Merged,
    *,
    parents: tuple[Commit, ...],
    message: str,
    needs: list[ObjectId],
    action: str,
    landing: Landing,
    info: Mapping[str, Any] | None = None,
) -> Commit:
    changes = merged.taken | merged.resolved
    if landing is not None:
        landing(changes)
    root, objects, nodes = tree.update(repo.objects.node, head.tree, changes)
    commit = repo.build_commit(root, parents, message=message, info=info)
    if not repo.publish(
        branch, [commit], merged.objects | objects, nodes, expected=head.oid, action=action, needs=needs
    ):
        raise repo.ref_moved(HEADS + branch, head.oid)
    return commit
