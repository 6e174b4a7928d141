"""Committing: the changes in hand become a commit on the branch, once, whatever happens on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal

from vstate.arguments import check_info, check_several, check_state_key
from vstate.errors import (
    InvalidInput,
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
from vstate.objects.ids import ObjectId
from vstate.repo.core import Advance, Guard
from vstate.repo.names.refs import HEADS
from vstate.repo.writing import commit_attributes, reflog_action
from vstate.spans import spanned
from vstate.state.base import missing
from vstate.state.handle import Handle
from vstate.state.plan import Plan
from vstate.state.position import NO_VALUES, SETTLED, CommitInFlight, Position, UnknownOutcome, Unsettled

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
    rest = handle.at.rest
    if rest is not None and rest.is_in_update and handle.turns.nested:
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
    if handle.at.rest is not None and (notes := handle.at.rest.notes) is not None:
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
            if plan.steps or at.rest is not None:
                handle.go(steps=plan.steps, open=handle.rest.inner)
            handle.at.table.seal(plan.unshared)
            return None
        commit = handle.repo.build_commit(
            root, () if at.head is None else (at.head,), message=message, info=info, events=at.events
        )
        in_flight = CommitInFlight(branch, commit, plan.steps, at.events, keys is None)
        pending = UnknownOutcome(handle.operation, partial(_look_for, handle, in_flight), True)
        while True:
            at = handle.at
            rest = (at.rest or SETTLED)._replace(pending=pending)
            if handle.swap(at, at._replace(rest=rest)):  # readers still take values without the lock
                break
        try:
            head, moved = _publish(handle, in_flight, plan, objects, nodes, depends_on, guard, on_race)
            finish_commit(handle, in_flight, head, moved)
        except _LandedLate:
            continue
        except VStateError as error:
            _explain(handle, error, pending, in_flight.commit)
            if isinstance(error, NotFound):
                handle.require_base()
            raise
        handle.at.table.seal(plan.unshared)
        return head


def _publish(
    handle: Handle,
    in_flight: CommitInFlight,
    plan: Plan,
    objects: dict[ObjectId, Any],
    nodes: list[Any],
    depends_on: Callable[[str], bool] | None,
    guard: Guard | None,
    on_race: OnRace,
) -> tuple[Commit, Iterable[str]]:
    """Put the commit on its branch: the commit where the branch is then, and the keys that others changed."""
    base, commit = handle.at.head, in_flight.commit
    new = plan.objects | objects
    expected = None if base is None else base.oid
    action = reflog_action("commit", commit)
    advance = Advance(in_flight.branch, (commit,), new, nodes, expected, action)
    if handle.repo.publish_all([advance], guard=guard):
        return commit, ()
    stop_at_doubt = partial(_stop_at_doubt, handle, in_flight.branch)
    if on_race == "raise":
        head = handle.repo.refs.read(HEADS + in_flight.branch)
        if head is not None:
            stop_at_doubt(head)
        raise handle.repo.ref_moved(HEADS + in_flight.branch, expected)
    from vstate.state.merging import publish_merged  # late: most commits win their race

    return publish_merged(handle, in_flight, plan, new, nodes, stop_at_doubt, guard, depends_on)


def finish_commit(
    handle: Handle, in_flight: CommitInFlight, head: Commit, moved: Iterable[str] = (), *, late: bool = False
) -> None:
    """Be at a commit that is on the branch with our changes: one assignment, and then its steps.

    It ends the update that is under way, unless it is an earlier commit that landed `late`.
    """
    steps = in_flight.steps
    if moved:
        steps = steps | handle.at.table.forget(moved, steps)

    def landed(at: Position) -> Position:
        rest = at.rest or SETTLED
        events: tuple[Event, ...] = ()
        if at.events is not in_flight.events:  # some came while the commit was made
            known = set(map(id, in_flight.events))
            events = tuple(event for event in at.events if id(event) not in known)
        saved = rest.open if late or not rest.open else rest.inner
        if saved and (late or not in_flight.whole):  # the other keys that were staged then are staged still
            held = () if late else steps
            saved = tuple(each.without(held) if each.epoch == at.epoch else each for each in saved)
        rest = Unsettled(steps, None, saved, rest.owed)
        hot = at.hot if not moved and at.hot is at.table.cache else NO_VALUES
        return Position(hot, at.table, head, at.branch, events, at.epoch + 1, rest)

    handle.change(landed)
    handle.take_steps()


def _look_for(handle: Handle, in_flight: CommitInFlight) -> None:
    """Find out whether a commit is on its branch, and be there if it is."""
    if handle.repo.has_landed(in_flight.branch, in_flight.commit.oid):
        finish_commit(handle, in_flight, in_flight.commit)
    else:
        late = _sharing(in_flight, handle.rest.doubts)
        handle.change(lambda at: at.moved(pending=None, doubts=(*(at.rest or SETTLED).doubts, late)))


def _sharing(in_flight: CommitInFlight, doubts: tuple[CommitInFlight, ...]) -> CommitInFlight:
    """The landing, with the steps of the last doubt if both make the same tree of the same slots.

    A program may try again for hours. So another try must not keep another copy of all steps.
    """
    if not doubts:
        return in_flight
    last = doubts[-1]
    same = (
        (last.commit.root, last.commit.parent_ids) == (in_flight.commit.root, in_flight.commit.parent_ids)
        and last.steps.keys() == in_flight.steps.keys()
        and all(in_flight.steps[key][0] is old for key, (old, _) in last.steps.items())
    )
    return in_flight._replace(steps=last.steps) if same else in_flight


def land_doubt(handle: Handle, branch: str, head: ObjectId) -> bool:
    """Whether a commit that was not on the branch before is now behind `head`. If so, the handle is at it.

    Not if some of its changes were undone here since: then it counts as a commit of somebody else.
    """
    slots = handle.at.table.slots
    for in_flight in handle.rest.doubts:
        if in_flight.branch == branch and handle.repo.is_behind(in_flight.commit.oid, head):
            changed = [key for key, (old, _) in in_flight.steps.items() if slots.get(key) is not old]
            if handle.plan(keys=changed).touched.issuperset(changed):
                finish_commit(handle, in_flight, in_flight.commit, late=True)
                return True
    return False


def _stop_at_doubt(handle: Handle, branch: str, head: ObjectId) -> None:
    """Raise _LandedLate if a commit whose outcome was unknown is why the race was lost."""
    if land_doubt(handle, branch, head):
        raise _LandedLate


def _explain(handle: Handle, error: VStateError, pending: UnknownOutcome, commit: Commit) -> None:
    """Drop the pending call if the error says that nothing was written; else say how to find out."""
    if handle.rest.pending is not pending:
        return
    if not may_have_written(error):
        handle.change(lambda at: at.moved(pending=None))
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
