"""Display: how a stored value, or a change of one, looks; for any front end.

Invariants of this layer:

- It takes values as `inert.read` returns them. It neither unpickles nor imports anything of theirs.
- A description is plain data that JSON can hold. It knows nothing of terminals and pages.
- Its size, and the work to make it, are bounded on any value.
"""
