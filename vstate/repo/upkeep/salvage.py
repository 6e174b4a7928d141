"""Salvage: reads a store that may be damaged, as far as that is possible."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice

from vstate.errors import CorruptObject, CorruptStore
from vstate.kv.base import OBJECT_PREFIX, KVStore
from vstate.objects.ids import Kind, ObjectId
from vstate.repo.objects import TRASH, Objects, kind_of, verified

Unreadable = CorruptObject | CorruptStore
"""The errors that a store raises if a row, or one of several rows, is damaged."""

Row = bytes | Unreadable | None
"""A stored value, or the error that the store raised for it, or None: the row is absent."""

_READ = 256


class Salvage:
    """Reads the rows of a store, past any cache. Raises CorruptObject and CorruptStore only from `body`."""

    def __init__(self, store: KVStore) -> None:
        self.store = store.uncached()
        self.objects = Objects(self.store)
        self.unlisted: dict[str, str] = {}
        """The prefixes whose keys could not all be listed, each with the reason."""

    def row(self, key: str) -> Row:
        """The row of this key."""
        try:
            return self.store.get(key)
        except (CorruptObject, CorruptStore) as error:
            return error

    def rows(self, keys: Sequence[str]) -> Mapping[str, Row]:
        """The rows of these keys, in one batch unless one of them is damaged."""
        try:
            return self.store.get_many(keys)
        except (CorruptObject, CorruptStore):
            return {key: self.row(key) for key in keys}

    def keys(self, prefix: str) -> Iterator[str]:
        """The keys that begin with `prefix`, as far as they can be listed."""
        try:
            yield from self.store.keys(prefix)
        except (CorruptObject, CorruptStore) as error:
            self.unlisted[prefix] = error.reason

    def present(self, keys: Iterable[str]) -> Set[str]:
        """Those of the keys that have a row; a row that cannot be read may count as absent."""
        wanted = list(keys)
        try:
            return self.store.present(wanted)
        except (CorruptObject, CorruptStore):
            return {key for key in wanted if isinstance(self.row(key), bytes)}

    def items(self, prefix: str) -> Iterator[tuple[str, bytes | Unreadable]]:
        """The rows whose keys begin with `prefix`, as far as they can be listed."""
        keys = self.keys(prefix)
        while batch := list(islice(keys, _READ)):
            rows = self.rows(batch)
            for key in batch:
                if (row := rows.get(key)) is not None:
                    yield key, row

    def stored(self, oid: ObjectId) -> Row:
        """The row of an object, or its copy in the trash of `gc`."""
        row = self.row(OBJECT_PREFIX + oid.hex())
        if row is not None:
            return row
        trash = self.row(TRASH + oid.hex())
        # Both may be absent because gc has put the object back between the two looks.
        return trash[8:] if isinstance(trash, bytes) else trash or self.row(OBJECT_PREFIX + oid.hex())

    def body(self, kind: Kind, oid: ObjectId, row: Row) -> bytes | memoryview:
        """The verified body of an object by its row, or by its copy in the trash of `gc`.

        CorruptObject if there is neither, or it is damaged.
        """
        row = self.stored(oid) if row is None else row
        if isinstance(row, CorruptObject | CorruptStore):
            raise CorruptObject(oid.hex(), row.reason)
        return verified(kind, oid, row)

    def kind_of_whole(self, oid: ObjectId, row: Row) -> Kind | None:
        """The kind of the object by its row; None if the object is missing or damaged."""
        kind = kind_of(row) if isinstance(row, bytes) else None
        try:
            if kind is not None:
                verified(kind, oid, row)  # type: ignore[arg-type]  # it has a kind, so is bytes
        except CorruptObject:
            return None
        return kind
