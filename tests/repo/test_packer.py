"""Packs in a repository: when objects are packed, and that no verb notices."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from damaged_stores import fill

from vstate import Disk, KVStore, Memory, StoreFull, Versioned
from vstate.errors import CorruptObject
from vstate.kv import Encrypted, Prefixed
from vstate.kv.base import OBJECT_PREFIX, Plain
from vstate.kv.disk import packs
from vstate.objects.ids import BLOB, Object, ObjectId
from vstate.repo import Repository, packer
from vstate.repo.objects import kind_of
from vstate.testing import Faulty


def packed(store: Disk) -> set[str]:
    """The keys of the packed objects."""
    with sqlite3.connect(Path(store.location) / "vstate.db") as connection:
        rows = connection.execute("SELECT key FROM kv WHERE typeof(value) = 'integer'").fetchall()
    return {OBJECT_PREFIX + key[1:].hex() for (key,) in rows}


def in_packs(store: Disk) -> list[bytes]:
    """All values in packs."""
    with sqlite3.connect(Path(store.location) / "vstate.db") as connection:
        rows = connection.execute("SELECT count, body FROM packs").fetchall()
    return [value for row in rows for value in packs.values_in(*row)]


def newest(state: Versioned) -> set[str]:
    """The keys of the newest commit, and of the nodes of its tree."""
    assert state.head is not None
    below = [state.head.root] if state.head.root is not None else []
    found = {state.head.oid}
    while below:
        oid = below.pop()
        found.add(oid)
        below += state.repo.objects.node(oid).children()
    return {OBJECT_PREFIX + oid.hex() for oid in found}


def grow(state: Versioned, commits: int, key: str = "chat") -> None:
    for number in range(commits):
        state[key] = [f"{key}: message {i} of a long talk" for i in range(number % 40)]
        state[f"{key}/step"] = number
        state.commit(f"{key} {number}")


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Versioned]:
    with Versioned(Disk(tmp_path / "store")) as state:
        yield state


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects are packed after each 20 KB."""
    monkeypatch.setattr(packer, "STEP_BYTES", 20_000)


@pytest.mark.usefixtures("eager")
def test_the_commit_that_packs_stays_alone(state: Versioned) -> None:
    """The commit after which a pack is made: its own object, its tree and its new values are in no pack."""
    assert isinstance(state.store, Disk)
    state["before"] = os.urandom(7_000)
    state.commit("before")
    while not packed(state.store):
        grow(state, 1)
        last = os.urandom(200 + state.get("n", 0))
        state.update(n=state.get("n", 0) + 1, last=last)
        state.commit("counted")
    assert not packed(state.store) & newest(state)
    values = {
        key: OBJECT_PREFIX + ObjectId.of(BLOB, value).hex()
        for key, value in state.items()
        if key in ("before", "last")
    }
    assert {key for key, name in values.items() if name in packed(state.store)} == {"before"}


def test_plain_forms_of_whole_objects_are_packed(state: Versioned) -> None:
    """A compressed object is unpacked first. A damaged one stays as it is, for fsck."""
    assert isinstance(state.store, Disk)
    grow(state, 50)
    state.repo.gc()
    assert all(value[:1].islower() for value in in_packs(state.store))
    state.update({f"large {i}": f"large {i} " * 50 for i in range(20)})
    state.commit("large")
    bad = next(key for key, value in state.store.items(OBJECT_PREFIX) if value[:1] == b"B")
    damaged = (state.store.get(bad) or b"")[:-1] + b"?"
    state.store.set(bad, damaged)
    state["large 0"] = 0
    state.commit("more")
    state.repo.gc()
    assert len(packed(state.store)) > 100
    assert bad not in packed(state.store)
    assert state.store.get(bad) == damaged
    assert [damage.id for damage in state.repo.fsck().damage] == [bad.removeprefix(OBJECT_PREFIX)]


@pytest.mark.usefixtures("eager")
def test_the_newest_commit_of_each_branch_stays_alone(state: Versioned) -> None:
    """Commits to several branches, in turn, are packed together, all but the newest trees."""
    assert isinstance(state.store, Disk)
    grow(state, 1)
    others = [state.fork(f"branch-{i}") for i in range(5)]
    for number in range(40):
        for other in others:
            other["n"] = f"{other.branch} {number}" * 20
            other.commit(str(number))
    kinds = {kind_of(state.store.get(key) or b"") for key in packed(state.store)}
    assert {kind.name for kind in kinds if kind is not None} == {"commit", "tree", "blob"}
    for other in others:
        assert not packed(state.store) & newest(other)


def test_gc_packs_all_but_the_newest_trees(state: Versioned) -> None:
    """It packs what no process packed, once."""
    assert isinstance(state.store, Disk)
    grow(state, 60)
    assert packed(state.store) == set()
    before = state.store.size()
    report = state.repo.gc(dry_run=True)
    assert packed(state.store) == set()
    report = state.repo.gc()
    assert set(state.store.keys(OBJECT_PREFIX)) - packed(state.store) == newest(state)
    assert report.removed == 0
    assert state.store.size() < before / 2
    ids = packed(state.store)
    state.repo.gc()
    assert packed(state.store) == ids
    assert state.repo.fsck().ok
    assert len(list(state.log())) == 60


@pytest.mark.slow
def test_gc_packs_beside_writers(state: Versioned, tmp_path: Path) -> None:
    """Writers commit and forget branches while two collectors run: no verb fails, and nothing is damaged."""
    grow(state, 20)

    def write(number: int) -> None:
        with Versioned(Disk(tmp_path / "store"), branch=f"w{number}") as mine:
            grow(mine, 30, f"w{number}")
            if number:
                mine.switch("main")
                mine.repo.delete_branch(f"w{number}", forget=True)

    def collect(_: int) -> None:
        with Disk(tmp_path / "store") as store:
            for _ in range(5):
                Repository(store).gc(keep_reflog="0s")

    with ThreadPoolExecutor(5) as threads:
        work = [threads.submit(write, i) for i in range(3)] + [threads.submit(collect, i) for i in range(2)]
        for future in work:
            future.result()
    state.repo.gc(keep_reflog="0s")
    report = state.repo.fsck()
    assert report.ok
    assert report.orphans == 0
    assert state.branch_names() == ["main", "w0"]


def test_forgetting_erases_from_packs(state: Versioned) -> None:
    """Nothing of the branch is in a pack when the call returns; the others are as they were."""
    assert isinstance(state.store, Disk)
    state["of all"] = "in common " * 30
    state.commit("first")
    secret = state.fork("secret")
    for number in range(30):
        secret["secret"] = f"a secret, number {number} " * 20
        secret.commit("hushed")
        state["public"] = f"known to all, number {number} " * 20
        state.commit("told")
    state.repo.gc()
    assert any(b"a secret" in value for value in in_packs(state.store))
    state.repo.delete_branch("secret", forget=True)
    assert not any(b"secret" in value or b"hushed" in value for value in in_packs(state.store))
    assert state.checkout("HEAD~20")["public"].startswith("known to all, number 9 ")
    assert state.repo.fsck().ok


def test_fsck_finds_a_damaged_pack(state: Versioned) -> None:
    """Each object in it is damaged. A repair moves them aside, and writing the same again heals."""
    assert isinstance(state.store, Disk)
    fill(state.store)
    repo = Repository(state.store)
    repo.gc()
    count = len(packed(state.store))
    with sqlite3.connect(Path(state.store.location) / "vstate.db") as connection:
        connection.execute("UPDATE packs SET body = randomblob(100)")
    with pytest.raises(CorruptObject):
        list(Versioned(Disk(state.store.location)).values())
    report = Repository(state.store).fsck()
    assert not report.ok
    lost = {damage.id for damage in report.damage}
    assert len(lost) == count
    with sqlite3.connect(Path(state.store.location) / "vstate.db") as connection:
        connection.execute("DELETE FROM packs")
    assert {damage.id for damage in Repository(state.store).fsck().damage} == lost
    repaired = Repository(state.store).fsck(repair=True)
    assert any("aside" in line for line in repaired.repaired)
    assert packed(state.store) == set()
    same = Memory()
    fill(same)
    state.store.set_many(dict(same.items("o/")))
    healed = {key.removeprefix("o/") for key in same.keys("o/")} & lost
    assert healed
    assert not healed & {damage.id for damage in Repository(state.store).fsck().damage}


class Begins:
    """A newest commit without a tree; while it is looked at, another branch begins."""

    def __init__(self) -> None:
        self.root = None
        self.new: Any = None

    @property
    def oid(self) -> ObjectId:
        self.new.newest["another"] = self
        return ObjectId(bytes(32))


def test_other_threads_commit_while_one_packs(state: Versioned) -> None:
    """A branch that begins while a packer looks at the newest commits disturbs nothing."""
    packs_all = packer.Packer(state.store)
    body = Object(BLOB, bytes(packer.STEP_BYTES // 2 + 1))
    newest: Any = Begins()
    for number in range(2):
        packs_all.note(0, {ObjectId(bytes([number]) * 32): body}, "main", newest)
        newest.new = packs_all._rooms.get(0)


class Full(Disk):
    """A Disk without room for packs."""

    tried = 0

    def pack(self, plain: Plain, keys: Sequence[str] | None = None) -> None:
        self.tried += 1
        raise StoreFull("no room")


@pytest.mark.usefixtures("eager")
def test_packing_never_fails_a_commit_or_a_gc(tmp_path: Path) -> None:
    """It is upkeep only."""
    with Full(tmp_path / "store") as store:
        state = Versioned(store)
        grow(state, 150)
        assert store.tried > 1
        state.repo.gc()
        assert state["chat/step"] == 149


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("front", ["Encrypted", "Prefixed", "Memory"])
def test_a_store_that_keeps_no_packs_is_not_asked(tmp_path: Path, front: str) -> None:
    """Neither by commits nor by gc."""
    with Disk(tmp_path / "store") as disk:
        fronts: dict[str, KVStore] = {
            "Encrypted": Encrypted(disk, bytes(32)),
            "Prefixed": Prefixed(disk, "a"),
            "Memory": Memory(),
        }
        store = Faulty(fronts[front])
        state = Versioned(store)
        grow(state, 150)
        state.repo.gc()
        assert "pack" not in store.calls
        assert packed(disk) == set()
        assert len(list(state.log())) == 150
