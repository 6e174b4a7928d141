"""Record: what every record of a manager is."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum, StrEnum
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from vstate.errors import InvalidInput, Unpicklable, quoted
from vstate.patterns.copies import copied
from vstate.patterns.forms import reasons
from vstate.state.tracking import IMMUTABLE
from vstate.values.pickling import culprit

__all__ = ["Record"]

E = TypeVar("E", bound=StrEnum)

_EPOCH = datetime.fromtimestamp(0, UTC)


class Record(BaseModel):
    """A pydantic model that keeps the fields that it does not know, and validates what is assigned to it.

    Times are as they were given, with a zone or without; one without stands in an index as if it were UTC.
    """

    model_config = ConfigDict(extra="allow", validate_assignment=True, arbitrary_types_allowed=True)

    def taken(self) -> Self:
        """The record as it is at this moment, to be kept in another thread while its owner goes on changing it.

        Raises Unpicklable, which says what in it cannot be copied.
        """
        try:
            if type(self).__deepcopy__ is not BaseModel.__deepcopy__:
                return self.model_copy(deep=True)
            # As that does, with less to ask of each field: what cannot change is most of a record.
            copy = self.model_copy()
            memo: dict[int, Any] = {id(self): copy}
            parts = [
                part for part in (copy.__dict__, copy.__pydantic_extra__, copy.__pydantic_private__) if part
            ]
            owned = [
                {
                    field: copied(value, memo)
                    for field, value in part.items()
                    if type(value) not in IMMUTABLE and not isinstance(value, Enum)
                }
                for part in parts
            ]
            for part, own in zip(parts, owned, strict=True):
                part.update(own)  # not before all is copied: `memo` knows what is held by its id
            return copy
        except Exception as error:
            name = type(self).__name__
            raise Unpicklable({name: culprit(self.__dict__, name, error)}, staged=False) from error

    @classmethod
    def made(cls, **fields: Any) -> Self:
        """A record of what a method was given; InvalidInput, which names the fields that are wrong."""
        try:
            return cls(**fields)
        except ValidationError as error:
            raise InvalidInput(f"this makes no {cls.__name__}: {reasons(error)}") from None

    @classmethod
    def of(cls, given: Any) -> Self:
        """What was given, `taken`, if it is such a record; TypeError."""
        if isinstance(given, cls):
            return given.taken()
        how = f": make it one by {cls.__name__}(**it)" if isinstance(given, Mapping) else ""
        raise TypeError(f"this takes a {cls.__name__}, not a {type(given).__name__}{how}")


Now = Annotated[datetime, Field(default_factory=datetime.now)]
"""A moment, by default the one at which the record is made, in local time without a zone."""


def seconds(time: datetime) -> float:
    """A time as seconds since 1970, by the local clock if it has no zone."""
    try:
        return time.timestamp()
    except (OverflowError, ValueError):  # datetime.min, say: no local clock goes that far
        return time.replace(tzinfo=UTC).timestamp()


def moment(time: datetime) -> int:
    """A time as a number that can be a place in an index: microseconds since 1970, by UTC if it has no zone.

    Not by the local clock, as `seconds` is: a record would stand in another place for a process in another zone.
    """
    aware = time if time.utcoffset() is not None else time.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)


Word = Annotated[str, BeforeValidator(lambda given: given.value if isinstance(given, Enum) else given)]
"""A text, or the member of any enum whose value is one."""


def taken(value: Any, name: str) -> Any:
    """A value as it is at this moment, as `Record.taken` takes what is in a record."""
    try:
        return value.taken() if isinstance(value, Record) else copied(value)
    except Unpicklable:
        raise
    except Exception as error:
        raise Unpicklable({name: culprit(value, name, error)}, staged=False) from error


def taken_dict(given: Any, name: str) -> dict[Any, Any]:
    """A dict as it is at this moment; TypeError for what is none, pairs and an empty list too."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} is given as a dict, not as a {type(given).__name__}")
    copy: dict[Any, Any] = taken(dict(given), name)
    return copy


def member(kind: type[E], value: str) -> E:
    """The member of this value; InvalidInput, which names those there are."""
    try:
        return kind(value)
    except ValueError:
        raise InvalidInput(f"{quoted(value)} is no {kind.__name__}; these are: {', '.join(kind)}") from None
