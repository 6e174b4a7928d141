"""Tokens: whether two live values are the same. A merge compares three copies of everything with them."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from itertools import chain
from types import NoneType
from typing import Any, Final

from vstate.values.entry import encode_unchecked
from vstate.values.pickle_errors import own_error
from vstate.values.pickling import dumps_unproven

CLASH: Final = object()
"""Stands for no result: the two sides changed a value differently."""

# By id: a metaclass may define the equality and the hash of its classes.
_SCALARS: Final = frozenset(map(id, (int, bool, bytes, NoneType)))
_CONTAINERS: Final = frozenset(map(id, (list, tuple, dict, set, frozenset)))


def same(a: object, b: object) -> bool:
    """Whether two values are the same to a merge: they have one type and encode alike.

    1, 1.0 and True differ, and so do 0.0 and -0.0; NaN is NaN. The order of a dict counts, that of a
    set does not. Values that cannot be pickled are the same only if they are one object. Calls no
    `__eq__`, and never raises.
    """
    return Tokens().same(a, b)


class Tokens:
    """Gives values tokens: hashable, and equal if and only if the values are the same.

    Containers of the plain types are compared by their parts, not by their pickle: a pickle shows the order
    of a set, and which equal strings are one object. The values must live, unchanged, as long as the Tokens.
    """

    def __init__(self) -> None:
        self._known: dict[int, Hashable] = {}
        # Each different container gets a number, which stands for it in the token of its parent. So the
        # token of a deep value is as flat as any other.
        self._numbers: dict[Hashable, int] = {}
        self._encoded: set[int] = set()
        self._begun: set[int] = set()

    def same(self, a: object, b: object) -> bool:
        """As the function `same`, but it remembers the tokens of containers."""
        return a is b or (type(a) is type(b) and self.of(a) == self.of(b))

    def only_change(self, base: Any, ours: Any, theirs: Any) -> Any:
        """The result if only one side changed the base, or both changed it alike; else CLASH."""
        if self.same(base, theirs) or self.same(ours, theirs):
            return ours
        return theirs if self.same(base, ours) else CLASH

    def of(self, value: Any) -> Hashable:
        """The token of this value."""
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
        if id(value) not in self._known:
            token = self._of_parts(value) if id(kind) in _CONTAINERS else self._encoding(value)
            self._known.setdefault(id(value), token)  # one that holds itself has a token from inside already
        return self._known[id(value)]

    def _of_parts(self, value: Any) -> Hashable:
        if id(value) in self._begun:  # it is inside itself: pickle can follow that
            return self._encoding(value)
        self._begun.add(id(value))
        kind = type(value)
        try:
            tokens = [self.of(part) for part in (chain(*value.items()) if kind is dict else value)]
        except RecursionError:  # in C, pickle follows a deeper value
            return self._encoding(value)
        is_set = kind in (set, frozenset)
        whole = (kind, len(tokens), frozenset(tokens)) if is_set else (kind, *tokens)
        return self._numbers.setdefault(whole, len(self._numbers))

    def _encoding(self, value: Any) -> Hashable:
        kind = type(value)
        encode = partial(encode_unchecked, value, dump=dumps_unproven)
        try:
            if id(kind) not in self._encoded:
                # The first pickling of a class may cache something in it, which the next one would store.
                self._encoded.add(id(kind))
                encode()
            return id(kind), encode().entry
        except Exception as error:  # the value's own code may raise anything
            own_error(encode, error)
            return Tokens, id(value)
