"""Records: the values of one model in a mapping, each under a key made of its id."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from operator import attrgetter
from typing import Any, Generic, TypeVar, overload

from vstate.arguments import called
from vstate.errors import AlreadyExists, InvalidInput, InvalidRecord, KeyNotFound
from vstate.patterns.paths import Id, join_path, path_of, require_state, split_path
from vstate.patterns.schema import Migration, Schema
from vstate.state.base import ReadableState, State

M = TypeVar("M")
_T = TypeVar("_T")

Part = str | int
Place = Part | tuple[Part, ...]
"""A place in an index: a text, a number, or a tuple of them. Records at () are in order of id."""

INDEXES = "%index/"
"""The prefix of the keys of all indexes. No path begins so: in a path a digit follows a "%", or nothing."""

_BEFORE_KEY = "//"  # in no path either: each part of a path has a character at least
_HALF = 1 << 63

_Places = Mapping[str, Place | None]  # by name of the index
_ABSENT = object()


class _Index(Generic[M]):
    """An order of records. A hint, the key `%index/NAME/PLACE//KEY`, says that the record of KEY is at PLACE.

    A hint counts only if the record agrees. So a hint left behind by a merge, by an expired record, or by a
    program that does not know the index costs one lookup in vain, and nothing else. A hint has no value: two
    branches conflict only if they changed the same record.
    """

    def __init__(self, name: str, function: Callable[[M], Place | None]) -> None:
        self._prefix = _index_prefix(name)
        self._name = name
        self._function = function

    def place(self, record: M) -> Place | None:
        """The place of this record; None if it is not in the index."""
        place: Any = self._function(record)
        if not isinstance(place, str | int | tuple | None):
            function = f"the function of index {self._name!r}"
            called(function, lambda: place)
            raise TypeError(
                f"{function} returns a text, a number, a tuple or None, not a {type(place).__name__}"
            )
        return place

    def hint(self, place: Place, key: str) -> str:
        """The hint for the record with this key at this place."""
        parts = place if isinstance(place, tuple) else (place,)
        return f"{self._prefix}{_path(parts)}{_BEFORE_KEY}{key}"

    def hints(self, state: ReadableState, within: tuple[Part, ...] = ()) -> Iterator[str]:
        """The hints at places that begin with these parts, in order of place."""
        return iter(state.keys(f"{self._prefix}{_path(within)}/"))


class Records(Generic[M]):
    """The records of one model, a pydantic model or a dataclass, in a state or a namespace.

    - `key` names the field with the id of a record, or several fields, or is a function from a record to its
      id.
    - A record is stored as a dict of plain values, which `vstate diff` and `vstate show` can read. Records go
      in and come out as copies: a change of one is stored only by `put`.
    - A record is validated when it is written and when it is read: InvalidRecord.
    - `index` maps names to functions. Each function returns the place of a record under that name, or None: a
      text, a number, or a tuple of them. `indexed(name)` gives the records that have a place, in order of
      place. Every write of a record here also writes its place, in the same update. The function must depend
      on the record alone, not on a clock, a time zone or a setting: a record is found only at the place that
      the function returns now.
    - `version` is the version of the model. A record of an older version goes through `migrate[n]`, a
      function from the dict of version n to that of n + 1, for each n in between. The new dict is stored only
      by `put`. A record of a newer version raises InvalidRecord, so older code neither misreads it nor
      overwrites it. A new field needs a new version too, unless the model keeps extra fields: an older
      program would drop it with each record that it changes.

    Several writers change records in `state.apply(function)`.
    """

    def __init__(
        self,
        state: ReadableState,
        model: type[M],
        *,
        key: str | Sequence[str] | Callable[[M], Id],
        index: Mapping[str, Callable[[M], Place | None]] | None = None,
        version: int = 1,
        migrate: Mapping[int, Migration] | None = None,
    ) -> None:
        self._to_write = state if isinstance(state, State) else None
        self._state = state if self._to_write is not None else require_state(state)
        self._schema = Schema(model, version, migrate or {})
        self._name = model.__name__
        self._id_of: Callable[[M], Id] = (
            key if callable(key) else attrgetter(*([key] if isinstance(key, str) else key))
        )
        self._indexes = {name: _Index(name, place) for name, place in index.items()} if index else {}
        self._stale_hints: set[tuple[str, str]] = set()

    def __repr__(self) -> str:
        return f"<Records of {self._name} in {self._state._title()}>"

    @property
    def state(self) -> State:
        """The state with the records. Raises InvalidInput for a snapshot."""
        return self._writable()

    # Reading

    def __getitem__(self, id: Id) -> M:
        key = path_of(id)
        try:
            stored = self._state[key]
        except KeyNotFound:
            raise KeyNotFound(key, kind=self._name) from None
        return self._schema.decode(key, stored)

    @overload
    def get(self, id: Id) -> M | None: ...

    @overload
    def get(self, id: Id, default: _T) -> M | _T: ...

    def get(self, id: Id, default: Any = None) -> Any:
        """The record with this id, or `default`. An invalid record raises InvalidRecord."""
        key = path_of(id)
        stored = self._state.get(key, _ABSENT)
        return default if stored is _ABSENT else self._schema.decode(key, stored)

    def __contains__(self, id: Id) -> bool:
        return path_of(id) in self._state

    def __len__(self) -> int:
        return self.count()

    def __iter__(self) -> Iterator[Id]:
        return self.ids()

    def count(self, *within: str) -> int:
        """The number of records, or of those whose ids begin with these parts."""
        if within:
            return len(self._state.keys(_prefix(within)))
        return len(self._state) - len(self._state.keys(INDEXES))

    def ids(self, *within: str) -> Iterator[Id]:
        """The ids in order of key, or those that begin with these parts."""
        for key in self._keys(within):
            parts = split_path(key)
            yield parts[0] if len(parts) == 1 else parts

    def values(self, *within: str) -> Iterator[M]:
        """The records in order of key, or those whose ids begin with these parts."""
        return (self._schema.decode(key, stored) for key, stored in self._items(within))

    def indexed(self, name: str, *within: Part) -> Iterator[M]:
        """The records in an index, in order of place, then id; or those whose places begin with these parts.

        Only these records are read, each when the iteration reaches it. Texts are in order of key: a text
        that goes on with a space, "-" or "." comes before the one that ends there.

        In `state.apply(function)` every record is found that Records with this index wrote. A record may be
        missing if a program without the index wrote it, if a migration moves it, or, after a merge of
        branches, if both sides changed it or it had expired. `put` and `reindex` bring it back.

        Raises InvalidRecord for an invalid record, and InvalidInput for an unknown index.
        """
        index = self._indexes.get(name)
        if index is None:
            raise InvalidInput(f"there is no index {name!r}; there are: {', '.join(self._indexes) or 'none'}")
        for hint in index.hints(self._state, within):
            record = self._record_at(name, hint)
            if record is None:
                self._stale_hints.add((name, hint))
            else:
                yield record

    # Writing

    def put(self, record: M) -> M:
        """Write a record, replacing any with its id. Returns a valid copy."""
        return self._write(record)

    def add(self, record: M) -> M:
        """Write a record with a new id. Raises AlreadyExists."""
        return self._write(record, new=True)

    def change(self, id: Id, function: Callable[[M], M | None] | None = None, /, **fields: Any) -> M:
        """Read a record, change it by a function and by fields, and put it.

        The function changes the record in place or returns another. Raises KeyNotFound, InvalidRecord, and
        InvalidInput for a field that the model does not have or for a change of the id; nothing is written
        then.
        """
        key = path_of(id)
        record = self[id]
        if function is not None:
            returned = called("the function of change", function, record)
            record = record if returned is None else returned
        if fields:
            record = self._schema.with_fields(key, record, fields)
        return self._write(record, key)

    def __delitem__(self, id: Id) -> None:
        key = path_of(id)
        if key not in self._state:
            raise KeyNotFound(key, kind=self._name)
        state = self._writable()
        if not self._indexes:
            del state[key]
            return
        old_hints, _ = self._moves(key, self._places_before(key, self._state[key]), {})
        del state[key]
        self._drop_hints(state, old_hints)

    def discard(self, id: Id) -> bool:
        """Delete a record. Returns False if there is none."""
        if path_of(id) not in self._state:
            return False
        try:
            del self[id]
        except KeyNotFound:  # it expired in between
            return False
        return True

    def clear(self) -> None:
        """Delete all records and index entries, invalid records too: none is read."""
        state = self._writable()
        for key in [*self._keys(()), *state.keys(INDEXES)]:
            with suppress(KeyNotFound):  # it expired meanwhile
                del state[key]

    def expire(self, id: Id, ttl: float | None) -> None:
        """Let a record expire in `ttl` seconds, in the indexes too; None: never."""
        self._writable().expire(path_of(id), ttl)

    def reindex(self) -> None:
        """Write the places of all records anew, for a new index or records that `indexed` misses.

        Reads all records. Raises InvalidRecord, with nothing changed, if one is invalid.
        """
        state = self._writable()
        records = ((key, self._schema.decode(key, stored)) for key, stored in self._items(()))
        hints = {
            self._indexes[name].hint(place, key)
            for key, record in records
            for name, place in self._places(record).items()
            if place is not None
        }
        existing = {hint for index in self._indexes.values() for hint in index.hints(state)}
        for hint in existing - hints:
            del state[hint]
        for hint in hints - existing:
            state[hint] = None

    # Storing

    def _write(self, record: M, expected: str | None = None, *, new: bool = False) -> M:
        key, valid, encoded = self._schema.encode(record, self._key_of)
        if expected is not None and key != expected:
            raise InvalidInput(
                f"a change of {expected!r} would make it {key!r}: put a new record and delete the old one"
            )
        stored = self._state.get(key, _ABSENT)
        if stored is not _ABSENT:
            if new:
                raise AlreadyExists(f"there is a {self._name} {key!r} already", name=key)
            self._schema.version_of(key, stored)
        state = self._writable()
        if not self._indexes:
            state[key] = encoded
            return valid
        before = {} if stored is _ABSENT else self._places_before(key, stored)
        old_hints, new_hints = self._moves(key, before, self._places(valid))
        # New hints first, old ones last: an interruption leaves a hint too many, never one too few.
        for hint in new_hints:
            state[hint] = None
        state[key] = encoded
        self._drop_hints(state, old_hints)
        return valid

    def _places(self, record: M) -> _Places:
        return {name: index.place(record) for name, index in self._indexes.items()}

    def _places_before(self, key: str, stored: Any) -> _Places:
        """The places of a stored record; none if it is invalid."""
        try:
            return self._places(self._schema.decode(key, stored))
        except InvalidRecord:
            return {}

    def _moves(self, key: str, before: _Places, after: _Places) -> tuple[list[str], list[str]]:
        """The hints to delete, and the hints to write, when a record moves between these places."""
        old_hints, new_hints = [], []
        for name, index in self._indexes.items():
            old, new = before.get(name), after.get(name)
            hint = None if new is None else index.hint(new, key)
            # Compare the hints too: "a" and ("a",) are one place.
            if old is not None and old != new and (left := index.hint(old, key)) != hint:
                old_hints.append(left)
            # A record that has not moved may lack its hint: a program without the index may have written it.
            if hint is not None and (old != new or hint not in self._state):
                new_hints.append(hint)
        return old_hints, new_hints

    def _drop_hints(self, state: State, old_hints: list[str]) -> None:
        """Delete these hints, and the stale ones that `indexed` met if they are stale still."""
        for hint in old_hints:
            state.pop(hint, None)
        if not self._stale_hints:
            return
        stale, self._stale_hints = self._stale_hints, set()
        for name, hint in stale:
            try:
                if self._record_at(name, hint) is None:
                    state.pop(hint, None)
            except InvalidRecord:
                continue  # the reader of that record hears of it, not the writer of this one

    def _record_at(self, name: str, hint: str) -> M | None:
        """The record that a hint leads to; None if it is at another place, or gone."""
        key = hint.partition(_BEFORE_KEY)[2]
        stored = self._state.get(key, _ABSENT)
        if stored is _ABSENT:
            return None
        record, index = self._schema.decode(key, stored), self._indexes[name]
        place = index.place(record)
        return record if place is not None and index.hint(place, key) == hint else None

    def _keys(self, within: Sequence[str]) -> Iterator[str]:
        return (key for key in self._state.keys(_prefix(within)) if not key.startswith(INDEXES))

    def _items(self, within: Sequence[str]) -> Iterator[tuple[str, Any]]:
        for key in self._keys(within):
            stored = self._state.get(key, _ABSENT)
            if stored is not _ABSENT:  # deleted meanwhile
                yield key, stored

    def _key_of(self, record: M) -> str:
        return path_of(self._id_of(record))

    def _writable(self) -> State:
        if self._to_write is None:
            raise InvalidInput("these records are in a snapshot, which is read-only: use the state itself")
        return self._to_write


def _prefix(within: Sequence[str]) -> str:
    return join_path(*within) + "/" if within else ""


@lru_cache(256)  # managers make the same Records for each call
def _index_prefix(name: str) -> str:
    return f"{INDEXES}{join_path(name)}"


def _path(parts: tuple[Part, ...]) -> str:
    return "/" + join_path(*map(_text, parts)) if parts else ""


def _text(part: Part) -> str:
    if not isinstance(part, int):
        return part
    if not -_HALF <= part < _HALF:
        raise InvalidInput(f"a number in a place has 64 bits, and {part} has more")
    return f"{part + _HALF:016x}"
