"""Publishing: a commit put on its branch, merged with what others put there meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from vstate.errors import MergeConflict, RefMoved
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.objects.ids import NewObjects, ObjectId
from vstate.objects.tree import Node
from vstate.repo.core import Guard
from vstate.repo.names.refs import HEADS
from vstate.repo.repository import Repository
from vstate.state.staged import Staged
from vstate.state.working import WorkingValues

if TYPE_CHECKING:
    from vstate.repo.merge.three_way import Merged


class Published(NamedTuple):
    """Where the branch is now, and the keys whose values are not those in hand any more."""

    head: Commit
    moved: Sequence[str]


def publish(
    repo: Repository,
    branch: str,
    base: Commit | None,
    commit: Commit,
    staged: Staged,
    objects: NewObjects,
    nodes: list[tuple[ObjectId, Node]],
    *,
    working: WorkingValues,
    depends_on: Callable[[str], bool],
    guard: Guard | None = None,
) -> Published:
    """Put a commit, made on `base`, on the branch; as a merge commit above it if the branch has moved.

    Keys that both changed are resolved by the branch's policies. Raises MergeConflict with the others, and
    with those that others changed and that `depends_on` is true for; RefMoved if the branch is gone; what
    the `guard` raises once it forbids it.
    """
    summary = commit.message.strip().split("\n", 1)[0][:80]
    told = f": {summary}" if summary else ""
    before = base.oid if base else None
    expected = before
    alone = [commit], objects, nodes, f"commit{told}"
    commits, rows, cached, action = alone
    moved: list[str] = []
    needs: list[ObjectId] = []
    while not repo.publish(
        branch, commits, rows, cached, expected=expected, action=action, needs=needs, guard=guard
    ):
        expected = repo.refs.read(HEADS + branch)
        if expected == before:  # it moved and came back, or the guard's row changed, and may still be its own
            (commits, rows, cached, action), moved, needs = alone, [], []
            continue
        if expected is None:
            raise RefMoved(HEADS + branch, expected=base.id if base else None, actual=None)
        theirs = repo.objects.commit(expected)
        repo.require_trusted(theirs)
        merged = _merged(repo, branch, base, commit, staged, theirs)
        moved = [*merged.taken, *merged.resolved]
        conflicts = {*merged.conflicts, *working.edited_meanwhile(staged, moved)}
        # Also where both came to the same: two increments of one counter do.
        conflicts.update(filter(depends_on, [*moved, *merged.agreed]))
        if conflicts:
            raise MergeConflict(conflicts, branch=branch, conflicts=merged.conflicts)
        root, new_objects, new_nodes = tree.update(
            repo.objects.node, theirs.tree, staged.changes | merged.resolved
        )
        message = f"Merge {commit.short} into {branch}{told}"
        # The first parent is where the branch was; our commit alone is the second.
        merge_commit = repo.build_commit(root, (theirs, commit), message=message, info=commit.info)
        commits, action = [commit, merge_commit], f"commit (merge){told}"
        rows, cached = objects | merged.objects | new_objects, [*nodes, *new_nodes]
        # What the commit leaves as it was in its base, it does not write again.
        needs = [] if before is None else [before]
    return Published(commits[-1], moved)


def _merged(
    repo: Repository, branch: str, base: Commit | None, ours: Commit, staged: Staged, theirs: Commit
) -> Merged:
    # Late, for a quick `import vstate`: most commits win their race.
    from vstate.repo.merge.apply import effective
    from vstate.repo.merge.three_way import Resolver, merge_changes, only_version, versions_since

    resolver = Resolver(
        repo,
        lambda: effective(repo, branch, None),
        ours=only_version(ours.time, staged.changes),
        theirs=versions_since(repo, theirs, () if base is None else (base.oid,)),
        reader=staged.reader(),
        onto_theirs=True,
    )
    changes = tree.diff(repo.objects.nodes, None if base is None else base.tree, theirs.tree)
    return merge_changes(staged.changes, changes, resolver)
