"""Patterns of agents' state, on any state mapping: typed records, streams of events, life cycles, bounds, scopes.

- Nothing here holds anything itself: what is written is in the mapping, and the mapping's commit keeps it.
- Every read-modify-write belongs into `state.update(function)`, which runs it again if others were faster.
- Keys that are made of ids are made by `join_path`: no two tuples of texts give the same.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from vstate.patterns.bounds import bound
from vstate.patterns.events import EventStream
from vstate.patterns.lifecycle import Lifecycle
from vstate.patterns.paths import join_path, scope, split_path
from vstate.patterns.sequence import Sequence

if TYPE_CHECKING:
    from vstate.patterns.records import Records

__all__ = [
    "EventStream",
    "Lifecycle",
    "Records",
    "Sequence",
    "bound",
    "join_path",
    "scope",
    "split_path",
]


def __getattr__(name: str) -> object:
    if name == "Records":  # late: the others need no pydantic
        return getattr(import_module("vstate.patterns.records"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
