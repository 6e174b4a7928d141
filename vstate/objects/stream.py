"""A long byte stream as content-defined chunks under a Merkle index.

A stream of up to `BLOB_BYTES` is one blob. A longer one is cut by FastCDC (Xia et al., "The Design of
Fast Content-Defined Chunking for Data Deduplication Based Storage Systems", IEEE TPDS 2020) and the
chunks, each a blob, hang below a tree of index nodes. A node ends after an item whose id's last byte is
a multiple of 8, so nodes too are content-defined: an edit writes the chunks that it touched and one
node a level, and appending to a stream of n bytes writes O(log n).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

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

GROUP = 64
"""How many chunks in a row are compared with what they were by one hash: a call for each takes longer than hashing."""

MAX_HEIGHT = 64
"""Since a node has two items or more, no index of a stream is higher."""

ReadMany = Callable[[Sequence[ObjectId]], Mapping[ObjectId, bytes]]
ReadSized = Callable[[Mapping[ObjectId, int]], Mapping[ObjectId, bytes]]


class _Level(NamedTuple):
    """The index nodes of one height: their ids, the bytes below each, and where its items end among all one lower."""

    ids: tuple[ObjectId, ...] = ()
    lengths: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks of one stream, in order: their ids and lengths in bytes; and its index nodes' ids.

    The other two save time with the next version, as far as they are known: `levels` are the index nodes by height,
    and `prints` the hashes of the bytes of each `GROUP` of chunks, from the first on.
    """

    ids: tuple[ObjectId, ...]
    lengths: tuple[int, ...]
    indexes: frozenset[ObjectId] = field(default=frozenset(), compare=False)
    levels: tuple[_Level, ...] = field(default=(), compare=False, repr=False)
    prints: tuple[bytes, ...] = field(default=(), compare=False, repr=False)

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
    stored = previous.indexes if previous is not None else frozenset()
    if previous is not None and (
        previous.length <= BLOB_BYTES or chunk_size(previous.length) != chunk_size(length)
    ):
        stored = stored.union(previous.ids)
        previous = None
    prints = _unchanged(view, previous)
    unchanged = len(prints) * GROUP
    ids, lengths, objects = _cut(view, previous, unchanged)
    if previous is not None and ids[:unchanged] != previous.ids[:unchanged]:
        prints.pop()  # the last chunk of the last group ends elsewhere now
    # What others can write to has no hash that would stay true.
    if previous is not None and type(data) is bytes:
        prints += _prints(view, lengths, len(prints))
    levels, nodes = _index(ids, lengths, previous)
    objects = {oid: new for oid, new in (*objects.items(), *nodes.items()) if oid not in stored}
    indexes = frozenset[ObjectId]().union(*(level.ids for level in levels))
    return Link(levels[-1].ids[0], length), Chunks(ids, lengths, indexes, levels, tuple(prints)), objects


def _unchanged(view: memoryview, previous: Chunks | None) -> list[bytes]:
    """The prints of the groups of chunks that stand in the stream as they did, from the first on."""
    prints: list[bytes] = []
    if previous is None or not previous.prints:
        return prints
    position = 0
    # Not close to the end, which has a say in where a chunk ends: see `_cut`.
    most = len(view) - LARGEST * chunk_size(len(view))
    sure = _sure(previous.lengths, LARGEST * chunk_size(len(view)))
    for known in previous.prints[: sure // GROUP]:
        begin = len(prints) * GROUP
        stop = position + sum(previous.lengths[begin : begin + GROUP])
        if stop > most or blake3(view[position:stop]).digest() != known:
            break
        position = stop
        prints.append(known)
    return prints


def _prints(view: memoryview, lengths: Sequence[int], begin: int) -> Iterator[bytes]:
    """The hashes of the groups of chunks from the one with this number on, where chunks are as short as a call."""
    if chunk_size(len(view)) != CHUNK_SIZES[0][1]:
        return
    position = sum(lengths[: begin * GROUP])
    for first in range(begin * GROUP, len(lengths) - GROUP + 1, GROUP):
        stop = position + sum(lengths[first : first + GROUP])
        yield blake3(view[position:stop]).digest()
        position = stop


def _cut(
    view: memoryview, previous: Chunks | None, unchanged: int
) -> tuple[tuple[ObjectId, ...], tuple[int, ...], NewObjects]:
    """The ids and lengths of the chunks, and those that `previous` has not; the first ones are known to be `unchanged`."""
    # FastCDC decides on a cut from the bytes since the cut before it and the one byte behind it, together at most
    # the largest chunk's. So where two chunks of the previous version stand unchanged after a cut, cutting again
    # would end the first at the same place, and hashing it, at twice the speed, is enough; the last one of those
    # that do is cut again. Close to the end of either version the end decides too: there the chunks prove nothing.
    objects: NewObjects = {}
    end = len(view)
    largest = LARGEST * chunk_size(end)
    old_ids = previous.ids if previous else ()
    old_lengths = previous.lengths if previous else ()
    ids: list[ObjectId] = []
    lengths: list[int] = []
    position = sum(old_lengths[:unchanged])
    stored = set(old_ids)
    sure = _sure(old_lengths, largest)
    places: dict[ObjectId, int] | None = None
    first, expect = 0, unchanged
    key = BLOB.key
    while position < end:
        while expect < sure and position + largest <= end:
            stop = position + old_lengths[expect]
            if blake3(view[position:stop], key=key).digest() != old_ids[expect]:
                break
            position = stop
            expect += 1
        if expect > first:
            expect -= 1
            position -= old_lengths[expect]
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
            if oid in stored and position + largest <= end:
                if places is None:
                    places = {oid: i for i, oid in enumerate(old_ids[:sure])}
                if oid in places:
                    first = expect = places[oid] + 1
                    break
    return tuple(ids), tuple(lengths), objects


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


def _index(
    ids: tuple[ObjectId, ...], lengths: tuple[int, ...], previous: Chunks | None
) -> tuple[tuple[_Level, ...], NewObjects]:
    """The index over the chunks, by height, with the root as its last node, and the nodes that are new."""
    nodes: NewObjects = {}
    levels: list[_Level] = []
    before = [] if previous is None else [previous.ids, *(level.ids for level in previous.levels)]
    while len(ids) > 1:
        height = len(levels) + 1
        old = previous.levels[height - 1] if previous is not None and height < len(before) else _Level()
        # A node over the same items is the same, unless it ended with the stream.
        kept = bisect_right(old.ends[:-1], _alike(ids, before[height - 1])) if old.ends else 0
        own, sizes, ends = [*old.ids[:kept]], [*old.lengths[:kept]], [*old.ends[:kept]]
        begin = ends[-1] if ends else 0
        for end in _ends(ids, begin):
            body = encode([height, b"".join(ids[begin:end]), lengths[begin:end]])
            oid = ObjectId.of(INDEX, body)
            nodes[oid] = Object(INDEX, body)
            own.append(oid)
            sizes.append(sum(lengths[begin:end]))
            ends.append(end)
            begin = end
        levels.append(_Level(tuple(own), tuple(sizes), tuple(ends)))
        ids, lengths = levels[-1][:2]
    return tuple(levels), nodes


def _alike(a: tuple[ObjectId, ...], b: tuple[ObjectId, ...]) -> int:
    """With how many of the same items two sequences begin."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _ends(ids: Sequence[ObjectId], begin: int) -> Iterator[int]:
    """Where nodes over these items end, the first of which begins at `begin`."""
    for end in range(begin + 1, len(ids)):
        # At least two items a node, so that each level is shorter than the one below it.
        if (ids[end - 1][-1] % INDEX_FANOUT == 0 and end - begin > 1) or end - begin == INDEX_LIMIT:
            yield end
            begin = end
    if begin < len(ids):
        yield len(ids)


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
