"""Files: contents that are replaced as a whole, names that outlive a power cut, locks, and secrets."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from vstate.backoff import Backoff
from vstate.errors import AlreadyExists, InvalidInput, NotFound

_PAUSE, _LONGEST_PAUSE = 0.001, 0.01  # seconds between two looks at a lock

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The errors of a full disk, of a quota, and of a limit on the size of files."""
_PROBE_BYTES = 64 * 1024

AnyPath = str | os.PathLike[str]

KEY_FILE_BYTES = 64 * 1024
_OTHERS = 0o077


def has_room(directory: str | os.PathLike[str], *files: str | os.PathLike[str]) -> bool:
    """Whether this process can write 64 KB more in the directory, and to each of the files.

    True too where the attempt fails for another reason: then something else is wrong than the room.
    """
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    for file in files:
        with suppress(OSError):
            if limit not in (-1, resource.RLIM_INFINITY) and os.stat(file).st_size + _PROBE_BYTES > limit:
                return False
    probe = os.path.join(directory, f".{os.urandom(8).hex()}")
    try:
        with open(probe, "xb") as made:
            try:
                made.write(bytes(_PROBE_BYTES))
                made.flush()
                os.fsync(made.fileno())
            finally:
                with suppress(OSError):
                    os.unlink(probe)
    except OSError as error:
        return error.errno not in NO_ROOM
    return True


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` at the end of the block. It keeps the permissions.

    A reader sees the old contents or the new. Contents and name are on the disk when the block ends. Without
    `durable`, a power cut may leave the file empty. An exception, such as OSError, leaves the file alone,
    except where only the sync of the directory fails.
    """
    # 40 characters are 160 bytes at most, and file systems take 255 for a name.
    temporary = path.with_name(f".{path.name[:40]}.{os.urandom(8).hex()}")
    try:
        with open(temporary, "xb") as file:
            _keep_permissions(file.fileno(), path)
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        sync_directory(path.parent)


def replace_file(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Make `data` the contents of a file, as `replacing` promises."""
    with replacing(path, durable=durable) as file:
        file.write(data)


def _keep_permissions(descriptor: int, path: Path) -> None:
    """Give the file the mode, owner and group of `path`, as far as it exists and this user may do so."""
    try:
        old, new = path.stat(), os.fstat(descriptor)
    except FileNotFoundError:
        return
    for owner, group in ((-1, old.st_gid), (old.st_uid, -1)):
        if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
            with suppress(PermissionError):
                os.fchown(descriptor, owner, group)
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))


def may_write(*paths: str) -> bool:
    """Whether this user may write to the files, and make files in the directories. A missing one may be
    written.
    """
    for path in paths:
        may = os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)
        if not may and os.path.exists(path):
            return False
    return True


def make_file(path: str) -> None:
    """Make an empty file with the mode of the umask, unless something is there, as `open_shared` does. Raises
    OSError.
    """
    with suppress(FileExistsError):
        if sys.platform == "linux":
            os.mknod(path, 0o666)  # closing a descriptor would drop the locks that another thread has by now
        else:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        _give_to_owner(path)


def open_shared(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file, or make it, for all who use its directory. A lock needs no right to write. Raises OSError.

    Root gives an empty file to the owner of the directory: else root would lock its owner out.
    """
    descriptor = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o666)
    _give_to_owner(path)
    return descriptor


def _give_to_owner(path: str | os.PathLike[str]) -> None:
    if os.geteuid() == 0 and not os.stat(path).st_size:
        directory = os.stat(os.path.dirname(path) or ".")
        os.chown(path, directory.st_uid, directory.st_gid)


def make_directory(path: Path) -> None:
    """Make a directory and its missing parents, and sync their names to the disk. Raises OSError."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    # A new directory outlives a power cut once its parent is on the disk.
    sync_directory(path.parent)


@contextmanager
def locked(descriptor: int, *, seconds: float | None = None) -> Iterator[None]:
    """Hold the lock of an open file in the block, as `take_lock` takes it."""
    take_lock(descriptor, seconds=seconds)
    try:
        yield
    finally:
        # Closing does not suffice: a child that was forked meanwhile has the file open too.
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def take_lock(descriptor: int, *, seconds: float | None = None) -> None:
    """Lock an open file against other processes and threads.

    Raises BlockingIOError if the lock is taken for `seconds`; None waits for ever.
    """
    if seconds is None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return
    backoff = Backoff(_PAUSE, _LONGEST_PAUSE, seconds=seconds)
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not backoff.pause():
                raise


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Sync the names in a directory to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Key files: a secret in a file that only its owner may read


def read_secret(path: AnyPath) -> bytes:
    """The contents of a key file.

    NotFound if it is missing; InvalidInput if it cannot be a key file, or if others than its owner may read
    it.
    """
    name = os.path.expanduser(path)
    try:
        # Without O_NONBLOCK, opening a pipe would wait forever.
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
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
        if mode & _OTHERS:
            raise InvalidInput(f"others than its owner may read the key file {name}: chmod 600 {name}")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(KEY_FILE_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > KEY_FILE_BYTES:
        raise InvalidInput(f"{name} is too long to be a key file")
    return data


def write_secret(path: AnyPath, data: bytes) -> None:
    """Write a secret durably into a new file that only its owner may read. Raises AlreadyExists."""
    name = os.path.expanduser(path)
    try:
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
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
