"""A Python value <-> the entry that a tree stores for it, and the objects that the entry links to.

Invariants of this layer:

- Encoding never changes the value. Every object that the entry links to is among the new objects, or among
  those that the caller names as stored.
- Only `pickling` unpickles, through `allow` where there is an allow-list. `inert` reads the same bytes,
  imports nothing and calls nothing.
- Nothing here reads a store: the caller passes in a `Reader` of objects.
"""
