"""Values that are read in order, or by many keys, come in few round trips to the store."""

from __future__ import annotations

import tracemalloc
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from random import Random

import pytest

from vstate import CannotLoad, CorruptObject, Diff, Memory, Namespace, Snapshot, Versioned
from vstate.kv.base import OBJECT_PREFIX
from vstate.objects import tree
from vstate.objects.ids import ObjectId
from vstate.repo.ahead import EntryPrefetch
from vstate.values.entry import decode_value, encode_value

KEYS = 1_000


class Trips(Memory):
    """A store that counts its calls that read objects."""

    def __init__(self) -> None:
        super().__init__()
        self.trips = 0
        self.longest = 0

    def get(self, key: str) -> bytes | None:
        self.trips += key.startswith(OBJECT_PREFIX)
        return super().get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        before = self.trips
        found = super().get_many(keys)
        self.trips = before + 1  # Memory calls `get` for each key
        self.longest = max(self.longest, sum(map(len, found.values())))
        return found

    def during(self, call: Callable[[], object]) -> int:
        self.trips = self.longest = 0
        call()
        return self.trips


def _value(i: int) -> dict[str, object]:
    return {"id": i, "text": f"{i} " * 40, "tags": ["a", "b"]}


@pytest.fixture(scope="module")
def store() -> Trips:
    store = Trips()
    with Versioned(store) as state:
        for i in range(KEYS):
            state[f"key/{i:05}"] = _value(i)
        state.commit()
    return store


READERS: dict[str, Callable[[Versioned | Snapshot | Namespace], dict[str, object]]] = {
    "dict": dict,
    "items": lambda state: dict(state.items()),
    "values": lambda state: dict(zip(state, state.values(), strict=True)),
    "loop": lambda state: {key: state[key] for key in state},
    "get_many": lambda state: state.get_many(list(state)),
}


@pytest.mark.slow
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("kind", ["versioned", "snapshot", "namespace"])
def test_all_is_read_in_a_few_round_trips(
    store: Trips, read: Callable[[Versioned | Snapshot | Namespace], dict[str, object]], kind: str
) -> None:
    with Versioned(store) as state:
        mapping = {
            "versioned": state,
            "snapshot": state.checkout("HEAD"),
            "namespace": state.namespace("key"),
        }
        found: list[dict[str, object]] = []
        assert store.during(lambda: found.append(read(mapping[kind]))) <= 40
        prefix = "" if kind == "namespace" else "key/"
        assert found == [{f"{prefix}{i:05}": _value(i) for i in range(KEYS)}]
        assert not state.has_uncommitted
    assert not state._handle.ahead.batch.bodies


def keys_that_raise(
    error: type[Exception],
    mapping: Mapping[str, object],
    keys: Iterable[str] | None = None,
    read: Callable[[str], object] | None = None,
) -> list[str]:
    """Read the keys, which are numbers, in order; each that does not raise this error has its value."""
    failed = []
    for key in mapping if keys is None else keys:
        try:
            assert (read or mapping.__getitem__)(key) == _value(int(key))
        except error:
            failed.append(key)
    return failed


def test_a_damaged_node_concerns_its_own_keys_alone() -> None:
    """The keys of the other leaves are read in order around a damaged leaf."""
    store = Memory()
    with Versioned(store) as state:
        for i in range(1_000):
            state[f"{i:03}"] = _value(i)
        state.commit()
        nodes, root = state._handle.repo.objects, state._handle.tree
        assert root is not None
        oid, node = root, nodes.node(root)
        while node.height:
            oid = ObjectId(node.items[bisect_right(node.keys, "500") - 1])
            node = nodes.node(oid)
    store.set(OBJECT_PREFIX + oid.hex(), b"tdamaged")
    with Versioned(store) as state:
        for mapping in (state, state.checkout("HEAD")):
            assert keys_that_raise(CorruptObject, mapping, [f"{i:03}" for i in range(1_000)]) == node.keys


def test_threads_that_read_different_trees_do_not_mix_them() -> None:
    """While one thread looks whether a key was read ahead, another thread reads ahead in another tree."""
    with Versioned(Memory()) as state:
        for version in range(2):
            state.update({f"{i:03}": [version] for i in range(50)})
            state.commit()
        repo = state._handle.repo
        old, new = repo.resolve("HEAD~1").root, repo.resolve("HEAD").root
        assert old is not None
        ahead, others = EntryPrefetch(repo.objects), list[str]()

        class Watched(ObjectId):
            """The id of the new tree; the other thread reads while the id is compared."""

            def __eq__(self, other: object) -> bool:
                equal = bytes(self) == other
                while equal and others:
                    ahead.find(old, others.pop(0))
                return equal

            __hash__ = bytes.__hash__

        assert new is not None
        for key in ("000", "001", "002"):
            assert ahead.find(new, key) is not None
        others += ["002", "003", "004"]
        entry = ahead.find(Watched(new), "005")
        assert entry is not None
        assert decode_value(entry, ahead).value == [1]
        assert not others


def test_an_edit_of_a_value_that_was_loaded_ahead_is_committed() -> None:
    """Values that are loaded ahead of their keys are edited in place, replaced and deleted as any other."""
    with Versioned(Memory()) as state:
        state.update({f"{i:03}": _value(i) for i in range(200)})
        state.commit()
    with Versioned(state.store) as state:
        expected = {f"{i:03}": _value(i) for i in range(200)}
        for i in range(12):
            assert state[f"{i:03}"] == _value(i)
        assert not state.has_uncommitted
        for i in range(12, 40, 4):
            state[f"{i:03}"]["new"] = expected[f"{i:03}"]["new"] = [i]  # not read before
            state[f"{i + 1:03}"] = expected[f"{i + 1:03}"] = {"set": i}
            del state[f"{i + 2:03}"], expected[f"{i + 2:03}"]
        assert dict(state) == expected
        state.commit()
        assert dict(state) == dict(state.checkout("HEAD")) == expected


class Loud:
    """A class that counts how many of its objects were loaded."""

    loaded = 0

    def __init__(self, text: str) -> None:
        self.text = text

    def __setstate__(self, fields: dict[str, object]) -> None:
        Loud.loaded += 1
        self.__dict__.update(fields)


@pytest.mark.parametrize("kind", ["versioned", "snapshot"])
def test_no_code_of_a_class_runs_ahead(kind: str) -> None:
    """Of many values that are read at once, those with a class are loaded when their keys are asked for."""
    with Versioned(Memory()) as state:
        for i in range(100):
            state[f"{i:02}"] = Loud("text " * 40) if i % 5 == 0 else _value(i)
        state.commit()
    with Versioned(state.store) as state:
        mapping = state if kind == "versioned" else state.checkout("HEAD")
        Loud.loaded = 0
        for i, key in enumerate(mapping):
            assert (mapping[key] == _value(i)) if i % 5 else isinstance(mapping[key], Loud)
            if kind == "snapshot":  # a state loads a second copy, to see whether the two pickle alike
                assert Loud.loaded == i // 5 + 1


def planted(data: bytes) -> Memory:
    """A store of 100 keys, among which 50 has this pickle."""
    store = Memory()
    with Versioned(store) as state:
        state.update({f"{i:02}": _value(i) for i in range(100)})
        state.commit()
        repo, root = state._handle.repo, state._handle.tree
        made = encode_value([0], dump=lambda value: (data, []))
        root, objects, nodes = tree.update(repo.objects.node, root, {"50": made.entry})
        assert state.head is not None
        commit = repo.build_commit(root, [state.head])
        objects |= made.objects
        assert repo.publish("main", [commit], objects, nodes, expected=state.head.oid, action="")
    return store


def test_a_pickle_that_does_not_load_fails_alone() -> None:
    """Of many values that are loaded at once, only the one that cannot be loaded raises."""
    with Versioned(planted(b"\x80\x05]" + b"K" * 300)) as state:
        for mapping in (state, state.checkout("HEAD")):
            assert keys_that_raise(CannotLoad, mapping) == ["50"]


CALLED: list[str] = []


def note() -> None:
    CALLED.append("note")


CALLS = [
    f"c{__name__}\nnote\n(tR",
    f"c{__name__}\nnote\n)R",
    f"(i{__name__}\nnote\n",
    f"(c{__name__}\nnote\no",
]


@pytest.mark.parametrize("end", [".", "u."], ids=["whole", "damaged"])
@pytest.mark.parametrize("call", CALLS)
def test_a_forged_pickle_runs_no_code_ahead(call: str, end: str) -> None:
    """A name in opcodes of protocol 0, which no pickler of ours writes, is found when its key is read."""
    padding = b"\x80\x05X\xc8\0\0\0" + b"x" * 200 + b"0"
    with Versioned(planted(padding + (call + end).encode())) as state:
        CALLED.clear()
        for mapping in (state, state.checkout("HEAD")):
            assert [mapping[f"{i:02}"] for i in range(50)] == [_value(i) for i in range(50)]
            assert [mapping[f"{i:02}"] for i in range(51, 100)] == [_value(i) for i in range(51, 100)]
        assert not CALLED
        if end == ".":
            assert state["50"] is None
            assert CALLED


def test_a_branch_that_moves_meanwhile_is_read_where_it_is() -> None:
    """Values that were read ahead are of one commit: a handle that goes on reads those of the next one."""
    with Versioned(Memory()) as state:
        for i in range(100):
            state[f"{i:02}"] = _value(i)
        state.commit()
        read = iter(state.items())
        assert [next(read)[0] for _ in range(5)] == [f"{i:02}" for i in range(5)]
        with state.fork("other") as other:
            for i in range(100):
                other[f"{i:02}"] = {"new": i}
            other.commit()
        state.merge("other")
        assert [value for _, value in read] == [{"new": i} for i in range(5, 100)]


DIFF_READERS: dict[str, Callable[[Diff], object]] = {
    "both": lambda diff: [(change.old, change.new) for change in diff.values()],
    "new": lambda diff: [change.new for change in diff.values()],
    "details": lambda diff: [diff.details(key) for key in diff],
}


@pytest.fixture(scope="module")
def changed() -> Trips:
    store = Trips()
    with Versioned(store) as state:
        for round in range(2):
            for i in range(1000):
                state[f"key/{i:05}"] = _value(i + round)
            state.commit()
    return store


@pytest.mark.parametrize("read", DIFF_READERS.values(), ids=DIFF_READERS)
@pytest.mark.slow
def test_the_values_of_a_diff_come_in_batches(changed: Trips, read: Callable[[Diff], object]) -> None:
    """A thousand changed values, old and new, take at most twenty round trips, the trees included."""
    with Versioned(changed) as state:
        assert changed.during(lambda: read(state.diff("HEAD~1", "HEAD"))) <= 20
        diff = state.diff("HEAD~1", "HEAD")
        assert [change.old["id"] for change in diff.values()] == list(range(1000))
        assert [change.new["id"] for change in diff.values()] == list(range(1, 1001))


def test_a_damaged_value_of_a_diff_fails_alone() -> None:
    """Of many changed values that are read at once, only the damaged one raises."""
    store = Trips()
    with Versioned(store) as state:
        for i in range(100):
            state[f"{i:02}"] = _value(i)
        state.commit()
        state.clear()
        state.commit()
        lost = state.diff("HEAD~1", "HEAD")["50"].old_entry
    assert lost is not None
    (link,) = lost.links
    store.set(OBJECT_PREFIX + link.id.hex(), b"Bdamaged")
    with Versioned(store) as state:
        diff = state.diff("HEAD~1", "HEAD")
        assert keys_that_raise(CorruptObject, diff, read=lambda key: diff[key].old) == ["50"]


LONG = Random(3).randbytes(12_000_000)


@pytest.mark.parametrize("value", [bytearray(LONG), {"image": LONG, "seen": [1]}], ids=["bytearray", "dict"])
@pytest.mark.slow
def test_a_long_value_is_in_memory_twice_at_most(value: object) -> None:
    """While binary data is loaded, memory holds its pickle and itself; it is not pickled again."""
    store = Memory()
    with Versioned(store) as state:
        state["long"] = value
        state.commit()
    with Versioned(store) as state:
        tracemalloc.start()
        try:
            found = state["long"]
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert found == value
        assert peak < 2.2 * len(LONG)
