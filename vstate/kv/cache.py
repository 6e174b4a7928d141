"""Cache: a store in front of a store, which keeps the objects it has seen and never a ref."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from vstate.errors import InvalidInput
from vstate.forks import ForkAware, survive_forks
from vstate.kv.base import OBJECT_PREFIX, KVStore, check_key, check_value
from vstate.kv.front import Front

ENTRY_BYTES = 250  # about what CPython takes for an entry beside its value: key, two headers, links
TIER_TIMEOUT = 0.1  # seconds; asking the store is better than waiting for a cache


class Cache(Front, ForkAware):
    """`store`, with the objects read from it and written to it kept at hand.

    Only keys under "o/" are cached: they never change. A cached ref would be a stale head as soon as a
    second process commits. What is written goes to the store first, a transaction as one transaction.
    Whether a key is there is asked of the store, and so is a listing: a writer that leaves out an object
    because it "is there" must not be told so by the copy of one that has been collected as garbage.

    - `max_bytes` bounds what is kept in memory; the least recently used goes first.
    - `directory` adds a second tier on disk, for a store that is far away, of `directory_bytes` at most;
      several processes may share it. It is only ever a help: whatever fails or is damaged in it counts as
      not cached, and deleting the directory while nobody uses it is fine. It needs the package diskcache.
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
        self._lock = threading.RLock()
        self._memory: OrderedDict[str, bytes] = OrderedDict()
        self._memory_bytes = 0
        self._tier = None if self._directory is None else _Tier(self._directory, directory_bytes)
        survive_forks(self)

    def get(self, key: str) -> bytes | None:
        if not _cacheable(key):
            return self._store.get(key)
        value = self._cached(key)
        if value is None:
            value = self._store.get(key)
            if value is not None:
                self._keep(key, value)
        return value

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        missing = []
        for key in keys:
            value = self._cached(key) if _cacheable(key) else None
            if value is None:
                missing.append(key)
            else:
                found[key] = value
        if missing:
            fetched = self._store.get_many(missing)
            self._keep_many(fetched)
            found.update(fetched)
        return found

    def set(self, key: str, value: bytes) -> None:
        value = check_value(value)
        self._store.set(key, value)
        self._keep_many({key: value})

    def set_many(self, items: Mapping[str, bytes]) -> None:
        items = {key: check_value(value) for key, value in items.items()}
        self._store.set_many(items)
        self._keep_many(items)

    def delete(self, key: str) -> None:
        try:
            self._store.delete(key)
        finally:
            self.forget(key)

    def delete_many(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        try:
            self._store.delete_many(keys)
        finally:
            for key in keys:
                self.forget(key)

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """As the store gives them; a scan does not push everything else out of the cache."""
        return self._store.items(prefix)

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes | None) -> bool:
        new = None if new is None else check_value(new)
        return self._written({key: new}, lambda: self._store.compare_and_swap(key, expected, new))

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        """As the store does it."""
        writes = {key: None if value is None else check_value(value) for key, value in writes.items()}
        return self._written(writes, lambda: self._store.transact(writes, expected))

    def exclusively(self, plan: Callable[[], Mapping[str, bytes | None]]) -> bool:
        """As the store does it."""
        writes: dict[str, bytes | None] = {}

        def noted() -> Mapping[str, bytes | None]:
            writes.clear()
            writes.update({k: None if v is None else check_value(v) for k, v in plan().items()})
            return writes

        return self._written(writes, lambda: self._store.exclusively(noted))

    def forget(self, key: str) -> None:
        if _cacheable(key):
            with self._lock:
                self._drop(key)
            if self._tier is not None:
                self._tier.delete(key)
        self._store.forget(key)

    def uncached(self) -> KVStore:
        return self._store.uncached()

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._store, self._max_bytes, self._directory, self._directory_bytes)

    def close(self) -> None:
        with self._lock:
            self._memory.clear()
            self._memory_bytes = 0
        if self._tier is not None:
            self._tier.close()
        self._store.close()

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:
        if child:
            self._lock = threading.RLock()
        else:
            self._lock.release()

    # The store is never called under the lock: a slow one would hold up every hit, and every fork.

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

    def _keep(self, key: str, value: bytes) -> None:
        self._remember(key, value)
        if self._tier is not None:
            self._tier.set_many([(key, value)])

    def _keep_many(self, items: Mapping[str, bytes]) -> None:
        objects = [(key, value) for key, value in items.items() if _cacheable(key)]
        for key, value in objects:
            self._remember(key, value)
        if objects and self._tier is not None:
            self._tier.set_many(objects)

    def _written(self, writes: Mapping[str, bytes | None], write: Callable[[], bool]) -> bool:
        done = False
        try:
            done = write()
        finally:
            # Also when it failed: whether a deletion happened is then unknown.
            for key, value in writes.items():
                if value is None:
                    self.forget(key)
        if done:
            self._keep_many({key: value for key, value in writes.items() if value is not None})
        return done

    def _remember(self, key: str, value: bytes) -> None:
        size = ENTRY_BYTES + len(value)
        with self._lock:
            self._drop(key)
            if size > self._max_bytes:
                return
            # No call between the two: an interruption would put the sum wrong for good.
            self._memory[key] = value
            self._memory_bytes += size
            while self._memory_bytes > self._max_bytes:
                self._drop(next(iter(self._memory)))

    def _drop(self, key: str) -> None:
        value = self._memory.get(key)
        if value is not None:
            size = ENTRY_BYTES + len(value)
            del self._memory[key]
            self._memory_bytes -= size


def _cacheable(key: str) -> bool:
    return check_key(key).startswith(OBJECT_PREFIX)


class _Tier(ForkAware):
    """The second tier, a diskcache. Nothing that goes wrong in it comes out: it is then a miss.

    One thread at a time is in it, and none during a fork: diskcache has a connection for each thread, and
    a child forked while another thread is inside SQLite finds SQLite's own mutexes taken for good.
    """

    def __init__(self, directory: str, size: int) -> None:
        self._lock = threading.RLock()
        survive_forks(self)
        self._directory, self._size = directory, size
        self._interrupted = False
        try:
            with self._lock:
                self._cache = _open_diskcache(directory, size)
        except ImportError as error:
            raise InvalidInput(
                "a Cache with a directory needs the package diskcache: pip install diskcache"
            ) from error
        except Exception:
            # A damaged or unwritable directory: without this tier everything still works.
            self._cache = None

    def get(self, key: str) -> bytes | None:
        value = self._attempt(lambda cache: cache.get(key))
        return value if type(value) is bytes else None

    def set_many(self, items: Iterable[tuple[str, bytes]]) -> None:
        def store(cache: Any) -> None:
            # One transaction for all: each would otherwise be a commit of its own.
            with cache.transact():
                for key, value in items:
                    cache.set(key, value)

        self._attempt(store)

    def delete(self, key: str) -> None:
        self._attempt(lambda cache: cache.delete(key))

    def close(self) -> None:
        """Close this thread's connection; diskcache opens it again if it is needed."""
        self._attempt(lambda cache: cache.close())

    def _attempt(self, action: Callable[[Any], Any]) -> Any:
        if self._cache is None:
            return None
        try:
            with self._lock:
                if self._interrupted:
                    # Its transaction may be open still, and it may believe so.
                    self._cache.close()
                    self._cache = _open_diskcache(self._directory, self._size)
                self._interrupted = True
                try:
                    result = action(self._cache)
                except Exception:
                    result = None
                self._interrupted = False
                return result
        except Exception:
            return None

    def before_fork(self) -> None:
        self._lock.acquire()
        self.close()

    def after_fork(self, *, child: bool) -> None:
        if child:
            self._lock = threading.RLock()
        else:
            self._lock.release()


def _open_diskcache(directory: str, size: int) -> Any:
    # An optional driver, and slow to import.
    import diskcache

    class BytesOnly(diskcache.Disk):  # type: ignore[misc]
        """Refuses what diskcache would pickle, and above all unpickle: a row that somebody edited
        would otherwise run code as it is read (CVE-2025-69872)."""

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
