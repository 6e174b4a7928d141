"""fsck and objects under a right id that are malformed, or that contradict each other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TypeVar

import pytest

from vstate import InvalidInput, KVStore, Memory, Versioned
from vstate.objects import tree
from vstate.objects.canonical import encode
from vstate.objects.commit import Commit, microseconds
from vstate.objects.ids import BLOB, COMMIT, INDEX, TREE, Kind, ObjectId
from vstate.objects.stream import BLOB_BYTES
from vstate.repo import Repository

T = TypeVar("T")


def plant(store: KVStore, kind: Kind, body: bytes) -> ObjectId:
    oid = ObjectId.of(kind, body)
    store.set(f"o/{oid}", kind.code.encode() + body)
    return oid


def node(
    store: KVStore, height: int, keys: list[str], items: list[bytes], counts: Iterable[int] = ()
) -> ObjectId:
    return plant(store, TREE, encode([height, keys, items, list(counts)]))


def put_on(store: KVStore, branch: str, oid: ObjectId) -> None:
    store.set("format", b"5")
    refs = Repository(store).refs
    refs.compare_and_swap(f"heads/{branch}", expected=refs.read(f"heads/{branch}"), new=oid, action="put")


def put_on_main(store: KVStore, root: ObjectId | None, **fields: object) -> ObjectId:
    commit = Commit(root=root, parent_ids=(), time=datetime(2026, 1, 1, tzinfo=UTC), **fields)  # type: ignore[arg-type]
    oid = plant(store, COMMIT, commit.body)
    put_on(store, "main", oid)
    return oid


def keys_at(height: int, count: int, start: str = "k") -> list[str]:
    """Keys that begin a node at every height below this one and at none from it on."""
    found = [f"{start}{i:06}" for i in range(60_000) if tree.level(f"{start}{i:06}") == height]
    return found[:count]


ATOM = encode([0, 1])
LOW = keys_at(0, 40)
HIGH = keys_at(1, 40)
HIGHER = keys_at(2, 5)


def built(store: KVStore, keys: Iterable[str]) -> ObjectId:
    root, objects, _ = tree.update(lambda oid: None, None, dict.fromkeys(keys, ATOM))  # type: ignore[arg-type, return-value]
    for kind, body in objects.values():
        plant(store, kind, bytes(body))
    assert root is not None
    return root


def leaf(store: KVStore, *keys: str) -> ObjectId:
    return node(store, 0, list(keys), [ATOM] * len(keys))


def pair(store: KVStore, left: list[str], right: list[str], **wrong: object) -> ObjectId:
    """A root over two leaves."""
    fields = {
        "height": 1,
        "keys": [left[0], right[0]],
        "items": [leaf(store, *left), leaf(store, *right)],
        "counts": [len(left), len(right)],
    } | wrong
    return node(store, *fields.values())  # type: ignore[arg-type]


def low_before(key: str, count: int = 3) -> list[str]:
    return [low for low in LOW if low < key][:count]


SPLIT = HIGH[2]
LEFT, RIGHT = low_before(SPLIT), [SPLIT, SPLIT + "x"]
assert tree.level(SPLIT + "x") == 0


def entry(*fields: object) -> bytes:
    return encode(list(fields))


def with_entry(store: KVStore, data: bytes) -> ObjectId:
    return node(store, 0, ["k"], [data])


def linked(store: KVStore, **wrong: object) -> ObjectId:
    body = b"blob " * 100
    fields = {"id": plant(store, BLOB, body), "length": len(body)} | wrong
    return with_entry(store, entry(2, list(fields.values()), fields["length"], "bytes"))


PIECES = [Random(number).randbytes(9000) for number in range(40)]
GOES_ON = [piece for piece in PIECES if ObjectId.of(BLOB, piece)[-1] % 8]
ENDS = [piece for piece in PIECES if not ObjectId.of(BLOB, piece)[-1] % 8]


def index(store: KVStore, height: int, items: Iterable[tuple[ObjectId, int]]) -> tuple[ObjectId, int]:
    """An index over these, and its length."""
    ids, lengths = zip(*items, strict=True)
    return plant(store, INDEX, encode([height, b"".join(ids), lengths])), sum(lengths)


def chunks(store: KVStore, pieces: Iterable[bytes]) -> list[tuple[ObjectId, int]]:
    return [(plant(store, BLOB, piece), len(piece)) for piece in pieces]


def value_of(store: KVStore, oid: ObjectId, length: int) -> ObjectId:
    return with_entry(store, entry(2, [oid, length], length, "bytes"))


def streamed(store: KVStore, *pieces: bytes, height: int = 1, **wrong: object) -> ObjectId:
    """A value of one index over these chunks."""
    ids = [oid for oid, _ in chunks(store, pieces)]
    lengths = wrong.get("lengths", [len(piece) for piece in pieces])
    oid = plant(store, INDEX, encode([height, b"".join(ids), lengths]))
    return value_of(store, oid, wrong.get("length", sum(map(len, pieces))))  # type: ignore[arg-type]


def levels(store: KVStore, *runs: list[bytes], height: int = 2) -> ObjectId:
    """A value of an index, at height 2, over an index for each run of chunks."""
    return value_of(store, *index(store, height, [index(store, 1, chunks(store, run)) for run in runs]))


Table = dict[str, tuple[Callable[[KVStore], ObjectId], str]]

LOST: Table = {
    "descending keys": (lambda s: leaf(s, "b", "a"), "do not ascend"),
    "a key twice": (lambda s: leaf(s, "a", "a"), "do not ascend"),
    "a wrong height": (lambda s: pair(s, LEFT, RIGHT, height=2), "is at height 0, not 1"),
    "a negative height": (lambda s: node(s, -1, ["a"], [bytes(32)], [1]), "malformed tree node"),
    "a tower": (lambda s: node(s, 13, ["a"], [bytes(32)], [1]), "no node is at height 13"),
    "another first key": (
        lambda s: pair(s, LEFT, RIGHT, keys=[LEFT[0], HIGH[1]]),
        f"does not begin with {HIGH[1]!r}",
    ),
    "keys beyond the next node's": (
        lambda s: pair(s, [*LEFT, RIGHT[1]], RIGHT),
        f"has keys from {SPLIT!r} on",
    ),
    "no node": (lambda s: plant(s, TREE, encode([1, 2])), "not a tree node|not enough values|malformed"),
    "no msgpack": (lambda s: plant(s, TREE, b"\xc1"), "not msgpack"),
    "a tree that is a blob": (lambda s: plant(s, BLOB, b"x"), "is no tree but a blob"),
    "an entry that is none": (lambda s: with_entry(s, encode([9, 9])), "the entry of 'k': "),
    "an entry of a wrong size": (lambda s: with_entry(s, entry(2, b"abc", 4, "bytes")), "the entry of 'k': "),
    "a map for an atom": (lambda s: with_entry(s, entry(0, {})), "the entry of 'k': "),
    "a link to nothing": (lambda s: linked(s, id=ObjectId(bytes(32))), "it is missing"),
    "a link of another length": (lambda s: linked(s, length=499), "has 500 bytes, not 499"),
    "a link to a tree": (lambda s: linked(s, id=leaf(s, "a")), "is no blob but a tree"),
    "an index that is a blob": (lambda s: linked(s, length=BLOB_BYTES + 1), "is no index but a blob"),
    "an index of nonsense": (lambda s: streamed(s, *GOES_ON[:3], lengths=[0, 1, 2]), "malformed index"),
    "an index with too many items": (lambda s: streamed(s, *GOES_ON[:1] * 129), "malformed index"),
    "an index that is too high": (
        lambda s: streamed(s, *GOES_ON[:3], height=65),
        "no index is at height 65|malformed index",
    ),
    "an index over chunks at height 2": (
        lambda s: streamed(s, *GOES_ON[:3], height=2),
        "is no index but a blob",
    ),
    "an index of another height than the one above says": (
        lambda s: levels(s, [GOES_ON[0], ENDS[0]], GOES_ON[:2], height=3),
        "is at height 1, not 2",
    ),
    "an index with another sum": (
        lambda s: streamed(s, *GOES_ON[:3], length=27001),
        "has 27,000 bytes, not 27001",
    ),
    "an index with a wrong length": (
        lambda s: streamed(s, *GOES_ON[:3], lengths=[9000, 9001, 8999]),
        "has 9,000 bytes, not 9001",
    ),
}
"""Objects that cannot be read, by their fault, with a part of the reason."""

READABLE: Table = {"a wrong count": (lambda s: pair(s, LEFT, RIGHT, counts=[3, 7]), "has 2 keys, not 7")}
"""Objects that can be read all the same."""


BLOBS = ("a link of another length", "a link to a tree", "an index with a wrong length")
"""The faults that only a look into blobs finds."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LOST, *READABLE])
@pytest.mark.parametrize("full", [True, False], ids=["full", "quick"])
def test_nonsense_under_a_right_id_is_found(name: str, full: bool) -> None:
    """Objects of a careless or malicious writer, under a right id."""
    make, reason = (LOST | READABLE)[name]
    store = Memory()
    put_on_main(store, make(store))
    report = Repository(store).fsck(full=full)
    assert report.ok is (not full and name in BLOBS)
    if not report.ok:
        found = [damage for damage in report.damage if re.search(reason, damage.reason)]
        assert found, str(report)
        assert found[0].readable is (name in READABLE)
        lost = any(not damage.readable for damage in report.damage)
        assert (bool(report.broken), report.lost_in_all > 0) == (lost, lost)


def test_the_pieces_of_those_are_right() -> None:
    """Each object is in order but for its one fault, and fsck finds that fault."""
    store = Memory()
    for root in (
        pair(store, LEFT, RIGHT),
        leaf(store, *LEFT),
        linked(store),
        streamed(store, *GOES_ON[:3], ENDS[0]),
        streamed(store, *GOES_ON[:1] * 128),
        levels(store, [GOES_ON[0], ENDS[0]], [GOES_ON[1]]),
        levels(store, [ENDS[0], ENDS[1]], [ENDS[2], ENDS[0]]),
        levels(store, GOES_ON[:1] * 128, GOES_ON[:2]),
        with_entry(store, entry(2, b"x" * 128, 128, "bytes")),
        with_entry(store, entry(0, "x" * 100)),
        built(store, LOW),
    ):
        put_on_main(store, root)
        report = Repository(store).fsck(full=False)
        assert report.ok, str(report)


def test_a_key_out_of_range_deep_below_is_found() -> None:
    """The last key of a subtree has to come before the next subtree's first, at whatever height they part."""
    store = Memory()
    top = HIGHER[3]
    below = [key for key in HIGH if key < top]
    first = node(
        store, 1, [LOW[0], below[0]], [leaf(store, LOW[0]), leaf(store, below[0], top + "x")], [1, 2]
    )
    second = leaf(store, top)
    second = node(store, 1, [top], [second], [1])
    assert tree.level(top + "x") == 0
    root = node(store, 2, [LOW[0], top], [first, second], [3, 1])
    put_on_main(store, root)
    report = Repository(store).fsck()
    assert [damage.id for damage in report.damage] == [str(first)]
    assert f"has keys from {top!r} on" in report.damage[0].reason


def test_a_shared_node_is_checked_for_each_that_links_to_it() -> None:
    """A node that is in order below one parent is still found to be wrong below another."""
    store = Memory()
    right = put_on_main(store, pair(store, LEFT, RIGHT))
    put_on(store, "right", right)
    wrong = put_on_main(store, pair(store, LEFT, RIGHT, counts=[3, 3]), message="wrong")
    for main, other in ((right, wrong), (wrong, right)):
        put_on(store, "main", main)
        put_on(store, "right", other)
        report = Repository(store).fsck()
        assert [damage.reason.partition(" has ")[2] for damage in report.damage] == ["2 keys, not 3"]


def commit_rows(store: KVStore, body: object) -> None:
    oid = plant(store, COMMIT, encode(body))
    put_on(store, "main", oid)


NOW = microseconds(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ([None, [], NOW, "m", {}], "values to unpack"),
        ([None, [], "now", "m", {}, []], "not a commit"),
        ([bytes(32), [], NOW, "m", {}, []], "it is missing"),
        ([b"short", [], NOW, "m", {}, []], "an id of 32 bytes is missing"),
    ],
)
def test_commits_that_make_no_sense(body: list[object], reason: str) -> None:
    """A commit is decoded, and the objects that it names must exist."""
    store = Memory()
    commit_rows(store, body)
    report = Repository(store).fsck()
    assert [damage.readable for damage in report.damage] == [False]
    assert reason in report.damage[0].reason
    assert report.broken == ("heads/main",)


@pytest.mark.parametrize("shift", [timedelta(), timedelta(microseconds=-5)])
def test_a_commit_has_to_be_dated_after_its_parents(shift: timedelta) -> None:
    """Walking by time relies on it; a merge is checked against each."""
    store = Memory()
    time = datetime(2026, 1, 1, tzinfo=UTC)
    old = plant(store, COMMIT, Commit(None, (), time - timedelta(days=1)).body)
    late = plant(store, COMMIT, Commit(None, (old,), time, "late").body)
    merge = plant(store, COMMIT, Commit(None, (old, late), time + shift, "merge").body)
    put_on(store, "main", merge)
    report = Repository(store).fsck()
    assert [(damage.id, damage.readable) for damage in report.damage] == [(str(merge), True)]
    assert f"not dated after its parent {late}" in report.damage[0].reason


def test_a_parent_that_is_a_blob() -> None:
    """The history ends there; the commit's own state is whole."""
    store = Memory()
    blob = plant(store, BLOB, b"x")
    commit_rows(store, [leaf(store, "a"), [blob], NOW, "m", {}, []])
    report = Repository(store).fsck()
    assert "is no commit but a blob" in report.damage[0].reason
    assert report.broken == ()
    assert [item.what for item in report.lost] == ["the commit itself, and all that only it leads to"]
    assert f"o/{blob}" in store
    Repository(store).fsck(repair=True)
    assert [commit.message for commit in Versioned(store).log()] == ["m"]
    assert f"o/{blob}" in store


@pytest.mark.slow
def test_what_is_too_large_is_named() -> None:
    """A node with too many long keys names the keys, a commit its longest part. The changes stay staged."""
    state = Versioned(Memory())
    keys = (f"long/{n:06}{'x' * 4000}" for n in range(5000))
    state.update({key: 1 for key in keys if tree.level(key) == 0})  # no key begins another node
    with pytest.raises(InvalidInput, match=r"keys lie in a node of the tree, .*'long/") as raised:
        state.commit()
    assert "message" not in str(raised.value)
    state.discard()
    state["k"] = 1
    large = "x" * (64 << 20)
    with pytest.raises(InvalidInput, match="not in the message of a commit"):
        state.commit(large)
    with pytest.raises(InvalidInput, match="not in the info of a commit"):
        state.commit("", large=large)
    assert state.status().added == ["k"]
    state.discard()
