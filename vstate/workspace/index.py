"""Index: at which tree the files of a directory are, and how each file looked when it was so."""

from __future__ import annotations

import os
from typing import Any, Final

import msgpack
from blake3 import blake3

from vstate.objects.ids import ObjectId

Sign = tuple[int, int, int, int, int]
"""How a file looks from outside: mtime and ctime in ns, size, inode, mode."""

_VERSION: Final = 1
_CHECK_BYTES: Final = 16


class Index:
    """The content of the index file.

    - `root`: the tree of the commit at which the files are; None before the first.
    - `moving`: trees on the way to which a move has begun. Each file may be as in one of them.
    - `names`: by directory, "" or "a/b/", and name, the sign of each file as the tree has it. None stands for
      a file that has to be read before anybody can tell.
    """

    def __init__(self) -> None:
        self.root: ObjectId | None = None
        self.moving: list[ObjectId | None] = []
        self.names: dict[str, dict[str, Sign | None]] = {}

    def sign(self, path: str) -> Sign | None:
        """The sign of a file."""
        prefix, name = split(path)
        return self.names.get(prefix, {}).get(name)

    def holds(self, path: str) -> bool:
        """Whether the tree has the file, and the directory had it."""
        prefix, name = split(path)
        return name in self.names.get(prefix, ())

    def set(self, path: str, sign: Sign | None) -> None:
        """Have a file."""
        prefix, name = split(path)
        self.names.setdefault(prefix, {})[name] = sign

    def drop(self, path: str) -> None:
        """Have the file no more."""
        prefix, name = split(path)
        names = self.names.get(prefix, {})
        names.pop(name, None)
        if not names:
            self.names.pop(prefix, None)

    def paths(self) -> list[str]:
        """All files."""
        return [prefix + name for prefix, names in self.names.items() for name in names]

    def encode(self) -> bytes:
        """The file."""
        fields: list[Any] = [_VERSION, self.root, self.moving, self.names]
        body: bytes = msgpack.packb(fields, unicode_errors="surrogateescape")
        return body + blake3(body).digest(length=_CHECK_BYTES)

    @classmethod
    def decode(cls, data: bytes) -> Index | None:
        """The index in a file; None if the file is damaged, or of another version of vstate."""
        body, check = data[:-_CHECK_BYTES], data[-_CHECK_BYTES:]
        if blake3(body).digest(length=_CHECK_BYTES) != check:
            return None
        version, root, moving, names = msgpack.unpackb(
            body, use_list=False, strict_map_key=False, unicode_errors="surrogateescape"
        )
        if version != _VERSION:
            return None
        index = cls()
        index.root, index.names = _of(root), names
        index.moving = [_of(each) for each in moving]
        return index


def split(path: str) -> tuple[str, str]:
    """The directory of a path, "" or with a slash at its end, and the name."""
    before, slash, name = path.rpartition("/")
    return before + slash, name


def above(path: str) -> list[str]:
    """The directories above a file, as `split` names them, from the top on."""
    return ["", *(path[: i + 1] for i, c in enumerate(path) if c == "/")]


def sign_of(found: os.stat_result) -> Sign:
    """The sign of a file that was looked at."""
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_mode


def _of(data: bytes | None) -> ObjectId | None:
    return None if data is None else ObjectId(data)
