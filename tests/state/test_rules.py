"""The rules of mutation detection and of keys, one by one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from present import present
from soak import SOAK

from vstate import Disk, Live, Memory, Versioned, arguments
from vstate.errors import (
    AlreadyExists,
    CannotLoad,
    InvalidInput,
    KeyNotFound,
    NotVersioned,
    ReadOnly,
    Unpicklable,
)
from vstate.patterns import scope
from vstate.state import plan


def test_the_same_object_until_the_state_moves() -> None:
    """A key gives the same object, before and after commits, until a rollback, reset or refresh moves it."""
    store = Memory()
    state = Versioned(store)
    value = [1]
    state["k"] = value
    assert state["k"] is value
    state.commit()
    assert state["k"] is value
    fresh = Versioned(store)
    held = fresh["k"]
    fresh["other"] = 1
    fresh.commit()
    assert fresh["k"] is held
    fresh.rollback()
    assert fresh["k"] is held, "a value that is the same there stays the same object"
    held.append(2)
    fresh.commit()
    fresh.rollback()
    assert fresh["k"] == [1]
    assert fresh["k"] is not held


def test_one_object_under_two_keys() -> None:
    """An object that stands under two keys is changed under both."""
    state = Versioned()
    shared: list[int] = []
    state["a"] = state["b"] = [shared]
    del shared
    state.commit()
    state["a"][0].append(1)
    assert state.status().modified == ["a", "b"]
    state.commit()
    assert dict(state.checkout("HEAD")) == {"a": [[1]], "b": [[1]]}


@pytest.mark.parametrize("key", [1, None, b"k", ("a",), 1.5, [], {}])
def test_keys_are_str(key: Any) -> None:
    """Every use of a key that is no str raises TypeError, but for `in`, which is False."""
    for state in (Versioned(), Live(), Versioned().namespace("n")):
        for use in (state.__getitem__, state.__delitem__, lambda k, s=state: s.__setitem__(k, 1)):
            with pytest.raises(TypeError, match="keys are str"):
                use(key)
        assert key not in state
        assert list(state) == []


PLANES = [*"aé߿\u0800\ud7ff\ue000\uffff", *(chr(plane << 16 | 0xFFFD) for plane in range(1, 17))]
ODD_KEYS = [*PLANES, "", "/", "//", "/a", "a/", "/a/", "a//b", "\0", "a\nb", " ", "\U0010ffff"]
ODD_KEYS += ["".join(PLANES), "k" * 4096]


PLANES = [*"aé߿\u0800\ud7ff\ue000\uffff", *(chr(plane << 16 | 0xFFFD) for plane in range(1, 17))]
ODD_KEYS = [
    *PLANES,
    "".join(PLANES),
    "",
    "/",
    "//",
    "/a",
    "a/",
    "a//b",
    "\0",
    "a\nb",
    "\U0010ffff",
    "k" * 4096,
]


def test_keys_of_every_plane(tmp_path) -> None:
    """Keys with letters of every Unicode plane, with "/" at both ends, NUL and none at all are kept."""
    with Versioned(tmp_path / "s") as state:
        state.update(zip(ODD_KEYS, range(100), strict=False))
        state.commit()
    with Versioned(tmp_path / "s") as state:
        assert list(state) == sorted(ODD_KEYS)
        assert [state[key] for key in ODD_KEYS] == [*range(len(ODD_KEYS))]
        for prefix in [*PLANES, "/", "a/"]:
            assert list(state.keys(prefix)) == sorted(key for key in ODD_KEYS if key.startswith(prefix))


@pytest.mark.parametrize("key", ["\ud800", "a\udfff", "k" * 4097, "é" * 2049])
def test_keys_that_cannot_be_stored(key: str) -> None:
    """A lone surrogate in a key, or more than 4,096 bytes, is refused when it is set."""
    state = Versioned()
    with pytest.raises(InvalidInput):
        state[key] = 1
    assert len(state) == 0
    assert key not in state


KEY = "a/" + "k" * 2000

USES: dict[str, Callable[[Versioned], object]] = {
    "read": lambda state: state[KEY],
    "get": lambda state: state.get(KEY),
    "get_many": lambda state: state.get_many([KEY])[KEY],
    "in": lambda state: KEY in state,
    "edit in place": lambda state: (state[KEY].append(2), state.commit()),
    "delete": lambda state: (state.__delitem__(KEY), state.commit()),
    "pop": lambda state: state.pop(KEY),
    "expire": lambda state: state.expire(KEY, 60) or state.commit(),
    "expires": lambda state: state.expires(KEY) is None,
    "discard": lambda state: state.discard(KEY) or True,
    "namespace": lambda state: state.namespace("a").pop(KEY[2:]),
    "snapshot": lambda state: state.checkout("HEAD").inert(KEY),
    "log": lambda state: list(state.log(key=KEY)),
    "blame": lambda state: state.blame(KEY),
    "diff": lambda state: state.diff("HEAD~1", "HEAD")[KEY],
    "rollback": lambda state: (state.pop(KEY), state.commit(), state.rollback()),
    "merge": lambda state: (state.create_branch("side"), state.pop(KEY), state.commit(), state.merge("side")),
    "delete by repo": lambda state: state.repo.commit("main", delete=[KEY]),
    "fsck": lambda state: state.repo.fsck().ok,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_limit_for_new_keys_locks_no_older_key_in(
    use: Callable[[Versioned], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that an older vstate wrote under a higher limit is read, edited and deleted as any other."""
    state = Versioned()
    state["n"] = 0
    state.commit()
    state[KEY] = [1]
    state.commit()
    monkeypatch.setattr(arguments, "MAX_KEY_BYTES", 1024)
    assert use(Versioned(state.store))
    for write in (
        lambda: state.__setitem__(KEY, [2]),
        lambda: Live().__setitem__(KEY, [2]),
        lambda: state.repo.commit("main", set={KEY: 2}),
    ):
        with pytest.raises(InvalidInput, match="1024"):
            write()


def test_unpicklable_keeps_everything_staged() -> None:
    """An unpicklable value is named by key and path, three levels deep, and nothing is committed."""
    state = Versioned()
    state["kept"] = [1]
    state.commit()
    head = state.head
    state["kept"].append(2)
    state["good"] = "x" * 1000
    state["job"] = {"ok": [1, 2], "steps": [{"name": "a"}, {"name": "b", "lock": threading.Lock()}]}
    state["gen"] = [0, (i for i in range(3))]
    del state["good"]
    state["good"] = "y"
    with pytest.raises(Unpicklable) as caught:
        state.commit()
    assert caught.value.keys == ("gen", "job")
    assert 'state["job"]["steps"][1]["lock"]: _thread.lock' in caught.value.culprits["job"]
    assert 'state["gen"][1]: generator' in caught.value.culprits["gen"]
    assert state.head == head
    assert state["kept"] == [1, 2]
    assert state["good"] == "y"
    del state["job"]["steps"][1]["lock"]
    state.discard("gen")
    assert state.commit() is not None
    assert dict(Versioned(state.store)) == {
        "kept": [1, 2],
        "good": "y",
        "job": {"ok": [1, 2], "steps": [{"name": "a"}, {"name": "b"}]},
    }


@dataclass
class Holder:
    inner: Any = None
    items: list[Any] = field(default_factory=list)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Holder(items=[1, Holder(threading.Lock())]), ".items[1].inner: _thread.lock"),
        ((1, {"a": {2: threading.Lock()}}), '[1]["a"][2]: _thread.lock'),
        ({"f": sys._getframe()}, '["f"]: frame'),
    ],
)
def test_the_path_to_the_culprit(value: Any, path: str) -> None:
    """The path leads through attributes, indexes and keys."""
    state = Versioned()
    state["v"] = value
    with pytest.raises(Unpicklable) as caught:
        state.commit()
    assert f'state["v"]{path}' in str(caught.value)


@pytest.mark.slow
def test_nested_deeper_than_pickle_follows() -> None:
    """A value that is nested too deep raises Unpicklable, which says so, and other changes stay staged."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    state = Versioned()
    state["deep"], state["fine"] = deep, 1
    del deep
    with pytest.raises(Unpicklable, match="nested deeper than pickle can follow"):
        state.commit()
    assert state.head is None
    del state["deep"]
    assert state.commit() is not None
    assert list(state) == ["fine"]


@pytest.mark.slow
def test_a_class_that_is_gone(run_python, tmp_path) -> None:
    """If a class is missing, only its key fails, naming key and class. Listing, diff and the rest work."""
    (tmp_path / "old_module.py").write_text("class Gone:\n    def __init__(self): self.x = [1]\n")
    run_python(
        "import sys, old_module; from vstate import Versioned\n"
        "s = Versioned(sys.argv[1]); s['fine'] = [1]; s['lost'] = {'in': [old_module.Gone()]}; s.commit(); "
        "s['fine'].append(2); s.commit()",
        tmp_path / "s",
        path=tmp_path,
    )
    with Versioned(tmp_path / "s") as state:
        with pytest.raises(CannotLoad) as caught:
            state["lost"]
        assert caught.value.key == "lost"
        assert caught.value.name == "old_module.Gone"
        assert state["fine"] == [1, 2]
        assert list(state) == ["fine", "lost"]
        assert state.diff("HEAD~1", "HEAD").modified == ["fine"]
        assert not state.status()
        assert state.commit() is None
        state["fine"].append(3)
        assert state.commit() is not None
        state["lost"] = "replaced"
        assert state.status().modified == ["lost"]
        assert state.commit() is not None
        assert str(state)


def test_switch_create_refuses_a_branch_that_is_there() -> None:
    """switch(create=True) raises AlreadyExists for an existing branch, also before the first commit."""
    store = Memory()
    main = Versioned(store)
    main["k"] = 1
    main.commit()
    for state in (Versioned(store), Versioned(store, branch="unborn")):
        main.create_branch(f"there{state.branch}")
        with pytest.raises(AlreadyExists):
            state.switch(f"there{state.branch}", create=True)


def test_switch_create_before_the_first_commit() -> None:
    """As in git, HEAD goes to the new branch of an empty store, and the first commit makes the branch."""
    store = Memory()
    state = Versioned(store)
    state["k"] = 1
    state.switch("x", create=True)
    state.commit()
    assert (Versioned(store).branch, list(state.branches())) == ("x", ["x"])


def test_snapshots_are_read_only() -> None:
    """Any write to a snapshot raises ReadOnly, and editing its values changes nothing stored."""
    state = Versioned()
    state["k"] = [1]
    state.commit()
    snapshot: Any = state.checkout("HEAD")
    for act in (
        lambda: snapshot.__setitem__("k", 2),
        lambda: snapshot.__delitem__("k"),
        lambda: snapshot.update(k=2),
        lambda: snapshot.pop("k"),
        snapshot.popitem,
        snapshot.clear,
        lambda: snapshot.setdefault("new", 1),
    ):
        with pytest.raises(ReadOnly):
            act()
    snapshot["k"].append(2)
    assert state["k"] == [1]
    assert state.commit() is None
    assert state.checkout("HEAD")["k"] == [1]
    with pytest.raises(KeyNotFound):
        snapshot["absent"]


class Counted:
    """Counts how often it is pickled."""

    pickled = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __getstate__(self) -> dict[str, int]:
        Counted.pickled += 1
        return {"number": self.number}


@pytest.mark.slow
def test_sealed_values_are_not_pickled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 1,000 dicts that nothing refers to are committed, the next commit pickles none of them."""
    pickled = []
    real = plan.encode_unchecked
    monkeypatch.setattr(plan, "encode_unchecked", lambda *given: (pickled.append(1), real(*given))[1])
    state = Versioned()
    for i in range(1000):
        state[f"k{i}"] = {"number": i, "list": [i]}
    state["counted"] = Counted(1)
    kept = state["k5"]
    state.commit()
    assert len(pickled) == 1001
    pickled.clear()
    state["k7"]["number"] = -1
    assert state.commit() is not None
    assert len(pickled) == 3, (
        "the one that was edited, the one that is held, the one with its own __getstate__"
    )
    kept["number"] = "edited"
    assert state.commit() is not None
    assert state.checkout("HEAD")["k5"]["number"] == "edited"


def test_diff_forms() -> None:
    """diff() is HEAD to working, diff(a) from there to working, diff(a, b) between two commits."""
    state = Versioned()
    state["a"] = 1
    state.commit()
    state["b"] = 2
    state.commit()
    state["a"], state["c"] = [5], "x" * 500
    assert (state.diff().added, state.diff().modified) == (["c"], ["a"])
    assert state.diff("HEAD~1").added == ["b", "c"]
    assert state.diff("HEAD~1", "HEAD").added == ["b"]
    assert state.diff("HEAD", "HEAD~1").removed == ["b"]
    assert state.diff("HEAD~1")["c"].new == "x" * 500
    assert state.diff()["a"].new == [5]


def test_namespaces() -> None:
    """A namespace is the keys under its name; it nests, and one commit covers all."""
    state = Versioned()
    agent = state.namespace("agent")
    inner = agent.namespace("tools")
    agent["k"], inner["k"], state["agentless"] = 1, [2], 3
    assert list(state) == ["agent/k", "agent/tools/k", "agentless"]
    assert list(agent) == ["k", "tools/k"]
    assert dict(inner) == {"k": [2]}
    assert (len(agent), "k" in inner, "agentless" in agent) == (2, True, False)
    assert inner.commit("all") is not None
    inner["k"].append(3)
    del agent["k"]
    state.commit()
    assert dict(state.checkout("HEAD")) == {"agent/tools/k": [2, 3], "agentless": 3}
    for name in ("", "/", "/a", "a/", "\ud800"):
        with pytest.raises(InvalidInput):
            state.namespace(name)
    with pytest.raises(KeyNotFound):
        agent["absent"]


def test_live() -> None:
    """A mapping without history: commit returns None, a failed transaction is undone, the rest raises."""
    live = Live()
    live["lock"] = lock = threading.Lock()
    live.namespace("n")["k"] = 1
    assert live.commit("x", a=1) is None
    assert list(live) == ["lock", "n/k"]
    assert live["lock"] is lock
    with pytest.raises(ZeroDivisionError):
        with live.transaction():
            live["new"] = 1
            del live["lock"]
            raise ZeroDivisionError
    assert list(live) == ["lock", "n/k"]
    names = {name for name in dir(Versioned) if not name.startswith("_")}
    for name in names:
        if (getattr(Live, name).__doc__ or "").startswith("Raise NotVersioned"):
            with pytest.raises(NotVersioned, match=name):
                getattr(live, name)("x")
        assert hasattr(live, name) is (name not in {"branch", "head", "repo", "store"})
    assert live.keys("n/").__contains__("n/k")


def test_info_is_plain_data() -> None:
    """A commit's message and info are plain data; anything else is refused and stays staged."""
    state = Versioned()
    state["k"] = 1
    for act in (
        lambda: state.commit("m", bad=object()),
        lambda: state.commit("\ud800"),
        lambda: state.commit(5),
    ):  # type: ignore[arg-type]
        with pytest.raises((InvalidInput, TypeError)):
            act()
    assert state.head is None
    assert present(state.commit("m", n={"a": (1, 2)})).info == {"n": {"a": [1, 2]}}


@pytest.mark.slow
def test_values_larger_than_disk_rows(tmp_path, request: pytest.FixtureRequest) -> None:
    """A value of 40 MB (2.2 GB with VSTATE_SOAK=1) is stored on Disk and read back."""
    size = 2200 * 10**6 if SOAK else 40 * 10**6
    with Versioned(Disk(tmp_path / "s", durability="process")) as state:
        value = bytearray(size)
        value[size // 3] = 7
        state["v"] = value
        assert state.commit() is not None
        state.discard("v")
        read = state["v"]
        assert type(read) is bytearray
        assert len(read) == size
        assert read.count(7) == 1
        assert read[size // 3] == 7
        state.store.close()


def test_reverse_gives_the_same_keys_last_first() -> None:
    """For committed, staged and deleted keys together, on every kind of mapping."""
    state, live = Versioned(Memory(), branch="main"), Live()
    for mapping in (state, live):
        mapping.update({f"{c}/{i:04d}": i for c in "abc" for i in range(300)})
    state.commit()
    for mapping in (state, live):
        for i in range(0, 300, 7):
            del mapping[f"b/{i:04d}"]
            mapping[f"b/{i:04d}+"] = -i
    state.expire("b/0001", 0.000001)
    live.expire("b/0001", 0.000001)
    scoped = scope(state, "b")
    for mapping in (state, live, state.namespace("b"), live.namespace("b"), scoped, state.checkout("HEAD")):
        for prefix in ("", "b/", "b/00", "00", "0", "none"):
            there, back = [*mapping.items(prefix)], [*mapping.items(prefix, reverse=True)]
            assert back == there[::-1]
            assert [*mapping.keys(prefix, reverse=True)] == [key for key, _ in back]
            assert [*mapping.values(prefix, reverse=True)] == [value for _, value in back]
    assert next(iter(state.keys("b/", reverse=True))) == "b/0299"
