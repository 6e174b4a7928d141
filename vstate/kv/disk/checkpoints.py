"""Checkpoints: copies the log of a long transaction into the database file, in a thread of its own.

SQLite does that at the end of a commit, in the thread of the caller. It takes as long as writing the log, so
a commit of 100 MB would take twice the time. The log is synced by then, so nothing depends on the copy.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from threading import Thread

from vstate.errors import VStateError
from vstate.kv.disk.database import Database, Handle

USUAL_PAGES = 1000
"""A shorter transaction copies the log itself, if the log has this many pages: SQLite's own rule."""


class Checkpoints:
    """The checkpoints of long transactions of one store. The lock of the writer is held around each call
    but `wait`.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.is_put_off = False
        self._thread: Thread | None = None

    def put_off(self, writer: Handle) -> None:
        """Let the transaction that is open commit without a checkpoint."""
        assert writer.connection is not None  # it has a transaction
        self.is_put_off = True  # first: an interruption may come before the next line, or after it
        writer.connection.execute("PRAGMA wal_autocheckpoint=0")

    def resume(self, writer: Handle) -> None:
        """Let the transactions that follow make checkpoints again, if one was put off."""
        if self.is_put_off and writer.connection is not None:
            writer.connection.execute(f"PRAGMA wal_autocheckpoint={USUAL_PAGES}")
            self.is_put_off = False

    def start(self) -> None:
        """Make a checkpoint, unless one is under way."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = Thread(target=self._run, name="vstate-checkpoint")
            with suppress(RuntimeError):  # no thread can start now: the next commit makes the checkpoint
                self._thread.start()

    def wait(self) -> None:
        """Wait until the checkpoint that is under way has ended."""
        thread = self._thread
        if thread is not None and thread.ident is not None:
            thread.join()

    def _run(self) -> None:
        # After an error the log keeps its rows, and another checkpoint copies them.
        with suppress(sqlite3.Error, VStateError, OSError):
            connection = self._database.connect(writing=True)
            try:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            finally:
                connection.close()
