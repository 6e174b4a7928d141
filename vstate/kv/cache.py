"""Cache and Tiered: a store with copies of its objects nearby, and never a copy of a ref.

`Copying` is the store in front. Its copies are in places: `Nearby` is one in memory, and a `Helper` is a
store that may fail.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from vstate.errors import InvalidInput, StoreFull, VStateError
from vstate.forks import new_lock
from vstate.kv.base import OBJECT_PREFIX, ROOM_PREFIX, KVStore, check_value, is_object, split_room
from vstate.kv.disk import Disk
from vstate.kv.wrapper import StoreWrapper, check_kvstore
from vstate.recent import Recent

T = TypeVar("T")

ENTRY_BYTES: Final = 250
"""About the memory of an entry beside its value, in CPython: key, two headers, links."""

DIRECTORY_TIMEOUT: Final = 0.1
"""Seconds to wait for a directory's lock: asking the store is better than waiting for a cache."""

REST: Final = 10.0
"""A helper that failed rests for so many times the time of the failure: it costs a tenth of the time."""

LONGEST_REST: Final = 60.0
"""Seconds after which a helper is tried again, however long the failure took."""

MOST_STALE: Final = 10_000
"""The number of keys that a helper may fail to delete. Beyond it the helper is not used any more."""


class Nearby:
    """Copies in memory, of `max_bytes` at most. The least recently used goes first."""

    def __init__(self, max_bytes: int) -> None:
        self._values = Recent[str, bytes](max_bytes, lambda value: ENTRY_BYTES + len(value))
        self.get = self._values.get
        self.close = self._values.clear

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        return {key: value for key in keys if (value := self.get(key)) is not None}

    def set_many(self, objects: Mapping[str, bytes]) -> None:
        for key, value in objects.items():
            self._values[key] = value

    def delete_many(self, keys: Iterable[str]) -> None:
        self._values.discard(*keys)


class Helper:
    """A store of copies that raises nothing: while it fails it holds nothing, and takes nothing."""

    def __init__(self, store: KVStore | None) -> None:
        self._store = store
        self._stale: set[str] = set()  # deleted keys that the store may still hold
        self._rests_until = 0.0

    def get(self, key: str) -> bytes | None:
        return None if key in self._stale else self._attempt(lambda store: store.get(key), None)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        wanted = [key for key in keys if key not in self._stale]
        return self._attempt(lambda store: store.get_many(wanted), {})

    def set_many(self, objects: Mapping[str, bytes]) -> None:
        # In this order: a key that is written again is not stale.
        if self._delete_stale():
            self._attempt(lambda store: self._copy(store, objects), None)

    def delete_many(self, keys: Iterable[str]) -> None:
        # Before the attempt, so that nobody reads them meanwhile, or after an interruption.
        self._stale.update(keys)
        if not self._delete_stale() and len(self._stale) > MOST_STALE:
            self._rests_until = math.inf
            self._stale.clear()

    def close(self) -> None:
        with suppress(Exception):  # the other stores are closed all the same
            if self._store is not None:
                self._store.close()

    def _opened(self) -> KVStore:
        assert self._store is not None
        return self._store

    def _copy(self, store: KVStore, objects: Mapping[str, bytes]) -> None:
        store.set_many(objects)

    def _delete_stale(self) -> bool:
        """Delete the stale keys; False if the store cannot do so now."""
        keys = list(self._stale)

        def delete(store: KVStore) -> bool:
            store.delete_many(keys)
            return True

        if keys and not self._attempt(delete, False):
            return False
        self._stale.difference_update(keys)
        return True

    def _attempt(self, action: Callable[[KVStore], T], otherwise: T) -> T:
        began = time.monotonic()
        if began < self._rests_until:
            return otherwise
        try:
            return action(self._opened())
        except StoreFull:
            return otherwise  # the store can still be read
        except Exception:  # any failure of a helper is a miss
            ended = time.monotonic()
            self._rests_until = ended + min(LONGEST_REST, REST * (ended - began))
            return otherwise


class Directory(Helper):
    """A Disk for copies alone, in a file of `size` bytes at most. It is opened when it is first needed."""

    def __init__(self, path: str, size: int) -> None:
        super().__init__(None)
        self._path = path
        self._size = size
        self._lock = new_lock()
        self._next_digit = os.urandom(1)[0] % 16

    def is_taken(self) -> bool:
        """Whether a store of its own is in the directory, such as that of a repository."""
        with suppress(VStateError), Disk(self._path, create=False, timeout=DIRECTORY_TIMEOUT) as disk:
            return _holds_more(disk)
        return False  # a directory that cannot be used is a miss

    def _opened(self) -> KVStore:
        with self._lock:
            if self._store is None:
                self._store = Disk(
                    self._path, size_limit=self._size, durability="process", timeout=DIRECTORY_TIMEOUT
                )
            return self._store

    def _copy(self, store: KVStore, objects: Mapping[str, bytes]) -> None:
        try:
            store.set_many(objects)
        except StoreFull:
            if _holds_more(store):
                raise InvalidInput(f"{self._path} is a store of its own") from None
            # Ids are hashes, so each first digit is that of a sixteenth of the copies.
            self._next_digit = (self._next_digit + 1) % 16
            beginning = f"{OBJECT_PREFIX}{self._next_digit:x}"
            in_rooms = (key for key in store.keys(ROOM_PREFIX) if split_room(key)[1].startswith(beginning))
            store.delete_many([*store.keys(beginning), *in_rooms])
            store.set_many(objects)


class Copying(StoreWrapper):
    """`store`, with copies of its objects (see `is_object`; they never change) in `places`, nearest first.

    An object is read from the first place that has it, and copied into those before. A write goes to the
    store first, a transaction as one transaction; then its objects are copied. A deleted object is dropped
    even if the deletion failed, because it may have happened. The store itself says whether a key is present,
    and lists keys: a writer leaves out an object that is present, and a copy may outlive an object that was
    collected as garbage.
    """

    def __init__(self, store: KVStore, places: Sequence[Nearby | Helper]) -> None:
        super().__init__(store)
        self._places = places

    def get(self, key: str) -> bytes | None:
        if not is_object(key):
            return self._store.get(key)
        for number, place in enumerate(self._places):
            value = place.get(key)
            if value is not None:
                if number:
                    self._keep({key: value}, number)
                return value
        value = self._store.get(key)
        if value is not None:
            self._keep({key: value})
        return value

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        keys = list(keys)
        missing = [key for key in keys if is_object(key)]
        found: dict[str, bytes] = {}
        for number, place in enumerate(self._places):
            if missing:
                there = place.get_many(missing)
                self._keep(there, number)
                found.update(there)
                missing = [key for key in missing if key not in found]
        rest = [key for key in keys if key not in found]
        if rest:
            fetched = self._store.get_many(rest)
            self._keep(fetched)
            found.update(fetched)
        return found

    def set(self, key: str, value: bytes) -> None:
        value = check_value(value)
        self._write({key: value}, lambda: self._store.set(key, value))

    def set_many(self, items: Mapping[str, bytes]) -> None:
        items = {key: check_value(value) for key, value in items.items()}
        self._write(items, lambda: self._store.set_many(items))

    def delete(self, key: str) -> None:
        self._write({key: None}, lambda: self._store.delete(key))

    def delete_many(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        self._write(dict.fromkeys(keys), lambda: self._store.delete_many(keys))

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes | None) -> bool:
        new = None if new is None else check_value(new)
        return self._write({key: new}, lambda: self._store.compare_and_swap(key, expected, new))

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        """As the store does it."""
        writes = _checked(writes)
        return self._write(writes, lambda: self._store.transact(writes, expected))

    def exclusively(self, plan: Callable[[], Mapping[str, bytes | None]]) -> bool:
        """As the store does it."""
        writes: dict[str, bytes | None] = {}

        def noting() -> Mapping[str, bytes | None]:
            planned = _checked(plan())
            writes.clear()
            writes.update(planned)
            return planned

        return self._write(writes, lambda: self._store.exclusively(noting))

    def forget(self, key: str) -> None:
        """Drop the copies of `key`; the store drops its cached copies, and keeps its own value."""
        self._drop([key])
        self._store.forget(key)

    def uncached(self) -> KVStore:
        return self._store.uncached()

    def close(self) -> None:
        for place in self._places:
            place.close()
        self._store.close()

    def _write(self, writes: Mapping[str, bytes | None], write: Callable[[], T]) -> T:
        """Call `write`, and do the same with the copies unless it answers False."""
        try:
            done = write()
        finally:
            self._drop([key for key, value in writes.items() if value is None])
        if done is not False:
            self._keep({key: value for key, value in writes.items() if value is not None})
        return done

    def _keep(self, values: Mapping[str, bytes], number: int | None = None) -> None:
        """Copy the objects among the values into the places, or the first `number` of them, nearest last."""
        places = self._places[:number]
        objects = {key: value for key, value in values.items() if is_object(key)} if places else {}
        if objects:
            for place in reversed(places):
                place.set_many(objects)

    def _drop(self, keys: Iterable[str]) -> None:
        objects = [key for key in keys if is_object(key)]
        if objects:
            for place in self._places:
                place.delete_many(objects)


class Cache(Copying):
    """`store`, with copies of the objects that were read from it or written to it.

    Refs are never copied: a copy would be a stale head as soon as a second process commits.

    - `max_bytes` bounds the copies in memory. The least recently used goes first.
    - `directory` adds a second tier, a Disk there, for a store that is far away. It has `directory_bytes` at
      most: when it is full, a sixteenth of its copies goes, by their ids. Several processes may share it. If
      the tier fails or is damaged, its objects count as not cached. Deleting the directory while nobody uses
      it is fine. InvalidInput if it is the directory of a store.
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
        path = None if directory is None else os.path.abspath(os.path.expanduser(directory))
        self._options = max_bytes, path, directory_bytes
        self._memory = Nearby(max_bytes)
        self._tier = None if path is None else Directory(path, directory_bytes)
        if self._tier is not None and self._tier.is_taken():
            raise InvalidInput(
                f"a store is in {path}, and a full cache deletes objects: give it a directory of its own"
            )
        super().__init__(store, [self._memory] if self._tier is None else [self._memory, self._tier])

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._store, *self._options)


class Tiered(Copying):
    """Two stores or more, from the hottest to the coldest, `Tiered(Memory(), Disk("near"), S3("s3://far"))`.

    The coldest is the store, and every promise of the whole is the coldest's own. The hotter ones hold copies
    of objects. An object is read from the first store that has it, and copied into those before. Everything
    else, refs above all, is in the coldest only.

    If a hot store fails, reads use the next one, and the failed store is left alone for ten times as long as
    the failure took. This handle does not read an object from a hot store that could not delete it. A hot
    store keeps all copies, up to its own limit, and Memory has none. To keep only the last used objects, put
    a Cache in front instead.

    Closing closes all of them.
    """

    def __init__(self, *stores: KVStore) -> None:
        if len(stores) < 2:
            raise InvalidInput("a Tiered store takes two stores or more, the hottest first")
        self._stores = tuple(check_kvstore(store, Tiered) for store in stores)
        super().__init__(stores[-1], [Helper(store) for store in stores[:-1]])

    def check(self) -> Iterator[str]:
        """The damage in all of them. If a hot store cannot be checked, that is a find too."""
        yield from self._store.check()
        for store in self._stores[:-1]:
            # Named in the sentence, because the store as a whole may be undamaged.
            where = f"the hot store at {store.location}"
            try:
                for find in store.check():
                    yield f"{where}: {find}"
            except VStateError as error:
                yield f"{where} could not be checked: {error}"

    def __repr__(self) -> str:
        return f"Tiered({', '.join(map(repr, self._stores))})"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self._stores


def _holds_more(store: KVStore) -> bool:
    """Whether the store has other keys than those of objects: such keys come first in its listing. Those in
    rooms may not, but no repository has rows in rooms alone.
    """
    return not is_object(next(iter(store.keys()), OBJECT_PREFIX))


def _checked(writes: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
    return {key: None if value is None else check_value(value) for key, value in writes.items()}
