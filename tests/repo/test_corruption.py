"""Damaged stores: an object flipped, missing or swapped raises CorruptObject with its id, never a value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import zstandard
from damaged_stores import copy

from vstate import Cache, Memory, Versioned
from vstate.errors import CorruptObject
from vstate.objects.ids import BLOB, COMMIT, TREE, Kind, ObjectId
from vstate.repo.objects import MAX_OBJECT_BYTES, Objects


def read_all(store: Memory | Cache) -> dict[str, object]:
    state = Versioned(store)
    values = dict(state)
    for commit in state.log():
        values[commit.message] = dict(state.checkout(commit))
    return values


@pytest.mark.parametrize("new", ["mended", ["mended"], b"mended" * 10_000, None])
@pytest.mark.parametrize("key", ["k002", "long", "list"])
def test_a_damaged_value_can_be_replaced(filled: Mapping[str, bytes], key: str, new: object) -> None:
    """A value whose objects are gone can still be overwritten or deleted, and the commit goes through."""
    store = copy(filled)
    store.delete_many([key for key, row in filled.items() if key[:2] == "o/" and row[:1] in b"bBiI"])
    state = Versioned(store)
    if new is not None:
        state[key] = new
    else:
        del state[key]
    assert state.commit("mend") is not None
    assert Versioned(store).get(key) == new


def test_a_decompression_bomb_is_refused(filled: Mapping[str, bytes]) -> None:
    """An object that claims to be larger than any object is refused without being decompressed."""
    store = copy(filled)
    blob = ObjectId.of(BLOB, b"z" * 400)
    bomb = zstandard.ZstdCompressor().compress(bytes(MAX_OBJECT_BYTES + 1))
    assert len(bomb) < 10_000
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(MAX_OBJECT_BYTES + 1))
    for frame in (bomb, unsized):
        store.set(f"o/{blob}", b"B" + frame)
        with pytest.raises(CorruptObject, match="it claims"):
            Versioned(store)["k002"]


@pytest.mark.parametrize("kind", [TREE, COMMIT], ids=lambda kind: kind.name)
def test_right_hash_of_nonsense(kind: Kind) -> None:
    """An object whose bytes match its id but make no sense is CorruptObject too."""
    store = Memory()
    body = b"\x93\x01\x02\x03"
    oid = ObjectId.of(kind, body)
    store.set(f"o/{oid}", kind.code.encode() + body)
    objects = Objects(store)
    with pytest.raises(CorruptObject, match=str(oid)):
        objects.node(oid) if kind is TREE else objects.commit(oid)


@pytest.mark.parametrize("tier", [False, True], ids=["memory", "directory"])
def test_a_damaged_cached_copy_is_fetched_again(
    filled: Mapping[str, bytes], tier: bool, tmp_path: Path
) -> None:
    """With a Cache in front, a damaged copy in the cache is dropped and read from the store behind it."""
    whole = copy(filled)
    cache = Cache(whole, directory=tmp_path / "tier" if tier else None)
    assert read_all(cache) == read_all(whole)
    copies = cache._memory._values._kept
    copies.update({key: row[:-1] + bytes([row[-1] ^ 1]) for key, row in copies.items()})
    if tier:
        assert cache._tier is not None
        cache._tier.set_many(copies)
    assert read_all(cache) == read_all(whole)
    cache.close()


def test_a_damaged_cached_commit_is_still_found_by_its_id(filled: Mapping[str, bytes]) -> None:
    """A damaged copy in the cache does not make a commit unknown."""
    cache = Cache(copy(filled))
    head = Versioned(cache).head
    assert head is not None
    cache._memory._values._kept[f"o/{head.id}"] = b"?" + cache._memory._values._kept[f"o/{head.id}"][1:]
    assert Versioned(cache, branch="x").checkout(head.id)["k000"] == 0
