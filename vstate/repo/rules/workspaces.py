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
    """A directory of a host, as `host_of` names it, the prefix of its keys, and the branch that it is on.

    `branch` is empty while HEAD is detached. If it `follows_head`, it goes where the HEAD of the store goes.
    """

    host: str
    path: bytes
    prefix: str
    branch: str
    follows_head: bool

    @property
    def key(self) -> str:
        """The key of the row."""
        return WORKSPACE + blake3(encode_checked([self.host, self.path, self.prefix])).hexdigest(length=16)

    def directory(self) -> str:
        """The path as text, also if it is not UTF-8."""
        return os.fsdecode(self.path)


def host_of(store: KVStore) -> str:
    """The name of this machine, and for a store that is a directory on it, the inode. A copy has another."""
    try:
        return f"{platform.node()} {os.stat(store.location).st_ino}"
    except OSError:
        return platform.node()


def parse_workspace(row: bytes) -> WorkspaceRow:
    """The workspace in a row; ValueError if the row is damaged."""
    fields = decode_checked(row)
    if not isinstance(fields, list) or [type(field) for field in fields] != [str, bytes, str, str, bool]:
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
