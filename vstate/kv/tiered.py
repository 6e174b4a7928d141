"""Tiered: hot stores in front of a cold one, which hold copies of its objects."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from vstate.errors import InvalidInput, StoreFull, VStateError
from vstate.kv.base import KVStore, is_object
from vstate.kv.front import CopyingFront, check_kvstore

REST = 10.0
"""A failed hot store rests for so many times the time of the failure: it costs a tenth of the time."""

LONGEST_REST = 60.0
"""Seconds after which a hot store is tried again, however long the failure took."""

MOST_STALE = 10_000
"""The number of keys that a hot store may fail to delete. Beyond it the store is not used any more."""

T = TypeVar("T")


class Tiered(CopyingFront):
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
        super().__init__(stores[-1])
        self._hot = [_Hot(store) for store in stores[:-1]]

    def get(self, key: str) -> bytes | None:
        if not is_object(key):
            return self._store.get(key)
        for position, hot in enumerate(self._hot):
            value = hot.get(key)
            if value is not None:
                _copy({key: value}, self._hot[:position])
                return value
        value = self._store.get(key)
        if value is not None:
            self._keep({key: value})
        return value

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        keys = list(keys)
        missing = [key for key in keys if is_object(key)]
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
            self._keep({key: value for key, value in fetched.items() if is_object(key)})
            found.update(fetched)
        return found

    def check(self) -> Iterator[str]:
        """The damage in any of the stores. A hot store that cannot be checked is a find as well."""
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

    def _keep(self, objects: Mapping[str, bytes]) -> None:
        _copy(objects, self._hot)

    def _drop(self, objects: Iterable[str]) -> None:
        objects = list(objects)
        if objects:
            for hot in self._hot:
                hot.delete_many(objects)


def _copy(objects: Mapping[str, bytes], stores: Sequence[_Hot]) -> None:
    if objects:
        for hot in reversed(stores):
            hot.set_many(objects)


class _Hot:
    """A hot store. It raises nothing: while it fails it holds nothing, and takes nothing."""

    __slots__ = ("_given_up", "_rests_until", "_stale", "_store")

    def __init__(self, store: KVStore) -> None:
        self._store = store
        self._stale: set[str] = set()  # deleted keys that the store may still hold
        self._rests_until = 0.0
        self._given_up = False

    def get(self, key: str) -> bytes | None:
        return None if key in self._stale else self._attempt(lambda: self._store.get(key), None)

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes]:
        wanted = [key for key in keys if key not in self._stale]
        return self._attempt(lambda: self._store.get_many(wanted), {})

    def set_many(self, objects: Mapping[str, bytes]) -> None:
        # In this order: a key that is written again is not stale.
        if self._delete_stale():
            self._attempt(lambda: self._store.set_many(objects), None)

    def delete_many(self, keys: Sequence[str]) -> None:
        if not self._given_up:
            # Before the attempt, so that nobody reads them meanwhile, or after an interruption.
            self._stale.update(keys)
            if not self._delete_stale() and len(self._stale) > MOST_STALE:
                self._given_up = True
                self._stale.clear()

    def check(self) -> Iterator[str]:
        # Named in the sentence, because the store as a whole may be undamaged.
        where = f"the hot store at {self._store.location}"
        try:
            for find in self._store.check():
                yield f"{where}: {find}"
        except VStateError as error:
            yield f"{where} could not be checked: {error}"

    def close(self) -> None:
        with suppress(Exception):  # the other stores are closed all the same
            self._store.close()

    def _delete_stale(self) -> bool:
        """Delete the stale keys; False if the store cannot do so now."""
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
            return otherwise  # the store can still be read
        except Exception:  # any failure of a hot store is a miss
            ended = time.monotonic()
            self._rests_until = ended + min(LONGEST_REST, REST * (ended - began))
            return otherwise
