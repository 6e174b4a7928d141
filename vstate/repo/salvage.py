"""Salvage: reading what can be read of a store that may be damaged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from vstate.errors import CorruptObject, CorruptStore
from vstate.kv.base import KVStore
from vstate.objects.ids import Kind, ObjectId
from vstate.repo.objects import PREFIX, TRASH, Objects, kind_of

Unreadable = CorruptObject | CorruptStore
"""What a store raises for a row, or for several that it was asked for at once, of which one is damaged."""

Row = bytes | Unreadable | None
"""A stored value, what keeps the store from reading it, or None: it is absent."""

Lengths = dict[ObjectId, int | CorruptObject]
"""How long the bodies of some objects are, or what keeps one from being read."""

_READ = 256


class Salvage:
    """Reads the objects of a store, not those of a cache in front of it, and never raises CorruptObject."""

    def __init__(self, store: KVStore) -> None:
        self.store = store.uncached()
        self._objects = Objects(self.store)

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

    def items(self, prefix: str) -> Iterator[tuple[str, bytes | Unreadable]]:
        """The rows whose keys begin so. CorruptStore if the keys themselves cannot be listed."""
        keys = self.store.keys(prefix)
        while batch := list(islice(keys, _READ)):
            rows = self.rows(batch)
            for key in batch:
                row = rows.get(key)
                if row is not None:
                    yield key, row

    def lengths(self, kind: Kind, ids: Sequence[ObjectId]) -> Lengths:
        """How long the verified bodies of these objects are, and of the others why there is none."""
        rows = self.rows([PREFIX + oid.hex() for oid in ids])
        found: Lengths = {}
        for oid in ids:
            try:
                found[oid] = len(self.body(kind, oid, rows.get(PREFIX + oid.hex())))
            except CorruptObject as error:
                found[oid] = error
        return found

    def body(self, kind: Kind, oid: ObjectId, row: Row) -> bytes | memoryview:
        """The verified body of an object by its row, or by the one that `gc` keeps; CorruptObject if neither
        is there or it is damaged.
        """
        if row is None:
            trash = self.row(TRASH + oid.hex())
            row = trash[8:] if isinstance(trash, bytes) else trash
        if isinstance(row, CorruptObject | CorruptStore):
            raise CorruptObject(oid.hex(), row.reason)
        return self._objects.verified(kind, oid, row)

    def kind_of_whole(self, oid: ObjectId, row: Row) -> Kind | None:
        """The kind that the row says the object is; None if it is not whole."""
        kind = kind_of(row) if isinstance(row, bytes) else None
        try:
            if kind is not None:
                self._objects.verified(kind, oid, row)  # type: ignore[arg-type]  # it has a kind, so is bytes
        except CorruptObject:
            return None
        return kind

    def are_there(self, ids: Iterable[ObjectId]) -> set[ObjectId]:
        """Those of the objects that have a row, or that `gc` keeps, whatever it holds."""
        keys = {PREFIX + oid.hex(): oid for oid in ids}
        there = self.store.present(keys)
        return {oid for key, oid in keys.items() if key in there or TRASH + oid.hex() in self.store}
