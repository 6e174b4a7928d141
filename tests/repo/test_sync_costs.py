"""The costs of sync: it sends and reads the difference, and little else."""

from __future__ import annotations

import pytest
from bundle_files import chain, equal, large, refs_of, save, whole
from sync_stores import Counted, cloned, push

from vstate import Memory, Versioned
from vstate.repo import Repository
from vstate.repo.exchange.sync import SyncReport
from vstate.repo.graph import GRAPH

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
    store = Memory()
    state = chain(store, 3)
    state.update({f"key/{i:04}": f"value {i}" * 30 for i in range(3000)})
    save(state, "many", long=[f"message {i}" for i in range(30_000)], block=large(1, 3_000_000))
    target, another = cloned(store), cloned(store)
    state["long"].append("one more")
    save(state, "little", renamed=state.pop("key/0100"))
    before = set(target.keys("o/"))
    new = {key: value for key, value in store.items("o/") if key not in before}
    report = push(store, target)
    assert report.objects == len(new)
    assert report.bytes == sum(map(len, new.values())) < 60_000
    equal(store, target)
    there = Counted(store)
    Repository(another).fetch(there, remote="origin")
    assert there.read < 2 * report.bytes


def ten_more(store: Memory, target: Memory, number: int) -> tuple[Counted, Counted, SyncReport]:
    """Push ten new commits of a few small keys, and count the costs on either side."""
    state = Versioned(store)
    for i in range(10):
        state[f"key/{number + i:06}"] = number + i
        save(state, f"{number + i}", last=f"text {number + i} " * 20)
    here, there = Counted(store), Counted(target)
    return here, there, push(here, there)


def test_a_push_costs_what_is_new() -> None:
    """Ten commits on ten thousand cost about as much as ten on a hundred, in calls and bytes."""
    costs = []
    for count in (100, 10_000):
        store = Memory()
        state = Versioned(store)
        for i in range(count):
            state[f"key/{i:06}"] = i
            state.commit(f"{i}")
        target = cloned(store)
        here, there, report = ten_more(store, target, count)
        assert refs_of(store) == refs_of(target)
        assert Repository(target).fsck(full=False).ok
        assert there.read < 2_000
        costs.append((len(here.calls), here.read, len(there.calls), there.written, report.objects))
    for few, many in zip(*costs, strict=True):
        assert many <= 2 * few
    assert costs[1][0] <= 45
    assert costs[1][2] <= 25


def test_a_fetch_costs_what_is_new() -> None:
    """Of ten commits on two thousand, each commit is asked for once, and the levels of the trees together."""
    store = Memory()
    state = Versioned(store)
    for i in range(2000):
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


def test_a_long_history_is_not_fetched_one_commit_after_the_other() -> None:
    """A fetch reads commits ahead by the reflog, as far as that goes."""
    store = Memory()
    state = Versioned(store)
    for i in range(1000):
        save(state, f"{i}", i=i)
    there = Counted(store)
    copy = cloned(there)
    assert refs_of(copy) == refs_of(store)
    assert len(there.calls) <= 100
    for key in sorted(store.keys("reflog/"))[::2]:
        store.set(key, b"damaged")
    again = Counted(store)
    assert refs_of(cloned(again)) == refs_of(store)
    assert len(again.calls) <= 100
    store.delete_many([*store.keys("reflog/"), *store.keys(GRAPH)])
    alone = Counted(store)
    assert refs_of(cloned(alone)) == refs_of(store)
    assert 1000 < len(alone.calls) < 1100


def test_branches_of_others_are_not_read_for_a_push_of_one_s_own() -> None:
    """A store with many branches that are not here costs no more than one without."""
    store = Memory()
    chain(store, 3)
    target = cloned(store)
    chain(store, 2, start=3)
    for number in range(5):
        other = Versioned(target).fork(f"other-{number}")
        for i in range(20):
            save(other, "elsewhere", x=(number, i))
    there = Counted(target)
    push(store, there)
    assert there.calls.count("get") + there.calls.count("get_many") <= 10
    whole(target)


def test_a_new_branch_of_a_store_that_went_on_sends_what_is_new() -> None:
    """The refs there lead to commits that are missing here, and these to common ones."""
    store = Memory()
    chain(store, 300)
    target = cloned(store)
    chain(target, 5, start=300)
    state = Versioned(store).fork("mine")
    save(state, "mine", mine=1)
    there = Counted(target)
    report = push(store, there, "mine")
    assert report.objects <= 5
    assert len(there.calls) <= 40
    assert there.asked <= 20
    whole(target)


def test_many_small_batches_and_groups_bring_the_same(small_batches: None) -> None:
    """Groups keep their order, and one is compared with the objects of the last."""
    store, target = Memory(), Memory()
    state = chain(store, 7)
    state.update({f"key/{i}": f"value {i}" * 30 for i in range(300)})
    state.commit("many")
    for i in range(5):
        state[f"key/{i}"] = large(i)
        state.commit("more")
    push(store, target)
    equal(store, target)
    whole(target)
