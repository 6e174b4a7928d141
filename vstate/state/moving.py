"""Moving: the handle goes to another commit, with its branch or to another branch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from vstate.errors import (
    Conflict,
    CorruptObject,
    MergeConflict,
    NotFound,
    RefMoved,
    UntrustedCommit,
    VStateError,
)
from vstate.objects import tree
from vstate.objects.commit import Commit, microseconds
from vstate.objects.expiry import is_expired, moment_of
from vstate.objects.ids import ObjectId
from vstate.objects.tree import KeyChange
from vstate.repo.names.refs import HEADS, Head
from vstate.state.committing import land_doubt, may_have_written
from vstate.state.handle import Handle
from vstate.state.plan import Plan, make_plan
from vstate.state.position import UnknownOutcome
from vstate.state.slots import ABSENT, CLEAN, FORGET, Mark, Slot, Steps

_T = TypeVar("_T")

LOOKED_UP = 8
"""With at most so many keys in hand each is looked up, however much others have changed."""


def moving(handle: Handle, move: Callable[[], _T], *, look: Callable[[], None] | None = None) -> _T:
    """The result of `move`, which moves the branch; `arrive` has to follow.

    If neither is seen to end, `look` goes where the branch turns out to be, by default to its newest commit.
    """
    handle.require_idle("moved")
    pending = UnknownOutcome(handle.operation, look or partial(look_at_branch, handle))
    handle.at = handle.at.moved(pending=pending)
    try:
        return move()
    except VStateError as error:
        if handle.at.pending is pending and not may_have_written(error):
            handle.at = handle.at.moved(pending=None)
        raise


def look_at_branch(handle: Handle) -> None:
    """Go where the branch is. A conflict or an untrusted commit there is left to the next commit."""
    with suppress(Conflict, UntrustedCommit):
        go_to_newest(handle)
    handle.at = handle.at.moved(pending=None)


def arrive(
    handle: Handle,
    commit: Commit | None,
    moved: Iterable[str],
    *,
    branch: str | None,
    agreed: Mapping[str, bytes | None] = MappingProxyType({}),
    planned: Steps | None = None,
) -> None:
    """Be at a commit with other values for the keys `moved`; the entries `agreed` are staged here too.

    A key that was set after the `planned` steps were made stays set.
    """
    table = handle.at.table
    steps: Steps = {key: (table.slots.get(key), FORGET) for key in moved}
    if planned is not None:
        steps = table.forget(moved, planned)
    for key, entry in agreed.items():
        slot = table.slots.get(key) if planned is None else planned[key][0]
        assert slot is not None, "a key that is staged has a slot"
        due = None if entry is None else moment_of(entry)
        if isinstance(slot.value, Mark):
            steps[key] = slot, FORGET
        elif slot.fixed and due is None:
            steps[key] = slot, CLEAN
        else:
            steps[key] = slot, Slot(slot.value, slot.fixed, False, None, due)
    found = (each.after(commit) for each in handle.at.doubts if commit is not None and each.branch == branch)
    doubts = tuple(each for each in found if each is not None)
    handle.go(head=commit, branch=branch, steps=steps, pending=None, doubts=doubts)
    for each in handle.companions:
        each.follow()


def begin_anew(handle: Handle, commit: Commit) -> None:
    """Be at a commit of this branch with nothing in hand."""
    handle.clear(head=commit, events=(), pending=None, doubts=())
    for each in handle.companions:
        each.follow()


def refresh(handle: Handle) -> Commit | None:
    """As `Versioned.refresh` promises."""
    if handle.follows_head:
        head = handle.repo.refs.head()
        if head.branch != handle.at.branch:
            handle.require_clean("refresh", is_leaving=True)
        _go_to(handle, head)
    else:
        go_to_newest(handle)
    return handle.at.head


def go_to_newest(handle: Handle) -> None:
    """Go to the newest commit of the branch that this state is on, wherever HEAD is."""
    with handle.outside_held() if handle.companions else handle.lock:
        branch, at = handle.at.branch, handle.at.head
        if branch is None:
            _go_to(handle, handle.repo.refs.head())
        else:
            known = None if at is None else at.oid
            _go_to(handle, Head(branch, handle.repo.refs.read(HEADS + branch, known)))


def _go_to(handle: Handle, head: Head) -> None:
    at = handle.at
    if at.head is not None and (head.commit, head.branch) == (at.head.oid, at.branch):
        for each in handle.companions:
            each.follow()
        return
    commit = handle.repo.commit_at(head)
    if commit is not None:
        if handle.at.doubts and head.branch is not None:
            land_doubt(handle, head.branch, commit.oid)
        move(handle, handle.trusted(commit), head.branch)
    elif at.head is not None:
        raise RefMoved(f"{HEADS}{head.branch}", expected=at.head.id, actual=None)
    else:
        handle.at = at.moved(branch=head.branch)


def move(handle: Handle, commit: Commit, branch: str | None) -> None:
    """Go to another commit with the staged changes. Values that are the same there stay the same objects."""
    for each in handle.companions:
        each.look(is_leaving=True)
    at = handle.at
    try:
        plan = handle.plan()
        changes = plan.changes | dict.fromkeys(plan.unpicklable, b"")
        foreign, agreed = _foreign_changes(handle, at.head, commit, changes, at.branch, plan)
    except CorruptObject:
        if not handle.is_base_gone():
            raise
        if _go_to_replaced(handle):
            move(handle, commit, branch)
            return
        _require_nothing_staged(handle)
        handle.clear(head=commit, branch=branch, pending=None, doubts=())
        for each in handle.companions:
            each.follow()
        return
    arrive(handle, commit, foreign, branch=branch, agreed=agreed, planned=plan.steps)


def _foreign_changes(
    handle: Handle,
    base: Commit | None,
    theirs: Commit,
    changes: Mapping[str, bytes | None],
    branch: str | None,
    plan: Plan,
) -> tuple[list[str], dict[str, bytes | None]]:
    """The keys that they alone changed since the base, and the entries of the keys that both changed alike.

    Raises MergeConflict naming the keys that both changed otherwise.
    """
    foreign: list[str] = []
    agreed: dict[str, bytes | None] = {}
    conflicts: list[str] = []
    at = microseconds(theirs.time)
    for key, old, new in _changes_in_hand(handle, base.root if base else None, theirs.root):
        if key in changes and new is None and is_expired(old, at):
            continue  # the removal of an expired key changed nothing
        if key not in changes:
            foreign.append(key)
        elif changes[key] == new:
            agreed[key] = new
        else:
            conflicts.append(key)
    if agreed and branch is not None:
        policies = handle.repo.policies.read(branch)
        conflicts += [key for key in agreed if handle.repo.policies.adds_up(policies, key)]
    if conflicts:
        raise MergeConflict(conflicts, branch=branch)
    return foreign, agreed


def _changes_in_hand(handle: Handle, old: ObjectId | None, new: ObjectId | None) -> Iterator[KeyChange]:
    """The differences between two trees in the keys that are in hand, and perhaps in others."""
    table, read = handle.at.table, handle.repo.objects.nodes
    if len(table.slots) + len(table.cache) > LOOKED_UP:
        yield from tree.diff(read, old, new)
        return
    keys = table.slots.keys() | table.cache.keys()
    if not keys:
        return
    before, after = (tree.lookup_many(read, root, keys) for root in (old, new))
    for key in keys:
        if before.get(key) != after.get(key):
            yield KeyChange(key, before.get(key), after.get(key))


def _go_to_replaced(handle: Handle) -> bool:
    """Go to the commit that `erase` made in place of this one, with what is staged; False if it made none."""
    at = handle.at
    assert at.head is not None
    base = handle.repo.objects.replacement(at.head.oid)
    if base is None:
        return False
    plan = make_plan(handle.repo, at.table, None)  # the tree is gone
    staged = {key for key, slot in at.table.slots.items() if slot.value is ABSENT}
    staged |= plan.changes.keys() | plan.unpicklable.keys()
    in_hand = at.table.slots.keys() | at.table.cache.keys()
    arrive(handle, base, in_hand - staged, branch=at.branch)
    return True


def _require_nothing_staged(handle: Handle) -> None:
    """Raise NotFound if something is staged on a commit that gc has removed."""
    at = handle.at
    assert at.head is not None
    plan = make_plan(handle.repo, at.table, None)  # the tree cannot be read
    deleted = any(slot.value is ABSENT for slot in at.table.slots.values())
    if plan.changes or plan.unpicklable or deleted or at.events:
        raise NotFound(
            f"gc has removed {at.head.short}, the commit under the uncommitted changes: copy the values that "
            "you need, then call discard() and refresh()",
            name=at.head.id,
        )
