"""Memory: the store contract, and its own behaviour."""

import os
import threading

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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.slow
def test_a_fork_finds_no_lock_taken() -> None:
    """A child forked while another thread writes can use its copy."""
    store = kv.Memory()
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            store.set_many({f"n/{number}": b"value" for number in range(100)})

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                store.set("child", b"value")
                os._exit(0 if store.get("child") == b"value" else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        thread.join()
    assert store.get("child") is None
