"""A Disk keeps later versions of a value as deltas, and reads each value as long as it is there."""

from __future__ import annotations

import random
import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vstate import Disk, StoreFull
from vstate.kv.base import Revised
from vstate.kv.disk.deltas import Damaged, pack_value, unpack_value

KEYS = [f"o/{i * 0x9E3779B97F4A7C15 % 2**256:064x}" for i in range(400)]


def _versions(count: int, *, length: int = 12_000) -> list[bytes]:
    """Texts, each of which has lost its beginning and gained an end."""
    source = random.Random(4).randbytes(length + 100 * count).hex().encode()
    return [b"b" + source[100 * i : 100 * i + length] for i in range(count)]


def _write(store: Disk, values: list[bytes], first: int = 0) -> None:
    for i, value in enumerate(values, first):
        assert store.transact({KEYS[i]: Revised(value, KEYS[i - 1]) if i else value}, {})


def _rows(store: Disk) -> list[tuple[int, bytes, int | None]]:
    with sqlite3.connect(Path(store.location) / "vstate.db") as connection:
        return list(connection.execute("SELECT rowid, key, base FROM kv ORDER BY rowid"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Disk]:
    with Disk(tmp_path / "store") as store:
        yield store


@pytest.mark.slow
@pytest.mark.parametrize("length", [300, 12_000])
def test_versions_take_the_room_of_their_differences(store: Disk, tmp_path: Path, length: int) -> None:
    """300 versions are read alone, together, listed and after a restart, from a fifth of their bytes."""
    values = _versions(300, length=length) if length > 300 else [b"t%d" % i + b"x" * 300 for i in range(300)]
    _write(store, values)
    for other in (store, Disk(tmp_path / "store")):
        assert [other.get(key) for key in KEYS[:300]] == values
        assert other.get_many(KEYS) == dict(zip(KEYS, values, strict=False))
        assert dict(other.items("o/")) == dict(zip(KEYS, values, strict=False))
    with sqlite3.connect(tmp_path / "store" / "vstate.db") as connection:
        (stored,) = connection.execute("SELECT sum(length(value)) FROM kv").fetchone()
    assert stored < sum(map(len, values)) / 5


def _steps(store: Disk) -> dict[bytes, list[int]]:
    """For each key the rows that a reader needs, down to the one that is packed by itself."""
    rows = {rowid: (key, base) for rowid, key, base in _rows(store)}
    found = {}
    for rowid, (key, base) in rows.items():
        found[key] = [rowid]
        while base:
            found[key].append(base)
            base = rows[base][1]
    return found


@pytest.mark.slow
def test_few_steps_lead_to_each_version(store: Disk) -> None:
    """20 steps lead to each value at the most, whatever grows, shrinks, or goes on from an older value."""
    source = random.Random(7)
    keys = [f"o/{source.randbytes(32).hex()}" for _ in range(1500)]
    values: list[bytes] = []
    for first in range(0, len(keys), 10):
        writes = {}
        for place in range(first, first + 10):
            before = max(0, place - source.choice([1] * 30 + [2, 5, 40]))
            old = values[before] if values else b""
            shrinks = len(old) > 5000 and source.random() < 0.7
            values.append(
                (b"b" if shrinks else old) + source.randbytes(source.randrange(100, 300)).hex().encode()
            )
            writes[keys[place]] = Revised(values[place], keys[before])
        assert store.transact(writes, {})
    assert [store.get(key) for key in keys] == values
    assert store.get_many(keys) == dict(zip(keys, values, strict=True))
    lengths = [len(rows) for rows in _steps(store).values()]
    assert max(lengths) <= 21
    assert len(lengths) == len(keys)


@pytest.mark.slow
def test_a_value_that_has_grown_takes_one_row_more(store: Disk) -> None:
    """A reader of the last values of 20 series, each of which grew 8 times, needs a row for each."""
    source = random.Random(5)
    common = source.randbytes(3500).hex().encode()
    series = [source.randbytes(100).hex().encode() + common for _ in range(20)]
    _write(store, [b"b" + text[: 800 * count] for text in series for count in range(1, 10)])
    steps = _steps(store)
    last = [bytes.fromhex(key[2:]) for key in KEYS[8 : 9 * 19 : 9]]
    needed = {row for key, rows in steps.items() if key[-32:] in last for row in rows}
    assert len(last) == 19  # the last series may go on
    assert len(needed) <= 19 + 2
    assert all(store.get(KEYS[i]) == b"b" + series[i // 9][: 800 * (i % 9 + 1)] for i in range(180))


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_order_of_deletions_and_writes(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A store of versions is a dict, also when bases are deleted, replaced or written again."""
    directory = tmp_path_factory.mktemp("deltas")
    values = _versions(40, length=1000)
    with Disk(directory) as one, Disk(directory) as two:
        model: dict[str, bytes] = {}
        for _ in range(data.draw(st.integers(1, 25))):
            store = data.draw(st.sampled_from([one, two]))
            i, count = data.draw(st.integers(0, 30)), data.draw(st.integers(1, 10))
            action = data.draw(st.sampled_from(["write", "grow", "grow", "delete", "replace", "set plainly"]))
            writes: dict[str, bytes | None] = {}
            for j in range(i, i + count):
                before = KEYS[j - data.draw(st.integers(1, 2))]
                if action == "write":
                    writes[KEYS[j]] = Revised(values[j], before)
                elif action == "grow":
                    writes[KEYS[j]] = Revised(values[0][: 150 * (1 + j % 6)], KEYS[j - 1])
                elif action == "replace":
                    writes[KEYS[j]] = Revised(values[-j], before)
                else:
                    writes[KEYS[j]] = None if action == "delete" else values[j]
            assert store.transact(writes, {key: model.get(key) for key in KEYS[i : i + 2]})
            model.update({key: value for key, value in writes.items() if value is not None})
            for key, value in writes.items():
                if value is None:
                    model.pop(key, None)
            for other in (one, two):
                assert dict(other.items()) == model
                assert set(other.keys()) == set(model)
                assert other.get_many(KEYS) == model
        assert all(one.get(key) == value for key, value in model.items())
        one.delete_many(KEYS)
        assert _rows(one) == []
        assert list(one.check()) == []


def test_a_deleted_base_stays_as_long_as_it_is_needed(store: Disk) -> None:
    """The last of 100 versions keeps 20 rows at the most; they go with it, and none of them is listed."""
    values = _versions(100)
    _write(store, values)
    store.delete_many(random.Random(1).sample(KEYS[:99], 99))
    assert store.get(KEYS[99]) == values[99]
    assert list(store.keys()) == [KEYS[99]]
    assert 1 < len(_rows(store)) <= 21
    store.delete(KEYS[99])
    assert _rows(store) == []


def test_a_vacuum_keeps_the_rows_on_which_others_are_based(tmp_path: Path) -> None:
    """A file that people shrink with SQLite's own command has all its values."""
    values = _versions(20)
    with Disk(tmp_path) as store:
        _write(store, values)
        store.delete_many(KEYS[:9])
    sqlite3.connect(tmp_path / "vstate.db", isolation_level=None).execute("VACUUM")
    with Disk(tmp_path) as store:
        assert store.get_many(KEYS) == dict(zip(KEYS[9:], values[9:], strict=False))
        store.transact({KEYS[30]: Revised(values[0], KEYS[19])}, {})
        assert store.get(KEYS[30]) == values[0]


def test_a_value_that_comes_back_is_not_written_again(store: Disk) -> None:
    """Two values that take turns leave two rows."""
    first, second = _versions(2)
    for _ in range(5):
        store.transact({KEYS[0]: Revised(first, KEYS[1])}, {})
        store.transact({KEYS[1]: Revised(second, KEYS[0])}, {})
    assert len(_rows(store)) == 2


def test_a_base_that_another_process_deletes_is_not_relied_upon(store: Disk, tmp_path: Path) -> None:
    """The next version is right, although the row of its base now holds another value."""
    values = _versions(12)
    _write(store, values[:10])
    with Disk(tmp_path / "store") as other:
        other.delete_many(KEYS)
        for i in range(10):
            other.transact({KEYS[20 + i]: Revised(bytes(reversed(values[i])), KEYS[19 + i])}, {})
    store.transact({KEYS[30]: Revised(values[10], KEYS[29])}, {})
    assert store.get(KEYS[30]) == values[10]


def test_a_failed_transaction_leaves_nothing_to_rely_on(tmp_path: Path) -> None:
    """The rowids of a transaction that was undone go to other rows."""
    values = _versions(20)
    with Disk(tmp_path / "store", size_limit=200_000) as store:
        _write(store, values[:10])
        with pytest.raises(StoreFull):
            store.transact({KEYS[10]: Revised(values[10], KEYS[9]), KEYS[11]: bytes(300_000)}, {})
        store.transact({KEYS[12]: Revised(values[5][::-1], KEYS[9])}, {})
        store.transact({KEYS[13]: Revised(values[13], KEYS[12])}, {})
        assert [store.get(key) for key in KEYS[10:14]] == [None, None, values[5][::-1], values[13]]


@pytest.mark.slow
def test_versions_are_deleted_from_a_full_file(tmp_path: Path) -> None:
    """Each deletion works where no write does, in any order."""
    values = _versions(400, length=8000)
    with Disk(tmp_path / "store", size_limit=120_000) as store:
        with pytest.raises(StoreFull):
            _write(store, values)
        there = sorted(store.keys())
        assert len(there) > 100
        random.Random(3).shuffle(there)
        for key in there[1:]:
            store.delete(key)
        assert store.get(there[0]) == values[KEYS.index(there[0])]
        store.delete(there[0])
        assert _rows(store) == []


@pytest.mark.parametrize("damage", [b"", b"\x01", b"\x81", b"\x85abc", b"\x05abc", b"\x80\x28\xb5\x2f\xfd"])
def test_damaged_rows_are_told(damage: bytes) -> None:
    """Bytes that are no packed value raise Damaged."""
    with pytest.raises(Damaged):
        unpack_value(damage, b"x" * 100)


def test_a_small_row_cannot_fill_the_memory() -> None:
    """A packed value of more than 64 KB is refused before it is unpacked."""
    huge = bytes(10_000_000)
    for version in (0, 1):
        with pytest.raises(Damaged):
            unpack_value(pack_value(huge, version, b"x"), b"x")
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    with pytest.raises(Damaged):
        unpack_value(b"\x01" + deflate.compress(huge) + deflate.flush(), b"")


def test_a_damaged_base_damages_its_versions_alone(store: Disk) -> None:
    """Other rows are read, and a damaged one gives bytes that no id matches."""
    values = _versions(10)
    _write(store, values)
    store.set("r/heads/main", b"1")
    rows = _rows(store)
    with sqlite3.connect(Path(store.location) / "vstate.db") as connection:
        connection.execute("UPDATE kv SET value = x'80112233' WHERE rowid = ?", (rows[3][0],))
    found = dict(store.items())
    assert set(found) == {*KEYS[:10], "r/heads/main"}
    assert [found[key] == value for key, value in zip(KEYS, values, strict=False)][:3] == [True] * 3
    assert found[KEYS[3]] != values[3]
    _write(store, values[3:5], 3)
    assert store.get(KEYS[3]) == values[3]
