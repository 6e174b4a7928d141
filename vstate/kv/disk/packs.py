"""Packs: values of objects that are seldom read, compressed together.

A pack is a row of the table `packs`. A packed value's own row in `kv` has an integer instead of bytes, the
*place*: the id of the pack, and the number of the value in the pack. An id is never used again, and of a pack
only values are cut out whose rows are gone. So a place means the same value for ever, and a pack in memory is
never stale.

The table `freed` has the places of deleted rows, until their values are cut out of the packs. So that takes
as long as there are such values, and not as long as there are packs.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import zstandard
from zstandard import ZstdError

from vstate.errors import StoreUnavailable
from vstate.kv.base import batches_by_bytes
from vstate.kv.stored_keys import room_of

if TYPE_CHECKING:
    import sqlite3

PACK_BYTES = 1024 * 1024
"""The most bytes of the values of a pack. Part of the format: a reader refuses a much longer pack.

Of 6.9 MB of rounds, packs of 64 KB leave 1.21 MB, of 256 KB 0.50, of 1 MB 0.33. But to read one value takes
the whole pack: 0.5 ms.
"""

SHARED_BYTES = 64 * 1024
"""The same, of a pack with values of several rooms: to delete one of these rooms writes the pack anew.

500 threads of a chat take 6.5 MB then, and 5 ms to delete one. With 128 KB they take 5.9 MB and 6 ms, and
with packs of one room each 7.4 MB and 3 ms.
"""

MOST_PACKED = 4096
"""The most values of a pack. Part of the format: each place counts by it."""

FEWEST_PACKED = 8
"""So few values gain nothing by a pack."""

LONGEST_PACKED = 16 * 1024 + 1
"""A longer value stays alone: reading it takes longer than finding it. Part of the format, as PACK_BYTES is.

The number is that of a blob of a stream, `BLOB_BYTES`, and its kind.
"""

KEPT_BYTES = 4 * 1024 * 1024
"""So many bytes of packs a store keeps in memory, unpacked: those that were unpacked last."""
_OBJECT_BYTES = 41  # of a bytes object of Python beside its value, in a list

CREATE = (
    "CREATE TABLE packs (id INTEGER PRIMARY KEY AUTOINCREMENT, count INTEGER NOT NULL, body BLOB NOT NULL)",
    "CREATE TABLE freed (place INTEGER PRIMARY KEY)",
    "CREATE TRIGGER free AFTER DELETE ON kv WHEN typeof(old.value) = 'integer' "
    "BEGIN INSERT OR IGNORE INTO freed VALUES (old.value); END",
)

READ = "SELECT count, body FROM packs WHERE id = ?"

LOOSE = f"typeof(value) = 'blob' AND length(value) <= {LONGEST_PACKED}"

FREED = f"SELECT DISTINCT place >> {MOST_PACKED.bit_length() - 1} FROM freed"
"""The packs that may hold values of deleted rows."""

_IN_PACK = "BETWEEN ? AND ?"
_FREED_IN = f"SELECT place FROM freed WHERE place {_IN_PACK}"
_FORGET = f"DELETE FROM freed WHERE place {_IN_PACK}"
_USED = f"SELECT 1 FROM kv WHERE typeof(value) = 'integer' AND value {_IN_PACK} LIMIT 1"
_INSERT = "INSERT INTO packs (count, body) VALUES (?, ?)"
_UPDATE = "UPDATE packs SET body = ? WHERE id = ?"
_DELETE = "DELETE FROM packs WHERE id = ?"
_DELETE_ROW = "DELETE FROM kv WHERE key = ?"
_INSERT_ROW = "INSERT INTO kv (key, value) VALUES (?, ?)"

_LEVEL = 3  # it compresses inside the write transaction, for which all writers wait
_LONGEST_PACK = PACK_BYTES + LONGEST_PACKED + 4 * MOST_PACKED


def write_all(connection: sqlite3.Connection, values: Mapping[bytes, bytes]) -> None:
    """Put the values of these rows into packs, as `write` does. Few values of a kind stay alone.

    The values of a pack begin with the same byte, so they are of one kind: who reads one, reads others.
    """
    longest = PACK_BYTES if len(set(map(room_of, values))) == 1 else SHARED_BYTES
    kinds: dict[bytes, dict[bytes, bytes]] = {}
    for key, value in values.items():
        kinds.setdefault(value[:1], {})[key] = value
    for same in kinds.values():
        rows = same.items()
        for some in batches_by_bytes(rows, lambda row: len(row[1]), most_bytes=longest, most=MOST_PACKED):
            if len(some) >= FEWEST_PACKED:
                write(connection, dict(some))


def write(connection: sqlite3.Connection, values: Mapping[bytes, bytes]) -> None:
    """Put the values of these rows, which are there, into a new pack. The connection has the write lock.

    StoreUnavailable, and the rows stay, if the pack cannot be read back.
    """
    body = _packed(list(values.values()))
    first = (connection.execute(_INSERT, (len(values), body)).lastrowid or 0) * MOST_PACKED
    # Not an UPDATE: that would leave the row's page as empty as it makes it.
    connection.executemany(_DELETE_ROW, zip(values))
    connection.executemany(_INSERT_ROW, zip(values, range(first, first + len(values)), strict=True))


def cut(connection: sqlite3.Connection, pack: int) -> None:
    """Cut the values of deleted rows out of a pack: they are empty then. A pack of no others goes.

    A damaged pack stays for `fsck`, as long as a row leads to it. The connection has the write lock.
    """
    places = pack * MOST_PACKED, pack * MOST_PACKED + MOST_PACKED - 1
    try:
        values = [value for row in connection.execute(READ, (pack,)) for value in values_in(*row)]
        for (place,) in connection.execute(_FREED_IN, places):
            if place - places[0] < len(values):
                values[place - places[0]] = b""
        if any(values):
            connection.execute(_UPDATE, (_packed(values), pack))
        else:
            connection.execute(_DELETE, (pack,))
    except ValueError:
        if not connection.execute(_USED, places).fetchall():
            connection.execute(_DELETE, (pack,))
    connection.execute(_FORGET, places)


def _packed(values: Sequence[bytes]) -> bytes:
    """The body of a pack of these values; StoreUnavailable if it cannot be read back."""
    content = struct.pack(f"<{len(values)}I", *map(len, values)) + b"".join(values)
    body = _zstd.compress(content)
    if _zstd.decompress(body) != content:
        raise StoreUnavailable("a pack differs from its values: test the memory of this machine")
    return body


def values_in(count: int, body: bytes) -> list[bytes]:
    """The values of a pack; ValueError if it is damaged."""
    try:
        if not 0 < zstandard.frame_content_size(body) <= _LONGEST_PACK:
            raise ValueError("it claims to be too long")
        content = _zstd.decompress(body)
        lengths = struct.unpack_from(f"<{count}I", content)
    except (ZstdError, TypeError, struct.error) as error:
        raise ValueError(str(error)) from error
    ends = accumulate(lengths, initial=4 * count)
    return [content[start:end] for start, end in pairwise(ends)]


def size_in_memory(values: Sequence[bytes]) -> int:
    """The bytes that the values of a pack take in memory."""
    return sum(map(len, values)) + _OBJECT_BYTES * len(values)


class _Zstd(threading.local):
    """The compressor and the decompressor of each thread: those of zstandard are not thread-safe."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=_LEVEL).compress
        self.decompress = zstandard.ZstdDecompressor().decompress


_zstd = _Zstd()
