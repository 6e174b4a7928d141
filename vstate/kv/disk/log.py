"""Log: does SQLite's write-ahead log belong to the file beside it?

SQLite takes any log for that of the file, and copies it over the file. If somebody copied another file to its
place, a backup for example, both would be lost. So the file has a name, 8 random bytes, and each log gives it
a new one: the table `log` has one row, with the name and the one before. A log names its file so as the file
was before the log began, and as it is after any part of the log was copied into it.

The form is that of https://www.sqlite.org/fileformat.html
"""

from __future__ import annotations

import os
import struct
from io import FileIO
from itertools import count
from typing import NamedTuple

CREATE = ("CREATE TABLE log (names BLOB NOT NULL)", "INSERT INTO log VALUES (randomblob(16))")
RENAME = "UPDATE log SET names = CAST(randomblob(8) || substr(names, 1, 8) AS BLOB)"
NAMES = "SELECT rootpage, names FROM sqlite_master, log WHERE name = 'log'"
"""The page of the row, and the row: the name and the one before."""

NAME_BYTES = 8

_HEADER = struct.Struct(">8xI4x8s8x")  # the bytes of a page; the salt
SALT = 8, 16
"""The bytes of the salt of a log, and their place."""
_FRAME = ">II8s8x"  # the page; the pages of the file after a commit, or 0; the salt; then the page follows
_PAGE_SIZES = frozenset(1 << bits for bits in range(9, 17))
_READ_TOGETHER = 16
"""Frames in one read. More of them take new memory for each read, which takes longer than the reads."""
_LOCK_BYTE = 1 << 30
"""The page with this byte is never written."""


class Log(NamedTuple):
    """A log: its salt, which is another one after the log began anew, the bytes of a page, the pages of the
    file after the last commit, the pages in the log, and all that it holds of the page of names.
    """

    salt: bytes = b""
    page_bytes: int = 0
    last: int = 0
    pages: frozenset[int] = frozenset()
    names: tuple[bytes, ...] = ()

    def fits(self, file_bytes: int) -> bool:
        """Whether each page of the last commit can be in a file of so many bytes, or is in the log.

        A log begins when the file has all pages of before. So it has all pages behind the end of the file,
        but for some free ones: False is a suspicion.
        """
        if not self.page_bytes:
            return True
        missing = set(range(file_bytes // self.page_bytes + 1, self.last + 1)) - self.pages
        return missing <= {_LOCK_BYTE // self.page_bytes + 1}

    def knows(self, name: bytes) -> bool:
        """Whether the file with this name can be that of the log. A log without any name fits each file."""
        return not self.names or any(name in page for page in self.names)


def read(log: FileIO, page_of_names: int) -> Log:
    """Look at the pages in the log since it began. Raises OSError."""
    head = os.pread(log.fileno(), _HEADER.size, 0)
    page_bytes, salt = _HEADER.unpack(head) if len(head) == _HEADER.size else (0, b"")
    if page_bytes not in _PAGE_SIZES:  # SQLite takes such a log for an empty one
        return Log()
    frame = struct.Struct(f"{_FRAME}{page_bytes}x")
    last, place = 0, _HEADER.size
    found, names = set[int](), list[bytes]()
    while len(piece := os.pread(log.fileno(), _READ_TOGETHER * frame.size, place)) >= frame.size:
        whole = piece[: len(piece) - len(piece) % frame.size]
        for end, (page, pages, its_salt) in zip(count(frame.size, frame.size), frame.iter_unpack(whole)):
            if its_salt != salt:  # the rest is of before the log began anew
                return Log(salt, page_bytes, last, frozenset(found), tuple(names))
            found.add(page)
            last = pages or last
            if page == page_of_names:
                names.append(whole[end - page_bytes : end])
        place += len(whole)
    return Log(salt, page_bytes, last, frozenset(found), tuple(names))
