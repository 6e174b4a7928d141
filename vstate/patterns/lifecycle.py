"""Lifecycle: a table of states and events, and moves from state to state, one commit each."""

from __future__ import annotations

import copy
from collections.abc import Coroutine, Hashable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from vstate import aio
from vstate.errors import IllegalTransition, InvalidInput, KeyNotFound, ReadOnly, quoted
from vstate.patterns.paths import Id, path_of, require_state
from vstate.plural import counted
from vstate.state.base import ReadableState, State
from vstate.state.versioned import Versioned

if TYPE_CHECKING:
    from vstate.patterns.records import Records

S = TypeVar("S", bound=Hashable)

_ABSENT = object()


class Lifecycle(Generic[S]):
    """A table of transitions: `Lifecycle({(state, event): next_state}, initial=state)`. It stores nothing.

    - States and events are texts or members of enums. A member and its value are the same state. A key or
      field that is absent is in the state `initial`.
    - `next` and `fire` raise IllegalTransition, with the `allowed` events, for a transition that the table
      lacks.
    - `fire` reads, checks and writes in one update: of two processes with contradicting events, one gets
      IllegalTransition.
    """

    def __init__(self, transitions: Mapping[tuple[S, str | Enum], S], *, initial: S) -> None:
        self._states: dict[Hashable, S] = {}
        self._next: dict[Hashable, dict[Hashable, S]] = {}
        self._initial = initial
        for (before, event), after in transitions.items():
            events = self._next.setdefault(self._declared(before), {})
            if _plain(event) in events:
                raise InvalidInput(
                    f"the table has two transitions from {_name(before)!r} by {_name(event)!r}: a member and "
                    "its value are the same, so leave one out"
                )
            self._declared(after)
            events[_plain(event)] = after
        if _plain(initial) not in self._states:
            raise InvalidInput(
                f"the initial state {_name(initial)!r} is not in the table; its states are: {self._names()}"
            )
        self._initial = self._states[_plain(initial)]

    # Reading

    @property
    def initial(self) -> S:
        """The state of an absent key or field."""
        return self._initial

    @property
    def states(self) -> tuple[S, ...]:
        """All states, in table order."""
        return tuple(self._states.values())

    @property
    def final(self) -> tuple[S, ...]:
        """The states without transitions to others."""
        return tuple(state for plain, state in self._states.items() if not self._next.get(plain))

    def allowed(self, status: S | str) -> list[str]:
        """The names of the events that a state allows. Raises InvalidInput for an unknown state."""
        if not self._is_state(status):
            raise InvalidInput(f"{quoted(_name(status))} is not a state; the states are: {self._names()}")
        return [_name(event) for event in self._next.get(_plain(status), {})]

    def next(self, status: S | str, event: str | Enum) -> S:
        """The next state. Raises IllegalTransition."""
        events = self._next.get(_plain(status), {}) if self._is_state(status) else {}
        if _plain(event) not in events:
            raise IllegalTransition(_name(status), _name(event), allowed=[_name(each) for each in events])
        return events[_plain(event)]

    def status(self, state: ReadableState | Records[Any], key: Id, *, field: str | None = None) -> S:
        """The state of a key, or of a field of its value. Raises InvalidInput for an unknown state."""
        if isinstance(state, ReadableState):
            found = _read(state, _key_of(key), field)
        else:
            found = getattr(state[key], _named(field))
        if found is _ABSENT:
            return self._initial
        if not self._is_state(found):
            raise InvalidInput(f"{key!r} is in no state of this table; its states are: {self._names()}")
        return self._states[_plain(found)]

    # Writing

    @overload
    def fire(
        self,
        state: State | Records[Any],
        key: Id,
        event: str | Enum,
        *,
        field: str | None = None,
        message: str | None = None,
    ) -> S: ...

    @overload
    def fire(
        self,
        state: aio.Versioned | aio.Namespace,
        key: Id,
        event: str | Enum,
        *,
        field: str | None = None,
        message: str | None = None,
    ) -> Coroutine[Any, Any, S]: ...

    def fire(
        self,
        state: State | Records[Any] | aio.Versioned | aio.Namespace,
        key: Id,
        event: str | Enum,
        *,
        field: str | None = None,
        message: str | None = None,
    ) -> S | Coroutine[Any, Any, S]:
        """Move a key to the next state, as one commit, and return the new state.

        With `field`, that field of the value moves: of a dict, of an object, or of a record. For a record,
        pass the Records in place of the state, and the id as the key. A tuple is a path, as `join_path` makes
        it. With a state of `vstate.aio`, await the result. Inside a transaction or an update the move is part
        of it.

        Raises IllegalTransition, KeyNotFound if there is no value with fields, and the errors of `apply`:
        UncommittedChanges if earlier changes would be committed too.
        """
        if not isinstance(key, str):
            path_of(key)  # raises TypeError for an invalid id
        if not isinstance(state, State | aio.Versioned | aio.Namespace) and not hasattr(state, "state"):
            require_state(cast(Any, state))
            raise ReadOnly("a move writes, and this is a snapshot: give the state itself")
        note = (
            f"{'/'.join([key] if isinstance(key, str) else key)}: {_name(event)}"
            if message is None
            else message
        )
        moved: list[S] = []

        def move(inner: Any) -> None:
            moved[:] = [self._move(inner, key, event, field)]

        if isinstance(state, aio.Versioned | aio.Namespace):
            return _awaited(state, move, note, moved)
        if isinstance(state, State):
            state.apply(move, message=note)
        else:
            records = state
            records.state.apply(lambda _: move(records), message=note)
        return moved[0]

    def _move(self, state: State | Records[Any], key: Id, event: str | Enum, field: str | None) -> S:
        if not isinstance(state, State):
            after = self.next(getattr(state[key], _named(field)), event)
            state.change(key, **{_named(field): after})
            return after
        name = _key_of(key)
        found = _read(state, name, field)
        after = self.next(self._initial if found is _ABSENT else found, event)
        # A plain value stays plain and a member stays a member. A new field is plain, as in Records.
        keep_member = isinstance(found, Enum) or (found is _ABSENT and field is None)
        value = after if keep_member else _plain(after)
        if field is not None:
            # In place: the program may hold the value. A transaction of a Live does not undo such an edit.
            holder = state[name] if isinstance(state.root, Versioned) else copy.copy(state[name])
            if isinstance(holder, Mapping):
                cast(Any, holder)[field] = value
            else:
                setattr(holder, field, value)
            value = holder
        state[name] = value
        return after

    # Display

    def __str__(self) -> str:
        rows = [
            (_name(self._states[plain]), _name(event), _name(after))
            for plain, events in self._next.items()
            for event, after in events.items()
        ]
        first, second = (max((len(row[i]) for row in rows), default=0) for i in (0, 1))
        lines = [f"  {before:{first}}  {event:{second}}  -> {after}" for before, event, after in rows]
        return "\n".join([f"Lifecycle from {_name(self._initial)!r}", *lines])

    def __repr__(self) -> str:
        moves = sum(map(len, self._next.values()))
        size = f"{counted(len(self._states), 'state')}, {counted(moves, 'transition')}"
        return f"<Lifecycle from {_name(self._initial)!r}, {size}>"

    def _is_state(self, value: Any) -> bool:
        try:
            return _plain(value) in self._states
        except TypeError:  # unhashable
            return False

    def _declared(self, state: S) -> Hashable:
        plain: Hashable = _plain(state)
        known = self._states.setdefault(plain, state)
        if type(known) is not type(state):
            raise InvalidInput(
                f"{_name(state)!r} is in the table as {known!r} and as {state!r}: write one of them"
            )
        return plain

    def _names(self) -> str:
        return ", ".join(map(_name, self._states.values()))


async def _awaited(state: aio.Versioned | aio.Namespace, move: Any, message: str, moved: list[S]) -> S:
    await state.apply(move, message=message)
    return moved[0]


def _read(state: ReadableState, key: str, field: str | None) -> Any:
    if field is None:
        return state.get(key, _ABSENT)
    if key not in state:
        raise KeyNotFound(key)
    value = state[key]
    return value.get(field, _ABSENT) if isinstance(value, Mapping) else getattr(value, field, _ABSENT)


def _named(field: str | None) -> str:
    if field is None:
        raise InvalidInput("a record moves by a field: name the field with field=")
    return field


def _key_of(key: Id) -> str:
    return key if isinstance(key, str) else path_of(key)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _name(value: Any) -> str:
    return str(_plain(value))
