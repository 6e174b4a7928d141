"""The costs of sync: it sends and reads the difference, and little else."""

from __future__ import annotations

import pytest
from bundle_files import chain, equal, large, refs_of, save, whole
from sync_stores import Counted, cloned, push

from vstate import Memory, Versioned
from vstate.repo import Repository

pytestmark = pytest.mark.slow

# Objects that are there already


def test_what_nothing_leads_to_is_not_relied_on() -> None:
    """A commit without its tree, a tree without its leaves: any part of it may be there, and the rest is
    sent.
    """
    store = Memory()
    state = chain(store, 3)
    state.update({f"key/{i}": f"value {i}" * 30 for i in range(300)})
    state.commit("many")
    rows = dict(store.items("o/"))
    for rest in range(3):
        target = Memory()
        target.set_many({key: value for i, (key, value) in enumerate(rows.items()) if i % 3 != rest})
        report = push(store, target)
        assert report.objects == len([i for i in range(len(rows)) if i % 3 == rest])
        equal(store, target)
        whole(target)


def test_only_what_differs_is_sent() -> None:
    """A push sends the changed parts of long values and trees, and no value that moved to another key."""
    store, block = Memory(), bytearray(large(1, 3_000_000))
    state = chain(store, 3)
    state.update({f"key/{i:04}": f"value {i}" * 30 for i in range(1000)})
    save(state, "many", long=[f"message {i}" for i in range(10_000)], block=bytes(block))
    target, another = cloned(store), cloned(store)
    state["long"].append("one more")
    block[1_500_000:1_500_010] = bytes(10)
    save(state, "little", renamed=state.pop("key/0100"), block=bytes(block))
    before = set(target.keys("o/"))
    new = {key: value for key, value in store.items("o/") if key not in before}
    here, there = Counted(store), Counted(store)
    report = push(here, target)
    assert report.objects == len(new)
    assert report.bytes == sum(map(len, new.values())) < 100_000
    equal(store, target)
    Repository(another).fetch(there, remote="origin")
    assert here.read < 4 * report.bytes
    assert there.read < 2 * report.bytes


def test_a_push_costs_what_is_new() -> None:
    """Ten commits on three hundred cost about as much as ten on a hundred, in calls and bytes."""
    costs = []
    for count in (100, 300):
        store = Memory()
        state = Versioned(store)
        for i in range(count):
            state[f"key/{i:06}"] = i
            state.commit(f"{i}")
        target = cloned(store)
        for i in range(count, count + 10):
            state[f"key/{i:06}"] = i
            save(state, f"{i}", last=f"text {i} " * 20)
        here, there = Counted(store), Counted(target)
        report = push(here, there)
        assert refs_of(store) == refs_of(target)
        assert Repository(target).fsck(full=False).ok
        assert there.read < 2_000
        costs.append((len(here.calls), here.read, len(there.calls), there.written, report.objects))
    for few, many in zip(*costs, strict=True):
        assert many <= 2 * few
    assert costs[1][0] <= 45
    assert costs[1][2] <= 25


def test_a_fetch_costs_what_is_new() -> None:
    """Of ten commits on five hundred, each commit is asked for once, and the levels of the trees together."""
    store = Memory()
    state = Versioned(store)
    for i in range(500):
        state[f"key/{i:06}"] = i
        state.commit(f"{i}")
    target = cloned(store)
    Repository(target).fetch(store, remote="origin")
    for i in range(10):
        state[f"key/{i:06}"] = "new"
        state.commit("new")
    there, here = Counted(store), Counted(target)
    report = Repository(here).fetch(there, remote="origin")
    assert report.refs[0].status == "moved"
    assert len(there.calls) <= 30
    assert there.read <= 3 * report.bytes
    Versioned(target).merge("origin/main")
    equal_heads = refs_of(target)
    assert equal_heads["heads/main"] == refs_of(store)["heads/main"]
    whole(target)


def test_a_new_branch_of_a_store_that_went_on_sends_what_is_new() -> None:
    """The refs there lead to commits that are missing here, and these to common ones."""
    store = Memory()
    for number in range(300):
        save(store, n=number)
    target = cloned(store)
    chain(target, 5, start=300)
    save(Versioned(store).fork("mine"), "mine", mine=1)
    there = Counted(target)
    report = push(store, there, "mine")
    assert report.objects <= 5
    assert len(there.calls) <= 40
    assert there.asked <= 20
    whole(target)
