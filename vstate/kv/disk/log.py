"""Log: does SQLite's write-ahead log belong to the file beside it?

SQLite takes any log for that of the file, and copies it over the file. If somebody copied another file to its
place, a backup for example, both would be lost. The form is that of https://www.sqlite.org/fileformat.html
"""

from __future__ import annotations

import struct

_HEADER = struct.Struct(">8xI4x8s8x")  # the bytes of a page; the salt
_FRAME = struct.Struct(">II8s8x")  # the page; the pages of the file after a commit, or 0; the salt
_LOCK_BYTE = 1 << 30
"""The page with this byte is never written."""


def fits(log: str, file_bytes: int) -> bool:
    """Whether each page of the last commit can be in a file of so many bytes, or is in the log.

    A log begins when the file has all pages of before. So it has all pages behind the end of the file, but
    for some free ones: False is a suspicion. Raises OSError.
    """
    with open(log, "rb", buffering=0) as opened:
        head = opened.read(_HEADER.size)
        page_bytes, salt = _HEADER.unpack(head) if len(head) == _HEADER.size else (0, b"")
        if not page_bytes:
            return True
        here, last = file_bytes // page_bytes, 0
        behind: set[int] = set()
        while len(frame := opened.read(_FRAME.size)) == _FRAME.size:
            page, pages, its_salt = _FRAME.unpack(frame)
            if its_salt != salt:  # the rest is of before the log began anew
                break
            behind.add(page)
            last = pages or last
            opened.seek(page_bytes, 1)
    missing = set(range(here + 1, last + 1)) - behind
    return missing <= {_LOCK_BYTE // page_bytes + 1}
