"""bound: keep a value or a sequence within a limit at each commit."""

from __future__ import annotations

import copy
from collections import UserDict, UserList, deque
from collections.abc import Callable, MutableMapping, MutableSequence, MutableSet
from itertools import islice
from typing import Any, Literal

from vstate import aio
from vstate.arguments import called, check_amount, is_amount
from vstate.errors import InvalidInput, quoted
from vstate.patterns.paths import Id, path_of
from vstate.patterns.sequence import Sequence
from vstate.state.base import State, handle_of
from vstate.state.snapshot import Snapshot
from vstate.state.versioned import Versioned

Cost = Callable[[Any], float]
Shrink = Literal["oldest"] | Callable[[Any], Any]

_COPIED_OUTSIDE = (list, dict, set, deque, bytearray, UserDict, UserList)


def bound(
    state: State | aio.Versioned | aio.Namespace,
    key: Id | Sequence[Any],
    *,
    limit: float,
    cost: Cost = len,
    shrink: Shrink = "oldest",
) -> Callable[[], None]:
    """Keep a value or a sequence within a limit: each commit through this handle shrinks it if it costs more.

    `key` is the key of a value in the state or namespace, the name of a `Sequence` or `EventStream` there, or
    one of these objects. `cost` is a function of the value, or of the items of a sequence as a list, such as
    `len` or a count of tokens. By default the oldest parts go: the front of a list or text, the first keys of
    a dict. Otherwise `shrink` is called with a copy of the value and returns the part to keep, such as a
    summary and the last items. A list, dict or set is shortened in place, so the program may hold it and its
    parts: `shrink` gets a copy of the list with the parts themselves.

    The bound holds for commits, updates and transactions; with `Live`, for updates, transactions and
    `commit`. A merge may exceed the limit; the next commit then shrinks the value. History keeps all that was
    committed before. Each handle that writes needs its own bound. Call the returned function to end it.

    The commit raises InvalidInput, with everything still staged, if the value cannot be brought within the
    limit: the newest item alone exceeds it, `shrink` returns too much, or the value has no oldest part, as a
    set. It does so too if `cost` returns no number, NaN, or a negative number. An exception of `cost` or
    `shrink` stops the commit too. Other threads wait for the state meanwhile.
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
        key: Id | Sequence[Any],
        limit: float,
        cost: Cost,
        shrink: Shrink,
    ) -> None:
        self._state = state
        self._key: str | None = None
        if isinstance(key, Sequence):
            self._sequence = key
        else:
            self._key = key if isinstance(key, str) else path_of(key)
            self._sequence = Sequence(state, key)
        if not self._sequence.is_part_of(state):
            raise InvalidInput(f"{self._sequence!r} is in another state: give bound the state of the items")
        self._name = repr(self._key) if self._key is not None else repr(self._sequence)
        self._limit = limit
        self._cost = cost
        self._counted = bool(cost is len)  # a length needs no reads of items
        self._shrink = shrink
        self._entry: object = None  # of the value when it was last within the limit
        self._keys: list[tuple[str, object]] | None = None  # of the items when they were within it

    def __call__(self, state: State) -> None:
        committed = self._committed()
        if self._key is not None:
            entry = self._entry_of(self._key, committed)
            if (entry is None or entry != self._entry) and self._key in self._state:
                self._check_value(self._key)
            self._entry = entry
        snapshot = None if self._sequence.may_have_changed() else committed
        if self._counted and snapshot is not None and len(self._sequence.at(snapshot)) <= self._limit:
            return
        keys = None if snapshot is None or self._counted else list(self._sequence.at(snapshot).marked_keys())
        if keys is None or keys != self._keys:
            self._check_sequence()
        self._keys = keys

    def _committed(self) -> Snapshot | None:
        """The newest commit. Reads of it load nothing into the state, and no update depends on them."""
        root = self._state.root
        if not isinstance(root, Versioned) or root.head is None:
            return None
        return Snapshot(root.repo, root.head)

    def _entry_of(self, key: str, committed: Snapshot | None) -> object:
        """The stored entry of the value; None if the value may have changed since."""
        if committed is None or handle_of(self._state).may_have_changed(self._state.prefix + key):
            return None
        return committed.repo.entry(committed.commit.root, self._state.prefix + key)

    def _check_value(self, key: str) -> None:
        value = self._state[key]
        if self._costs(value) <= self._limit:
            return
        # Edited in place if possible: the program may hold the value, and parts of it.
        if self._shrink == "oldest":
            self._state[key] = _without(value, self._number_of_oldest(value))
        else:
            self._state[key] = _replaced(value, self._call_shrink(_copied(value)))

    def _check_sequence(self) -> None:
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
            del sequence[: self._number_of_oldest(items)]
            return
        shrunk = self._call_shrink(copy.deepcopy(items))
        if not isinstance(shrunk, list) or len(shrunk) > size:
            raise InvalidInput(
                f"shrink of {self._name} returned {quoted(shrunk)}: return a list that is no longer"
            )
        same = 0
        while same < len(shrunk) and shrunk[-1 - same] == items[-1 - same]:
            same += 1
        # New items replace the last ones before the unchanged tail. Items before them are deleted.
        front, new = size - same, len(shrunk) - same
        for position in range(new):
            sequence[front - new + position] = shrunk[position]
        del sequence[: front - new]

    def _call_shrink(self, value: Any) -> Any:
        assert callable(self._shrink)
        shrunk = called("shrink", self._shrink, value)
        if shrunk is None:
            raise InvalidInput(f"shrink of {self._name} returned None: return the part to keep")
        self._require_within(shrunk)
        return shrunk

    def _costs(self, value: Any) -> float:
        cost = called("cost", self._cost, value)
        if not is_amount(cost):
            raise InvalidInput(f"cost of {self._name} returned {quoted(cost)}: return a number from 0 on")
        return cost

    def _require_within(self, shrunk: Any) -> None:
        cost = self._costs(shrunk)
        if cost > self._limit:
            raise InvalidInput(
                f"{self._name} costs {cost} after shrinking, and its limit is {self._limit}: raise the "
                "limit, or make the items smaller"
            )

    def _number_of_oldest(self, value: Any) -> int:
        """How many of the oldest parts go, at least one of them."""
        if not isinstance(value, MutableMapping | MutableSequence | tuple | str | bytes):
            raise InvalidInput(
                f"{self._name} is a {type(value).__name__}, which has no oldest part: give bound a shrink "
                "function"
            )

        def rest(number: int) -> Any:
            is_sliced = isinstance(value, list | tuple | str | bytes)
            return value[number:] if is_sliced else _without(_copied(value), number)

        # Keep one part at least: an empty value is within the limit, but loses the newest part.
        least, most = min(1, len(value)), max(0, len(value) - (self._limit > 0))
        self._require_within(rest(most))
        while least < most:  # the more is removed, the less the rest costs
            middle = (least + most) // 2
            if self._costs(rest(middle)) <= self._limit:
                most = middle
            else:
                least = middle + 1
        return least


def _without(value: Any, number: int) -> Any:
    """The value without so many of its first parts: itself, if it can be changed."""
    if isinstance(value, MutableMapping):
        for key in list(islice(value, number)):
            del value[key]
    elif isinstance(value, deque):
        for _ in range(number):
            value.popleft()
    elif isinstance(value, MutableSequence):
        del value[:number]
    else:
        return value[number:]
    return value


def _copied(value: Any) -> Any:
    """A copy: of a container the outside alone, so the parts that stay are those that the program holds."""
    # A shallow copy of another class may share the dict inside.
    return copy.copy(value) if isinstance(value, _COPIED_OUTSIDE) else copy.deepcopy(value)


def _replaced(value: Any, new: Any) -> Any:
    """The value with the parts of a new one, if both are of one container type; else the new one."""
    if type(value) is not type(new) or not isinstance(value, MutableMapping | MutableSequence | MutableSet):
        return new
    parts = list(new.items() if isinstance(new, MutableMapping) else new)
    if isinstance(value, list):
        value[:] = parts
        return value
    value.clear()
    if isinstance(value, MutableMapping):
        value.update(parts)
    elif isinstance(value, MutableSequence):
        value.extend(parts)
    else:
        for part in parts:
            value.add(part)
    return value
