"""Publishing a commit: in one step, and when the store cannot tell the outcome."""

import pytest

from vstate import Disk, Memory, Versioned
from vstate.errors import StoreUnavailable
from vstate.objects.ids import ObjectId
from vstate.repo import Repository
from vstate.repo.names.refs import SWEEP, Refs
from vstate.testing import Faulty


def unsure(message: str) -> StoreUnavailable:
    return StoreUnavailable(message, outcome_unknown=True)


@pytest.mark.parametrize("landed", [True, False])
def test_an_unknown_outcome_is_looked_up(landed: bool) -> None:
    """When the answer to a write is lost, the branch is read: a commit that landed counts."""
    memory = Memory()
    faulty = Faulty(memory, error=unsure, after=landed)
    state = Versioned(faulty)
    state["k"] = [1]
    state.commit("one")
    state["k"].append(2)
    before = len(faulty.calls)
    faulty.fail_at = before + 1
    if landed:
        commit = state.commit("two")
        assert commit is not None
        assert commit.message == "two"
        assert commit == Versioned(memory).head
    else:
        with pytest.raises(StoreUnavailable):
            state.commit("two")
        assert state.status().modified == ["k"]
        faulty.fail_at = None
        assert state.commit("two") is not None
    assert state.commit() is None
    assert [c.message for c in Versioned(memory).log()] == ["two", "one"]
    assert Versioned(memory)["k"] == [1, 2]


def test_landed_and_overtaken() -> None:
    """A commit that landed counts, even if another writer committed on top before the branch is read."""
    memory = Memory()

    class Overtaken(Faulty):
        def transact(self, writes, expected):
            done = super().transact(writes, expected)
            if done and self.fail_at == 0:
                self.fail_at = None
                other = Versioned(memory)
                other["theirs"] = 1
                other.commit("theirs")
                raise unsure("lost")
            return done

    faulty = Overtaken(memory)
    state = Versioned(faulty)
    state["a"] = 1
    state.commit("one")
    state["a"] = 2
    faulty.fail_at = 0
    commit = state.commit("two")
    assert commit is not None
    assert commit.message == "two"
    assert [c.message for c in Versioned(memory).log()] == ["theirs", "two", "one"]
    state.refresh()
    assert dict(state) == {"a": 2, "theirs": 1}


class Overtaken(Faulty):
    """A store without transactions in which another writer moves the branch just before the swap."""

    def compare_and_swap(self, key, expected, new):
        super().set(key, OTHER)
        return super().compare_and_swap(key, expected, new)


OTHER = b"0" * 64


def test_a_lost_swap_leaves_no_line_in_the_reflog() -> None:
    """A move that failed is not in the reflog, even in a store without transactions."""
    memory = Memory()
    state = Versioned(memory)
    state["a"] = 1
    state.commit("one")
    repo = Repository(Overtaken(memory, atomic=False))
    head = repo.branch("main")
    commit = repo.build_commit(None, (head,), message="lost")
    assert not repo.publish("main", [commit], {}, [], expected=head.oid, action="lost")
    assert memory.get("r/heads/main") == OTHER
    assert [line.action for line in Repository(memory).refs.reflog("heads/main")] == ["commit: one"]


class OvertakenOnce(Overtaken):
    """Another writer changes the key right before the first swap."""

    def compare_and_swap(self, key, expected, new):
        if key in self.overtaken:
            return self.store.compare_and_swap(key, expected, new)
        self.overtaken.add(key)
        return super().compare_and_swap(key, expected, new)


def sweeping(store: OvertakenOnce, refs: Refs) -> bool:
    """The retry finds a sweep of gc in between."""
    sweep, swap = refs.sweep(), store.compare_and_swap

    def swept(key, expected, new):
        store.set("gc", b"another sweep")
        return swap(key, expected, new)

    store.compare_and_swap = swept
    return refs.set_head(branch="other", action="lost", expecting={SWEEP: sweep})


def repairing(store: OvertakenOnce, refs: Refs) -> bool:
    """The ref moved while it was repaired."""
    store.set("r/heads/main", b"damaged")
    rows = refs.rows_of_move("heads/main", None, ObjectId(b"n" * 32), "lost")
    return refs.transact(rows, {"r/heads/main": b"damaged"})


def moving(store: OvertakenOnce, refs: Refs) -> bool:
    """The last caller moves HEAD."""
    return refs.set_head(branch="other", action="checkout: to other")


@pytest.mark.parametrize(
    ("move", "ref", "moves"),
    [(moving, "HEAD", True), (sweeping, "HEAD", False), (repairing, "heads/main", False)],
)
def test_the_reflog_of_a_ref_that_another_moved(move, ref: str, moves: bool) -> None:
    """It has the moves that happened, and no other."""
    store = OvertakenOnce(Memory(), atomic=False)
    store.overtaken = set()
    refs = Repository(store).refs
    assert move(store, refs) is moves
    assert [line.old for line in refs.reflog(ref)] == [ObjectId.parse(OTHER.decode())] * moves
    assert moves or store.get(f"r/{ref}") == OTHER


def test_publish_is_one_transaction(tmp_path) -> None:
    """A commit writes its objects, the ref and the reflog in one call of transact."""
    with Disk(tmp_path / "s") as disk:
        faulty = Faulty(disk)
        state = Versioned(faulty)
        state["first"] = 1
        state.commit()  # stamps the store with its format, once
        state.update({f"k{i}": "v" * 500 for i in range(100)})
        faulty.calls.clear()
        state.commit()
        assert faulty.calls.count("transact") == 1
        assert not {"set", "set_many", "delete", "compare_and_swap"} & set(faulty.calls)
