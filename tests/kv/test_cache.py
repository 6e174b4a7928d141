"""Cache: the store contract over Memory and Disk, and its own tiers. Tiered has tests of the rest."""

import os
import sqlite3
from pathlib import Path

import pytest

from vstate import Versioned
from vstate.errors import InvalidInput
from vstate.kv import Cache, Memory
from vstate.testing import Faulty

KEY = "o/" + "ab" * 32
OTHER = "o/" + "cd" * 32


@pytest.fixture
def inner() -> Faulty:
    return Faulty(Memory())


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_an_object_is_fetched_once(inner: Faulty) -> None:
    """Neither an object that was read, alone or among many, nor one that was written is fetched again, and a
    transaction stays one call.
    """
    inner.store.set_many({KEY: b"1", OTHER: b"2"})
    store = Cache(inner)
    assert store.get(KEY) == store.get(KEY) == b"1"
    assert store.get_many([KEY, OTHER]) == {KEY: b"1", OTHER: b"2"}
    assert store.get_many([KEY, OTHER]) == {KEY: b"1", OTHER: b"2"}
    third, fourth = "o/" + "ef" * 32, "o/" + "12" * 32
    assert store.transact({third: b"3", "r/heads/main": b"x"}, {"r/heads/main": None})
    store.set(fourth, b"4")
    assert store.get_many([third, fourth]) == {third: b"3", fourth: b"4"}
    assert inner.calls == ["get", "get_many", "transact", "set"]


def test_what_the_directory_could_not_delete_is_not_read(tmp_path: Path, tier: Path) -> None:
    """Another process holds the lock of the directory's database while an object is deleted."""
    with Cache(Memory(), 0, tier) as store:
        store.set_many({KEY: b"1", OTHER: b"2"})
        connection = sqlite3.connect(tier / "vstate.db", isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        store.delete(KEY)
        assert store.get(KEY) is None
        connection.execute("ROLLBACK")
        connection.close()
        assert store.get(KEY) is None
        assert store.get(OTHER) == b"2"
        store.set(KEY, b"new")
        assert store.get(KEY) == b"new"


def test_the_least_recently_used_goes_first(inner: Faulty) -> None:
    """Memory is bounded in bytes. Recent reads stay, and a value that is too large is not kept."""
    store = Cache(inner, max_bytes=10_000)
    keys = [f"o/{number:064x}" for number in range(4)]
    store.set_many({key: bytes(3000) for key in keys[:3]})
    store.get(keys[0])
    store.set(keys[3], bytes(3000))
    kept = store._memory._values
    assert set(dict(kept.items())) == {keys[0], keys[2], keys[3]}
    assert kept._size <= 10_000
    store.set(OTHER, bytes(20_000))
    assert OTHER not in dict(kept.items())
    for key in keys:
        store.delete(key)
    assert kept._size == 0


def test_the_second_tier_outlives_the_process(tmp_path: Path, tier: Path) -> None:
    """A later Cache on the same directory asks the store for no object, small or large."""
    contents = {KEY: b"small", OTHER: bytes(100_000)}
    with Cache(Memory(), directory=tier) as store:
        store.set_many(contents)
    inner = Faulty(Memory())
    with Cache(inner, directory=tier) as store:
        assert store.get_many(contents) == contents
        assert store.get(KEY) == b"small"
    assert inner.calls == []


@pytest.mark.parametrize("room", ["", "room/00000000000000a1/"])
def test_the_second_tier_is_bounded(tier: Path, room: str) -> None:
    """Past `directory_bytes` some copies make room for new ones, and every object is still read."""
    objects = {f"{room}o/{number % 16:x}{number:063x}": os.urandom(10_000) for number in range(200)}
    inner = Faulty(Memory())
    with Cache(inner, 0, tier, 500_000) as store:
        for key, value in objects.items():
            store.set(key, value)
        assert (tier / "vstate.db").stat().st_size <= 500_000
        inner.calls.clear()
        assert store.get([*objects][-1]) == objects[[*objects][-1]]
        assert inner.calls == []
        assert store.get_many(objects) == objects
        there = store._tier.get_many(objects) if store._tier is not None else {}
        assert 10 < len(there) < 50
        store.set(OTHER, bytes(os.urandom(600_000)))
        assert store.get(OTHER) is not None


@pytest.mark.parametrize("damage", ["rows", "database", "gone", "in the way"])
def test_a_damaged_second_tier_is_a_miss(tier: Path, damage: str) -> None:
    """If the tier is damaged in any way, reads return the store's bytes and raise nothing."""
    memory = Memory()
    contents = {KEY: b"small", OTHER: bytes(100_000)}
    if damage == "in the way":
        tier.write_text("a file")
    with Cache(memory, directory=tier) as store:
        store.set_many(contents)
    if damage == "rows":
        connection = sqlite3.connect(tier / "vstate.db")
        connection.execute("UPDATE kv SET value = 'text'")
        connection.commit()
        connection.close()
    elif damage == "database":
        (tier / "vstate.db").write_bytes(b"not a database\n" * 1000)
    with Cache(memory, 0, tier) as store:
        if damage == "gone":
            assert store.get(KEY) == b"small"
            for file in tier.glob("vstate.db*"):
                file.unlink()
        assert store.get_many(contents) == contents
        store.set_many(contents)
        store.forget(KEY)
        assert store.get(KEY) == b"small"
        assert list(store.check()) == []


def test_a_directory_of_a_store_is_left_alone(tmp_path: Path) -> None:
    """A full cache deletes objects. It is refused in the directory of a store, and deletes none of a store
    that came there later.
    """
    with Cache(Memory(), 0, tmp_path / "store", 200_000) as cache:
        with Versioned(tmp_path / "store") as state:
            state["x"] = os.urandom(100_000)
            state.commit()
            before = set(state.store.keys())
            for number in range(32):
                cache.set(f"o/{number % 16:x}{number:063x}", os.urandom(10_000))
            assert state.store.present(before) == before
    with pytest.raises(InvalidInput, match="directory of its own"):
        Cache(Memory(), directory=tmp_path / "store")
