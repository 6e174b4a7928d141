"""The object model: pure data, no input or output.

Invariants of this layer:

- An object is a kind and a body of immutable bytes; its id depends on both and on nothing else.
- Equal content has one encoding. The id of a tree depends on its contents alone, and the index of a
  stream on its bytes alone. The history of edits does not matter.
- Nothing here reads or writes a store: a function takes a way to read, and returns the new objects.
"""
