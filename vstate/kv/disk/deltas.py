"""Deltas: values that a Disk keeps as their difference from an earlier version.

The column `base` of a row says how its value is kept:

- NULL: as it is.
- 0: packed by itself.
- otherwise: as the difference from the value of the row with this rowid, which is packed too.

A packed value begins with one byte: a bit that says whether zstd packed it, and the number of its version in
seven bits. A value that is packed by itself has the number 0, the next one 1, and so on to 127. `base_of`
names the version that each one is based on, so 15 steps at the most lead to any value. The triggers in
`database.py` keep a base as long as a row needs it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import zstandard
from zstandard import ZstdError

from vstate.kv.base import Revised
from vstate.kv.packing import pack

if TYPE_CHECKING:
    import sqlite3

LONGEST_VALUE = 64 * 1024
"""The longest value that is packed. A row that claims to be longer is damaged."""

VERSIONS = 128
STEP = 8
"""10,000 rounds of a conversation take 14.9 MB with 8. They take 15.8 MB with 2 and at most 6 steps."""

ZLIB_BELOW = 4096
"""zlib takes a tenth of zstd's time for a delta of 2 KB, but twice the bytes for one of 10 KB."""

_BY_ZSTD = 0x80
_LEVEL = 1
_LEVEL_OF_ZLIB = 3
_WORTH_IT = 0.5
_MOST_KNOWN = 256

_PUT = "INSERT INTO kv (key, value, base) VALUES (?, ?, ?) ON CONFLICT (key) DO NOTHING"
_DELETE = "DELETE FROM kv WHERE rowid = ?"
_BY_KEY = "SELECT rowid, value, base FROM kv WHERE key = ?"
_BY_ROW = "SELECT rowid, value, base FROM kv WHERE rowid = ?"

LISTED = "(key < x'FF' OR length(key) = 33)"
"""Which rows are listed: texts, and objects (see `vstate/kv/packing.py`), not the rows that others need."""

CHAINS = (
    "WITH RECURSIVE needed(id) AS (SELECT rowid FROM kv WHERE key IN ({}) "
    "UNION SELECT base FROM needed JOIN kv ON kv.rowid = id WHERE base > 0) "
    "SELECT rowid, value, base, key FROM needed CROSS JOIN kv ON kv.rowid = id"
)
"""The rows of these keys, and all rows below them, as they are at one moment."""

Row = tuple[int, bytes, int | None]
"""The rowid, the value as it is kept, and the base."""


def base_of(version: int) -> int:
    """The number of the version on which this one is based: its last digit in octal that is not 0, less 1."""
    step = 1
    while version % (step * STEP) == 0:
        step *= STEP
    return version - step


class Damaged(ValueError):
    """A packed value cannot be unpacked."""


def unpack_value(packed: bytes, base: bytes = b"") -> bytes:
    """The value that is packed here; `base` is the value of its base. Raises Damaged."""
    try:
        head, body = packed[0], packed[1:]
        if head >= _BY_ZSTD:
            if not 0 <= zstandard.frame_content_size(body) <= LONGEST_VALUE:
                raise Damaged("it claims to be too long")
            dictionary = _dictionary(base) if head > _BY_ZSTD else None
            return zstandard.ZstdDecompressor(dict_data=dictionary).decompress(body)
        if not head:
            return body
        inflate = zlib.decompressobj(-zlib.MAX_WBITS, base)
        value = inflate.decompress(body, LONGEST_VALUE)
        if not inflate.eof:
            raise Damaged("it is not whole")
        return value
    except (IndexError, TypeError, zlib.error, ZstdError) as error:
        raise Damaged(str(error)) from error


def unpack_rows(rows: Iterable[Row]) -> dict[int, bytes]:
    """The values of these rows by rowid; their bases are among them. A damaged row gives its bytes."""
    kept = {row[0]: row for row in rows}
    values: dict[int, bytes] = {}
    for first in kept:
        chain = [first]
        while chain[-1] not in values and (base := kept[chain[-1]][2]) in kept and len(chain) < VERSIONS:
            chain.append(base)
        for rowid in reversed(chain):
            if rowid not in values:
                _, packed, base = kept[rowid]
                try:
                    values[rowid] = packed if base is None else unpack_value(packed, values.get(base, b""))
                except Damaged:
                    values[rowid] = packed
    return values


class Packer:
    """Writes the values of one transaction that have an earlier version. The write lock is held.

    `known` are values of packed rows that the last transaction of this connection knew.
    """

    def __init__(self, connection: sqlite3.Connection, known: tuple[int, dict[int, bytes]] | None) -> None:
        self._connection = connection
        self._known = known
        self._checked = False

    @property
    def known(self) -> tuple[int, dict[int, bytes]] | None:
        """The values that the next transaction may rely on, if this one is committed."""
        return self._known

    def forget(self) -> None:
        """Rows are deleted: rely on no rowid."""
        self._known, self._checked = None, False

    @property
    def _values(self) -> dict[int, bytes]:
        if self._known is None or not self._checked:
            # The commit of another connection changes the number. It may have deleted rows, and used rowids.
            (number,) = self._connection.execute("PRAGMA data_version").fetchone()
            if self._known is None or self._known[0] != number:
                self._known = number, {}
            self._checked = True
        return self._known[1]

    def read(self, key: bytes) -> bytes | None:
        """The value of a key."""
        row: Row | None = self._connection.execute(_BY_KEY, (key,)).fetchone()
        return None if row is None else self._read(row)

    def write(self, key: bytes, value: Revised) -> None:
        """Write a value that has an earlier version."""
        done = self._connection.execute(_PUT, (key, *self._packed(value, pack(value.before))))
        if not done.rowcount:
            row: Row = self._connection.execute(_BY_KEY, (key,)).fetchone()
            if self._read(row) == value:
                return
            self.forget()
            self._connection.execute(_DELETE, (row[0],))
            done = self._connection.execute(_PUT, (key, pack_value(value, 0), 0))
        if done.lastrowid is not None:
            self._remember(done.lastrowid, bytes(value))

    def _read(self, row: Row) -> bytes:
        try:
            return row[1] if row[2] is None else self._value(row)
        except Damaged:
            return row[1]

    def _packed(self, value: Revised, before: bytes) -> tuple[bytes, int]:
        row: Row | None = self._connection.execute(_BY_KEY, (before,)).fetchone()
        try:
            if row is not None and row[2] is not None and (version := _version(row) + 1) < VERSIONS:
                base = base_of(version)
                while row is not None and _version(row) > base:
                    row = self._base(row)
                if row is not None:
                    packed = pack_value(value, version, self._value(row))
                    if len(packed) < len(value) * _WORTH_IT:
                        return packed, row[0]
        except Damaged:
            pass  # the next version does not rely on it
        return pack_value(value, 0), 0

    def _base(self, row: Row) -> Row | None:
        found: Row | None = self._connection.execute(_BY_ROW, (row[2],)).fetchone()
        return found

    def _value(self, row: Row) -> bytes:
        chain: list[Row] = []
        below: Row | None = row
        while below is not None and below[0] not in self._values and len(chain) < VERSIONS:
            chain.append(below)
            below = self._base(below) if below[2] else None
        value = b"" if below is None else self._values.get(below[0], b"")
        for rowid, packed, _ in reversed(chain):
            value = unpack_value(packed, value)
            self._remember(rowid, value)
        return value

    def _remember(self, rowid: int, value: bytes) -> None:
        values = self._values
        values[rowid] = value
        while len(values) > _MOST_KNOWN:
            del values[next(iter(values))]


def pack_value(value: bytes, version: int, base: bytes = b"") -> bytes:
    """The packed form of a value, by itself or as the difference from `base`."""
    if version and len(value) < ZLIB_BELOW:
        deflate = zlib.compressobj(_LEVEL_OF_ZLIB, zlib.DEFLATED, -zlib.MAX_WBITS, zdict=base)
        return bytes([version]) + deflate.compress(value) + deflate.flush()
    dictionary = _dictionary(base) if version else None
    body = zstandard.ZstdCompressor(level=_LEVEL, dict_data=dictionary).compress(value)
    if not version and len(body) >= len(value) * 0.9:
        return b"\0" + value
    return bytes([_BY_ZSTD | version]) + body


def _version(row: Row) -> int:
    """The version that a packed row is."""
    try:
        return row[1][0] & (VERSIONS - 1)
    except (IndexError, TypeError) as error:
        raise Damaged(str(error)) from error


def _dictionary(base: bytes) -> zstandard.ZstdCompressionDict:
    return zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
