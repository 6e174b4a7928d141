"""Backends: stores under the names that agents' frameworks use, and the choice of a store by name."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypedDict
from weakref import proxy

from vstate.arguments import check_count, check_text
from vstate.errors import InvalidInput
from vstate.forks import cached_property
from vstate.kv.base import KVStore
from vstate.kv.disk import Disk
from vstate.kv.disk.database import FILE_NAME
from vstate.kv.memory import Memory
from vstate.kv.redis import Redis
from vstate.kv.url import check_store, location_of
from vstate.managers.readable_file import ReadableFile
from vstate.repo.names.refs import HEAD, HEADS, REF
from vstate.repo.repository import Repository

__all__ = ["FileBackend", "MemoryBackend", "RedisBackend"]


_MOVED: Final = (f"{REF}{HEADS}", f"{REF}{HEAD}")


class MemoryBackend(Memory):
    """A store in the memory of this process. Managers that get the same one share its contents."""


class FileBackend(Disk):
    """A Disk in a directory: `FileBackend("./state")`. Several processes may share it.

    With `file`, this JSON file has all values for people to read, a dict by key, which each commit replaces.
    `part` limits the file to the keys under `part/`, and leaves the `part/` out. With `branch`, the file
    follows that branch, wherever HEAD is. Raises InvalidInput if the file is there and the store is not:
    nothing would have read the file.

    Nothing reads the file: values come from the store, and an edit of the file has no effect. Values that
    JSON cannot hold are shown as by `vstate show --json`. Values over 1 MB, or over 200 KB if they are no
    JSON, are only described. An expired key stays until a commit removes the key. If the file cannot be
    written, the logger "vstate" gets a warning, since the commit itself is safe. The next commit writes it,
    also after commits by other programs or a crash. It is not synced, so a power cut may empty it: then call
    `write_file`.
    """

    def __init__(
        self,
        base_path: str | os.PathLike[str] = "./state",
        *,
        file: str | os.PathLike[str] | None = None,
        part: str = "",
        branch: str | None = None,
    ) -> None:
        path = None if file is None else Path(os.path.expanduser(file)).absolute()
        if path is not None and path.exists() and not Path(os.path.expanduser(base_path), FILE_NAME).exists():
            raise InvalidInput(
                f"{str(path)!r} is there, and no store of vstate wrote it: move it away, or name another file"
            )
        super().__init__(base_path)
        self._how: dict[str, Any] = {"file": path, "part": part, "branch": branch}
        lock, prefix = Path(self.location, ".shown"), f"{part}/" if part else ""
        self._file = None if path is None else ReadableFile(path, lock, prefix, branch)

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        """As a Disk, and write the file if HEAD or a branch moved."""
        done = super().transact(writes, expected)
        if done and self._file is not None and any(key.startswith(_MOVED) for key in writes):
            self._file.follow(self._repo)
        return done

    def write_file(self) -> None:
        """Write the `file` anew. Raises OSError, StorageError."""
        if self._file is not None:
            self._file.write(self._repo)

    @cached_property
    def _repo(self) -> Repository:
        # A proxy: a store that refers to itself would stay open after its last use.
        return Repository(proxy(self))

    def __repr__(self) -> str:
        return f"FileBackend({self.location!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return partial(FileBackend, **self._how), (self.location,)


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
        key_prefix: str = "vstate",
        connection_pool_size: int = 10,
    ) -> None:
        check_text("the URL of a Redis server", url)
        check_count("connection_pool_size", connection_pool_size, 1)
        super().__init__(_address(url, db, connection_pool_size), prefix=key_prefix)


def _address(url: str, db: int | None, connections: int) -> str:
    """The URL with these options. Raises InvalidInput, without the URL, if it names a database already."""
    options = []
    if db is not None:
        if re.search(r"[?&]db=|://[^/?]*/[0-9]", url):
            raise InvalidInput("the URL of the Redis server has a database already: leave db= out")
        options.append(f"db={db}")
    if not re.search(r"[?&]max_connections=", url):
        options.append(f"max_connections={connections}")
    return "&".join([url, *options]) if "?" in url else f"{url}?{'&'.join(options)}"


Persistence = str | PathLike[str] | KVStore
"""`"memory"`, `"file"`, `"redis"`, a path, a URL, or a store."""


class Where(TypedDict, total=False):
    """What the word of a persistence leaves open, as `open_persistence` takes it; and the branch."""

    redis_url: str | None
    key_prefix: str | None
    path: str | PathLike[str]
    branch: str | None


def open_persistence(
    persistence: Persistence,
    part: str,
    *,
    redis_url: str | None = None,
    key_prefix: str | None = None,
    path: str | PathLike[str] = "./state",
    branch: str | None = None,
) -> Persistence:
    """A new store in memory, a new FileBackend, or a path, URL or store for `aio.Versioned`.

    For "file", `path` is the directory, or a file that ends with `.json`: it shows the values of `part` on
    `branch`, and the store is beside it, in the path without the ending. A path or URL is opened later, by
    the first call, in a worker thread. Any other word than the three names is a path, as it is for
    `Versioned`; write `./memory` for a directory of that name. Raises InvalidInput for anything else.
    """
    if redis_url is not None:
        check_text("the URL of a Redis server", redis_url)
    check_store(persistence)
    if persistence != "redis" and not (redis_url is None and key_prefix is None):
        raise InvalidInput(
            f"redis_url and key_prefix are for 'redis', not for {location_of(persistence)!r}: leave one out"
        )
    if persistence == "memory":
        return MemoryBackend()
    if persistence == "file":
        file = Path(path)
        if file.suffix != ".json":
            return FileBackend(file)
        return FileBackend(file.with_suffix(""), file=file, part=part, branch=branch)
    if persistence == "redis":
        url = redis_url or "redis://localhost:6379"
        return url if key_prefix is None else RedisBackend(url, key_prefix=key_prefix)
    return persistence
