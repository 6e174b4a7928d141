"""Commits to several branches in one transaction: `Repository.commit_many`."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress

import pytest
from agent_stores import AgentStore
from bundle_files import save
from sync_stores import Hooked, Once

from vstate import BranchChanges, Commit, KVStore, Memory, Versioned
from vstate.errors import InvalidInput, NotFound, RefMoved, StoreUnavailable
from vstate.objects.commit import Event
from vstate.repo.repository import Repository
from vstate.testing import Faulty
from vstate.values.entry import decode_value


def values(store: KVStore, branch: str) -> dict[str, object]:
    return dict(Versioned(store, branch=branch))


def put(branch: str, value: object, **options: object) -> BranchChanges:
    return BranchChanges(branch, set={"n": value}, **options)  # type: ignore[arg-type]  # as the tests give them


def test_all_of_the_branches_move_or_none(agent_store: AgentStore) -> None:
    """One branch that is elsewhere keeps all of them where they are, and RefMoved names it."""
    repo = Repository(agent_store())
    first = repo.commit_many([put("a", 1, expect=None), put("b", 1, expect=None, message="born")])
    assert [commit is not None for commit in first] == [True, True]
    assert [commit.message for commit in repo.branches().values()] == ["", "born"]
    before = repo.branch_ids()
    for wrong in (None, first[0]):
        with pytest.raises(RefMoved) as caught:
            repo.commit_many([put("a", 2, expect=first[0]), put("c", 2), put("b", 2, expect=wrong)])
        assert caught.value.ref == "heads/b"
    assert repo.branch_ids() == before
    made = repo.commit_many(
        [put("c", 2), put("a", 1), BranchChanges("b", events=[Event.now("seen", {})], expect=first[1])]
    )
    assert made[1] is None  # there is nothing to change
    assert repo.branch_ids() == {"a": first[0].id, "b": made[2].id, "c": made[0].id}  # type: ignore[union-attr]
    assert [line.action for line in repo.refs.reflog("heads/b")] == ["commit", "commit: born"]
    assert repo.fsck().damage == ()


@pytest.mark.slow
def test_readers_see_all_of_the_commits_or_none(agent_store: AgentStore) -> None:
    """Threads move an amount between two branches; the sum is right at every moment, and in the end."""
    repo, names = Repository(agent_store()), ["left", "right"]
    repo.commit_many([put(name, 100) for name in names])
    done = threading.Event()

    def sums() -> None:
        reader = Repository(agent_store())
        while not done.is_set():
            assert sum(_amount(reader, commit) for commit in reader.branches(names).values()) == 200

    def move(step: int) -> None:
        mine = Repository(agent_store())
        left = 8
        while left:
            heads = mine.branches(names)
            steps = dict(zip(names, (step, -step), strict=True))
            changes = [put(n, _amount(mine, heads[n]) + steps[n], expect=heads[n]) for n in names]
            with suppress(RefMoved):
                mine.commit_many(changes)
                left -= 1

    with ThreadPoolExecutor(4) as threads:
        reader = threads.submit(sums)
        try:
            list(threads.map(move, (1, 3, 7)))
        finally:
            done.set()
        reader.result()
    assert [_amount(repo, commit) for commit in repo.branches(names).values()] == [188, 12]


def _amount(repo: Repository, commit: Commit) -> int:
    entry = repo.entry(commit.root, "n")
    assert entry is not None
    return int(decode_value(entry, repo.objects).value)


def test_a_branch_without_a_commit_counts_too() -> None:
    """The other branches move only while a branch that stays is as it was found."""
    store = Memory()
    (a, _) = Repository(store).commit_many([put("a", 1), put("b", 1)])

    def beside(value: int) -> Repository:
        """A repository whose next transaction comes right after a commit by another writer."""
        other = Once(lambda: Repository(store).commit("a", set={"n": value}), "r/heads/a")
        return Repository(Hooked(store, other))

    with pytest.raises(RefMoved):
        beside(5).commit_many([put("a", 1, expect=a), put("b", 2)])
    assert values(store, "b") == {"n": 1}
    beside(7).commit_many([put("a", 5), put("b", 2)])  # anywhere: on top of the other commit
    assert (values(store, "a"), values(store, "b")) == ({"n": 5}, {"n": 2})
    assert len(list(Repository(store).log("a"))) == 4


@pytest.mark.parametrize("landed", [True, False])
def test_a_lost_answer_is_looked_up(landed: bool) -> None:
    """If the answer to the transaction is lost, all of the branches have moved, or the error comes out."""
    memory = Memory()
    faulty = Faulty(memory, error=lambda text: StoreUnavailable(text, outcome_unknown=True), after=landed)
    repo = Repository(faulty)
    first = repo.commit_many([put("a", 1), put("b", 1)])
    changes = [put(name, 2, expect=head) for name, head in zip("ab", first, strict=True)]
    faulty.calls.clear()
    faulty.fail_at = 2  # a read of the refs, and the transaction
    with nullcontext() if landed else pytest.raises(StoreUnavailable):
        first = repo.commit_many(changes)
    assert [commit.id for commit in first if commit] == [*Repository(memory).branch_ids().values()]


def test_a_store_without_transactions_refuses_several_branches() -> None:
    """The error says what to do, and nothing is written; one branch is an ordinary commit."""
    memory = Memory()
    repo = Repository(Faulty(memory, atomic=False))
    assert repo.commit_many([put("a", 1)]) != [None]
    rows = dict(memory.items())
    with pytest.raises(InvalidInput, match="one branch at a time"):
        repo.commit_many([put("a", 2), put("b", 2)])
    assert dict(memory.items()) == rows


def test_wrong_arguments_are_refused() -> None:
    """A branch may not be there twice."""
    repo = Repository(Memory())
    with pytest.raises(InvalidInput, match="'a' is there twice"):
        repo.commit_many([put("a", 1), put("b", 1), put("a", 2)])
    assert repo.commit_many([]) == []
    assert repo.branch_names() == []


def test_a_branch_that_is_forgotten_meanwhile_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that another process forgets after the look at its ref is no damage."""
    store = Memory()
    Repository(store).commit("a", set={"n": 1})
    repo = Repository(store)
    read_many, late = repo.refs.read_many, [1]

    def beside(refs: list[str]) -> object:
        found = read_many(refs)
        if late:
            late.pop()
            Repository(store).delete_branch("a", forget=True)
        return found

    monkeypatch.setattr(repo.refs, "read_many", beside)
    assert repo.commit_many([put("a", 2)]) != [None]
    assert [commit.parents for commit in repo.log("a")] == [()]


def test_a_branch_begins_at_a_base() -> None:
    """A branch with a base is one commit on top of it, even without changes; the branch must be new."""
    repo = Versioned(Memory()).repo
    base = repo.commit("main", set={"a": 1, "b": 2})
    assert base is not None
    side, same = BranchChanges("side", base=base, delete=["b"]), BranchChanges("same", base=base)
    made = repo.commit_many([side, same])
    assert [commit.parents for commit in made if commit] == [(base.id,), (base.id,)]
    assert [list(Versioned(repo.store, branch=name)) for name in ("side", "same")] == [["a"], ["a", "b"]]
    with pytest.raises(RefMoved):
        repo.commit_many([BranchChanges("side", base=base, set={"c": 3})])
    with pytest.raises(InvalidInput, match="must not exist"):
        BranchChanges("new", base=base, expect=base)
    other = Versioned(Memory(), branch="other")
    elsewhere = save(other, "elsewhere", elsewhere=1)
    with pytest.raises(NotFound):
        repo.commit_many([BranchChanges("new", base=elsewhere, set={"c": 3})])
    assert repo.newest("new") is None


def test_a_commit_with_further_parents(agent_store: AgentStore) -> None:
    """It merges these: also if nothing changes, and if they are in other rooms; NotFound once gc has them."""
    repo = Repository(agent_store())
    (ours,), (theirs,) = (repo.commit_many([put(name, 1, room=True)]) for name in "ab")
    assert ours is not None
    assert theirs is not None
    (made,) = repo.commit_many([BranchChanges("a", expect=ours, merges=[theirs])])
    assert made is not None
    assert made.parent_ids == (ours.oid, theirs.oid)
    assert repo.merge("a", "b").strategy == "up-to-date"
    repo.delete_branch("b", forget=True)
    assert {commit.oid for commit in repo.log("a")} == {ours.oid, theirs.oid, made.oid}
    assert repo.fsck().damage == ()
    (gone,) = repo.commit_many([put("c", 2, room=True)])
    assert gone is not None
    repo.delete_branch("c", forget=True)
    with pytest.raises(NotFound):
        repo.commit_many([BranchChanges("a", expect=made, merges=[gone])])
