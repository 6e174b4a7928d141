"""What a store on disk holds, in bytes of rows: how many pages a file has depends on the machine's timing."""

import sqlite3
from contextlib import closing
from pathlib import Path


def stored_bytes(directory: Path) -> int:
    """The bytes of all rows of a Disk store. A key counts twice, for SQLite's index holds it once more."""
    with closing(sqlite3.connect(directory / "vstate.db")) as connection:
        (rows,) = connection.execute("SELECT sum(2 * length(key) + length(value)) FROM kv").fetchone()
        columns = [row[1] for row in connection.execute("PRAGMA table_info(packs)")]
        lengths = " + ".join(f"coalesce(length({column}), 0)" for column in columns)
        (packs,) = connection.execute(f"SELECT coalesce(sum({lengths}), 0) FROM packs").fetchone()
    return int(rows + packs)
