"""Packer: has the store compress objects together that are seldom read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from vstate.errors import StorageError
from vstate.kv.base import OBJECT_PREFIX, KVStore, is_object
from vstate.objects.commit import Commit
from vstate.objects.ids import TREE, ObjectId
from vstate.repo.idset import IdSet
from vstate.repo.objects import Objects, kind_of
from vstate.repo.walk import BATCH

STEP_BYTES = 256 * 1024
"""So many bytes of new objects are packed together. Commits of more bytes leave that to `gc`."""


class Packer:
    """Packs the objects that this process commits, each time that there are STEP_BYTES of them.

    The newest commits and the nodes of their trees stay as they are: they are read often, and most of them
    are replaced soon. Threads may share a packer.
    """

    def __init__(self, store: KVStore, objects: Objects) -> None:
        self._store = store
        self._objects = objects
        self._rows: dict[str, bytes] = {}
        self._newest: dict[str, Commit] = {}
        self._bytes = 0

    def note(self, rows: Mapping[str, bytes], newest: Mapping[str, Commit]) -> None:
        """These rows were written, and these branches are at these commits now."""
        size = sum(map(len, rows.values()))
        if size > STEP_BYTES or not self._store.keeps_packs:
            return
        self._rows.update(rows)
        self._newest.update(newest)
        self._bytes += size
        if self._bytes > STEP_BYTES:
            written, self._rows = self._rows, {}
            heads, self._newest = self._newest, {}
            self._bytes = 0
            with suppress(StorageError):  # the commits are done, and `gc` packs what is left
                self._store.pack(self._objects.plain, self._seldom_read(written, heads.values()))

    def _seldom_read(self, rows: Mapping[str, bytes], newest: Iterable[Commit]) -> list[str]:
        """The keys of the objects among the rows, without these commits and the nodes of their trees."""
        keys = {ObjectId.parse(key.removeprefix(OBJECT_PREFIX)): key for key in rows if is_object(key)}
        below: list[ObjectId] = []
        for commit in newest:
            keys.pop(commit.oid, None)
            below += [] if commit.root is None else [commit.root]
        while below:
            oid = below.pop()
            # A node of a newest tree that is new here lies below new nodes only.
            if (key := keys.pop(oid, None)) is not None and kind_of(rows[key]) is TREE:
                below += self._objects.node(oid).children()
        return list(keys.values())


def pack_objects(store: KVStore, objects: Objects, newest: Iterable[Commit]) -> None:
    """Pack all objects but these commits and the nodes of their trees."""
    kept, below = IdSet(), list[ObjectId]()
    for commit in newest:
        kept.add(commit.oid)
        below += [] if commit.root is None else [commit.root]
    while below:
        some = [oid for oid in below[-BATCH:] if kept.add(oid)]
        del below[-BATCH:]
        for _, node, _ in objects.each_node(some):
            below += node.children()

    def plain(key: str, stored: bytes) -> bytes | None:
        is_kept = bytes.fromhex(key.removeprefix(OBJECT_PREFIX)) in kept
        return None if is_kept else objects.plain(key, stored)

    store.pack(plain)
