"""Checkpoints of long transactions on disk: later, in a thread of their own, and missed by nobody."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from random import Random

import pytest

from vstate import Disk
from vstate.kv.disk.database import FILE_NAME, LOG_BYTES
from vstate.kv.disk.writes import LONG_BYTES

ROWS = {f"row {i}": Random(i).randbytes(64 * 1024) for i in range(LONG_BYTES // 65536 + 1)}


def sizes(directory: Path) -> tuple[int, int]:
    """The bytes of the database file and of its log."""
    file = directory / FILE_NAME
    return file.stat().st_size, file.with_name(f"{FILE_NAME}-wal").stat().st_size


def test_the_log_of_a_long_transaction_is_copied_and_cut_back(tmp_path: Path) -> None:
    """A thread copies it, also while shorter transactions go on, and the log does not grow."""
    with Disk(tmp_path) as disk:
        for turn in range(3):
            disk.set_many({key: bytes([turn]) + value for key, value in ROWS.items()})
            assert sizes(tmp_path)[1] < 2 * LONG_BYTES
        disk.set("short", b"1")
        assert disk._copying is not None
        disk._copying.join()
        assert sizes(tmp_path)[0] > LONG_BYTES
        for turn in range(3):
            disk.set("short", bytes([turn]))
        assert sizes(tmp_path)[1] <= LOG_BYTES
        assert disk.get("row 7") == b"\2" + ROWS["row 7"]


def test_the_next_commit_makes_a_checkpoint_that_was_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interruption before the thread starts leaves a long log, until the next commit."""
    with Disk(tmp_path) as disk:
        monkeypatch.setattr(Disk, "_copy_log", lambda disk: None)
        disk.set_many(ROWS)
        assert sizes(tmp_path)[0] < LONG_BYTES < sizes(tmp_path)[1]
        disk.set("short", b"1")
        assert sizes(tmp_path)[0] > LONG_BYTES


@pytest.mark.slow
def test_a_fork_and_a_kill_right_after_a_long_transaction(tmp_path: Path) -> None:
    """Parent and child both go on with the store. A killed process leaves its rows in the log."""
    with Disk(tmp_path) as disk:
        disk.set_many(ROWS)
        child = os.fork()
        if not child:
            try:
                disk.set_many({key: value[::-1] for key, value in ROWS.items()})
                disk.set("child", b"1")
            finally:
                os.kill(os.getpid(), signal.SIGKILL)
        disk.set("parent", b"1")
        os.waitpid(child, 0)
        expected = {key: value[::-1] for key, value in ROWS.items()} | {"child": b"1", "parent": b"1"}
        assert disk.get_many(expected) == expected
        assert list(disk.check()) == []
