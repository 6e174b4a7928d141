"""A store on a Redis or Valkey server, or on a cluster of them.

`store` is the store; `link` the way to the server, and what is sent again when a connection breaks; `scripts`
what runs there; `listener` hears of changes. The driver is imported where a store is made.
"""

from vstate.kv.redis.store import Redis

__all__ = ["Redis"]

# Errors and pickles name the class by the place it is imported from.
Redis.__module__ = __name__
