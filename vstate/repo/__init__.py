"""Objects and refs over one KVStore: git's repository.

Invariants of this layer:

- Objects are write-once and verified: a read returns the bytes that the id names, or raises CorruptObject.
- A ref moves only by compare-and-swap, after every object it leads to was written, and leaves a line in
  its reflog.
- Refs are never cached.
- Nothing here unpickles.
"""

from vstate.repo.compare.diff import Change, Diff
from vstate.repo.repository import Repository

__all__ = ["Change", "Diff", "Repository"]
