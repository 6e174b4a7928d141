"""ReadOnly: a store that is looked at."""

from collections.abc import Callable
from pathlib import Path

import pytest

from vstate import Versioned
from vstate.errors import ReadOnly
from vstate.kv import Cache, Disk, Encrypted, KVStore, Memory, Prefixed, Tiered
from vstate.kv import ReadOnly as ReadOnlyStore
from vstate.repo.repository import Repository
from vstate.testing import Faulty

KEY = "o/" + "ab" * 32
REF = "r/heads/main"


@pytest.fixture
def behind() -> Memory:
    store = Memory()
    store.set_many({KEY: b"object", REF: b"1"})
    return store


def test_a_failed_swap_is_a_write_and_an_expectation_alone_is_none(behind: Memory) -> None:
    """Every swap is refused, and no plan is called. What another program writes is seen at once."""
    store = ReadOnlyStore(behind)
    for write in (
        lambda: store.compare_and_swap(REF, b"0", b"2"),
        lambda: store.exclusively(lambda: pytest.fail("called")),
        lambda: ReadOnlyStore(Cache(behind)).uncached().delete(KEY),
    ):
        with pytest.raises(ReadOnly):
            write()
    behind.set(REF, b"2")
    assert store.transact({}, {REF: b"2"})
    assert not store.transact({}, {REF: b"1"})


IN_FRONT: dict[str, Callable[[KVStore], KVStore]] = {
    "alone": lambda disk: ReadOnlyStore(Encrypted(Prefixed(disk, "a"), bytes(32))),
    "behind": lambda disk: Encrypted(Prefixed(ReadOnlyStore(disk), "a"), bytes(32)),
    "behind a cache": lambda disk: Cache(Encrypted(ReadOnlyStore(Prefixed(disk, "a")), bytes(32))),
    "tiered": lambda disk: Tiered(Memory(), ReadOnlyStore(Encrypted(Prefixed(disk, "a"), bytes(32)))),
}


@pytest.mark.parametrize("front", IN_FRONT)
def test_a_state_over_it(tmp_path: Path, front: str) -> None:
    """Whatever it stands before or behind, a state reads, logs, diffs and checks out. A commit raises
    ReadOnly and keeps its changes staged.
    """
    with Disk(tmp_path / "store") as disk:
        with Versioned(Encrypted(Prefixed(disk, "a"), bytes(32))) as state:
            state["list"] = [1, 2, 3]
            first = state.commit("first")
            state["list"].append(4)
            state.commit("second")
        assert first is not None
        before = dict(disk.items())
        with Versioned(IN_FRONT[front](disk)) as state:
            assert state["list"] == [1, 2, 3, 4]
            assert [commit.message for commit in state.log()] == ["second", "first"]
            assert state.checkout(first.id)["list"] == [1, 2, 3]
            assert state.diff(first.id, "HEAD").modified == ["list"]
            state["list"].append(5)
            state["more"] = 1
            for write in (
                lambda: state.commit("third"),
                lambda: state.rollback(first.id),
                lambda: state.tag("v1"),
                lambda: state.create_branch("other"),
                lambda: state.reset(first.id),
            ):
                with pytest.raises(ReadOnly):
                    write()
            assert state["list"] == [1, 2, 3, 4, 5]
            assert (state.status().added, state.status().modified) == (["more"], ["list"])
            state.discard()
            with pytest.raises(ReadOnly):
                state.apply(lambda working: working.pop("list"))
            assert state["list"] == [1, 2, 3, 4]
        assert dict(disk.items()) == before


def test_a_repository_opens_without_a_write(behind: Memory) -> None:
    """Only reads reach the store, of a repository and of a state, also if it is empty or of an older
    program.
    """
    stamped = Memory()
    stamped.set("format", b"vstate 1")
    for memory in (Memory(), stamped):
        inner = Faulty(memory)
        repo = Repository(ReadOnlyStore(inner))
        assert repo.branches() == {}
        assert repo.fsck().ok
        repo.gc(dry_run=True)
        with Versioned(ReadOnlyStore(inner)) as state:
            assert dict(state) == {}
            assert state.head is None
            state["a"] = 1
            with pytest.raises(ReadOnly):
                state.commit()
            assert dict(state) == {"a": 1}
        assert set(inner.calls) <= {"get", "get_many", "keys", "items", "present", "__contains__", "check"}
