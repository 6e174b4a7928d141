"""Tiered: near stores that help a far one, and never more than that."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vstate import Versioned
from vstate.errors import InvalidInput, StoreFull, StoreUnavailable
from vstate.kv import Cache, Disk, KVStore, Memory, Tiered
from vstate.kv import cache as module
from vstate.testing import Faulty

KEY = "o/" + "ab" * 32
OTHER = "o/" + "cd" * 32
REF = "r/heads/main"


@pytest.fixture
def hot() -> Faulty:
    return Faulty(Memory())


@pytest.fixture
def warm() -> Faulty:
    return Faulty(Memory())


@pytest.fixture
def cold() -> Faulty:
    return Faulty(Memory())


@pytest.fixture
def store(hot: Faulty, warm: Faulty, cold: Faulty) -> Tiered:
    return Tiered(hot, warm, cold)


def test_it_takes_two_stores(hot: Faulty) -> None:
    """One store is no tiers, and a path is no store."""
    for wrong in ((), (hot,), (hot, "path")):
        with pytest.raises(InvalidInput, match="Tiered"):
            Tiered(*wrong)  # type: ignore[arg-type]


def test_each_is_asked_for_what_is_missing(store: Tiered, hot: Faulty, warm: Faulty, cold: Faulty) -> None:
    """The first tier with an object answers. Earlier tiers get a copy, later ones are not asked, and of many
    objects each tier is asked once.
    """
    third, fourth = "o/" + "ef" * 32, "o/" + "12" * 32
    hot.store.set(KEY, b"1")
    warm.store.set(OTHER, b"2")
    cold.store.set_many({third: b"3", fourth: b"4", REF: b"ref"})
    everything = {KEY: b"1", OTHER: b"2", third: b"3", REF: b"ref"}
    assert store.get_many(iter([*everything, "o/absent"])) == everything
    assert (hot.calls, cold.calls) == (["get_many", "set_many", "set_many"], ["get_many"])
    assert dict(hot.store.items()) == {KEY: b"1", OTHER: b"2", third: b"3"}
    assert dict(warm.store.items()) == {OTHER: b"2", third: b"3"}
    assert store.get_many([KEY, OTHER]) == {KEY: b"1", OTHER: b"2"}
    for _ in range(2):
        assert store.get(fourth) == b"4"
    assert hot.store.get(fourth) == warm.store.get(fourth) == b"4"
    assert cold.calls == ["get_many", "get"]


def test_refs_are_in_the_coldest_only(store: Tiered, hot: Faulty, warm: Faulty, cold: Faulty) -> None:
    """Only objects are written to and read from the hot tiers, whatever these hold."""
    hot.store.set(REF, b"stale")
    store.set(REF, b"1")
    assert store.get(REF) == b"1"
    assert store.get_many([REF]) == {REF: b"1"}
    assert store.compare_and_swap(REF, b"1", b"2")
    assert store.transact({REF: b"3", KEY: b"object"}, {REF: b"2"})
    assert store.exclusively(lambda: {REF: b"4"})
    cold.store.set(REF, b"another writer's")
    assert store.get(REF) == b"another writer's"
    store.delete(REF)
    assert (store.get(REF), REF in store, store.present([REF])) == (None, False, set())
    assert dict(hot.store.items()) == {REF: b"stale", KEY: b"object"}
    assert dict(warm.store.items()) == {KEY: b"object"}
    # A copy that was left over is in no list, and does not keep a writer from writing the object.
    cold.store.delete(KEY)
    assert (KEY in store, store.present([KEY]), list(store.keys())) == (False, set(), [])


def test_a_failed_write_is_in_none(store: Tiered, hot: Faulty, cold: Faulty) -> None:
    """A value that the coldest tier refused is not copied."""
    writes: list[Callable[[], object]] = [
        lambda: store.set(KEY, b"1"),
        lambda: store.set_many({KEY: b"1"}),
        lambda: store.compare_and_swap(KEY, None, b"1"),
        lambda: store.transact({KEY: b"1"}, {}),
        lambda: store.exclusively(lambda: {KEY: b"1"}),
    ]
    for write in writes:
        cold.fail_at = len(cold.calls) + 1
        with pytest.raises(StoreUnavailable):
            write()
        assert list(hot.store.keys()) == []
    assert not store.transact({KEY: b"1", REF: b"1"}, {REF: b"0"})
    assert not store.compare_and_swap(KEY, b"0", b"1")
    assert list(hot.store.keys()) == []


def test_every_deletion_reaches_all(store: Tiered, hot: Faulty, warm: Faulty, cold: Faulty) -> None:
    """Also one whose answer from the coldest was lost."""
    deletions: list[Callable[[], object]] = [
        lambda: store.delete(KEY),
        lambda: store.delete_many(iter([KEY])),
        lambda: store.transact({KEY: None}, {}),
        lambda: store.compare_and_swap(KEY, b"object", None),
        lambda: store.exclusively(lambda: {KEY: None}),
    ]
    for delete in deletions:
        for lost in (False, True):
            store.set(KEY, b"object")
            if lost:
                cold.fail_at, cold.after = len(cold.calls) + 1, True
                with pytest.raises(StoreUnavailable):
                    delete()
            else:
                delete()
            assert [list(tier.store.keys()) for tier in (hot, warm, cold)] == [[], [], []]


def test_damage_in_a_hot_store_is_healed(hot: Faulty, cold: Faulty) -> None:
    """A state over it reads right, although every copy near it is damaged. `forget` drops the copies."""
    with Versioned(Tiered(hot, cold)) as state:
        state["list"] = list(range(1000))
        state.commit()
    for key in list(hot.store.keys()):
        hot.store.set(key, b"\0damaged")
    with Versioned(Tiered(hot, cold)) as state:
        assert state["list"] == list(range(1000))
    assert dict(hot.store.items()).items() <= dict(cold.store.items()).items()
    store = Tiered(hot, cold)
    store.forget(key)
    assert hot.store.get(key) is None
    assert store.get(key) == cold.store.get(key)


@pytest.mark.slow
@given(data=st.data())
def test_it_behaves_as_its_coldest_store(data: st.DataObject) -> None:
    """Whatever fails in the hot stores, before or after it was done, every answer is the coldest store's."""
    keys = st.sampled_from([KEY, OTHER, REF, "format"])
    numbers = st.sampled_from([b"1", b"2"])

    def value(key: str, number: bytes) -> bytes:
        return key.encode() if key.startswith("o/") else number  # objects never change

    # Each layer fails once, so that together they fail at several calls.
    tiers: list[KVStore] = []
    for _ in range(data.draw(st.integers(1, 2), "hot stores")):
        hot: KVStore = Memory()
        faults = st.tuples(
            st.integers(1, 30), st.sampled_from([StoreUnavailable, StoreFull, OSError]), st.booleans()
        )
        for number, error, after in data.draw(st.lists(faults, max_size=6), "faults"):
            hot = Faulty(hot, number, error, after)
        tiers.append(hot)
    store, model = Tiered(*tiers, Memory()), Memory()
    steps = st.tuples(st.sampled_from("gmswdbxtep"), keys, keys, numbers)
    for step, key, other, number in data.draw(st.lists(steps, max_size=40), "steps"):
        # Both get the same call. The model gives the expected values.
        new, more = value(key, number), value(other, number)
        old = model.get(key)
        actions: dict[str, Callable[[KVStore], object]] = {
            "g": lambda s, key=key: s.get(key),
            "m": lambda s, key=key, other=other: s.get_many([key, other]),
            "s": lambda s, key=key, new=new: s.set(key, new),
            "w": lambda s, key=key, other=other, new=new, more=more: s.set_many({key: new, other: more}),
            "d": lambda s, key=key: s.delete(key),
            "b": lambda s, key=key, other=other: s.delete_many([key, other]),
            "x": lambda s, key=key, new=new, old=old: s.compare_and_swap(key, old, new),
            "t": lambda s, key=key, other=other, more=more, old=old: s.transact(
                {key: None, other: more}, {key: old}
            ),
            "e": lambda s, key=key, other=other, more=more: s.exclusively(lambda: {key: None, other: more}),
            "p": lambda s, key=key, other=other: (key in s, s.present([key, other]), s.forget(key)),
        }
        assert actions[step](store) == actions[step](model)
        assert dict(store.items()) == dict(model.items())
    for key in (KEY, OTHER, REF, "format"):
        assert store.get(key) == model.get(key)


def go_down(hot: Faulty) -> None:
    """Every call fails from now on."""
    hot.fail_at, hot.away = len(hot.calls) + 1, 10**9


def test_a_slow_failure_is_not_waited_for_again(hot: Faulty, cold: Faulty) -> None:
    """The hot store is left alone for ten times as long as its failure took, then tried again."""

    def slow(text: str) -> StoreUnavailable:
        time.sleep(0.1)
        return StoreUnavailable(text)

    hot.error = slow
    go_down(hot)
    store = Tiered(hot, cold)
    for number in range(20):
        store.set(f"o/{number:064x}", b"1")
        assert store.get(f"o/{number:064x}") == b"1"
    assert len(hot.calls) == 1
    hot.fail_at = None
    deadline = time.monotonic() + 100
    while len(hot.calls) == 1 and time.monotonic() < deadline:
        time.sleep(0.05)
        assert store.get(KEY) is None
    assert len(hot.calls) > 1
    store.set(KEY, b"1")
    assert hot.store.get(KEY) == b"1"


def test_what_could_not_be_deleted_is_not_read(
    hot: Faulty, cold: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleted while the hot store is down, an object stays deleted, and is deleted there once it is up."""
    monkeypatch.setattr(module, "REST", 0)
    store = Tiered(hot, cold)
    store.set_many({KEY: b"1", OTHER: b"2"})
    go_down(hot)
    store.delete(KEY)
    hot.fail_at = None
    assert hot.store.get(KEY) == b"1"
    assert store.get(KEY) is None
    assert store.get_many([KEY, OTHER]) == {OTHER: b"2"}
    store.delete("o/another")
    assert list(hot.store.keys()) == [OTHER]
    store.set(KEY, b"1")
    hot.calls.clear()
    assert store.get(KEY) == b"1"
    assert hot.calls == ["get"]


def test_a_hot_store_that_deletes_nothing_is_given_up(
    hot: Faulty, cold: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of stale objects is bounded."""
    monkeypatch.setattr(module, "MOST_STALE", 10)
    monkeypatch.setattr(module, "REST", 0)
    go_down(hot)
    store = Tiered(hot, cold)
    keys = [f"o/{number:064x}" for number in range(100)]
    for key in keys:
        store.delete(key)
    assert len(hot.calls) == 11
    hot.fail_at = None
    hot.store.set(keys[0], b"left over")
    assert store.get(keys[0]) is None
    store.set(keys[1], b"1")
    assert store.get(keys[1]) == b"1"
    assert list(hot.store.keys()) == [keys[0]]


def test_a_full_hot_store_still_answers(tmp_path: Path) -> None:
    """Objects that fitted are read from the hot store, the others from the coldest."""
    cold = Faulty(Memory())
    with Tiered(Disk(tmp_path / "near", size_limit=100_000, durability="process"), cold) as store:
        keys = [f"o/{number:064x}" for number in range(20)]
        for key in keys:
            store.set(key, os.urandom(20_000))
        cold.calls.clear()
        assert all(len(store.get(key) or b"") == 20_000 for key in keys)
        assert 10 < cold.calls.count("get") < 20


def test_check_looks_at_all(tmp_path: Path) -> None:
    """Damage of a hot store is reported with its place, and a store that cannot be checked is too."""
    with Disk(tmp_path / "near") as near:
        near.set_many({f"o/{number:064x}": b"x" * 3000 for number in range(30)})
    cold = Faulty(Memory())
    with Tiered(Disk(tmp_path / "near"), cold) as store:
        assert list(store.check()) == []
    file = tmp_path / "near" / "vstate.db"
    data = bytearray(file.read_bytes())
    data[2 * 4096 : 2 * 4096 + 200] = bytes(200)
    file.write_bytes(data)
    failing = Faulty(Memory(), 1)
    with Tiered(failing, Disk(tmp_path / "near"), cold) as store:
        failing.calls.clear()
        finds = list(store.check())
    assert cold.calls.count("check") == 2
    assert finds[0].endswith("could not be checked: made to fail at call 1, before check")
    assert finds[1].startswith(f"the hot store at {tmp_path / 'near'}: vstate.db: ")


def test_it_is_its_coldest_store(tmp_path: Path) -> None:
    """Location, transactions and `uncached` are the coldest tier's. Closing closes all tiers."""
    near, far = Disk(tmp_path / "near"), Disk(tmp_path / "far")
    store = Tiered(near, Cache(far))
    assert store.location == str(tmp_path / "far")
    assert store.uncached() is far
    assert store.transactional
    assert not Tiered(near, Faulty(far, atomic=False)).transactional
    assert repr(store) == f"Tiered({near!r}, Cache({far!r}))"
    store.close()
    for closed in (near, far):
        with pytest.raises(InvalidInput, match="is closed"):
            closed.get(KEY)
