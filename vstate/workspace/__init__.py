"""Workspace: a directory of files that goes with a state.

Invariants of this layer:

- An edit that no commit has is never overwritten, unless the caller says `force`.
- Each file is whole at any moment, old or new, and what a kill interrupts the next call finishes.
- No name in a store leads out of the directory.
"""

from vstate.workspace.directory import Status
from vstate.workspace.workspace import PREFIX, Files, Workspace

__all__ = ["PREFIX", "Files", "Status", "Workspace"]
