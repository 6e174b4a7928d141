"""Backends: the stores under the names that people know from agents' frameworks."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Final
from weakref import proxy

from vstate.arguments import check_count, check_flag
from vstate.errors import InvalidInput
from vstate.kv.base import KVStore
from vstate.kv.disk import Disk
from vstate.kv.memory import Memory
from vstate.kv.redis import Redis
from vstate.kv.url import check_store, location_of
from vstate.managers.files import Format, ReadableFiles
from vstate.repo.names.refs import HEADS, REF
from vstate.repo.repository import Repository

__all__ = ["FileBackend", "MemoryBackend", "RedisBackend"]


KEY_PREFIX: Final = "vstate"
CONNECTIONS: Final = 10
FILES: Final = "files"

_BRANCH: Final = f"{REF}{HEADS}main"


class MemoryBackend(Memory):
    """A store in this process's memory. Managers that are given the same one share what is in it."""


class FileBackend(Disk):
    """A store in a directory, a Disk, with files beside it that people can read: one a key of the branch `main`.

    `FileBackend("./state")` keeps everything, all of the history too, in `state/vstate.db`, durable when a commit
    returns, and after each commit writes the values that it changed: `state/files/agents/a1.json`. Each is replaced
    as a whole; in the names, what could mean something to a file system is written as "%" and two digits, as in a
    URL, so that no two keys have one file and none has one elsewhere.

    The files are for people, and for programs that only look: reading goes by the store, and what is changed in a
    file has no effect. What JSON cannot hold is shown as `vstate show --json` does it, and a value of more
    than 1 MB, or 200 KB of what is no JSON, is only described. A key that has expired keeps its file until the commit that removes it. If a file
    cannot be written, a warning says so to the logger "vstate", since what was committed is safe, and the next commit
    writes it, as it does what others committed without writing files, or what was left after a crash. They are not
    synced, and a power cut may empty them: on Linux whoever opens the store first after the machine was started writes
    all of them anew, elsewhere `write_files` does.

    `format` is "json" or "msgpack", which holds the same; with `compression` the latter is compressed by gzip, as
    `.msgpack.gz`. JSON is there to be read, and never compressed. The store itself always compresses what shrinks.
    """

    def __init__(
        self,
        base_path: str | os.PathLike[str] = "./state",
        format: Format = "json",
        compression: bool = True,
    ) -> None:
        check_flag("compression", compression)
        super().__init__(os.path.expanduser(base_path))
        self._how: tuple[Format, bool] = (format, compression)
        self._files = ReadableFiles(Path(self.location, FILES), format, compression=compression)
        self._files.look_after(self._repo)

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        """As a Disk does it; files are written if that moved the branch."""
        done = super().transact(writes, expected)
        if done and _BRANCH in writes:
            self._files.follow(self._repo)
        return done

    def write_files(self) -> None:
        """Write all the files anew, and remove those that belong to no key. Raises OSError, StorageError."""
        self._files.write_all(self._repo)

    @cached_property
    def _repo(self) -> Repository:
        # A proxy: a store that refers to itself would stay open for longer than anybody has it.
        return Repository(proxy(self))

    def __repr__(self) -> str:
        return f"FileBackend({self.location!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return FileBackend, (self.location, *self._how)


class RedisBackend(Redis):
    """A store on a Redis server, for many machines: `RedisBackend("redis://localhost:6379", key_prefix="agents:")`.

    `key_prefix` sets stores on one server apart; `db` is the number of the database, 0 unless the URL has one.
    `connection_pool_size` is how many connections this process has at the most; who needs one more waits for it.
    What it promises, and what the server must be set to, is said of `vstate.kv.Redis`. The first use reaches for the
    server, and raises StoreUnavailable if it is down.
    """

    def __init__(
        self,
        url: str = "redis://localhost:6379",
        db: int | None = None,
        key_prefix: str = KEY_PREFIX,
        connection_pool_size: int = CONNECTIONS,
    ) -> None:
        if not isinstance(url, str):
            raise TypeError(f"a Redis server is given as a URL, not as {type(url).__name__}")
        check_count("connection_pool_size", connection_pool_size, 1)
        super().__init__(_address(url, db, connection_pool_size), prefix=key_prefix)


def _address(url: str, db: int | None, connections: int) -> str:
    """The URL with these options; InvalidInput, which does not show it, if it has others already."""
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
    persistence: Persistence, *, path: str | PathLike[str] = DIRECTORY, redis_url: str | None = None
) -> Persistence:
    """A store of its own in memory, the one with files at `path`, or what else `aio.Versioned` takes.

    A path or URL stays one: what it means is opened by the first call, which need not hold up an event loop. A plain
    word that is none of the three raises InvalidInput, since it would be the name of a directory: write `./word`
    for that one; so does what is none of these.
    """
    if redis_url is not None and not isinstance(redis_url, str):
        raise TypeError(f"a Redis server is given as a URL, not as {type(redis_url).__name__}")
    check_store(persistence)
    if redis_url is not None and persistence != "redis":
        raise InvalidInput(
            f"redis_url is for persistence='redis', not for {location_of(persistence)!r}: leave one of them out"
        )
    if persistence == "memory":
        return MemoryBackend()
    if persistence == "file":
        return FileBackend(path)
    if persistence == "redis":
        return redis_url or REDIS
    if isinstance(persistence, str) and persistence.isidentifier():
        raise InvalidInput(
            f"persistence is 'memory', 'file', 'redis', a path, a URL or a store, not {persistence!r}; write "
            f"'./{persistence}' for the directory"
        )
    return persistence
