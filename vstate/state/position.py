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

    `look` asks the store, and goes where it says.
    """

    operation: ReferenceType[Token]
    look: Callable[[], None]


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


class PublishAttempt(NamedTuple):
    """One attempt of an update.

    `events` are those recorded before it began.
    """

    token: ReferenceType[Token]
    notes: ReadSet
    events: tuple[Event, ...]


class Saved(NamedTuple):
    """The staged changes of a savepoint. Once the epoch has moved on, a commit holds them: none is staged."""

    token: ReferenceType[Token]
    epoch: int
    staged: Mapping[str, tuple[Slot, Encoded | None]]

    def without(self, keys: Iterable[str]) -> Saved:
        """The savepoint after a commit of these keys alone."""
        left = {key: found for key, found in self.staged.items() if key not in keys}
        return self._replace(epoch=self.epoch + 1, staged=left)


class Unsettled(NamedTuple):
    """The part of a position that is rarely there.

    - `steps`: steps of slots that belong to this position and may not have been taken yet.
    - `pending`: a call of the store whose outcome the handle has not seen.
    - `attempt`: the attempt of an update that is under way.
    - `open`: the savepoints that are under way, the outermost first.
    - `owed`: the savepoint that the handle has to go back to.
    - `doubts`: commits that were not on the branch when the handle looked. A server may still carry one out,
      as long as the branch has not moved.
    """

    steps: Steps | None = None
    pending: UnknownOutcome | None = None
    attempt: PublishAttempt | None = None
    open: tuple[Saved, ...] = ()
    owed: Saved | None = None
    doubts: tuple[CommitInFlight, ...] = ()

    @property
    def is_under_way(self) -> bool:
        """Whether an attempt that is under way is all that is unsettled: mostly so inside an update."""
        if self.attempt is None or self.open or self.steps is not None:
            return False
        return self.pending is None and self.owed is None and is_live(self.attempt.token)

    @property
    def is_calm(self) -> bool:
        """Whether nothing but doubts is left, so that readers need not take the lock."""
        return self[:-1] == SETTLED[:-1]


SETTLED: Final = Unsettled()


class Position:
    """Where the handle is: `head` on `branch`, the `events` that no commit holds yet, and the values in hand.

    `hot` is the cache of the table, or `NO_VALUES` while a value there might be undone or be of another
    commit. `epoch` counts the commits that landed. `rest` is None where nothing is unsettled, which one test
    finds out.
    """

    __slots__ = ("branch", "epoch", "events", "head", "hot", "rest", "table")

    def __init__(
        self,
        hot: Mapping[str, Any],
        table: SlotTable,
        head: Commit | None,
        branch: str | None,
        events: tuple[Event, ...] = (),
        epoch: int = 0,
        rest: Unsettled | None = None,
    ) -> None:
        self.hot: Final = hot
        self.table: Final = table
        self.head: Final = head
        self.branch: Final = branch
        self.events: Final = events
        self.epoch: Final = epoch
        self.rest: Final = rest

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
            table.cache if rest.is_calm else NO_VALUES,
            table,
            self.head if head is SAME else head,
            self.branch if branch is SAME else branch,
            self.events if events is None else events,
            self.epoch,
            None if rest == SETTLED else rest,
        )

    def awaiting(self, pending: UnknownOutcome) -> Position:
        """This position with a pending call of the store. Readers still take values without the lock."""
        rest = (self.rest or SETTLED)._replace(pending=pending)
        return Position(self.hot, self.table, self.head, self.branch, self.events, self.epoch, rest)
