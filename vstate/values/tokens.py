"""Which values are the same: what a merge, which compares three copies of everything, goes by."""

from __future__ import annotations

from collections.abc import Hashable
from types import NoneType
from typing import Any, Final

from vstate.values.entry import encode_value

__all__ = ["Tokens", "same"]

# By id, since a metaclass may decide what equals its classes, and whether they can be hashed.
_SCALARS: Final = frozenset(map(id, (int, bool, bytes, NoneType)))
_CONTAINERS: Final = frozenset(map(id, (list, tuple, dict, set, frozenset)))


def same(a: object, b: object) -> bool:
    """Whether two values mean the same to a merge: they have one type and encode alike.

    1, 1.0 and True differ, and so do 0.0 and -0.0; NaN is NaN. The order of a dict counts, that of a
    set does not. Values that cannot be pickled are the same only if they are one object. Asks no
    `__eq__`, and never raises.
    """
    return Tokens().same(a, b)


class Tokens:
    """Gives values tokens: hashable, and equal if and only if the values are the same.

    Containers of the plain types are compared by their parts rather than by their pickle, which shows
    the order of a set, and which of its equal strings are one object. The values must live, and stay as
    they are, as long as this does.
    """

    def __init__(self) -> None:
        self._known: dict[int, Hashable] = {}
        # Every different container gets a number, and stands in the token of the next one as that: tokens
        # are as flat for a deep value as for any other.
        self._numbers: dict[Hashable, int] = {}
        self._encoded: set[int] = set()

    def same(self, a: object, b: object) -> bool:
        """As the function `same`; what was compared once is known from then on."""
        return a is b or (type(a) is type(b) and self.of(a) == self.of(b))

    def of(self, value: Any) -> Hashable:
        """The token of this value."""
        token = self._ready(value)
        if token is not None:
            return token
        waiting, begun = [value], set()
        while waiting:
            top = waiting[-1]
            if id(top) in self._known:
                waiting.pop()
                continue
            begun.add(id(top))
            parts = [part for pair in top.items() for part in pair] if type(top) is dict else list(top)
            tokens = [self._ready(part) for part in parts]
            missing = [part for part, token in zip(parts, tokens, strict=True) if token is None]
            for part in missing:
                if id(part) in begun and id(part) not in self._known:
                    # It holds itself: pickle can follow that.
                    self._known[id(part)] = self._encoding(part)
            if missing:
                waiting += missing
                continue
            unordered = type(top) in (set, frozenset)
            whole = (type(top), len(parts), frozenset(tokens)) if unordered else (type(top), *tokens)
            self._known[id(top)] = self._numbers.setdefault(whole, len(self._numbers))
        return self._known[id(value)]

    def _ready(self, value: Any) -> Hashable | None:
        """The token of what has no parts or is known already, else None."""
        kind = type(value)
        if kind is str:
            return value  # type: ignore[no-any-return]
        if id(kind) in _SCALARS:
            return kind, value
        if kind is float:
            return kind, value.hex()
        if kind is complex:
            return kind, value.real.hex(), value.imag.hex()
        if kind is bytearray:
            return kind, bytes(value)
        if id(value) not in self._known and id(kind) not in _CONTAINERS:
            self._known[id(value)] = self._encoding(value)
        return self._known.get(id(value))

    def _encoding(self, value: Any) -> Hashable:
        kind = type(value)
        try:
            if id(kind) not in self._encoded:
                # The first pickling of a class may leave something in it, which then is pickled with it.
                self._encoded.add(id(kind))
                encode_value(value)
            return id(kind), encode_value(value).entry
        except Exception:
            return Tokens, id(value)
