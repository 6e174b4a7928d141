"""Squashing: older history becomes one commit, in one move, and stays gone beside stale writers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
import time_machine
from sync_stores import Hooked, Once

from vstate import Disk, Memory, Versioned
from vstate.errors import InvalidInput, NotFound, ReadOnly, RefMoved, UntrustedCommit
from vstate.objects.commit import Event
from vstate.repo import Repository
from vstate.repo.rules.security import Security
from vstate.repo.rules.signing import SigningKey, check


def told(store: Memory | Disk, count: int = 6, branch: str = "main") -> Versioned:
    state = Versioned(store, branch=branch)
    for number in range(count):
        state[f"k{number}"] = number
        state.commit(f"c{number}", by=number)
    return state


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_the_newest_commits_stay(keep: int) -> None:
    """One root with the values of its time, then the newest commits as they were, with new ids."""
    store = Memory()
    told(store)
    repo = Repository(store)
    repo.commit("main", set={"e": 1}, events=[Event.now("said", {"n": 1})], message="c6", info={"by": 6})
    before = list(repo.log("main"))
    head = repo.squash("main", keep=keep)
    after = list(repo.log("main"))
    assert after[0] == head == repo.branch("main")
    *newest, root = after
    for new, old in zip(newest, before, strict=False):
        assert (new.root, new.time, new.message, new.info) == (old.root, old.time, old.message, old.info)
        assert [(e.kind, e.data, e.commit) for e in new.events] == [
            (e.kind, e.data, new.id) for e in old.events
        ]
    assert len(newest) == keep
    folded = before[keep]
    assert (root.root, root.time, root.parent_ids, root.events) == (folded.root, folded.time, (), ())
    assert root.info == {"squashed": folded.id}
    assert repo.squash("main", keep=keep) == head  # short enough
    with pytest.raises(InvalidInput, match="keep"):
        repo.squash("main", keep=-1)
    repo.undo("main")
    assert list(repo.log("main")) == before


def test_a_squash_of_an_old_history_can_be_undone_for_as_long_as_any_move() -> None:
    """Its line in the reflog has the time of the squash, not of the commits, so gc keeps the old ones."""
    with time_machine.travel(datetime(2025, 1, 1, tzinfo=UTC)):
        store = Memory()
        told(store)
    repo = Repository(store)
    with time_machine.travel(datetime(2026, 1, 1, tzinfo=UTC)):
        before = list(repo.log("main"))
        repo.squash("main")
        repo.gc(grace="0s")
        repo.undo("main")
        assert list(repo.log("main")) == before


REWRITES: dict[str, Callable[[Repository], object]] = {
    "squash": lambda repo: repo.squash("thread", keep=2),
    "squash to one": lambda repo: repo.squash("thread"),
    "prune": lambda repo: (
        repo.commit("thread", delete=[f"k{n}" for n in range(6)]),
        repo.squash("thread"),
    ),
    "forget": lambda repo: repo.delete_branch("thread", forget=True),
    "forget and begin anew": lambda repo: (
        repo.delete_branch("thread", forget=True),
        repo.commit("thread", set={"new": 1}),
    ),
}


@pytest.mark.parametrize("rewrite", REWRITES)
def test_a_stale_writer_brings_nothing_back(rewrite: str) -> None:
    """A commit, an update, a lease's commit and a merge by a policy: nothing that was pruned comes back."""
    store = Memory()
    told(store, branch="thread").set_policy("k", "theirs")
    stale, racing, updating = (Versioned(store, branch="thread") for _ in range(3))
    repo = Repository(store)
    old = {commit.id for commit in repo.log("thread")}
    for handle in (stale, racing):
        handle["k0"] = "stale"
        del handle["k1"]
    REWRITES[rewrite](repo)
    for commit in (stale.commit, lambda: racing.commit(on_race="raise")):
        with pytest.raises(RefMoved) as raised:
            commit()
        assert raised.value.ref == "heads/thread"
    with stale.lease("turn") as lease, pytest.raises(RefMoved):
        lease.commit()
    if rewrite != "forget":
        updating.apply(lambda now: now.update(mine=1))  # begins from the newest state
        assert updating["mine"] == 1
        assert not old & {commit.id for commit in repo.log("thread")}
        assert ("k3" in updating) == rewrite.startswith("squash")
    stale.discard()
    racing.discard()


def test_a_commit_meanwhile_is_one_of_the_newest() -> None:
    """Without `seen`, a branch that moves is squashed where it is then; with `seen`, RefMoved."""
    store = Memory()
    told(store)
    seen = Repository(store).branch("main")

    def beside(value: int) -> Repository:
        """A repository whose next move of the branch comes right after a commit by another writer."""
        late = Once(lambda: Repository(store).commit("main", set={"late": value}), "r/heads/main")
        return Repository(Hooked(store, late))

    beside(7).squash("main", keep=1)
    assert Versioned(store)["late"] == 7
    assert len(list(Repository(store).log("main"))) == 2
    with pytest.raises(RefMoved):
        beside(8).squash("main", keep=0, seen=seen)


def test_a_history_that_is_cut_off_meanwhile_is_not_built_upon() -> None:
    """If gc removes the commit that the new root stands for, the squash is refused: NotFound."""
    store = Memory()
    told(store)
    cut = Once(lambda: Repository(store).gc(branch="main", keep_last=1, keep_reflog="0s"), "r/heads/main")
    with pytest.raises(NotFound):
        Repository(Hooked(store, cut)).squash("main", keep=2)
    assert cut.done
    assert Repository(store).fsck().damage == ()


@pytest.mark.slow
def test_writers_beside_squashes(tmp_path: Path) -> None:
    """Writers that count lose no step, while another thread squashes again and again."""
    store = Disk(tmp_path, durability="process")
    repo = told(store, 1).repo

    def count() -> None:
        state = Versioned(store)
        for _ in range(30):
            state.apply(lambda now: now.update(k0=now["k0"] + 1), attempts=1000)

    with ThreadPoolExecutor() as threads:
        writers = [threads.submit(count) for _ in range(2)]
        while not all(writer.done() for writer in writers):
            repo.squash("main", keep=1)
    for writer in writers:
        writer.result()
    assert Versioned(store)["k0"] == 60
    repo.squash("main", keep=1)
    assert len(list(repo.log("main"))) == 2


def test_signs_anew_what_it_trusts() -> None:
    """It signs nothing that it does not trust. A program that trusts and has no key changes nothing.

    A program with no key and no keys that it trusts makes unsigned commits.
    """
    store = Memory()
    key, stranger = SigningKey.generate(), SigningKey.generate()
    ours = Repository(store, Security(sign=key, trust=[]))
    for number in range(3):
        ours.commit("main", set={"n": number})
    ours.squash("main", keep=1)
    assert all(commit.signature is not None for commit in ours.log("main"))
    with pytest.raises(ReadOnly):
        Repository(store, Security(trust=[key.public])).squash("main")
    theirs = Repository(store, Security(sign=stranger))
    theirs.commit("main", set={"n": 9})
    with pytest.raises(UntrustedCommit):
        ours.squash("main")
    Repository(store).squash("main", keep=1)
    assert {check(commit) for commit in ours.log("main")} == {"unsigned"}
