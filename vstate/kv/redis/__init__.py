"""A store on a Redis or Valkey server, or on a cluster of them, or on the primary that sentinels name.

`store` reads; `transactions` writes; `link` makes connections, sends commands, repeats them when a connection
breaks, hears of changes, and translates errors; `address` reads URLs and clients; `scripts` runs on the
server. The driver is imported when a store is made, and so are all these modules but `store` and `scripts`.
"""

from vstate.kv.redis.store import Redis

__all__ = ["Redis"]

# Errors and pickles name the class by the place it is imported from.
Redis.__module__ = __name__
