"""Form: how the records of one model are stored: as dicts of plain values, each with the version of its model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Generic, TypeVar, cast, get_args, get_origin

try:
    from pydantic import TypeAdapter, ValidationError
    from pydantic_core.core_schema import ErrorType
except ImportError as error:
    raise ImportError("vstate.patterns needs pydantic: pip install 'vstate[agents]'") from error

from vstate.arguments import called
from vstate.errors import InvalidInput, InvalidRecord, Unpicklable
from vstate.patterns.copies import plainly
from vstate.values.pickling import culprit

M = TypeVar("M")

Migration = Callable[[dict[str, Any]], dict[str, Any]]

_VERSION = "@version"
_KNOWN_PROBLEMS = frozenset(get_args(ErrorType))
_adapter: Callable[[Any], TypeAdapter[Any]] = lru_cache(256)(
    TypeAdapter
)  # it takes longer than writing a record


class Form(Generic[M]):
    """What records of a model and its version are stored as, and what is read of that, and of older versions."""

    def __init__(self, model: type[M], version: int, migrate: Mapping[int, Migration]) -> None:
        if version < 1:
            raise InvalidInput(f"version is a number from 1 on, not {version}")
        self._kind: type[Any] = get_origin(model) or model
        self._model: TypeAdapter[M] = _adapter(model)
        self._name = model.__name__
        self._version = version
        self._migrations = dict(migrate)
        if not migrate:
            return
        missing = [
            n for n in range(min(self._migrations, default=version), version) if n not in self._migrations
        ]
        if missing or any(n >= version for n in self._migrations):
            raise InvalidInput(
                f"migrate has steps {sorted(self._migrations)} for version {version}: one for each version from the "
                f"oldest to {version - 1}"
            )

    def taken(self, record: M, key_of: Callable[[M], str]) -> tuple[str, M, dict[str, Any]]:
        """The key of a record, a copy of it that is valid, and what is to be stored; InvalidRecord, Unpicklable."""
        data = self._dumped(record)
        valid = self._validated(lambda: key_of(record), data)
        key = key_of(valid)
        if _VERSION in data:
            raise InvalidRecord(key, f"the field {_VERSION!r} is not a record's own")
        kept = self._dumped(valid)
        if lost := data.keys() - kept.keys():
            raise InvalidRecord(
                key, f"{self._name} has no field {', '.join(sorted(lost))}, and would lose it"
            )
        if self._version != 1:
            kept[_VERSION] = self._version
        return key, valid, kept

    def with_fields(self, key: str, record: M, fields: Mapping[str, Any]) -> M:
        """A copy of a record with other values of some fields, for frozen models too; `taken` validates them.

        InvalidInput for a field that the model has not.
        """
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
            raise InvalidRecord(key, reasons(error)) from None

    def read(self, key: str, stored: Any) -> M:
        """The record that is stored under a key, a copy, migrated; InvalidRecord."""
        at = self.require_known(key, stored)
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
        return self._validated(lambda: key, data)

    def require_known(self, key: str, stored: Any) -> int:
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

    def _validated(self, key: Callable[[], str], data: Any) -> M:
        try:
            return self._model.validate_python(data, by_alias=True, by_name=True)
        except ValidationError as error:
            raise InvalidRecord(key(), reasons(error)) from None

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


def reasons(error: ValidationError) -> str:
    """What is wrong, field by field, without the values."""
    problems = error.errors(include_url=False, include_context=True, include_input=False)
    return "; ".join(
        f"{'.'.join(map(str, problem['loc'])) or 'it'}: {_reason(problem)}" for problem in problems
    )


def _reason(problem: Mapping[str, Any]) -> str:
    # Without the values: they may be secrets. These messages hold some of them, or are a validator's own.
    told = problem.get("ctx", {}).keys() & {"error", "tag"} or problem["type"] not in _KNOWN_PROBLEMS
    return str(problem["type"] if told else problem["msg"])
