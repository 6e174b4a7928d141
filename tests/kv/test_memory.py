"""Memory: the store contract, and its own behaviour."""

import pytest

from vstate import kv
from vstate.testing import KVStoreTests


class TestMemory(KVStoreTests):
    @pytest.fixture
    def store(self) -> kv.Memory:
        return kv.Memory()


def test_repr_counts_the_keys() -> None:
    """The repr has the number of keys."""
    store = kv.Memory()
    store.set_many({"a": b"1", "b": b"2"})
    assert repr(store) == "Memory(2 keys)"


def test_keys_is_a_snapshot() -> None:
    """A listing under way does not mind writes."""
    store = kv.Memory()
    store.set_many({"a": b"1", "b": b"2"})
    listing = store.keys()
    store.set("c", b"3")
    store.delete("a")
    assert sorted(listing) == ["a", "b"]
