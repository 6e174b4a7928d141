"""Bytes by key: the stores that everything else stands on.

Invariants of this layer:

- A store knows bytes and str keys only: no pickle, no msgpack, no object model.
- A store never evicts, and a failing store raises: neither None nor False ever stands for an error.
- A write that `set` or `transact` reported as done is there for every process that opens the store
  afterwards.
- Objects (keys under "o/", or under "o/" in a room, `room/<16 hex digits>/o/`) never change once written, so
  they alone may be cached; refs never are.
- Only `vstate.errors` come out, never an exception of a driver. No message holds a password.
- A driver, even sqlite3, is imported where a store that needs it is made: `import vstate` stays fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from vstate.kv.base import KVStore, TransactionalStore, check_key, check_value
from vstate.kv.cache import Cache, Tiered
from vstate.kv.disk import Disk
from vstate.kv.encrypted import Encrypted
from vstate.kv.memory import Memory
from vstate.kv.prefixed import Prefixed
from vstate.kv.url import open_store
from vstate.kv.wrapper import ReadOnly

if TYPE_CHECKING:
    from vstate.kv.postgres import Postgres
    from vstate.kv.redis import Redis
    from vstate.kv.s3 import S3

__all__ = [
    "S3",
    "Cache",
    "Disk",
    "Encrypted",
    "KVStore",
    "Memory",
    "Postgres",
    "Prefixed",
    "ReadOnly",
    "Redis",
    "Tiered",
    "TransactionalStore",
    "check_key",
    "check_value",
    "open_store",
]


def __getattr__(name: str) -> object:
    if name in ("Postgres", "Redis", "S3"):  # late, for a quick `import vstate`
        return getattr(import_module(f"vstate.kv.{name.lower()}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
