"""Expiring keys: absent everywhere after their time, and versioned like all values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from clock import Time, standing_still
from present import present
from test_expiry_machine import LosesAnswers

from vstate import (
    Disk,
    InvalidInput,
    KeyNotFound,
    KVStore,
    Live,
    Memory,
    MergeConflict,
    StoreUnavailable,
    Versioned,
    view,
)
from vstate.testing import Faulty

LONG = "x" * 5000


@pytest.fixture
def time() -> Iterator[Time]:
    with standing_still() as time:
        yield time


@pytest.fixture(params=["memory", "disk", "without transactions"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KVStore]:
    if request.param == "disk":
        with Disk(tmp_path / "store", durability="process") as disk:
            yield disk
    else:
        yield Memory() if request.param == "memory" else Faulty(Memory(), atomic=False)


def gone(state: Versioned | Live, key: str) -> None:
    """See that nothing of a mapping shows the key."""
    assert key not in state
    assert state.get(key) is None
    with pytest.raises(KeyNotFound):
        state[key]
    with pytest.raises(KeyNotFound):
        del state[key]
    with pytest.raises(KeyNotFound):
        state.expire(key, 1)
    with pytest.raises(KeyNotFound):
        state.expires(key)
    names = list(state)
    assert key not in names
    assert key not in set(state.keys())
    assert key not in dict(state.items())
    assert len(state) == len(names)
    for prefix in {key[:1], key, "agent/"}:
        assert len(state.keys(prefix)) == len(list(state.keys(prefix)))
    assert repr(key) not in str(state)


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("value", [7, [1, 2], LONG])
def test_an_expired_key_is_absent(store: KVStore, time: Time, committed: bool, value: Any) -> None:
    """On the handle that set it and on every other, in hand or not, whatever the value is."""
    state = Versioned(store)
    state["k"], state["stays"], state["agent/k"] = value, 1, value
    state.expire("k", 60)
    state.namespace("agent").expire("k", timedelta(seconds=60))
    assert state.expires("k") == state.namespace("agent").expires("k") == time.after(60)
    assert state.expires("stays") is None
    handles = [state]
    if committed:
        state.commit()
        read = Versioned(store)
        assert read["k"] == value
        handles += [read, Versioned(store)]
    time.pass_(59.9)
    for handle in handles:
        assert "k" in handle
        assert handle["k"] == value
        assert set(handle) == {"k", "stays", "agent/k"}
        assert len(handle) == 3
        assert len(handle.keys("agent/")) == 1
    time.pass_(0.1)
    for handle in [*handles, Versioned(store)] if committed else handles:
        gone(handle, "k")
        gone(handle, "agent/k")
        assert list(handle) == ["stays"]
        assert "k" not in handle.namespace("agent")
        assert len(handle.namespace("agent")) == 0
        assert not handle.status().keys() & {"k"}
        assert "'k'" not in str(view(handle))
    if not committed:
        state.commit()
        assert list(Versioned(store)) == ["stays"]


def test_purge(store: KVStore, time: Time) -> None:
    """purge commits the removal of expired keys alone. Uncommitted changes stay uncommitted."""
    state, other = Versioned(store), Versioned(store)
    assert state.purge() is None
    for number in range(200):
        state[f"k{number}"] = number
        if number % 4:
            state.expire(f"k{number}", number)
    state.commit()
    assert state.purge() is None
    time.pass_(100)
    other.refresh()
    state["staged"] = 1
    state["k1"] = "anew"
    commit = present(state.purge())
    assert commit.message == "Purge 75 expired keys"
    assert state.repo.changes(commit).removed == sorted(f"k{n}" for n in range(1, 101) if n % 4)
    assert state.purge() is None
    assert state.status().added == ["k1", "staged"]
    assert state.head == commit
    state.commit()
    assert len(state) == len(list(state)) == 127
    other["theirs"] = 1
    other.commit()  # based on the previous commit
    assert dict(Versioned(store)) == dict(other)
    assert len(other) == 128
    assert other["k1"] == "anew"


def test_purge_beside_a_new_value(store: KVStore, time: Time) -> None:
    """A set and a purge of the same key never conflict, in either order."""
    state, other = Versioned(store), Versioned(store)
    state["k"], state["n"] = "old", 5
    state.expire("k", 10)
    state.expire("n", 10)
    state.set_policy("n", "counter")
    state.commit()
    other.refresh()
    branch = state.fork("branch")
    time.pass_(10)
    other["k"] = "new"
    other["n"] = 2
    assert state.purge() is not None
    other.commit()
    assert dict(Versioned(store)) == {"k": "new", "n": 2}
    branch["n"] = 1
    branch["k"] = "new"
    branch.commit()
    state.refresh()
    assert state.merge("branch").commit is not None
    assert dict(state) == {"k": "new", "n": 3}  # both counted from nothing
    third = state.fork("third")
    third.expire("k", 5)
    third.commit()
    time.pass_(5)
    assert third.purge() is not None
    state.expire("k", 100)
    state.commit()
    with pytest.raises(MergeConflict):  # here it was removed while it was due, and there it never was
        state["k"] = "changed"
        state.commit()
        del third["n"]
        third.commit()
        state.merge("third")


def test_merging(time: Time) -> None:
    """Value and time are merged apart. Of two times the later one counts."""
    state = Versioned()
    for key in "abcdef":
        state[key] = [0]
        state.expire(key, 100)
    state.commit()
    other = state.fork("other")
    state["a"].append(1)
    other.expire("a", 10)
    state.expire("b", 50)
    other.expire("b", 60)
    state.expire("c", 200)
    other.expire("c", None)
    other["d"].append(1)
    other["e"].append(1)
    state["e"].append(1)
    state.expire("e", 30)
    state.commit()
    other.commit()
    state.merge("other")
    found = {key: (state[key], state.expires(key)) for key in state}
    assert found == {
        "a": ([0, 1], time.after(10)),
        "b": ([0], time.after(60)),
        "c": ([0], None),
        "d": ([0, 1], time.after(100)),
        "e": ([0, 1], time.after(30)),
        "f": ([0], time.after(100)),
    }
    state.set_policy("f", "append")
    other.reset("main")
    state["f"].append(1)
    other["f"].append(2)
    other.expire("f", 500)
    state.commit()
    other.commit()
    state.merge("other")
    assert (state["f"], state.expires("f")) == ([0, 1, 2], time.after(500))
    assert state.repo.fsck().ok


@pytest.mark.parametrize("how", ["race", "merge", "merge the other way"])
def test_a_time_that_was_over_is_not_for_what_is_written_after(store: KVStore, time: Time, how: str) -> None:
    """A key that is set while another expires it stays set: the commit does not lose the value."""
    state = Versioned(store)
    state["set"], state["edited"], state["before"] = 1, [1], [1]
    state.commit()
    other = Versioned(store) if how == "race" else state.fork("other")
    other["edited"], other["before"]
    for key in state:
        state.expire(key, 10)
    state.commit()
    other["before"].append(2)
    if how != "race":
        other.commit()
    time.pass_(20)
    other["set"] = 2
    other["edited"].append(2)
    other.commit()
    if how == "merge":
        state.merge("other")
    elif how == "merge the other way":
        other.merge("main")
        state = other
    else:
        state.refresh()
    expected = {"set": 2, "edited": [1, 2]} | ({"before": [1, 2]} if how == "race" else {})
    assert dict(state) == expected
    assert [state.expires(key) for key in state] == [None] * len(expected)


def test_a_staged_value_that_expires_does_not_bring_the_old_one_back(store: KVStore, time: Time) -> None:
    """The commit deletes the key, whose committed value would never expire."""
    state = Versioned(store)
    state["k"] = "old"
    state.commit()
    state["k"] = "new"
    state.expire("k", 10)
    time.pass_(11)
    state.commit()
    assert "k" not in Versioned(store)


def test_keys_that_expired_leave_nothing_in_memory(time: Time) -> None:
    """A state that reads one session after another looks at none of the old ones at each commit."""
    store = Memory()
    state = Versioned(store)
    for number in range(4):
        state[f"{number}"] = [number] if number % 2 else number
        state.expire(f"{number}", 10)
    state.commit()
    state = Versioned(store)
    assert len(dict(state)) == 4
    time.pass_(11)
    state["n"] = 1
    state.commit()
    table = state._handle.at.table
    assert not table.slots
    assert not table.timed
    assert not table.open


@pytest.mark.parametrize("since", ["set", "for ever", "for longer"])
def test_what_was_asked_for_after_an_interrupted_commit_counts(time: Time, since: str) -> None:
    """Though it turns out only later, since the store failed in between, that the commit had landed."""

    class Failing(LosesAnswers):
        down = False

        def get(self, key: str) -> bytes | None:
            if self.down:
                raise StoreUnavailable("no answer")
            return super().get(key)

        def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
            if self.down:
                raise StoreUnavailable("no answer")
            return super().get_many(keys)

    store = Failing()
    state = Versioned(store)
    state["k"] = [1]
    state.expire("k", 10)
    state.commit()
    state["k"] = [2]
    state.expire("k", 10)
    store.interrupts = True
    with pytest.raises(KeyboardInterrupt):
        state.commit()
    store.down = True
    time.pass_(1)
    if since == "set":
        state["k"] = [3]
    else:
        state.expire("k", None if since == "for ever" else 100)
    store.down = False
    assert state["k"] == [3 if since == "set" else 2]
    time.pass_(11)
    assert len(state) == 1
    state.commit()
    expected = {"set": None, "for ever": None, "for longer": time.after(89)}[since]
    assert dict(Versioned(store)) == dict(state) == {"k": [3 if since == "set" else 2]}
    assert Versioned(store).expires("k") == state.expires("k") == expected


def test_what_it_refuses(time: Time) -> None:
    """Keys that are not there, and times that are none."""
    state = Versioned()
    with pytest.raises(KeyNotFound):
        state.expire("k", 5)
    state["k"] = 1
    for ttl in (0, -5, float("nan"), float("inf"), 1e30, timedelta(0)):
        with pytest.raises(InvalidInput):
            state.expire("k", ttl)
    for ttl in ("5", True):
        with pytest.raises(TypeError):
            state.expire("k", ttl)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        state.expire(5, 5)  # type: ignore[arg-type]
    assert state.expires("k") is None


def test_live_has_it_too(time: Time) -> None:
    """A task may use it on either state."""
    live = Live()
    live["k"], live["renewed"], live["agent/k"] = [1], 1, 2
    live.expire("k", 10)
    live.expire("renewed", 10)
    live.namespace("agent").expire("k", 10)
    time.pass_(5)
    live["renewed"] = 2
    live.expire("renewed", 10)
    with pytest.raises(RuntimeError):
        with live.transaction():
            live.expire("k", None)
            raise RuntimeError
    assert live.expires("k") == time.after(5)
    time.pass_(5)
    gone(live, "k")
    assert dict(live) == {"renewed": 2}
    live["k"] = 1
    assert live.expires("k") is None
    time.pass_(5)
    live.purge()
    assert dict(live) == {"k": 1}
    live.expire("k", 10)
    time.pass_(10)
    live["k"] = 2  # another key of that name, which does not expire
    assert live.expires("k") is None


# The store


def test_states_without_expiring_keys_have_the_ids_they_always_had(time: Time) -> None:
    """Once the last expiring key is deleted, the tree equals one that never had any."""
    state, plain = Versioned(), Versioned()
    for number in range(500):
        state[f"k{number}"] = plain[f"k{number}"] = number
        if number % 7 == 0:
            state.expire(f"k{number}", 10)
    plain.commit()
    state.commit()
    assert state.head.root != plain.head.root
    for number in range(0, 500, 7):
        state.expire(f"k{number}", None)
    state.commit()
    assert state.head.root == plain.head.root


def test_values_that_memory_lets_go_of_leave_no_time(time: Time) -> None:
    """A state that reads many keys with a time looks at no key that it has let go of."""
    state = Versioned()
    state["k"] = 1
    state.expire("k", 10)
    state.commit()
    table = state._handle.at.table
    assert state["k"] == 1
    assert table.timed == {"k"}
    table.drop_idle()
    assert not table.timed
