"""A long byte stream as content-defined chunks under a Merkle index.

A stream of up to `BLOB_BYTES` is one blob. A longer one is cut by FastCDC (Xia et al., "The Design of
Fast Content-Defined Chunking for Data Deduplication Based Storage Systems", IEEE TPDS 2020) and the
chunks, each a blob, hang below a tree of index nodes. A node ends after an item whose id's last byte is
a multiple of 8, so nodes too are content-defined: an edit writes the chunks that it touched and one
node a level, and appending to a stream of n bytes writes O(log n).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from blake3 import blake3

from vstate.objects.canonical import decode, encode
from vstate.objects.ids import BLOB, ID_BYTES, INDEX, Link, NewObjects, Object, ObjectId

if TYPE_CHECKING:
    from pyfastcdc import FastCDC

BLOB_BYTES = 16 * 1024

MIB = 1024 * 1024

CHUNK_SIZES = ((8 * MIB, 1024), (64 * MIB, 16384), (None, 65536))
"""FastCDC's average chunk size for streams shorter than each bound, in bytes; part of the format.

Long streams take larger chunks so
that a value of gigabytes is not millions of rows; a stream that grows past a bound is stored anew once.
"""

SMALLEST = 4
LARGEST = 4
"""The smallest chunk is the average divided by `SMALLEST`, the largest the average times `LARGEST`."""

INDEX_FANOUT = 8
INDEX_LIMIT = 16 * INDEX_FANOUT

MAX_HEIGHT = 64
"""Since a node has two items or more, no index of a stream is higher."""

ReadMany = Callable[[Sequence[ObjectId]], Mapping[ObjectId, bytes]]
ReadSized = Callable[[Mapping[ObjectId, int]], Mapping[ObjectId, bytes]]


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks of one stream, in order: their ids and lengths in bytes; and its index nodes' ids."""

    ids: tuple[ObjectId, ...]
    lengths: tuple[int, ...]
    indexes: frozenset[ObjectId] = field(default=frozenset(), compare=False)

    @property
    def length(self) -> int:
        """The length of the stream in bytes."""
        return sum(self.lengths)


def chunk_size(length: int) -> int:
    """The average chunk size for a stream of this many bytes."""
    return next(size for bound, size in CHUNK_SIZES if bound is None or length < bound)


def split(data: bytes | memoryview, previous: Chunks | None = None) -> tuple[Link, Chunks, NewObjects]:
    """Cut a stream into objects: its link, its chunks, and the objects that `previous` does not hold.

    `previous` is a guess at what the stream looked like before; it saves time and never changes the
    result. Chunks that stand in it are taken to be stored already.
    """
    view = memoryview(data)
    length = view.nbytes
    if length <= BLOB_BYTES:
        body = bytes(data)
        oid = ObjectId.of(BLOB, body)
        known = previous is not None and oid in previous.ids
        return Link(oid, length), Chunks((oid,), (length,)), {} if known else {oid: Object(BLOB, body)}
    if previous is not None and (
        previous.length <= BLOB_BYTES or chunk_size(previous.length) != chunk_size(length)
    ):
        previous = None
    ids, lengths, objects = _cut(view, previous)
    root, indexes = _index(ids, lengths)
    known_indexes = previous.indexes if previous is not None else frozenset()
    objects.update({oid: node for oid, node in indexes.items() if oid not in known_indexes})
    return Link(root, length), Chunks(tuple(ids), tuple(lengths), frozenset(indexes)), objects


def _cut(view: memoryview, previous: Chunks | None) -> tuple[list[ObjectId], list[int], NewObjects]:
    # FastCDC decides on a cut from the bytes since the cut before it, at most the largest chunk's. So where a
    # chunk of the previous version stands unchanged after a cut, cutting again would end it at the same place,
    # and hashing it, at twice the speed, is enough. Close to the end of either version the end decides too:
    # there the chunks prove nothing.
    ids: list[ObjectId] = []
    lengths: list[int] = []
    objects: NewObjects = {}
    position = 0
    end = len(view)
    largest = LARGEST * chunk_size(end)
    old_ids = previous.ids if previous else ()
    old_lengths = previous.lengths if previous else ()
    stored = set(old_ids)
    sure = _sure(old_lengths, largest)
    places = {oid: i for i, oid in enumerate(old_ids[:sure])}
    expect = 0
    key = BLOB.key
    while position < end:
        first = expect
        while expect < sure and position + largest <= end:
            stop = position + old_lengths[expect]
            if blake3(view[position:stop], key=key).digest() != old_ids[expect]:
                break
            position = stop
            expect += 1
        ids += old_ids[first:expect]
        lengths += old_lengths[first:expect]
        for piece in _chunker(end).cut_buf(view[position:]):
            size = piece.length
            # Copied before it is hashed: another thread may write to the buffer in the meantime.
            body = bytes(view[position : position + size])
            oid = ObjectId.of(BLOB, body)
            ids.append(oid)
            lengths.append(size)
            if oid not in stored:
                objects[oid] = Object(BLOB, body)
            position += size
            if oid in places and position + largest <= end:
                expect = places[oid] + 1
                break
    return ids, lengths, objects


def _sure(lengths: Sequence[int], largest: int) -> int:
    """How many chunks from the first on were cut without the end of the stream having a say."""
    rest, number = 0, len(lengths)
    while number and rest + lengths[number - 1] < largest:
        number -= 1
        rest += lengths[number]
    return number


def _chunker(length: int) -> FastCDC:
    from pyfastcdc import FastCDC  # late, for a quick `import vstate`: only long streams need it

    average = chunk_size(length)
    return FastCDC(
        average, min_size=average // SMALLEST, max_size=average * LARGEST, normalized_chunking=1, seed=0
    )


def _index(ids: Sequence[ObjectId], lengths: Sequence[int]) -> tuple[ObjectId, NewObjects]:
    """The root of the index over the chunks, and all its nodes."""
    nodes: NewObjects = {}
    items = list(zip(ids, lengths, strict=True))
    height = 1
    while len(items) > 1:
        above: list[tuple[ObjectId, int]] = []
        for run in _runs(items):
            children, sizes = zip(*run, strict=True)
            body = encode([height, b"".join(children), sizes])
            oid = ObjectId.of(INDEX, body)
            nodes[oid] = Object(INDEX, body)
            above.append((oid, sum(sizes)))
        items = above
        height += 1
    return items[0][0], nodes


def _runs(items: Sequence[tuple[ObjectId, int]]) -> Iterable[Sequence[tuple[ObjectId, int]]]:
    begin = 0
    for i, (oid, _) in enumerate(items, start=1):
        # At least two items a node, so that each level is shorter than the one below it.
        if (oid[-1] % INDEX_FANOUT == 0 and i - begin > 1) or i - begin == INDEX_LIMIT:
            yield items[begin:i]
            begin = i
    if begin < len(items):
        yield items[begin:]


def is_single(link: Link) -> bool:
    """Whether the stream is one blob without an index."""
    return link.length <= BLOB_BYTES


def read_index(body: bytes) -> tuple[int, list[tuple[ObjectId, int]]]:
    """The height and the items (id, length in bytes) of an index node; ValueError if it is none."""
    try:
        height, joined, lengths = decode(body)
    except TypeError as error:
        raise ValueError(f"not an index node: {error}") from error
    shapes = (
        type(height) is int
        and 0 < height <= MAX_HEIGHT
        and type(joined) is bytes
        and type(lengths) is list
        and len(joined) == ID_BYTES * len(lengths) > 0
        and len(lengths) <= INDEX_LIMIT
        and all(type(size) is int and size > 0 for size in lengths)
    )
    if not shapes:
        raise ValueError("a malformed index node")
    ids = (ObjectId(joined[i : i + ID_BYTES]) for i in range(0, len(joined), ID_BYTES))
    return height, list(zip(ids, lengths, strict=True))


def read_chunks(read_indexes: ReadMany, link: Link) -> Chunks:
    """The chunks of a stored stream; one batch of reads a level. ValueError if lengths do not add up."""
    if is_single(link):
        return Chunks((link.id,), (link.length,))
    # Nodes that lead to one another twice over would name more chunks than there can be.
    most = link.length * SMALLEST // chunk_size(link.length) + 2
    items = [(link.id, link.length)]
    indexes: set[ObjectId] = set()
    height: int | None = None
    while height != 1:
        bodies = read_indexes([oid for oid, _ in items])
        indexes.update(bodies)
        below: list[tuple[ObjectId, int]] = []
        for oid, length in items:
            found, parts = read_index(bodies[oid])
            if height is not None and found != height - 1:
                raise ValueError(f"index node {oid} is at height {found}, not {height - 1}")
            if sum(size for _, size in parts) != length:
                raise ValueError(f"the parts of index node {oid} do not add up to {length} bytes")
            below += parts
            height_below = found
            if len(below) > most:
                raise ValueError(f"the index {link.id} has more than {most} items")
        height = height_below
        items = below
    return Chunks(tuple(oid for oid, _ in items), tuple(size for _, size in items), frozenset(indexes))


def join(read_blobs: ReadSized, chunks: Chunks, *, batch: int = 1024) -> bytearray:
    """The bytes of a stored stream, read `batch` chunks at a time. ValueError if a length is wrong.

    A bytearray, because an array loaded over it must be writable again.
    """
    data = bytearray(chunks.length)
    position = 0
    pairs = iter(zip(chunks.ids, chunks.lengths, strict=True))
    while part := list(islice(pairs, batch)):
        bodies = read_blobs(dict(part))
        for oid, size in part:
            if len(bodies[oid]) != size:
                raise ValueError(f"blob {oid} has {len(bodies[oid])} bytes, not {size}")
            data[position : position + size] = bodies[oid]
            position += size
    return data
