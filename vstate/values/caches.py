"""Caches: the parts of an object that reading it fills, and that it pickles like any other part.

`functools.cached_property` keeps its result among the attributes. Arrays of pandas, and responses of httpx,
which the errors of httpx and openai hold, have attributes of their own for results.
"""

from __future__ import annotations

import pickle
from collections.abc import Set
from functools import cached_property
from typing import Any, Final

from vstate.values import definitions

_NONE: Final[frozenset[str]] = frozenset()
_MOST_CLASSES: Final = 10_000
_RESULTS: Final = "_cache"  # a dict of all results of an array of pandas, of dates for example
# By name: no rule tells an attribute that a read adds from one that the program adds.
_OF_LIBRARIES: Final = {
    "httpx.Headers": {"_encoding"},
    "httpx.Response": {"_cookies", "_encoding", "_text"},
    "pandas._libs.arrays.NDArrayBacked": {_RESULTS},
}
_names: dict[type, frozenset[str]] = {}


def cache_names(kind: type) -> frozenset[str]:
    """The attributes in which objects of the class keep results."""
    found = _names.get(kind)
    if found is None:
        if len(_names) > _MOST_CLASSES:  # a program that makes classes all the time
            _names.clear()
        found = frozenset(
            name
            for base in kind.__mro__
            for name, member in vars(base).items()
            if isinstance(member, cached_property)
        )
        for base in kind.__mro__:
            found |= _OF_LIBRARIES.get(f"{base.__module__}.{base.__qualname__}", _NONE)
        _names[kind] = found
    return found


class WithoutCaches(definitions.Pickler):
    """Pickles objects without their caches, which it keeps aside."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.caches: list[dict[str, Any]] = []
        """The results of each object that may have any, in the order of the pickle."""

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if issubclass(kind, type):
            return definitions.reduce_class(obj)
        reduced = super().reducer_override(obj)
        names = cache_names(kind)
        if not names or kind in self.dispatch_table:
            return reduced
        if reduced is NotImplemented:
            reduced = obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        if type(reduced) is not tuple or len(reduced) < 3:
            return reduced
        kept: dict[str, Any] = {}
        self.caches.append(kept)
        return (*reduced[:2], _without(reduced[2], names, kept) or None, *reduced[3:])


def _without(state: Any, names: Set[str], kept: dict[str, Any]) -> Any:
    """The state of an object without the attributes of these names, which `kept` gets."""
    if type(state) is tuple:
        parts = tuple([_without(part, names, kept) if type(part) is dict else part for part in state])
        return parts[:-1] if parts and type(parts[-1]) is dict and not parts[-1] else parts
    if type(state) is not dict:
        return state
    for name in names & state.keys():
        if state[name] is not None:
            kept.update(state[name] if name == _RESULTS else {name: state[name]})
    left = {name: part for name, part in state.items() if name not in names}
    if type(fields := left.get("__dict__")) is dict:  # of a model of pydantic
        left["__dict__"] = _without(fields, names, kept)
    return left
