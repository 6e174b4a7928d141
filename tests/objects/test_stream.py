"""Streams: cut where the content says, the same whether cut anew or from an older version."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate, product

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import sized

from vstate.errors import CorruptObject
from vstate.objects.canonical import encode
from vstate.objects.ids import BLOB, INDEX, Link, NewObjects, Object, ObjectId
from vstate.objects.stream import (
    BLOB_BYTES,
    BLOCK_BYTES,
    CHUNK_SIZES,
    LARGEST,
    MIB,
    SMALLEST,
    Chunks,
    chunk_size,
    is_single,
    join,
    read_chunks,
    read_index,
    split,
)


def noise(length: int, seed: bytes = b"") -> bytes:
    """Bytes without pattern, the same on every machine."""
    return blake3(b"vstate tests " + seed).digest(length=length)


class Stored:
    def __init__(self) -> None:
        self.objects: NewObjects = {}
        self.written = 0

    def split(self, data: bytes, previous: Chunks | None = None) -> tuple[Link, Chunks]:
        link, chunks, objects = split(data, previous)
        for oid, (kind, body) in objects.items():
            assert ObjectId.of(kind, body) == oid
            if oid not in self.objects:
                self.written += len(body)
            self.objects[oid] = Object(kind, bytes(body))
        return link, chunks

    def bodies(self, ids: Sequence[ObjectId]) -> Mapping[ObjectId, bytes]:
        return {oid: bytes(self.objects[oid].body) for oid in ids}

    def read(self, link: Link) -> bytes:
        (chunks,) = read_chunks(self.bodies, [link])
        return bytes(join(self.bodies, chunks, batch=7000))


edits = st.lists(
    st.tuples(
        st.sampled_from(["insert", "delete", "replace", "append", "truncate", "copy", "zeros"]),
        st.floats(0, 1),
        st.integers(0, 40_000),
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=4,
)


def edited(data: bytes, kind: str, where: float, size: int, seed: int) -> bytes:
    at = int(where * len(data))
    new = noise(size, b"%d" % seed)
    match kind:
        case "insert":
            return data[:at] + new + data[at:]
        case "delete":
            return data[:at] + data[at + size :]
        case "replace":
            return data[:at] + new[: len(data) - at] + data[at + size :]
        case "append":
            return data + new
        case "truncate":
            return data[:at]
        case "copy":
            return data[:at] + data[:size] + data[at:]
        case _:
            return data[:at] + bytes(size) + data[at:]


def cut_alike(data: bytes, previous: Chunks | None) -> Chunks:
    """The chunks of the data, which are those of a cut anew."""
    link, chunks, _ = split(data, previous)
    full_link, full, _ = split(data)
    assert (link, chunks, chunks.indexes) == (full_link, full, full.indexes)
    return chunks


@pytest.mark.slow
@settings(max_examples=60)
@given(st.one_of(st.integers(0, 120_000), st.integers(200_000, 300_000)), edits)
def test_cutting_from_an_older_version_changes_nothing(length: int, steps: list) -> None:
    """After any edits, the incremental cut gives the link, the chunks and the bytes of a cut anew."""
    stored = Stored()
    data = noise(length)
    _, previous = stored.split(data)
    _, previous = stored.split(data, previous)
    for step in steps:
        data = edited(data, *step)
        link, chunks = stored.split(data, previous)
        previous = cut_alike(data, previous)
        assert chunks == previous
        assert stored.read(link) == data


@pytest.mark.slow
@pytest.mark.parametrize("into", [-200, -1, 0, 1, 200])
def test_an_end_close_to_that_of_a_block(into: int) -> None:
    """A stream that ends at, or near, the end of a block does not prove how a longer one is cut there."""
    data = noise(300_000)
    ends = list(accumulate(split(data)[1].lengths))
    for blocks, chunk in product([1, 2], [-5, -1, 0, 1]):
        cut = ends[bisect_left(ends, blocks * BLOCK_BYTES) + chunk] + into
        for before, after in ((data[:cut], data), (data, data[:cut]), (data[:cut], data[: cut + 50])):
            cut_alike(after, split(before, split(before)[1])[1])


@pytest.mark.slow
@pytest.mark.parametrize("change", [b"", b"!", b"?!"])
def test_an_edit_right_behind_a_chunk(change: bytes) -> None:
    """The byte behind a chunk helps to decide its end: if that byte changes, the chunk is cut again."""
    data = noise(80_000)
    previous = split(data, split(data)[1])[1]
    moved, end = 0, 0
    for number, length in enumerate(previous.lengths[:-1], 1):
        end += length
        after = data[:end] + change + data[end + 1 :]
        chunks = cut_alike(after, previous)
        assert chunks.prints == split(after, split(after)[1])[1].prints
        moved += chunks.ids[:number] != previous.ids[:number]
        once_more = cut_alike(data, chunks)
        assert (once_more, once_more.prints) == (previous, previous.prints)
    assert moved > 50


@pytest.mark.slow
def test_an_edit_right_behind_a_block_that_ends_with_a_chunk() -> None:
    """A block does not prove a chunk that ends with the block: the byte behind may move that end."""
    long = noise(150_000)
    moved = 0
    for end in accumulate(split(long)[1].lengths):
        data = long[max(end - BLOCK_BYTES, 0) :]
        first = split(data, split(data)[1])[1]
        if BLOCK_BYTES not in accumulate(first.lengths):
            continue
        for byte in (b"a", b"b"):
            after = data[:BLOCK_BYTES] + byte + data[BLOCK_BYTES + 1 :]
            full = split(after)[1]
            assert split(after, first)[1] == full
            moved += BLOCK_BYTES not in accumulate(full.lengths)
    assert moved


def test_what_can_be_written_to_has_no_prints() -> None:
    """The hash of a block is kept only for immutable bytes: other buffers may change after it."""
    data = noise(200_000)
    first = split(data)[1]
    assert first.prints == ()
    assert (
        split(bytearray(data), first)[1].prints == split(memoryview(bytearray(data)), first)[1].prints == ()
    )
    prints = split(data, first)[1].prints
    assert len(prints) == len(data) // BLOCK_BYTES > 1
    # Nor where chunks are long: a hash of each costs no more than one of all.
    longer = noise(9 * 1024 * 1024)
    assert split(longer, split(longer)[1])[1].prints == ()


@pytest.mark.parametrize("length", [0, 1, BLOB_BYTES - 1, BLOB_BYTES, BLOB_BYTES + 1, 3 * BLOB_BYTES])
@pytest.mark.parametrize("fill", ["noise", "zeros"])
def test_sizes_around_one_blob(length: int, fill: str) -> None:
    """A stream of up to 16 KiB is one blob, a longer one has an index, and both are read back."""
    data = noise(length) if fill == "noise" else bytes(length)
    stored = Stored()
    link, chunks = stored.split(data)
    assert link.length == chunks.length == length
    assert is_single(link) == (length <= BLOB_BYTES)
    assert (stored.objects[link.id].kind is BLOB) == is_single(link)
    assert stored.read(link) == data


@pytest.mark.slow
@pytest.mark.parametrize("bound", sized([8 * MIB], [bound for bound, _ in CHUNK_SIZES if bound]))
def test_crossing_a_bound_of_the_chunk_size(bound: int) -> None:
    """A stream that crosses a bound is cut with the chunk size of its new length."""
    assert chunk_size(bound - 1) < chunk_size(bound)
    data = noise(bound + 1)
    stored = Stored()
    previous = None
    for length in (bound - 1, bound, bound + 1, bound - 1):
        link, previous = stored.split(data[:length], previous)
        full_link, full, _ = split(data[:length])
        assert (link, previous) == (full_link, full)
        average = chunk_size(length)
        assert all(average // 4 <= size <= average * 4 for size in previous.lengths[:-1])
    assert stored.read(link) == data[: bound - 1]


@pytest.mark.parametrize("length", [BLOB_BYTES + 1, 1_000_000])
def test_all_zero_data(length: int) -> None:
    """A long run of zeros, whose chunks are all the same, is stored once, read back, and edited."""
    data = bytearray(length)
    stored = Stored()
    link, chunks = stored.split(bytes(data))
    assert stored.read(link) == data
    assert stored.written < min(length, 80_000) + 40 * len(chunks.ids)
    data[length // 2] = 1
    link, again = stored.split(bytes(data), chunks)
    assert (link, again) == split(bytes(data))[:2]
    assert stored.read(link) == data


def test_an_append_makes_the_last_nodes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the new index nodes of a long stream are encoded: two a level at most, and more in no version."""
    nodes: list[object] = []
    monkeypatch.setattr("vstate.objects.stream.encode", lambda node: nodes.append(node) or encode(node))
    data = noise(1_000_000)
    _, chunks, _ = split(data)
    assert len(nodes) > 100
    for i in range(10):
        data += noise(450, b"%d" % i)
        nodes.clear()
        link, chunks, _ = split(data, chunks)
        assert len(nodes) <= 8
    assert link == split(data)[0]


@pytest.mark.slow
@pytest.mark.parametrize("length", [300_000, 6_000_000])
def test_an_edit_writes_little_however_long_the_stream(length: int) -> None:
    """An append, or a byte in the middle, writes a chunk or two and one index node a level."""
    stored = Stored()
    data = noise(length)
    _, chunks = stored.split(data)
    before = stored.written
    for i in range(20):
        data += noise(450, b"%d" % i)
        _, chunks = stored.split(data, chunks)
    assert (stored.written - before) / 20 < 14_000
    before = stored.written
    for at in random.Random(1).sample(range(len(data)), 10):
        stored.split(data[:at] + b"!" + data[at:], chunks)
    assert (stored.written - before) / 10 < 20_000


def test_objects_of_the_older_version_are_not_given_again() -> None:
    """The chunks and index nodes of the older version are not among the new objects."""
    data = noise(500_000)
    _, chunks, objects = split(data)
    _, _, again = split(data, chunks)
    assert again == {}
    _, _, new = split(data[:250_000] + b"x" + data[250_000:], chunks)
    assert 0 < len(new) < 8
    assert not new.keys() & objects.keys()
    # Also where it was cut in another way, as one blob, or with chunks of another size.
    _, chunks, objects = split(bytes(4096))
    _, longer, new = split(bytes(20_000), chunks)
    assert set(longer.ids) & objects.keys()
    assert not new.keys() & objects.keys()


def test_index_nodes_are_bounded() -> None:
    """An index node has from 2 to 256 items, but for a last one, and lengths that add up."""
    link, chunks, objects = split(noise(2_000_000))
    nodes = {oid: read_index(bytes(body)) for oid, (kind, body) in objects.items() if kind is INDEX}
    assert all(1 <= len(ids) <= 256 for _, ids, _ in nodes.values())
    assert sum(nodes[link.id][2]) == link.length
    assert len(nodes) < len(chunks.ids) / 5


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc0", b"\x93\0\xc4\0\x90", b"\x93\1\xc4\0\x90", b"\x93\1\xc4\1a\x91\1", b"\x92\1\2"],
)
def test_malformed_index_nodes_are_refused(body: bytes) -> None:
    """Bytes that are no index node raise ValueError."""
    with pytest.raises(ValueError):
        read_index(body)


def test_streams_that_are_read_together() -> None:
    """Each stream has the same chunks as when it is read alone. An error names the stream."""
    stored = Stored()
    links = [stored.split(noise(length))[0] for length in (100, 20_000, 2_000_000, 20_000, 0, 300_000)]
    assert read_chunks(stored.bodies, links) == [read_chunks(stored.bodies, [link])[0] for link in links]
    assert read_chunks(stored.bodies, []) == []
    wrong = links[5]._replace(length=300_001)
    with pytest.raises(CorruptObject, match=f"^object {wrong.id} "):
        read_chunks(stored.bodies, [*links[:5], wrong])


def test_lengths_that_do_not_add_up_are_refused() -> None:
    """A link or an index that promises another length than there is raises CorruptObject."""
    stored = Stored()
    link, chunks = stored.split(noise(100_000))
    with pytest.raises(CorruptObject, match="add up"):
        read_chunks(stored.bodies, [Link(link.id, link.length + 1)])
    with pytest.raises(CorruptObject, match="its index says"):
        join(stored.bodies, Chunks(chunks.ids, (chunks.lengths[0] + 1, *chunks.lengths[1:])))


def test_an_index_that_leads_to_one_chunk_again_and_again() -> None:
    """A forged index of few bytes, with one chunk of one byte 2**25 times, is refused, and not followed."""
    stored = Stored()
    item, size = ObjectId.of(BLOB, b"x"), 1
    for height in range(1, 6):
        body = encode([height, item * 32, [size] * 32])
        item, size = ObjectId.of(INDEX, body), size * 32
        stored.objects[item] = Object(INDEX, body)
    with pytest.raises(CorruptObject, match="has more than"):
        read_chunks(stored.bodies, [Link(item, size)])


@pytest.mark.parametrize("together", [8 * MIB, 64 * MIB])
@pytest.mark.slow
def test_streams_that_are_cut_together(together: int) -> None:
    """A stream is cut as one of the given length, and an earlier version never changes the result."""
    data = noise(3 * MIB)
    link, chunks, _ = split(data, together=together)
    assert max(chunks.lengths) <= LARGEST * chunk_size(max(len(data), together))
    assert min(chunks.lengths[:-1]) >= chunk_size(max(len(data), together)) // SMALLEST
    edited = data[:MIB] + b"edit" + data[MIB:]
    for sizes in (0, 8 * MIB, 64 * MIB):
        previous = split(data, together=sizes)[1]
        assert split(data, previous, together=together)[0] == link
        assert split(edited, previous, together=together)[:2] == split(edited, together=together)[:2]
    short = noise(20_000)
    assert split(short, together=together)[0] == split(short)[0]
