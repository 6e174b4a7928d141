"""ReadOnly: a store that is looked at."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from vstate import Versioned
from vstate.errors import InvalidInput, NotFound, ReadOnly
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


def test_every_write_is_refused(behind: Memory) -> None:
    """Each call raises ReadOnly with advice and changes nothing. A plan is not called."""
    store = ReadOnlyStore(behind)

    def plan() -> dict[str, bytes | None]:
        raise AssertionError("called")

    writes: list[Callable[[], object]] = [
        lambda: store.set("a", b"1"),
        lambda: store.set_many({"a": b"1"}),
        lambda: store.delete(KEY),
        lambda: store.delete_many([KEY]),
        lambda: store.compare_and_swap(REF, b"1", b"2"),
        lambda: store.compare_and_swap(REF, b"0", b"2"),
        lambda: store.transact({REF: b"2"}, {REF: b"1"}),
        lambda: store.transact({KEY: None}, {}),
        lambda: store.exclusively(plan),
    ]
    for write in writes:
        with pytest.raises(ReadOnly, match=r"opened to be read only: .* without ReadOnly\("):
            write()
    assert dict(behind.items()) == {KEY: b"object", REF: b"1"}


def test_reads_are_the_stores(behind: Memory) -> None:
    """Whatever can be read is, others' writes at once."""
    store = ReadOnlyStore(behind)
    assert (store.get(KEY), store.get("absent"), KEY in store) == (b"object", None, True)
    assert store.get_many([KEY, "absent"]) == {KEY: b"object"}
    assert dict(store.items()) == {KEY: b"object", REF: b"1"}
    assert list(store.keys("r/")) == [REF]
    assert store.present([KEY, "absent"]) == {KEY}
    assert list(store.check()) == []
    assert store.transactional
    assert store.transact({}, {REF: b"1"})
    assert not store.transact({}, {REF: b"2"})
    behind.set(REF, b"2")
    assert store.get(REF) == b"2"
    with store.listening(REF) as wait:
        wait(0)
    assert store.location == behind.location
    assert repr(store) == f"ReadOnly({behind!r})"


def test_it_stays_read_only_behind_a_cache(behind: Memory) -> None:
    """`uncached` and `forget` are read-only too."""
    cached = ReadOnlyStore(Cache(behind))
    assert cached.get(KEY) == b"object"
    behind.set(KEY, b"mended")
    assert cached.get(KEY) == b"object"
    assert cached.uncached().get(KEY) == b"mended"
    with pytest.raises(ReadOnly):
        cached.uncached().delete(KEY)
    cached.forget(KEY)
    assert cached.get(KEY) == b"mended"
    plain = ReadOnlyStore(behind)
    assert plain.uncached() is plain


def test_a_state_over_it(tmp_path: Path) -> None:
    """A state reads, logs, diffs and checks out. A commit raises ReadOnly and keeps its changes staged."""
    with Versioned(tmp_path / "store") as state:
        state["list"] = [1, 2, 3]
        first = state.commit("first")
        state["list"].append(4)
        state.commit("second")
    assert first is not None
    with Disk(tmp_path / "store", create=False) as disk:
        before = dict(disk.items())
        with Versioned(ReadOnlyStore(disk)) as state:
            assert state["list"] == [1, 2, 3, 4]
            assert [commit.message for commit in state.log()] == ["second", "first"]
            assert state.checkout(first.id)["list"] == [1, 2, 3]
            assert state.diff(first.id, "HEAD").modified == ["list"]
            state["list"].append(5)
            state["more"] = 1
            writes: list[Callable[[], object]] = [
                lambda: state.commit("third"),
                lambda: state.rollback(first.id),
                lambda: state.tag("v1"),
                lambda: state.create_branch("other"),
                lambda: state.reset(first.id),
            ]
            for write in writes:
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
    stamped.set("format", b"5")
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


def test_composition(tmp_path: Path) -> None:
    """Whatever it stands before or behind, a commit raises ReadOnly."""
    with Versioned(Encrypted(Prefixed(Disk(tmp_path / "store"), "a", owns=True), bytes(32))) as state:
        state["k"] = 1
        state.commit()
    with Disk(tmp_path / "store") as disk:
        stores: list[KVStore] = [
            Encrypted(Prefixed(ReadOnlyStore(disk), "a"), bytes(32)),
            Cache(Encrypted(ReadOnlyStore(Prefixed(disk, "a")), bytes(32))),
            Tiered(Memory(), ReadOnlyStore(Encrypted(Prefixed(disk, "a"), bytes(32)))),
        ]
        for store in stores:
            with Versioned(store) as state:
                assert state["k"] == 1
                state["k"] = 2
                with pytest.raises(ReadOnly):
                    state.commit()
                assert state.status().modified == ["k"]


def test_closing_and_pickling(tmp_path: Path) -> None:
    """A pickled one is read-only too; closing closes the store."""
    disk = Disk(tmp_path / "store")
    disk.set("a", b"1")
    store = ReadOnlyStore(disk)
    with pickle.loads(pickle.dumps(store)) as other:
        assert other.get("a") == b"1"
        with pytest.raises(ReadOnly):
            other.set("a", b"2")
    store.close()
    with pytest.raises(InvalidInput, match="is closed"):
        disk.get("a")


def test_nothing_is_there_to_be_read(tmp_path: Path) -> None:
    """A store that is not there is not made to be read."""
    with pytest.raises(NotFound):
        ReadOnlyStore(Disk(tmp_path / "absent", create=False))
