"""Committing: the changes in hand become a commit on the branch, once, whatever happens on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from threading import Lock
from typing import Any, Literal
from weakref import ref

from vstate.arguments import check_info, check_key
from vstate.errors import (
    CorruptObject,
    InvalidInput,
    NotFound,
    StorageError,
    StoreFull,
    StoreUnavailable,
    VStateError,
)
from vstate.objects import tree
from vstate.objects.commit import Commit, Event
from vstate.objects.ids import ObjectId
from vstate.repo.core import Advance, Guard
from vstate.repo.names.refs import HEADS
from vstate.repo.writing import reflog_action, told_of
from vstate.spans import spanned
from vstate.state.base import check_several, missing
from vstate.state.handle import Handle
from vstate.state.plan import Plan
from vstate.state.position import NO_VALUES, SETTLED, Landing, Pending, Position, Unsettled, is_live

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
    if info:
        check_info(info)
    if keys is not None:
        keys = frozenset(map(check_key, check_several(keys, "commit")))
    if on_race not in ("merge", "raise"):
        raise InvalidInput(f"on_race is 'merge' or 'raise', not {on_race!r}")
    attempt = None if handle.at.rest is None else handle.at.rest.attempt
    if attempt is not None and attempt.notes.open and is_live(attempt.token) and handle.turns.nested:
        raise InvalidInput("an update commits by itself, once its function has returned; leave commit() out")
    return handle.alone(commit_now, handle, message, info, guard, None, on_race, keys)


@spanned("commit", lambda commit, *_: told_of([commit]))
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
    branch, base = handle.own_branch(), handle.at.head
    try:
        return _commit_to(branch, handle, message, info, guard, depends_on, on_race, keys)
    except (CorruptObject, NotFound):
        if base is handle.at.head:
            handle.require_base()
        raise


def _commit_to(
    branch: str,
    handle: Handle,
    message: str,
    info: Mapping[str, Any],
    guard: Guard | None,
    depends_on: Callable[[str], bool] | None,
    on_race: OnRace,
    keys: frozenset[str] | None,
) -> Commit | None:
    handle.require_idle("committed")
    if handle.hooks.functions:
        handle.hooks.run()
    if handle.at.rest is not None and (attempt := handle.at.rest.attempt) is not None:
        attempt.notes.open = False
    for key in keys or ():
        if key not in handle.at.hand.slots and not handle.contains(key):
            raise missing(key)
    while True:
        handle.at.hand.handed = set()
        plan, at = handle.require_picklable(handle.plan(keys=keys)), handle.at
        before = None if at.head is None else at.head.root
        root, objects, nodes = tree.update(handle.repo.objects.node, before, plan.changes)
        if root == before and not at.events:
            if plan.steps or at.rest is not None:
                handle.go(steps=plan.steps, attempt=None)
            handle.at.hand.seal(plan.unshared)
            return None
        commit = handle.repo.build_commit(
            root, () if at.head is None else (at.head,), message=message, info=info, events=at.events
        )
        landing, token = Landing(branch, commit, plan.steps, at.events, keys is None), Lock()
        for key in plan.expiring:
            at.hand.cache.pop(key, None)  # landed or not, its readers have to look at the clock
        pending = Pending(ref(token), partial(_look_for, handle, landing))
        while not handle.swap(at := handle.at, at.awaiting(pending)):
            pass
        try:
            with token:
                head, moved = _publish(handle, landing, plan, objects, nodes, depends_on, guard, on_race)
                land(handle, landing, head, moved)
        except _LandedLate:
            continue
        except VStateError as error:
            _explain(handle, error, pending, landing.commit)
            raise
        handle.at.hand.seal(plan.unshared)
        return head


def _publish(
    handle: Handle,
    landing: Landing,
    plan: Plan,
    objects: dict[ObjectId, Any],
    nodes: list[Any],
    depends_on: Callable[[str], bool] | None,
    guard: Guard | None,
    on_race: OnRace,
) -> tuple[Commit, Iterable[str]]:
    """Put the commit on its branch: the commit where the branch is then, and the keys that others changed."""
    base, commit = handle.at.head, landing.commit
    new = plan.objects | objects
    action = partial(reflog_action, commit=commit)
    expected = None if base is None else base.oid
    advance = Advance(landing.branch, (commit,), new, nodes, expected, action("commit"))
    if handle.repo.publish_all([advance], guard=guard):
        return commit, ()
    if on_race == "raise":
        head = handle.repo.refs.read(HEADS + landing.branch)
        if head is not None:
            _stop_at_doubt(handle, landing.branch, head)
        raise handle.repo.ref_moved(HEADS + landing.branch, expected)
    from vstate.state.merging import publish_merged  # late: most commits win their race

    return publish_merged(
        handle.repo,
        landing,
        plan,
        new,
        nodes,
        base=base,
        action=action,
        guard=guard,
        on_race=partial(_stop_at_doubt, handle, landing.branch),
        edited=partial(handle.edited, plan),
        depends_on=depends_on,
    )


def land(
    handle: Handle, landing: Landing, head: Commit, moved: Iterable[str] = (), *, late: bool = False
) -> None:
    """Be at a commit that is on the branch with our changes: one assignment, and then its steps.

    It ends the attempt of an update, unless it is an earlier commit that landed `late`.
    """
    steps = landing.steps
    if moved:
        steps = steps | handle.at.hand.forget(moved, steps)

    def landed(at: Position) -> Position:
        rest = at.rest or SETTLED
        events: tuple[Event, ...] = ()
        if at.events is not landing.events:  # some came while the commit was made
            known = set(map(id, landing.events))
            events = tuple(event for event in at.events if id(event) not in known)
        attempt = rest.attempt if late else None
        saved = rest.open
        if saved and not landing.whole:  # the other keys that were staged then are staged still
            saved = tuple(each.without(steps) if each.epoch == at.epoch else each for each in saved)
        rest = Unsettled(steps, None, attempt, saved, rest.owed)
        hot = at.hot if not moved and at.hot is at.hand.cache else NO_VALUES
        return Position(hot, at.hand, head, at.branch, events, at.epoch + 1, rest)

    handle.change(landed)
    handle.take_steps()


def _look_for(handle: Handle, landing: Landing) -> None:
    """Find out whether a commit is on its branch, and be there if it is."""
    if handle.repo.has_landed(landing.branch, landing.commit.oid):
        land(handle, landing, landing.commit)
    else:
        late = _sharing(landing, handle.rest.doubts)
        handle.change(lambda at: at.moved(pending=None, doubts=(*(at.rest or SETTLED).doubts, late)))


def _sharing(landing: Landing, doubts: tuple[Landing, ...]) -> Landing:
    """The landing, with the steps of the last doubt if both make the same tree of the same slots.

    A program may try again for hours. So another try must not keep another copy of all steps.
    """
    if not doubts:
        return landing
    last = doubts[-1]
    same = (
        (last.commit.root, last.commit.parent_ids) == (landing.commit.root, landing.commit.parent_ids)
        and last.steps.keys() == landing.steps.keys()
        and all(landing.steps[key][0] is old for key, (old, _) in last.steps.items())
    )
    return landing._replace(steps=last.steps) if same else landing


def land_doubt(handle: Handle, branch: str, head: ObjectId) -> bool:
    """Whether a commit that was not on the branch before is now behind `head`. If so, the handle is at it.

    Not if some of its changes were undone here since: then it counts as a commit of somebody else.
    """
    slots = handle.at.hand.slots
    for landing in handle.rest.doubts:
        if landing.branch == branch and handle.repo.is_behind(landing.commit.oid, head):
            for key, (old, _) in landing.steps.items():
                now = slots.get(key)
                if now is not old and (now is None or not now.set_at):
                    return False
            land(handle, landing, landing.commit, late=True)
            return True
    return False


def _stop_at_doubt(handle: Handle, branch: str, head: ObjectId) -> None:
    """Raise _LandedLate if a commit whose outcome was unknown is why the race was lost."""
    if land_doubt(handle, branch, head):
        raise _LandedLate


def _explain(handle: Handle, error: VStateError, pending: Pending, commit: Commit) -> None:
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
