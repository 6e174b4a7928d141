"""Several handles, threads and processes on one branch."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from vstate import Disk, Live, Memory, Versioned
from vstate.errors import MergeConflict, RefMoved
from vstate.kv.wrapper import StoreWrapper


def two() -> tuple[Versioned, Versioned]:
    store = Memory()
    a = Versioned(store)
    a["a"], a["b"], a["shared"] = [1], [1], [1]
    a.commit("base")
    return a, Versioned(store)


@pytest.mark.parametrize("in_hand", [0, 3])
@pytest.mark.slow
def test_a_refresh_reads_the_keys_in_hand(in_hand: int) -> None:
    """However many keys another handle changed, a refresh looks only for those that are in hand here."""
    a = Versioned(Memory())
    a.update({f"{i:04}": [i] for i in range(2000)})
    a.commit()
    store = Reads(a.store)
    b = Versioned(store)
    values = [b[f"{i:04}"] for i in range(in_hand)]
    a.update({f"{i:04}": [-i] for i in range(1, 2000, 2)})
    a.commit()
    store.nodes = 0
    b.refresh()
    assert store.nodes <= 8 * in_hand
    assert all(b[f"{i:04}"] is values[i] for i in range(0, in_hand, 2)), "it did not change"
    assert [b[f"{i:04}"] for i in range(4)] == [[0], [-1], [2], [-3]]


class Reads(StoreWrapper):
    """A store that counts the nodes of trees that are read from it."""

    nodes = 0

    def get(self, key: str) -> bytes | None:
        found = super().get(key)
        self.nodes += found is not None and found[:1] in b"tT"
        return found

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        found = super().get_many(keys)
        self.nodes += sum(value[:1] in b"tT" for value in found.values())
        return found


def test_the_same_change_is_no_conflict() -> None:
    """What both handles changed alike is committed after a refresh; a counter counts it twice: a conflict."""
    a = Versioned(Memory(), branch="main")
    a.update(gone=1, list=[1], n=1, timed=1)
    a.commit()
    b = Versioned(a.store, branch="main")
    for each in (a, b):
        each["n"] = 2
        each["list"].append(2)
        del each["gone"]
    b.commit()
    kept = a["list"]
    assert a.refresh() == b.head
    assert not a.has_uncommitted
    assert dict(a) == {"list": [1, 2], "n": 2, "timed": 1}
    assert a["list"] is kept
    a.set_policy("n", "counter")
    for each in (a, b):
        each["n"] = 3
    b.commit()
    with pytest.raises(MergeConflict) as caught:
        a.refresh()
    assert caught.value.keys == ("n",)


def test_the_same_key_is_a_conflict() -> None:
    """Two handles that changed the same keys conflict: the keys are named, everything stays staged."""
    a, b = two()
    a["a"].append("a")
    del a["shared"]
    a.commit()
    b["a"].append("b")
    b["b"].append("b")
    b["shared"].append("b")
    b["new"] = 1
    for _ in range(2):
        with pytest.raises(MergeConflict) as caught:
            b.commit()
        assert caught.value.keys == ("a", "shared")
        assert caught.value.branch == "main"
        assert b.status().modified == ["a", "b", "shared"]
        assert dict(b) == {"a": [1, "b"], "b": [1, "b"], "shared": [1, "b"], "new": 1}
    with pytest.raises(MergeConflict):
        b.refresh()
    b.discard("a", "shared")
    b.refresh()
    assert b.commit() is not None
    assert dict(Versioned(b.store)) == {"a": [1, "a"], "b": [1, "b"], "new": 1}


def test_a_branch_that_was_deleted() -> None:
    """A commit to a branch that another deleted raises RefMoved and stays staged."""
    a, _ = two()
    b = a.fork("b")
    b["b"].append(2)
    a.delete_branch("b")
    with pytest.raises(RefMoved, match=r"switch\(name, create=True\)"):
        b.commit()
    assert b.status().modified == ["b"]
    b.switch("kept", create=True)  # as the error says
    assert b.commit() is not None
    assert (b.branch, a.checkout("kept")["b"]) == ("kept", b["b"])


THREADS = 8
ROUNDS = 25


def in_threads(work: Callable[[int], None]) -> None:
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not errors, errors[0]


@pytest.fixture
def quick_switches() -> Any:
    old = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(old)


@pytest.mark.parametrize("kind", ["memory", "disk"])
@pytest.mark.slow
def test_threads_on_one_handle_lose_no_write(kind: str, tmp_path: Path, quick_switches: Any) -> None:
    """Eight threads that set keys, edit in place, delete and commit on one handle lose nothing."""
    store = Memory() if kind == "memory" else Disk(tmp_path / "s", durability="process")
    state = Versioned(store)
    for i in range(THREADS):
        state[f"list{i}"] = []
        state[f"deep{i}"] = {"in": {"list": []}}
    state["common"] = []
    state.commit()

    def work(number: int) -> None:
        for turn in range(ROUNDS):
            state[f"key{number}/{turn}"] = (number, turn)
            state[f"list{number}"].append(turn)
            state[f"deep{number}"]["in"]["list"].append(turn)
            state["common"].append((number, turn))
            state[f"gone{number}"] = turn
            if turn % 3 == number % 3:
                state.commit(f"{number} {turn}")
            del state[f"gone{number}"]
            len(state)
            list(state.keys(f"key{number}"))

    in_threads(work)
    state.commit("end")
    assert state.commit() is None
    fresh = Versioned(store)
    for i in range(THREADS):
        assert fresh[f"list{i}"] == list(range(ROUNDS))
        assert fresh[f"deep{i}"] == {"in": {"list": list(range(ROUNDS))}}
        assert f"gone{i}" not in fresh
        assert all(fresh[f"key{i}/{turn}"] == (i, turn) for turn in range(ROUNDS))
    assert sorted(fresh["common"]) == sorted((i, turn) for i in range(THREADS) for turn in range(ROUNDS))
    store.close()


def test_a_state_equals_a_mapping_of_its_items():
    """Each of the four kinds compares with a dict from both sides, and with another state by identity."""
    state, live = Versioned(Memory()), Live()
    kinds = [state, live, state.namespace("part"), live.namespace("part")]
    for each in kinds:
        each.update(a=[1], b=2)
    state.commit()
    snapshot = state.checkout("HEAD")
    for each in [*kinds, snapshot]:
        same = dict(each)
        assert each == same
        assert same == each
        for other in ({**same, "a": [2]}, {**same, "c": 1}, {"a": [1]}, {"a": [1], "x": 2}, [1], None):
            assert each != other
        assert [each is other for other in [*kinds, snapshot]] == [
            each == other for other in [*kinds, snapshot]
        ]
        assert each in {each}
        assert [
            item in each.items("a") for item in [("a", [1]), ("a", 1), ("b", 2), ("c", 3), ("a",), "ab"]
        ] == [True, *[False] * 5]
        assert [value in each.values("a") for value in ([1], 2, 3)] == [True, False, False]
        assert str(each.keys("a")) == "keys(['a'])"
    assert state.checkout("HEAD") != snapshot


class Item:
    """A value that is pickled by Python code, in which threads take turns."""

    def __init__(self, number: int) -> None:
        self.number = number


@pytest.mark.slow
def test_a_dict_that_a_thread_keeps_growing_is_committed(quick_switches: Any) -> None:
    """A dict to which another thread keeps adding objects can be committed."""
    state = Versioned()
    state["items"] = items = {number: Item(number) for number in range(5000)}
    stop = threading.Event()

    def grow() -> None:
        while not stop.is_set() and len(items) < 400_000:
            items[len(items)] = Item(len(items))

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        assert state.commit() is not None
    finally:
        stop.set()
        thread.join()
    assert len(Versioned(state.store)["items"]) >= 5000
