"""The object model: pure data, no input or output.

Invariants of this layer:

- An object is a kind and a body of immutable bytes; its id depends on both and on nothing else.
- What is equal has one encoding: the id of a tree depends on its contents only, the index of a
  stream on its bytes only, whatever the history of edits was.
- Nothing here reads or writes a store: functions take a way to read and return the new objects.
"""
