"""Commits to several branches in one transaction: `Repository.commit_many`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from agent_stores import AgentStore
from clock import standing_still

from vstate import BranchChanges, Disk, Memory, Versioned
from vstate.errors import InvalidInput, LeaseLost, NotFound, RefMoved, StoreUnavailable, Unpicklable
from vstate.objects.commit import Event
from vstate.repo.repository import Repository
from vstate.testing import Faulty


def values(repo: Repository, branch: str) -> dict[str, object]:
    return dict(Versioned(repo.store, branch=branch))


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
    failures: list[BaseException] = []

    def sums() -> None:
        reader = Repository(agent_store())
        while not done.is_set():
            total = 0
            for commit in reader.branches(names).values():
                total += _amount(reader, commit.root)
            assert total == 200

    def move(step: int) -> None:
        mine = Repository(agent_store())
        left = 8
        while left:
            heads = mine.branches(names)
            amounts = {name: _amount(mine, heads[name].root) for name in names}
            changes = [
                put(name, amounts[name] + sign * step, expect=heads[name])
                for name, sign in zip(names, (1, -1), strict=True)
            ]
            try:
                mine.commit_many(changes)
                left -= 1
            except RefMoved:
                pass

    def kept(function: object, *arguments: object) -> None:
        try:
            function(*arguments)  # type: ignore[operator]  # sums or move
        except BaseException as error:
            failures.append(error)

    reader = threading.Thread(target=kept, args=(sums,))
    writers = [threading.Thread(target=kept, args=(move, step)) for step in (1, 3, 7)]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert not failures
    assert [_amount(repo, commit.root) for commit in repo.branches(names).values()] == [188, 12]


def _amount(repo: Repository, root: object) -> int:
    entry = repo.entry(root, "n")  # type: ignore[arg-type]  # the root of a commit
    assert entry is not None
    return int(repo.decode("n", entry, repo.objects).value)


KILLED = """
import sys
from vstate import BranchChanges, Disk
from vstate.repo import Repository
repo = Repository(Disk(sys.argv[1]))
for n in range(100_000):
    repo.commit_many([BranchChanges(name, set={"n": n, "text": "x" * 50 * n}) for name in "abc"])
    print(n, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("commits", [1, 4, 13])
def test_a_killed_writer_leaves_the_branches_together(commits: int, tmp_path: Path) -> None:
    """After SIGKILL at any moment, all branches have the same commit, and the store is whole."""
    command = [sys.executable, "-c", KILLED, str(tmp_path / "store")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(commits):
            last = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
    repo = Repository(Disk(tmp_path / "store"))
    found = {values(repo, name)["n"] for name in "abc"}
    assert len(found) == 1
    assert found.pop() >= last
    assert repo.fsck().damage == ()


class Interrupted(Memory):
    """Another writer comes right before the next transaction."""

    def __init__(self) -> None:
        super().__init__()
        self.others: list[object] = []

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        if self.others:
            self.others.pop()()  # type: ignore[operator]  # a function
        return super().transact(writes, expected)


def test_a_branch_without_a_commit_counts_too() -> None:
    """The other branches move only while a branch that stays is as it was found."""
    store = Interrupted()
    repo = Repository(store)
    (a, _) = repo.commit_many([put("a", 1), put("b", 1)])
    store.others = [lambda: Repository(store).commit("a", set={"n": 5})]
    with pytest.raises(RefMoved):
        repo.commit_many([put("a", 1, expect=a), put("b", 2)])
    assert values(repo, "b") == {"n": 1}
    store.others = [lambda: Repository(store).commit("a", set={"n": 7})]
    repo.commit_many([put("a", 5), put("b", 2)])  # anywhere: on top of the other commit
    assert (values(repo, "a"), values(repo, "b")) == ({"n": 5}, {"n": 2})
    assert len(list(repo.log("a"))) == 4


def test_a_lost_answer_is_looked_up() -> None:
    """If the answer to the transaction is lost, all of the branches have moved, or the error comes out."""
    for landed in (True, False):
        memory = Memory()
        faulty = Faulty(memory, error=lambda text: StoreUnavailable(text, outcome_unknown=True), after=landed)
        repo = Repository(faulty)
        first = repo.commit_many([put("a", 1), put("b", 1)])
        changes = [put(name, 2, expect=head) for name, head in zip("ab", first, strict=True)]
        faulty.calls.clear()
        faulty.fail_at = 2  # a read of the refs, and the transaction
        if landed:
            assert [commit.id for commit in repo.commit_many(changes) if commit] == [
                *repo.branch_ids().values()
            ]
        else:
            with pytest.raises(StoreUnavailable):
                repo.commit_many(changes)
            assert [c.id for c in first if c] == [*Repository(memory).branch_ids().values()]


def test_a_store_without_transactions_refuses_several_branches() -> None:
    """The error says what to do, and nothing is written; one branch is an ordinary commit."""
    memory = Memory()
    repo = Repository(Faulty(memory, atomic=False))
    assert repo.commit_many([put("a", 1)]) != [None]
    rows = dict(memory.items())
    with pytest.raises(InvalidInput, match="one branch at a time"):
        repo.commit_many([put("a", 2), put("b", 2)])
    assert dict(memory.items()) == rows


def test_branches_that_expire() -> None:
    """An expired branch begins anew, or counts as absent if it gets no commit."""
    with standing_still() as time:
        store = Memory()
        for name in ("old", "idle"):
            state = Versioned(store, branch=name, ttl=60)
            state["before"] = 1
            state.commit()
        time.pass_(61)
        repo = Repository(store)
        idle = BranchChanges("idle", delete=["before"], expect=None)
        made = repo.commit_many([put("old", 1, expect=None), put("new", 1), idle])
        assert made[2] is None
        assert repo.branch_names() == ["new", "old"]
        assert values(repo, "old") == {"n": 1}


def test_a_lease_guards_all_of_the_branches() -> None:
    """Once the lease is lost, no branch moves."""
    state = Versioned(Memory())
    with state.lease("writer", ttl=30) as lease:
        state.repo.commit_many([put("a", 1), put("b", 1)], guard=lease)
    before = state.repo.branch_ids()
    with pytest.raises(LeaseLost):
        state.repo.commit_many([put("a", 2), put("b", 2)], guard=lease)
    assert state.repo.branch_ids() == before


def test_wrong_arguments_are_refused() -> None:
    """A branch that is there twice, a value that cannot be stored, an `expect` that is no commit."""
    repo = Repository(Memory())
    with pytest.raises(InvalidInput, match="'a' is there twice"):
        repo.commit_many([put("a", 1), put("b", 1), put("a", 2)])
    with pytest.raises(Unpicklable):
        put("a", threading.Lock())
    with pytest.raises(TypeError, match="expect is a Commit"):
        put("a", 1, expect="main")
    with pytest.raises(InvalidInput):
        put("bad..name", 1)
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
    other["elsewhere"] = 1
    elsewhere = other.commit("elsewhere")
    with pytest.raises(NotFound):
        repo.commit_many([BranchChanges("new", base=elsewhere, set={"c": 3})])
    assert repo.newest("new") is None
