"""Record: what every record of a manager is."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Record(BaseModel):
    """A pydantic model that keeps the fields that it does not know, and validates what is assigned to it.

    Its ids are given by position or by name, times are as they were given, with a zone or without.
    """

    model_config = ConfigDict(extra="allow", validate_assignment=True, arbitrary_types_allowed=True)


Now = Annotated[datetime, Field(default_factory=datetime.now)]
"""A moment, by default the one at which the record is made, in local time without a zone."""
