"""Bytes by key: the stores that everything else stands on.

Invariants of this layer:

- A store knows bytes and str keys only: no pickle, no msgpack, no object model.
- A store never evicts, and a failing store raises: neither None nor False ever stands for an error.
- What `set` and `transact` reported as done is there for every process that opens the store afterwards.
- Objects (keys under "o/") never change once written, so they alone may be cached; refs never are.
- Only `vstate.errors` come out, never an exception of a driver; and no message holds a password.
- A driver, and be it sqlite3, is imported where a store that needs it is constructed: `import vstate`
  stays fast.
"""

from vstate.kv.base import KVStore
from vstate.kv.cache import Cache
from vstate.kv.disk import Disk
from vstate.kv.encrypted import Encrypted
from vstate.kv.memory import Memory
from vstate.kv.url import open_store

__all__ = ["Cache", "Disk", "Encrypted", "KVStore", "Memory", "open_store"]
