"""The account of a Disk: the objects that one ref alone leads to."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from vstate import Disk
from vstate.kv.base import Accounted, Revised

ONE, TWO, THREE = (f"o/{digit * 64}" for digit in "123")
KEYS = [ONE, TWO, THREE]
VALUE = bytes(range(256)) * 4


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Disk]:
    with Disk(tmp_path / "store") as store:
        yield store


def publish(store: Disk, ref: str, *keys: str, alone: bool = True) -> None:
    store.transact(Accounted({**dict.fromkeys(keys, VALUE), f"r/heads/{ref}": b"1"}, alone=alone), {})


@pytest.mark.parametrize(
    "again",
    [
        lambda store: store.set(ONE, VALUE),
        lambda store: store.set(ONE, b"other"),
        lambda store: publish(store, "b", ONE),
        lambda store: publish(store, "b", ONE, alone=False),
        lambda store: store.transact({ONE: Revised(VALUE, TWO)}, {}),
        lambda store: store.transact(Accounted({ONE: Revised(VALUE, TWO)}, alone=True), {}),
    ],
)
def test_an_object_that_is_set_again_is_shared(store: Disk, again: object) -> None:
    """Whoever sets an object again may lead to it too; other objects stay as they were."""
    publish(store, "a", ONE, TWO)
    assert store.unshared(KEYS) == {ONE, TWO}
    again(store)  # type: ignore[operator]  # a function of the table above
    assert store.unshared(KEYS) == {TWO}
    store.delete(ONE)
    assert store.unshared(KEYS) == {TWO}
    publish(store, "a", ONE)
    assert store.unshared(KEYS) == {ONE, TWO}


def test_a_version_of_another_object_has_an_account_too(store: Disk) -> None:
    """A value that is kept as a difference is unshared until it is set again."""
    store.transact(Accounted({ONE: Revised(VALUE, TWO)}, alone=True), {})
    store.transact(Accounted({TWO: Revised(VALUE + b"!", ONE)}, alone=True), {})
    assert store.unshared(KEYS) == {ONE, TWO}
    store.set(TWO, VALUE + b"!")
    assert store.unshared(KEYS) == {ONE}
    assert (store.get(ONE), store.get(TWO)) == (VALUE, VALUE + b"!")


def test_a_ref_that_moves_without_account_shares_all(store: Disk) -> None:
    """An import or an older program may put a ref on anything; objects that come later have an account."""
    publish(store, "a", ONE)
    publish(store, "b", TWO, alone=False)
    store.set("reflog/heads/c:1", b"line")
    assert store.unshared(KEYS) == {ONE}
    store.set("r/heads/c", b"1")
    assert store.unshared(KEYS) == set()
    publish(store, "a", THREE)
    assert store.unshared(KEYS) == {THREE}
    with sqlite3.connect(Path(store.location) / "vstate.db") as older:
        write = "INSERT INTO kv (key, value) VALUES (?, ?)"
        write += " ON CONFLICT (key) DO UPDATE SET value = excluded.value"
        older.execute(write, (b"r/heads/a", b"2"))
    assert store.unshared(KEYS) == set()


def test_nothing_is_known_of_the_rows_of_format_2(tmp_path: Path) -> None:
    """A file without the account is read and written on, and its rows count as shared."""
    with Disk(tmp_path / "store") as store:
        store.transact({ONE: Revised(VALUE, TWO), THREE: VALUE}, {})
    with sqlite3.connect(tmp_path / "store" / "vstate.db") as old:
        old.execute("DROP TRIGGER kv_ref")
        old.execute("DROP TABLE sharing")
        old.execute("ALTER TABLE kv DROP COLUMN once")
        old.execute("PRAGMA user_version=2")
    with Disk(tmp_path / "store") as store:
        assert store.unshared(KEYS) == set()
        assert (store.get(ONE), store.get(THREE)) == (VALUE, VALUE)
        publish(store, "a", THREE, TWO)
        assert store.unshared(KEYS) == {TWO}
        assert list(store.check()) == []
