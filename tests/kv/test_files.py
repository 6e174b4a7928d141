"""Replacing files: any name that a file may have, and everything on the disk before it is done."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vstate.kv.files import make_directory, replace_file


def test_long_names(tmp_path: Path) -> None:
    """A file name may be as long as the system allows: 255 bytes of any characters. What is in the way stays:
    a file is no directory, and a directory is no file.
    """
    for name in ("x" * 255, "\N{GRINNING FACE}" * 63, "é" * 127):
        for data in (b"old", b"new"):
            replace_file(tmp_path / name, data)
        assert (tmp_path / name).read_bytes() == b"new"
    (tmp_path / "directory").mkdir()
    for call in (
        lambda: make_directory(tmp_path / name),
        lambda: make_directory(tmp_path / name / "more"),
        lambda: replace_file(tmp_path / "directory", b"data"),
    ):
        with pytest.raises(OSError):
            call()
    assert len(list(tmp_path.iterdir())) == 4


def test_all_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The contents, the name, and each directory that was made, in its parent."""
    synced: list[tuple[int, int]] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        fsync(descriptor)
        found = os.fstat(descriptor)
        synced.append((found.st_dev, found.st_ino))

    monkeypatch.setattr(os, "fsync", noting)
    path = tmp_path / "a" / "b" / "file"
    make_directory(path.parent)
    replace_file(path, b"data")
    wanted = [tmp_path, tmp_path / "a", path, path.parent]
    assert synced == [(each.stat().st_dev, each.stat().st_ino) for each in wanted]
    synced.clear()
    make_directory(path.parent)
    replace_file(path, b"data", durable=False)
    assert synced == []
