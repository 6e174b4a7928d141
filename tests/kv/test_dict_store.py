"""The five methods that a backend must write are enough, and the default transact keeps its order."""

import threading
from collections.abc import Iterator

import pytest

from vstate.errors import StoreUnavailable
from vstate.kv import KVStore, check_key, check_value
from vstate.kv.base import batches_by_bytes
from vstate.testing import Faulty, KVStoreTests


class DictStore(KVStore):
    """The least that makes a store."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.lock = threading.Lock()

    def get(self, key: str) -> bytes | None:
        return self.values.get(check_key(key))

    def set(self, key: str, value: bytes) -> None:
        self.values[check_key(key)] = check_value(value)

    def delete(self, key: str) -> None:
        self.values.pop(check_key(key), None)

    def keys(self, prefix: str = "") -> Iterator[str]:
        check_key(prefix)
        return iter([key for key in self.values if key.startswith(prefix)])

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes | None) -> bool:
        with self.lock:
            if self.get(key) != expected:
                return False
            if new is None:
                self.delete(key)
            else:
                self.set(key, new)
            return True


class TestDictStore(KVStoreTests):
    @pytest.fixture
    def store(self) -> DictStore:
        return DictStore()


class Careless(DictStore):
    """A store that forgets to check keys in one method and values in another."""

    def keys(self, prefix: str = "") -> Iterator[str]:
        return iter(list(self.values))

    def set(self, key: str, value: bytes) -> None:
        self.values[check_key(key)] = value


def test_the_suite_names_the_calls_that_a_store_gets_wrong() -> None:
    """An author sees each call, its argument, and the check to add."""
    suite = KVStoreTests()
    with pytest.raises(
        AssertionError, match=r"check_key\(key\) first.*keys with None did not raise Inv"
    ) as caught:
        suite.test_a_wrong_key_is_refused(Careless())
    assert "get with" not in str(caught.value)
    with pytest.raises(
        AssertionError, match=r"set with 'text' did not raise TypeError and wrote \['key'\]; set_m"
    ):
        suite.test_a_wrong_value_is_refused(Careless())
    with pytest.raises(AssertionError, match="keeps the caller's bytearray"):
        suite.test_the_value_is_no_alias(Careless())


@pytest.mark.parametrize("room", ["", "room/00000000000000a1/"])
@pytest.mark.parametrize("after", [False, True])
def test_an_interrupted_transact_never_moves_the_ref_first(after: bool, room: str) -> None:
    """At any interruption of the default, refs that moved and lines of reflogs name objects that exist."""
    objects = {f"{room}o/{digit * 64}": digit.encode() for digit in "12"}
    line = f"{room}reflog/heads/main:1"
    writes = {line: b"line", **objects, "r/main": b"new", "old": None}

    def run(fail_at: int | None) -> Faulty:
        store = Faulty(DictStore(), fail_at, after=after, atomic=False)
        store.store.set_many({"r/main": b"old", "old": b"x"})
        if fail_at is None:
            assert store.transact(writes, {"r/main": b"old"})
        else:
            with pytest.raises(StoreUnavailable):
                store.transact(writes, {"r/main": b"old"})
        return store

    calls = run(None).calls
    assert calls == ["get", "set_many", "set_many", "compare_and_swap", "delete_many"]
    for fail_at in range(1, len(calls) + 1):
        contents = dict(run(fail_at).store.items())
        if contents["r/main"] == b"new" or line in contents:
            assert contents.items() >= objects.items()
        if contents["r/main"] == b"old":
            assert contents["old"] == b"x"


def test_faulty_fails_once() -> None:
    """The chosen call raises the chosen error, before or after its work. Other calls succeed."""
    store = Faulty(DictStore(), 2, OSError)
    store.set("a", b"1")
    with pytest.raises(OSError, match="call 2, before set"):
        store.set("b", b"1")
    store.set("c", b"1")
    assert store.calls == ["set", "set", "set"]
    assert sorted(store.store.keys()) == ["a", "c"]
    store = Faulty(DictStore(), 1, after=True)
    with pytest.raises(StoreUnavailable) as caught:
        store.set("a", b"1")
    assert caught.value.outcome_unknown
    assert store.get("a") == b"1"


def test_lists_of_so_many_things_and_bytes() -> None:
    """Neither number is exceeded, but by a thing that is too long by itself."""
    cut = batches_by_bytes([3, 3, 3, 9, 1, 1, 1, 1], lambda number: number, most_bytes=6, most=3)
    assert list(cut) == [[3, 3], [3], [9], [1, 1, 1], [1]]
    assert list(batches_by_bytes([], len, most_bytes=1, most=1)) == []
