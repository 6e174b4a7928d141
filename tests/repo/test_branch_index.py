"""The index of the branches: after any changes, it gives the same lists as reading all branches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from agent_stores import AgentStore
from bundle_files import save
from clock import standing_still
from counting import Counting
from histories import Tangle
from hypothesis import given
from hypothesis import strategies as st

from vstate import BranchChanges, Disk, KVStore, Memory, Versioned
from vstate.errors import AlreadyExists, NotFound, StoreUnavailable
from vstate.kv.base import is_object
from vstate.repo.repository import Repository
from vstate.repo.search.selection import select
from vstate.testing import Faulty

LABELS = ({"user": "ann"}, {"user": ["ann", "bob"], "n": 1}, {"user": True}, {"": True}, {})


def lists(repo: Repository) -> list[object]:
    """What lists show."""
    users = [{"user": "ann"}, {"user": "bob"}, {"user": "ann", "n": "1"}]
    return [
        list(repo.newest_branches()),
        list(repo.newest_branches("a")),
        *(repo.branch_names(labels=wanted) for wanted in (*users, {"n": 1}, {"n": 1, "user": "bob"})),
        *(repo.possible_branches(wanted, prefix) for wanted in users for prefix in ("", "a")),
    ]


def check(store: KVStore) -> None:
    """The lists are those that are made out of all branches, where the store keeps no index."""
    plain = Repository(store)
    plain.index.kept = False
    assert lists(Repository(store)) == lists(plain)
    assert Repository(store).fsck().damage == ()


STEPS: dict[str, Callable[[Repository, str, str, int], object]] = {
    "commit": lambda repo, one, other, n: repo.commit(one, set={"n": n}),
    "label": lambda repo, one, other, n: repo.commit(one, labels=LABELS[n % len(LABELS)]),
    "label again": lambda repo, one, other, n: repo.commit(one, set={"n": n}, labels=LABELS[0]),
    "reset": lambda repo, one, other, n: repo.move_branch(one, repo.branch(other)),
    "go back": lambda repo, one, other, n: repo.move_branch(one, f"{one}~1"),
    "fork": lambda repo, one, other, n: repo.create_branch(f"{one}{n}", one, like=one),
    "bare fork": lambda repo, one, other, n: repo.create_branch(f"{one}{n}", one),
    "rename": lambda repo, one, other, n: repo.rename_branch(one, f"a{n}"),
    "delete": lambda repo, one, other, n: repo.delete_branch(one),
    "forget": lambda repo, one, other, n: repo.delete_branch(one, forget=True),
    "gc": lambda repo, one, other, n: repo.gc(keep_reflog="0", grace="0"),
}


@given(st.lists(st.tuples(st.sampled_from(list(STEPS)), st.sampled_from("abc"), st.sampled_from("abc"))))
@pytest.mark.slow
def test_lists_follow_whatever_is_done_to_branches(steps: list[tuple[str, str, str]]) -> None:
    """Two programs take turns, so what each of them knows of the branches is often outdated."""
    store = Memory()
    repos = [Repository(store), Repository(store)]
    for name in "abc":
        repos[0].commit(name, set={"n": name}, labels={"user": name})
    for n, (step, one, other) in enumerate(steps):
        with suppress(NotFound):  # there may be no such branch, or no commit before
            STEPS[step](repos[n % 2], one, other, n)
    check(store)


@pytest.mark.slow
def test_the_newest_of_many_branches_come_in_order(agent_store: AgentStore) -> None:
    """Also those of one moment, of other rooms, and those that were written again a while after."""
    repo = Repository(agent_store())
    with standing_still() as time:
        for n in range(70):
            time.pass_(n % 7)
            repo.commit_many([BranchChanges(f"t/{n * 37 % 40}", set={"n": n}, room=n % 3 == 0)])
    check(repo.store)
    commits = [commit for _, commit in repo.newest_branches("t/")]
    assert len(commits) == 40
    assert commits == sorted(commits, key=lambda commit: -commit.order)


def test_a_branch_that_moves_during_a_list_comes_once() -> None:
    """Of those that were not read yet, one that gets a commit comes behind, and a deleted one not at all."""
    repo = Repository(Memory())
    with standing_still() as time:
        for n in range(40):
            time.pass_(2)
            repo.commit(f"b{n}", set={"n": n})
        found = repo.newest_branches()
        names = [next(found)[0]]
        time.pass_(2)
        repo.commit("b3", set={"n": "new"})
    repo.delete_branch("b4")
    names += [name for name, _ in found]
    assert names.count("b3") == 1
    assert [name for name in names if name != "b3"] == [f"b{n}" for n in range(39, -1, -1) if n not in (3, 4)]


def test_a_commit_cut_short_leaves_the_index_of_its_branch(tmp_path: Path) -> None:
    """The rows are in the transaction of the commit: all of them, or none."""
    for fail_at in range(1, 100):
        memory = Memory()
        Repository(memory).commit("a", set={"n": 1}, labels={"user": "ann"})
        store = Faulty(memory, fail_at, StoreUnavailable)
        try:
            repo = Repository(store)
            repo.commit("a", set={"n": 2}, labels={"user": "bob"})
            repo.commit("b", set={"n": 2}, labels={"user": "ann"})
            repo.rename_branch("a", "c")
        except StoreUnavailable:
            check(memory)
        else:
            break
    assert fail_at > 10


def test_writers_of_one_branch_leave_the_rows_of_the_last_one(tmp_path: Path) -> None:
    """Each of them has its own knowledge of the branch, and most of their attempts lose."""

    def write(user: str) -> None:
        repo = Repository(Disk(tmp_path))
        for n in range(15):
            repo.commit("a", set={user: n}, labels={"user": user} if n % 3 else None)
            repo.commit(f"b-{user}", set={"n": n}, labels={"user": user})

    with ThreadPoolExecutor() as threads:
        list(threads.map(write, ("ann", "bob", "eve")))
    check(Disk(tmp_path))


def stale(store: KVStore) -> None:
    before = {key: row for key, row in store.items("r/") if key.startswith(("r/newest/", "r/with/"))}
    repo = Repository(store)
    repo.commit("a", set={"n": 2}, labels={"user": "bob"})
    repo.delete_branch("b")
    store.set_many(before)


def forged(store: KVStore) -> None:
    store.set_many({"r/newest/0000000000/a": bytes(8), "r/with/00000000/nobody": b"", "r/newest/x": b""})


HARMS: dict[str, Callable[[KVStore], object]] = {
    "missing": lambda store: store.delete_many(list(store.keys("r/newest/"))),
    "forged": forged,
    "stale": stale,
    "wrong values": lambda store: store.set_many(dict.fromkeys(store.keys("r/newest/"), bytes(8))),
}


@pytest.mark.parametrize("harm", HARMS)
def test_fsck_finds_and_mends_wrong_rows(harm: str, agent_store: AgentStore) -> None:
    """It names the branch, whose values are not harmed, and writes its rows anew."""
    store = agent_store()
    repo = Repository(store)
    with standing_still() as time:
        for name in "abc":
            repo.commit_many([BranchChanges(name, labels={"user": "ann"}, room=name == "c")])
        time.pass_(60)
        HARMS[harm](store)
    assert {name for name, _ in repo.newest_branches()} <= set("abc")
    found = repo.fsck()
    assert not found.ok
    assert {damage.kind for damage in found.damage} == {"index"}
    assert all(damage.readable for damage in found.damage)
    assert len(found.plan) == found.damaged
    mended = repo.fsck(repair=True)
    assert (mended.ok, len(mended.repaired)) == (True, found.damaged)
    check(store)


def test_fsck_beside_a_writer_finds_nothing() -> None:
    """A commit may land at any moment between the reads of a branch and of its rows."""

    class Busy(Memory):
        moves = 0

        def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
            names = list(keys)
            if self.moves and names == ["r/labels/heads/a"]:
                self.moves -= 1
                Repository(self).commit("a", set={"n": self.moves}, labels={"user": "ann"})
            return super().get_many(names)

    for moves in (1, 2, 9):
        store = Busy()
        repo = Repository(store)
        repo.commit("a", labels={"user": "ann"})
        store.moves = moves
        assert repo.fsck().damage == ()
        assert store.moves < moves


def test_a_branch_that_ends_by_itself_leaves_no_row() -> None:
    """`gc` deletes a branch that was idle for too long with all that lists find it by."""
    with standing_still() as time:
        store = Memory()
        Repository(store).keep("guest", idle="60s")
        save(Versioned(store, branch="guest"), n=1)
        time.pass_(61)
        Repository(store).gc()
        assert not [key for key in store.keys("r/") if "guest" in key]


@pytest.mark.parametrize("seed", range(4))
def test_a_log_of_all_branches_begins_at_each_when_it_comes_to_it(seed: int) -> None:
    """It gives the commits of a walk that begins at all heads, newest first."""
    tangle = Tangle(Memory(), seed)
    tangle.grow(40)
    for store in (tangle.store, Faulty(tangle.store, atomic=False)):
        repo = Repository(store)
        every = list(dict.fromkeys(repo.refs.all().values()))
        out = [repo.branch(repo.branch_names()[0]).oid]
        for excluded in ([], out):
            found = replace(select(repo, [], all_refs=True), excluded=tuple(excluded)).walk()
            commits = [commit for commit, _ in found]
            assert Counter(commits) == Counter(repo.history.outside(every, excluded))
            assert commits == sorted(commits, key=lambda commit: -commit.order)


def test_the_first_page_of_a_log_reads_no_other(tmp_path: Path) -> None:
    """The first 10 commits of 150 branches come without the commits of most of them."""
    writer = Repository(Disk(tmp_path))
    with standing_still() as time:
        for n in range(150):
            time.pass_(2)
            writer.commit_many([BranchChanges(f"b{n}", set={"n": n}, room=n % 2 == 0)])
    store = Counting(Disk(tmp_path))
    repo = Repository(store)
    found = [commit for commit, _ in islice(select(repo, [], all_refs=True).walk(), 10)]
    assert [state["n"] for state in map(Versioned(Disk(tmp_path)).checkout, found)] == list(
        range(149, 139, -1)
    )
    assert len({name[-64:] for name in store.rows if is_object(name)}) < 40


def test_pages_of_names_follow_one_another(agent_store: AgentStore) -> None:
    """Whether the store lists its keys in order or not."""
    repo = Repository(agent_store())
    names = sorted(
        f"t/{name}" for name in ("a", "B", "a0", "é", "a/b", "a-b", "\N{BLACK CHESS PAWN}", "zz", "z")
    )
    repo.commit_many([BranchChanges(name, set={"n": 1}) for name in ["u", *names[::-1], "s"]])
    for reverse in (False, True):
        found, page = [], repo.branch_names("t/", limit=2, reverse=reverse)
        while page and len(found) < 2 * len(names):
            found += page
            page = repo.branch_names("t/", after=page[-1], limit=2, reverse=reverse)
        assert found == sorted(names, reverse=reverse)


def test_a_move_that_failed_is_not_noted() -> None:
    """A commit without labels that follows it makes the branch possible for any label."""
    store = Memory()
    repo = Repository(store)
    repo.commit("t", set={"n": 1}, labels={"user": "u1"})
    with pytest.raises(AlreadyExists):
        repo.create_branch("t", at="t")
    repo.commit("t", set={"n": 2})
    assert repo.possible_branches({"user": "u2"}) == ["t"]
    check(store)


def test_a_branch_that_another_program_made_anew_at_the_same_commit() -> None:
    """Its labels are not those that this program knows of the commit."""
    store = Memory()
    ours, theirs = Repository(store), Repository(store)
    theirs.commit("source", set={"n": 1}, labels={"user": "u1"})
    ours.create_branch("t", at="source")
    theirs.delete_branch("t")
    theirs.create_branch("t", at="source", like="source")
    ours.commit("t", set={"n": 2})
    assert theirs.possible_branches({"user": "u2"}) == ["t"]
    check(store)
