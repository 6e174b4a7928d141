"""The `vstate` command.

Invariants of this layer:

- It stands on Repository. Nothing here unpickles, or calls what does: values are read inertly.
- Text that comes out of a store reaches the terminal through `output.safe` or `preview`, never as it is.
- A command decides what is asked for; the repository does it; `render` and `documents` say how it looks, `output` where it goes.
"""
