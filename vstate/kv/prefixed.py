"""Prefixed: a part of a store, for one tenant of many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from functools import partial
from typing import Final

from vstate.errors import InvalidInput
from vstate.kv.base import KVStore, Plain, check_key
from vstate.kv.wrapper import StoreWrapper

LONGEST_NAME: Final = 200
"""Bytes of UTF-8. Some stores take keys of 1,024 bytes at most, and the name of a branch needs room too."""

RESERVED: Final = frozenset(
    [
        "arrived",
        "commit-graph",
        "damaged",
        "expiry",
        "lease",
        "lease-seen",
        "o",
        "policy",
        "r",
        "reflog",
        "remote",
        "shallow",
        "trash",
    ]
)
"""The first segments of a repository's keys: there may be one in the store itself, beside its tenants."""


class Prefixed(StoreWrapper):
    """The part of `store` that is called `name`: a key here is the store's key `name/key`.

    Parts of different names never see each other. No call on one part changes, deletes or lists keys of
    another, and equal objects are stored once for each. A name is one segment: not empty, without "/" (or "a"
    would hold all of "a/b"), and none of the first segments of a repository's keys. Parts nest:
    `Prefixed(Prefixed(store, "a"), "b")` is a part of the part "a".

    All the promises of the store hold. But the store behind does not know the part's objects as objects: a
    Cache or a Tiered store belongs in front, `Cache(Prefixed(store, "a"))`. If they lay under "o/" with
    everybody else's, a part would lie in two places, and a copy, a deletion or a permission by prefix would
    miss half of it. Their names take more room, too: on Disk, 20,000 objects of 200 bytes take 14.0 MB
    instead of 9.6. Where the server, the bucket or the disk can be divided by other means (the prefix of
    Redis, the table of Postgres, the path of S3, a directory), use those.

    `close` leaves the store open for its other parts, unless `owns` is True.
    """

    def __init__(self, store: KVStore, name: str, *, owns: bool = False) -> None:
        super().__init__(store)
        self._name = check_name(name)
        self._prefix = f"{name}/"
        self._owns = owns

    @property
    def name(self) -> str:
        """The name of the part."""
        return self._name

    def get(self, key: str) -> bytes | None:
        return self._store.get(self._outer(key))

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        found = self._store.get_many([self._outer(key) for key in keys])
        return {self._inner(key): value for key, value in found.items()}

    def set(self, key: str, value: bytes) -> None:
        self._store.set(self._outer(key), value)

    def set_many(self, items: Mapping[str, bytes]) -> None:
        self._store.set_many({self._outer(key): value for key, value in items.items()})

    def delete(self, key: str) -> None:
        self._store.delete(self._outer(key))

    def delete_many(self, keys: Iterable[str]) -> None:
        self._store.delete_many([self._outer(key) for key in keys])

    def keys(self, prefix: str = "") -> Iterator[str]:
        return map(self._inner, self._store.keys(self._outer(prefix)))

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        return ((self._inner(key), value) for key, value in self._store.items(self._outer(prefix)))

    def __contains__(self, key: str) -> bool:
        return self._outer(key) in self._store

    def present(self, keys: Iterable[str]) -> Set[str]:
        return {self._inner(key) for key in self._store.present([self._outer(key) for key in keys])}

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes | None) -> bool:
        return self._store.compare_and_swap(self._outer(key), expected, new)

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        """As the store does it, if it has transactions; otherwise step by step, as promised by KVStore."""
        if not self._store.transactional:
            # The store cannot tell which of the writes are objects, and objects must come first.
            return KVStore.transact(self, writes, expected)
        return self._store.transact(self._renamed(writes), self._renamed(expected))

    def exclusively(self, plan: Callable[[], Mapping[str, bytes | None]]) -> bool:
        """As the store does it; writers of the other parts wait too."""
        return self._store.exclusively(lambda: self._renamed(plan()))

    def listening(self, key: str) -> AbstractContextManager[Callable[[float], None]]:
        return self._store.listening(self._outer(key))

    def forget(self, key: str) -> None:
        self._store.forget(self._outer(key))

    keeps_packs = False

    def pack(self, plain: Plain, keys: Sequence[str] | None = None) -> None:
        """Does nothing: the store does not know these keys as those of objects."""

    def check(self) -> Iterator[str]:
        """As the store does it, for all of it: damage in its files may belong to any part."""
        return super().check()

    @property
    def location(self) -> str:
        return f"{self._store.location} ({self._prefix})"

    def __repr__(self) -> str:
        return f"Prefixed({self._store!r}, {self._name!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), owns=self._owns), (self._store, self._name)

    def close(self) -> None:
        if self._owns:
            self._store.close()

    def _outer(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _inner(self, key: str) -> str:
        return key[len(self._prefix) :]

    def _renamed(self, values: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
        return {self._outer(key): value for key, value in values.items()}


def check_name(name: object) -> str:
    """Return `name`; InvalidInput unless it can be the name of a part."""
    if not isinstance(name, str):
        raise InvalidInput(f"the name of a part of a store is a str, not {type(name).__name__}")
    problem = None
    if not name:
        problem = "is empty"
    elif "/" in name:
        problem = 'holds "/": a part of a part is Prefixed(Prefixed(store, "a"), "b")'
    elif not name.isprintable() or name != name.strip():
        problem = "holds control characters, or begins or ends with a space"
    elif name in (".", ".."):
        problem = "means another directory, to stores that have directories"
    elif name in RESERVED:
        problem = "is the beginning of a repository's own keys"
    elif len(name.encode()) > LONGEST_NAME:
        problem = f"is longer than {LONGEST_NAME} bytes"
    if problem is not None:
        raise InvalidInput(f"{name!r} cannot name a part of a store: it {problem}; choose another name")
    return name
