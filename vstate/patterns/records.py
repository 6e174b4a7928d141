"""Records: the values of one model in a mapping, each under a key that follows from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, Generic, TypeVar, overload

from vstate.arguments import called
from vstate.errors import AlreadyExists, InvalidInput, InvalidRecord, KeyNotFound
from vstate.patterns.forms import Form, Migration
from vstate.patterns.indexes import INDEXES, Index, Part, Place, key_of
from vstate.patterns.paths import Id, join_path, path_of, require_state, split_path
from vstate.state.base import ReadableState, State

M = TypeVar("M")
_T = TypeVar("_T")

_Places = Mapping[str, Place | None]  # by the names of the indexes

_ABSENT = object()


class Records(Generic[M]):
    """The records of one model, a pydantic model or a dataclass, in a state or a namespace.

    - `key` is the field that names a record, several of them, or a function of the record that returns the id.
    - A record is stored as a dict of plain values, which `vstate diff` and `vstate show` can read. What goes in and
      what comes out are copies: changing one changes nothing until it is `put`.
    - It is validated when it is written and when it is read: InvalidRecord.
    - `index` has a function of a record for each name. It returns the place where the record stands under that name:
      a text, a number, which sorts as one, or a tuple of them; or None. `indexed(name)` finds those that stand there,
      in the order of their places. Whatever writes a record here lets it stand in its place, in the same update. The
      function goes by the record alone, and not by a clock, a time zone or a setting of the program: where it says
      something else of the same record, that one is not found.
    - `version` is the model's. A record of an older one goes through `migrate[n]`, which gets the dict of version n
      and returns that of n + 1, for each n in between; it is stored anew only when it is put. A record of a
      newer one raises InvalidRecord: older code beside newer code does not misread it, nor overwrite it unseen.
      A field that is added is a reason for a new version too, unless the model keeps extra fields: an older
      program would drop it with each record that it changes.

    Several writers change records in `state.update(function)`.
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
        self._form = Form(model, version, migrate or {})
        self._name = model.__name__
        self._id_of: Callable[[M], Id] = (
            key if callable(key) else attrgetter(*([key] if isinstance(key, str) else key))
        )
        self._indexes = {name: Index(name, place) for name, place in index.items()} if index else {}
        # Whoever gets a record may change it before it is put: where it stood is noted before.
        self._last: tuple[str, Any, _Places] | None = None
        self._in_vain: set[tuple[str, str]] = set()

    def __repr__(self) -> str:
        return f"<Records of {self._name} in {self._state.title()}>"

    @property
    def state(self) -> State:
        """The state that the records are in; InvalidInput if it is a snapshot."""
        return self._writable()

    # Reading

    def __getitem__(self, id: Id) -> M:
        key = path_of(id)
        try:
            stored = self._state[key]
        except KeyNotFound:
            raise KeyNotFound(key, kind=self._name) from None
        return self._read_one(key, stored)

    @overload
    def get(self, id: Id) -> M | None: ...

    @overload
    def get(self, id: Id, default: _T) -> M | _T: ...

    def get(self, id: Id, default: Any = None) -> Any:
        """The record with this id, `default` if there is none; one that is there and not valid raises InvalidRecord."""
        key = path_of(id)
        stored = self._state.get(key, _ABSENT)
        return default if stored is _ABSENT else self._read_one(key, stored)

    def __contains__(self, id: Id) -> bool:
        return path_of(id) in self._state

    def __len__(self) -> int:
        return self.count()

    def __iter__(self) -> Iterator[Id]:
        return self.ids()

    def count(self, *within: str) -> int:
        """How many records there are; with the first parts of an id, of those that begin so."""
        if within:
            return self._state.count_keys(_prefix(within))
        return self._state.count_keys("") - self._state.count_keys(INDEXES)

    def ids(self, *within: str) -> Iterator[Id]:
        """The ids, in the order of their keys; with the first parts of an id, those that begin so."""
        for key in self._keys(within):
            parts = split_path(key)
            yield parts[0] if len(parts) == 1 else parts

    def values(self, *within: str) -> Iterator[M]:
        """The records, in the order of their keys; with the first parts of an id, of those that begin so."""
        return (self._form.read(key, stored) for key, stored in self._items(within))

    def indexed(self, name: str, *within: Part) -> Iterator[M]:
        """The records that stand in an index, in the order of their places, those in one place in that of their ids;
        with the first parts of a place, of those that begin so. Each is read when it is asked for, and no others are.
        Texts are in the order of keys: one that goes on with a space, "-" or "." comes before the one that ends there.

        All of them stand there, and in `state.update(function)` none is missing that was written by Records with this
        index. One may be missing that was written by what does not know the index, or that a migration moves; and
        after a merge of branches one that both sides changed, as a policy said, or that had expired and is there
        anew: until it is put, or `reindex` is called.

        Raises InvalidRecord for a record that is not valid, and InvalidInput for an index that there is not.
        """
        index = self._indexes.get(name)
        if index is None:
            raise InvalidInput(f"there is no index {name!r}; there are: {', '.join(self._indexes) or 'none'}")
        for hint in index.hints(self._state, within):
            record = self._record_at(name, hint)
            if record is None:
                self._in_vain.add((name, hint))
            else:
                yield record

    # Writing

    def put(self, record: M) -> M:
        """Write a record, in place of the one that has its id, and give back what was written: valid, and a copy."""
        return self._write(record)

    def add(self, record: M) -> M:
        """Write a record whose id is not taken; AlreadyExists."""
        return self._write(record, new=True)

    def change(self, id: Id, function: Callable[[M], M | None] | None = None, /, **fields: Any) -> M:
        """Read a record, change it by a function, which may also return another one, and by fields, and put it.

        Raises KeyNotFound, InvalidRecord, and InvalidInput for a field that the model has not, or if the id would be
        another; nothing is written then.
        """
        key = path_of(id)
        record = self[id]
        if function is not None:
            returned = called("the function of change", function, record)
            record = record if returned is None else returned
        if fields:
            record = self._form.with_fields(key, record, fields)
        return self._write(record, key)

    def __delitem__(self, id: Id) -> None:
        key = path_of(id)
        if key not in self._state:
            raise KeyNotFound(key, kind=self._name)
        state = self._writable()
        if not self._indexes:
            del state[key]
            return
        gone, _ = self._hints(key, self._places_before(key, self._state[key]), {})
        del state[key]
        self._leave(state, gone)

    def discard(self, id: Id) -> bool:
        """Delete a record; False if there is none."""
        if path_of(id) not in self._state:
            return False
        try:
            del self[id]
        except KeyNotFound:  # it expired in between
            return False
        return True

    def clear(self) -> None:
        """Delete all records, and what stands in the indexes. None is read: one that is not valid is no obstacle."""
        state = self._writable()
        for key in [*self._keys(()), *state.scan_keys(INDEXES)]:
            with suppress(KeyNotFound):  # it may expire meanwhile
                del state[key]

    def expire(self, id: Id, ttl: float | None) -> None:
        """Let a record count as absent in `ttl` seconds, also in the indexes; None: never."""
        self._writable().expire(path_of(id), ttl)

    def reindex(self) -> None:
        """Let every record stand in its places, and nothing else in any: for an index that is new, and whatever else
        `indexed` may miss. All records are read; InvalidRecord, with nothing changed, if one is not valid.
        """
        state = self._writable()
        records = ((key, self._form.read(key, stored)) for key, stored in self._items(()))
        hints = {
            self._indexes[name].hint(place, key)
            for key, record in records
            for name, place in self._places(record).items()
            if place is not None
        }
        there = {hint for index in self._indexes.values() for hint in index.hints(state)}
        for hint in there - hints:
            del state[hint]
        for hint in hints - there:
            state[hint] = None

    # Forms

    def _write(self, record: M, expected: str | None = None, *, new: bool = False) -> M:
        key, valid, kept = self._form.taken(record, self._key_of)
        if expected is not None and key != expected:
            raise InvalidInput(
                f"a change of {expected!r} would make it {key!r}: put a new record and delete the old one"
            )
        stored = self._state.get(key, _ABSENT)
        if stored is not _ABSENT:
            if new:
                raise AlreadyExists(f"there is a {self._name} {key!r} already", name=key)
            self._form.require_known(key, stored)
        state = self._writable()
        if not self._indexes:
            state[key] = kept
            return valid
        before = {} if stored is _ABSENT else self._places_before(key, stored)
        gone, come = self._hints(key, before, self._places(valid))
        # In this order: an interruption, or a hint too long for a key, leaves one too many behind, and none too few.
        for hint in come:
            state[hint] = None
        state[key] = kept
        self._leave(state, gone)
        return valid

    def _places(self, record: M) -> _Places:
        return {name: index.place(record) for name, index in self._indexes.items()}

    def _places_before(self, key: str, stored: Any) -> _Places:
        """Where what is stored stands; nowhere if it is not valid, and does not say."""
        if self._last is not None and self._last[0] == key and self._last[1] is stored:
            return self._last[2]
        try:
            return self._places(self._form.read(key, stored))
        except InvalidRecord:
            return {}

    def _hints(self, key: str, before: _Places, after: _Places) -> tuple[list[str], list[str]]:
        """The hints that are to go when a record moves, and those that are to come."""
        gone, come = [], []
        for name, index in self._indexes.items():
            old, new = before.get(name), after.get(name)
            hint = None if new is None else index.hint(new, key)
            # The hints too, since "a" and ("a",) are one place.
            if old is not None and old != new and (left := index.hint(old, key)) != hint:
                gone.append(left)
            # Also where it has not moved: what was stored may be of a program that does not know the index.
            if hint is not None and (old != new or hint not in self._state):
                come.append(hint)
        return gone, come

    def _leave(self, state: State, gone: list[str]) -> None:
        """Delete these hints, and those that were followed in vain."""
        for hint in gone:
            state.pop(hint, None)
        if self._in_vain:
            self._clean(state)

    def _clean(self, state: State) -> None:
        """Delete the hints that were followed in vain, and lead nowhere still."""
        in_vain, self._in_vain = self._in_vain, set()
        for name, hint in in_vain:
            try:
                if self._record_at(name, hint) is None:
                    state.pop(hint, None)
            except InvalidRecord:
                continue  # whoever looks for it is to hear of it, and not who writes another one

    def _record_at(self, name: str, hint: str) -> M | None:
        """The record that stands where a hint says; None if it stands elsewhere, or is no more."""
        key = key_of(hint)
        stored = self._state.get(key, _ABSENT)
        if stored is _ABSENT:
            return None
        record = self._read_one(key, stored)
        place = self._places_before(key, stored)[name]
        return record if place is not None and self._indexes[name].hint(place, key) == hint else None

    def _keys(self, within: Sequence[str]) -> Iterator[str]:
        return (key for key in self._state.scan_keys(_prefix(within)) if not key.startswith(INDEXES))

    def _items(self, within: Sequence[str]) -> Iterator[tuple[str, Any]]:
        for key in self._keys(within):
            stored = self._state.get(key, _ABSENT)
            if stored is not _ABSENT:  # deleted while the ones before were looked at
                yield key, stored

    def _read_one(self, key: str, stored: Any) -> M:
        """As `_read`, of a record that is perhaps going to be changed, and put."""
        record = self._form.read(key, stored)
        if self._indexes:
            self._last = key, stored, self._places(record)
        return record

    def _key_of(self, record: M) -> str:
        return path_of(self._id_of(record))

    def _writable(self) -> State:
        if self._to_write is None:
            raise InvalidInput("these records are of a snapshot, which is read-only")
        return self._to_write


def _prefix(within: Sequence[str]) -> str:
    return join_path(*within) + "/" if within else ""
