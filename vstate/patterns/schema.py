"""Schema: how records of one model are stored: as dicts of plain values, with the version of the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Generic, TypeVar, cast, get_args, get_origin

from vstate.extras import install

try:
    from pydantic import TypeAdapter, ValidationError
    from pydantic_core.core_schema import ErrorType
except ImportError as error:
    raise ImportError(f"vstate.patterns needs pydantic: {install('agents')}") from error

from vstate.arguments import called
from vstate.errors import InvalidInput, InvalidRecord, Unpicklable
from vstate.patterns.copies import plain_copy
from vstate.values.pickle_errors import culprit

M = TypeVar("M")

Migration = Callable[[dict[str, Any]], dict[str, Any]]

_VERSION = "@version"
_KNOWN_PROBLEMS = frozenset(get_args(ErrorType))

# Making an adapter takes longer than writing a record.
_adapter: Callable[[Any], TypeAdapter[Any]] = lru_cache(256)(TypeAdapter)


class Schema(Generic[M]):
    """A model at one version. It encodes records as dicts, and decodes dicts of this and older versions."""

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
        if sorted(migrate) != list(range(min(migrate), version)):
            raise InvalidInput(
                f"migrate has steps {sorted(migrate)} for version {version}: give one for each version from "
                f"the oldest to {version - 1}"
            )

    def encode(self, record: M, key_of: Callable[[M], str]) -> tuple[str, M, dict[str, Any]]:
        """The key of a record, a valid copy, and the dict to store. Raises InvalidRecord, Unpicklable."""
        data = self._dump(record)
        valid = self._validate(lambda: key_of(record), data)
        key = key_of(valid)
        if _VERSION in data:
            raise InvalidRecord(key, f"the field {_VERSION!r} is reserved")
        stored = self._dump(valid)
        if lost := data.keys() - stored.keys():
            raise InvalidRecord(
                key, f"{self._name} has no field {', '.join(sorted(lost))}, and would lose it"
            )
        if self._version != 1:
            stored[_VERSION] = self._version
        return key, valid, stored

    def with_fields(self, key: str, record: M, fields: Mapping[str, Any]) -> M:
        """Copy a record, frozen ones too, with other values of some fields; `encode` validates them.

        Raises InvalidInput for a field that the model does not have.
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
        except ValidationError as error:  # pydantic's dataclasses validate themselves
            raise InvalidRecord(key, reasons(error)) from None

    def decode(self, key: str, stored: Any) -> M:
        """The record that is stored under a key: a copy, migrated to this version. Raises InvalidRecord."""
        stored_version = self.version_of(key, stored)
        data = plain_copy(stored)
        data.pop(_VERSION, None)
        for version in range(stored_version, self._version):
            migrate = self._migrations.get(version)
            if migrate is None:
                raise InvalidRecord(
                    key,
                    f"it is of version {stored_version}, and nothing migrates it from {version} to "
                    f"{version + 1}",
                )
            try:
                data = called("a migration", migrate, data)
            except Exception as error:  # a KeyError of its own would look like a missing record
                raise InvalidRecord(
                    key, f"its migration from version {version} raised {type(error).__name__}"
                ) from error
        return self._validate(lambda: key, data)

    def version_of(self, key: str, stored: Any) -> int:
        """The version of a stored dict. Raises InvalidRecord if it is newer than this one, or no record."""
        if not isinstance(stored, dict):
            raise InvalidRecord(key, f"it is a {type(stored).__name__}, not a {self._name}")
        version: Any = stored.get(_VERSION, 1)
        if type(version) is not int or version < 1:
            raise InvalidRecord(key, f"its {_VERSION!r} is no version")
        if version > self._version:
            raise InvalidRecord(
                key,
                f"it is of version {version} of {self._name}, and this program knows {self._version}: "
                "update the program",
            )
        return version

    def _validate(self, key: Callable[[], str], data: Any) -> M:
        try:
            return self._model.validate_python(data, by_alias=True, by_name=True)
        except ValidationError as error:
            raise InvalidRecord(key(), reasons(error)) from None

    def _dump(self, record: M) -> dict[str, Any]:
        if not isinstance(record, self._kind):
            raise InvalidInput(f"these are records of {self._name}, not of {type(record).__name__}")
        # A subclass is dumped by its own model: this one's would omit the fields of the subclass.
        model = self._model if type(record) is self._kind else _adapter(type(record))
        # Dump only data that can be read again: no computed fields, and the names of the fields, not aliases.
        data = model.dump_python(record, round_trip=True, by_alias=False, warnings=False)
        try:
            plain: dict[str, Any] = plain_copy(data)
        except (
            Exception
        ) as error:  # pydantic dumps a generator, for example, as an object that nothing copies
            fields = {name: getattr(record, name, None) for name in data}
            raise Unpicklable({self._name: culprit(fields, self._name, error)}, staged=False) from error
        return plain


def reasons(error: ValidationError) -> str:
    """The problems, field by field. The values are left out, since they may be secrets."""
    problems = error.errors(include_url=False, include_context=True, include_input=False)
    return "; ".join(
        f"{'.'.join(map(str, problem['loc'])) or 'it'}: {_reason(problem)}" for problem in problems
    )


def _reason(problem: Mapping[str, Any]) -> str:
    # Messages of the program's own validators, and some of pydantic's, contain values.
    shows_values = problem.get("ctx", {}).keys() & {"error", "tag"} or problem["type"] not in _KNOWN_PROBLEMS
    return str(problem["type"] if shows_values else problem["msg"])
