"""Record: what every record of a manager is."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from vstate.errors import Unpicklable
from vstate.values.pickling import culprit


class Record(BaseModel):
    """A pydantic model that keeps the fields that it does not know, and validates what is assigned to it.

    Times are as they were given, with a zone or without.
    """

    model_config = ConfigDict(extra="allow", validate_assignment=True, arbitrary_types_allowed=True)

    def taken(self) -> Self:
        """The record as it is at this moment, to be kept in another thread while its owner goes on changing it.

        Raises Unpicklable, which says what in it cannot be copied.
        """
        try:
            return self.model_copy(deep=True)
        except Exception as error:
            name = type(self).__name__
            raise Unpicklable({name: culprit(self.__dict__, name, error)}) from error


Now = Annotated[datetime, Field(default_factory=datetime.now)]
"""A moment, by default the one at which the record is made, in local time without a zone."""

Word = Annotated[str, BeforeValidator(lambda given: given.value if isinstance(given, Enum) else given)]
"""A text, or the member of any enum whose value is one."""
