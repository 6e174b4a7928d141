"""Backends: stores under the names that agents' frameworks use, and the choice of a store by name."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Final
from weakref import proxy

from vstate.arguments import check_count, check_flag, check_text
from vstate.errors import InvalidInput
from vstate.forks import cached_property
from vstate.kv.base import KVStore
from vstate.kv.disk import Disk
from vstate.kv.disk.database import FILE_NAME
from vstate.kv.memory import Memory
from vstate.kv.redis import Redis
from vstate.kv.url import check_store, location_of
from vstate.managers.files import Document, Format, ReadableFiles
from vstate.repo.names.refs import HEAD, HEADS, REF
from vstate.repo.repository import Repository

__all__ = ["FileBackend", "MemoryBackend", "RedisBackend"]


KEY_PREFIX: Final = "vstate"
CONNECTIONS: Final = 10
FILES: Final = "files"

_MOVED: Final = (f"{REF}{HEADS}", f"{REF}{HEAD}")


class MemoryBackend(Memory):
    """A store in the memory of this process. Managers that get the same one share its contents."""


class FileBackend(Disk):
    """A Disk in a directory, with files beside it for people to read: one for each key of the commit at HEAD.

    `FileBackend("./state")` keeps all values and their history in `state/vstate.db`, durable when a commit
    returns. After each commit it writes the changed values to files such as `state/files/agents/a1.json`.
    Each file is replaced as a whole. In file names, characters that a file system may interpret become "%"
    and two digits, as in a URL. So no two keys share a file, and no file is outside the directory.

    Nothing reads the files: values come from the store, and an edit of a file has no effect. Values that JSON
    cannot hold are shown as by `vstate show --json`. Values over 1 MB, or over 200 KB if they are no JSON,
    are only described. The file of an expired key stays until a commit removes the key. If a file cannot be
    written, the logger "vstate" gets a warning, since the commit itself is safe. The next commit writes that
    file, and the files of commits by other programs or before a crash. Files are not synced, so a power cut
    may empty them: then call `write_files`.

    `format` is "json" or "msgpack", with equal contents. Msgpack holds no int over 64 bits and no lone
    surrogate, so a value with one is only described there. `compression` adds ".gz" to the names of the
    files. None compresses msgpack only. The store itself always compresses data that shrinks.

    With `file`, all values go into this one file instead, a dict by key, which each commit replaces. `part`
    limits the file to the keys under `part/`, and leaves the `part/` out. Raises InvalidInput if the file is
    there and the store is not: nothing would have read the file. With `branch`, the files follow that branch,
    wherever HEAD is.
    """

    def __init__(
        self,
        base_path: str | os.PathLike[str] = "./state",
        format: Format = "json",
        compression: bool | None = None,
        *,
        file: str | os.PathLike[str] | None = None,
        part: str = "",
        branch: str | None = None,
    ) -> None:
        if compression is not None:
            check_flag("compression", compression)
        path = None if file is None else Path(os.path.expanduser(file)).absolute()
        if path is not None and path.exists() and not Path(os.path.expanduser(base_path), FILE_NAME).exists():
            raise InvalidInput(
                f"{str(path)!r} is there, and no store of vstate wrote it: move it away, or name another file"
            )
        super().__init__(base_path)
        self._how = (format, compression, path, part, branch)
        self._files = ReadableFiles(
            Path(self.location, FILES),
            format,
            compression=format == "msgpack" if compression is None else compression,
            document=None if path is None else Document(path, f"{part}/" if part else ""),
            branch=branch,
        )

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        """As a Disk, and write the files if HEAD or a branch moved."""
        done = super().transact(writes, expected)
        if done and any(key.startswith(_MOVED) for key in writes):
            self._files.follow(self._repo)
        return done

    def write_files(self) -> None:
        """Write all files anew, and remove files without a key. Raises OSError, StorageError."""
        self._files.write_all(self._repo)

    @cached_property
    def _repo(self) -> Repository:
        # A proxy: a store that refers to itself would stay open after its last use.
        return Repository(proxy(self))

    def __repr__(self) -> str:
        return f"FileBackend({self.location!r})"

    def __reduce__(self) -> tuple[object, ...]:
        format, compression, file, part, branch = self._how
        opened = partial(FileBackend, file=file, part=part, branch=branch)
        return opened, (self.location, format, compression)


class RedisBackend(Redis):
    """A store on a Redis server: `RedisBackend("redis://localhost:6379", key_prefix="agents:")`.

    `key_prefix` separates stores on one server. `db` is the number of the database, 0 unless the URL names
    one. `connection_pool_size` limits the connections of this process; further calls wait for one. See
    `vstate.kv.Redis` for the promises of the store and the settings of the server. The first use connects,
    and raises StoreUnavailable if the server is down.
    """

    def __init__(
        self,
        url: str = "redis://localhost:6379",
        db: int | None = None,
        key_prefix: str = KEY_PREFIX,
        connection_pool_size: int = CONNECTIONS,
    ) -> None:
        check_text("the URL of a Redis server", url)
        check_count("connection_pool_size", connection_pool_size, 1)
        super().__init__(_address(url, db, connection_pool_size), prefix=key_prefix)


def _address(url: str, db: int | None, connections: int) -> str:
    """The URL with these options. Raises InvalidInput, without the URL, if the URL names another database."""
    begin, mark, query = url.partition("?")
    options = [query] if mark else []
    path = re.fullmatch(r"[a-z+]+://[^/]*(/[0-9]*)?", begin)
    if db is not None:
        own = path[1].strip("/") if path is not None and path[1] else ""
        if path is None or re.search(r"(^|&)db=", query) or own not in ("", str(db)):
            raise InvalidInput("the URL of the Redis server has a database already: leave db= out")
        begin = f"{begin.rstrip('/')}/{db}" if not own else begin
    if not re.search(r"(^|&)max_connections=", query):
        options.append(f"max_connections={connections}")
    return f"{begin}?{'&'.join(options)}"


Persistence = str | PathLike[str] | KVStore
"""`"memory"`, `"file"`, `"redis"`, a path, a URL, or a store."""

DIRECTORY = "./state"
REDIS = "redis://localhost:6379/0"


def open_persistence(
    persistence: Persistence,
    *,
    path: str | PathLike[str] = DIRECTORY,
    redis_url: str | None = None,
    branch: str | None = None,
) -> Persistence:
    """A new store in memory, a new FileBackend at `path`, or a path, URL or store for `aio.Versioned`.

    A path or URL is opened later, by the first call, in a worker thread. Any other word than the three names
    is a path, as it is for `Versioned`; write `./memory` for a directory of that name. Raises InvalidInput
    for anything else.
    """
    if redis_url is not None:
        check_text("the URL of a Redis server", redis_url)
    check_store(persistence)
    if redis_url is not None and persistence != "redis":
        raise InvalidInput(
            f"redis_url is for persistence='redis', not for {location_of(persistence)!r}: leave one out"
        )
    if persistence == "memory":
        return MemoryBackend()
    if persistence == "file":
        return FileBackend(path, branch=branch)
    if persistence == "redis":
        return redis_url or REDIS
    return persistence
