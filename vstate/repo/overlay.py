"""Overlay: stored objects together with some that are not stored yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vstate.objects.ids import NewObjects, ObjectId
from vstate.values.entry import Reader


class Overlay:
    """Reads new objects where they are, and the others from `stored`."""

    def __init__(self, stored: Reader, objects: NewObjects) -> None:
        self._stored = stored
        self._objects = objects

    def blob(self, oid: ObjectId) -> bytes:
        """The body of this blob."""
        return bytes(self._objects[oid].body) if oid in self._objects else self._stored.blob(oid)

    def blobs(self, sizes: Mapping[ObjectId, int]) -> Mapping[ObjectId, bytes]:
        """The bodies of these blobs."""
        here = {oid: bytes(self._objects[oid].body) for oid in sizes if oid in self._objects}
        rest = {oid: size for oid, size in sizes.items() if oid not in here}
        return {**here, **self._stored.blobs(rest)} if rest else here

    def indexes(self, ids: Sequence[ObjectId]) -> Mapping[ObjectId, bytes]:
        """The bodies of these index nodes."""
        here = {oid: bytes(self._objects[oid].body) for oid in ids if oid in self._objects}
        rest = [oid for oid in ids if oid not in here]
        return {**here, **self._stored.indexes(rest)} if rest else here
