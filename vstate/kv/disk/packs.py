"""Packs: values of objects that are seldom read, compressed together.

A pack is a row of the table `packs`. A packed value's own row in `kv` has an integer instead of bytes, the
*place*: the id of the pack, and the number of the value in the pack. An id is never used again, and a pack
never changes. So a place means the same value for ever, and a pack in memory is never stale.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

import zstandard
from zstandard import ZstdError

from vstate.errors import StoreUnavailable
from vstate.kv.base import batches_by_bytes

if TYPE_CHECKING:
    import sqlite3

PACK_BYTES = 1024 * 1024
"""The most bytes of the values of a pack. Part of the format: a reader refuses a much longer pack.

Of 6.9 MB of rounds, packs of 64 KB leave 1.21 MB, of 256 KB 0.50, of 1 MB 0.33. But to read one value takes
the whole pack: 0.5 ms.
"""

MOST_PACKED = 4096
"""The most values of a pack. Part of the format: each place counts by it."""

FEWEST_PACKED = 8
"""So few values gain nothing by a pack."""

LONGEST_PACKED = 16 * 1024 + 1
"""A longer value stays alone: reading it takes longer than finding it. Part of the format, as PACK_BYTES is.

The number is that of a blob of a stream, `BLOB_BYTES`, and its kind.
"""

MOST_KEPT = 4
"""The packs that a store keeps in memory, unpacked."""

CREATE = (
    "CREATE TABLE packs (id INTEGER PRIMARY KEY AUTOINCREMENT, count INTEGER NOT NULL, body BLOB NOT NULL)"
)

READ = "SELECT count, body FROM packs WHERE id = ?"

LOOSE = f"typeof(value) = 'blob' AND length(value) <= {LONGEST_PACKED}"

PARTLY_USED = f"""
    SELECT packs.id FROM packs
    LEFT JOIN (
        SELECT value / {MOST_PACKED} AS id, count(*) AS used FROM kv
        WHERE typeof(value) = 'integer' GROUP BY 1
    ) AS places ON places.id = packs.id
    WHERE used IS NOT packs.count
"""
"""The packs that hold a value to which no place leads any more."""

PLACES = f"SELECT key, value FROM kv WHERE typeof(value) = 'integer' AND value / {MOST_PACKED} IN ({{}})"

_INSERT = "INSERT INTO packs (count, body) VALUES (?, ?)"
DELETE = "DELETE FROM packs WHERE id = ?"
_DELETE_ROW = "DELETE FROM kv WHERE key = ?"
_INSERT_ROW = "INSERT INTO kv (key, value) VALUES (?, ?)"

_LEVEL = 3
_LONGEST_PACK = PACK_BYTES + LONGEST_PACKED + 4 * MOST_PACKED


def write_all(connection: sqlite3.Connection, values: Mapping[bytes, bytes]) -> None:
    """Put the values of these rows into packs, as `write` does. Few values of a kind stay alone.

    The values of a pack begin with the same byte, so they are of one kind: who reads one, reads others.
    """
    kinds: dict[bytes, dict[bytes, bytes]] = {}
    for key, value in values.items():
        kinds.setdefault(value[:1], {})[key] = value
    for same in kinds.values():
        rows = same.items()
        for some in batches_by_bytes(rows, lambda row: len(row[1]), most_bytes=PACK_BYTES, most=MOST_PACKED):
            if len(some) >= FEWEST_PACKED:
                write(connection, dict(some))


def write(connection: sqlite3.Connection, values: Mapping[bytes, bytes]) -> None:
    """Put the values of these rows, which are there, into a new pack. The connection has the write lock.

    StoreUnavailable, and the rows stay, if the pack cannot be read back.
    """
    lengths = struct.pack(f"<{len(values)}I", *map(len, values.values()))
    body = _zstd.compress(lengths + b"".join(values.values()))
    if values_in(len(values), body) != list(values.values()):
        raise StoreUnavailable("a pack differs from its values: test the memory of this machine")
    first = (connection.execute(_INSERT, (len(values), body)).lastrowid or 0) * MOST_PACKED
    # Not an UPDATE: that would leave the row's page as empty as it makes it.
    connection.executemany(_DELETE_ROW, zip(values))
    connection.executemany(_INSERT_ROW, zip(values, range(first, first + len(values)), strict=True))


def values_in(count: int, body: bytes) -> list[bytes]:
    """The values of a pack; ValueError if it is damaged."""
    try:
        if not 0 < zstandard.frame_content_size(body) <= _LONGEST_PACK:
            raise ValueError("it claims to be too long")
        content = _zstd.decompress(body)
        values, end = [], 4 * count
        for length in struct.unpack_from(f"<{count}I", content):
            values.append(content[end : end + length])
            end += length
    except (ZstdError, TypeError, struct.error) as error:
        raise ValueError(str(error)) from error
    return values


class _Zstd(threading.local):
    """The compressor and the decompressor of each thread: those of zstandard are not thread-safe."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=_LEVEL).compress
        self.decompress = zstandard.ZstdDecompressor().decompress


_zstd = _Zstd()
