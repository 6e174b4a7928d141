"""Models: the state that a model of pydantic gives to pickle. Its fields lie in several dicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["FIELDS_SET", "HOLDERS", "dicts_of_fields"]

HOLDERS: Final = ("__dict__", "__pydantic_extra__", "__pydantic_private__")
"""The entries of the state that hold fields of the model: declared, extra and private ones."""
FIELDS_SET: Final = "__pydantic_fields_set__"
"""The entry with the names of the fields that were given. It is no field: `==` of pydantic ignores it."""


def dicts_of_fields(state: Mapping[object, object]) -> list[dict[object, object]] | None:
    """The dicts that hold the fields of a model; None if this is not the state of one."""
    if FIELDS_SET not in state or not state.keys() <= {*HOLDERS, FIELDS_SET}:
        return None
    held = [state[name] for name in HOLDERS if state.get(name) is not None]
    found = [fields for fields in held if isinstance(fields, dict)]
    names = {name for fields in found for name in fields if isinstance(name, str)}
    return found if len(found) == len(held) and len(names) == sum(map(len, found)) else None
