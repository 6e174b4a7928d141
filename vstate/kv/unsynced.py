"""Unsynced: a note that the end of a database's log may not be on the disk, and what to do about it."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3

_PIECE = 1 << 20


class Unsynced:
    """A file beside the database, which is there while its log may hold what the disk does not.

    When an fsync fails, Linux takes what it was to write for written: it can be read for as long as it stays
    in memory, but no later fsync writes it. A process that opens the database takes such a commit, which failed,
    for one that happened. What is committed behind it then depends on it, and a power cut would take both.

    So who saw a sync fail leaves this note, and the next one to open the database writes the log once more. The
    note itself needs no sync: it has to last no longer than the memory that it warns of.
    """

    __slots__ = ("_log", "_note")

    def __init__(self, file: str) -> None:
        self._log = f"{file}-wal"
        self._note = f"{file}-unsynced"

    def note(self) -> None:
        """Leave the note; where no file can be made, nothing can be committed either."""
        with suppress(OSError):
            os.close(os.open(self._note, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))

    def __bool__(self) -> bool:
        return os.path.exists(self._note)

    def settle(self, connection: sqlite3.Connection) -> None:
        """Write the log once more, byte by byte the same, sync it, and take the note away. Raises OSError."""
        # Whoever holds the write lock is the only one to append to the log, or to begin it anew.
        connection.execute("BEGIN IMMEDIATE")
        try:
            with suppress(FileNotFoundError), open(self._log, "r+b", buffering=0) as log:
                while piece := log.read(_PIECE):
                    log.seek(-len(piece), os.SEEK_CUR)
                    log.write(piece)
                os.fsync(log.fileno())
            with suppress(FileNotFoundError):
                os.unlink(self._note)
        finally:
            connection.execute("ROLLBACK")
