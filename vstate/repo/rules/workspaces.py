"""Workspaces: rows that say which directories go with the branches of a store."""

from __future__ import annotations

import os
import platform
from typing import NamedTuple

from blake3 import blake3

from vstate.errors import CorruptStore
from vstate.kv.base import KVStore
from vstate.objects.canonical import decode_checked, encode_checked

WORKSPACE = "workspace/"


class WorkspaceRow(NamedTuple):
    """A directory of a host, the prefix of its keys, and the branch that it is on.

    `branch` is empty while HEAD is detached. If it `follows_head`, it goes where the HEAD of the store goes.
    `store` is the path of the store's own directory, empty for a store that has none.
    """

    host: str
    path: bytes
    prefix: str
    branch: str
    follows_head: bool
    store: bytes = b""

    @property
    def key(self) -> str:
        """The key of the row."""
        return WORKSPACE + blake3(encode_checked([self.host, self.path, self.prefix])).hexdigest(length=16)

    def directory(self) -> str:
        """The path as text, also if it is not UTF-8."""
        return os.fsdecode(self.path)


def this_host() -> str:
    """The name of this machine."""
    return platform.node()


def path_of(store: KVStore) -> bytes:
    """The path of the store's own directory, empty for a store that has none."""
    return b"" if store.directory is None else os.fsencode(os.path.abspath(store.directory))


def goes_with(store: KVStore, row: WorkspaceRow) -> bool:
    """Whether a workspace is on this machine and belongs to this store, not to one that this is a copy of.

    A store whose noted path does not exist any more counts as moved, and not as a copy.
    """
    if row.host != this_host():
        return False
    own = store.directory
    return own is None or not os.path.exists(row.store) or os.path.samefile(row.store, own)


def parse_workspace(row: bytes) -> WorkspaceRow:
    """The workspace in a row; ValueError if the row is damaged."""
    fields = decode_checked(row)
    types = [str, bytes, str, str, bool, bytes]
    if not isinstance(fields, list) or [type(field) for field in fields] not in (types, types[:-1]):
        raise ValueError("it is no workspace")
    return WorkspaceRow(*fields)


def note_workspace(store: KVStore, row: WorkspaceRow) -> None:
    """Say where a workspace is."""
    store.set(row.key, encode_checked([*row]))


def workspaces(store: KVStore) -> list[WorkspaceRow]:
    """The workspaces of a store, on all hosts, by path."""
    found = []
    for key, row in store.items(WORKSPACE):
        try:
            found.append(parse_workspace(row))
        except ValueError as error:
            raise CorruptStore(store.location, f"{key}: {error}", repairable=True) from error
    return sorted(found, key=lambda row: row[:3])
