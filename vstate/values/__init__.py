"""A Python value <-> the entry that a tree stores for it, and the objects that the entry links to.

Invariants of this layer:

- Encoding never changes the value, and one encoding is a consistent set: every object that the entry
  links to is either among the new objects or in what the caller said is stored already.
- Only `pickling` unpickles, through `guarded` where there is an allow-list. `inert` reads the same bytes,
  imports nothing and calls nothing.
- Nothing here reads a store: objects come through the `Reader` that the caller passes in.
"""
