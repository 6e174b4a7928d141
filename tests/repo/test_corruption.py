"""Damaged stores: an object flipped, missing or swapped raises CorruptObject with its id, never a value."""

from __future__ import annotations

import pytest
import zstandard
from blake3 import blake3

from vstate import Cache, Memory, Versioned
from vstate.errors import CorruptObject, InvalidInput, NotFound
from vstate.objects.ids import BLOB, COMMIT, KINDS, TREE, ObjectId
from vstate.repo.objects import MAX_OBJECT_BYTES, Objects

TEXT = "word " * 30
LONG = blake3(b"long").digest(60_000)


def fill() -> Memory:
    """A store with every kind of object, raw ones and compressed ones."""
    store = Memory()
    state = Versioned(store)
    state.update({f"k{i:03}": i for i in range(200)})
    state["text"] = TEXT
    state["long"] = LONG
    state["list"] = [TEXT, bytearray(LONG)]
    state.commit("first")
    state["k001"] = "changed"
    state.commit("second " + "x" * 300)
    return store


def by_kind(store: Memory) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, value in store.items("o/"):
        found.setdefault(value[:1].decode(), []).append(key)
    return {letter: sorted(keys) for letter, keys in sorted(found.items())}


def read_all(store: Memory | Cache) -> dict[str, object]:
    state = Versioned(store)
    values = dict(state)
    for commit in state.log():
        values[commit.message] = dict(state.checkout(commit))
    return values


LETTERS = ["B", "b", "c", "C", "i", "t", "T"]


def test_the_store_has_every_kind() -> None:
    """The store that the tests below damage holds every kind of object, raw and compressed."""
    assert {letter.lower() for letter in by_kind(fill())} == {kind.code for kind in KINDS}


@pytest.mark.parametrize("letter", LETTERS)
@pytest.mark.parametrize("damage", ["flipped", "kind", "missing", "empty", "cut", "swapped"])
def test_a_damaged_object_is_reported_by_its_id(letter: str, damage: str) -> None:
    """Reading the store meets every kind of damage to every kind of object as CorruptObject with the id."""
    store = fill()
    kinds = by_kind(store)
    if letter not in kinds:
        letter = letter.swapcase()
    key = kinds[letter][0]
    stored = store.get(key)
    assert stored is not None
    other = next(
        value
        for k, value in store.items("o/")
        if (k != key and value[:1].lower() == stored[:1].lower()) or k != key
    )
    same_kind = [k for k in kinds[letter] if k != key]
    if same_kind:
        other = store.get(same_kind[0]) or b""
    middle = len(stored) // 2
    new = {
        "flipped": stored[:middle] + bytes([stored[middle] ^ 1]) + stored[middle + 1 :],
        "kind": stored[:1].swapcase() + stored[1:],
        "missing": None,
        "empty": b"",
        "cut": stored[:-1],
        "swapped": other,
    }[damage]
    store.transact({key: new}, {})
    with pytest.raises(CorruptObject) as caught:
        read_all(store)
    assert caught.value.id == key.removeprefix("o/")


@pytest.mark.parametrize("place", ["first", "last"])
def test_each_byte_flipped_gives_no_wrong_value(place: str) -> None:
    """Whatever bit of an object is flipped, its reader gets CorruptObject or the right bytes."""
    store = fill()
    right = {key: value for key, value in store.items("o/") if len(value) < 400}
    objects = Objects(store)
    kinds = {kind.code: kind for kind in KINDS}
    bodies = {
        key: objects.read(kinds[chr(value[0]).lower()], ObjectId.parse(key[2:]))
        for key, value in right.items()
    }
    for key, value in list(right.items())[:12]:
        kind = kinds[chr(value[0]).lower()]
        for at in range(len(value)):
            bit = 1 if place == "first" else 128
            store.set(key, value[:at] + bytes([value[at] ^ bit]) + value[at + 1 :])
            try:
                found = objects.read(kind, ObjectId.parse(key[2:]))
            except CorruptObject:
                continue
            assert found == bodies[key]
        store.set(key, value)


def test_only_the_damaged_key_fails() -> None:
    """With one blob damaged, the other keys, the listing and the diff still work."""
    store = fill()
    blob = ObjectId.of(BLOB, TEXT.encode())
    store.delete(f"o/{blob}")
    state = Versioned(store)
    with pytest.raises(CorruptObject, match=str(blob)):
        state["text"]
    assert state["k000"] == 0
    assert state["long"] == LONG
    assert "text" in list(state)
    assert state.diff("HEAD~1", "HEAD").modified == ["k001"]


@pytest.mark.parametrize(
    "new", ["mended", ["mended"], b"mended" * 10_000, None], ids=["str", "list", "bytes", "deleted"]
)
@pytest.mark.parametrize("key", ["text", "long", "list"])
def test_a_damaged_value_can_be_replaced(key: str, new: object) -> None:
    """A value whose objects are gone can still be overwritten or deleted, and the commit goes through."""
    store = fill()
    for letter, keys in by_kind(store).items():
        if letter in "bBiI":
            store.delete_many(keys)
    state = Versioned(store)
    if new is not None:
        state[key] = new
    else:
        del state[key]
    assert state.commit("mend") is not None
    assert Versioned(store).get(key) == new


def test_a_decompression_bomb_is_refused() -> None:
    """An object that claims to be larger than any object is refused without being decompressed."""
    store = fill()
    blob = ObjectId.of(BLOB, TEXT.encode())
    bomb = zstandard.ZstdCompressor().compress(bytes(MAX_OBJECT_BYTES + 1))
    assert len(bomb) < 10_000
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(MAX_OBJECT_BYTES + 1))
    for frame in (bomb, unsized):
        store.set(f"o/{blob}", b"B" + frame)
        with pytest.raises(CorruptObject, match="it claims"):
            Versioned(store)["text"]


@pytest.mark.slow
def test_too_large_an_object_is_not_written() -> None:
    """A commit with 64 MiB of info, which no reader accepts, is refused, and its changes stay staged."""
    state = Versioned()
    state["k"] = 1
    with pytest.raises(InvalidInput, match="in its info"):
        state.commit("m", data=bytes(MAX_OBJECT_BYTES))
    assert state.status().added == ["k"]
    assert state.commit("m") is not None


@pytest.mark.parametrize("kind", [TREE, COMMIT], ids=lambda kind: kind.name)
def test_right_hash_of_nonsense(kind) -> None:
    """An object whose bytes match its id but make no sense is CorruptObject too."""
    store = fill()
    body = b"\x93\x01\x02\x03"
    oid = ObjectId.of(kind, body)
    store.set(f"o/{oid}", kind.code.encode() + body)
    objects = Objects(store)
    with pytest.raises(CorruptObject, match=str(oid)):
        objects.node(oid) if kind is TREE else objects.commit(oid)


@pytest.mark.parametrize("tier", [False, True], ids=["memory", "directory"])
def test_a_damaged_cached_copy_is_fetched_again(tier: bool, tmp_path) -> None:
    """With a Cache in front, a damaged copy in the cache is dropped and read from the store behind it."""
    whole = fill()
    cache = Cache(whole, directory=tmp_path / "tier" if tier else None)
    assert read_all(cache) == read_all(whole)
    for key in list(cache._memory._values):
        cache._memory._values[key] = cache._memory._values[key][:-1] + bytes(
            [cache._memory._values[key][-1] ^ 1]
        )
    if tier:
        assert cache._tier is not None
        cache._tier.set_many(cache._memory._values)
    assert read_all(cache) == read_all(whole)
    cache.close()


def test_a_damaged_cached_commit_is_still_found_by_its_id() -> None:
    """A damaged copy in the cache does not make a commit unknown."""
    whole = fill()
    cache = Cache(whole)
    head = Versioned(cache).head
    assert head is not None
    cache._memory._values[f"o/{head.id}"] = b"?" + cache._memory._values[f"o/{head.id}"][1:]
    try:
        assert Versioned(cache, branch="x").checkout(head.id)["k000"] == 0
    except NotFound:
        pytest.fail("the commit is whole in the store")
