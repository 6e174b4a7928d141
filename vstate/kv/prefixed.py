"""Prefixed: a part of a store, for one tenant of many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from vstate.errors import InvalidInput
from vstate.kv.base import KVStore, Plain, check_key
from vstate.kv.wrapper import Rows, Translated

LONGEST_NAME: Final = 200
"""Bytes of UTF-8. Some stores take keys of 1,024 bytes at most, and the name of a branch needs room too."""

RESERVED: Final = frozenset(
    [
        "arrived",
        "commit-graph",
        "damaged",
        "gc",
        "gone",
        "keep",
        "lease",
        "lease-seen",
        "o",
        "policy",
        "r",
        "reflog",
        "remote",
        "replaced",
        "room",
        "room-of",
        "shallow",
        "trash",
        "workspace",
    ]
)
"""The first segments of a repository's keys: there may be one in the store itself, beside its tenants."""


class Prefixed(Translated):
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

    In `exclusively`, writers of the other parts wait too, and `check` looks at the files of all parts.
    `close` leaves the store open for its other parts, unless `owns` is True.
    """

    def __init__(self, store: KVStore, name: str, *, owns: bool = False) -> None:
        super().__init__(store)
        self._part = check_name(name)
        self._prefix = f"{name}/"
        self._owns = owns

    @property
    def name(self) -> str:
        """The name of the part."""
        return self._part

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        """As the store does it, if it has transactions; otherwise step by step, as promised by KVStore."""
        if not self._store.transactional:
            # The store cannot tell which of the writes are objects, and objects must come first.
            return KVStore.transact(self, writes, expected)
        return super().transact(writes, expected)

    keeps_packs = False

    def pack(self, plain: Plain, keys: Sequence[str] | None = None) -> None:
        """Does nothing: the store does not know these keys as those of objects."""

    @property
    def location(self) -> str:
        return f"{self._store.location} ({self._prefix})"

    def __repr__(self) -> str:
        return f"Prefixed({self._store!r}, {self._part!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), owns=self._owns), (self._store, self._part)

    def close(self) -> None:
        if self._owns:
            self._store.close()

    def _name(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _listed(self, prefix: str, rows: Rows) -> Iterator[tuple[str, str, bytes]]:
        for name, row in rows(self._name(prefix)):
            yield name[len(self._prefix) :], name, row


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
