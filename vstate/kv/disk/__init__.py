"""A store in one SQLite file.

`store` reads and writes rows; `writes` lets the transactions of threads go together; `database` makes, opens
and syncs the file, and translates its errors; `log` tells a log of another file; `connections` closes all
connections while the process forks; `packs` keeps values that are seldom read.
sqlite3 is imported when a store is made.
"""

from vstate.kv.disk.store import Disk

__all__ = ["Disk"]

# Errors and pickles name the class by the place it is imported from.
Disk.__module__ = __name__
