"""For authors of a backend: the tests that every store must pass, and a store that fails on purpose.

Invariants of this layer:

- No other module of vstate imports this package; it alone imports pytest.
- `KVStoreTests` tests the promises of `KVStore`, and nothing else.
"""

from vstate.testing.faulty import Faulty
from vstate.testing.kvstore import KVStoreTests

__all__ = ["Faulty", "KVStoreTests"]
