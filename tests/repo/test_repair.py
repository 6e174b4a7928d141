"""fsck that repairs: the store can be used again, and nothing is thrown away."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta

import damaged_stores
import pytest
from bundle_files import save
from damaged_stores import (
    TEXT,
    Shuffled,
    check_clean,
    copy,
    damaged,
    encrypted,
    mended,
    messages,
    place_of,
    spoil,
)
from sync_stores import Hooked, Once

from vstate import KVStore, Memory, Versioned
from vstate.errors import CorruptObject, CorruptStore, NotFound
from vstate.kv import Encrypted
from vstate.objects.canonical import encode
from vstate.objects.commit import Commit
from vstate.objects.ids import BLOB, TREE, ObjectId
from vstate.repo import Repository
from vstate.repo.history import shallow_row
from vstate.repo.sweeps import arrivals
from vstate.testing import Faulty

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def order_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repair does not depend on the order in which a store lists its keys."""
    monkeypatch.setattr(damaged_stores, "shuffling", True)


@pytest.mark.parametrize("kind", ["commit", "tree", "blob"])
@pytest.mark.parametrize("how", ["missing", "flipped"])
def test_a_branch_goes_to_its_newest_whole_commit(filled: Mapping[str, bytes], kind: str, how: str) -> None:
    """If its newest state cannot be read whole; its reflog has where it was, and the rows that were damaged
    are kept.
    """
    store = copy(filled)
    repo = Repository(store)
    head = repo.branch("main")
    entry = repo.entry(head.root, "k003")
    assert entry is not None
    blob = next(iter(entry.links)).id
    oid = {"commit": head.oid, "tree": head.root, "blob": blob}[kind]
    key = f"o/{oid}"
    value = damaged(filled[key], how, b"")
    store.transact({key: value}, {})
    report = mended(store)
    assert report.damaged == 1
    assert report.broken == ()
    assert any(line.startswith("branch main: it is at ") for line in report.repaired)
    # The reflog leads to the parent of a lost commit; an earlier undo stays.
    assert messages(store) == ["merged", "third", "on", "second", "first"]
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
    # Writing a value again heals it.
    store.set(key, filled[key])
    healed = Repository(store).fsck(repair=True)
    assert healed.ok
    assert healed.damaged == 0
    assert not list(store.keys("damaged/"))
    repo.move_branch("main", head.id)
    check_clean(store)
    assert messages(store)[0] == "fourth"


def test_damage_in_the_past_moves_no_branch(filled: Mapping[str, bytes]) -> None:
    """A branch whose newest state is whole stays; an older commit keeps its readable keys."""
    store = copy(filled)
    second = Repository(store).resolve("main~3")
    key = f"o/{ObjectId.of(BLOB, ('changed' * 30).encode())}"
    assert second.message.startswith("second")
    state = Versioned(store)
    save(state, "later", k001=1)
    side = Versioned(store, branch="side")
    save(side, "later", k001=1)
    store.delete(key)
    report = mended(store)
    assert report.broken == ()
    assert messages(store)[0] == "later"
    assert {item.key for item in report.lost} == {"k001"}
    assert Versioned(store).checkout(second)["k002"] == 2
    with pytest.raises(CorruptObject):
        Versioned(store).checkout(second)["k001"]


def test_a_lost_commit_ends_the_history_there(filled: Mapping[str, bytes]) -> None:
    """A history with a lost commit ends there: the log can be walked again, and says that it was cut off."""
    store = copy(filled)
    second = Repository(store).resolve("main~3")
    store.delete(f"o/{second.oid}")
    with pytest.raises(CorruptObject):
        messages(store)
    mended(store)
    assert messages(store) == ["fourth", "merged", "third", "on"]
    repo = Repository(store)
    assert {c.message for c in repo.log("main") if repo.history.is_shallow(c)} == {"third", "on the side"}
    with pytest.raises(NotFound, match="cut"):
        repo.resolve("main~3")
    assert repo.resolve("v1").message == "first"
    assert store.get("format") == b"vstate 1"
    repo.gc()
    check = Repository(store).fsck()
    assert check.ok


def test_nothing_whole_is_left_alone() -> None:
    """A branch without any whole state stays where it is, and the report says so."""
    store = Memory()
    state = Versioned(store)
    state["always"] = TEXT
    for number in range(3):
        save(state, f"{number}", n=number)
    state.tag("v1")
    ref = store.get("r/heads/main")
    store.delete(f"o/{ObjectId.of(BLOB, TEXT.encode())}")
    report = Repository(store).fsck(repair=True)
    assert not report.ok
    assert report.broken == ("heads/main", "tags/v1")
    assert store.get("r/heads/main") == ref
    assert any(
        line.startswith("branch main: none of the states that it was at can be read") for line in report.left
    )
    assert any(line.startswith("tag v1: ") for line in report.left)
    fresh = Versioned(store)
    assert fresh["n"] == 2
    del fresh["always"]
    fresh.commit("without it")
    fresh.delete_tag("v1")
    assert Repository(store).fsck().ok


def test_a_writer_that_is_faster_wins(filled: Mapping[str, bytes]) -> None:
    """A repair leaves a ref that a writer has moved meanwhile."""
    memory = copy(filled)
    memory.delete(f"o/{Repository(memory).branch('main').root}")
    overtake = Once(lambda: Repository(memory).move_branch("main", "v1"), "r/heads/main")
    report = Repository(Hooked(memory, overtake)).fsck(repair=True)
    assert overtake.done
    assert any("somebody has moved it meanwhile" in line for line in report.left)
    assert messages(memory) == ["first"]
    mended(memory)


@pytest.mark.parametrize("moment", ["r/heads/main", "o/"])
def test_an_object_that_is_healed_meanwhile_is_not_moved_aside(
    filled: Mapping[str, bytes], moment: str
) -> None:
    """A repair leaves a row that a writer has replaced meanwhile, up to the last moment."""
    memory = copy(filled)
    key = f"o/{Repository(memory).branch('main').root}"
    memory.set(key, filled[key][:-1])

    heal = Once(lambda: memory.set(key, filled[key]), moment)
    assert Repository(Hooked(memory, heal)).fsck(repair=True).ok
    assert heal.done
    assert memory.get(key) == filled[key]


@pytest.mark.parametrize("moment", ["", "shallow/"], ids=["at first", "right before"])
def test_a_history_that_is_cut_off_meanwhile_is_left_so(filled: Mapping[str, bytes], moment: str) -> None:
    """A faster repair has ended the history already."""
    memory = copy(filled)
    repo = Repository(memory)
    third, second = repo.resolve("main~2"), repo.resolve("main~3")
    assert third.parent_ids == (second.oid,)
    memory.delete(f"o/{second.oid}")
    key, row = shallow_row(third.oid, [repo.resolve("v1").oid])
    cut = Once(lambda: memory.set(key, row), moment)
    Repository(Hooked(memory, cut)).fsck(repair=True)
    assert cut.done
    assert memory.get(key) == row


def test_a_plan_lists_its_steps_and_writes_nothing(filled: Mapping[str, bytes]) -> None:
    """A check lists the steps of a repair in the same words as the report of that repair."""
    store = copy(filled)
    repo = Repository(store)
    store.set(f"o/{repo.branch('main').root}", b"t?")
    store.delete(f"o/{repo.resolve('main~3').oid}")
    before = dict(store.items())
    plan = repo.fsck().plan
    assert dict(store.items()) == before
    report = repo.fsck(repair=True)
    assert len(report.repaired) > 3
    assert plan == (*report.repaired, *report.left)
    assert not report.plan


# Which commit


def committed(store: KVStore, count: int) -> list[ObjectId]:
    with Versioned(store, branch="main") as state:
        for number in range(count):
            save(state, f"c{number}", k=[number] * 50)
        return [commit.oid for commit in state.log()][::-1]


def test_the_newest_line_of_the_reflog_is_the_one_of_the_latest_time() -> None:
    """The order in which a store lists the lines does not count, for branches and for tags."""
    store = Shuffled()
    *_, whole, tip = committed(store, 8)
    state = Versioned(store)
    for number in range(4):
        state.tag("t", f"main~{7 - number}")
        if number < 3:
            state.delete_tag("t")
    store.delete(f"o/{tip}")
    store.set("r/tags/t", b"?")
    mended(store)
    assert Repository(store).branch("main").oid == whole
    assert Repository(store).resolve("t").message == "c3"


def test_a_branch_does_not_go_to_what_was_merged_into_it() -> None:
    """The first parents, which the branch itself was at, come before all other ancestors."""
    store = Memory()
    state = Versioned(store)
    save(state, "base", base=1)
    side = state.fork("side")
    save(state, "mine", mine=1)
    save(side, "theirs", theirs=1)
    state.merge("side", message="merge")
    save(state, "tip", more=TEXT)
    for commit in list(state.log(limit=2)):
        store.delete(f"o/{commit.root}")
    mended(store)
    assert dict(Versioned(store)) == {"base": 1, "mine": 1}


# Refs whose rows are lost


@pytest.mark.parametrize("ref", ["heads/main", "heads/side", "tags/v1"])
@pytest.mark.parametrize("on_main", [True, False], ids=["HEAD has a reflog", "HEAD has none"])
def test_a_lost_ref_is_found_by_its_reflog(filled: Mapping[str, bytes], ref: str, on_main: bool) -> None:
    """A branch that nobody has deleted comes back at its last commit; HEAD stays on its branch."""
    store = copy(filled)
    if on_main:
        Repository(store).refs.set_head(branch="main", action="checkout: to main")
    before = Repository(store).refs.all()
    store.delete(f"r/{ref}")
    report = Repository(store).fsck()
    assert report.broken == (ref,)
    assert [damage.id for damage in report.damage] == [f"r/{ref}"]
    mended(store)
    assert Repository(store).refs.all() == before
    assert Repository(store).refs.head().branch == "main"
    check_clean(store)


def test_a_lost_ref_to_what_is_not_whole(filled: Mapping[str, bytes]) -> None:
    """A branch goes to its newest whole commit; a tag moves to no other commit."""
    store = copy(filled)
    state = Versioned(store)
    head = save(state, "head", text="lost " * 50)
    state.tag("v2")
    store.delete_many([f"o/{head.root}", "r/heads/main", "r/tags/v2"])
    report = Repository(store).fsck(repair=True)
    assert report.broken == ("tags/v2",)
    assert messages(store)[0] == "fourth"
    assert "r/tags/v2" not in store


@pytest.mark.parametrize("clock", [0, 3600], ids=["", "another machine's clock is ahead"])
def test_what_was_deleted_or_renamed_is_not_lost(
    filled: Mapping[str, bytes], clock: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every way to remove a ref writes a line of the deletion, dated after all its other lines."""
    import time

    store = copy(filled)
    now = time.time_ns
    with monkeypatch.context() as ahead:
        ahead.setattr(time, "time_ns", lambda: now() + clock * 10**9)
        state = Versioned(store)
        state.create_branch("gone")
        state.tag("v2")
        state.create_branch("old")
    repo = Repository(store)
    repo.delete_branch("gone")
    repo.delete_tag("v2")
    repo.rename_branch("old", "new")
    repo.rename_branch("main", "master")
    check_clean(store)
    state = Versioned(store)
    state.switch("made", create=True)
    state.switch("master")
    state.delete_branch("made")
    check_clean(store)


@pytest.mark.parametrize("how", ["created", "deleted"])
def test_a_ref_that_moves_while_it_is_looked_for_is_not_lost(filled: Mapping[str, bytes], how: str) -> None:
    """fsck reads a ref again before it calls it lost."""

    class Moving(Faulty):
        def get(self, key: str) -> bytes | None:
            move(key)
            return super().get(key)

    def act() -> None:
        if how == "created":
            Repository(store).create_branch("new", "main")
        else:
            store.set("r/heads/new", filled["r/heads/main"])
            Repository(store).delete_branch("new")

    store, move = copy(filled), Once(act, "r/heads/new")
    Repository(store).create_branch("new", "main")
    if how == "created":
        Repository(store).delete_branch("new")
        store.delete(max(store.keys("reflog/heads/new:")))
    store.delete("r/heads/new")
    assert Repository(Moving(store)).fsck().ok
    assert move.done


def test_a_branch_that_was_never_made_is_not_lost(filled: Mapping[str, bytes]) -> None:
    """Without transactions an interrupted creation may leave the line of a branch without the branch."""
    store = copy(filled)
    Repository(store).create_branch("half", "main")
    store.delete("r/heads/half")
    assert Repository(Faulty(store, atomic=False)).fsck().ok


def test_refs_that_cannot_be_read_are_put_back(filled: Mapping[str, bytes]) -> None:
    """Behind encryption: a branch, a tag and HEAD whose values do not open; and the mark of `gc` is taken
    away.
    """
    inner, store = encrypted(filled)
    repo = Repository(store)
    repo.checkout("side")
    before = repo.refs.all()
    repo.gc()
    store.set("gc", b"mark")
    for ref in ("r/heads/main", "r/tags/v1", "r/HEAD", "gc"):
        spoil(inner, store, ref)
    report = Repository(store).fsck()
    assert set(report.broken) == {"heads/main", "tags/v1", "HEAD"}
    assert {damage.id for damage in report.damage} == {"r/heads/main", "r/tags/v1", "r/HEAD", "gc"}
    mended(store)
    assert {ref: oid for ref, oid in Repository(store).refs.all().items() if ref != "HEAD"} == before
    assert Repository(store).refs.head().branch == "main"
    check_clean(store)


@pytest.mark.parametrize("prefix", ["r/tags/v1", "reflog/heads/side:", "damaged/note"])
def test_a_damaged_name_behind_encryption_keeps_fsck_from_nothing(
    filled: Mapping[str, bytes], prefix: str
) -> None:
    """The report says so, and the rest is checked and repaired as usual."""
    inner, store = encrypted({**filled, "damaged/note": b""})
    root = Repository(store).branch("main").root
    name = place_of(inner, store, min(store.keys(prefix)))
    bad = name[:-1] + ("0" if name[-1] != "0" else "1")
    inner.transact({name: None, bad: inner.get(name)}, {})
    spoil(inner, store, f"o/{root}")
    report = Repository(store).fsck(repair=True)
    assert not report.ok
    assert str(root) in {damage.id for damage in report.damage}
    assert [damage.kind for damage in report.damage if bad[:40] in damage.reason] == ["file"]
    assert any(bad[:40] in line for line in report.left)
    assert messages(store)[0] == "merged"
    inner.delete(bad)
    assert Repository(store).fsck().ok


# Histories that are cut


@pytest.mark.parametrize("lost", [[8], [9, 8, 4]], ids=["one", "several, two in a row"])
@pytest.mark.parametrize("lines", [12, 6, 0], ids=["by the reflog", "by a part of it", "without a reflog"])
def test_what_was_before_a_lost_commit_outlives_gc(lost: list[int], lines: int) -> None:
    """A tag keeps the older commits: nothing else leads to them once the history ends. Also if the older
    history has such an end itself.
    """
    store = copy({})
    ids = committed(store, 12)
    store.delete_many([f"o/{ids[i]}" for i in lost])
    store.delete_many(sorted(store.keys("reflog/"))[: len(ids) - lines])
    report = mended(store)
    ends = [i - 1 for i in lost if i - 1 not in lost]
    assert list(Repository(store).tags()) == sorted(f"fsck/{ids[i].short}" for i in ends)
    assert all(any(f"fsck/{ids[i].short}" in line for line in report.repaired) for i in ends)
    assert messages(store) == [f"c{i}" for i in range(11, max(lost), -1)]
    Repository(store).gc(keep_reflog="0s")
    older = Repository(store).log(f"fsck/{ids[max(ends)].short}")
    assert [commit.oid for commit in older] == [ids[i] for i in range(max(ends), 4 if 4 in lost else -1, -1)]
    for i in {*range(12)} - {*lost}:
        assert Repository(store).resolve(ids[i]).message == f"c{i}"
    assert Repository(store).fsck().ok


# Objects


@pytest.mark.parametrize(
    "read",
    [
        lambda store, two: Repository(store).fsck(repair=True).ok,
        lambda store, two: Repository(store).objects.commit(two).message == "c1",
    ],
    ids=["fsck", "a read"],
)
def test_what_is_put_back_between_two_looks_is_not_missing(read: Callable[[KVStore, ObjectId], bool]) -> None:
    """Without transactions gc puts an object back, and neither place may have it between two reads."""

    class Racing(Faulty):
        def get(self, key: str) -> bytes | None:
            put_back(key)
            return super().get(key)

    memory = Memory()
    plain = Faulty(memory, atomic=False)
    one, two = committed(plain, 2)
    Repository(plain).move_branch("main", one)
    Repository(plain).gc(keep_reflog="0s", grace="1h")
    assert f"trash/{two}" in memory
    assert Repository(plain).refs.compare_and_swap("heads/main", expected=one, new=two, action="x")
    put_back = Once(lambda: Repository(plain).gc(), f"trash/{two}")
    assert read(Racing(memory, atomic=False), two)
    assert put_back.done
    assert Repository(memory).branch("main").oid == two


def test_what_is_whole_again_before_repair_begins_is_left_alone(filled: Mapping[str, bytes]) -> None:
    """The branch stays, although fsck had missed the object before."""
    memory = copy(filled)
    head = Repository(memory).branch("main")
    key = f"o/{head.root}"
    memory.delete(key)

    class Healing(Faulty):
        def get(self, name: str) -> bytes | None:
            reads.append(name)
            if reads.count(key) == heal_at:
                memory.set(key, filled[key])
            return super().get(name)

    reads: list[str] = []
    heal_at = -1
    assert not Repository(Healing(memory)).fsck().ok
    heal_at = reads.count(key) + 1  # the first read after such a look
    reads.clear()
    report = Repository(Healing(memory)).fsck(repair=True)
    assert report.ok
    assert report.damaged == 0
    assert Repository(memory).branch("main").oid == head.oid


@pytest.mark.parametrize("exclusive", [True, False])
def test_an_unreadable_row_that_is_written_anew_stays(filled: Mapping[str, bytes], exclusive: bool) -> None:
    """A repair reads the row again before the deletion, and keeps others out if the store can."""

    class Unreadable(Faulty):
        def get(self, name: str) -> bytes | None:
            if name == key and not healed:
                raise CorruptStore("here", "it cannot be read")
            return super().get(name)

        def get_many(self, keys: object) -> dict[str, bytes]:
            wanted = list(keys)  # type: ignore[call-overload]
            if key in wanted:
                self.get(key)
            return super().get_many(wanted)

        def compare_and_swap(self, name: str, expected: bytes | None, new: bytes | None) -> bool:
            done = super().compare_and_swap(name, expected, new)
            if name == f"damaged/{key[2:]}":
                healed.append(True)
            return done

        def exclusively(self, plan: Callable[[], Mapping[str, bytes | None]]) -> bool:
            healed.extend([True] * exclusive)
            return super().exclusively(plan)

    healed: list[bool] = []
    memory = copy(filled)
    save(memory, "other", other="value " * 100)
    key = f"o/{ObjectId.of(BLOB, b'value ' * 100)}"
    Repository(Unreadable(memory, atomic=exclusive)).fsck(repair=True)
    assert healed
    assert key in memory
    assert not list(memory.keys("damaged/"))


def test_one_wrong_child_costs_no_other_key() -> None:
    """The report takes all keys for lost. The node stays, so that those of its other links can be read."""
    store = copy({})
    state = Versioned(store)
    for number in range(3000):
        state[f"k{number:05}"] = number
    new = state.commit("right")
    assert new is not None
    repo = Repository(store)
    root = repo.objects.node(new.root)  # type: ignore[arg-type]
    assert root.height
    body = encode([root.height, root.keys, [*root.items[:-1], root.items[0]], root.counts])
    wrong = ObjectId.of(TREE, body)
    commit = Commit(root=wrong, parent_ids=(new.oid,), time=new.time + timedelta(seconds=1), message="wrong")
    store.set_many({f"o/{wrong}": b"t" + body, f"o/{commit.oid}": b"c" + commit.body})
    repo.refs.compare_and_swap("heads/main", expected=new.oid, new=commit.oid, action="x")

    def readable() -> set[str]:
        found = set()
        snapshot = Versioned(store, branch="other").checkout(commit.id)
        for number in range(3000):
            try:
                if snapshot[f"k{number:05}"] == number:
                    found.add(f"k{number:05}")
            except (CorruptObject, KeyError):
                pass
        return found

    before = readable()
    assert 1000 < len(before) < 3000
    report = mended(store)
    assert [(item.commit, item.key) for item in report.lost] == [(commit.id, None)]
    assert report.lost[0].what == "all keys"
    assert Repository(store).branch("main").oid == new.oid
    assert readable() == before
    assert store.get(f"damaged/o/{wrong}") == b""
    Repository(store).gc()
    again = Repository(store).fsck()
    assert again.ok
    assert all(damage.known for damage in again.damage)
    # Once it is gone, so is the note.
    Repository(store).gc(keep_reflog="0s")
    assert f"o/{wrong}" not in store
    Repository(store).fsck(repair=True)
    assert not list(store.keys("damaged/"))


def test_what_was_done_is_told_though_the_store_fails_then(filled: Mapping[str, bytes]) -> None:
    """The second check may find the store gone: the report says that, and lists the repairs."""

    class Failing(Faulty):
        def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
            done = super().transact(writes, expected)
            if any(key.startswith("damaged/") for key in writes):
                self.fail_at = len(self.calls) + 12
            return done

    memory = copy(filled)
    key = f"o/{Repository(memory).branch('main').root}"
    memory.set(key, filled[key][:-1])
    report = Repository(Failing(memory)).fsck(repair=True)
    assert not report.ok
    assert any(line.startswith("branch main: it is at ") for line in report.repaired)
    assert any("the store cannot be checked again" in line and "made to fail" in line for line in report.left)


@pytest.mark.parametrize(
    ("key", "use"),
    [
        ("format", lambda state: state.head),
        ("r/heads/main", lambda state: Versioned(state.store).head),
        ("lease/job", lambda state: state.lease("job", wait=0).__enter__()),
        ("policy/heads/main", lambda state: state.policies()),
        ("r/labels/heads/main", lambda state: state.repo.labels(["main"])),
        ("remote/origin", lambda state: state.repo.remotes.url("origin")),
        ("reflog/heads/main", lambda state: list(state.repo.refs.reflog("heads/main"))),
        ("shallow/", lambda state: list(Versioned(state.store).log())),
    ],
)
def test_a_damaged_row_has_one_advice_and_it_works(key: str, use: Callable[[Versioned], object]) -> None:
    """Each kind of row that fsck mends has an error that says so, and nothing about a copy."""
    store = Memory()
    state = Versioned(store)
    for n in range(3):
        state["n"] = n
        state.commit(str(n))
    with state.lease("job"):
        pass
    state.set_policy("n", "ours")
    state.repo.remotes.add("origin", "/somewhere")
    state.repo.commit("main", set={"n": 9}, labels={"a": 1})
    state.repo.squash("main", keep=1)
    store.set(next(store.keys(key), f"{key}{'a' * 64}"), b"\xff nonsense")
    with pytest.raises(CorruptStore) as caught:
        use(Versioned(store) if key == "format" else state)
    assert str(caught.value).endswith("; `vstate fsck --repair` mends it")
    assert caught.value.repairable
    assert str(caught.value).count("fsck") == 1
    state.repo.fsck(repair=True)
    with suppress(NotFound):  # a remote that is gone
        use(Versioned(store))


@pytest.mark.parametrize("key", ["arrived/0123", "trash/" + "a" * 64])
def test_rows_of_gc_that_cannot_be_read_stop_gc_until_a_repair(key: str) -> None:
    """fsck checks the rows that gc reads: commits that have arrived, and objects in the trash."""
    inner = Memory()
    store = Encrypted(Faulty(inner, atomic=False), bytes(32))
    repo = Repository(store)
    repo.commit("main", set={"a": 1})
    before = set(inner.keys())
    store.set(key, bytes(96))
    (stored,) = set(inner.keys()) - before
    inner.set(stored, b"nonsense")
    with pytest.raises((CorruptStore, CorruptObject)):
        _, _ = arrivals(store), repo.gc()
    assert [damage.id for damage in repo.fsck().damage] == [key]
    assert repo.fsck(repair=True).ok
    assert (arrivals(store), repo.gc().removed) == (([], []), 0)
