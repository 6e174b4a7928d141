"""Likeness: whether two untouched copies of a stored value pickle alike in this process.

A class may pickle its own address, as the storage of a tensor does. Then a second copy says nothing about
edits of the first, and the pickle of the value right after its loading does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from vstate.errors import VStateError
from vstate.values.culprits import own_error
from vstate.values.definitions import Definition
from vstate.values.opcodes import is_number, tokens
from vstate.values.pickling import dumps, dumps_unproven, dumps_without_caches, loads

_KNOWN_MODULES: Final = frozenset(
    {"builtins", "collections", "copyreg", "datetime", "decimal", "numpy", "pandas", "pathlib", "uuid"}
)
"""Their classes pickle alike each time. A look at the first value would take as long as loading it."""

_MOST_KNOWN: Final = 10_000

_alike: dict[frozenset[str], bool] = {}
"""Whether copies pickle alike, by the classes and functions in their pickles."""


def copies_are_alike(names: Iterable[str], value: Any, load: Callable[[], Any]) -> bool:
    """Whether the untouched `value` and the copy that `load` makes have one pickle.

    The classes and functions `names` of the pickle decide, so that few values are loaded twice.
    """
    kind = frozenset(names)
    known = _alike.get(kind)
    if known is None:
        known = all(name.partition(".")[0] in _KNOWN_MODULES for name in kind) or _look(value, load)
        if len(_alike) > _MOST_KNOWN:
            _alike.clear()
        _alike[kind] = known
    return known


def _look(value: Any, load: Callable[[], Any]) -> bool:
    def pickles() -> tuple[bytes, bytes]:
        copy = load()  # both are in memory at the same time, so they share no address
        return dumps(value)[0], dumps(copy)[0]

    try:
        one, other = pickles()
    except VStateError:
        return False
    except Exception as error:  # the classes' own code may raise anything
        own_error(pickles, error)
        return False
    return one == other


def is_alike_at_rest(value: Any, data: bytes, buffers: Sequence[bytes | bytearray | memoryview]) -> bool:
    """Whether the pickle of the value is `data`, apart from numbers that differ each time it is pickled.

    A figure of matplotlib counts its picklings, for example. Such a number carries no edit.
    """
    one, held = dumps(value)
    other, _ = dumps(value)
    if one == other or list(held) != [memoryview(buffer) for buffer in buffers]:
        return False
    parts = tokens(one), tokens(other), tokens(data)
    if None in parts or len({len(part or ()) for part in parts}) > 1:
        return False
    return all(
        first == wanted or (first != second and is_number(first) and is_number(second) and is_number(wanted))
        for first, second, wanted in zip(*(part or () for part in parts), strict=True)
    )


def is_alike_but_for_caches(value: Any, load: Callable[[], Any]) -> bool:
    """Whether the value is like the untouched copy that `load` makes, apart from results that reading added.

    A result that the copy has too, and that differs in the value, is an edit.
    """
    one, held, added = dumps_without_caches(value)
    if not any(added):
        return False
    other, wanted, stored = dumps_without_caches(load())
    if (one, held) != (other, wanted) and _settled(one, held) != _settled(other, wanted):
        return False
    return all(
        name in now and dumps_unproven(now[name]) == dumps_unproven(result)
        for now, before in zip(added, stored, strict=True)
        for name, result in before.items()
    )


def _settled(data: bytes, buffers: Sequence[memoryview]) -> tuple[bytes, list[memoryview]]:
    """The pickle of the value that the pickle gives. Loading shares texts that a program may have twice."""
    return dumps_without_caches(loads(data, [bytearray(buffer) for buffer in buffers]))[:2]


def definitions_in(value: Any) -> frozenset[int]:
    """The places, among the parts of the value's entry, of the definitions of classes."""
    _, buffers = dumps_unproven(value)
    return frozenset(i for i, buffer in enumerate(buffers, 1) if isinstance(buffer.obj, Definition))
