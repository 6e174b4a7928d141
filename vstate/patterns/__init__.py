"""Patterns of agents' state, on any state mapping: typed records, event streams, life cycles, bounds, scopes.

- The patterns store nothing themselves: all writes go to the mapping, and its commit keeps them. A `Journal`
  alone has no mapping: it commits to a branch.
- Put each read-modify-write into `state.apply(function)`, which runs it again if others were faster.
- `join_path` makes keys of ids. Each tuple of texts has a key of its own.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from vstate.patterns.bounds import bound
from vstate.patterns.event_stream import EventStream
from vstate.patterns.journal import Journal
from vstate.patterns.lifecycle import Lifecycle
from vstate.patterns.paths import join_path, scope, split_path
from vstate.patterns.sequence import Sequence

if TYPE_CHECKING:
    from vstate.patterns.records import Records

__all__ = [
    "EventStream",
    "Journal",
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
