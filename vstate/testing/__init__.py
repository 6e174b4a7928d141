"""For people who write a backend: the tests that every store has to pass, and a store that fails on purpose.

Invariants of this layer:

- Nothing that vstate ships imports it; it alone imports pytest.
- `KVStoreTests` tests what `KVStore` promises, and nothing that only one backend does.
"""

from vstate.testing.faulty import Faulty
from vstate.testing.kvstore import KVStoreTests

__all__ = ["Faulty", "KVStoreTests"]
