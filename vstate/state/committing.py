"""Committing: the changes in hand become a commit on the branch, once, whatever happens on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from vstate.arguments import check_info, check_several, check_state_key
from vstate.errors import (
    InvalidInput,
    MergeConflict,
    NotFound,
    StorageError,
    StoreFull,
    StoreUnavailable,
    Unpicklable,
    VStateError,
)
from vstate.objects import tree
from vstate.objects.canonical import plain
from vstate.objects.commit import Commit, Event
from vstate.objects.expiry import split_expiry
from vstate.objects.ids import ObjectId
from vstate.repo.core import Advance, Guard
from vstate.repo.names.refs import HEADS, reflog_action
from vstate.repo.writing import commit_attributes
from vstate.spans import spanned
from vstate.state.base import missing
from vstate.state.handle import Handle
from vstate.state.plan import Plan
from vstate.state.position import NO_VALUES, Attempt, Position, UnknownOutcome
from vstate.state.slots import FORGET, UNASKED, Mark, Steps

if TYPE_CHECKING:
    from vstate.repo.merge.three_way import Merged
    from vstate.repo.repository import Repository

OnRace = Literal["merge", "raise"]
"""The outcome of a commit whose branch another writer has moved: a merge, or RefMoved."""


def commit(
    handle: Handle,
    message: str,
    info: Mapping[str, Any],
    guard: Guard | None = None,
    on_race: OnRace = "merge",
    keys: Iterable[str] | None = None,
) -> Commit | None:
    """As `Versioned.commit` promises; only while the guard allows it, if there is one."""
    if not isinstance(message, str):
        raise TypeError(f"a commit message is a str, not {type(message).__name__}")
    if info:
        check_info(info)
        plain(dict(info), "info")
    if keys is not None:
        keys = frozenset(map(check_state_key, check_several(keys, "commit")))
    if on_race not in ("merge", "raise"):
        raise InvalidInput(f"on_race is 'merge' or 'raise', not {on_race!r}")
    if not handle.at.settled and handle.at.is_in_update and handle.turns.nested:
        raise InvalidInput("an update commits by itself, once its function has returned; leave commit() out")
    return handle.alone(commit_now, handle, message, info, guard, None, on_race, keys)


@spanned("commit", lambda commit, *_: commit_attributes([commit]))
def commit_now(
    handle: Handle,
    message: str,
    info: Mapping[str, Any],
    guard: Guard | None = None,
    depends_on: Callable[[str], bool] | None = None,
    on_race: OnRace = "merge",
    keys: frozenset[str] | None = None,
) -> Commit | None:
    """Commit in the turn of the caller; the lock is held, and the handle is settled.

    Conflict if somebody else changed a key for which `depends_on` is true. RefMoved if the branch no longer
    holds the commit below the changes.
    """
    branch = handle.at.branch or handle.own_branch()
    if handle.hooks.functions:
        handle.hooks.run()
    for each in handle.companions:
        each.look()
    if handle.at.open and (notes := handle.at.open[0].notes) is not None:
        notes.open = False
    for key in keys or ():
        if key not in handle.at.table.slots and not handle.contains(key):
            raise missing(key)
    while True:
        handle.at.table.handed = set()
        plan, at = handle.plan(keys=keys), handle.at
        if plan.unpicklable:
            raise Unpicklable(plan.unpicklable)
        before = None if at.head is None else at.head.root
        root, objects, nodes = tree.update(handle.repo.objects.node, before, plan.changes)
        if root == before and not at.events:
            if plan.steps or not at.settled:
                # A commit may still land under them: keys that are set stay set.
                handle.go(steps=None if at.doubts else plan.steps, open=at.inner)
            handle.at.table.seal(plan.unshared)
            return None
        commit = handle.repo.build_commit(
            root, () if at.head is None else (at.head,), message=message, info=info, events=at.events
        )
        attempt = Attempt(branch, commit, at.events, keys is None, [])
        try:
            head = _land(handle, attempt, plan, plan.objects | objects, nodes, depends_on, guard, on_race)
        except _LandedLate:
            continue
        handle.at.table.seal(plan.unshared)
        return head


def _land(
    handle: Handle,
    attempt: Attempt,
    plan: Plan,
    objects: dict[ObjectId, Any],
    nodes: list[Any],
    depends_on: Callable[[str], bool] | None,
    guard: Guard | None,
    on_race: OnRace,
) -> Commit:
    """Put the commit of an attempt on the branch, and be at the commit where the branch is then."""
    repo, branch, commit, base = handle.repo, attempt.branch, attempt.commit, handle.at.head
    expected, moved = None if base is None else base.oid, list[str]()
    pending = UnknownOutcome(handle.operation, partial(_look_for, handle, attempt, plan.changes), True)
    # Readers still take values without the lock.
    handle.at = handle.at._replace(pending=pending, settled=False)
    try:
        line = reflog_action("commit", commit)
        for each in handle.companions:
            each.begin_commit(branch, commit.oid)
        if not repo.publish_all([Advance(branch, (commit,), objects, nodes, expected, line)], guard=guard):
            if on_race == "raise":
                if (head := repo.refs.read(HEADS + branch)) is not None:
                    _stop_at_doubt(handle, branch, head)
                raise repo.ref_moved(HEADS + branch, expected)
            commit, moved = _publish_merged(handle, attempt, plan, objects, nodes, guard, depends_on)
        steps = plan.steps | handle.at.table.forget(moved, plan.steps) if moved else plan.steps
        finish_commit(handle, attempt, commit, steps, replaces=bool(moved))
    except VStateError as error:
        if handle.at.pending is pending:
            _explain(handle, error, attempt.commit)
        if isinstance(error, NotFound):
            handle.require_base()
        raise
    return commit


def _stop_at_doubt(handle: Handle, branch: str, head: ObjectId) -> None:
    """Raise _LandedLate if a commit whose outcome was unknown is why the race was lost."""
    if land_doubt(handle, branch, head):
        raise _LandedLate


def _publish_merged(
    handle: Handle,
    attempt: Attempt,
    plan: Plan,
    objects: dict[ObjectId, Any],
    nodes: list[Any],
    guard: Guard | None,
    depends_on: Callable[[str], bool] | None,
) -> tuple[Commit, list[str]]:
    """The commit where the branch is after a lost race, and the keys that others changed.

    Raises MergeConflict; RefMoved if the branch is gone, or no longer holds the base; the error of the guard.
    """
    repo, branch, base = handle.repo, attempt.branch, handle.at.head
    before = base.oid if base else None
    while True:
        head = repo.refs.read(HEADS + branch)
        # The branch came back, or the row of the guard changed and the lease is still ours.
        commits, rows, cached, needs, moved = [attempt.commit], objects, nodes, list[ObjectId](), list[str]()
        line = reflog_action("commit", attempt.commit)
        if head is None and before is not None:
            raise repo.ref_moved(HEADS + branch, before)
        if head is not None and head != before:
            _stop_at_doubt(handle, branch, head)
            if before is not None and not repo.is_behind(before, head):
                # A merge from this base would bring back everything that the branch has dropped since.
                raise repo.ref_moved(HEADS + branch, before, rewritten=True)
            merge, new, new_nodes, moved = _merge(
                handle, attempt, plan, repo.objects.commit(head), depends_on
            )
            commits, rows, cached = [attempt.commit, merge], objects | new, [*nodes, *new_nodes]
            line = reflog_action("commit (merge)", attempt.commit)
            # The commit relies on its base for every object that it left as it was.
            needs = [] if before is None else [before]
        if repo.publish(branch, commits, rows, cached, expected=head, action=line, needs=needs, guard=guard):
            return commits[-1], moved


def _merge(
    handle: Handle,
    attempt: Attempt,
    plan: Plan,
    theirs: Commit,
    depends_on: Callable[[str], bool] | None,
) -> tuple[Commit, dict[ObjectId, Any], list[Any], list[str]]:
    """A merge commit, its new objects and nodes, and the keys that others changed.

    Its first parent is the commit that won, its second is ours. The policies of the branch resolve keys that
    both sides changed. Raises MergeConflict with the keys that no policy resolves, those that were edited in
    place since, and those that others changed while `depends_on` is true for them.
    """
    repo, commit = handle.repo, attempt.commit
    repo.require_trusted(theirs)
    merged = _changes(repo, attempt, plan, handle.at.head, theirs)
    moved = [*merged.taken, *merged.resolved]
    conflicts = {*merged.conflicts, *handle.edited(plan, moved)}
    if depends_on is not None:
        # Keys that both changed alike count too: two increments of one counter are alike.
        conflicts.update(filter(depends_on, [*moved, *merged.agreed]))
    if conflicts:
        raise MergeConflict(conflicts, branch=attempt.branch, conflicts=merged.conflicts)
    root, objects, nodes = tree.update(repo.objects.node, theirs.root, plan.changes | merged.resolved)
    subject = reflog_action("commit", commit).removeprefix("commit")
    message = f"Merge {commit.short} into {attempt.branch}{subject}"
    made = repo.build_commit(root, (theirs, commit), message=message, info=commit.info)
    attempt.merges.append(made)
    return made, merged.objects | objects, nodes, moved


def _changes(repo: Repository, attempt: Attempt, plan: Plan, base: Commit | None, theirs: Commit) -> Merged:
    from vstate.repo.merge import three_way  # late, for a quick `import vstate`: most commits win their race
    from vstate.repo.merge.apply import effective_policies

    resolver = three_way.Resolver(
        repo,
        lambda: effective_policies(repo, attempt.branch, None),
        ours=three_way.only_version(attempt.commit.time, plan.changes),
        theirs=three_way.versions_since(repo, theirs, () if base is None else (base.oid,)),
        reader=plan.reader(),
        onto_theirs=True,
    )
    changes = tree.diff(repo.objects.nodes, None if base is None else base.root, theirs.root)
    return three_way.merge_changes(plan.changes, changes, resolver)


def finish_commit(
    handle: Handle,
    attempt: Attempt,
    head: Commit,
    steps: Steps,
    *,
    late: bool = False,
    replaces: bool = False,
) -> None:
    """Be at a commit that is on the branch with our changes: one assignment, and then its steps.

    It ends the update that is under way, unless it is an earlier commit that landed `late`. `replaces` says
    that values in hand are not those of the commit until the steps are taken.
    """
    at = handle.at
    events: tuple[Event, ...] = ()
    if at.events is not attempt.events:  # some came while the commit was made
        known = set(map(id, attempt.events))
        events = tuple(event for event in at.events if id(event) not in known)
    saved = at.open if late or not at.open else at.inner
    if late or not attempt.whole:  # the other keys that were staged then are staged still
        held = () if late else steps
        saved = tuple(each.without(held) if each.epoch == at.epoch else each for each in saved)
    hot = NO_VALUES if replaces else at.hot
    epoch = at.epoch + 1
    handle.at = Position(hot, at.table, head, at.branch, events, epoch, steps, None, saved, settled=False)
    handle.take_steps()
    for each in handle.companions:
        each.follow(attempt.commit)


def _finish_unseen(handle: Handle, attempt: Attempt, *, late: bool = False) -> None:
    """Be at a commit that turned out to be on the branch. Its values in hand are compared with it anew."""
    slots, steps = handle.at.table.slots, dict[str, Any]()
    for key in _changed_by(handle, attempt):
        slot = slots.get(key)
        steps[key] = slot, FORGET if slot is None else slot.replaced(base=None)
    finish_commit(handle, attempt, attempt.commit, steps, late=late)


def _changed_by(handle: Handle, attempt: Attempt) -> list[str]:
    """The keys that the commit of an attempt changed."""
    root = attempt.commit.root
    return [change.key for change in tree.diff(handle.repo.objects.nodes, handle.tree, root)]


def _look_for(handle: Handle, attempt: Attempt, changes: Mapping[str, bytes | None]) -> None:
    """Find out whether a commit is on its branch, and be there if it is.

    If not, its keys count as set from now on, and so does a value that is edited back: a late commit would
    bring the edit back.
    """
    if handle.repo.has_landed(attempt.branch, attempt.commit.oid):
        _finish_unseen(handle, attempt)
        return
    slots, steps = handle.at.table.slots, dict[str, Any]()
    for key, entry in changes.items():
        slot = slots.get(key)
        if slot is not None and entry is not None and not slot.is_set and not isinstance(slot.value, Mark):
            wanted = split_expiry(entry)[1] if slot.wanted is UNASKED else slot.wanted
            steps[key] = slot, slot.replaced(is_set=True, wanted=wanted)
    handle.go(steps=steps or None, pending=None, doubts=(*handle.at.doubts, attempt))


def land_doubt(handle: Handle, branch: str, head: ObjectId) -> bool:
    """Whether a commit that was not on the branch before is now behind `head`. If so, the handle is at it.

    Not if some of its changes were undone here since: then it counts as a commit of somebody else.
    """
    table = handle.at.table
    for attempt in handle.at.doubts:
        if attempt.branch == branch and handle.repo.is_behind(attempt.commit.oid, head):
            changed = _changed_by(handle, attempt)
            staged = {key for key in changed if key in table.slots and table.slots[key].dirty}
            if (staged | handle.plan(keys=changed).touched).issuperset(changed):
                _finish_unseen(handle, attempt, late=True)
                return True
    return False


def _explain(handle: Handle, error: VStateError, commit: Commit) -> None:
    """Drop the pending call if the error says that nothing was written; else say how to find out."""
    if not may_have_written(error):
        handle.at = handle.at.moved(pending=None)
    elif isinstance(error, StoreUnavailable) and error.outcome_unknown:
        error.message += (
            f"; whether commit {commit.short} was made is not known: the next call on this state "
            "looks, and state.head tells then"
        )


class _LandedLate(Exception):
    """A commit whose outcome was unknown turned out to be on the branch, and the handle is at it now."""


def may_have_written(error: VStateError) -> bool:
    """Whether the store call behind this error may have written something. A look tells, at the next call."""
    return isinstance(error, StorageError) and not isinstance(error, StoreFull)
