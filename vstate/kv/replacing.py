"""Replacing a file: whole before, whole after, and on the disk when it is done; and the directories for it."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path


def replace_file(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Make `data` the contents of a file, which keeps its permissions; at no moment is there anything in between.

    Raises OSError, with the file as it was, or, if it is the directory that cannot be synced, as it is to be. Both the
    contents and the name are on the disk when it returns, unless it need not be `durable`: a power cut may then
    leave the file empty.
    """
    # 40 characters, which are 160 bytes at the most: file systems take 255 for a name.
    temporary = path.with_name(f".{path.name[:40]}.{secrets.token_hex(8)}")
    try:
        with open(temporary, "xb") as file:
            with suppress(FileNotFoundError):
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        _sync_directory(path.parent)


def make_directory(path: Path) -> None:
    """Make a directory, and those around it, unless they are there; they are on the disk when it returns. OSError."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    # A new directory outlives a power cut once its parent is on the disk.
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
