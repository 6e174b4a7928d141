"""Sync of histories that were cut off: no store loses history because another one lacks it."""

from __future__ import annotations

from pathlib import Path

import pytest
from bundle_files import chain, whole
from sync_stores import WAYS, Hooked, Once, cloned, push

from vstate import Disk, KVStore, Memory, Versioned
from vstate.repo import Repository
from vstate.testing import Faulty


def shortened(store: KVStore) -> Memory:
    """A copy with the two newest commits, and one more of its own."""
    copy = cloned(store)
    Repository(copy).gc(branch="main", keep_last=2, keep_reflog="0")
    chain(copy, 1, start=6)
    return copy


def length(store: KVStore, branch: str = "main") -> int:
    return len(list(Versioned(store, branch=branch).log()))


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_handle_learns_that_another_process_cut_the_history_off(kind: str, tmp_path: Path) -> None:
    """A handle that has walked the whole history learns of the cut."""
    store = Memory() if kind == "memory" else Disk(tmp_path, durability="process")
    state = chain(store, 6)
    assert len(list(state.log())) == 6
    assert state.head is not None
    assert state.repo.history.parents(state.head)
    Repository(store).gc(branch="main", keep_last=2, keep_reflog="0")
    target = Memory()
    state.push(target)
    assert length(target) == 2
    whole(target)
    other = Memory()
    Repository(other).fetch(state.repo, remote="origin")
    assert len(list(Repository(other).log("origin/main"))) == 2
    store.close()


def test_what_only_the_reflog_there_leads_to_is_not_cut_off() -> None:
    """A commit from which that store was moved away comes back, from a store that has less of its history."""
    store = Memory()
    head = chain(store, 6).head
    assert head is not None
    shallow = shortened(store)
    Versioned(store).reset("HEAD~5")
    push(shallow, store, force=True)
    assert length(store) == 7
    assert not list(store.keys("shallow/"))
    assert store.get("format") == b"vstate 1"
    Repository(store).gc()
    assert Repository(store).resolve(f"{head.id}~5").message == "c0"
    Repository(store).gc(keep_reflog="0")
    whole(store)
    assert length(store) == 7


def test_a_tag_beside_the_end_of_a_history_comes_with_all_that_it_leads_to() -> None:
    """A clone sends the branch first, whose history ends before a commit that the tag leads to."""
    store = Memory()
    chain(store, 6)
    repo = Repository(store)
    repo.create_branch("side", at="main~4")
    chain(store, 2, "side", start=6)
    repo.create_tag("t", "side")
    repo.delete_branch("side")
    repo.gc(branch="main", keep_last=4, keep_reflog="0")
    copy = cloned(store)
    whole(copy)
    for rev in ("main", "t"):
        assert [*Repository(copy).log(rev)] == [*repo.log(rev)]


@pytest.mark.parametrize("way", WAYS)
def test_of_a_merge_the_parent_that_is_there_is_kept(way: str) -> None:
    """Both parents were cut off here; the other store has one of them, and cuts off the other."""
    store = Memory()
    state = chain(store, 3)
    side = chain(store, 2, "side")
    merged = state.merge("side", policy="ours").commit
    assert merged is not None
    assert side.head is not None
    assert merged.parent_ids[1] == side.head.oid
    target = Memory()
    push(store, target, "side")
    repo = Repository(store)
    repo.delete_branch("side")
    repo.gc(branch="main", keep_last=1, keep_reflog="0")
    WAYS[way](store, target)
    there = Repository(target)
    assert there.history.parents(there.branch("main")) == (side.head.oid,)
    assert length(target) == 1 + length(target, "side")
    there.gc(keep_reflog="0")
    whole(target)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "plain"])
def test_a_history_that_comes_whole_meanwhile_is_not_cut_off(way: str, atomic: bool) -> None:
    """Of two writers the one whose history is cut off comes second, and has looked first."""
    store, target = Memory(), Memory()
    chain(store, 6)
    shallow = shortened(store)
    overtake = Once(lambda: push(store, Faulty(target, atomic=atomic)), "r/heads/other")
    Repository(shallow).create_branch("other", "main")
    WAYS[way](shallow, Hooked(target, overtake, atomic=atomic), "other")
    assert overtake.done
    assert (length(target), length(target, "other")) == (6, 7)
    assert not list(target.keys("shallow/"))
    whole(Hooked(target, overtake, atomic=atomic))
    fetching = Memory()  # this holds too if a fetch moves no ref
    overtake = Once(lambda: push(store, fetching), "gc")
    Repository(Hooked(fetching, overtake)).fetch(shortened(store))
    assert overtake.done
    assert length(fetching) == 6
    assert not list(fetching.keys("shallow/"))


@pytest.mark.parametrize("way", WAYS)
def test_a_history_does_not_continue_with_a_remnant(way: str) -> None:
    """A commit whose tree gc has removed stays out of a history that was cut off before it."""
    store, target = Memory(), Memory()
    chain(store, 5)
    key = f"o/{Repository(store).resolve('main~2').id}"
    remnant = store.get(key) or b""
    Repository(store).gc(branch="main", keep_last=2, keep_reflog="0")
    target.set(key, remnant)
    WAYS[way](store, target)
    assert [commit.message for commit in Repository(target).log("main")] == ["c4", "c3"]
    Repository(target).gc(keep_reflog="0")
    assert key not in target
    whole(target)
