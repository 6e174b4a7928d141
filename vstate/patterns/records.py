"""Records: the values of one model in a mapping, each under a key that follows from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, Generic, TypeVar, cast, get_args, get_origin, overload

try:
    from pydantic import TypeAdapter, ValidationError
    from pydantic_core.core_schema import ErrorType
except ImportError as error:
    raise ImportError("vstate.patterns needs pydantic: pip install 'vstate[agents]'") from error

from vstate.errors import AlreadyExists, InvalidInput, InvalidRecord, KeyNotFound, Unpicklable
from vstate.patterns.copies import plainly
from vstate.patterns.paths import Id, join_path, path_of, require_state, split_path
from vstate.repo.calling import called
from vstate.state.base import ReadableState, State
from vstate.values.pickling import culprit

M = TypeVar("M")
_T = TypeVar("_T")

Migration = Callable[[dict[str, Any]], dict[str, Any]]

_VERSION = "@version"
_KNOWN_PROBLEMS = frozenset(get_args(ErrorType))
_ABSENT = object()
_adapter: Callable[[Any], TypeAdapter[Any]] = lru_cache(256)(
    TypeAdapter
)  # it takes longer than writing a record


class Records(Generic[M]):
    """The records of one model, a pydantic model or a dataclass, in a state or a namespace.

    - `key` is the field that names a record, several of them, or a function of the record that returns the id.
    - A record is stored as a dict of plain values, which `vstate diff` and `vstate show` can read. What goes in and
      what comes out are copies: changing one changes nothing until it is `put`.
    - It is validated when it is written and when it is read: InvalidRecord.
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
        version: int = 1,
        migrate: Mapping[int, Migration] | None = None,
    ) -> None:
        if version < 1:
            raise InvalidInput(f"version is a number from 1 on, not {version}")
        self._state = require_state(state)
        self._kind: type[Any] = get_origin(model) or model
        self._model: TypeAdapter[M] = _adapter(model)
        self._name = model.__name__
        self._id_of: Callable[[M], Id] = (
            key if callable(key) else attrgetter(*([key] if isinstance(key, str) else key))
        )
        self._version = version
        self._migrations = dict(migrate or {})
        missing = [
            n for n in range(min(self._migrations, default=version), version) if n not in self._migrations
        ]
        if missing or any(n >= version for n in self._migrations):
            raise InvalidInput(
                f"migrate has steps {sorted(self._migrations)} for version {version}: one for each version from the "
                f"oldest to {version - 1}"
            )

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
        return self._read(key, stored)

    @overload
    def get(self, id: Id) -> M | None: ...

    @overload
    def get(self, id: Id, default: _T) -> M | _T: ...

    def get(self, id: Id, default: Any = None) -> Any:
        """The record with this id, `default` if there is none; one that is there and not valid raises InvalidRecord."""
        key = path_of(id)
        stored = self._state.get(key, _ABSENT)
        return default if stored is _ABSENT else self._read(key, stored)

    def __contains__(self, id: Id) -> bool:
        return path_of(id) in self._state

    def __len__(self) -> int:
        return self.count()

    def __iter__(self) -> Iterator[Id]:
        return self.ids()

    def count(self, *within: str) -> int:
        """How many records there are; with the first parts of an id, of those that begin so."""
        return self._state.count_keys(_prefix(within))

    def ids(self, *within: str) -> Iterator[Id]:
        """The ids, in the order of their keys; with the first parts of an id, those that begin so."""
        for key in self._state.keys(_prefix(within)):
            parts = split_path(key)
            yield parts[0] if len(parts) == 1 else parts

    def values(self, *within: str) -> Iterator[M]:
        """The records, in the order of their keys; with the first parts of an id, of those that begin so."""
        for key, stored in self._state.items(_prefix(within)):
            yield self._read(key, stored)

    # Writing

    def put(self, record: M) -> M:
        """Write a record, in place of the one that has its id, and give back what was written: valid, and a copy."""
        return self._write(record)[1]

    def add(self, record: M) -> M:
        """Write a record whose id is not taken; AlreadyExists."""
        data = self._dumped(record)
        valid = self._validated(path_of(self._id_of(record)), data)
        key = path_of(self._id_of(valid))
        if key in self._state:
            raise AlreadyExists(f"there is a {self._name} {key!r} already", name=key)
        return self._write(valid)[1]

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
            record = self._with_fields(key, record, fields)
        return self._write(record, key)[1]

    def __delitem__(self, id: Id) -> None:
        key = path_of(id)
        if key not in self._state:
            raise KeyNotFound(key, kind=self._name)
        del self._writable()[key]

    def discard(self, id: Id) -> bool:
        """Delete a record; False if there is none."""
        if id not in self:
            return False
        del self[id]
        return True

    def expire(self, id: Id, ttl: float | None) -> None:
        """Let a record count as absent in `ttl` seconds; None: never."""
        self._writable().expire(path_of(id), ttl)

    # Forms

    def _write(self, record: M, expected: str | None = None) -> tuple[str, M]:
        data = self._dumped(record)
        valid = self._validated(path_of(self._id_of(record)), data)
        key = path_of(self._id_of(valid))
        if expected is not None and key != expected:
            raise InvalidInput(
                f"a change of {expected!r} would make it {key!r}: put a new record and delete the old one"
            )
        if _VERSION in data:
            raise InvalidRecord(key, f"the field {_VERSION!r} is not a record's own")
        stored = self._state.get(key, _ABSENT)
        if stored is not _ABSENT:
            self._require_known(key, stored)
        kept = self._dumped(valid)
        if lost := data.keys() - kept.keys():
            raise InvalidRecord(
                key, f"{self._name} has no field {', '.join(sorted(lost))}, and would lose it"
            )
        if self._version != 1:
            kept[_VERSION] = self._version
        self._writable()[key] = kept
        return key, valid

    def _dumped(self, record: M) -> dict[str, Any]:
        if not isinstance(record, self._kind):
            raise InvalidInput(f"these are records of {self._name}, not of {type(record).__name__}")
        # A subclass by its own model: this one's would leave out what it has besides.
        model = self._model if type(record) is self._kind else _adapter(type(record))
        # As it can be read again: without what is computed, by the names of the fields.
        data = model.dump_python(record, round_trip=True, by_alias=False, warnings=False)
        try:
            plain: dict[str, Any] = plainly(data)
        except Exception as error:  # what pydantic makes of a generator, say, is nothing that could be copied
            given = {name: getattr(record, name, None) for name in data}
            raise Unpicklable({self._name: culprit(given, self._name, error)}, staged=False) from error
        return plain

    def _with_fields(self, key: str, record: M, fields: Mapping[str, Any]) -> M:
        """A copy of a record with other values of some fields, for frozen models too; `_write` validates them."""
        kind: Any = type(record)
        known = getattr(kind, "model_fields", None) or getattr(kind, "__dataclass_fields__", {})
        if not known.keys() >= fields.keys() and getattr(kind, "model_config", {}).get("extra") != "allow":
            unknown = ", ".join(sorted(fields.keys() - known.keys()))
            raise InvalidInput(f"{self._name} has no field {unknown}; it has: {', '.join(known)}")
        if hasattr(kind, "model_copy"):
            changed: M = cast(Any, record).model_copy(update=fields)
            return changed
        try:
            return cast(M, dataclasses.replace(cast(Any, record), **fields))
        except ValidationError as error:  # of a dataclass of pydantic's
            raise InvalidRecord(key, _reasons(error)) from None

    def _read(self, key: str, stored: Any) -> M:
        at = self._require_known(key, stored)
        data = plainly(stored)
        data.pop(_VERSION, None)
        for version in range(at, self._version):
            migrate = self._migrations.get(version)
            if migrate is None:
                raise InvalidRecord(
                    key, f"it is of version {at}, and nothing migrates it from {version} to {version + 1}"
                )
            try:
                data = called("a migration", migrate, data)
            except Exception as error:  # a KeyError of its own would look as if there were no such record
                raise InvalidRecord(
                    key, f"its migration from version {version} raised {type(error).__name__}"
                ) from error
        return self._validated(key, data)

    def _require_known(self, key: str, stored: Any) -> int:
        """The version of what is stored; InvalidRecord if it is of a newer one, or no record at all."""
        if not isinstance(stored, dict):
            raise InvalidRecord(key, f"it is a {type(stored).__name__}, not a {self._name}")
        at: Any = stored.get(_VERSION, 1)
        if type(at) is not int or at < 1:
            raise InvalidRecord(key, f"its {_VERSION!r} is no version")
        if at > self._version:
            raise InvalidRecord(
                key,
                f"it is of version {at} of {self._name}, and this program knows {self._version}: update the program",
            )
        return at

    def _validated(self, key: str, data: Any) -> M:
        try:
            return self._model.validate_python(data, by_alias=True, by_name=True)
        except ValidationError as error:
            raise InvalidRecord(key, _reasons(error)) from None

    def _writable(self) -> State:
        if not isinstance(self._state, State):
            raise InvalidInput("these records are of a snapshot, which is read-only")
        return self._state


def _prefix(within: Sequence[str]) -> str:
    return join_path(*within) + "/" if within else ""


def _reasons(error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_context=True, include_input=False)
    return "; ".join(
        f"{'.'.join(map(str, problem['loc'])) or 'it'}: {_reason(problem)}" for problem in problems
    )


def _reason(problem: Mapping[str, Any]) -> str:
    # Without the values: they may be secrets. These messages hold some of them, or are a validator's own.
    told = problem.get("ctx", {}).keys() & {"error", "tag"} or problem["type"] not in _KNOWN_PROBLEMS
    return str(problem["type"] if told else problem["msg"])
