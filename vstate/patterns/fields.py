"""Fields: a record on a branch, with a key for each field, of which a commit sets those that changed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgpack

from vstate.errors import InvalidInput
from vstate.forks import new_lock
from vstate.objects.commit import Commit
from vstate.patterns.paths import join_path
from vstate.repo.repository import Repository
from vstate.state.snapshot import Snapshot

_DIGITS: Final = 12
_MOST: Final = 64  # branches whose digests stay in memory


class Packed(NamedTuple):
    """A record that is ready to be stored, and that nobody changes any more."""

    names: list[tuple[str, bool]]
    """The names of the fields, in order, and whether each item of the field has a key."""
    data: dict[str, bytes]
    """The values by key."""
    digests: dict[str, bytes]
    """A digest of each value."""


class Fields:
    """Records of plain data, one on each branch, under the keys `NAME/FIELD`.

    - A list of dicts or texts, such as the messages of a chat, has a key for each item: `NAME/FIELD/NUMBER`.
    - A value that the branch has already is not stored again, however the record is passed on.
    - The caller stores the names of the fields, and commits the changes together with its own keys.

    Threads may share it.
    """

    def __init__(self, repo: Repository, name: str) -> None:
        self._repo = repo
        self._name = name
        self._lock = new_lock()
        # By branch: its newest commit here, and a digest of each value. A commit sets the others only.
        self._known: OrderedDict[str, tuple[Commit, dict[str, bytes]]] = OrderedDict()

    def pack(self, record: Mapping[str, Any]) -> Packed:
        """A copy of the record; InvalidInput, which names the field, for a value that is no plain data."""
        names: list[tuple[str, bool]] = []
        data: dict[str, bytes] = {}
        for name, value in record.items():
            try:
                key = join_path(self._name, name)
                names.append((name, _has_items(value)))
                if _has_items(value):
                    data |= {f"{key}/{place:0{_DIGITS}}": _pack(item) for place, item in enumerate(value)}
                else:
                    data[key] = _pack(value)
            except (TypeError, ValueError) as error:
                raise InvalidInput(
                    f"the field {name!r} of the {self._name} cannot be stored: {error}"
                ) from error
        return Packed(
            names, data, {key: blake2b(value, digest_size=16).digest() for key, value in data.items()}
        )

    def changes(self, branch: str, head: Commit | None, packed: Packed) -> tuple[dict[str, Any], list[str]]:
        """The keys to set and to delete, on top of a commit of the branch, for it to have this record."""
        known: Mapping[str, bytes] = {} if head is None else self._digests(branch, head)
        new = {
            key: _unpack(packed.data[key])
            for key, digest in packed.digests.items()
            if known.get(key) != digest
        }
        return new, [key for key in known if key not in packed.digests]

    def landed(self, branch: str, commit: Commit | None, packed: Packed) -> None:
        """Note that the branch has this record at a commit. The next commit is spared its values."""
        if commit is None:
            return
        with self._lock:
            self._known[branch] = commit, packed.digests
            self._known.move_to_end(branch)
            if len(self._known) > _MOST:
                self._known.popitem(last=False)

    def load(self, commit: Commit, names: Iterable[tuple[str, bool]]) -> dict[str, Any]:
        """The record of a commit, with the names of its fields."""
        stored = Snapshot(self._repo, commit)
        record: dict[str, Any] = {}
        for name, has_items in names:
            key = join_path(self._name, name)
            record[name] = [stored[item] for item in stored.keys(f"{key}/")] if has_items else stored[key]
        return record

    def is_same(self, commit: Commit, packed: Packed) -> bool:
        """Does the commit have these values? They must be under the same keys."""
        stored = Snapshot(self._repo, commit)
        # Packed again: 1, 1.0 and True are equal in Python.
        return all(_pack(stored[key]) == data for key, data in packed.data.items())

    def _digests(self, branch: str, head: Commit) -> Mapping[str, bytes]:
        with self._lock:
            known = self._known.get(branch)
        if known is not None and known[0].id == head.id:
            return known[1]
        # The keys alone: each of them is set or deleted, and nothing is loaded.
        return {key: b"" for key, _ in self._repo.entries(head.root, f"{self._name}/")}


def _has_items(value: Any) -> bool:
    """Is each item of the value stored on its own? The numbers of a vector are not."""
    return type(value) is list and all(isinstance(item, dict | str) for item in value)


def _pack(value: Any) -> bytes:
    """The value as plain data: a member of an enum that is a str becomes a str."""
    packed: bytes = msgpack.packb(value, default=_wide, unicode_errors="surrogatepass")
    return packed


def _unpack(data: bytes) -> Any:
    return msgpack.unpackb(
        data, ext_hook=lambda _, digits: int(digits, 16), strict_map_key=False, unicode_errors="surrogatepass"
    )


def _wide(value: object) -> msgpack.ExtType:
    """An int of more than 64 bits, which MessagePack lacks."""
    if isinstance(value, int):
        return msgpack.ExtType(0, f"{value:x}".encode())
    raise TypeError(f"{type(value).__name__} is no plain data")
