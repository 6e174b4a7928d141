"""Replacing a file: whole before, whole after, and on the disk when it is done."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path


def replace_file(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Make `data` the contents of a file, which keeps its permissions; at no moment is there anything in between.

    Raises OSError, with the file as it was. Both the contents and the name are on the disk when it returns, unless
    it need not be `durable`: a power cut may then leave the file empty.
    """
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}")
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
    if not durable:
        return
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
