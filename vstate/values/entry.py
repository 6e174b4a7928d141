"""Entry: the bytes that a tree stores for one key, and how a value becomes an entry.

An entry is `[ATOM, value]` for an atom, or else `[codec, payload, size, type]`. The payload of PICKLE is a
list of parts: the pickle, then its buffers. The payload of BYTES, TEXT and FILE is one part; the type of a
FILE is its kind. A small part is bytes in the entry; a longer one is a link `[id, length]` to a blob or a
stream. `size` is in bytes, over all parts. The entry of a key that expires has one element more: see
`vstate.objects.expiry`.
"""

from __future__ import annotations

import pickle
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

from vstate.errors import CannotLoad, CorruptObject
from vstate.objects.canonical import decode, encode
from vstate.objects.expiry import EXPIRING, Expiry, split_expiry
from vstate.objects.ids import BLOB, ID_BYTES, Link, NewObjects, ObjectId
from vstate.objects.stream import BLOB_BYTES, Chunks, is_single, join, read_chunks, split
from vstate.values.allow import Allow, loads_allowed
from vstate.values.definitions import Definition
from vstate.values.file import KINDS, File
from vstate.values.loading import load_any
from vstate.values.opcodes import EMPTY_SET, FROZENSET, frameless, may_hold
from vstate.values.pickle_errors import own_error
from vstate.values.pickling import Check, pickled, plain_pickle

ATOM, PICKLE, BYTES, TEXT, FILE = range(5)
_WITH_PARTS = (PICKLE, BYTES, TEXT, FILE)
_ATOMS = frozenset({type(None), bool, int, float, str, bytes})

ATOM_BYTES = 100
"""A str or bytes up to this long is an atom; a longer one is stored as it is, without pickle.

Part of the format, as is INLINE_BYTES: with another number, equal values would have other entries.
"""

INLINE_BYTES = 128
"""A part up to this long is in the entry; a longer one is an object, which equal values share."""

Part = bytes | Link

Dump = Callable[[Any], tuple[bytes, list[memoryview]]]
"""Pickles a value: a frameless pickle, and the buffers beside it."""


class Reader(Protocol):
    """Reads stored objects. Each method verifies the objects that it returns, or raises CorruptObject."""

    def blob(self, oid: ObjectId) -> bytes:
        """The body of this blob."""

    def blobs(self, sizes: Mapping[ObjectId, int]) -> Mapping[ObjectId, bytes | memoryview]:
        """The bodies of these blobs, which must have these lengths in bytes."""

    def indexes(self, ids: Sequence[ObjectId]) -> Mapping[ObjectId, bytes]:
        """The bodies of these index nodes."""


class Encoded(NamedTuple):
    """A value as an entry, its objects, the chunks of its parts (None for short ones), its size in bytes.

    `check` must load before the entry is stored; None if the value surely loads. `definitions` are the places
    of definitions of classes among the parts.
    """

    entry: bytes
    objects: NewObjects
    chunks: tuple[Chunks | None, ...]
    size: int
    check: Check | None = None
    definitions: frozenset[int] = frozenset()

    def checked(self) -> Encoded:
        """The same once the value was loaded; CannotLoad."""
        if self.check is None:
            return self
        self.check.load()
        return self._replace(check=None)  # it holds the pickle


class Decoded(NamedTuple):
    """A value read from an entry, the chunks of the entry's parts (None for short ones), its size in bytes.

    `unordered`: loading again may give another pickle. The value may hold sets, whose order a pickle shows
    and loading does not keep; or its objects got fields that they were not stored with.
    `names` are the classes and functions in its pickle.
    """

    value: Any
    chunks: tuple[Chunks | None, ...]
    size: int
    unordered: bool = False
    names: Sequence[str] = ()


class Entry(NamedTuple):
    """A decoded entry. For an ATOM, `value` is the atom and `parts` is empty; `expiry` is None for never.

    `raw` are the stored bytes without the expiry.
    """

    codec: int
    parts: tuple[Part, ...]
    size: int
    type: str
    value: Any = None
    expiry: Expiry | None = None
    raw: bytes = b""

    @classmethod
    def decode(cls, data: bytes) -> Entry:
        """The entry that `data` encodes; ValueError when it encodes none."""
        raw, expiry = split_expiry(data) if data[:1] in EXPIRING else (data, None)
        try:
            fields = decode(raw)
            if type(fields) is not list:
                raise ValueError("an entry is a list")
            if len(fields) == 2 and fields[0] == ATOM and type(fields[1]) in _ATOMS:
                return cls(ATOM, (), len(raw), type(fields[1]).__name__, fields[1], expiry, raw)
            codec, payload, size, name = fields
            parts: list[Part] = []
            total = 0
            for part in payload if codec == PICKLE else (payload,):
                if type(part) is not bytes:
                    oid, length = part
                    if (
                        type(oid) is not bytes
                        or len(oid) != ID_BYTES
                        or type(length) is not int
                        or length < 0
                    ):
                        raise ValueError("a malformed link")
                    part = Link(ObjectId(oid), length)
                    total += length
                else:
                    total += len(part)
                parts.append(part)
        except TypeError as error:
            raise ValueError(f"not an entry: {error}") from error
        if codec not in _WITH_PARTS or not parts or type(name) is not str:
            raise ValueError("a malformed entry")
        if codec == FILE and name not in KINDS:
            raise ValueError(f"a file of an unknown kind, {name!r}")
        if type(size) is not int or size != total:
            raise ValueError("the sizes of an entry's parts do not add up")
        return cls(codec, tuple(parts), size, name, None, expiry, raw)

    @property
    def links(self) -> Iterator[Link]:
        """The links to objects that the entry needs."""
        return (part for part in self.parts if isinstance(part, Link))


def parse_entry(key: str, data: bytes) -> Entry:
    """The decoded entry; CorruptObject, naming the key, if it cannot be decoded."""
    try:
        return Entry.decode(data)
    except ValueError as error:
        raise CorruptObject(data.hex()[:64], f"the entry of {key!r}: {error}") from error


_LONGEST_SHORT = 256  # bytes, the name of the class included
_SHORT_PICKLE = encode([PICKLE, [[bytes(ID_BYTES), 0]], 0, ""])[:6]  # all up to the id
_SHORT_PLAIN = {encode([codec, [bytes(ID_BYTES), 0], 0, ""])[:5]: codec for codec in (BYTES, TEXT)}


class OneBlobEntry(NamedTuple):
    """An entry whose value is one blob, and which does not expire, not decoded any further.

    Most values are stored so. Finding the blob takes a third of the time of `Entry.decode`.
    """

    codec: int
    raw: bytes
    id: ObjectId
    size: int

    @property
    def parts(self) -> tuple[Part, ...]:
        """The link to the blob, as an `Entry` has it."""
        return (Link(self.id, self.size),)

    @classmethod
    def find(cls, data: bytes) -> OneBlobEntry | None:
        """The entry that `data` encodes; None if it is another one, or malformed."""
        if data[:6] == _SHORT_PICKLE:
            codec, begin, end = PICKLE, 6, 38
        elif (found := _SHORT_PLAIN.get(data[:5])) is not None:
            codec, begin, end = found, 5, 37
        else:
            return None
        if len(data) <= _LONGEST_SHORT and (size := _short_length(data[end:])):
            return cls(codec, data, ObjectId(data[begin:end]), size)
        return None


@lru_cache(maxsize=4096)
def _short_length(end: bytes) -> int:
    """The length in the end of such an entry, after the id; 0 if the end is that of another entry."""
    try:
        length, size, name = decode(b"\x93" + end)  # an array of three
    except (TypeError, ValueError):
        return 0
    well_formed = type(length) is type(size) is int and length == size and type(name) is str
    return length if well_formed and 0 < length <= BLOB_BYTES else 0


_RECIPES = "vstate.values.recipes"  # not imported: it stands on this module


def type_name(value: Any) -> str:
    """The name of the value's class as entries hold it, `module.qualname`, without `builtins`."""
    kind = type(value)
    if kind.__module__ == _RECIPES and kind.__qualname__ == "Recipe":
        return str(value.label)  # it stands for an object
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


_ATOM_TYPES = frozenset({type(None), bool, float})


def encode_value(value: Any, previous: tuple[Chunks | None, ...] = (), dump: Dump | None = None) -> Encoded:
    """The value as an entry, and its objects without those that `previous` holds.

    `previous` are the chunks of the value that is stored under the same key: a guess that saves time. `dump`
    pickles, and its pickles are never loaded. Passes on every error of pickling; CannotLoad for a value that
    does not load.
    """
    encoded = encode_unchecked(value, previous, dump)
    return encoded if encoded.check is None else encoded.checked()


def encode_unchecked(
    value: Any, previous: tuple[Chunks | None, ...] = (), dump: Dump | None = None
) -> Encoded:
    """As `encode_value`, but the check whether the value loads is left to the caller."""
    kind = type(value)
    if kind in _ATOM_TYPES or (kind is int and -(2**63) <= value < 2**64):
        return _atom(value)
    if kind is bytes:
        if len(value) <= ATOM_BYTES:
            return _atom(value)
        return _encode_parts(BYTES, [value], "bytes", previous)
    if kind is str:
        try:
            data = value.encode()
        except UnicodeEncodeError:  # a lone surrogate, which pickle can store
            return _encode_pickle(value, previous, dump)
        if len(data) <= ATOM_BYTES:
            return _atom(value)
        return _encode_parts(TEXT, [data], "str", previous)
    if kind is File:
        return _encode_parts(FILE, [value.data], value.kind, previous)
    return _encode_pickle(value, previous, dump)


def _atom(value: Any) -> Encoded:
    entry = encode([ATOM, value])
    return Encoded(entry, {}, (), len(entry))


def _encode_pickle(value: Any, previous: tuple[Chunks | None, ...], dump: Dump | None) -> Encoded:
    if dump is not None:
        data, buffers = dump(value)
        check = None
    elif not (previous and previous[0]) and (short := plain_pickle(value)) is not None:
        data, buffers, check = short, [], None
    else:
        data, buffers, check = pickled(value)
    name, size = type_name(value), len(data)
    if size <= INLINE_BYTES and not buffers:
        entry = encode([PICKLE, [data], size, name])
        return Encoded(entry, {}, (None,), size, check)
    return _encode_parts(PICKLE, [data, *buffers], name, previous, check)


def _encode_parts(
    codec: int,
    parts: Sequence[bytes | memoryview],
    name: str,
    previous: tuple[Chunks | None, ...],
    check: Check | None = None,
) -> Encoded:
    objects: NewObjects = {}
    payload: list[Any] = []
    chunks: list[Chunks | None] = []
    size = 0
    together = _together(parts) if len(parts) > 2 else {}
    definitions: set[int] = set()
    for i, part in enumerate(parts):
        if type(part) is memoryview and isinstance(part.obj, Definition):
            definitions.add(i)
        length = len(part) if type(part) is bytes else memoryview(part).nbytes
        size += length
        if length <= INLINE_BYTES:
            payload.append(part if type(part) is bytes else bytes(part))
            chunks.append(None)
            continue
        link, cut, new = split(part, previous[i] if i < len(previous) else None, together=together.get(i, 0))
        payload.append(link)
        chunks.append(None if is_single(link) else cut)
        objects.update(new)
    # For one part, `split` has done this.
    if objects and (len(previous) > 1 or len(parts) > 1):
        for known in filter(None, previous):
            for oid in (*known.ids, *known.indexes):
                objects.pop(oid, None)
    entry = encode([codec, payload if codec == PICKLE else payload[0], size, name])
    return Encoded(entry, objects, tuple(chunks), size, check, frozenset(definitions))


def _together(parts: Sequence[bytes | memoryview]) -> dict[int, int]:
    """For each table among the parts, by its place: the bytes of all tables with columns like its own.

    pandas keeps columns as the rows of arrays, and assigning a column cuts its array in three. So the same
    columns come in arrays of other lengths, and must be cut into the same chunks there.
    """
    columns: dict[int, tuple[int, str]] = {}
    sums: dict[tuple[int, str], int] = {}
    for i, part in enumerate(parts):
        if type(part) is not memoryview or part.nbytes < BLOB_BYTES:
            continue
        array = memoryview(part.obj)
        rows = array.shape[0] if array.shape is not None and array.ndim == 2 else 0
        if rows and array.nbytes == part.nbytes and part.nbytes // rows >= BLOB_BYTES:
            column = columns[i] = part.nbytes // rows, array.format
            sums[column] = sums.get(column, 0) + part.nbytes
    return {i: sums[column] for i, column in columns.items()}


SHORT_PLAIN = 4096
"""Up to so many bytes of plain data are compared by `is_stored_plain`: if they differ, that time is lost."""


def is_stored_plain(value: Any, entry: bytes) -> bool:
    """Whether a value that was read from this entry, and was plain data, is still as stored.

    True is certain; False may be caution. Takes a fifth of the time of `encode_value`.
    """
    dump = partial(pickle.dumps, value, 5)
    try:
        data = frameless(dump())
    except Exception as error:  # the value is plain data no more, and code of a class may raise anything
        own_error(dump, error)
        return False
    short = OneBlobEntry.find(entry)
    if short is None:
        return encode([PICKLE, [data], len(data), type_name(value)]) == entry
    return short.size == len(data) and short.id == ObjectId.of(BLOB, data)


def decode_value(
    entry: Entry | OneBlobEntry, reader: Reader, *, allow: Allow | None = None, key: str | None = None
) -> Decoded:
    """The value of an entry. Unpickling runs the code that a pickle names: any, or only names in `allow`.

    Raises CorruptObject, or CannotLoad with the name of the class that cannot be loaded, and the key.
    """
    data: bytes | bytearray
    buffers: Sequence[bytearray]
    if isinstance(entry, OneBlobEntry):
        codec, _, oid, size = entry
        data, buffers, chunks = _read_blob(reader, oid, size), (), ONE_BLOB
    elif entry.codec == ATOM:
        return Decoded(entry.value, (), entry.size)
    else:
        codec, size = entry.codec, entry.size
        (data, *others), chunks = read_parts(entry, reader)
        buffers = list(map(_writable, others))
    if codec == PICKLE:
        names: list[str] = []
        try:
            if allow is None:
                value, evolved = load_any(data, buffers, names)
            else:
                value, evolved = loads_allowed(data, buffers, allow, names)
        except CannotLoad as error:
            raise CannotLoad(error.name, error.reason, key=key, called=error.called) from error
        sets = (EMPTY_SET in data or FROZENSET in data) and may_hold(data, EMPTY_SET, FROZENSET)
        return Decoded(value, chunks, size, evolved or sets, names)
    if codec == TEXT:
        try:
            return Decoded(str(data, "utf-8"), chunks, size)
        except UnicodeDecodeError as error:
            raise ValueError(f"a text entry is not UTF-8: {error}") from error
    if codec == FILE and isinstance(entry, Entry):
        return Decoded(File(bytes(data), entry.type), chunks, size)
    return Decoded(bytes(data), chunks, size)


ONE_BLOB: tuple[Chunks | None, ...] = (None,)
"""The chunks of a value in one blob."""


def _read_blob(reader: Reader, oid: ObjectId, length: int) -> bytes:
    return _sized(oid, reader.blob(oid), length)


def _sized(oid: ObjectId, body: bytes | memoryview, length: int) -> bytes:
    if len(body) != length:
        raise CorruptObject(str(oid), f"it has {len(body)} bytes, and a link to it says {length}")
    return bytes(body)


def read_parts(
    entry: Entry | OneBlobEntry, reader: Reader
) -> tuple[list[bytes | bytearray], tuple[Chunks | None, ...]]:
    """The bytes of each part of the entry, and the chunks of the long ones."""
    parts: list[bytes | bytearray] = []
    chunks: list[Chunks | None] = []
    for part in entry.parts:
        if isinstance(part, bytes):
            parts.append(part)
            chunks.append(None)
        elif (length := part.length) <= BLOB_BYTES:
            parts.append(_read_blob(reader, part.id, length))
            chunks.append(None)
        else:
            (cut,) = read_chunks(reader.indexes, [part])
            parts.append(join(reader.blobs, cut))
            chunks.append(cut)
    return parts, tuple(chunks)


def read_together(
    entries: Sequence[Entry | OneBlobEntry], reader: Reader
) -> Iterator[list[bytes | bytearray]]:
    """The bytes of the parts of each entry. One batch reads a level of all indexes, and one all blobs.

    Raises CorruptObject.
    """
    links = [part for entry in entries for part in entry.parts if isinstance(part, Link)]
    cuts = read_chunks(reader.indexes, links)
    bodies = reader.blobs({oid: size for cut in cuts for oid, size in zip(cut.ids, cut.lengths, strict=True)})
    joined = (
        join(lambda sizes: bodies, cut) if cut.indexes else _sized(cut.ids[0], bodies[cut.ids[0]], cut.length)
        for cut in cuts
    )
    for entry in entries:
        yield [part if isinstance(part, bytes) else next(joined) for part in entry.parts]


def read_range(part: Part, reader: Reader, start: int, stop: int) -> bytes:
    """The bytes [start, stop) of a part, from the chunks that hold them. Raises CorruptObject."""
    if isinstance(part, bytes):
        return part[start:stop]
    if is_single(part):
        return _read_blob(reader, part.id, part.length)[start:stop]
    (cut,) = read_chunks(reader.indexes, [part])
    ends = [*accumulate(cut.lengths)]
    first, last = bisect_right(ends, start), bisect_left(ends, stop) + 1
    data = join(reader.blobs, Chunks(cut.ids[first:last], cut.lengths[first:last]))
    begin = ends[first - 1] if first else 0
    return bytes(memoryview(data)[start - begin : stop - begin])


def entry_chunks(entry: Entry, reader: Reader) -> tuple[Chunks | None, ...]:
    """The chunks of the entry's parts (None for short ones), from the indexes alone. Raises CorruptObject."""
    cuts = iter(read_chunks(reader.indexes, [*entry.links]))
    read = (None if isinstance(part, bytes) else next(cuts) for part in entry.parts)
    return tuple(cut if cut and cut.indexes else None for cut in read)


def _writable(part: bytes | bytearray) -> bytearray:
    # An array over a read-only buffer would load as read-only. The pickle marks the buffers that were.
    return part if isinstance(part, bytearray) else bytearray(part)
