"""ReadOnly: a store that can be looked at, and not written to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import AbstractContextManager
from typing import NoReturn

from vstate import errors
from vstate.kv.base import KVStore


class ReadOnly(KVStore):
    """`store`, in which every write raises `vstate.errors.ReadOnly`; what others write to it is seen.

    It guards against mistakes of the program that holds it, which may reach the store behind all the same.
    A Versioned over it reads, and what is set in it is staged: a commit raises, and leaves it staged.
    """

    def __init__(self, store: KVStore) -> None:
        self._store = store

    def get(self, key: str) -> bytes | None:
        return self._store.get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        return self._store.get_many(keys)

    def set(self, key: str, value: bytes) -> None:
        self._refuse()

    def set_many(self, items: Mapping[str, bytes]) -> None:
        self._refuse()

    def delete(self, key: str) -> None:
        self._refuse()

    def delete_many(self, keys: Iterable[str]) -> None:
        self._refuse()

    def keys(self, prefix: str = "") -> Iterator[str]:
        return self._store.keys(prefix)

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        return self._store.items(prefix)

    def __contains__(self, key: str) -> bool:
        return key in self._store

    def present(self, keys: Iterable[str]) -> Set[str]:
        return self._store.present(keys)

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes | None) -> bool:
        self._refuse()

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        """Raises ReadOnly if there is anything to write; whether what is expected is there may be asked."""
        if writes:
            self._refuse()
        return self._store.transact({}, expected)

    @property
    def transactional(self) -> bool:
        return self._store.transactional

    def exclusively(self, plan: Callable[[], Mapping[str, bytes | None]]) -> bool:
        """Raises ReadOnly, whatever the plan: it is for writing."""
        self._refuse()

    # `turn` stays the one of KVStore: who does not write has nobody to wait for, and a turn may take files.

    def listening(self, key: str) -> AbstractContextManager[Callable[[float], None]]:
        return self._store.listening(key)

    def forget(self, key: str) -> None:
        self._store.forget(key)

    def uncached(self) -> KVStore:
        behind = self._store.uncached()
        return self if behind is self._store else type(self)(behind)

    def check(self) -> Iterator[str]:
        return self._store.check()

    @property
    def location(self) -> str:
        return self._store.location

    def __repr__(self) -> str:
        return f"ReadOnly({self._store!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._store,)

    def close(self) -> None:
        self._store.close()

    def _refuse(self) -> NoReturn:
        raise errors.ReadOnly(
            f"the store at {self.location} was opened to be read only: to write to it, open it without "
            "ReadOnly(...), or without readonly: in front of its URL"
        )
