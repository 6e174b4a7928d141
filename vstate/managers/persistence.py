"""Persistence: which store a manager keeps its records in, by the names that people know."""

from __future__ import annotations

from os import PathLike

from vstate.errors import InvalidInput
from vstate.kv.base import KVStore
from vstate.kv.disk import Disk
from vstate.kv.memory import Memory
from vstate.kv.url import open_store

Persistence = str | PathLike[str] | KVStore
"""`"memory"`, `"file"`, `"redis"`, a path, a URL, or a store."""

DIRECTORY = "./state"
REDIS = "redis://localhost:6379/0"


def open_persistence(
    persistence: Persistence, *, path: str | PathLike[str] = DIRECTORY, redis_url: str | None = None
) -> KVStore:
    """The store: a new Memory, the Disk at `path`, the Redis at `redis_url`, or what a path, URL or store means.

    Another plain word raises InvalidInput, since it would be the name of a directory: write `./word` for that one.
    Raises StoreUnavailable if a server is down.
    """
    if redis_url is not None and persistence != "redis":
        raise InvalidInput(
            f"redis_url is for persistence='redis', not for {persistence!r}: leave one of them out"
        )
    if persistence == "memory":
        return Memory()
    if persistence == "file":
        return Disk(path)
    if persistence == "redis":
        return open_store(redis_url or REDIS)
    if isinstance(persistence, str) and persistence.isidentifier():
        raise InvalidInput(
            f"persistence is 'memory', 'file', 'redis', a path, a URL or a store, not {persistence!r}; write "
            f"'./{persistence}' for the directory"
        )
    return open_store(persistence)
