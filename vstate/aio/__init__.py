"""vstate.aio: the state for programs with an event loop.

from vstate.aio import Versioned

async with Versioned("agent-state") as state:
    state["messages"] = ["hello"]
    await state.commit("first words")
    print(await state["messages"])

The names are those of `vstate.Versioned`; what may read or write the store is awaited, and runs in worker
threads. Nothing else is different: there is one implementation, and this is the way into it.

- A call that is cancelled has happened or has not: the cancellation is passed on once that is settled. So may be one that
  comes as a transaction ends: its commit is made.
- Tasks may share a handle, as threads do; a transaction of one is waited for by the others without
  holding up the loop.
- A Change of a `diff`, and a Snapshot given to the predicate of `bisect`, load values when asked for, in the thread that
  asks.
"""

from __future__ import annotations

from vstate.aio.lease import Lease
from vstate.aio.reading import Snapshot
from vstate.aio.versioned import Versioned
from vstate.aio.watching import Watching
from vstate.aio.writing import Namespace

__all__ = ["Lease", "Namespace", "Snapshot", "Versioned", "Watching"]
