"""The files of a directory as a dict: `put` writes them, and `found_in` reads them."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from vstate import File
from vstate.workspace.paths import CONTROL


def found_in(directory: str | os.PathLike[str]) -> dict[str, File]:
    """Every file and link below a directory, by its path, without what the workspace keeps for itself."""
    files = {}
    for top, directories, names in os.walk(directory):
        if CONTROL in directories:
            directories.remove(CONTROL)
        links = [name for name in directories if os.path.islink(os.path.join(top, name))]
        for name in [*names, *links]:
            path = os.path.join(top, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                file = File(os.fsencode(os.readlink(path)), "link")
            elif stat.S_ISREG(mode):
                kind = "executable" if mode & stat.S_IXUSR else "file"
                file = File(Path(path).read_bytes(), kind)
            else:
                continue
            files[os.path.relpath(path, directory)] = file
    return files


def put(directory: str | os.PathLike[str], files: Mapping[str, File | bytes | None]) -> None:
    """Write files into a directory as any program may, in place; None deletes one."""
    for name, file in files.items():
        path = os.path.join(directory, name)
        file = File(file) if isinstance(file, bytes) else file
        if file is None or file.kind == "link" or os.path.islink(path):
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(path)
        if file is None:
            continue
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if file.kind == "link":
            os.symlink(os.fsdecode(file.data), path)
        else:
            Path(path).write_bytes(file.data)
            os.chmod(path, 0o755 if file.kind == "executable" else 0o644)
