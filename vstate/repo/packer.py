"""Packer: has the store compress objects together that are seldom read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial

from vstate.errors import VStateError
from vstate.kv.base import OBJECT_PREFIX, KVStore
from vstate.objects.commit import Commit
from vstate.objects.ids import TREE, NewObjects, ObjectId
from vstate.objects.tree import Node
from vstate.repo.idset import IdSet
from vstate.repo.objects import Objects, plain_form
from vstate.repo.rooms import prefix_of
from vstate.repo.walk import BATCH

STEP_BYTES = 320 * 1024
"""So many bytes of new objects, uncompressed, are packed together. Commits of more leave that to `gc`."""


class _New:
    """New objects of one room, and its newest commits."""

    def __init__(self) -> None:
        self.bytes = 0
        self.objects: NewObjects = {}
        self.newest: dict[str, tuple[Commit, Iterable[ObjectId]]] = {}
        """By branch, the newest commit, and the objects that it made."""

    def seldom_read(self) -> dict[str, bytes]:
        """The plain forms, by key; not of what the newest commits made, and of their nodes."""
        made, below = dict(self.objects), list[ObjectId]()
        newest = list(self.newest.values())  # other threads add to it meanwhile
        for commit, _ in newest:
            below += [] if commit.root is None else [commit.root]
        while below:
            oid = below.pop()
            # What a newest tree has, and is new here, lies below new nodes only.
            new = made.pop(oid, None)
            if new is not None and new.kind is TREE:
                below += Node.decode(bytes(new.body)).children()
        for _, ids in newest:
            for oid in ids:
                made.pop(oid, None)
        return {OBJECT_PREFIX + oid.hex(): plain_form(*new) for oid, new in made.items()}


class Packer:
    """Packs the objects that this process commits, each time that there are STEP_BYTES of them.

    What the newest commits made, and the nodes of their trees, stay as they are: these are read often, and
    most of them are replaced soon.

    A pack has objects of one room. Rooms with less than a quarter of STEP_BYTES are left to `gc`, which packs
    them together. Threads may share a packer.
    """

    def __init__(self, store: KVStore) -> None:
        self._store = store
        self._rooms: dict[int, _New] = {}
        self._bytes = 0

    def note(self, room: int, made: NewObjects, branch: str, head: Commit) -> None:
        """These objects were written into a room, and a branch of it is at this commit now."""
        size = 0
        for _, body in made.values():
            size += len(body)
        if size > STEP_BYTES:
            return
        new = self._rooms.get(room) or self._rooms.setdefault(room, _New())
        new.bytes += size
        new.objects.update(made)
        new.newest[branch] = head, made.keys()
        self._bytes += size
        if self._bytes > STEP_BYTES:
            rooms, self._rooms, self._bytes = self._rooms, {}, 0
            for number, new in rooms.items():
                if new.bytes < STEP_BYTES // 4:
                    continue
                forms = {prefix_of(number) + key: form for key, form in new.seldom_read().items()}
                with suppress(VStateError):  # the commits have landed, and `gc` packs later
                    self._store.pack(partial(_form_of, forms), list(forms))


def _form_of(forms: Mapping[str, bytes], key: str, stored: bytes) -> bytes | None:
    return forms.get(key)


def newest_objects(objects: Objects, heads: Iterable[ObjectId]) -> IdSet:
    """These commits and the nodes of their trees. CorruptObject if one is missing."""
    kept, below = IdSet(), list[ObjectId]()
    for commit in objects.commits(list(dict.fromkeys(heads))):
        kept.add(commit.oid)
        below += [] if commit.root is None else [commit.root]
    while below:
        some = [oid for oid in below[-BATCH:] if kept.add(oid)]
        del below[-BATCH:]
        for _, node, _ in objects.each_node(some):
            below += node.children()
    return kept


def pack_objects(store: KVStore, objects: Objects, heads: Iterable[ObjectId]) -> None:
    """Pack all objects but the newest ones."""
    kept = newest_objects(objects, heads)

    def plain(key: str, stored: bytes) -> bytes | None:
        is_kept = bytes.fromhex(key.removeprefix(OBJECT_PREFIX)) in kept
        return None if is_kept else objects.plain(key, stored)

    store.pack(plain)
