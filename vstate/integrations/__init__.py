"""Adapters: vstate under the frameworks that agents are written with, one module or package for each.

Invariants:

- An adapter imports its framework and vstate, and nothing else. `import vstate` loads no adapter.
- Each has an extra of its name: `pip install '.[langgraph]'`.
- The dimension that the framework shares, such as a thread or a session, is a branch.
- Stored data loads without the program's classes, or by the framework's own rules.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from vstate.extras import install


@contextmanager
def framework_of(extra: str) -> Iterator[None]:
    """Import a framework inside; an ImportError names the extra that installs it."""
    try:
        yield
    except ImportError as error:
        raise type(error)(
            f"the adapter of {extra} cannot import its framework ({error}); type: {install(extra)}",
            name=error.name,
        ) from error
