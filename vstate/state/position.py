"""Position: where a handle is, and the moments that it may go back to, as one immutable record.

A handle has one position, and one assignment replaces it. So an exception of any class, at any line, leaves
the handle at the old position or at the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import ReferenceType, ref

from vstate.errors import CannotLoad
from vstate.objects.commit import Commit, Event
from vstate.repo.objects import Overlay
from vstate.state.slots import FORGET, UNREAD, Mark, Slot, SlotTable, Step, Steps
from vstate.state.tracking import is_immutable
from vstate.state.turns import Token, is_live
from vstate.values.entry import Encoded

if TYPE_CHECKING:
    from vstate.state.handle import Handle  # the type alone: a handle goes back to its savepoints

NO_VALUES: Final[Mapping[str, Any]] = MappingProxyType({})
"""The `hot` of a position at which every reader has to take the lock."""


class Attempt(NamedTuple):
    """A commit on its way to the branch, and its events.

    - `whole`: it has the changes of all keys.
    - `merges`: the commits that merge it into what others committed, one for each try.
    """

    branch: str
    commit: Commit
    events: tuple[Event, ...]
    whole: bool
    merges: list[Commit]

    def after(self, head: Commit) -> Attempt | None:
        """The attempt for a handle that has gone to this head; None if it cannot land there any more."""
        last = self.merges[-1] if self.merges else None
        if last is None or last.parent_ids[0] != head.oid:
            return None
        return self._replace(commit=last, merges=[])


class UnknownOutcome(NamedTuple):
    """A call of the store whose outcome the handle has not seen. It counts once its operation is over.

    `look` asks the store, and goes where it says. A commit leaves the values in hand as they are, so that
    reads and writes need not look.
    """

    operation: ReferenceType[Token]
    look: Callable[[], None]
    is_commit: bool = False


class ReadSet:
    """The keys that an update read, wrote, listed or found missing. They only grow.

    They are `open` while the function of the update runs. Later the pickling of a value may read other keys,
    on which the update does not depend.
    """

    def __init__(self) -> None:
        self.open = True
        self.keys: set[str] = set()
        self.prefixes: set[str] = set()

    def __contains__(self, key: object) -> bool:
        return key in self.keys or (isinstance(key, str) and any(map(key.startswith, self.prefixes)))


class Saved(NamedTuple):
    """A moment that the handle goes back to when the token is over: that of a savepoint or of an update.

    `staged` was staged then. Once the epoch has moved on, a commit holds it: nothing is staged. An update
    goes back in the keys that it `notes`, and to the `events` of then. A savepoint goes back in all keys, and
    keeps the events.
    """

    token: ReferenceType[Token]
    epoch: int
    staged: Mapping[str, tuple[Slot, Encoded | None]]
    notes: ReadSet | None = None
    events: tuple[Event, ...] = ()

    def without(self, keys: Iterable[str]) -> Saved:
        """The savepoint after a commit of these keys alone."""
        left = {key: found for key, found in self.staged.items() if key not in keys}
        return self._replace(epoch=self.epoch + 1, staged=left)


class Position(NamedTuple):
    """Where the handle is: `head` on `branch`, the `events` that no commit holds yet, and the values in hand.

    - `hot`: the cache of the table, or `NO_VALUES` while a value there might be undone or be of another
      commit.
    - `epoch` counts the commits that landed.
    - `steps`: steps of slots that belong to this position and may not have been taken yet.
    - `pending`: a call of the store whose outcome the handle has not seen.
    - `open`: the update and the savepoints that are under way, the outermost first. The handle has to go back
      to one whose token is over.
    - `doubts`: commits that were not on the branch when the handle looked. A server may still carry one out,
      as long as the branch has not moved.
    - `settled`: whether there are none of these four.
    """

    hot: Mapping[str, Any]
    table: SlotTable
    head: Commit | None
    branch: str | None
    events: tuple[Event, ...] = ()
    epoch: int = 0
    steps: Steps | None = None
    pending: UnknownOutcome | None = None
    open: tuple[Saved, ...] = ()
    doubts: tuple[Attempt, ...] = ()
    settled: bool = True

    def moved(self, **fields: Any) -> Position:
        """This position with other fields; `hot` and `settled` follow from them."""
        new = self._replace(**fields)
        quiet = new.steps is None and new.pending is None and not new.open  # in doubt, readers need no lock
        return new._replace(hot=new.table.cache if quiet else NO_VALUES, settled=quiet and not new.doubts)

    @property
    def notes(self) -> ReadSet | None:
        """What the update that is under way has read; None without one. An update is the outermost."""
        return self.open[0].notes if self.open else None

    @property
    def is_in_update(self) -> bool:
        """Whether the function of an update runs."""
        return self.notes is not None and self.notes.open and is_live(self.open[0].token)

    @property
    def inner(self) -> tuple[Saved, ...]:
        """The savepoints that are under way, without the update."""
        return self.open if self.notes is None else self.open[1:]

    @property
    def is_usable(self) -> bool:
        """Whether the values in hand are right as they are, and stay so."""
        if self.steps is not None or (self.pending is not None and not self.pending.is_commit):
            return False
        for each in self.open:  # noqa: SIM110 `all` would make a generator for each key that is read
            if not is_live(each.token):
                return False
        return True


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
        with handle.lock:
            at = handle.settle()
            plan = handle.require_picklable(handle.plan())
            slots = at.table.slots
            staged = {key: (_without_value(slots[key]), encoded) for key, encoded in plan.staged.items()}
            handle.at = at.moved(open=(*at.open, Saved(ref(self.token), at.epoch, staged)))

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
        handle = self._handle
        with handle.lock:
            left = tuple(saved for saved in handle.at.open if saved.token() is not self.token)
            handle.at = handle.at.moved(open=left)


def restore(handle: Handle, number: int) -> None:
    """Go back to an open savepoint, by its number. Everything is read first, and then one assignment follows.

    Savepoints inside mean this moment from now on: their own would bring back changes made outside of them.
    """
    at = handle.at
    owed = at.open[number]
    inner = tuple(each._replace(epoch=owed.epoch, staged=owed.staged) for each in at.open[number + 1 :])
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
    handle.go(steps=steps, open=at.open[:number] + inner, events=events)
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
