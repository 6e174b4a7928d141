"""StoreWrapper: a store in front of another one, to which it passes every call that it does not override."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from typing import Self

from vstate.errors import InvalidInput
from vstate.kv.base import KVStore, Plain


class StoreWrapper(KVStore):
    """`store`, unchanged. A subclass overrides the calls that it changes.

    Every method of KVStore is passed on: its defaults are slower than the store, or promise less. A subclass
    with other keys than the store overrides every method that takes a key or a name.
    """

    def __init__(self, store: KVStore) -> None:
        self._store = check_kvstore(store, type(self))

    def get(self, key: str) -> bytes | None:
        return self._store.get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        return self._store.get_many(keys)

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def set_many(self, items: Mapping[str, bytes]) -> None:
        self._store.set_many(items)

    def delete(self, key: str) -> None:
        self._store.delete(key)

    def delete_many(self, keys: Iterable[str]) -> None:
        self._store.delete_many(keys)

    def keys(self, prefix: str = "") -> Iterator[str]:
        return self._store.keys(prefix)

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        return self._store.items(prefix)

    def __contains__(self, key: str) -> bool:
        return key in self._store

    def present(self, keys: Iterable[str]) -> Set[str]:
        return self._store.present(keys)

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes | None) -> bool:
        return self._store.compare_and_swap(key, expected, new)

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        """As the store does it."""
        return self._store.transact(writes, expected)

    @property
    def transactional(self) -> bool:
        return self._store.transactional

    @property
    def remote(self) -> bool:
        return self._store.remote

    @property
    def ordered(self) -> bool:
        return self._store.ordered

    @property
    def keeps_packs(self) -> bool:
        return self._store.keeps_packs

    def exclusively(self, plan: Callable[[], Mapping[str, bytes | None]]) -> bool:
        """As the store does it."""
        return self._store.exclusively(plan)

    def listening(self, key: str) -> AbstractContextManager[Callable[[float], None]]:
        return self._store.listening(key)

    def forget(self, key: str) -> None:
        self._store.forget(key)

    def uncached(self) -> KVStore:
        """The same in front of the store without its cached copies. A cache returns that store itself."""
        behind = self._store.uncached()
        return self if behind is self._store else self._before(behind)

    def check(self) -> Iterator[str]:
        return self._store.check()

    def size(self) -> int | None:
        return self._store.size()

    def pack(self, plain: Plain, keys: Sequence[str] | None = None) -> None:
        self._store.pack(plain, keys)

    def release(self) -> None:
        self._store.release()

    @property
    def location(self) -> str:
        return self._store.location

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._store!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._store,)

    def close(self) -> None:
        self._store.close()

    def _before(self, store: KVStore) -> Self:
        other = object.__new__(type(self))
        vars(other).update(vars(self), _store=store)
        return other


def check_kvstore(store: object, front: type[KVStore]) -> KVStore:
    """Return `store`; InvalidInput unless it is a store."""
    if not isinstance(store, KVStore):
        raise InvalidInput(
            f"{front.__name__} stands in front of a KVStore, not of a {type(store).__name__}: open the store "
            "first, with open_store(...)"
        )
    return store
