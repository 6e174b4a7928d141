"""Persistence: which store a manager keeps its records in, by the names that people know."""

from __future__ import annotations

from os import PathLike

from vstate.errors import InvalidInput
from vstate.kv.base import KVStore
from vstate.kv.url import check_store
from vstate.managers.backends import FileBackend, MemoryBackend

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
            f"redis_url is for persistence='redis', not for {persistence!r}: leave one of them out"
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
