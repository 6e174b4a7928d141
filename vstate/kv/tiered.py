"""Tiered: near stores in front of a far one, which hold copies of its objects."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from vstate.errors import InvalidInput, StoreFull, VStateError
from vstate.kv.base import OBJECT_PREFIX, KVStore, check_key, check_value
from vstate.kv.front import Front, check_store

REST = 10.0
"""How often as long as it took to fail a hot store is left alone: so it costs a tenth of the time at most."""

LONGEST_REST = 60.0
"""Seconds after which a hot store is tried again, however long it took to fail."""

MOST_STALE = 10_000
"""How many keys that it did not delete are remembered of a hot store, before it is not asked any more."""

T = TypeVar("T")


class Tiered(Front):
    """Two stores or more, from the hottest to the coldest, `Tiered(Memory(), Disk("near"), S3("s3://far"))`.

    The coldest is the store; the hotter ones hold copies of objects (keys under "o/", which never change).
    An object is read from the first that has it, and copied into those before. A write goes to the coldest
    first, and to the others once it is done there: what the coldest does not hold is not stored. Everything
    else, refs above all, is in the coldest only, and every promise of the whole is the coldest's own. It
    also says what is there, and lists it, for the reason that it does so behind a Cache.

    A hot store is only ever a help: one that fails is as if it were not there, and is left alone for ten
    times as long as it took to fail. What it could not delete meanwhile is not read from it by this handle
    either. It keeps what it is given: as much as its own limit allows, and Memory has none. To keep what was
    used last, put a Cache in front instead.

    Closing closes all of them.
    """

    def __init__(self, *stores: KVStore) -> None:
        if len(stores) < 2:
            raise InvalidInput("a Tiered store takes two stores or more, the hottest first")
        self._stores = tuple(check_store(store, Tiered) for store in stores)
        super().__init__(stores[-1])
        self._hot = [_Hot(store) for store in stores[:-1]]

    def get(self, key: str) -> bytes | None:
        if not _is_object(key):
            return self._store.get(key)
        for position, hot in enumerate(self._hot):
            value = hot.get(key)
            if value is not None:
                _copy({key: value}, self._hot[:position])
                return value
        value = self._store.get(key)
        if value is not None:
            _copy({key: value}, self._hot)
        return value

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        keys = list(keys)
        missing = [key for key in keys if _is_object(key)]
        found: dict[str, bytes] = {}
        for position, hot in enumerate(self._hot):
            if missing:
                there = hot.get_many(missing)
                _copy(there, self._hot[:position])
                found.update(there)
                missing = [key for key in missing if key not in found]
        rest = [key for key in keys if key not in found]
        if rest:
            fetched = self._store.get_many(rest)
            _copy(_objects(fetched), self._hot)
            found.update(fetched)
        return found

    def set(self, key: str, value: bytes) -> None:
        value = check_value(value)
        self._store.set(key, value)
        _copy(_objects({key: value}), self._hot)

    def set_many(self, items: Mapping[str, bytes]) -> None:
        items = {key: check_value(value) for key, value in items.items()}
        self._store.set_many(items)
        _copy(_objects(items), self._hot)

    def delete(self, key: str) -> None:
        try:
            self._store.delete(key)
        finally:
            self._drop([key])

    def delete_many(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        try:
            self._store.delete_many(keys)
        finally:
            self._drop(keys)

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes | None) -> bool:
        new = None if new is None else check_value(new)
        return self._written({key: new}, lambda: self._store.compare_and_swap(key, expected, new))

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        """As the coldest does it; then the objects are copied."""
        writes = {key: None if value is None else check_value(value) for key, value in writes.items()}
        return self._written(writes, lambda: self._store.transact(writes, expected))

    def exclusively(self, plan: Callable[[], Mapping[str, bytes | None]]) -> bool:
        """As the coldest does it; then the objects are copied."""
        writes: dict[str, bytes | None] = {}

        def noted() -> Mapping[str, bytes | None]:
            planned = {k: None if v is None else check_value(v) for k, v in plan().items()}
            writes.clear()
            writes.update(planned)
            return planned

        return self._written(writes, lambda: self._store.exclusively(noted))

    def forget(self, key: str) -> None:
        """Delete the hot stores' copies of `key`; the coldest drops what it has cached, and keeps its own."""
        self._drop([key])
        self._store.forget(key)

    def uncached(self) -> KVStore:
        return self._store.uncached()

    def check(self) -> Iterator[str]:
        """What is wrong with any of the stores; that a hot one cannot be looked at is a find as well."""
        yield from self._store.check()
        for hot in self._hot:
            yield from hot.check()

    def __repr__(self) -> str:
        return f"Tiered({', '.join(map(repr, self._stores))})"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self._stores

    def close(self) -> None:
        for hot in self._hot:
            hot.close()
        self._store.close()

    def _written(self, writes: Mapping[str, bytes | None], write: Callable[[], bool]) -> bool:
        done = False
        try:
            done = write()
        finally:
            # Also when it failed: whether a deletion happened is then unknown.
            self._drop([key for key, value in writes.items() if value is None])
        if done:
            _copy(_objects({key: value for key, value in writes.items() if value is not None}), self._hot)
        return done

    def _drop(self, keys: Iterable[str]) -> None:
        objects = [key for key in keys if _is_object(key)]
        if objects:
            for hot in self._hot:
                hot.delete_many(objects)


def _is_object(key: str) -> bool:
    return check_key(key).startswith(OBJECT_PREFIX)


def _objects(items: Mapping[str, bytes]) -> dict[str, bytes]:
    return {key: value for key, value in items.items() if _is_object(key)}


def _copy(objects: Mapping[str, bytes], stores: Sequence[_Hot]) -> None:
    if objects:
        for hot in reversed(stores):
            hot.set_many(objects)


class _Hot:
    """A hot store. Nothing that goes wrong in it comes out: it then holds nothing, and takes nothing."""

    __slots__ = ("_given_up", "_rests_until", "_stale", "_store")

    def __init__(self, store: KVStore) -> None:
        self._store = store
        self._stale: set[str] = set()  # it may still hold these, which are deleted
        self._rests_until = 0.0
        self._given_up = False

    def get(self, key: str) -> bytes | None:
        return None if key in self._stale else self._attempt(lambda: self._store.get(key), None)

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes]:
        wanted = [key for key in keys if key not in self._stale]
        return self._attempt(lambda: self._store.get_many(wanted), {})

    def set_many(self, objects: Mapping[str, bytes]) -> None:
        # In that order: what is written anew is stale no more.
        if self._delete_stale():
            self._attempt(lambda: self._store.set_many(objects), None)

    def delete_many(self, keys: Sequence[str]) -> None:
        if not self._given_up:
            # Before the attempt, so that nobody reads them meanwhile, nor after one that was interrupted.
            self._stale.update(keys)
            if not self._delete_stale() and len(self._stale) > MOST_STALE:
                self._given_up = True
                self._stale.clear()

    def check(self) -> Iterator[str]:
        # A place of its own in the sentence, since the store as a whole may be as sound as ever.
        where = f"the hot store at {self._store.location}"
        try:
            for find in self._store.check():
                yield f"{where}: {find}"
        except VStateError as error:
            yield f"{where} could not be looked at: {error}"

    def close(self) -> None:
        with suppress(Exception):
            self._store.close()

    def _delete_stale(self) -> bool:
        """Delete what is stale; False if that could not be done now."""
        keys = list(self._stale)
        if keys:
            if not self._attempt(lambda: self._deleted(keys), False):
                return False
            self._stale.difference_update(keys)
        return True

    def _deleted(self, keys: Sequence[str]) -> bool:
        self._store.delete_many(keys)
        for key in keys:
            self._store.forget(key)
        return True

    def _attempt(self, action: Callable[[], T], otherwise: T) -> T:
        began = time.monotonic()
        if self._given_up or began < self._rests_until:
            return otherwise
        try:
            return action()
        except StoreFull:
            return otherwise  # it is there, and can be read
        except Exception:
            ended = time.monotonic()
            self._rests_until = ended + min(LONGEST_REST, REST * (ended - began))
            return otherwise
