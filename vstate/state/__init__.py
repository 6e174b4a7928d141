"""The mappings that a program holds: Versioned, Live, Snapshot, and Namespace over either.

Invariants of this layer:

- A value handed out stays the same object until the state itself moves, and an edit of it in place is
  committed, however long ago it was handed out.
- A failed operation leaves the mapping as it was, with everything staged that was staged.
- Nothing is committed that did not change.
"""

from vstate.state.live import Live
from vstate.state.namespace import Namespace
from vstate.state.snapshot import Snapshot
from vstate.state.versioned import Versioned

__all__ = ["Live", "Namespace", "Snapshot", "Versioned"]
