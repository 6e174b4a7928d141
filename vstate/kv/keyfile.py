"""Key files: a secret in a file that only its owner may read."""

from __future__ import annotations

import os
import stat

from vstate.errors import AlreadyExists, InvalidInput, NotFound
from vstate.kv.files import sync_directory

Path = str | os.PathLike[str]

MAX_BYTES = 64 * 1024
_OTHERS = 0o077


def read_secret(path: Path) -> bytes:
    """The contents of a key file.

    NotFound if it is missing; InvalidInput if it cannot be a key file, or if others than its owner may read
    it.
    """
    name = os.path.expanduser(path)
    try:
        # Without O_NONBLOCK, opening a pipe would wait forever.
        descriptor = os.open(name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        raise NotFound(
            f"no key file {name}; make one with `vstate key new {name}`, and with --kind encryption if it "
            "encrypts a store",
            name=name,
        ) from None
    except (OSError, ValueError) as error:
        raise InvalidInput(f"the key file {name!r} cannot be opened: {error}") from error
    try:
        # The mode of the open file: the name may stand for another file by now.
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise InvalidInput(f"{name} is not a file, so it holds no key; give the path of a key file")
        if os.name == "posix" and mode & _OTHERS:
            raise InvalidInput(f"others than its owner may read the key file {name}: chmod 600 {name}")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_BYTES:
        raise InvalidInput(f"{name} is too long to be a key file")
    return data


def write_secret(path: Path, data: bytes) -> None:
    """Write a secret durably into a new file that only its owner may read. Raises AlreadyExists."""
    name = os.path.expanduser(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(name, flags, 0o600)
    except FileExistsError:
        raise AlreadyExists(
            f"{name} is there already, and an overwritten key is lost: choose another name", name=name
        ) from None
    except (OSError, ValueError) as error:
        raise InvalidInput(f"the key file {name!r} cannot be made: {error}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        sync_directory(os.path.dirname(os.path.abspath(name)))
    except BaseException:
        os.unlink(name)  # half a key is useless, and would be in the way
        raise
