"""Likeness: whether two untouched copies of a stored value pickle alike in this process.

A class may pickle its own address, as the storage of a tensor does. Then a second copy says nothing about
edits of the first, and the pickle of the value right after its loading does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from vstate.errors import VStateError
from vstate.values.culprits import own_error
from vstate.values.pickling import dumps

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
