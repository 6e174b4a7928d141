"""The account of a Disk: the objects that one ref alone leads to."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vstate import Disk
from vstate.kv.base import Account, Accounted, Revised

ONE, TWO, THREE = (f"o/{digit * 64}" for digit in "123")
KEYS = [ONE, TWO, THREE]
VALUE = bytes(range(256)) * 4


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Disk]:
    with Disk(tmp_path / "store") as store:
        yield store


def publish(store: Disk, ref: str, *keys: str, alone: bool = True, after: str | None = None) -> None:
    writes = {**dict.fromkeys(keys, VALUE), f"r/heads/{ref}": b"1"}
    store.transact(Accounted(writes, Account(alone, after)), {})


def version(store: Disk, key: str, value: bytes, before: str, *, after: str | None = None) -> None:
    store.transact(Accounted({key: Revised(value, before)}, Account(True, after)), {})


@pytest.mark.parametrize(
    "again",
    [
        lambda store: store.set(ONE, VALUE),
        lambda store: store.set(ONE, b"other"),
        lambda store: store.compare_and_swap(ONE, VALUE, b"other"),
        lambda store: publish(store, "b", ONE),
        lambda store: publish(store, "b", ONE, alone=False),
        lambda store: publish(store, "b", ONE, after=THREE),
        lambda store: store.transact({ONE: Revised(VALUE, TWO)}, {}),
        lambda store: version(store, ONE, VALUE, TWO),
    ],
)
def test_an_object_that_another_line_sets_is_shared(store: Disk, again: Callable[[Disk], None]) -> None:
    """A line that sets an object of another line may lead to it too; other objects stay as they were."""
    publish(store, "a", ONE, TWO)
    assert store.unshared(KEYS) == {ONE: 1, TWO: 1}
    again(store)
    assert store.unshared(KEYS) == {TWO: 1}
    publish(store, "a", ONE, after=TWO)
    assert store.unshared(KEYS) == {TWO: 1}
    store.delete(ONE)
    publish(store, "a", ONE, after=TWO)
    assert store.unshared(KEYS) == {ONE: 1, TWO: 1}


def test_a_line_goes_on_from_its_last_commit(store: Disk) -> None:
    """A line may set its objects again. It ends where a ref comes to lead to its last commit."""
    publish(store, "a", ONE)
    version(store, TWO, VALUE, ONE, after=ONE)
    version(store, THREE, VALUE + b"!", TWO, after=TWO)
    assert store.unshared(KEYS) == dict.fromkeys(KEYS, 1)
    publish(store, "a", ONE, after=THREE)
    version(store, TWO, VALUE, ONE, after=THREE)
    assert store.unshared(KEYS) == dict.fromkeys(KEYS, 1)
    publish(store, "b", THREE, alone=False)
    assert store.unshared(KEYS) == {ONE: 1, TWO: 1}
    publish(store, "a", "o/" + "4" * 64, TWO, after=THREE)
    assert store.unshared([*KEYS, "o/" + "4" * 64]) == {ONE: 1, "o/" + "4" * 64: 2}


def test_a_ref_that_moves_without_account_shares_all(store: Disk) -> None:
    """An import or an older program may put a ref on anything; lines that begin later have an account."""
    publish(store, "a", ONE)
    publish(store, "b", TWO, alone=False)
    store.set("reflog/heads/c:1", b"line")
    assert store.unshared(KEYS) == {ONE: 1}
    store.set("r/heads/c", b"1")
    assert store.unshared(KEYS) == {}
    publish(store, "a", THREE, after=ONE)
    assert store.unshared(KEYS) == {THREE: 2}
    assert store.compare_and_swap("r/heads/c", b"1", b"2")
    assert store.unshared(KEYS) == {}
    publish(store, "a", "o/" + "4" * 64, after=THREE)
    assert store.unshared(["o/" + "4" * 64]) == {"o/" + "4" * 64: 3}
    with sqlite3.connect(Path(store.location) / "vstate.db") as older:
        write = "INSERT INTO kv (key, value) VALUES (?, ?)"
        write += " ON CONFLICT (key) DO UPDATE SET value = excluded.value"
        older.execute(write, (b"r/heads/a", b"2"))
    assert store.unshared(["o/" + "4" * 64]) == {}


def test_nothing_is_known_of_the_rows_of_format_2(tmp_path: Path) -> None:
    """A file without the account is read and written on, and its rows count as shared."""
    with Disk(tmp_path / "store") as store:
        store.transact({ONE: Revised(VALUE, TWO), THREE: VALUE}, {})
    with sqlite3.connect(tmp_path / "store" / "vstate.db") as old:
        old.execute("DROP TRIGGER kv_ref")
        old.execute("DROP TABLE lines")
        old.execute("ALTER TABLE kv DROP COLUMN line")
        old.execute("PRAGMA user_version=2")
    with Disk(tmp_path / "store") as store:
        assert store.unshared(KEYS) == {}
        assert (store.get(ONE), store.get(THREE)) == (VALUE, VALUE)
        publish(store, "a", THREE, TWO, after=ONE)
        assert store.unshared(KEYS) == {TWO: 1}
        assert list(store.check()) == []
