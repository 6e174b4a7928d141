"""fsck that repairs: the store can be used again, and nothing is thrown away."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from damaged_stores import TEXT, check_clean, copy, damaged, lost, messages, states

from vstate import Memory, Versioned
from vstate.errors import CorruptObject, NotFound, StoreUnavailable
from vstate.objects.ids import BLOB, ObjectId
from vstate.repo import Repository
from vstate.repo.history import shallow_row
from vstate.testing import Faulty


@pytest.mark.parametrize("what", ["commit", "tree", "blob"])
@pytest.mark.parametrize("how", ["missing", "flipped"])
def test_a_branch_goes_to_its_newest_whole_commit(filled: Mapping[str, bytes], what: str, how: str) -> None:
    """If its newest state cannot be read whole; its reflog has where it was, and the rows that were damaged are kept."""
    store = copy(filled)
    repo = Repository(store)
    head = repo.branch("main")
    entry = repo.entry(head.tree, "k003")
    assert entry is not None
    blob = next(iter(entry.links)).id
    oid = {"commit": head.oid, "tree": head.tree, "blob": blob}[what]
    key = f"o/{oid}"
    value = damaged(filled[key], how, b"")
    store.transact({key: value}, {})
    report = Repository(store).fsck(repair=True)
    assert report.ok, str(report)
    assert report.damaged == 1
    assert report.broken == ()
    assert any(line.startswith("branch main: it is at ") for line in report.repaired)
    # What was undone before is the newest by the reflog; to a lost commit's parents nothing else leads.
    expected = ["was"] if what == "commit" else ["merged", "third", "on", "second", "first"]
    assert messages(store) == expected
    line = next(repo.refs.reflog("heads/main"))
    assert (line.old, line.action) == (head.oid, "fsck: repaired")
    assert line.new == repo.branch("main").oid
    assert key not in store
    assert store.get(f"damaged/{oid}") == (value or b"")
    again = Repository(store).fsck()
    assert again.ok
    assert all(damage.known for damage in again.damage)
    collected = copy(dict(store.items()))
    Repository(collected).gc()
    assert Repository(collected).fsck().ok
    # What is written again heals.
    store.set(key, filled[key])
    healed = Repository(store).fsck(repair=True)
    assert healed.ok
    assert healed.damaged == 0
    assert not list(store.keys("damaged/"))
    repo.move_branch("main", head.id)
    check_clean(store)
    assert messages(store)[0] == "fourth"


def test_writing_the_same_again_heals(filled: Mapping[str, bytes]) -> None:
    """A program that commits the lost value once more brings back what older commits need."""
    store = copy(filled)
    key = f"o/{ObjectId.of(BLOB, TEXT.encode())}"
    store.set(key, filled[key][:-2])
    right = states(filled)
    assert lost(store, right)
    Repository(store).fsck(repair=True)
    state = Versioned(store)
    state["again"] = TEXT
    state.commit("again")
    assert lost(store, right) == set()
    report = Repository(store).fsck(repair=True)
    assert report.ok
    assert not list(store.keys("damaged/"))


def test_damage_in_the_past_moves_no_branch(filled: Mapping[str, bytes]) -> None:
    """A branch whose newest state is whole stays; an older commit keeps what can be read of it."""
    store = copy(filled)
    second = Repository(store).resolve("main~3")
    key = f"o/{ObjectId.of(BLOB, ('changed' * 30).encode())}"
    assert second.message.startswith("second")
    state = Versioned(store)
    state["k001"] = 1
    state.commit("later")
    side = Versioned(store, branch="side")
    side["k001"] = 1
    side.commit("later")
    store.delete(key)
    report = Repository(store).fsck(repair=True)
    assert report.ok
    assert report.broken == ()
    assert messages(store)[0] == "later"
    assert {item.key for item in report.lost} == {"k001"}
    assert Versioned(store).checkout(second)["k002"] == 2
    with pytest.raises(CorruptObject):
        Versioned(store).checkout(second)["k001"]


def test_a_lost_commit_ends_the_history_there(filled: Mapping[str, bytes]) -> None:
    """Behind a whole head: the log can be walked again, and says that it was cut off."""
    store = copy(filled)
    second = Repository(store).resolve("main~3")
    store.delete(f"o/{second.oid}")
    with pytest.raises(CorruptObject):
        messages(store)
    report = Repository(store).fsck(repair=True)
    assert report.ok, str(report)
    assert messages(store) == ["fourth", "merged", "third", "on"]
    repo = Repository(store)
    assert {c.message for c in repo.log("main") if repo.history.is_shallow(c)} == {"third", "on the side"}
    with pytest.raises(NotFound, match="cut"):
        repo.resolve("main~3")
    assert repo.resolve("v1").message == "first"
    assert store.get("format") == b"2"
    repo.gc()
    check = Repository(store).fsck()
    assert check.ok


def test_one_lost_parent_of_a_merge(filled: Mapping[str, bytes]) -> None:
    """The other one still leads back."""
    store = copy(filled)
    side = Repository(store).branch("side")
    Repository(store).delete_branch("side")
    store.delete(f"o/{side.oid}")
    report = Repository(store).fsck(repair=True)
    assert report.ok, str(report)
    assert messages(store) == ["fourth", "merged", "third", "second", "first"]


def test_a_lost_head_is_found_by_the_reflog(filled: Mapping[str, bytes]) -> None:
    """Nothing but the reflog knows what was before a commit that is lost."""
    store = copy(filled)
    head = Repository(store).branch("side")
    store.delete(f"o/{head.oid}")
    Repository(store).fsck(repair=True)
    assert messages(store, "side") == ["second", "first"]


def test_nothing_whole_is_left_alone() -> None:
    """A branch that was never at a state that is whole stays where it is, and the report says so."""
    store = Memory()
    state = Versioned(store)
    state["always"] = TEXT
    for number in range(3):
        state["n"] = number
        state.commit(f"{number}")
    state.tag("v1")
    ref = store.get("r/heads/main")
    store.delete(f"o/{ObjectId.of(BLOB, TEXT.encode())}")
    report = Repository(store).fsck(repair=True)
    assert not report.ok
    assert report.broken == ("heads/main", "tags/v1")
    assert store.get("r/heads/main") == ref
    assert any(
        line.startswith("branch main: nothing that it was ever at can be read") for line in report.left
    )
    assert any(line.startswith("tag v1: ") for line in report.left)
    fresh = Versioned(store)
    assert fresh["n"] == 2
    del fresh["always"]
    fresh.commit("without it")
    fresh.delete_tag("v1")
    assert Repository(store).fsck().ok


def test_a_detached_head_goes_to_a_whole_commit(filled: Mapping[str, bytes]) -> None:
    """As a branch does."""
    store = copy(filled)
    repo = Repository(store)
    repo.checkout(repo.branch("side").id)
    repo.delete_branch("side")
    repo.gc()
    head = repo.refs.head().commit
    assert head is not None
    tree_key = f"o/{repo.objects.commit(head).tree}"
    store.delete(tree_key)
    report = Repository(store).fsck(repair=True)
    assert report.ok, str(report)
    now = Repository(store).refs.head()
    assert now.branch is None
    assert Repository(store).resolve("HEAD").message.startswith("second")


def test_a_writer_that_is_faster_wins(filled: Mapping[str, bytes]) -> None:
    """Repair moves a ref only from where it was found."""
    memory = copy(filled)
    head = Repository(memory).branch("main")
    memory.delete(f"o/{head.tree}")

    class Overtaken(Faulty):
        def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
            if "r/heads/main" in expected and not done:
                done.append(True)
                Repository(memory).move_branch("main", "v1")
            return super().transact(writes, expected)

    done: list[bool] = []
    report = Repository(Overtaken(memory)).fsck(repair=True)
    assert done
    assert any("it was moved meanwhile" in line for line in report.left)
    assert messages(memory) == ["first"]
    assert Repository(memory).fsck(repair=True).ok


@pytest.mark.parametrize("moment", ["r/heads/main", "o/"])
def test_an_object_that_is_healed_meanwhile_is_not_moved_aside(
    filled: Mapping[str, bytes], moment: str
) -> None:
    """A row that a writer replaced since it was looked at stays, up to the last moment."""
    memory = copy(filled)
    key = f"o/{Repository(memory).branch('main').tree}"
    memory.set(key, filled[key][:-1])

    class Healing(Faulty):
        def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
            if any(name.startswith(moment) for name in expected):
                memory.set(key, filled[key])
            return super().transact(writes, expected)

    assert Repository(Healing(memory)).fsck(repair=True).ok
    assert memory.get(key) == filled[key]


def test_a_history_that_is_cut_off_meanwhile_is_left_so(filled: Mapping[str, bytes]) -> None:
    """Whoever was faster has said what is left of it."""
    memory = copy(filled)
    repo = Repository(memory)
    third, second = repo.resolve("main~2"), repo.resolve("main~3")
    assert third.parents == (second.oid,)
    memory.delete(f"o/{second.oid}")
    note = shallow_row(third.oid, [repo.resolve("v1").oid])

    class Cutting(Faulty):
        def compare_and_swap(self, key: str, expected: bytes | None, new: bytes | None) -> bool:
            memory.set_many(dict([note]))
            return super().compare_and_swap(key, expected, new)

    Repository(Cutting(memory)).fsck(repair=True)
    assert memory.get(note[0]) == note[1]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "plain"])
def test_a_repair_interrupted_anywhere_can_be_done_again(
    filled: Mapping[str, bytes], after: bool, atomic: bool
) -> None:
    """Whichever write of it fails, nothing is worse, and the next repair ends as this one would have."""
    rows = dict(filled)
    repo = Repository(copy(rows))
    rows[f"o/{repo.branch('main').tree}"] = b"t?"
    del rows[f"o/{repo.resolve('main~3').oid}"]
    rows["r/heads/side"] = b"?"
    rows["reflog/heads/x:y"] = b"?"
    del rows["format"]

    def run(fail_at: int | None) -> tuple[Memory, Faulty]:
        memory = copy(rows)
        faulty = Faulty(memory, fail_at, after=after, atomic=atomic)
        if fail_at is None:
            assert Repository(faulty).fsck(repair=True).ok
        else:
            with pytest.raises(StoreUnavailable):
                Repository(faulty).fsck(repair=True)
        return memory, faulty

    def without_reflog(memory: Memory) -> dict[str, bytes]:
        return {key: value for key, value in memory.items() if not key.startswith("reflog/")}

    done, counted = run(None)
    writes = ("set", "delete", "compare_and_swap", "set_many", "delete_many", "transact")
    for number, call in enumerate(counted.calls, 1):
        if call not in writes:
            continue
        memory, _ = run(number)
        assert Repository(memory).fsck(repair=True).ok
        assert without_reflog(memory) == without_reflog(done), (number, call)


def test_repair_of_a_sound_store_writes_nothing(filled: Mapping[str, bytes]) -> None:
    """There is nothing to repair."""
    faulty = Faulty(copy(filled))
    report = Repository(faulty).fsck(repair=True)
    assert (report.repaired, report.left) == ((), ())
    assert not {"set", "delete", "compare_and_swap", "set_many", "delete_many", "transact"} & set(
        faulty.calls
    )
