"""StoreWrapper: a store in front of another one, to which it passes every call that it does not override.

`ReadOnly` is one without writes, and `Translated` one with other names for its keys.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, NoReturn, Self, TypeVar

from vstate import errors
from vstate.errors import InvalidInput
from vstate.kv.base import KVStore, check_value

Method = TypeVar("Method", bound=Callable[..., Any])


def _passed_on(method: Method) -> Method:
    """The method of KVStore as one that asks the store behind."""

    @wraps(method)
    def call(self: StoreWrapper, *arguments: Any, **options: Any) -> Any:
        return self._pass_on(method.__name__, *arguments, **options)

    vars(call).pop("__isabstractmethod__", None)
    return call  # type: ignore[return-value]  # it takes the same arguments


def _as_behind(name: str) -> Any:
    """The property of the store behind."""
    return property(lambda self: getattr(self._store, name))


class StoreWrapper(KVStore):
    """`store`, unchanged. A subclass overrides the calls that it changes, or `_pass_on` for all of them.

    Every method of KVStore is passed on: its defaults are slower than the store, or promise less. A subclass
    with other keys than the store overrides every method that takes a key or a name.
    """

    def __init__(self, store: KVStore) -> None:
        self._store = check_kvstore(store, type(self))

    get = _passed_on(KVStore.get)
    get_many = _passed_on(KVStore.get_many)
    set = _passed_on(KVStore.set)
    set_many = _passed_on(KVStore.set_many)
    delete = _passed_on(KVStore.delete)
    delete_many = _passed_on(KVStore.delete_many)
    keys = _passed_on(KVStore.keys)
    items = _passed_on(KVStore.items)
    __contains__ = _passed_on(KVStore.__contains__)
    present = _passed_on(KVStore.present)
    compare_and_swap = _passed_on(KVStore.compare_and_swap)
    transact = _passed_on(KVStore.transact)
    exclusively = _passed_on(KVStore.exclusively)
    listening = _passed_on(KVStore.listening)
    forget = _passed_on(KVStore.forget)
    check = _passed_on(KVStore.check)
    size = _passed_on(KVStore.size)
    pack = _passed_on(KVStore.pack)
    release = _passed_on(KVStore.release)
    scrub = _passed_on(KVStore.scrub)
    transactional = _as_behind("transactional")
    remote = _as_behind("remote")
    ordered = _as_behind("ordered")
    keeps_packs = _as_behind("keeps_packs")
    location = _as_behind("location")
    directory = _as_behind("directory")

    def _pass_on(self, name: str, *arguments: Any, **options: Any) -> Any:
        return getattr(self._store, name)(*arguments, **options)

    def uncached(self) -> KVStore:
        """The same in front of the store without its cached copies. A cache returns that store itself."""
        behind = self._store.uncached()
        return self if behind is self._store else self._before(behind)

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


_WRITES = frozenset(
    {
        "set",
        "set_many",
        "delete",
        "delete_many",
        "compare_and_swap",
        "exclusively",
        "pack",
        "release",
        "scrub",
    }
)


class ReadOnly(StoreWrapper):
    """`store`, in which every write raises `vstate.errors.ReadOnly`. Writes of others are seen.

    It guards against mistakes of the program that holds it, which can still reach the store behind. A
    Versioned over it reads, and stages changes; its commit raises, and leaves them staged.
    """

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        """Raises ReadOnly if there is anything to write. Without writes it compares the expected values."""
        if writes:
            self._refuse()
        return self._store.transact({}, expected)

    def _pass_on(self, name: str, *arguments: Any, **options: Any) -> Any:
        if name in _WRITES:
            self._refuse()
        return super()._pass_on(name, *arguments, **options)

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

    def scrub(self, keys: Sequence[str] = ()) -> tuple[str, list[str]]:
        return self._store.scrub([self._name(key) for key in keys])

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
