"""Record: the base class of the records that managers keep, and the checks of their fields."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum, StrEnum
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from vstate.errors import InvalidInput, quoted
from vstate.patterns.copies import checked_copy
from vstate.patterns.paths import scope
from vstate.patterns.records import Records
from vstate.patterns.schema import reasons

__all__ = ["Record"]

E = TypeVar("E", bound=StrEnum)
R = TypeVar("R", bound="Record")

_EPOCH = datetime.fromtimestamp(0, UTC)


class Record(BaseModel):
    """A pydantic model that keeps fields it does not know, and validates assignments.

    Times keep the zone that they were given, or none. An index takes a time without a zone as UTC.
    """

    model_config = ConfigDict(extra="allow", validate_assignment=True, arbitrary_types_allowed=True)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        # BaseModel's own method copies a record that refers to itself twice.
        own = self.model_copy()
        memo = {} if memo is None else memo
        memo[id(self)] = own
        for fields in (own.__dict__, own.__pydantic_extra__, own.__pydantic_private__):
            if fields:
                fields.update(copy.deepcopy(dict(fields), memo))
        return own


def kept(name: str, model: type[R], **options: Any) -> Callable[..., Records[R]]:
    """A function from the part of a manager, and ids within `name`, to the records of a model there."""
    return lambda part, *within: Records(scope(part, name, *within), model, **options)


def record_copy(kind: type[R], record: Any) -> R:
    """Copy a record, since its owner may change it at any time. Raises TypeError, Unpicklable."""
    if isinstance(record, kind):
        own: R = checked_copy(record, type(record).__name__)
        return own
    hint = f": make a record by {kind.__name__}(**value)" if isinstance(record, Mapping) else ""
    raise TypeError(f"expected a {kind.__name__}, not a {type(record).__name__}{hint}")


def dict_copy(value: Any, name: str) -> dict[Any, Any]:
    """Copy a mapping. Raises TypeError for anything else, even pairs or an empty list, and Unpicklable."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is a dict, not a {type(value).__name__}")
    own: dict[Any, Any] = checked_copy(dict(value), name)
    return own


def make_record(kind: type[R], **fields: Any) -> R:
    """Make a record of the arguments of a method. Raises InvalidInput, which names the wrong fields."""
    try:
        return kind(**fields)
    except ValidationError as error:
        raise InvalidInput(f"this makes no {kind.__name__}: {reasons(error)}") from None


def member(kind: type[E], value: str) -> E:
    """The member of an enum with this value. Raises InvalidInput, which lists the members."""
    try:
        return kind(value)
    except ValueError:
        raise InvalidInput(f"{quoted(value)} is no {kind.__name__}; these are: {', '.join(kind)}") from None


StatusText = Annotated[
    str, BeforeValidator(lambda status: status.value if isinstance(status, Enum) else status)
]
"""A text, or a member of any enum whose value is a text."""


def timestamp(time: datetime) -> float:
    """Seconds since 1970. A time without a zone is in local time."""
    try:
        return time.timestamp()
    except (OverflowError, ValueError):  # datetime.min, for example, is out of range for local time
        return time.replace(tzinfo=UTC).timestamp()


def index_time(time: datetime) -> int:
    """Microseconds since 1970, a place in an index. A time without a zone is in UTC.

    Local time would give each process its own place for the same record.
    """
    aware = time if time.utcoffset() is not None else time.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)
