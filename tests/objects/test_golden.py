"""Golden bytes: stores hold the bytes that are written down here, so no release may change them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgpack
import pytest
import zstandard
from blake3 import blake3
from clock import standing_still
from hypothesis import given, settings
from hypothesis import strategies as st
from test_stream import noise

from vstate import Commit, Event, File, Memory, Versioned
from vstate.objects import tree
from vstate.objects.canonical import encode, plain
from vstate.objects.commit import Signature
from vstate.objects.expiry import Expiry, with_expiry
from vstate.objects.ids import BLOB, COMMIT, INDEX, KINDS, TREE, Kind, Object, ObjectId
from vstate.objects.segment import Segment, encode_segment
from vstate.objects.stream import split
from vstate.repo import Repository
from vstate.repo.objects import Objects
from vstate.values.builders import MAGIC
from vstate.values.entry import encode_value
from vstate.values.pickling import dumps, loads


@pytest.mark.parametrize(
    ("kind", "letter", "expected"),
    [
        (BLOB, "b", "0b03c63f456edc784b7106b2332b7c070c7157471885c1d5cd646b2c4f01e848"),
        (INDEX, "i", "0ca5c901436f0c10cc4dad214be348294f794dd7d31dd63d40c7669ef564e299"),
        (TREE, "t", "dc6c1f3911ba57cbca311b2f491614c0d03ce3a9e895c3716799f37b973d5fb7"),
        (COMMIT, "c", "bdc3ec26617b08618b6ad5d71aea39cda1688c09b3afefb3d79abfd249c6ec77"),
    ],
)
def test_ids(kind: Kind, letter: str, expected: str) -> None:
    """An id is the keyed BLAKE3 of the body, the key being "vstate " and the kind's name."""
    assert str(ObjectId.of(kind, b"abc")) == expected
    key = f"vstate {kind.name}".encode().ljust(32, b"\0")
    assert blake3(b"abc", key=key).hexdigest() == expected
    assert kind.code == letter
    assert kind in KINDS


def test_a_leaf() -> None:
    """A leaf is [0, keys, entries, []], the keys sorted."""
    root, objects, _ = tree.update(
        lambda oid: pytest.fail("nothing to read"), None, {"b/c": b"\xff" * 3, "é": b"", "a": b"1"}
    )
    assert str(root) == "6593b92402727f00c49390f1a568ad8f27fddac0b833be0e307b085cfa5b3eb6"
    assert root is not None
    assert objects[root] == Object(TREE, bytes.fromhex("940093a161a3622f63a2c3a993c40131c403ffffffc40090"))


def test_a_tree_of_two_heights() -> None:
    """The root over 1,000 keys: [height, first keys, ids, counts]."""
    root, objects, _ = tree.update(None, None, {f"key/{i}": b"%d" % i for i in range(1000)})  # type: ignore[arg-type]
    assert str(root) == "cb00fb7625489f448c3b9c5a9597f8be10b81c0069e48a269247e4ac34d45121"
    assert len(objects) == 32
    assert root is not None
    body = bytes(objects[root].body)
    assert body.hex().startswith("940293a56b65792f30a76b65792f343235a76b65792f36313093c42059642091")


def test_a_key_that_expires() -> None:
    """Its entry has 10 more bytes, its leaf a list of moments, each node above a list of the first ones."""
    entry = with_expiry(encode_value(7).entry, Expiry(1_700_000_000_000_000))
    assert entry.hex() == "930007c40800060a24181e4000"
    root, objects, _ = tree.update(None, None, {"a": b"\x92\x00\x01", "b": entry})  # type: ignore[arg-type]
    assert root is not None
    assert objects[root].body == encode(
        [0, ["a", "b"], [b"\x92\x00\x01", entry], [], [None, 1_700_000_000_000_000]]
    )
    assert str(root) == "a48a42b9f3ae78474606d80b70ae2d4ea10c7263528f3f91bca8187f6c9344e4"
    many = {f"key/{i}": b"%d" % i for i in range(1000)}
    root, objects, _ = tree.update(None, None, {**many, "key/77": entry})  # type: ignore[arg-type]
    assert root is not None
    top = bytes(objects[root].body)
    assert top.hex().startswith("950293a56b65792f30a76b65792f343235a76b65792f36313093c420")
    assert top.endswith(b"\x93\xc0\xc0\xcf" + (1_700_000_000_000_000).to_bytes(8, "big"))


def test_levels() -> None:
    """A key's level is the number of zero bits that its BLAKE3 of 8 bytes ends in, by fives."""
    for i in range(2000):
        key = f"key/{i}"
        bits = int.from_bytes(blake3(key.encode()).digest(8), "big")
        zeros = (bits & -bits).bit_length() - 1
        assert tree.level(key) == zeros // 5
    assert [tree.level(f"key/{i}") for i in (425, 610)] == [2, 2]


FIRST = Commit(None, (), datetime(2024, 1, 1, tzinfo=UTC))


def test_the_smallest_commit() -> None:
    """A commit is [tree, parents, microseconds, message, info, events]."""
    assert FIRST.body.hex() == "96c090cf00060dd710212000a08090"
    assert FIRST.id == "74a54bcf447cd5a0c106a94cc7b1fb4c77e0e706bc53e42abe37e78a643798d9"


def test_a_commit_with_everything() -> None:
    """A merge commit before 1970 with message, info and an event."""
    commit = Commit(
        ObjectId.parse("cb00fb7625489f448c3b9c5a9597f8be10b81c0069e48a269247e4ac34d45121"),
        (FIRST.oid, ObjectId(b"\x01" * 32)),
        datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        "msg ü",
        {"a": 1, "b": [None, 1.5]},
        (Event("k", datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=UTC), {"x": b"y"}, "ns"),),
    )
    assert commit.body.hex() == (
        "96c420cb00fb7625489f448c3b9c5a9597f8be10b81c0069e48a269247e4ac34d4512192c42074a54bcf447cd5a0c106"
        "a94cc7b1fb4c77e0e706bc53e42abe37e78a643798d9c42001010101010101010101010101010101010101010101010101"
        "01010101010101ffa66d736720c3bc82a16101a16292c0cb3ff80000000000009194a16bcf00060dd71021200181a178c4"
        "0179a26e73"
    )
    assert commit.id == "73a4e0c16d98fdd11c2c9466afa9f396b7a84f0c8ac468d07d573f1306a49072"
    assert Commit.decode(commit.oid, commit.body) == commit


def test_a_clock_that_was_behind() -> None:
    """A commit whose clock is behind its order has the clock as a field of its own."""
    behind = replace(FIRST, order=FIRST.order + 2**40)
    assert behind.body.hex() == "97c090cf00060ed710212000a08090cf00060dd710212000"
    assert Commit.decode(behind.oid, behind.body).time == FIRST.time
    fields = msgpack.unpackb(behind.body)
    body = encode([*fields[:-1], fields[2]])  # the clock is not behind
    with pytest.raises(ValueError, match="left out"):
        Commit.decode(ObjectId.of(COMMIT, body), body)


SIGNED = replace(FIRST, signature=Signature(b"\x01" * 32, b"\x02" * 64))


def test_a_signed_commit() -> None:
    """A signature is a seventh field, [signer, value]; it covers the id of the commit without it."""
    assert SIGNED.body.hex() == "97" + FIRST.body.hex()[2:] + "92c420" + "01" * 32 + "c440" + "02" * 64
    assert SIGNED.id == "b58fbb015089de3fcc4dbc0bea56e4fce70c1f148c403fbcacc88db7a5bf67ba"
    assert SIGNED.signed_bytes == FIRST.signed_bytes == b"vstate commit signature\0" + FIRST.oid
    again = Commit.decode(SIGNED.oid, SIGNED.body)
    assert again.signature == SIGNED.signature
    assert again.signed_bytes == SIGNED.signed_bytes
    assert again == SIGNED != FIRST


TIMES = st.integers(-(2**50), 2**51).map(
    lambda us: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)
)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
).map(lambda value: plain(value, "value"))
MAPS = st.dictionaries(st.text(max_size=9), PLAIN, max_size=4).map(lambda value: plain(value, "map"))
IDS = st.binary(min_size=32, max_size=32).map(ObjectId)
COMMITS = st.builds(
    Commit,
    st.none() | IDS,
    st.lists(IDS, max_size=3).map(tuple),
    TIMES,
    st.text(max_size=30),
    MAPS,
    st.lists(st.builds(Event, st.text(max_size=9), TIMES, MAPS, st.text(max_size=9)), max_size=3).map(tuple),
    st.none() | st.builds(Signature, IDS.map(bytes), st.binary(min_size=64, max_size=64)),
)


@pytest.mark.slow
@settings(max_examples=40)
@given(COMMITS)
def test_any_commit_is_decoded_to_what_it_was(commit: Commit) -> None:
    """Encoding and decoding loses nothing, and a signature covers everything but itself."""
    again = Commit.decode(commit.oid, commit.body)
    assert replace(again) == commit  # a copy has to be encoded anew
    unsigned = replace(commit, signature=None)
    assert again.signed_bytes == commit.signed_bytes == unsigned.signed_bytes
    assert (again == unsigned) == (commit.signature is None)


@pytest.mark.parametrize(
    "signature",
    [
        *(
            [b"\1" * 31, b"\2" * 64],
            [b"\1" * 32, b"\2" * 63],
            [b"\1" * 32, b"\2" * 65],
            ["x" * 32, b"\2" * 64],
        ),
        *([b"\1" * 32], [b"\1" * 32, b"\2" * 64, None], None, 7.5, "ab", {}),
    ],
    ids=repr,
)
def test_a_malformed_signature(signature: Any) -> None:
    """Anything but 32 and 64 bytes is refused; so is an eighth field."""
    fields = msgpack.unpackb(FIRST.body)
    for body in (encode([*fields, signature]), encode([*fields, list(SIGNED.signature or ()), signature])):
        with pytest.raises(ValueError):
            Commit.decode(ObjectId.of(COMMIT, body), body)


def test_one_spelling_of_a_signed_commit() -> None:
    """Another msgpack of the same fields is refused: one signature stands for one body."""
    body = SIGNED.body
    signer_at = len(body) - 100
    for other in (
        b"\xdc\0\x07" + body[1:],
        body[: signer_at - 1] + b"\xdc\0\x02" + body[signer_at:],
        body[:signer_at] + b"\xc5\0\x20" + body[signer_at + 2 :],
        body[: signer_at + 34] + b"\xc5\0\x40" + body[signer_at + 36 :],
    ):
        assert msgpack.unpackb(other) == msgpack.unpackb(body)
        with pytest.raises(ValueError, match="canonical"):
            Commit.decode(ObjectId.of(COMMIT, other), other)


def test_a_segment() -> None:
    """Three commits in one row: [begins, ends, links]; the last one is a merge with a commit elsewhere."""
    began = datetime(2026, 11, 23, tzinfo=UTC)
    first = Commit(None, (), began, "a")
    second = Commit(ObjectId(bytes(32)), (first.oid,), began + timedelta(seconds=1), "b")
    third = Commit(None, (second.oid, ObjectId(b"\xff" * 32)), began + timedelta(seconds=2), "c", {"i": 1})
    newest, row = encode_segment([first, second, third])
    assert newest == third.oid
    assert zstandard.decompress(row).hex() == (
        "93"
        "93c40396c090c420" + "00" * 32 + "c40396c092"
        "93"
        "c40dcf000660e646648000a1618090"
        "c40dcf000660e64673c240a1628090"
        "c410cf000660e646830480a16381a1690190"
        "92909201c420" + "ff" * 32
    )
    segment = Segment(row)
    assert [segment.commit(place) for place in range(3)] == [first, second, third]
    assert set(segment.edges()) == {b"\xff" * 32}


def test_cut_points_and_index_of_a_short_stream() -> None:
    """300 KB are cut at these places, into these chunks, under this index."""
    link, chunks, objects = split(noise(300_000))
    assert chunks.lengths[:12] == (758, 1865, 2527, 328, 710, 1294, 1430, 1443, 912, 1582, 2074, 2283)
    assert chunks.lengths[-6:] == (329, 1155, 2008, 807, 1044, 317)
    joined = blake3(b"".join(chunks.ids)).hexdigest()
    assert joined == "86dddb189b42c8d9f8c11ecc539217da42a522fe854f02e9fc41f47baf6ce643"
    assert len(chunks.indexes) == 22
    assert str(link.id).startswith("f199c16e4f")
    assert bytes(objects[link.id].body).hex().startswith("9303c4604cdcef3f94637f7c422d7baf39f933af77cd8031")


@pytest.mark.parametrize(
    ("length", "root", "count", "first"),
    [
        (8 * 2**20 - 1, "d8850f6ea2aa817b5e6f1740953ce422", 6676, (758, 1865, 2527)),
        (8 * 2**20, "59b2f7039580aa306c74437346a4224d", 402, (7376, 21530, 33641)),
        (64 * 2**20, "71d2a124e2193590b819190feb21e947", 845, (102541, 196098, 80240)),
    ],
)
@pytest.mark.slow
def test_cut_points_of_each_chunk_size(length: int, root: str, count: int, first: tuple[int, ...]) -> None:
    """Streams on both sides of the bounds are cut into these chunks, under these roots."""
    link, chunks, _ = split(noise(length))
    assert (str(link.id)[:32], len(chunks.ids), chunks.lengths[:3]) == (root, count, first)


@pytest.mark.parametrize(
    ("value", "entry"),
    [
        (None, "9200c0"),
        (True, "9200c3"),
        (-1, "9200ff"),
        (2**64 - 1, "9200cfffffffffffffffff"),
        (1.5, "9200cb3ff8000000000000"),
        ("é", "9200a2c3a9"),
        (b"\0", "9200c40100"),
        ("x" * 100, "9200d964" + "78" * 100),
        ("x" * 101, "9403c465" + "78" * 101 + "65a3737472"),
        (
            b"x" * 129,
            "940292c420fd127434eae33a5a17f8eb548ddaa955d2222e0e767bb08d496a0b0ab954b650cc81cc81a56279746573",
        ),
        ([1, "a"], "940191c40d80055d94284b018c016194652e0da46c697374"),
        ("\ud800", "940191c40980058c03eda080942e09a3737472"),
        (File(b"abc"), "9404c40361626303a466696c65"),
        (File(b"abc", "executable"), "9404c40361626303aa65786563757461626c65"),
        (File(b"abc", "link"), "9404c40361626303a46c696e6b"),
        (2**64, "940191c40e80058a090000000000000000012e0ea3696e74"),
        (
            "y" * 20_000,
            "940392c420e91142f54759697b29bc68cb86000e6ac1e79eb9ace320a2218082002f42b3f2cd4e20cd4e20a3737472",
        ),
    ],
    ids=lambda value: repr(value)[:12],
)
def test_entries(value: Any, entry: str) -> None:
    """An entry is [0, atom] or [codec, payload, size, type]."""
    assert encode_value(value).entry.hex() == entry


def test_a_class_of_main() -> None:
    """A value names the class, with the magic number of the Python, and the definition is a buffer."""
    data = bytes.fromhex(
        "80055d94288c167673746174652e76616c7565732e6275696c64657273948c0c73746f7265645f636c617373949394284304"
        "4d414749948c085f5f6d61696e5f5f948c054c6f63616c949798749452942981947d948c04676f616c948c02676f94736268"
        "08652e"
    )
    definition = bytes.fromhex(
        "80058c167673746174652e76616c7565732e6275696c64657273948c0a6d616b655f636c617373949394288c086275696c74"
        "696e73948c04747970659493948c054c6f63616c9468038c066f626a65637494939485947d94288c0a5f5f6d6f64756c655f"
        "5f948c085f5f6d61696e5f5f948c0c5f5f7175616c6e616d655f5f948c054c6f63616c94758c203832333863663034373037"
        "646231393732616331386530303864356330386661947494529468008c097365745f636c61737394939468117d94288c075f"
        "5f646f635f5f944e8c056c696d6974944b03757d9486948652302e"
    )
    value, cls = loads(data.replace(b"MAGI", MAGIC), [bytearray(definition)])
    assert (value.goal, cls.limit, type(value)) == ("go", 3, cls)
    local = type("Local", (), {"__module__": "__main__", "limit": 3})
    made = local()
    made.goal = "go"
    assert dumps([made, local])[0] == data.replace(b"MAGI", MAGIC)


def test_stored_letters() -> None:
    """An object is stored as its kind's letter and the body, or the capital letter and a zstd frame."""
    objects = Objects(Memory())
    for kind, letter in ((BLOB, b"b"), (INDEX, b"i"), (TREE, b"t"), (COMMIT, b"c")):
        short, long = b"a", b"a" * 1000
        rows = objects.stored({ObjectId.of(kind, body): Object(kind, body) for body in (short, long)})
        raw, packed = rows[f"o/{ObjectId.of(kind, short)}"], rows[f"o/{ObjectId.of(kind, long)}"]
        assert raw == letter + b"a"
        assert packed[:5] == letter.upper() + b"\x28\xb5\x2f\xfd"
        assert zstandard.decompress(packed[1:]) == long


def test_a_small_saving_is_left() -> None:
    """An object that would shrink by fewer than 64 bytes is stored as it is; a compressed one is read too."""
    store = Memory()
    objects = Objects(store)
    body = bytes(range(150)) + b"a" * 60
    oid = ObjectId.of(BLOB, body)
    packed = zstandard.compress(body)
    assert 30 < len(body) - len(packed) < 64
    assert objects.stored({oid: Object(BLOB, body)}) == {f"o/{oid}": b"b" + body}
    store.set(f"o/{oid}", b"B" + packed)
    assert objects.blob(oid) == objects.blobs({oid: len(body)})[oid] == body


def test_what_a_store_holds() -> None:
    """One commit makes these keys: the stamp, the branch, its reflog, its place in lists, and the objects."""
    store = Memory()
    commit = None
    with Versioned(store) as state, standing_still():
        state["k"] = [1]
        commit = state.commit("m")
    assert commit is not None
    keys = sorted(key.split(":")[0] for key, _ in store.items())
    assert keys == sorted(
        [
            *("format", f"o/{commit.root}", f"o/{commit.id}", "r/heads/main", "reflog/heads/main"),
            *("r/newest/ff99f3a6a1/main", "r/with/bade0746/main"),
        ]
    )
    assert store.get("format") == b"vstate 1"
    assert store.get("r/heads/main") == commit.id.encode()


def test_the_row_of_labels() -> None:
    """The commit and a canonical map, and the first bytes of their hash."""
    store = Memory()
    commit = Repository(store).commit("a", set={"k": 1}, labels={"user": "ann", "tags": [1, True, None, 0.5]})
    assert commit is not None
    row = b"\x92\xc4\x20" + commit.oid
    row += b"\x82\xa4tags\x94\x01\xc3\xc0\xcb\x3f\xe0\0\0\0\0\0\0\xa4user\xa3ann"
    assert store.get("r/labels/heads/a") == row + blake3(row).digest(4)
