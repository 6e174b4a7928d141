"""Savepoints: the values of a handle as they were, to go back to."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final
from weakref import ref

from vstate.errors import CannotLoad
from vstate.repo.objects import Overlay
from vstate.state.position import SETTLED, Position, Saved
from vstate.state.slots import FORGET, UNREAD, Mark, Slot, Step
from vstate.state.tracking import is_immutable
from vstate.values.entry import Encoded

if TYPE_CHECKING:
    from vstate.state.handle import Handle  # the type alone: a handle restores its savepoints


SAVED: Final = Mark("SAVED")
"""The value of a saved slot: its savepoint has the value encoded."""


class Savepoint:
    """The values of a handle at some moment, to go back to.

    A savepoint that is dropped without `restore` or `release` is restored, however its frame ended.
    """

    __slots__ = ("_handle", "token")

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self.token = Lock()
        self.token.acquire()

    def end(self) -> None:
        """Have the next call on the state restore it."""
        if self.token.locked():
            self.token.release()

    def restore(self) -> None:
        """Have the values that were in hand then. Recorded events stay. CannotLoad, StorageError.

        If the store cannot be reached, the next call on the state restores them.
        """
        self.end()
        with self._handle.lock:
            self._handle.settle()

    def release(self) -> None:
        """Keep the values as they are."""
        with self._handle.lock:
            release(self._handle, self)


def save(handle: Handle) -> Savepoint:
    """Where the values are now, to go back to."""
    with handle.lock:
        at = handle.settle()
        savepoint = Savepoint(handle)
        plan = handle.require_picklable(handle.plan())
        slots = at.table.slots
        staged = {key: (_without_value(slots[key]), encoded) for key, encoded in plan.staged.items()}
        saved = Saved(ref(savepoint.token), at.epoch, staged)
        handle.change(lambda at: at.moved(open=(*(at.rest or SETTLED).open, saved)))
    return savepoint


def release(handle: Handle, savepoint: Savepoint) -> None:
    """Keep the values as they are now; the lock is held."""

    def released(at: Position) -> Position:
        open_now = (at.rest or SETTLED).open
        return at.moved(open=tuple(saved for saved in open_now if saved.token() is not savepoint.token))

    handle.change(released)


def restore(handle: Handle, owed: Saved) -> None:
    """Have the values of that moment: everything is read first, and then one assignment follows."""
    at = handle.at
    slots, saved = at.table.slots, owed.staged if owed.epoch == at.epoch else {}
    plan = handle.plan()
    now, moved = plan.staged, set(plan.unpicklable)
    for key in now.keys() | saved.keys():
        if key not in saved or key not in now or now[key] != saved[key][1]:
            moved.add(key)
    events = at.events
    if owed.notes is not None:
        # Other threads' reads and writes are noted too. Their edits in place of other keys stay.
        moved = {key for key in moved if key in owed.notes}
        known = set(map(id, owed.events))
        events = tuple(event for event in events if id(event) in known)
    steps: dict[str, Step] = {}
    failure: CannotLoad | None = None
    for key in moved:
        if key not in saved:
            steps[key] = slots.get(key), FORGET
            continue
        try:
            steps[key] = slots.get(key), _saved_slot(handle, key, *saved[key])
        except CannotLoad as error:  # the others go back all the same, and this one stays in hand
            failure = failure or error
    # If a signal handler used the state meanwhile, it has restored the savepoint first.
    handle.swap(at, at.moved(steps=steps, owed=None, events=events))
    handle.take_steps()
    if failure is not None:
        raise failure


def _without_value(slot: Slot) -> Slot:
    """The slot without its value, which the program may edit, and without its base."""
    return slot if isinstance(slot.value, Mark) else slot.replaced(value=SAVED, base=None)


def _saved_slot(handle: Handle, key: str, slot: Slot, encoded: Encoded | None) -> Slot:
    """The slot with its value of then. Its times are those of then too, so it expires as it would have."""
    if encoded is None or slot.value is UNREAD:
        return slot
    value = handle.repo.load(key, encoded.entry, Overlay(handle.repo.objects, encoded.objects)).value
    return slot.replaced(value=value, fixed=is_immutable(value))
