"""Commits that arrive in a store, in a bundle or by a push, before a ref leads to them; gc runs meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from bundle_files import exported, imported, outcomes

from vstate import Memory, Versioned
from vstate.errors import NotFound
from vstate.kv.base import OBJECT_PREFIX
from vstate.repo import Repository
from vstate.repo.history import History
from vstate.repo.names.refs import REF
from vstate.repo.objects import Objects
from vstate.repo.sweeps import ARRIVED, arrivals
from vstate.repo.upkeep.reach import Reach


class Killed(Exception):
    """The process of an import ends."""


class Between(Memory):
    """A store that calls `act` before the transaction of gc with that number; no ref moves meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.number = -1
        self.act: Callable[[], None] = lambda: None
        self.refs_stay = False
        self.before_objects: Callable[[], object] | None = None

    def exclusively(self, plan: Callable[[], Mapping[str, bytes | None]]) -> bool:
        if self.number == 0:
            self.refs_stay = True
            with pytest.raises(Killed):
                self.act()
            self.refs_stay = False
        self.number -= 1
        return super().exclusively(plan)

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        if self.refs_stay and any(key.startswith(REF) for key in writes):
            raise Killed
        if self.before_objects is not None and any(key.startswith(OBJECT_PREFIX) for key in writes):
            act, self.before_objects = self.before_objects, None
            act()
        return super().transact(writes, expected)


@pytest.mark.parametrize("way", ["import", "push"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_commit_that_arrives_beside_gc_is_whole_or_gone(way: str, number: int) -> None:
    """Its values are there as garbage, so the import does not write them, and gc is about to remove them."""
    store, other = Between(), Memory()
    state = Versioned(other, branch="side")
    state["value"] = bytes(range(256)) * 20
    new = state.commit("arrives")
    assert new is not None
    bundle = exported(other, "side")
    repo = Repository(store)
    Versioned(other, branch="side").push(store)
    repo.commit("main", set={"kept": 1})
    repo.delete_branch("side")

    def act() -> None:
        if way == "import":
            imported(store, bundle)
        else:
            Versioned(other, branch="side").push(store)

    store.number, store.act = number, act
    repo.gc(keep_reflog="0s")
    assert store.number < 0
    if OBJECT_PREFIX + new.oid.hex() in store:
        repo.swap_branch("back", None, new, action="back")
        assert dict(Versioned(store, branch="back")) == dict(state)
    state.push(store)
    assert dict(Versioned(store, branch="side")) == dict(state)
    assert not list(store.keys("arrived/"))


def test_of_a_branch_that_has_diverged_nothing_arrives() -> None:
    """The import moves no ref there, so no object is needed."""
    store, other = Memory(), Memory()
    for each in (store, other):
        Repository(each).commit("main", set={"value": id(each)})
    before = dict(store.items())
    assert outcomes(imported(store, exported(other, "main"))) == {"heads/main": "diverged"}
    assert dict(store.items()) == before


def arrive(store: Between, bundle: bytes) -> None:
    """An import ends before a ref leads to its commits."""
    store.refs_stay = True
    with pytest.raises(Killed):
        imported(store, bundle)
    store.refs_stay = False


def test_notes_go_without_garbage_and_with_damage() -> None:
    """A branch leads to the noted commits by now. A damaged note hides no other."""
    store, other = Between(), Memory()
    commit = Repository(other).commit("new", set={"value": 1})
    assert commit is not None
    repo = Repository(store)
    repo.commit("main", set={"value": 2})
    arrive(store, exported(other, "new"))
    assert repo.fsck().foreign == 0
    repo.swap_branch("back", None, commit, action="back")
    store.set(f"{ARRIVED}0", b"damaged")
    assert arrivals(store)[1] == [commit.oid]
    assert repo.gc(keep_reflog="0s").removed == 0
    assert arrivals(store) == ([], [])
    assert Versioned(store, branch="back")["value"] == 1


@pytest.mark.parametrize("forget", [True, False])
def test_many_noted_commits_go_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch, forget: bool) -> None:
    """A store lets others write in between, and each commit that is there is whole at any time."""
    monkeypatch.setattr("vstate.repo.upkeep.gc.MOST_DELETED", 2)
    monkeypatch.setattr("vstate.repo.upkeep.forgetting.MOST_DELETED", 2)
    other = Memory()
    for number in range(7):
        Repository(other).commit("new", set={"value": [number] * 500})
    arriving = exported(other, "new")
    store = Between()
    repo = Repository(store)
    repo.commit("main", set={"kept": 1})
    repo.commit("side", set={"value": [0] * 500})
    arrive(store, arriving)
    exclusively = store.exclusively

    def counted(plan: Callable[[], Mapping[str, bytes | None]]) -> bool:
        before = {*store.keys(OBJECT_PREFIX)}
        done = exclusively(plan)
        assert len(before.difference(store.keys(OBJECT_PREFIX))) <= 2
        for oid in Objects(store).commit_ids(""):
            reach = Reach(Objects(store), History(Objects(store)))
            assert all(reach.extend([oid]))
        return done

    monkeypatch.setattr(store, "exclusively", counted)
    if forget:
        repo.delete_branch("side", forget=True)
    repo.gc(keep_reflog="0s")
    assert len(Repository(store).branch_names()) == (1 if forget else 2)
    assert arrivals(store) == ([], [])
    assert {*map(str, Objects(store).commit_ids(""))} == set(repo.branch_ids().values())


def test_gc_removes_what_a_bundle_continues_from() -> None:
    """Right after the import has seen it: the import is refused with the name of that commit."""
    store, other = Between(), Memory()
    repo = Repository(store)
    repo.commit("main", set={"kept": 1})
    first = Repository(other).commit("side", set={"value": bytes(5000)})
    assert first is not None
    Versioned(other, branch="side").push(store)
    Repository(other).commit("side", set={"more": 1})
    bundle = exported(other, "side", since=[str(first.oid)])
    repo.delete_branch("side")
    store.before_objects = lambda: repo.gc(keep_reflog="0s")
    with pytest.raises(NotFound, match=str(first.oid)[:10]):
        imported(store, bundle)
    assert arrivals(store) == ([], [])


def test_a_push_writes_no_commit_after_a_sweep_of_its_objects() -> None:
    """It has found them in the store. It begins anew, and dies before it moves the ref."""
    store, other = Between(), Memory()
    state = Versioned(other, branch="side")
    state["value"] = bytes(5000)
    state.commit("arrives")
    repo = Repository(store)
    repo.commit("main", set={"kept": 1})
    state.push(store)
    repo.delete_branch("side")
    new = state.repo.branch("side")
    store.delete(OBJECT_PREFIX + new.oid.hex())
    store.refs_stay = True
    written = []

    def sweep() -> None:
        store.refs_stay = False
        repo.gc(keep_reflog="0s")
        store.refs_stay = True
        store.before_objects = lambda: written.append(len(list(store.keys(OBJECT_PREFIX))))

    store.before_objects = sweep
    with pytest.raises(Killed):
        state.push(store)
    assert written == [2]  # nothing but main's two objects, when the value is written again
    store.refs_stay = False
    repo.swap_branch("back", None, new, action="back")
    assert Versioned(store, branch="back")["value"] == state["value"]


def test_a_forgotten_branch_leaves_no_noted_commit_without_its_objects() -> None:
    """The commit has arrived without a ref, and holds the value that is forgotten."""
    store, other = Between(), Memory()
    value = bytes(5000)
    arrived = Repository(other).commit("new", set={"value": value})
    assert arrived is not None
    repo = Repository(store)
    repo.commit("main", set={"kept": 1})
    repo.commit("side", set={"value": value})
    arrive(store, exported(other, "new"))
    assert OBJECT_PREFIX + arrived.oid.hex() in store
    repo.delete_branch("side", forget=True)
    assert OBJECT_PREFIX + arrived.oid.hex() not in store
