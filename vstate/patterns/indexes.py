"""Index: another order of records, by their contents, with one key in the state for each place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Generic, TypeVar

from vstate.arguments import called
from vstate.errors import InvalidInput
from vstate.patterns.paths import join_path
from vstate.state.base import ReadableState

M = TypeVar("M")

Part = str | int
Place = Part | tuple[Part, ...]
"""A place in an index: a text, a number, or a tuple of them. Records at () are in order of id."""

INDEXES = "%index/"
"""The prefix of the keys of all indexes. No path begins so: in a path a digit follows a "%", or nothing."""

_BEFORE_KEY = "//"  # in no path either: each part of a path has a character at least
_HALF = 1 << 63


class Index(Generic[M]):
    """An order of records. A hint, the key `%index/NAME/PLACE//KEY`, says that the record of KEY is at PLACE.

    A hint counts only if the record agrees. So a hint left behind by a merge, by an expired record, or by a
    program that does not know the index costs one lookup in vain, and nothing else. A hint has no value: two
    branches conflict only if they changed the same record.
    """

    def __init__(self, name: str, function: Callable[[M], Place | None]) -> None:
        self._prefix = _prefix(name)
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


@lru_cache(256)  # managers make the same Records for each call
def _prefix(name: str) -> str:
    return f"{INDEXES}{join_path(name)}"


def key_of(hint: str) -> str:
    """The key of the record that a hint leads to."""
    return hint.partition(_BEFORE_KEY)[2]


def _path(parts: tuple[Part, ...]) -> str:
    return "/" + join_path(*map(_text, parts)) if parts else ""


def _text(part: Part) -> str:
    if not isinstance(part, int):
        return part
    if not -_HALF <= part < _HALF:
        raise InvalidInput(f"a number in a place has 64 bits, and {part} has more")
    return f"{part + _HALF:016x}"
