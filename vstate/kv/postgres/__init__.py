"""A store in one table of a PostgreSQL database.

`store` is the store; `transactions` writes; `session` talks with the server, repeats what may be repeated,
hears of changes and translates errors; `connections` makes connections; `statements` is the SQL.
The driver is imported when a store is made, and so are all these modules but `store`.
"""

from vstate.kv.postgres.store import Postgres

__all__ = ["Postgres"]

# Errors and pickles name the class by the place it is imported from.
Postgres.__module__ = __name__
