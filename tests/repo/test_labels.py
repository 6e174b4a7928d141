"""Labels: listings find branches by them, and they go where their branch goes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from agent_stores import AgentStore
from hypothesis import given
from hypothesis import strategies as st

from vstate import BranchChanges, Disk, Encrypted, Memory, Versioned
from vstate.errors import InvalidInput, RefMoved
from vstate.repo.clone import clone
from vstate.repo.repository import Repository
from vstate.repo.rules.labels import Atom, Label
from vstate.testing import Faulty

atoms = st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from([0.0, 1.0, "", "a", "1", "none"])
labels = st.dictionaries(st.sampled_from("abk"), atoms | st.lists(atoms, max_size=3), max_size=3)


@given(st.lists(labels, max_size=6), st.dictionaries(st.sampled_from("abk"), atoms, max_size=2))
@pytest.mark.slow
def test_a_listing_finds_what_a_filter_of_all_branches_finds(
    given: list[dict[str, Label]], wanted: dict[str, Atom]
) -> None:
    """A branch is found if it has each wanted label, or a list with it: of equal type, too."""
    repo = Repository(Memory())
    for i, each in enumerate(given):
        repo.commit(f"b{i}", set={"n": i}, labels=each)

    def has(each: dict[str, Label]) -> bool:
        options = {name: label if isinstance(label, list) else [label] for name, label in each.items()}
        return all(
            any((type(option), option) == (type(atom), atom) for option in options.get(name, []))
            for name, atom in wanted.items()
        )

    assert repo.branch_names(labels=wanted) == [f"b{i}" for i, each in enumerate(given) if has(each)]
    assert repo.labels() == {f"b{i}": dict(sorted(each.items())) for i, each in enumerate(given) if each}


def test_labels_go_where_their_branch_goes(agent_store: AgentStore) -> None:
    """A rename and a fork take them along; a deletion ends them, and a reset leaves them."""
    repo = Repository(agent_store())
    first = repo.commit("chat", set={"n": 1}, labels={"user": "ann"})
    repo.commit("chat", set={"n": 2})
    assert repo.commit("chat", set={"n": 2}) is None
    assert repo.labels() == {"chat": {"user": "ann"}}
    repo.move_branch("chat", first.id)  # type: ignore[union-attr]  # a commit
    repo.rename_branch("chat", "old")
    repo.create_branch("what-if", "old", like="old")
    repo.create_branch("bare", "old")
    assert repo.branch_names(labels={"user": "ann"}) == ["old", "what-if"]
    assert repo.commit("old", labels={"user": "bob"}) is not None  # labels alone are a commit
    assert repo.branch_names("o", labels={"user": "bob"}) == ["old"]
    repo.commit("old", labels={})
    repo.delete_branch("what-if")
    repo.commit("what-if", set={"n": 1}, expect=None)
    assert repo.labels() == {}
    assert repo.fsck().damage == ()
    assert repo.fsck().foreign == 0


def test_forgetting_a_branch_forgets_its_labels(agent_store: AgentStore) -> None:
    """No row holds a word of them, in a store with transactions and in one without."""
    for store in (agent_store(), Faulty(Memory(), atomic=False)):
        repo = Repository(store)
        repo.commit("kept", set={"n": 1}, labels={"user": "bob"})
        repo.commit("chat", set={"n": 2}, labels={"user": "ann@example"})
        repo.delete_branch("chat", forget=True)
        assert repo.labels() == {"kept": {"user": "bob"}}
        assert not [key for key, row in store.items() if b"ann@" in row]


def test_a_commit_that_is_refused_changes_no_labels(agent_store: AgentStore) -> None:
    """Labels change in the transaction of their commit; racing writers leave those of the last commit."""
    repo = Repository(agent_store())
    first = repo.commit("a", set={"n": 0}, labels={"n": 0})
    repo.commit("a", set={"n": 1})
    with pytest.raises(RefMoved):
        repo.commit_many(
            [BranchChanges("b", labels={"n": 9}), BranchChanges("a", labels={"n": 9}, expect=first)]
        )
    assert repo.labels() == {"a": {"n": 0}}

    def write(base: int) -> None:
        mine = Repository(agent_store())
        for n in range(base, base + 10):
            mine.commit("a", set={"n": n}, labels={"n": n})

    with ThreadPoolExecutor() as threads:
        list(threads.map(write, (100, 200, 300)))
    assert repo.labels()["a"]["n"] == Versioned(repo.store, branch="a")["n"]


def test_labels_of_a_store_without_transactions() -> None:
    """A commit cut short there may change them, but no listing names a branch that does not exist."""
    made, fail_at = Memory(), 0
    Repository(made).commit("a", set={"n": 1}, labels={"user": "ann"})
    while True:
        store, fail_at = Memory(), fail_at + 1
        store.set_many(dict(made.items()))
        faulty = Faulty(store, fail_at, ConnectionError, atomic=False)
        try:
            done = Repository(faulty).commit("b", set={"n": 1}, labels={"user": "ann"})
        except ConnectionError:
            done = None
        repo = Repository(store)
        assert repo.branch_names(labels={"user": "ann"}) in (["a"], ["a", "b"])
        assert list(repo.labels()) == repo.branch_names()
        if done is not None:
            break
    assert fail_at > 5


def test_a_clone_and_a_push_bring_labels(tmp_path: Path) -> None:
    """A branch that is new in the other store has its labels there, encrypted or not."""
    here = Repository(Disk(tmp_path / "here"))
    here.commit("main", set={"n": 1}, labels={"user": "ann"})
    clone(here.store, tmp_path / "there")
    there = Repository(Disk(tmp_path / "there"))
    assert there.branch_names(labels={"user": "ann"}) == ["main"]
    here.commit("chat", set={"n": 1}, labels={"user": "bob"})
    behind = Memory()
    for other in (there, Repository(Encrypted(behind, b"k" * 32))):
        here.push(other, ["chat"])
        assert other.branch_names(labels={"user": "bob"}) == ["chat"]
    assert not any(b"bob" in key.encode() + row for key, row in behind.items())


@pytest.mark.parametrize(
    "wrong", [{"a": {"b": 1}}, {"a": b"x"}, {"a": [["b"]]}, {1: "a"}, {"a": "x" * 4096}, {"a": 2**70}]
)
def test_wrong_labels_are_refused(wrong: dict[str, Label]) -> None:
    """Labels are a few texts and numbers; nothing is written otherwise."""
    repo = Repository(Memory())
    with pytest.raises(InvalidInput):
        repo.commit("a", set={"n": 1}, labels=wrong)
    with pytest.raises(InvalidInput):
        repo.branch_names(labels=wrong)  # type: ignore[arg-type]  # wrong on purpose
    assert repo.branch_names() == []


def test_a_branch_that_something_else_moved_is_possible() -> None:
    """Labels rule a branch out only while its newest commit set them: not after a plain commit, or a pull."""
    here, there = Repository(Memory()), Repository(Memory())
    for name in ("a", "b", "c"):
        here.commit(name, set={"n": 1}, labels={"user": ["ann"], "room": True})
    here.push(there, ["a"])
    assert there.possible_branches({"user": "bob"}) == []
    assert here.possible_branches({"user": "bob"}) == here.possible_branches({"new": "x"}) == []
    assert here.possible_branches({"user": "ann", "room": "any"}, "b") == ["b"]
    first = here.branch("a")
    here.commit("a", set={"n": 2}, labels={"user": ["ann", "bob"]})
    here.push(there, ["a"])
    here.commit("b", set={"n": 2})
    for repo, names in ((here, ["a", "b"]), (there, ["a"])):
        assert repo.possible_branches({"user": "bob"}) == names
        assert repo.labels_at(names[-1], repo.branch(names[-1]).oid) is None
    assert here.labels_at("a", here.branch("a").oid) == {"user": ["ann", "bob"]}
    here.move_branch("a", first.oid)
    here.commit("c", labels={"": True})
    assert here.possible_branches({"user": "eve"}) == ["a", "b", "c"]
