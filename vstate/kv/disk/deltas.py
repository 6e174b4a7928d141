"""Deltas: values that a Disk keeps as their difference from an earlier version.

The column `base` of a row says how its value is kept:

- NULL: as it is.
- 0: packed by itself.
- otherwise: as the difference from the value of the row with this rowid, which is packed too.

A packed value begins with one byte: a bit that says whether zstd packed it, and the number of its version in
seven bits. A value that is packed by itself has the number 0, the next one 1, and so on to 120. The multiples
of 11 are *marks*: each is based on the mark before it, and any other version on the version before it. So 20
steps at the most lead to any value. When a value stops growing, it becomes a mark, to which the older
versions refer. The triggers in `database.py` keep a base as long as a row needs it.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import zstandard
from zstandard import ZstdError

from vstate.kv.base import Revised
from vstate.kv.packing import pack

if TYPE_CHECKING:
    import sqlite3

LONGEST_VALUE = 64 * 1024
"""The longest value that is packed. A row that claims to be longer is damaged."""

STEP = 11
VERSIONS = STEP * STEP
"""10,000 rounds of a conversation take 14.9 MB. With steps of 2, at most 6 of them, they take 15.8 MB."""

ZLIB_BELOW = 4096
"""zlib takes a tenth of zstd's time for a delta of 2 KB, but twice the bytes for one of 10 KB."""

_BY_ZSTD = 0x80
_LEVEL = 5
_LEVEL_OF_ZLIB = 9
"""10,000 rounds of a conversation take 40 KB less than at level 6, and a delta 1 µs more."""
_WORTH_IT = 0.5
_MOST_KNOWN = 256
_CLOSING = 8
"""So many bytes at the end of a pickled list may be others in the same list with more items."""

_PUT = "INSERT INTO kv (key, value, base) VALUES (?, ?, ?) ON CONFLICT (key) DO NOTHING"
_DELETE = "DELETE FROM kv WHERE key = ?"
_PACKED_ROW = "SELECT rowid FROM kv WHERE key = ? AND base IS NOT NULL"
BY_KEY = "SELECT rowid, value, base FROM kv WHERE key = ?"
_BY_ROW = "SELECT rowid, value, base FROM kv WHERE rowid = ?"

_SIZE = "SELECT sum(length(value)) FROM kv WHERE rowid IN ({})"
_UNBASE = "UPDATE kv SET base = NULL WHERE rowid IN ({})"
_REPACK = "UPDATE kv SET value = ?, base = ? WHERE rowid = ?"

LISTED = "(key < x'FF' OR length(key) = 33)"
"""Which rows are listed: texts, and objects (see `vstate/kv/packing.py`). The others only serve as bases."""

_RELEASE = (
    f"DELETE FROM kv WHERE rowid IN ({{}}) AND NOT {LISTED} "
    "AND NOT EXISTS (SELECT 1 FROM kv AS other WHERE other.base = kv.rowid AND other.base > 0)"
)

CHAINS = (
    "WITH RECURSIVE needed(place) AS (SELECT rowid FROM kv WHERE key IN ({}) "
    "UNION SELECT base FROM needed JOIN kv ON kv.rowid = place WHERE base > 0) "
    "SELECT rowid, value, base, key FROM needed CROSS JOIN kv ON kv.rowid = place"
)
"""The rows of these keys, and all rows below them, as they are at one moment."""

Row = tuple[int, bytes, int | None]
"""The rowid, the value as it is kept, and the base."""


class Damaged(ValueError):
    """A packed value cannot be unpacked."""


def unpack_value(packed: bytes, base: bytes = b"") -> bytes:
    """The value that is packed here; `base` is the value of its base. Raises Damaged."""
    try:
        head, body = packed[0], packed[1:]
        if head >= _BY_ZSTD:
            if not 0 <= zstandard.frame_content_size(body) <= LONGEST_VALUE:
                raise Damaged("it claims to be too long")
            if head == _BY_ZSTD:
                return _zstd.decompress(body)
            return zstandard.ZstdDecompressor(dict_data=_dictionary(base)).decompress(body)
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
    values: dict[int, bytes | None] = {}
    for first in kept:
        chain = [first]
        while chain[-1] not in values and (base := kept[chain[-1]][2]) in kept and len(chain) < VERSIONS:
            chain.append(base)
        for rowid in reversed(chain):
            if rowid not in values:
                _, packed, base = kept[rowid]
                below = values.get(base) if base else b""
                try:
                    values[rowid] = packed if base is None else None
                    if base is not None and below is not None:
                        values[rowid] = unpack_value(packed, below)
                except Damaged:
                    pass
    return {rowid: kept[rowid][1] if value is None else value for rowid, value in values.items()}


class Version(NamedTuple):
    """A packed row: the number of the version, the rowid of its base, and its value."""

    number: int
    base: int
    value: bytes


class Known:
    """Packed rows that a connection knows after a transaction, by rowid, and the rowids of some keys.

    `data_version` changes with each commit of another connection. That one may have deleted rows, and may
    have used their rowids again, so nothing of this is true any more.
    """

    def __init__(self, data_version: int) -> None:
        self.data_version = data_version
        self.rows: dict[int, Version] = {}
        self.rowids: dict[bytes, int] = {}

    def remember(self, rowid: int, version: Version, key: bytes | None = None) -> None:
        self.rows[rowid] = version
        if key is not None:
            self.rowids[key] = rowid
        while len(self.rows) > _MOST_KNOWN:
            del self.rows[next(iter(self.rows))]
        while len(self.rowids) > _MOST_KNOWN:
            del self.rowids[next(iter(self.rowids))]


class Unpacker:
    """Reads packed rows through one connection, which no other thread uses meanwhile."""

    def __init__(self, connection: sqlite3.Connection, known: Known | None) -> None:
        self._connection = connection
        self.known = known
        """The rows that the next reader, or the next transaction if this one is committed, may rely on."""
        self._checked = False

    def value(self, rowid: int) -> bytes:
        """The value of a packed row. Raises Damaged, perhaps for a good row if another connection writes."""
        return self._version(rowid).value

    def is_current(self) -> bool:
        """Whether no other connection has written since the first packed row was read."""
        return self.known is None or self.known.data_version == self._data_version()

    def _data_version(self) -> int:
        ((number,),) = self._connection.execute("PRAGMA data_version").fetchall()
        return int(number)

    def _rows(self) -> Known:
        if self.known is None or not self._checked:
            data_version = self._data_version()
            if self.known is None or self.known.data_version != data_version:
                self.known = Known(data_version)
            self._checked = True
        return self.known

    def _version(self, rowid: int) -> Version:
        """A packed row. Raises Damaged."""
        known = self._rows()
        if rowid in known.rows:
            return known.rows[rowid]
        chain: list[Row] = []
        below = rowid
        while below and below not in known.rows and len(chain) < VERSIONS:
            row: Row | None = self._connection.execute(_BY_ROW, (below,)).fetchone()
            if row is None or row[2] is None:
                raise Damaged("its base is missing")
            chain.append(row)
            below = row[2]
        value = known.rows[below].value if below in known.rows else b""
        for below, packed, base in reversed(chain):
            value = unpack_value(packed, value)
            known.remember(below, Version(packed[0] & 0x7F, base or 0, value))
        return known.rows[rowid]


class Packer(Unpacker):
    """Writes the values of one transaction that have an earlier version. The write lock is held."""

    def forget(self) -> None:
        """Rows are deleted or replaced: rely on none."""
        self.known = None

    def forget_if_known(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """These keys are set to plain values: rely on no row if one of them is known."""
        if self.known is not None and not self.known.rowids.keys().isdisjoint(dict(rows)):
            self.forget()

    def holds(self, key: bytes, value: bytes | None) -> bool:
        """Whether this is the value of the key; a damaged row has its bytes as its value, as in a read."""
        for rowid, kept, base in self._connection.execute(BY_KEY, (key,)).fetchall():
            try:
                return bool((kept if base is None else self.value(rowid)) == value)
            except Damaged:
                return bool(kept == value)
        return value is None

    def write(self, key: bytes, value: Revised) -> None:
        """Write a value that has an earlier version."""
        number, base, packed = self._packed(value, pack(value.before))
        done = self._connection.execute(_PUT, (key, packed, base))
        if not done.rowcount:
            if self.holds(key, value):
                return
            self.forget()
            self._connection.execute(_DELETE, (key,))
            number = base = 0
            done = self._connection.execute(_PUT, (key, pack_value(value, 0), 0))
        if done.lastrowid is not None:
            self._rows().remember(done.lastrowid, Version(number, base, bytes(value)), key)

    def _packed(self, value: Revised, before: bytes) -> tuple[int, int, bytes]:
        """The number of the version, its base, and the packed value."""
        try:
            rowid = self._rows().rowids.get(before) or self._packed_row(before)
            if rowid is not None:
                if len(value) < len(self._version(rowid).value):
                    self._turn(rowid)
                version = self._version(rowid)
                number = version.number + 1
                if not number % STEP:
                    rowid, version = self._mark(rowid)
                    number = version.number + STEP
                if number < VERSIONS:
                    packed = pack_value(value, number, version.value)
                    if len(packed) < len(value) * _WORTH_IT:
                        return number, rowid, packed
        except Damaged:
            pass  # the next version does not rely on it
        return 0, 0, pack_value(value, 0)

    def _mark(self, rowid: int) -> tuple[int, Version]:
        """This row if it is a mark, or the nearest one below it. A mark never moves."""
        while (version := self._version(rowid)).number % STEP:
            rowid = version.base
        return rowid, version

    def _turn(self, last: int) -> None:
        """Make this row a mark, and base those below it on it whose values are its beginning.

        Its growth is over. Readers of the last value need fewer rows then. Does nothing if it took more room.
        """
        whole = version = self._version(last)
        grown: dict[int, bytes] = {}
        below = version.base
        while version.number % STEP:
            below, version = version.base, self._version(version.base)
            if not version.number % STEP or not whole.value.startswith(version.value[:-_CLOSING]):
                break
            grown[below] = version.value
        if not grown:
            return
        base, before = self._mark(last)
        number = (before.number + STEP) % VERSIONS
        if not number:
            base, before = 0, Version(0, 0, b"")
        compress = zstandard.ZstdCompressor(level=1, dict_data=_dictionary(whole.value)).compress
        head = bytes([_BY_ZSTD | number + 1])
        rows = [(head + compress(value), last, rowid) for rowid, value in grown.items()]
        # The row that gets longer comes last: SQLite gives it the room of the others.
        rows.append((pack_value(whole.value, number, before.value), base, last))
        places = [*grown, last]
        marks = ",".join("?" * len(places))
        ((size,),) = self._connection.execute(_SIZE.format(marks), places).fetchall()
        if number and sum(len(packed) for packed, _, _ in rows) > size:
            return
        # A trigger would copy a row that has a base, and whose value changes.
        self._connection.execute(_UNBASE.format(marks), places)
        self._connection.executemany(_REPACK, rows)
        known = self._rows()
        if self._connection.execute(_RELEASE.format(marks), [*grown, below]).rowcount:
            known.rows.clear()  # SQLite may use the rowids again
        for rowid, value in grown.items():
            known.remember(rowid, Version(number + 1, last, value))
        known.remember(last, Version(number, base, whole.value))

    def _packed_row(self, key: bytes) -> int | None:
        """The rowid of the key, if its value is packed."""
        found: list[tuple[int | None]] = self._connection.execute(_PACKED_ROW, (key,)).fetchall()
        return found[0][0] if found else None


def pack_value(value: bytes, version: int, base: bytes = b"") -> bytes:
    """The packed form of a value, by itself or as the difference from `base`."""
    if version and len(value) < ZLIB_BELOW:
        deflate = zlib.compressobj(_LEVEL_OF_ZLIB, zlib.DEFLATED, -zlib.MAX_WBITS, zdict=base)
        return bytes([version]) + deflate.compress(value) + deflate.flush()
    if version:
        body = zstandard.ZstdCompressor(level=_LEVEL, dict_data=_dictionary(base)).compress(value)
    else:
        body = _zstd.compress(value)
        if len(body) >= len(value) * 0.9:
            return b"\0" + value
    return bytes([_BY_ZSTD | version]) + body


class _Zstd(threading.local):
    """The compressor and the decompressor of each thread: those of zstandard are not thread-safe."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=_LEVEL).compress
        self.decompress = zstandard.ZstdDecompressor().decompress


_zstd = _Zstd()


def _dictionary(base: bytes) -> zstandard.ZstdCompressionDict:
    return zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
