"""StoreWrapper: a store in front of another one, to which it passes every call that it does not override.

`ReadOnly` is one without writes, and `Translated` one with other names for its keys.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from typing import NoReturn, Self

from vstate import errors
from vstate.errors import InvalidInput
from vstate.kv.base import RELEASE_SECONDS, KVStore, Plain, check_value


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

    def release(self, seconds: float = RELEASE_SECONDS) -> None:
        self._store.release(seconds)

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


class ReadOnly(StoreWrapper):
    """`store`, in which every write raises `vstate.errors.ReadOnly`. Writes of others are seen.

    It guards against mistakes of the program that holds it, which can still reach the store behind. A
    Versioned over it reads, and stages changes; its commit raises, and leaves them staged.
    """

    def set(self, key: str, value: bytes) -> None:
        self._refuse()

    def set_many(self, items: Mapping[str, bytes]) -> None:
        self._refuse()

    def delete(self, key: str) -> None:
        self._refuse()

    def delete_many(self, keys: Iterable[str]) -> None:
        self._refuse()

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes | None) -> bool:
        self._refuse()

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        """Raises ReadOnly if there is anything to write. Without writes it compares the expected values."""
        if writes:
            self._refuse()
        return self._store.transact({}, expected)

    def exclusively(self, plan: Callable[[], Mapping[str, bytes | None]]) -> bool:
        """Raises ReadOnly without calling the plan, which is for writing."""
        self._refuse()

    def pack(self, plain: Plain, keys: Sequence[str] | None = None) -> None:
        self._refuse()

    def release(self, seconds: float = RELEASE_SECONDS) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise errors.ReadOnly(
            f"the store at {self.location} was opened to be read only: to write, open it without "
            "ReadOnly(...), or without readonly: in front of its URL"
        )


Rows = Callable[[str], Iterator[tuple[str, bytes]]]
"""The names in the store that begin with a text, each with its row."""


class Translated(StoreWrapper):
    """A store in front of one where keys have other names, and values perhaps another form, the row."""

    @abstractmethod
    def _name(self, key: str) -> str:
        """The name in the store; InvalidInput unless it is a key."""

    @abstractmethod
    def _listed(self, prefix: str, rows: Rows) -> Iterator[tuple[str, str, bytes]]:
        """The keys with this prefix, each with its name and what `rows` gives for it."""

    def _row(self, key: str, value: bytes) -> bytes:
        return check_value(value)

    def _value(self, key: str, name: str, row: bytes) -> bytes | None:
        return row

    def _before_write(self) -> None:
        """Called before anything but a deletion is written."""

    def get(self, key: str) -> bytes | None:
        name = self._name(key)
        row = self._store.get(name)
        return None if row is None else self._value(key, name, row)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        asked = {self._name(key): key for key in keys}
        rows = self._store.get_many(list(asked))
        values = {asked[name]: self._value(asked[name], name, row) for name, row in rows.items()}
        return {key: value for key, value in values.items() if value is not None}

    def __contains__(self, key: str) -> bool:
        return self._name(key) in self._store

    def present(self, keys: Iterable[str]) -> Set[str]:
        asked = {self._name(key): key for key in keys}
        return {asked[name] for name in self._store.present(asked)}

    def keys(self, prefix: str = "") -> Iterator[str]:
        listed = self._listed(prefix, lambda place: ((name, b"") for name in self._store.keys(place)))
        return (key for key, _, _ in listed)

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        for key, name, row in self._listed(prefix, self._store.items):
            value = self._value(key, name, row)
            if value is not None:
                yield key, value

    def set(self, key: str, value: bytes) -> None:
        name, row = self._name(key), self._row(key, value)
        self._before_write()
        self._store.set(name, row)

    def set_many(self, items: Mapping[str, bytes]) -> None:
        rows = {self._name(key): self._row(key, value) for key, value in items.items()}
        if rows:
            self._before_write()
            self._store.set_many(rows)

    def delete(self, key: str) -> None:
        self._store.delete(self._name(key))

    def delete_many(self, keys: Iterable[str]) -> None:
        self._store.delete_many([self._name(key) for key in keys])

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes | None) -> bool:
        ((name, old),) = self._rows({key: expected}).items()
        ((_, row),) = self._rows({key: new}).items()
        if row is not None:
            self._before_write()
        return self._store.compare_and_swap(name, old, row)

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        """As the store does it."""
        rows, old = self._rows(writes), self._rows(expected)
        if any(row is not None for row in rows.values()):
            self._before_write()
        return self._store.transact(rows, old)

    def exclusively(self, plan: Callable[[], Mapping[str, bytes | None]]) -> bool:
        """As the store does it."""
        return self._store.exclusively(lambda: self._rows(plan()))

    def listening(self, key: str) -> AbstractContextManager[Callable[[float], None]]:
        return self._store.listening(self._name(key))

    def forget(self, key: str) -> None:
        self._store.forget(self._name(key))

    def _rows(self, values: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
        return {
            self._name(key): None if value is None else self._row(key, value) for key, value in values.items()
        }


def check_kvstore(store: object, front: type[KVStore]) -> KVStore:
    """Return `store`; InvalidInput unless it is a store."""
    if not isinstance(store, KVStore):
        raise InvalidInput(
            f"{front.__name__} stands in front of a KVStore, not of a {type(store).__name__}: open the store "
            "first, with open_store(...)"
        )
    return store
