"""bound: a value, or a sequence, that is kept within a limit whenever it is committed."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any, Literal

from vstate import aio
from vstate.arguments import called, check_amount, is_amount
from vstate.errors import InvalidInput, quoted
from vstate.patterns.events import EventStream
from vstate.patterns.paths import Id, path_of
from vstate.patterns.sequence import Sequence
from vstate.state.base import State
from vstate.state.snapshot import Snapshot
from vstate.state.worktree import Worktree

Cost = Callable[[Any], float]
Shrink = Literal["oldest"] | Callable[[Any], Any]


def bound(
    state: State | aio.Versioned | aio.Namespace,
    key: Id | Sequence[Any] | EventStream[Any],
    *,
    limit: float,
    cost: Cost = len,
    shrink: Shrink = "oldest",
) -> Callable[[], None]:
    """Keep what is at a key within a limit: each commit through this handle looks, and shrinks it if it costs more.

    `key` is that of a value in the state or namespace, or the name of a `Sequence` or `EventStream` there, or one of
    these itself. `cost` is a function of the value, of a sequence as the list of its items: its length, or a number of
    tokens. What is over the limit loses the oldest: of a list or text what is in front, of a dict what was put in
    first. Or `shrink` is called with a copy of it and returns what to keep, such as a summary and the last items.

    It holds for commits, updates, and transactions, and with `Live` for the last two and `commit`. What is over
    the limit when it is merged is shrunk by the next commit. Nothing is lost of what was committed before: history
    has it. Every handle that writes is bound by itself; what this returns ends it.

    The commit raises InvalidInput, with everything still staged, if the value is over the limit all the same: the
    newest item alone is, `shrink` has not done its work, or nothing in it is older than the rest, as in a set; and if
    `cost` returns no number, NaN, or one below 0, none of which would ever be over a limit.
    What `cost` and `shrink` raise stops it too. Other threads wait for the state meanwhile.
    """
    handle = state.sync if isinstance(state, aio.Versioned | aio.Namespace) else state
    check_amount("limit", limit)
    if shrink != "oldest" and not callable(shrink):
        raise InvalidInput(f"shrink is 'oldest' or a function of the value, not {shrink!r}")
    return handle.before_commit(_Bound(handle, key, limit, cost, shrink))


class _Bound:
    def __init__(
        self,
        state: State,
        key: Id | Sequence[Any] | EventStream[Any],
        limit: float,
        cost: Cost,
        shrink: Shrink,
    ) -> None:
        self._state = state
        self._key: str | None = None
        if isinstance(key, EventStream):
            self._sequence: Sequence[Any] = key.sequence
        elif isinstance(key, Sequence):
            self._sequence = key
        else:
            self._key = key if isinstance(key, str) else path_of(key)
            self._sequence = Sequence(state, key)
        if not self._sequence.is_part_of(state):
            raise InvalidInput(
                f"{self._sequence!r} is of another state than the one to bound it in: give its own"
            )
        self._name = repr(self._key) if self._key is not None else repr(self._sequence)
        self._limit = limit
        self._cost = cost
        self._counted = bool(cost is len)  # no item has to be read for it
        self._shrink = shrink
        self._entry: object = None  # of the value that was last found within the limit
        self._keys: list[tuple[str, object]] | None = None  # of the items that were

    def __call__(self) -> None:
        committed = self._committed()
        if self._key is not None:
            entry = self._known_entry(self._key, committed)
            if (entry is None or entry != self._entry) and self._key in self._state:
                self._look_at_value(self._key)
            self._entry = entry
        there = None if self._sequence.may_have_changed() else committed
        if self._counted and there is not None and len(self._sequence.at(there)) <= self._limit:
            return
        keys = None if there is None or self._counted else list(self._sequence.at(there).marked_keys())
        if keys is None or keys != self._keys:
            self._look_at_sequence()
        self._keys = keys

    def _committed(self) -> Snapshot | None:
        """What is committed: read there, it is not loaded into the state, and no update depends on it."""
        root = self._state.root
        if not isinstance(root, Worktree) or root.head is None:
            return None
        return Snapshot(root.repo, root.head)

    def _known_entry(self, key: str, committed: Snapshot | None) -> object:
        """What the value is stored as; None if it may be another by now."""
        if committed is None or self._state.may_have_changed(key):
            return None
        return committed.repo.entry(committed.commit.tree, self._state.prefix + key)

    def _look_at_value(self, key: str) -> None:
        value = self._state[key]
        if self._costs(value) <= self._limit:
            return
        if self._shrink != "oldest":
            kept = self._shrunk(value)
            if type(value) is list and type(kept) is list:
                value[:] = kept  # who holds the list goes on with it
                kept = value
            self._state[key] = kept
            return
        kept, number = self._without_oldest(value)
        if isinstance(value, list):
            del value[:number]
            kept = value
        self._state[key] = kept

    def _look_at_sequence(self) -> None:
        sequence = self._sequence
        size = len(sequence)
        if size == 0 or (self._counted and size <= self._limit):
            return
        if self._counted and self._shrink == "oldest":
            del sequence[: size - int(self._limit)]
            return
        items = list(sequence)
        if self._costs(items) <= self._limit:
            return
        if self._shrink == "oldest":
            del sequence[: self._without_oldest(items)[1]]
            return
        kept = self._shrunk(items)
        if not isinstance(kept, list) or len(kept) > size:
            raise InvalidInput(
                f"shrink of {self._name} is to return a list of no more items than it was given"
            )
        same = 0
        while same < len(kept) and kept[-1 - same] == items[-1 - same]:
            same += 1
        # What is new takes the places in front of what is the same, and what was before that goes.
        front, new = size - same, len(kept) - same
        for position in range(new):
            sequence[front - new + position] = kept[position]
        del sequence[: front - new]

    def _shrunk(self, value: Any) -> Any:
        assert callable(self._shrink)
        kept = called("shrink", self._shrink, copy.deepcopy(value))
        if kept is None:
            raise InvalidInput(f"shrink of {self._name} returned None: it is to return what to keep")
        self._require_within(kept)
        return kept

    def _costs(self, value: Any) -> float:
        cost = called("cost", self._cost, value)
        if not is_amount(cost):
            raise InvalidInput(f"cost of {self._name} is to return a number from 0 on, not {quoted(cost)}")
        return cost

    def _require_within(self, kept: Any) -> None:
        cost = self._costs(kept)
        if cost > self._limit:
            raise InvalidInput(
                f"{self._name} costs {cost} when all that can go is gone, and its limit is {self._limit}: raise the "
                "limit, or make the items smaller"
            )

    def _without_oldest(self, value: Any) -> tuple[Any, int]:
        """The value without as many of the oldest as it takes, one at least, and their number."""
        if isinstance(value, dict):
            items = list(value)

            def rest(number: int) -> Any:
                left = copy.copy(value)
                for key in items[:number]:
                    del left[key]
                return left

        elif isinstance(value, deque):

            def rest(number: int) -> Any:
                return deque(islice(value, number, None), value.maxlen)

        elif isinstance(value, list | tuple | str | bytes):

            def rest(number: int) -> Any:
                return value[number:]

        else:
            raise InvalidInput(
                f"{self._name} is a {type(value).__name__}, of which no part is the oldest: give bound a function to "
                "shrink it by"
            )
        # With none at all it would be within the limit too, but what is new would be lost.
        least, most = min(1, len(value)), max(0, len(value) - (self._limit > 0))
        self._require_within(rest(most))
        while least < most:  # the more goes, the less it costs
            middle = (least + most) // 2
            if self._costs(rest(middle)) <= self._limit:
                most = middle
            else:
                least = middle + 1
        return rest(least), least
