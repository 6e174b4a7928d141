"""Table: the readers by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final, NamedTuple

from vstate.readers.stored import Stored

READER: Final = "vstate.reader"
"""The key with the name of a branch's reader."""

_MODULES: Final[Mapping[str, str]] = {
    "langgraph": "vstate.readers.langgraph",
}


class Reader(NamedTuple):
    """How the commits of one kind of branch read."""

    state: Callable[[Stored], Mapping[str, Any]]
    """The keys of a commit with their values: plain data, `Serialized`, or `Kept`."""
    title: Callable[[Stored, Stored | None], str | None]
    """What a commit did, as its subject, by its keys and those of its first parent; None for its message."""


def find_reader(name: object) -> Reader | None:
    """The reader of this name, None if there is none here."""
    module = _MODULES.get(name) if isinstance(name, str) else None
    if module is None:
        return None
    found = import_module(module)  # late: most stores need none
    return Reader(found.state, getattr(found, "title", lambda stored, before: None))


def marks(name: str) -> Mapping[str, str]:
    """The key that the first commit of a branch sets, for its commits to read so."""
    assert name in _MODULES
    return {READER: name}
