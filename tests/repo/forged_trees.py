"""Objects under a right id that are malformed, or that contradict each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from itertools import islice
from random import Random

from vstate import KVStore
from vstate.objects import tree
from vstate.objects.canonical import encode
from vstate.objects.commit import Commit
from vstate.objects.expiry import Expiry, with_expiry
from vstate.objects.ids import BLOB, COMMIT, INDEX, TREE, Kind, ObjectId
from vstate.objects.stream import BLOB_BYTES
from vstate.repo import Repository


def plant(store: KVStore, kind: Kind, body: bytes) -> ObjectId:
    oid = ObjectId.of(kind, body)
    store.set(f"o/{oid}", kind.code.encode() + body)
    return oid


def node(store: KVStore, height: int, keys: list[str], items: list[bytes], *more: object) -> ObjectId:
    """A node; `more` are the counts of keys below its items, and when they expire."""
    return plant(store, TREE, encode([height, keys, items, *(more or [[]])]))


def put_on(store: KVStore, branch: str, oid: ObjectId) -> None:
    store.set("format", b"vstate 1")
    refs = Repository(store).refs
    refs.compare_and_swap(f"heads/{branch}", expected=refs.read(f"heads/{branch}"), new=oid, action="put")


def put_on_branch(store: KVStore, root: ObjectId | None, branch: str = "main", **fields: object) -> Commit:
    """A branch at a commit of this tree."""
    made: dict[str, object] = {"parent_ids": (), "time": datetime(2026, 1, 1, tzinfo=UTC), **fields}
    commit = Commit(root=root, **made)  # type: ignore[arg-type]  # as the tests give them
    put_on(store, branch, plant(store, COMMIT, commit.body))
    return commit


def keys_at(height: int, count: int, start: str = "k") -> list[str]:
    """Keys that begin a node at every height below this one and at none from it on."""
    found = (f"{start}{i:06}" for i in range(60_000) if tree.level(f"{start}{i:06}") == height)
    return [*islice(found, count)]


ATOM = encode([0, 1])
DUE = with_expiry(ATOM, Expiry(7))
"""The entry of a key that expires."""
LOW = keys_at(0, 40)
HIGH = keys_at(1, 40)
HIGHER = keys_at(2, 5)


def leaf(store: KVStore, *keys: str, entry: bytes = ATOM) -> ObjectId:
    """A leaf of equal entries."""
    return node(store, 0, list(keys), [entry] * len(keys))


def pair(store: KVStore, left: list[str], right: list[str], *more: object, **wrong: object) -> ObjectId:
    """A root over two leaves."""
    fields = {
        "height": 1,
        "keys": [left[0], right[0]],
        "items": [leaf(store, *left), leaf(store, *right)],
        "counts": [len(left), len(right)],
    } | wrong
    return node(store, *fields.values(), *more)  # type: ignore[arg-type]


SPLIT = HIGH[2]
LEFT, RIGHT = [low for low in LOW if low < SPLIT][:3], [SPLIT, SPLIT + "x"]
assert tree.level(SPLIT + "x") == 0


def entry(*fields: object) -> bytes:
    return encode(list(fields))


def linked(store: KVStore, *more: int, **wrong: object) -> ObjectId:
    """A leaf with a link to a blob; and one with more links to it, of other lengths."""
    body = b"blob " * 100
    fields = {"id": plant(store, BLOB, body), "length": len(body)} | wrong
    links = [[fields["id"], length] for length in (fields["length"], *more)]
    return node(store, 0, list("kmn"[: len(links)]), [entry(2, each, each[1], "bytes") for each in links])


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
    return leaf(store, "k", entry=entry(2, [oid, length], length, "bytes"))


def streamed(store: KVStore, *pieces: bytes, height: int = 1, **wrong: object) -> ObjectId:
    """A value of one index over these chunks."""
    ids = [oid for oid, _ in chunks(store, pieces)]
    lengths = wrong.get("lengths", [len(piece) for piece in pieces])
    oid = plant(store, INDEX, encode([height, b"".join(ids), lengths]))
    return value_of(store, oid, wrong.get("length", sum(map(len, pieces))))  # type: ignore[arg-type]


def levels(store: KVStore, *runs: list[bytes], height: int = 2, shift: int = 0) -> ObjectId:
    """A value of an index, at height 2, over an index for each run of chunks.

    The index says that the first of those is longer by `shift`, and the second shorter.
    """
    (one, length), (two, rest) = (index(store, 1, chunks(store, run)) for run in runs)
    return value_of(store, *index(store, height, [(one, length + shift), (two, rest - shift)]))


def _entry(data: bytes) -> Callable[[KVStore], ObjectId]:
    return lambda store: leaf(store, "k", entry=data)


Table = dict[str, tuple[Callable[[KVStore], ObjectId], str, str]]

LOST: Table = {
    "descending keys": (lambda s: leaf(s, "b", "a"), "do not ascend", "its keys do not ascend"),
    "a key twice": (lambda s: leaf(s, "a", "a"), "do not ascend", "its keys do not ascend"),
    "a wrong height": (
        lambda s: pair(s, LEFT, RIGHT, height=2),
        "is at height 0, not 1",
        "it is at height 0, in place of 1",
    ),
    "a negative height": (
        lambda s: node(s, -1, ["a"], [bytes(32)], [1]),
        "malformed tree node",
        "malformed tree node",
    ),
    "a tower": (
        lambda s: node(s, 13, ["a"], [bytes(32)], [1]),
        "no node is at height 13",
        "no node is at height 13",
    ),
    "another first key": (
        lambda s: pair(s, LEFT, RIGHT, keys=[LEFT[0], HIGH[1]]),
        f"does not begin with {HIGH[1]!r}",
        "outside the range",
    ),
    "keys beyond the next node's": (
        lambda s: pair(s, [*LEFT, RIGHT[1]], RIGHT),
        f"has keys from {SPLIT!r} on",
        "outside the range",
    ),
    "a node in two places": (
        lambda s: pair(s, LEFT, RIGHT, items=[leaf(s, *LEFT)] * 2, counts=[3, 3]),
        f"does not begin with {SPLIT!r}",
        "outside the range",
    ),
    **{
        f"{len(moments)} moments for two keys": (
            lambda s, moments=moments: node(s, 0, ["a", "b"], [ATOM, DUE], [], moments),
            "malformed tree node",
            "malformed tree node",
        )
        for moments in ([7], [7, None, None])
    },
    "no node": (lambda s: plant(s, TREE, encode([1, 2])), "not enough values", "not enough values"),
    "no msgpack": (lambda s: plant(s, TREE, b"\xc1"), "not msgpack", "not msgpack"),
    "a tree that is a blob": (lambda s: plant(s, BLOB, b"x"), "is no tree but a blob", "it is no tree"),
    "an entry that is none": (_entry(encode([9, 9])), "the entry of 'k': ", "cannot be decoded"),
    "an entry that is cut off": (_entry(b"\x92\x00"), "the entry of 'k': ", "cannot be decoded"),
    "an entry of a wrong size": (
        _entry(entry(2, b"abc", 4, "bytes")),
        "the entry of 'k': ",
        "cannot be decoded",
    ),
    "a map for an atom": (_entry(entry(0, {})), "the entry of 'k': ", "cannot be decoded"),
    "a link to nothing": (lambda s: linked(s, id=ObjectId(bytes(32))), "it is missing", "it is missing"),
    "a link of another length": (
        lambda s: linked(s, length=499),
        "has 500 bytes, not 499",
        "a blob of 500 bytes; the link to it says 499",
    ),
    "two links of two lengths": (
        lambda s: linked(s, 501),
        "its blob .* has 50[01] bytes, not 50[01]",
        "a blob of 500 bytes; the link to it says 501",
    ),
    "a link to a tree": (lambda s: linked(s, id=leaf(s, "a")), "is no blob but a tree", "it is no blob"),
    "an index that is a blob": (
        lambda s: linked(s, length=BLOB_BYTES + 1),
        "is no index but a blob",
        "it is no index",
    ),
    "an index of nonsense": (
        lambda s: streamed(s, *GOES_ON[:3], lengths=[0, 1, 2]),
        "malformed index",
        "malformed index",
    ),
    "an index with too many items": (
        lambda s: streamed(s, *GOES_ON[:1] * 129),
        "malformed index",
        "malformed index",
    ),
    "an index that is too high": (
        lambda s: streamed(s, *GOES_ON[:3], height=65),
        "no index is at height 65|malformed index",
        "malformed index",
    ),
    "an index over chunks at height 2": (
        lambda s: streamed(s, *GOES_ON[:3], height=2),
        "is no index but a blob",
        "it is no index",
    ),
    "an index of another height than the one above says": (
        lambda s: levels(s, [GOES_ON[0], ENDS[0]], GOES_ON[:2], height=3),
        "is at height 1, not 2",
        "it is at height 1, in place of 2",
    ),
    "an index with another sum": (
        lambda s: streamed(s, *GOES_ON[:3], length=27001),
        "has 27,000 bytes, not 27001",
        "an index of 27,000 bytes; the link to it says 27001",
    ),
    "an index of another length than the one above says": (
        lambda s: levels(s, [GOES_ON[0], ENDS[0]], GOES_ON[:2], shift=1),
        "has 18,000 bytes, not 18001",
        "an index of 18,000 bytes; the link to it says 18001",
    ),
    "an index with a wrong length": (
        lambda s: streamed(s, *GOES_ON[:3], lengths=[9000, 9001, 8999]),
        "has 9,000 bytes, not 9001",
        "a blob of 9,000 bytes",
    ),
}
"""Objects that cannot be read, by their fault; a part of the reason by fsck, and of that by a transfer."""

READABLE: Table = {
    "a wrong count": (
        lambda s: pair(s, LEFT, RIGHT, counts=[3, 7]),
        "has 2 keys, not 7",
        "it has 2 keys; the node above says 7",
    ),
    **{
        f"the moments {moments} in place of [None, 7]": (
            lambda s, more=more: node(s, 0, ["a", "b"], [ATOM, DUE], [], *more),
            "it does not say when its keys expire",
            "it does not say when its keys expire",
        )
        for moments, more in (("none", []), ("[None, 5]", [[None, 5]]), ("[5, 7]", [[5, 7]]))
    },
    **{
        f"{name} expiry of a node": (
            lambda s, first=first, more=more: pair(s, LEFT, RIGHT, *more, items=[first(s), leaf(s, *RIGHT)]),
            "it does not say when the first key below",
            "the node above does not say when its first key expires",
        )
        for name, first, more in (
            ("a made-up", lambda s: leaf(s, *LEFT), [[5, None]]),
            ("another", lambda s: node(s, 0, LEFT, [ATOM, DUE, ATOM], [], [None, 7, None]), [[5, None]]),
            ("no", lambda s: node(s, 0, LEFT, [ATOM, DUE, ATOM], [], [None, 7, None]), []),
        )
    },
}
"""Objects that can be read all the same."""
