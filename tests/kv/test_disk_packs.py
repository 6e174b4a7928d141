"""A Disk keeps values of objects in packs, and reads each value as long as it is there."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import SOAK, sized

from vstate import Disk, StoreFull, StoreUnavailable
from vstate.kv.disk import database, packs
from vstate.kv.stored_keys import is_stored_object, room_of

VALUES = {
    f"o/{i * 0x9E3779B97F4A7C15 % 2**256:064x}": b"b%d " % i + b"a value like the others" * 20
    for i in range(400)
}
KEYS = list(VALUES)
ROOM = "room/ff000000000000a1/"


def plain(key: str, value: bytes) -> bytes:
    return value


def connected(store: Disk) -> sqlite3.Connection:
    return sqlite3.connect(Path(store.location) / "vstate.db", isolation_level=None)


def contents(store: Disk) -> dict[int, list[bytes]]:
    """The values of each pack."""
    with connected(store) as connection:
        rows = connection.execute("SELECT id, count, body FROM packs").fetchall()
    return {number: list(packs.values_in(count, body)) for number, count, body in rows}


def places(store: Disk) -> dict[bytes, tuple[int, int]]:
    """The pack and the number of each packed row."""
    with connected(store) as connection:
        rows = connection.execute("SELECT key, value FROM kv WHERE typeof(value) = 'integer'").fetchall()
    return {key: divmod(place, packs.MOST_PACKED) for key, place in rows}


def is_tidy(store: Disk) -> bool:
    """Whether each value in a pack has one place, each place a value and each pack some, and none waits to be
    cut out.
    """
    found = contents(store).items()
    there = [(number, i) for number, values in found for i in range(len(values)) if values[i]]
    with connected(store) as connection:
        waiting = connection.execute("SELECT count(*) FROM freed").fetchone()
    is_each_used = all(any(values) for _, values in found)
    return is_each_used and (sorted(places(store).values()), waiting) == (sorted(there), (0,))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Disk]:
    with Disk(tmp_path / "store") as store:
        yield store


@pytest.fixture
def filled(store: Disk) -> Disk:
    store.set_many(VALUES)
    store.pack(plain)
    return store


def test_packed_values_take_a_fraction_of_their_room(store: Disk, tmp_path: Path) -> None:
    """They are read alone, together, listed and after a restart, and their room goes back to the system."""
    values = {key: value * 10 for key, value in VALUES.items()}
    store.set_many(values)
    store.release()
    before = store.size()
    store.pack(plain)
    store.release()
    assert store.size() < before / 5
    for other in (store, Disk(tmp_path / "store")):
        assert [other.get(key) for key in KEYS] == list(values.values())
        assert other.get_many(KEYS) == dict(other.items("o/")) == values
    assert len(places(store)) == len(VALUES)


SOME = KEYS[:40]
ROWS = {
    **{key: VALUES[key] for key in SOME},
    **{ROOM + key: VALUES[key] for key in SOME},
    # These only look like objects.
    **{f"{room}{kind}/{i}": b"x" * 100 for i in range(12) for room in ("", ROOM) for kind in ("r", "o")},
}
STEPS = ["pack all", "pack these", "delete", "set", "another form", "release", "open"]


@settings(max_examples=sized(15, 300))
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(STEPS), st.lists(st.sampled_from(list(ROWS)), min_size=12, max_size=60)),
        max_size=15,
    )
)
def test_packs_change_no_answer(steps: list[tuple[str, list[str]]]) -> None:
    """Whatever is packed, deleted, written again and cut out, the store is as a dict. Only objects are
    packed, those in rooms by their keys alone. One that is written again stays packed. In the end no pack has
    a value that nobody needs.
    """
    model = dict(ROWS)
    with TemporaryDirectory() as directory, Disk(directory, durability="process") as store:
        handles = [store]
        store.set_many(model)
        for step, keys in steps:
            used, before = handles[-1], places(store)
            if step == "pack all":
                used.pack(plain)
            elif step == "pack these":
                used.pack(plain, keys)
            elif step == "delete":
                used.delete_many(keys)
                for key in keys:
                    model.pop(key, None)
            elif step == "set":
                there = {key: model[key] for key in keys if key in model}
                assert used.transact({**there, "r/ref": b"1"}, {"r/ref": model.get("r/ref")})
                model["r/ref"] = b"1"
                assert places(store) == before
            elif step == "another form":
                used.delete_many(keys[:3])
                model.update(dict.fromkeys(keys[:3], b"another form"))
                used.set_many(dict.fromkeys(keys[:3], b"another form"))
            elif step == "release":
                used.release()
                assert is_tidy(store)
            else:
                handles.append(Disk(directory, durability="process"))
            new = places(store).keys() - before.keys()
            assert all(is_stored_object(key) for key in new)
            assert step != "pack all" or not any(map(room_of, new))
            for handle in handles:
                assert handle.get_many(ROWS) == {key: model[key] for key in ROWS if key in model}
            assert dict(store.items()) == {key: store.get(key) for key in model} == model
        store.release()
        assert is_tidy(store)
        assert list(store.check()) == []
        for handle in handles:
            handle.close()


def test_a_pack_is_cut_by_the_bytes_of_its_values(store: Disk) -> None:
    """The plain form may be many times as long as the stored one: there are more packs then."""
    store.set_many({key: b"b%d" % i for i, key in enumerate(KEYS)})
    store.pack(lambda key, value: value * 3000)
    assert [store.get(key) for key in KEYS] == [b"b%d" % i * 3000 for i in range(len(KEYS))]
    assert len(contents(store)) > 1
    assert all(
        sum(map(len, each)) <= packs.PACK_BYTES + packs.LONGEST_PACKED for each in contents(store).values()
    )


def test_a_pack_has_values_of_one_kind(store: Disk) -> None:
    """They begin with the same byte: a reader of all commits unpacks no nodes."""
    store.set_many({key: (b"t%d" if i % 3 else b"c%d") % i for i, key in enumerate(KEYS)})
    store.pack(plain)
    found = sorted(sorted({value[:1] for value in values}) for values in contents(store).values())
    assert found == [[b"c"], [b"t"]]


def test_long_values_and_few_values_stay_alone(store: Disk) -> None:
    """A long row, a row with a long plain form, and a handful of rows gain nothing by a pack."""
    long = dict.fromkeys(KEYS[:20], bytes(packs.LONGEST_PACKED + 1))
    growing = dict.fromkeys(KEYS[20:40], b"x")
    few = dict.fromkeys(KEYS[40 : 39 + packs.FEWEST_PACKED], b"y")
    store.set_many(long | growing | few)
    store.pack(lambda key, value: value * (2 * packs.LONGEST_PACKED if value == b"x" else 1))
    store.pack(plain, list(few))
    assert places(store) == {}
    store.set_many(dict.fromkeys(KEYS[40 : 40 + packs.FEWEST_PACKED], b"y"))
    store.pack(plain, KEYS[40 : 40 + packs.FEWEST_PACKED])
    assert len(places(store)) == packs.FEWEST_PACKED


def test_many_objects_are_packed_in_the_order_of_the_file(
    store: Disk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A pass over the table makes the same packs as the index does for few."""
    with Disk(tmp_path / "table") as another:
        for each in (store, another):
            each.set_many({f"room/{n:016x}/o/{n:064x}": b"bvalue" for n in range(1, 200)} | VALUES)
            each.pack(plain)
            monkeypatch.setattr("vstate.kv.disk.store.MOST_BY_INDEX", 1)
        assert [*contents(store).values()] == [*contents(another).values()]


def test_cutting_looks_at_no_other_pack(filled: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else the store holds: `release` reads neither all packs nor all rows."""
    said: list[str] = []
    opened = database.Database.open

    def heard(self: database.Database, handle: Any) -> sqlite3.Connection:
        connection = opened(self, handle)
        connection.set_trace_callback(said.append)
        return connection

    monkeypatch.setattr(database.Database, "open", heard)
    with Disk(filled.location) as other:
        other.delete(KEYS[0])
        other.release()
    monkeypatch.undo()
    assert is_tidy(filled)
    with connected(filled) as connection:
        looks = [line for line in said if line.startswith(("SELECT", "DELETE", "UPDATE"))]
        plans = [row[3] for line in looks for row in connection.execute(f"EXPLAIN QUERY PLAN {line}")]
    assert any("UPDATE packs" in line for line in said)
    assert not [plan for plan in plans if plan.startswith(("SCAN kv", "SCAN packs"))]


def test_a_pack_may_be_replaced_between_two_reads(
    filled: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that has the place finds the pack gone: it reads the row again."""
    with Disk(tmp_path / "store") as reader:
        query, replaced = reader._query, list[bool]()

        def meanwhile(sql: str, *arguments: Any, **options: Any) -> Any:
            if sql == packs.READ and not replaced:
                replaced.append(True)
                filled.delete_many([KEYS[0], KEYS[1]])
                filled.release()
            return query(sql, *arguments, **options)

        monkeypatch.setattr(reader, "_query", meanwhile)
        assert reader.get(KEYS[5]) == VALUES[KEYS[5]]
        replaced = []
        reader._packs = {}
        filled.set_many({key: VALUES[key] for key in KEYS[:2]})
        rest = {key: VALUES[key] for key in KEYS[2:]}
        assert {key: value for key, value in reader.get_many(KEYS).items() if key in rest} == rest


def test_a_row_that_is_packed_again_meanwhile_stays_there(
    filled: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process brings objects back and packs them, just before their old pack is written anew."""
    filled.delete(KEYS[0])
    with Disk(tmp_path / "store") as other:
        write, some = filled._write, KEYS[1:20]

        def later(each: Any) -> bool:
            monkeypatch.undo()
            other.delete_many(some)
            other.set_many({key: VALUES[key] for key in some})
            other.pack(plain, some)
            return write(each)

        monkeypatch.setattr(filled, "_write", later)
        filled.release()
        assert filled.get_many(KEYS) == {key: VALUES[key] for key in KEYS[1:]}
        assert is_tidy(filled)


def test_a_reader_takes_no_new_pack_for_an_old_one(filled: Disk, tmp_path: Path) -> None:
    """The number of a pack that is gone is not used again."""
    with Disk(tmp_path / "store") as reader:
        assert reader.get(KEYS[0]) == VALUES[KEYS[0]]
        filled.delete_many(KEYS)
        filled.release()
        others = {key: value[::-1] for key, value in VALUES.items()}
        filled.set_many(others)
        filled.pack(plain)
        assert reader.get_many(KEYS) == others


def test_a_file_that_took_the_place_of_the_open_one_has_packs_of_its_own(store: Disk) -> None:
    """A handle that goes on after a restored backup takes none of its packs for those in memory."""
    directory = Path(store.location)
    store.set_many(dict(list(VALUES.items())[:200]))
    with connected(store) as connection:
        connection.execute("VACUUM INTO ?", (str(directory / "backup"),))
    store.pack(plain)
    assert store.get(KEYS[0]) == VALUES[KEYS[0]]
    (directory / "vstate.db-wal").unlink()
    (directory / "vstate.db-shm").unlink()
    (directory / "backup").replace(directory / "vstate.db")
    with pytest.raises(StoreUnavailable, match="replaced"):
        store.get("r/heads/main")
    with Disk(directory) as other:
        other.set_many(dict(list(VALUES.items())[200:]))
        other.pack(plain, KEYS[200:])
    assert store.get_many(KEYS) == VALUES


def test_a_full_file_packs_nothing_and_loses_nothing(tmp_path: Path) -> None:
    """`pack` raises StoreFull; deletions and `release` work all the same."""
    with Disk(tmp_path / "store", size_limit=300_000) as store:
        noise = random.Random(5)
        rows = {key: b"b" + noise.randbytes(500) for key in KEYS}
        store.set_many(rows)
        for i in range(100):
            try:
                store.set(f"filler/{i}", bytes(3000))
            except StoreFull:
                break
        with pytest.raises(StoreFull):
            store.pack(plain)
        assert store.get_many(KEYS) == rows
        assert places(store) == {}
    with Disk(tmp_path / "store") as store:
        store.pack(plain)
    with Disk(tmp_path / "store", size_limit=store.size()) as store:
        store.delete_many(KEYS[::2])
        store.release()
        assert store.get_many(KEYS) == {key: rows[key] for key in KEYS[1::2]}
        assert is_tidy(store)


def test_a_pack_that_cannot_be_read_back_is_not_written(store: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows stay, and the error says what to look after."""
    store.set_many(VALUES)
    monkeypatch.setattr(packs._zstd, "decompress", bytes)
    with pytest.raises(StoreUnavailable, match="memory"):
        store.pack(plain)
    monkeypatch.undo()
    assert places(store) == {}
    assert store.get_many(KEYS) == VALUES


PLACES = "WHERE typeof(value) = 'integer' AND value < 2 * 4096"
DAMAGES = {
    "no zstd": "UPDATE packs SET body = x'112233' WHERE id = 1",
    "no bytes": "UPDATE packs SET body = 'text' WHERE id = 1",
    "a cut end": "UPDATE packs SET body = substr(body, 1, 200) WHERE id = 1",
    "another count": "UPDATE packs SET count = 100000 WHERE id = 1",
    "no count": "UPDATE packs SET count = 'many' WHERE id = 1",
    "missing": "DELETE FROM packs WHERE id = 1",
    "no such place": f"UPDATE kv SET value = value + 400 {PLACES}",
    "no place": f"UPDATE kv SET value = -value {PLACES}",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_to_a_pack_damages_its_values_alone(store: Disk, damage: str) -> None:
    """Each of them is empty, which no object is. They can be deleted, and written again then."""
    store.set_many(VALUES)
    store.pack(plain, KEYS[:200])
    store.pack(plain, KEYS[200:])
    with connected(store) as connection:
        connection.execute(DAMAGES[damage])
    expected = {key: b"" if key in KEYS[:200] else VALUES[key] for key in KEYS}
    assert store.get_many(KEYS) == dict(store.items()) == expected
    assert {key: store.get(key) for key in KEYS} == expected
    store.delete(KEYS[0])
    store.release()  # which cannot write a damaged pack anew
    assert store.compare_and_swap(KEYS[1], b"", None)
    store.set_many({key: VALUES[key] for key in KEYS[:2]})
    store.release()
    assert store.get_many(KEYS) == {**expected, **{key: VALUES[key] for key in KEYS[:2]}}


def test_a_small_pack_cannot_fill_the_memory() -> None:
    """A pack that claims to be longer than any is refused before it is unpacked."""
    body = packs._zstd.compress(bytes(100_000_000))
    with pytest.raises(ValueError, match="too long"):
        packs.values_in(1, body)


def test_rooms_share_packs_of_less_bytes(store: Disk) -> None:
    """To delete a room writes little anew. Few objects of each room are enough, and those of others stay."""
    rooms = [f"room/{number:016x}/" for number in range(1, 201)]
    rows = {room + key: value * 4 for room in rooms for key, value in list(VALUES.items())[:5]}
    store.set_many(rows)
    store.pack(plain, list(rows))
    assert len(places(store)) > len(rows) - packs.FEWEST_PACKED
    assert is_tidy(store)
    assert all(sum(map(len, values)) <= packs.SHARED_BYTES for values in contents(store).values())
    assert len(contents(store)) < len(rooms) / 4
    store.delete_many([key for key in rows if key.startswith(rooms[3])])
    store.release()
    assert is_tidy(store)
    assert dict(store.items("room/")) == {k: v for k, v in rows.items() if not k.startswith(rooms[3])}


def test_packs_stay_in_memory_by_their_bytes(store: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader in any order unpacks each pack once, and keeps the last ones only if not all have room."""
    store.set_many(VALUES)
    for first in range(0, 400, 20):
        store.pack(plain, KEYS[first : first + 20])
    assert len(contents(store)) == 20
    unpacked: list[int] = []
    values_in = packs.values_in
    monkeypatch.setattr(packs, "values_in", lambda *row: unpacked.append(1) or values_in(*row))
    assert {key: store.get(key) for key in sorted(KEYS)} == VALUES
    assert len(unpacked) == 20
    monkeypatch.setattr(packs, "KEPT_BYTES", 40_000)
    with Disk(store.location) as other:
        assert other.get_many(KEYS) == VALUES
        assert all(size == packs.size_in_memory(values) for values, size in other._packs.values())
        assert 30_000 < sum(size for _, size in other._packs.values()) <= 40_000


PACKER = """
import sys
from vstate import Disk
with Disk(sys.argv[1]) as store:
    print("ready", flush=True)
    while True:
        keys = sorted(store.keys("o/"))
        for first in range(0, len(keys), 40):
            store.pack(lambda key, value: value, keys[first:first + 40])
        for key in keys[::7]:
            value = store.get(key)
            store.delete(key)
            store.set(key, value)
        store.release()
"""


@pytest.mark.slow
def test_kills_between_the_steps(store: Disk) -> None:
    """Whatever step of packing and pruning a kill ends, each value is there, and no place leads nowhere."""
    store.set_many(VALUES)
    clock = random.Random(7)
    for _ in range(12 if SOAK else 5):
        process = subprocess.Popen([sys.executable, "-c", PACKER, store.location], stdout=subprocess.PIPE)
        with process:
            assert process.stdout is not None
            assert process.stdout.readline()
            time.sleep(clock.uniform(0, 0.25))
            process.kill()
        found = dict(store.items())
        # At most the one that the process had just deleted is absent.
        assert len(found) >= len(VALUES) - 1
        assert all(VALUES[key] == value for key, value in found.items())
        assert list(store.check()) == []
        store.set_many(VALUES)
    store.pack(plain)
    store.release()
    assert dict(store.items()) == VALUES
    assert is_tidy(store)
    assert len(places(store)) > len(VALUES) - packs.FEWEST_PACKED
