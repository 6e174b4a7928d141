"""Commits that arrive in a store, in a bundle or by a push, before a ref leads to them; gc runs meanwhile."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping

import pytest

from vstate import Memory, Versioned
from vstate.kv.base import OBJECT_PREFIX
from vstate.repo import Repository
from vstate.repo.names.refs import REF
from vstate.repo.sweeps import arrivals


class Killed(Exception):
    """The process of an import ends."""


class Between(Memory):
    """A store that calls `act` before the transaction of gc with that number; no ref moves meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.number = -1
        self.act: Callable[[], None] = lambda: None
        self.refs_stay = False

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
    bundle = io.BytesIO()
    Repository(other).export(bundle, ["side"])
    repo = Repository(store)
    Versioned(other, branch="side").push(store)
    repo.commit("main", set={"kept": 1})
    repo.delete_branch("side")

    def act() -> None:
        if way == "import":
            repo.import_bundle(io.BytesIO(bundle.getvalue()))
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


def test_commits_that_arrived_without_a_ref_stay_noted() -> None:
    """Until a sweep: the import brought them, and moved no ref to them."""
    store, other = Memory(), Memory()
    for each in (store, other):
        Repository(each).commit("main", set={"value": id(each)})
    bundle = io.BytesIO()
    Repository(other).export(bundle, ["main"])
    repo = Repository(store)
    bundle.seek(0)
    assert [ref.outcome for ref in repo.import_bundle(bundle).refs] == ["diverged"]
    assert arrivals(store)[1] == [Repository(other).resolve("main").oid]
    assert repo.fsck().foreign == 0
    repo.gc()
    assert arrivals(store) == ([], [])
