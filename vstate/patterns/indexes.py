"""Index: another order of records, by what is in them, with a key in the state for each of its places."""

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
"""Where a record stands in an index: a text or a number, or a tuple of them; an empty one to stand by its id alone."""

INDEXES = "%index/"
"""What the keys of all indexes begin with, and no path: a "%" in one is followed by a digit, or by nothing."""

_BEFORE_KEY = "//"  # in no path either: each of its parts has a character at least
_HALF = 1 << 63


class Index(Generic[M]):
    """An order of records: a key `%index/NAME/PLACE//KEY`, a hint, says that the record with this key stands there.

    The record says whether that is true. So what a merge, a record that expired, or a program that does not know the
    index left behind costs no more than a look in vain. And since a hint has no value, two branches are never in
    each other's way here, but where they changed the same record.
    """

    def __init__(self, name: str, function: Callable[[M], Place | None]) -> None:
        self._prefix = _prefix(name)
        self._name = name
        self._function = function

    def place(self, record: M) -> Place | None:
        """Where this record stands; None for nowhere."""
        place: Any = self._function(record)
        if not isinstance(place, str | int | tuple | None):
            what = f"the function of index {self._name!r}"
            called(what, lambda: place)
            raise TypeError(f"{what} returns a text, a number, a tuple or None, not a {type(place).__name__}")
        return place

    def hint(self, place: Place, key: str) -> str:
        """The hint at the record with this key, in this place."""
        parts = place if isinstance(place, tuple) else (place,)
        return f"{self._prefix}{_path(parts)}{_BEFORE_KEY}{key}"

    def hints(self, state: ReadableState, within: tuple[Part, ...] = ()) -> Iterator[str]:
        """The hints in places that begin so, in their order."""
        return state.scan_keys(f"{self._prefix}{_path(within)}/")


@lru_cache(256)  # Records are made anew for each call, with the same indexes
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
        raise InvalidInput(f"a number in a place is one of 64 bits, not {part}")
    return f"{part + _HALF:016x}"
