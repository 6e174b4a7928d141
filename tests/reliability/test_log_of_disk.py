"""SQLite's log: a store always has one, and writes it again after a failed sync."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from story import check_story, tell

from vstate import Disk, Versioned
from vstate.errors import StoreUnavailable

NOTE = "vstate.db-unsynced"


def fill(directory: Path) -> None:
    with Versioned(Disk(directory)) as state:
        for number in (1, 2, 3):
            tell(state, number)
            state.commit(str(number))


def journal_mode(directory: Path) -> str:
    with closing(sqlite3.connect(directory / "vstate.db")) as connection:
        return str(connection.execute("PRAGMA journal_mode").fetchone()[0])


def test_a_file_without_a_log_gets_one(tmp_path: Path) -> None:
    """Disk turns WAL mode on again, before any write, if another tool turned it off."""
    fill(tmp_path)
    with closing(sqlite3.connect(tmp_path / "vstate.db")) as connection:
        connection.execute("PRAGMA journal_mode=DELETE").fetchall()
    assert journal_mode(tmp_path) == "delete"
    with Disk(tmp_path) as disk:
        assert check_story(disk, every=1) == 3
        state = Versioned(disk)
        tell(state, 4)
        state.commit("4")
        assert journal_mode(tmp_path) == "wal"
        assert check_story(disk, every=1) == 4


def test_nothing_is_written_while_the_log_cannot_be_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the log cannot be written again, reading works and writing raises. Afterwards both work."""
    fill(tmp_path)
    (tmp_path / NOTE).touch()
    with Disk(tmp_path) as disk:
        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", fail)
            (tmp_path / NOTE).touch()
            state = Versioned(disk)
            assert dict(state)
            tell(state, 4)
            with pytest.raises(StoreUnavailable, match="nothing was written"):
                state.commit("4")
            assert (tmp_path / NOTE).exists()
        state.commit("4")
        assert check_story(disk, every=1) == 4
        assert not (tmp_path / NOTE).exists()


def fail(descriptor: int) -> None:
    raise OSError(5, "Input/output error")
