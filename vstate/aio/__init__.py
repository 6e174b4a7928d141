"""vstate.aio: the state for programs with an event loop.

from vstate.aio import Versioned

async with Versioned("agent-state") as state:
    state["messages"] = ["hello"]
    await state.commit("first words")
    print(await state["messages"])

The names are those of `vstate.Versioned`. Calls that may read or write the store are awaited, and run in
worker threads; a value that is in memory is read without a thread. Everything else is the same: there is one
implementation, and this package awaits it.

- A call that is cancelled has happened or has not: the cancellation is raised once that is settled. If a
  transaction is cancelled as it ends, its commit is made.
- Tasks may share a handle, as threads do. While one of them is in a transaction, the others wait without
  holding up the loop.
- A Change of a `diff`, and a Snapshot in the predicate of `bisect`, load values on demand, in the thread that
  asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vstate.aio.mapping import Namespace, Snapshot, Watching
from vstate.aio.versioned import Lease, Repository, Versioned

if TYPE_CHECKING:
    from vstate.aio.workspace import Workspace

__all__ = ["Lease", "Namespace", "Repository", "Snapshot", "Versioned", "Watching", "Workspace"]


def __getattr__(name: str) -> object:
    if name == "Workspace":  # late, for a quick import
        from vstate.aio import workspace

        return workspace.Workspace
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
