"""A long byte stream as content-defined chunks under a Merkle index.

A stream of up to `BLOB_BYTES` is one blob. FastCDC cuts a longer one (Xia et al., "The Design of Fast
Content-Defined Chunking for Data Deduplication Based Storage Systems", IEEE TPDS 2020). The chunks, each a
blob, hang below a tree of index nodes. A node ends after an item whose id's last byte is a multiple of 8,
so content defines the nodes too. An edit writes the chunks that it touches and one node a level, and an
append to a stream of n bytes writes O(log n).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from blake3 import blake3

from vstate.errors import CorruptObject
from vstate.objects.canonical import decode, encode
from vstate.objects.ids import BLOB, ID_BYTES, INDEX, Link, NewObjects, Object, ObjectId
from vstate.plural import counted

if TYPE_CHECKING:
    from pyfastcdc import FastCDC

BLOB_BYTES = 16 * 1024
"""The longest stream that is one blob; part of the format."""

MIB = 1024 * 1024

CHUNK_SIZES = ((8 * MIB, 1024), (64 * MIB, 16384), (None, 65536))
"""FastCDC's average chunk size for streams shorter than each bound, in bytes; part of the format.

Long streams have larger chunks, so that a value of gigabytes is not millions of rows. A stream that grows
past a bound is stored anew once.
"""

SMALLEST = 4
LARGEST = 4
"""The smallest chunk is the average divided by `SMALLEST`, the largest the average times `LARGEST`; part of
the format."""

INDEX_FANOUT = 8
INDEX_LIMIT = 16 * INDEX_FANOUT
"""The items of an index node: 8 on average, 128 at the most; part of the format."""

JOIN_BYTES = 2 * MIB
"""How many bytes of chunks one call reads: 32 chunks of a long value, as many as S3 reads at once."""

BLOCK_BYTES = 64 * 1024
"""How many bytes one hash compares with the old ones: a call for each chunk costs more than hashing. BLAKE3
hashes whole powers of two at its full speed, and takes a quarter longer for other lengths of this size."""

MAX_HEIGHT = 64
"""No index is higher, since each node has two items or more."""

_LETTER = BLOB.code.encode()

ReadMany = Callable[[Sequence[ObjectId]], Mapping[ObjectId, bytes]]
ReadSized = Callable[[Mapping[ObjectId, int]], Mapping[ObjectId, bytes | memoryview]]


class Print(NamedTuple):
    """The hash of one block of a stream; how many chunks end before the block does, and where the last ends.

    Those chunks stand wherever the stream's bytes up to the end of the block do.
    """

    digest: bytes
    chunks: int
    position: int


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks of one stream, in order: their ids, their lengths in bytes, and the ids of the index nodes.

    The others save time with the next version and may be empty. `prints` are the hashes of blocks of
    `BLOCK_BYTES`, from the first on. `average` is the size with which the stream was cut. `nodes` are the
    index nodes by their items. They never come from a store, where a forged node may have other lengths.
    """

    ids: tuple[ObjectId, ...]
    lengths: tuple[int, ...]
    indexes: frozenset[ObjectId] = field(default=frozenset(), compare=False)
    prints: tuple[Print, ...] = field(default=(), compare=False, repr=False)
    average: int | None = field(default=None, compare=False, repr=False)
    nodes: Mapping[tuple[ObjectId, ...], ObjectId] = field(default_factory=dict, compare=False, repr=False)

    @property
    def length(self) -> int:
        """The length of the stream in bytes."""
        return sum(self.lengths)


def chunk_size(length: int) -> int:
    """The average chunk size for a stream of this many bytes."""
    return next(size for bound, size in CHUNK_SIZES if bound is None or length < bound)


def _average(chunks: Chunks) -> int | None:
    """The average chunk size with which the stream was cut; None if its chunks do not tell."""
    if chunks.average is not None:
        return chunks.average
    lengths = chunks.lengths[:-1]  # the last one may have any length
    fitting = [
        size
        for _, size in CHUNK_SIZES
        if lengths and size // SMALLEST <= min(lengths) and max(lengths) <= size * LARGEST
    ]
    usual = chunk_size(chunks.length)
    if usual in fitting:  # a stream of zeros has chunks that fit two of the sizes
        return usual
    return fitting[0] if len(fitting) == 1 else None


def split(
    data: bytes | memoryview, previous: Chunks | None = None, *, together: int = 0
) -> tuple[Link, Chunks, NewObjects]:
    """Cut a stream into objects: its link, its chunks, and the objects that `previous` does not hold.

    `previous` is a guess at the earlier version of the stream. It saves time and never changes the link.
    Its chunks count as stored. `together` is the length of all streams among which the same data may move:
    they are cut as one stream of that length would be.
    """
    view = memoryview(data)
    length = view.nbytes
    if length <= BLOB_BYTES:
        body = bytes(data)
        oid = ObjectId.of(BLOB, body)
        known = previous is not None and oid in previous.ids
        return Link(oid, length), Chunks((oid,), (length,)), {} if known else {oid: Object(BLOB, body)}
    average = chunk_size(max(length, together))
    if length <= LARGEST * average:
        average = chunk_size(length)
    stored, made = (previous.indexes, previous.nodes) if previous is not None else (frozenset(), {})
    if previous is not None and (len(previous.ids) < 2 or _average(previous) != average):
        stored = stored.union(previous.ids)
        previous = None
    prints = _unchanged(view, previous, average)
    ids, lengths, objects = _cut(view, previous, prints[-1] if prints else _START, average)
    # Only of bytes: another thread may write to any other buffer after it was hashed.
    if previous is not None and type(data) is bytes:
        prints += _prints(view, lengths, prints, average)
    root, nodes, above = _index(ids, lengths, made)
    objects = {oid: new for oid, new in (*objects.items(), *above.items()) if oid not in stored}
    chunks = Chunks(ids, lengths, frozenset(nodes.values()), tuple(prints), average, nodes)
    return Link(root, length), chunks, objects


def _unchanged(view: memoryview, previous: Chunks | None, average: int) -> list[Print]:
    """The prints of the leading blocks whose chunks are the same in this version."""
    prints: list[Print] = []
    if previous is None or not previous.prints:
        return prints
    # Near the end of the stream, the end too decides where a chunk ends: see `_cut`.
    most = len(view) - LARGEST * average
    sure = _sure(previous.lengths, LARGEST * average)
    for begin, known in zip(range(0, len(view), BLOCK_BYTES), previous.prints, strict=False):
        if known.chunks > sure or known.position > most:
            break
        if blake3(view[begin : begin + BLOCK_BYTES]).digest() != known.digest:
            break
        prints.append(known)
    return prints


def _prints(
    view: memoryview, lengths: Sequence[int], known: Sequence[Print], average: int
) -> Iterator[Print]:
    """The prints of the whole blocks behind the known ones; none for long chunks, where they save no time."""
    if average != CHUNK_SIZES[0][1]:
        return
    _, number, position = known[-1] if known else _START
    for begin in range(len(known) * BLOCK_BYTES, len(view) - BLOCK_BYTES + 1, BLOCK_BYTES):
        end = begin + BLOCK_BYTES
        # The byte behind a chunk helps to decide the chunk's end, so the byte is in the block too.
        while number < len(lengths) and position + lengths[number] < end:
            position += lengths[number]
            number += 1
        yield Print(blake3(view[begin:end]).digest(), number, position)


_START = Print(b"", 0, 0)


def _cut(
    view: memoryview, previous: Chunks | None, unchanged: Print, average: int
) -> tuple[tuple[ObjectId, ...], tuple[int, ...], NewObjects]:
    """The ids and lengths of the chunks, and the objects that `previous` lacks.

    All chunks up to the print `unchanged` are known to be those of `previous`.
    """
    # FastCDC finds a cut from the bytes since the last cut and one byte more, together at most the largest
    # chunk. So if two old chunks in a row stand unchanged after a cut, cutting again would end the first one
    # at the same place. Hashing it proves that, at twice the speed of cutting. The last chunk that is hashed
    # is cut again. Near the end of either version the end decides too, so the old chunks there prove nothing.
    objects: NewObjects = {}
    end = len(view)
    largest = LARGEST * average
    old_ids = previous.ids if previous else ()
    old_lengths = previous.lengths if previous else ()
    _, known, position = unchanged
    ids, lengths = [*old_ids[:known]], [*old_lengths[:known]]
    stored = set(old_ids)
    sure = _sure(old_lengths, largest)
    places: dict[ObjectId, int] | None = None
    first = expect = known
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
        for piece in _chunker(average).cut_buf(view[position:]):
            size = piece.length
            oid, new = _blob(view[position : position + size])
            ids.append(oid)
            lengths.append(size)
            if oid not in stored:
                objects[oid] = new
            position += size
            if oid in stored and position + largest <= end:
                if places is None:
                    places = {oid: i for i, oid in enumerate(old_ids[:sure])}
                if oid in places:
                    first = expect = places[oid] + 1
                    break
    return tuple(ids), tuple(lengths), objects


def _blob(chunk: memoryview) -> tuple[ObjectId, Object]:
    """A chunk as an object, with its id."""
    # Copied before it is hashed: another thread may write to the buffer. The copy begins with the letter of
    # the stored form, so that writing it needs no second copy.
    plain = _LETTER + chunk
    body = memoryview(plain)[1:]
    return ObjectId.of(BLOB, body), Object(BLOB, body)


def _sure(lengths: Sequence[int], largest: int) -> int:
    """How many leading chunks were cut without a look at the end of the stream."""
    rest, number = 0, len(lengths)
    while number and rest + lengths[number - 1] < largest:
        number -= 1
        rest += lengths[number]
    return number


def _chunker(average: int) -> FastCDC:
    from pyfastcdc import FastCDC  # late: only long streams need it, and `import vstate` stays quick

    return FastCDC(
        average, min_size=average // SMALLEST, max_size=average * LARGEST, normalized_chunking=1, seed=0
    )


def _index(
    ids: tuple[ObjectId, ...], lengths: tuple[int, ...], made: Mapping[tuple[ObjectId, ...], ObjectId]
) -> tuple[ObjectId, dict[tuple[ObjectId, ...], ObjectId], NewObjects]:
    """The index over the chunks: its root, all its nodes by their items, and those not made before."""
    nodes: dict[tuple[ObjectId, ...], ObjectId] = {}
    objects: NewObjects = {}
    height = 0
    while len(ids) > 1:
        height += 1
        above: list[ObjectId] = []
        sizes: list[int] = []
        begin = 0
        for end in _ends(ids):
            items = ids[begin:end]
            if (oid := made.get(items)) is None:
                body = encode([height, b"".join(items), lengths[begin:end]])
                oid = ObjectId.of(INDEX, body)
                objects[oid] = Object(INDEX, body)
            nodes[items] = oid
            above.append(oid)
            sizes.append(sum(lengths[begin:end]))
            begin = end
        ids, lengths = tuple(above), tuple(sizes)
    return ids[0], nodes, objects


def _ends(ids: Sequence[ObjectId]) -> Iterator[int]:
    """The ends of the nodes over these items."""
    begin = 0
    for end in range(1, len(ids)):
        # A node has two items or more, so each level is shorter than the one below.
        if (ids[end - 1][-1] % INDEX_FANOUT == 0 and end - begin > 1) or end - begin == INDEX_LIMIT:
            yield end
            begin = end
    yield len(ids)


def is_single(link: Link) -> bool:
    """Whether the stream is one blob without an index."""
    return link.length <= BLOB_BYTES


def read_index(body: bytes) -> tuple[int, list[ObjectId], list[int]]:
    """The height of an index node, and the ids and lengths of its items; ValueError for malformed bytes."""
    try:
        height, joined, lengths = decode(body)
    except TypeError as error:
        raise ValueError(f"not an index node: {error}") from error
    well_formed = (
        type(height) is int
        and 0 < height <= MAX_HEIGHT
        and type(joined) is bytes
        and type(lengths) is list
        and len(joined) == ID_BYTES * len(lengths) > 0
        and len(lengths) <= INDEX_LIMIT
        and {*map(type, lengths)} == {int}
        and min(lengths) > 0
    )
    if not well_formed:
        raise ValueError("a malformed index node")
    return height, [ObjectId(joined[i : i + ID_BYTES]) for i in range(0, len(joined), ID_BYTES)], lengths


def read_chunks(read_indexes: ReadMany, links: Sequence[Link]) -> list[Chunks]:
    """The chunks of stored streams, with one batch of reads a level. CorruptObject if an index is wrong."""
    cuts = [Chunks((link.id,), (link.length,)) for link in links]
    # The heights of the index nodes that `cuts` has so far in place of chunks; 0 before a root is read.
    heights = {place: 0 for place, link in enumerate(links) if not is_single(link)}
    while heights:
        bodies = read_indexes([oid for place in heights for oid in cuts[place].ids])
        for place in [*heights]:
            try:
                heights[place], cuts[place] = _below(links[place], cuts[place], heights[place], bodies)
            except ValueError as error:
                raise CorruptObject(str(links[place].id), str(error)) from error
            if heights[place] == 1:
                del heights[place]
    return cuts


def _below(link: Link, items: Chunks, above: int, bodies: Mapping[ObjectId, bytes]) -> tuple[int, Chunks]:
    """One level of a stream's index: its height, and the items below. `above` is the height above, or 0."""
    # A forged index may name one node many times, and so more chunks than the length allows.
    most = link.length * SMALLEST // chunk_size(link.length) + 2
    ids: list[ObjectId] = []
    lengths: list[int] = []
    for oid, length in zip(items.ids, items.lengths, strict=True):
        found, own_ids, own_lengths = read_index(bodies[oid])
        if above not in (0, found + 1):
            raise ValueError(f"index node {oid} is at height {found}, not {above - 1}")
        if sum(own_lengths) != length:
            raise ValueError(f"the parts of index node {oid} do not add up to {counted(length, 'byte')}")
        ids += own_ids
        lengths += own_lengths
        if len(ids) > most:
            raise ValueError(f"the index {link.id} has more than {most} items")
    return found, Chunks(tuple(ids), tuple(lengths), items.indexes.union(items.ids))


def join(read_blobs: ReadSized, chunks: Chunks, *, batch: int = JOIN_BYTES) -> bytearray:
    """The bytes of a stored stream, read about `batch` bytes at a time. CorruptObject for a wrong length.

    A bytearray, because arrays that are loaded over it are writable.
    """
    keep_freed_memory()
    data = bytearray()  # it grows with the blobs: a forged length takes no memory by itself
    count = max(batch // chunk_size(chunks.length), 1)
    for begin in range(0, len(chunks.ids), count):
        ids, lengths = chunks.ids[begin : begin + count], chunks.lengths[begin : begin + count]
        bodies = read_blobs(dict(zip(ids, lengths, strict=True)))
        for oid, size in zip(ids, lengths, strict=True):
            if len(bodies[oid]) != size:
                raise CorruptObject(str(oid), f"it has {len(bodies[oid])} bytes, and its index says {size}")
            data += bodies[oid]
    return data


@cache
def keep_freed_memory() -> None:
    """Let the process keep some freed memory, so that one batch of rows takes the memory of the last one.

    glibc gives freed memory back to the system at once, and the system clears each page that it gives anew:
    a fourth of the time to read an array. Once a block was freed, glibc keeps up to twice the length of that
    block. The block itself is never written, so it costs nothing.
    """
    bytes(2 * JOIN_BYTES)
