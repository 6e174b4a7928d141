"""Importing this module makes doltlite the SQLite of the process, which must not have loaded another one."""

import sys

if "_sqlite3" in sys.modules:
    # doltlite would start the program of this process anew.
    raise RuntimeError(
        "this process has loaded SQLite, so doltlite cannot replace it; run `python -m benchmarks`"
    )

import doltlite  # noqa: F401 (after the check; the import alone has the effect)
