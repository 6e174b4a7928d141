"""Cache: a store in front of another one that keeps copies of the objects it has seen, and never a ref."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from vstate.errors import InvalidInput
from vstate.forks import ForkLocked, new_lock
from vstate.kv.base import KVStore, is_object
from vstate.kv.front import CopyingFront

ENTRY_BYTES = 250  # roughly the memory of an entry beside its value in CPython: key, two headers, links
TIER_TIMEOUT = 0.1  # seconds: asking the store is better than waiting for a cache


class Cache(CopyingFront):
    """`store`, with copies of the objects that were read from it or written to it.

    Refs are never copied: a copy would be a stale head as soon as a second process commits.

    - `max_bytes` bounds the copies in memory. The least recently used goes first.
    - `directory` adds a second tier on disk, for a store that is far away, of `directory_bytes` at most.
      Several processes may share it. If the tier fails or is damaged, its objects count as not cached.
      Deleting the directory while nobody uses it is fine. It needs the package diskcache.
    """

    def __init__(
        self,
        store: KVStore,
        max_bytes: int = 64 * 1024 * 1024,
        directory: str | os.PathLike[str] | None = None,
        directory_bytes: int = 1024 * 1024 * 1024,
    ) -> None:
        if max_bytes < 0 or directory_bytes < 0:
            raise InvalidInput("max_bytes and directory_bytes are numbers of bytes, 0 or more")
        super().__init__(store)
        self._max_bytes = max_bytes
        self._directory = None if directory is None else os.path.abspath(directory)
        self._directory_bytes = directory_bytes
        self._lock = new_lock()
        self._memory: OrderedDict[str, bytes] = OrderedDict()
        self._memory_bytes = 0
        self._tier = None if self._directory is None else _Tier(self._directory, directory_bytes)

    def get(self, key: str) -> bytes | None:
        if not is_object(key):
            return self._store.get(key)
        value = self._cached(key)
        if value is None:
            value = self._store.get(key)
            if value is not None:
                self._keep({key: value})
        return value

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        missing = []
        for key in keys:
            value = self._cached(key) if is_object(key) else None
            if value is None:
                missing.append(key)
            else:
                found[key] = value
        if missing:
            fetched = self._store.get_many(missing)
            self._keep({key: value for key, value in fetched.items() if is_object(key)})
            found.update(fetched)
        return found

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """As the store does it. A scan does not push everything else out of the cache."""
        return self._store.items(prefix)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._store, self._max_bytes, self._directory, self._directory_bytes)

    def close(self) -> None:
        with self._lock:
            self._memory.clear()
            self._memory_bytes = 0
        if self._tier is not None:
            self._tier.close()
        self._store.close()

    # The store is never called under the lock: a slow one would hold up every hit.

    def _cached(self, key: str) -> bytes | None:
        with self._lock:
            value = self._memory.get(key)
            if value is not None:
                self._memory.move_to_end(key)
                return value
        if self._tier is None:
            return None
        value = self._tier.get(key)
        if value is not None:
            self._remember(key, value)
        return value

    def _keep(self, objects: Mapping[str, bytes]) -> None:
        for key, value in objects.items():
            self._remember(key, value)
        if objects and self._tier is not None:
            self._tier.set_many(objects)

    def _drop(self, objects: Iterable[str]) -> None:
        for key in objects:
            with self._lock:
                self._evict(key)
            if self._tier is not None:
                self._tier.delete(key)

    def _remember(self, key: str, value: bytes) -> None:
        size = ENTRY_BYTES + len(value)
        with self._lock:
            self._evict(key)
            if size > self._max_bytes:
                return
            # No call between the two: an interruption would make the sum wrong for good.
            self._memory[key] = value
            self._memory_bytes += size
            while self._memory_bytes > self._max_bytes:
                self._evict(next(iter(self._memory)))

    def _evict(self, key: str) -> None:
        value = self._memory.get(key)
        if value is not None:
            size = ENTRY_BYTES + len(value)
            del self._memory[key]
            self._memory_bytes -= size


class _Tier(ForkLocked):
    """The second tier, a diskcache. It raises nothing: a failure is a miss.

    One thread at a time uses it, and none during a fork. diskcache has a connection for each thread, and a
    child that is forked while another thread is inside SQLite finds SQLite's own mutexes locked for good.
    """

    def __init__(self, directory: str, size: int) -> None:
        self._directory, self._size = directory, size
        self._interrupted = False
        self._cache: Any = None
        super().__init__()
        try:
            with self._lock:
                self._cache = _open_diskcache(directory, size)
        except ImportError as error:
            raise InvalidInput(
                "a Cache with a directory needs the package diskcache: pip install diskcache"
            ) from error
        except Exception:  # a damaged or unwritable directory: everything works without this tier
            pass

    def get(self, key: str) -> bytes | None:
        value = self._attempt(lambda cache: cache.get(key))
        return value if type(value) is bytes else None

    def set_many(self, items: Mapping[str, bytes]) -> None:
        def store(cache: Any) -> None:
            # One transaction for all: otherwise each would be a commit of its own.
            with cache.transact():
                for key, value in items.items():
                    cache.set(key, value)

        self._attempt(store)

    def delete(self, key: str) -> None:
        self._attempt(lambda cache: cache.delete(key))

    def close(self) -> None:
        """Close this thread's connection. diskcache opens it again when it is needed."""
        self._attempt(lambda cache: cache.close())

    def _attempt(self, action: Callable[[Any], Any]) -> Any:
        if self._cache is None:
            return None
        try:
            with self._lock:
                if self._interrupted:
                    # Its transaction may still be open, or diskcache may believe that one is.
                    self._cache.close()
                    self._cache = _open_diskcache(self._directory, self._size)
                self._interrupted = True
                try:
                    result = action(self._cache)
                except Exception:  # any failure of the tier is a miss
                    result = None
                self._interrupted = False
                return result
        except Exception:  # it could not be opened again
            return None

    def before_fork(self) -> None:
        super().before_fork()
        self.close()


def _open_diskcache(directory: str, size: int) -> Any:
    import diskcache  # late: optional, and slow to import

    class BytesOnly(diskcache.Disk):  # type: ignore[misc]
        """Refuses values that diskcache would pickle, and above all unpickle: an edited row would otherwise
        run code as it is read (CVE-2025-69872).
        """

        def put(self, key: Any) -> Any:
            if type(key) is not str:
                raise ValueError("only str keys")
            return super().put(key)

        def get(self, key: Any, raw: Any) -> Any:
            if not raw or type(key) is not str:
                raise ValueError("not a raw str key")
            return key

        def store(self, value: Any, read: Any, key: Any = diskcache.UNKNOWN) -> Any:
            if type(value) is not bytes or read:
                raise ValueError("only bytes")
            return super().store(value, read, key=key)

        def fetch(self, mode: Any, filename: Any, value: Any, read: Any) -> Any:
            if read or mode not in (diskcache.core.MODE_RAW, diskcache.core.MODE_BINARY):
                raise ValueError("not a row of bytes")
            return super().fetch(mode, filename, value, read)

    # "least-recently-used" would write to the database at each read.
    return diskcache.Cache(
        directory,
        timeout=TIER_TIMEOUT,
        disk=BytesOnly,
        size_limit=size,
        eviction_policy="least-recently-stored",
    )
