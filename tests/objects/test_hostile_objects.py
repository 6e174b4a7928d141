"""Decoding untrusted bytes: ValueError or an object, never another error, never much memory."""

import contextlib
import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import sized

sys.path.append(str(Path(__file__).parents[1] / "values"))

import bombs

from vstate.errors import CorruptObject
from vstate.objects.canonical import decode, encode
from vstate.objects.commit import LAST_ORDER, Commit
from vstate.objects.ids import COMMIT, ID_BYTES, TREE, ObjectId
from vstate.objects.stream import read_index
from vstate.objects.tree import Node, diff, scan
from vstate.values.entry import Entry

LONGER = sized(1, 50)


def commit(body: bytes) -> Commit:
    return Commit.decode(ObjectId.of(COMMIT, body), body)


DECODERS: dict[str, Callable[[bytes], Any]] = {
    "canonical": decode,
    "node": Node.decode,
    "commit": commit,
    "entry": Entry.decode,
    "index": read_index,
}

# --- nearly valid

VALID: list[Any] = [
    [0, ["a", "b"], [b"x", b"\x93\0\7\xc4\x08" + bytes(8)], [], [None, 5]],
    [2, ["a", "b"], [bytes(ID_BYTES)] * 2, [1, 70]],
    [None, [], 0, "", {}, []],
    [bytes(ID_BYTES), [bytes(ID_BYTES)], 2**40, "m", {"a": [1]}, [["k", 2**40, {"x": b"y"}, "ns"]], 2**39],
    [None, [], 2**40, "", {}, [], [bytes(32), bytes(64)]],
    [0, None],
    [1, [b"pickle", [bytes(ID_BYTES), 300]], 306, "dict"],
    [2, [bytes(ID_BYTES), 300], 300, "bytes"],
    [3, b"text", 4, "str"],
    [1, bytes(2 * ID_BYTES), [5, 99]],
]
"""The structures of all kinds of objects and entries."""

_odd = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.integers(-1, 70),
        st.floats(),
        st.text(max_size=4),
        st.binary(max_size=4),
        st.binary(min_size=ID_BYTES - 1, max_size=ID_BYTES),
        st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=16)),
        st.builds(msgpack.Timestamp, st.integers(0, 2**34 - 1), st.integers(0, 10**9 - 1)),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
_paths = st.lists(st.integers(0, 11), min_size=1, max_size=3)
_edits = st.lists(
    st.tuples(_paths, st.sampled_from(["replace", "replace", "insert", "delete"]), _odd), max_size=2
)


def _nearly(value: Any, edits: list[tuple[list[int], str, Any]], cuts: list[tuple[int, int, bytes]]) -> bytes:
    """The encoding of a structure with parts and bytes replaced, put in and taken out."""
    made = copy.deepcopy(value)
    for path, action, part in edits:
        inside, (at, *steps) = made, path
        for step in steps:
            if not isinstance(inside[at % len(inside)], list) or not inside[at % len(inside)]:
                break
            inside, at = inside[at % len(inside)], step
        at %= len(inside)
        inside[at : at + (action != "insert")] = [part] if action != "delete" else []
        made = made or [None]
    data: bytes = msgpack.packb(made, unicode_errors="surrogatepass")
    for at, count, piece in cuts:
        at %= len(data) + 1
        data = data[:at] + piece + data[at + count :]
    return data


_cuts = st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 3), st.binary(max_size=5)), max_size=2)


@pytest.mark.slow
@settings(max_examples=400 * LONGER)
@given(data=st.builds(_nearly, st.sampled_from(VALID), _edits, st.just([]) | _cuts))
def test_only_value_errors_come_out(data: bytes) -> None:
    """From nearly valid bytes each decoder raises ValueError, or makes an object of the promised types."""
    for name, decoder in DECODERS.items():
        try:
            found = decoder(data)
        except ValueError:
            continue
        if name == "node":
            assert found.height >= 0
            assert found.size == (sum(found.counts) if found.height else len(found.keys))
            assert len(found.children()) == (len(found.items) if found.height else 0)
            assert {*map(len, found.children())} <= {ID_BYTES}
            assert {*map(type, found.counts)} <= {int}
        elif name == "entry":
            assert (type(found.size), type(found.type)) == (int, str)
            assert isinstance(found.value, None | bool | int | float | str | bytes)
            assert sum(link.length for link in found.links) <= found.size
            assert all(link.length >= 0 for link in found.links)
        elif name == "commit":
            assert str(found)
            assert repr(found)
            assert isinstance(found.info, dict)
            assert found.order <= LAST_ORDER
            assert all(event.time.tzinfo for event in found.events)
        elif name == "index":
            assert 0 < found[0] <= 64
            assert all(len(oid) == ID_BYTES and length > 0 for oid, length in zip(*found[1:], strict=True))


def test_the_valid_structures_are_valid() -> None:
    """So that what the test above changes is nearly valid."""
    for value in VALID:
        data = msgpack.packb(value)
        made = []
        for name, decoder in DECODERS.items():
            with contextlib.suppress(ValueError):
                decoder(data)
                made.append(name)
        assert len(made) > 1, value


@pytest.mark.parametrize(
    "data",
    [{1: 2, 3: 4}, {"a": 1, "b": 2}, [0, [1]], [0, {}], [1, {}, 0, "x"], "ab", b"ab"]
    + [[2, b"abc", size, "bytes"] for size in (3.0, True)],
)
def test_what_only_looks_like_an_entry_is_none(data: object) -> None:
    """Maps of two fields, atoms that are none, sizes that are no integers."""
    with pytest.raises(ValueError):
        Entry.decode(msgpack.packb(data))


@pytest.mark.parametrize("value", [msgpack.ExtType(5, b"x"), {1: 2}, {None: 1}, [{2.5: 1}]])
def test_only_plain_data_is_decoded(value: object) -> None:
    """Extension types, and keys that are no text, are refused."""
    with pytest.raises(ValueError):
        decode(msgpack.packb(value))


# --- bombs


def _long(length: int, code: bytes) -> bytes:
    """The code of a value of this length."""
    return code + length.to_bytes(4, "big")


MANY = 100_000

_BOMBS: dict[str, Callable[[], bytes]] = {
    "nested arrays": lambda: b"\x91" * 400_000,
    "nested maps": lambda: b"\x81\xa0" * 400_000,
    "arrays that say to be long": lambda: _long(900_000, b"\xdd") * 1000 + bytes(1_000_000),
    "short arrays that say to be long": lambda: _long(9_000, b"\xdd") * 1000 + bytes(5000),
    "maps that say to be long": lambda: _long(400_000, b"\xdf") * 1000 + bytes(1_000_000),
    "a text that says to be long": lambda: b"\xdb\xff\xff\xff\xff" + bytes(1_000_000),
    "bytes that say to be long": lambda: b"\xc6\xff\xff\xff\xff" + bytes(1_000_000),
    "an extension that says to be long": lambda: b"\xc9\xff\xff\xff\xff\x05" + bytes(1_000_000),
    "extensions": lambda: _long(MANY, b"\xdd") + b"\xd4\x05a" * MANY,
    "maps of one": lambda: _long(MANY, b"\xdd") + b"\x81\xa0\xc0" * MANY,
    "keys that are numbers": lambda: (
        _long(MANY, b"\xdf") + b"".join(b"\xcf" + (n << 40).to_bytes(8, "big") + b"\xc0" for n in range(MANY))
    ),
    "events": lambda: _long(MANY, b"\x96\xc0\x90\0\xa0\x80\xdd") + b"\x94\xa0\0\x80\xa0" * MANY,
    "parents": lambda: _long(MANY, b"\x96\xc0\xdd") + (b"\xc4\x20" + bytes(32)) * MANY + b"\0\xa0\x80\x90",
    "a node of short keys": lambda: (
        _long(MANY, b"\x94\0\xdd") + b"\xa0" * MANY + _long(MANY, b"\xdd") + b"\xc4\0" * MANY + b"\x90"
    ),
    "an index": lambda: (
        _long(32 * MANY, b"\x93\1\xc6") + bytes(32 * MANY) + _long(MANY, b"\xdd") + b"\1" * MANY
    ),
}


def _costs(data: bytes) -> list[tuple[float, float]]:
    """The seconds and the megabytes of memory that each decoder takes."""
    found = []
    for decoder in DECODERS.values():
        clock = bombs.Meter()
        try:
            decoder(data)
        except ValueError:
            pass
        clock.took("decode")
        found.append((clock.seconds["decode"], clock.cost("").peak))
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs /proc to measure memory")
@pytest.mark.parametrize("name", _BOMBS)
def test_memory_and_time_follow_from_the_length(name: str) -> None:
    """A claimed length or nesting costs no more than a real one: 100 bytes and 2 microseconds a byte."""
    data = _BOMBS[name]()
    found = bombs.apart(lambda: _costs(data))
    for decoder, (seconds, megabytes) in zip(DECODERS, found, strict=True):
        print(f"{name}, {decoder}: {len(data) / 1e6:.2f} MB, {seconds:.3f} s, {megabytes:.0f} MB")
        assert megabytes < (100 * len(data) + 12_000_000) / 2**20
        assert seconds < 2e-6 * len(data) + 0.2


# --- a tree that leads to the same node again and again


def _bomb(height: int, width: int) -> tuple[Callable[[bytes], Node], ObjectId]:
    """A tree that is small, and has width ** height leaves."""
    nodes: dict[bytes, Node] = {}

    def written(node: Node) -> ObjectId:
        oid = ObjectId.of(TREE, encode([node.height, node.keys, node.items, node.counts]))
        nodes[oid] = node
        return oid

    below = written(Node(0, ["k"], [b"v"], []))
    for level in range(1, height + 1):
        below = written(Node(level, [f"k{i:04}" for i in range(width)], [below] * width, [1] * width))
    return nodes.__getitem__, below


def test_a_scan_of_a_tree_of_shared_nodes_ends() -> None:
    """A key that comes twice ends the scan: no tree has one, and a forged one may have 1,000 ** 10."""
    read, root = _bomb(10, 1000)
    for reverse in (False, True):
        items = scan(lambda ids: [read(oid) for oid in ids], root, reverse=reverse)
        assert next(items) == ("k", b"v")
        with pytest.raises(CorruptObject, match="comes after"):
            next(items)


def test_a_diff_of_a_tree_of_shared_nodes_ends() -> None:
    """A diff reads no node twice."""
    read, root = _bomb(10, 1000)
    with pytest.raises(CorruptObject, match="twice"):
        list(diff(lambda ids: [read(oid) for oid in ids], None, root))


def test_a_diff_finds_a_node_that_lies_where_a_leaf_belongs() -> None:
    """The children of a forged node are not taken for values."""
    read, root = _bomb(2, 1)
    forged = Node(1, ["k0000"], [root], [1])
    with pytest.raises(CorruptObject, match="no leaf"):
        list(diff(lambda ids: [read(oid) if oid in (root,) else forged for oid in ids], None, ObjectId(32)))


@pytest.mark.parametrize(
    "event",
    [1, [], ["k", 1, {}], ["k", "1", {}, "n"], [b"k", 1, {}, "n"], ["k", 1, [], "n"], ["k", 1, {}, None]],
    ids=repr,
)
def test_a_malformed_event_is_refused(event: Any) -> None:
    """A commit whose event lacks a field, or has one of another type, is no commit."""
    body = encode([None, [], 5, "message", {}, [["k", 1, {}, "n"], event]])
    with pytest.raises(ValueError, match="an event is malformed"):
        Commit.decode(ObjectId.of(COMMIT, body), body)
