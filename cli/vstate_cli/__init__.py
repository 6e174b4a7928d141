"""The `vstate` command.

Invariants of this layer:

- It uses Repository. Nothing here unpickles, and nothing here calls code that does. Values are read
  inertly.
- Text from a store reaches the terminal only through `output.safe` or `preview`, which escape it.
- A command reads its arguments, and the repository does the work. `commits`, `changes` and `values` turn
  results into lines and documents, and `Session.answer` prints one or the other.
"""
