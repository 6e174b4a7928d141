"""Readers: the state that the records of an adapter mean, such as the chat of a thread in a journal.

Invariants of this layer:

- The key `vstate.reader` of a branch names its reader. Its first commit sets the key, so the name travels
  with the branch. `stored.py` lists the readers; the data names no code.
- A reader imports no framework, and nothing of the data runs.
- A commit that its reader cannot read shows its stored keys, and why.
- Nothing here writes to the store.
"""
