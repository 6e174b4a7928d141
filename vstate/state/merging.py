"""Merging: a commit that lost a race, put on top of the commits that won."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vstate.errors import MergeConflict
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.objects.ids import NewObjects, ObjectId
from vstate.objects.tree import Node
from vstate.repo.core import Guard
from vstate.repo.merge.apply import effective_policies
from vstate.repo.merge.three_way import Merged, Resolver, merge_changes, only_version, versions_since
from vstate.repo.names.refs import HEADS
from vstate.repo.repository import Repository
from vstate.repo.writing import reflog_action
from vstate.state.handle import Handle
from vstate.state.plan import Plan
from vstate.state.position import CommitInFlight


def publish_merged(
    handle: Handle,
    in_flight: CommitInFlight,
    plan: Plan,
    objects: NewObjects,
    nodes: Sequence[tuple[ObjectId, Node]],
    on_race: Callable[[ObjectId], None],
    guard: Guard | None,
    depends_on: Callable[[str], bool] | None,
) -> tuple[Commit, Sequence[str]]:
    """The commit where the branch is then, and the keys that others changed.

    A merge commit above both sides: its first parent is the commit that won, its second is ours. The policies
    of the branch resolve keys that both sides changed. `on_race` hears of each commit that won. Raises
    MergeConflict with the keys that no policy resolves, were edited in place since, or were changed by others
    while `depends_on` is true for them; RefMoved if the branch is gone, or no longer holds the base; the
    error of the guard.
    """
    repo, branch, commit, base = handle.repo, in_flight.branch, in_flight.commit, handle.at.head
    before = base.oid if base else None
    while True:
        head = repo.refs.read(HEADS + branch)
        moved: list[str] = []
        if (
            head == before
        ):  # the branch came back, or the row of the guard changed and the lease is still ours
            commits, rows, cached, needs = [commit], objects, list(nodes), list[ObjectId]()
            line = reflog_action("commit", commit)
        elif head is None:
            raise repo.ref_moved(HEADS + branch, before)
        else:
            on_race(head)
            if before is not None and not repo.is_behind(before, head):
                # A merge from this base would bring back everything that the branch has dropped since.
                raise repo.ref_moved(HEADS + branch, before, rewritten=True)
            theirs = repo.objects.commit(head)
            repo.require_trusted(theirs)
            merged = _merge(repo, in_flight, plan, base, theirs)
            moved = [*merged.taken, *merged.resolved]
            conflicts = {*merged.conflicts, *handle.edited(plan, moved)}
            if depends_on is not None:
                # Keys that both changed alike count too: two increments of one counter are alike.
                conflicts.update(filter(depends_on, [*moved, *merged.agreed]))
            if conflicts:
                raise MergeConflict(
                    conflicts,
                    branch=branch,
                    conflicts=merged.conflicts,
                    perhaps_read=plan.perhaps_read(conflicts),
                )
            root, new_objects, new_nodes = tree.update(
                repo.objects.node, theirs.root, plan.changes | merged.resolved
            )
            line = reflog_action("commit (merge)", commit)
            message = f"Merge {commit.short} into {branch}" + line.removeprefix("commit (merge)")
            merge_commit = repo.build_commit(root, (theirs, commit), message=message, info=commit.info)
            commits = [commit, merge_commit]
            rows, cached = objects | merged.objects | new_objects, [*nodes, *new_nodes]
            # The commit relies on its base for every object that it left as it was.
            needs = [] if before is None else [before]
        if repo.publish(branch, commits, rows, cached, expected=head, action=line, needs=needs, guard=guard):
            return commits[-1], moved


def _merge(
    repo: Repository, in_flight: CommitInFlight, plan: Plan, base: Commit | None, theirs: Commit
) -> Merged:
    resolver = Resolver(
        repo,
        lambda: effective_policies(repo, in_flight.branch, None),
        ours=only_version(in_flight.commit.time, plan.changes),
        theirs=versions_since(repo, theirs, () if base is None else (base.oid,)),
        reader=plan.reader(),
        onto_theirs=True,
    )
    changes = tree.diff(repo.objects.nodes, None if base is None else base.root, theirs.root)
    return merge_changes(plan.changes, changes, resolver)
