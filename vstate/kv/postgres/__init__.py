"""A store in one table of a PostgreSQL database.

`store` is the store; `transactions` what it writes as one; `session` talks with the server, and tries again; `connections`
are what it talks over; `statements` is the SQL; `failures` says what its errors mean; `listener` hears of changes; `turns`
is whose turn it is. The driver is imported where a store is made, and so is all but `store`.
"""

from vstate.kv.postgres.store import Postgres

__all__ = ["Postgres"]

# Where it is imported from is what errors and pickles call it.
Postgres.__module__ = __name__
