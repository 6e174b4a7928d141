"""Objects and refs over one KVStore: git's repository.

Its floors, from the top; each imports only those below it:

- `clone`: copy a store;
- `repository`: the facade, with every operation as a method;
- `exchange`: push, fetch, bundles;
- `upkeep`: gc, fsck, repair;
- `merge`, `search`: three-way merges; blame and bisect;
- `core`: open, resolve, load, build, publish; branches, tags and HEAD;
- `rules`: merge policies, leases, signing and trust;
- `names`: refs and their reflog, revisions, dates, undo, remotes;
- `walk`, `history`, `objects`, `compare`: reading commits and objects, and comparing values.

Invariants of this layer:

- Objects are write-once and verified: a read returns the bytes that the id names, or raises CorruptObject.
- A ref moves only by compare-and-swap, after every object it leads to was written, and leaves a line in
  its reflog.
- Refs are never cached.
- Only `load` unpickles. The command line never calls it.
"""

from vstate.repo.compare.diff import Change, Diff
from vstate.repo.names.refs import quote_ref, unquote_ref
from vstate.repo.repository import Repository

__all__ = ["Change", "Diff", "Repository", "quote_ref", "unquote_ref"]
