"""A commit without a working tree: `Repository.commit`."""

from __future__ import annotations

import threading
import time

import pytest

from vstate import Memory, Versioned
from vstate.errors import InvalidInput, LeaseLost, RefMoved, Unpicklable
from vstate.kv.base import KVStore
from vstate.objects.commit import Event
from vstate.repo.repository import Repository


def test_the_tree_is_that_of_a_working_tree(store: KVStore) -> None:
    values = {"n": 1, "text": "x" * 5000, "list": [1, {"a": b"2"}], "long": bytes(range(256)) * 1000}
    state = Versioned(Memory(), branch="main")
    state.update(values)
    state.commit()
    repo = Repository(store)
    first = repo.commit("main", set={**values, "gone": 0}, message="first", info={"who": "me"})
    made = repo.commit("main", delete=["gone", "never there"], events=[Event.now("tidied", {"keys": 1})])
    assert first is not None
    assert made is not None
    assert state.head is not None
    assert made.tree == state.head.tree
    assert (first.message, first.info, made.parents) == ("first", {"who": "me"}, (first.id,))
    opened = Versioned(store, branch="main")
    assert dict(opened) == values
    assert [event.kind for event in made.events] == ["tidied"]
    assert repo.commit("main", set={"n": 1}, delete=["gone"]) is None


def test_a_commit_lands_only_where_it_is_expected(store: KVStore) -> None:
    repo = Repository(store)
    first = repo.commit("main", set={"n": 1}, expect=None)
    with pytest.raises(RefMoved):
        repo.commit("main", set={"n": 2}, expect=None)
    second = repo.commit("main", set={"n": 2}, expect=first)
    with pytest.raises(RefMoved):
        repo.commit("main", set={"n": 3}, expect=first)
    with pytest.raises(RefMoved):
        repo.commit("main", set={"n": 2}, expect=first)  # even a change that is there already
    with pytest.raises(RefMoved):
        repo.commit("other", set={"n": 1}, expect=first)
    assert repo.newest("main") == second
    assert repo.newest("other") is None


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"set": {"k": 1}, "delete": ["k"]}, InvalidInput, "both set and deleted"),
        ({"set": {"": 1, "x" * 5000: 1}}, InvalidInput, "too long"),
        ({"expire": {"k": 5}}, InvalidInput, "no value"),
        ({"set": {"k": 1}, "expire": {"k": -1}}, InvalidInput, "above 0"),
        ({"expect": "main"}, TypeError, "expect is a Commit"),
        ({"branch": "bad..name", "set": {"k": 1}}, InvalidInput, "is not a branch name"),
        (
            {"set": {"good": 1, "lock": [threading.Lock()], "generator": (i for i in "a")}},
            Unpicklable,
            r"(?s)set\['lock'\]\[0\].*generator",
        ),
    ],
)
def test_wrong_arguments_are_refused(
    options: dict[str, object], error: type[Exception], message: str
) -> None:
    """Nothing is written, and all values that cannot be stored are named."""
    repo = Repository(Memory())
    with pytest.raises(error, match=message):
        repo.commit(**{"branch": "main", **options})  # type: ignore[arg-type]  # wrong on purpose
    assert repo.branches() == {}


@pytest.mark.slow
def test_a_time_to_live(store: KVStore) -> None:
    repo = Repository(store)
    repo.commit("main", set={"brief": 1, "kept": 2}, expire={"brief": 0.05})
    state = Versioned(store, branch="main")
    state["fixed"] = 1
    state.expire("fixed", 1000)
    state.commit()
    repo.commit("main", set={"fixed": 2})
    state.refresh()
    assert state.expires("fixed") is None  # as for a key that is set on a handle
    time.sleep(0.06)
    assert sorted(state) == ["fixed", "kept"]


def test_a_lease_guards_the_commit(store: KVStore) -> None:
    state, repo = Versioned(store, branch="main"), Repository(store)
    with state.lease("writer", ttl=30) as lease:
        made = repo.commit("main", set={"n": 1}, guard=lease)
    with pytest.raises(LeaseLost):
        repo.commit("main", set={"n": 2}, guard=lease)
    assert repo.newest("main") == made


def test_an_expected_commit_whose_tree_is_gone_has_moved() -> None:
    """If the branch was rewritten, and gc removed the tree that is expected, the commit raises RefMoved."""
    store = Memory()
    values = {f"{n}": "x" * 200 for n in range(400)}
    repo = Repository(store)
    old = repo.commit("main", set=values, expect=None)
    other = Repository(store)
    other.commit("main", delete=[f"{n}" for n in range(1, 400)])
    other.gc(branch="main", keep_last=1, keep_reflog="0s")
    assert old is not None
    stale = Repository(store)
    stale.objects.remember([], [old])  # the commit alone, not the nodes of its tree
    for key in ("0", "200"):
        with pytest.raises(RefMoved):
            stale.commit("main", set={key: "y"}, expect=old)
