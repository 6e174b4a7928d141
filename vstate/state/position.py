"""Position: where a handle is, and the calls that it has begun, as one immutable record.

A handle has one position, and one assignment replaces it. So an exception of any class, at any line, leaves
the handle at the old position or at the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from weakref import ReferenceType

from vstate.objects.commit import Commit, Event
from vstate.state.slots import Mark, Slot, SlotTable, Steps
from vstate.state.turns import Token, is_live
from vstate.values.entry import Encoded

NO_VALUES: Final[Mapping[str, Any]] = MappingProxyType({})
"""The `hot` of a position at which every reader has to take the lock."""


SAME: Final = Mark("SAME")
"""The argument that leaves a field of a position as it is, where None means something."""


class CommitInFlight(NamedTuple):
    """A commit on its way to the branch, and the steps and events that it covers.

    It is `whole` unless only the changes of chosen keys are in it.
    """

    branch: str
    commit: Commit
    steps: Steps
    events: tuple[Event, ...]
    whole: bool = True


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


class Unsettled(NamedTuple):
    """The part of a position that is rarely there.

    - `steps`: steps of slots that belong to this position and may not have been taken yet.
    - `pending`: a call of the store whose outcome the handle has not seen.
    - `open`: the update and the savepoints that are under way, the outermost first.
    - `owed`: the moment that the handle has to go back to.
    - `doubts`: commits that were not on the branch when the handle looked. A server may still carry one out,
      as long as the branch has not moved.
    """

    steps: Steps | None = None
    pending: UnknownOutcome | None = None
    open: tuple[Saved, ...] = ()
    owed: Saved | None = None
    doubts: tuple[CommitInFlight, ...] = ()

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
        if self.steps is not None or self.owed is not None:
            return False
        if self.pending is not None and not self.pending.is_commit:
            return False
        for each in self.open:  # noqa: SIM110 `all` would make a generator for each key that is read
            if not is_live(each.token):
                return False
        return True


SETTLED: Final = Unsettled()


class Position(NamedTuple):
    """Where the handle is: `head` on `branch`, the `events` that no commit holds yet, and the values in hand.

    `hot` is the cache of the table, or `NO_VALUES` while a value there might be undone or be of another
    commit. `epoch` counts the commits that landed. `rest` is None where nothing is unsettled, which one test
    finds out.
    """

    hot: Mapping[str, Any]
    table: SlotTable
    head: Commit | None
    branch: str | None
    events: tuple[Event, ...] = ()
    epoch: int = 0
    rest: Unsettled | None = None

    def moved(
        self,
        *,
        table: SlotTable | None = None,
        head: Any = SAME,
        branch: Any = SAME,
        events: tuple[Event, ...] | None = None,
        **unsettled: Any,
    ) -> Position:
        """This position with other fields, and other fields of `Unsettled`; `hot` follows from them."""
        rest, table = (self.rest or SETTLED)._replace(**unsettled), table or self.table
        return Position(
            table.cache if rest[:-1] == SETTLED[:-1] else NO_VALUES,  # in doubt, readers need no lock
            table,
            self.head if head is SAME else head,
            self.branch if branch is SAME else branch,
            self.events if events is None else events,
            self.epoch,
            None if rest == SETTLED else rest,
        )
