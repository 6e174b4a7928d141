"""For authors of a backend: the tests that every store must pass, and a store that fails on purpose.

Invariants of this layer:

- No other module of vstate imports this package.
- Only `kvstore` needs pytest, and it is imported when somebody asks for `KVStoreTests`.
- `KVStoreTests` tests the promises of `KVStore`, and nothing else.
"""

from typing import TYPE_CHECKING

from vstate.extras import install
from vstate.testing.faulty import Faulty

if TYPE_CHECKING:
    from vstate.testing.kvstore import KVStoreTests

__all__ = ["Faulty", "KVStoreTests"]


def __getattr__(name: str) -> object:
    if name != "KVStoreTests":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import pytest
    except ImportError as error:
        raise ImportError(f"KVStoreTests needs pytest; type: {install('testing')}") from error
    pytest.register_assert_rewrite("vstate.testing.kvstore")  # a failing assertion then shows its values
    from vstate.testing.kvstore import KVStoreTests

    return KVStoreTests
