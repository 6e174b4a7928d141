"""Rooms: branches with objects of their own, in one store with all others."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from counting import Counting
from present import present

from vstate import Versioned
from vstate.errors import AlreadyExists, InvalidInput, MergeConflict, NotFound, RefMoved
from vstate.kv.base import KVStore, room_prefix, split_room
from vstate.kv.disk import Disk
from vstate.kv.memory import Memory
from vstate.objects.commit import Commit
from vstate.objects.ids import COMMIT
from vstate.repo import rooms
from vstate.repo.clone import clone
from vstate.repo.exchange.transfer import Transfer
from vstate.repo.names.refs import HEADS
from vstate.repo.repository import Repository
from vstate.repo.rooms import Room, entry, mark_of, new_mark, new_room, room_in
from vstate.repo.upkeep import forgetting
from vstate.repo.writing import BranchChanges
from vstate.testing.faulty import Faulty
from vstate.values.entry import decode_value


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KVStore]:
    """A new store."""
    kinds: dict[str, Callable[[], KVStore]] = {
        "memory": Memory,
        "disk": lambda: Disk(tmp_path / "store"),
    }
    with kinds[request.param]() as made:
        yield made


def commit(repo: Repository, branch: str, **values: Any) -> Commit:
    """A commit to a branch, which gets a room of its own if it is new."""
    (made,) = repo.commit_many([BranchChanges(branch, set=values, room=True)])
    assert made is not None
    return made


def state(repo: Repository, branch: str) -> dict[str, Any]:
    """The values of a branch."""
    root = repo.branch(branch).root
    return {key: decode_value(found, repo.objects).value for key, found in repo.entries(root)}


def room_of(repo: Repository, branch: str) -> int:
    """The number of the room of a branch."""
    assert repo.rooms is not None
    return repo.rooms.room_of(HEADS + branch)


def in_rooms(store: KVStore) -> dict[str, list[str]]:
    """The keys of the store by the beginning of their rooms."""
    found: dict[str, list[str]] = {}
    for key in [*store.keys()]:
        room, within = split_room(key)
        found.setdefault(room, []).append(within)
    return found


def test_each_new_room_has_its_branch_alone(store: KVStore) -> None:
    """Two branches that begin with the same values share no row but those that name them."""
    repo = Repository(store)
    one, two = (commit(repo, name, value=[1] * 5_000) for name in ("a", "b"))
    repo.commit("main", set={"value": [1] * 5_000})
    rooms = in_rooms(store)
    assert len(rooms) == 3
    assert one.root == two.root
    assert {key.split("/")[0] for key in rooms[""]} == {"format", "r", "room-of", "reflog", "o"}
    assert [sorted(key.split("/")[0] for key in keys) for room, keys in rooms.items() if room] == [
        ["o"] * 3 + ["r", "reflog"]
    ] * 2
    assert list(repo.branches()) == ["a", "b", "main"]
    assert [made.oid for made in repo.log("a")] == [one.oid]


@pytest.mark.parametrize("first", [True, False])
def test_a_branch_is_made_in_one_room_only(store: KVStore, first: bool) -> None:
    """Of two writers that make one branch, in room 0 and in a room, the second is told that it is there."""
    other = Repository(store)
    other.branch_names()
    made: list[Commit] = []

    class Late(Faulty):
        def transact(self, *args: Any, **options: Any) -> bool:
            if not made:
                made.append(present(other.commit_many([BranchChanges("a", set={"n": 1}, room=first)])[0]))
            return super().transact(*args, **options)

    repo = Repository(Late(store))
    repo.commit_many([BranchChanges("a", set={"m": 2}, room=not first)])
    assert state(Repository(store), "a") == {"n": 1, "m": 2}
    assert Repository(store).fsck().ok
    assert len([key for key in store.keys("") if key.endswith("r/heads/a")]) == 1


def test_a_store_without_transactions_has_no_rooms() -> None:
    """There a branch that asks for a room lies with all others: its two rows could not be written as one."""
    store = Faulty(Memory(), atomic=False)
    made = commit(Repository(store), "a", value=[1] * 5_000)
    assert set(in_rooms(store)) == {""}
    source, target = Repository(Memory()), Repository(Faulty(Memory(), atomic=False))
    commit(source, "a", value=1)
    source.push(target, "a")
    assert set(in_rooms(target.store)) == {""}
    assert state(Repository(store), "a") == {"value": [1] * 5_000}
    assert made.parent_ids == ()


def test_forgetting_leaves_the_reflog_of_another_branch(store: KVStore) -> None:
    """A deleted branch of the same room comes back from its reflog, though the last branch is forgotten."""
    repo = Repository(store)
    commit(repo, "a", value=1)
    repo.create_branch("b", "a")
    commit(repo, "b", more=2)
    repo.delete_branch("b")
    repo.delete_branch("a", forget=True)
    repo.create_branch("b", "b@{1}")
    assert state(Repository(store), "b") == {"value": 1, "more": 2}
    assert repo.fsck().ok


def test_the_end_of_a_history_in_one_room_is_none_in_a_copy(store: KVStore) -> None:
    """A branch that was merged into another room keeps its history there, and in copies from there."""
    repo = Repository(store)
    for number in range(5):
        commit(repo, "a", value=number)
    commit(repo, "b", own=1)
    repo.merge("b", "a")
    repo.commit("main", set={"x": 1})
    repo.gc(branch="a", keep_last=1, keep_reflog="0s")
    assert len([*repo.log("a")]) == 1
    repo.move_branch("main", "b")
    assert len([*Repository(store).log("main")]) == len([*Repository(store).log("b")]) == 7


def test_a_fork_stays_in_the_room(store: KVStore) -> None:
    """A branch from a commit, and one with a commit on top of it, share its objects."""
    repo = Repository(store)
    base = commit(repo, "a", value=[1] * 5_000)
    before = sum(key.startswith("o/") for keys in in_rooms(store).values() for key in keys)
    repo.create_branch("b", "a")
    repo.commit_many([BranchChanges("c", set={"more": 1}, base=base)])
    assert room_of(repo, "a") == room_of(repo, "b") == room_of(repo, "c")
    after = sum(key.startswith("o/") for keys in in_rooms(store).values() for key in keys)
    assert after == before + 2  # a tree and a commit


@pytest.mark.parametrize("verb", ["merge", "fast-forward", "cherry-pick", "rollback", "reset", "branch"])
def test_what_comes_from_another_room_is_copied(store: KVStore, verb: str) -> None:
    """After a verb that takes a commit of another room, the room needs no other one."""
    repo = Repository(store)
    commit(repo, "a", value=[1] * 5_000)
    theirs = commit(repo, "a", more=2)
    if verb == "fast-forward":
        repo.commit("b", set={"value": 0})
        repo.move_branch("b", theirs)
    else:
        commit(repo, "b", own=1)
        {
            "merge": lambda: repo.merge("b", "a"),
            "cherry-pick": lambda: repo.cherry_pick("b", theirs),
            "rollback": lambda: repo.rollback("b", theirs),
            "reset": lambda: repo.move_branch("b", theirs),
            "branch": lambda: repo.create_branch("c", "a"),
        }[verb]()
    wanted = {name: state(repo, name) for name in repo.branch_names()}
    repo.delete_branch("a", forget=True)
    repo.gc(keep_reflog="0s", grace="0s")
    repo.gc(keep_reflog="0s", grace="0s")
    again = Repository(store)
    assert {name: state(again, name) for name in again.branch_names()} == {
        name: values for name, values in wanted.items() if name != "a"
    }
    assert again.fsck().ok


@pytest.mark.parametrize("verb", ["branch", "tag", "base", "merge"])
@pytest.mark.parametrize("end", ["forget", "gc"])
def test_a_room_that_goes_beside_a_fork(verb: str, end: str) -> None:
    """The last branch is forgotten, or gc deletes the room, just before a new ref would land in it."""

    class Overtaken(Memory):
        def transact(self, writes: Any, expected: Any) -> bool:
            if any(key.endswith(("/c", "/t")) and row for key, row in writes.items()):
                while happens:
                    happens.pop()()
            return super().transact(writes, expected)

    happens: list[Callable[[], object]] = []
    store = Overtaken()
    repo, other = Repository(store), Repository(store)
    base = commit(repo, "a", value=[1] * 5_000)
    commit(repo, "d", own=1)
    if end == "gc":
        repo.delete_branch("a")
        happens.append(lambda: other.gc(keep_reflog="0s"))
    else:
        happens.append(lambda: other.delete_branch("a", forget=True))
    with suppress(NotFound, RefMoved):
        if verb == "branch":
            repo.create_branch("c", base.id)
        elif verb == "tag":
            repo.create_tag("t", base.id)
        elif verb == "base":
            repo.commit_many([BranchChanges("c", set={"x": 1}, base=base)])
        else:
            repo.create_branch("c", "d")
            repo.merge("c", base.id)
    assert not happens
    report = Repository(store).fsck()
    assert report.ok, str(report)


def test_a_room_that_goes_again_and_again_beside_a_copy() -> None:
    """The copy into the room is made again each time; it is no damage that objects were not there."""

    class Overtaken(Memory):
        left = 0

        def transact(self, writes: Any, expected: Any) -> bool:
            if self.left and any("/arrived/" in key for key in writes):
                self.left -= 1
                self.delete_many([key for key in expected if key.endswith("/gc")])  # as the room's deletion
            return super().transact(writes, expected)

    store = Overtaken()
    repo = Repository(store)
    theirs = commit(repo, "a", value=[1] * 5_000)
    commit(repo, "b", own=1)
    store.left = 5
    repo.move_branch("b", theirs)
    assert store.left == 0
    assert state(repo, "b") == state(repo, "a")
    assert Repository(store).fsck().ok


@pytest.mark.slow
def test_threads_share_a_repository() -> None:
    """Threads that make, merge, move and delete branches of rooms write each object where it belongs."""
    for seed in range(6):
        store = Memory()
        repo = Repository(store)
        for name in "ab":
            commit(repo, name, value=[name] * 3_000)
        with ThreadPoolExecutor(3) as threads:
            for work in [threads.submit(busy, repo, random.Random(f"{seed} {n}")) for n in range(3)]:
                work.result()
        report = Repository(store).fsck()
        assert report.ok, str(report)


def busy(repo: Repository, rng: random.Random) -> None:
    """Random verbs on four branches."""
    for _ in range(25):
        with suppress(AlreadyExists, NotFound, RefMoved, InvalidInput, MergeConflict):
            verb(repo, *rng.choices("abcd", k=2), rng.randrange(24))


def verb(repo: Repository, one: str, other: str, number: int) -> None:
    """One of the verbs that write."""
    values = {f"k{number}": [number] * 2_000}
    if number < 12:
        repo.commit_many([BranchChanges(one, set=values, room=True)])
    elif number < 15:
        repo.create_branch(one, other)
    elif number < 17:
        repo.merge(one, other, policy="theirs")
    elif number < 19:
        repo.move_branch(one, other)
    elif number < 21:
        repo.commit_many([BranchChanges(one, set=values, base=repo.branch(other))])
    elif number < 23:
        repo.delete_branch(one, forget=number == 21)
    else:
        repo.gc(keep_reflog="0s")


def test_what_a_commit_leads_to_is_looked_for_in_its_own_room(store: KVStore) -> None:
    """Of two branches that are read in turn, each commit and each tree is found at the first look."""
    repo = Repository(store)
    for number in range(3):
        for branch in "ab":
            commit(repo, branch, value=[branch, number])
    counted = Counting(store)
    again = Repository(counted)
    commits = [again.branch(name) for name in "ab"]
    counted.rows.clear()
    for _ in range(2):
        commits = [again.objects.commit(each.parent_ids[0]) for each in commits]
    trees = [again.objects.node(present(each.root)) for each in commits]
    assert len(trees) == 2
    assert sum(counted.rows.values()) == 6


def test_a_branch_that_was_absent_once_begins_anew_where_its_reflog_is(store: KVStore) -> None:
    """A look found no branch of the name; it was made as a fork, and deleted, since."""
    repo = Repository(store)
    repo.commit("main", set={"x": 1})
    thread = commit(repo, "thread", value=1)
    with pytest.raises(NotFound):
        repo.branch("x")
    repo.commit_many([BranchChanges("x", base=thread, set={"value": 2})])
    room = room_of(repo, "x")
    repo.delete_branch("x")
    commit(repo, "x", value=3)
    assert room_of(repo, "x") == room
    assert len([*repo.refs.reflog(HEADS + "x")]) == 3


def test_a_branch_that_head_is_on_is_not_forgotten_with_its_room(store: KVStore) -> None:
    """Though nothing else is in the room."""
    repo = Repository(store)
    commit(repo, "x", value=1)
    repo.take_head("x", "switch")
    with pytest.raises(InvalidInput, match="HEAD is on branch 'x'"):
        repo.delete_branch("x", forget=True)
    assert repo.newest("x") is not None
    with pytest.raises(InvalidInput, match="branch name"):
        repo.delete_branch("a\0b", forget=True)


@pytest.mark.parametrize("first", ["a", "main"])
def test_a_deleted_branch_begins_anew_where_its_reflog_is(store: KVStore, first: str) -> None:
    """Though at a commit of another room, which is copied: the old commits are found, and forgotten."""
    if first == "main" and not store.ordered:
        pytest.skip("a reflog in room 0 is looked for in order only")
    repo = Repository(store)
    commit(repo, "thread", value=1)
    repo.commit("main", set={"x": 1})
    if first == "a":
        commit(repo, "a", word="secret")
    else:
        repo.commit("a", set={"word": "secret"})
    before, room = repo.branch("a"), room_of(repo, "a")
    repo.delete_branch("a")
    repo.create_branch("a", "main" if room else "thread")
    again = Repository(store)
    assert room_of(again, "a") == room
    assert not [*store.keys("gone/")]
    assert [line.new for line in again.refs.reflog(HEADS + "a")][1:] == [None, before.oid]
    assert again.resolve("a@{2}") == again.resolve(before.id) == before
    repo.delete_branch("a", forget=True)
    assert before.id not in {key[-64:] for key in [*store.keys()]}
    assert Repository(store).fsck().ok


def test_nothing_is_left_of_the_last_branch_of_a_room() -> None:
    """Forgetting it deletes the room; gc does that once the reflog of a deleted branch is over."""
    for forget in (True, False):
        with Memory() as store:
            repo = Repository(store)
            repo.commit("main", set={"kept": 1})
            commit(repo, "a", value=[1] * 5_000)
            repo.create_branch("b", "a")
            repo.delete_branch("a", forget=forget)
            assert state(repo, "b") == {"value": [1] * 5_000}
            repo.delete_branch("b", forget=forget)
            report = repo.gc(keep_reflog="0s")
            assert set(in_rooms(store)) == {""}
            assert not [*store.keys("gone/")]
            assert store.get("format")
            assert report.live == 2
            assert repo.fsck().ok


def test_a_handle_of_another_process_sees_a_branch_move_to_another_room(store: KVStore) -> None:
    """A branch that was forgotten and made anew is read, and written, where it is now."""
    mine, other = Repository(store), Repository(store)
    commit(mine, "a", value=1)
    assert state(other, "a") == {"value": 1}
    mine.delete_branch("a", forget=True)
    assert other.newest("a") is None
    commit(mine, "a", value=2)
    assert state(other, "a") == {"value": 2}
    commit(other, "a", more=3)
    assert state(mine, "a") == {"value": 2, "more": 3}
    assert Repository(store).fsck().ok


def test_head_keeps_a_commit_of_a_room() -> None:
    """gc leaves a commit that HEAD was detached at: it is in room 0 too."""
    store = Memory()
    repo = Repository(store)
    repo.commit("main", set={"x": 1})
    first = commit(repo, "a", value=[1] * 5_000)
    commit(repo, "a", value=2)
    repo.checkout(first.id)
    repo.move_branch("a", "a")
    repo.squash("a")
    repo.gc(keep_reflog="0s")
    assert state_at(repo, first) == {"value": [1] * 5_000}
    assert repo.fsck().ok
    repo.checkout("main")
    repo.gc()
    assert state_at(repo, first) == {"value": [1] * 5_000}
    repo.gc(keep_reflog="0s")
    assert repo.objects.find_commit(first.oid) is None or not repo.objects.is_stored(first.oid)


def state_at(repo: Repository, made: Commit) -> dict[str, Any]:
    """The values of a commit, read by a repository that knows nothing yet."""
    again = Repository(repo.store)
    root = again.resolve(made.id).root
    return {key: decode_value(found, again.objects).value for key, found in again.entries(root)}


def test_an_object_outside_rooms_is_found_after_many_rooms_were_used() -> None:
    """Also if nothing says where it is: the last look goes to all rooms, and to the store itself."""
    store = Memory()
    Repository(store).commit("main", set={"value": [1] * 5_000})
    for number in range(70):
        commit(Repository(store), f"b{number}", n=number)
    repo = Repository(store)
    wanted = repo.refs.read("heads/main")
    repo = Repository(store)
    for number in range(70):
        assert state(repo, f"b{number}") == {"n": number}
    assert wanted is not None
    assert repo.objects.find_commit(wanted) is not None


@pytest.mark.parametrize("damage", ["entry", "nonsense", "ref"])
def test_fsck_compares_the_rows_that_name_rooms(damage: str) -> None:
    """A ref without its row in the store is found and put back; a row without a ref goes."""
    store = Memory()
    repo = Repository(store)
    commit(repo, "a", value=1)
    number = room_of(repo, "a")
    row = store.get("room-of/heads/a")
    assert row == entry(number)
    assert room_in(row) == number
    if damage == "nonsense":
        store.set("room-of/heads/a", b"room 7")
    else:
        store.delete("room-of/heads/a" if damage == "entry" else room_prefix(number) + "r/heads/a")
    report = Repository(store).fsck()
    assert not report.ok
    assert report.plan
    assert Repository(store).fsck(repair=True).ok
    assert state(Repository(store), "a") == {"value": 1}
    assert Repository(store).fsck().ok


def test_rooms_move_with_a_clone_and_a_fetch(tmp_path: Path) -> None:
    """Branches that share a room have one in the copy too. A push writes into the room of its branch."""
    source = Repository(Memory())
    for name in ("a", "b"):
        commit(source, name, value=name * 5_000)
    source.create_branch("a2", "a")
    Versioned(source.store).switch("b")
    copy = Memory()
    clone(source.store, copy)
    assert Repository(copy).fsck().ok
    assert Repository(copy).refs.head().branch == "b"
    target = Repository(Memory())
    source.push(target, source.branch_names())
    rooms = {name: room_of(target, name) for name in ("a", "a2", "b")}
    assert rooms["a"] == rooms["a2"] != rooms["b"]
    assert set(in_rooms(target.store)) == {"", *(room_prefix(number) for number in rooms.values())}
    commit(source, "a", more=1)
    source.push(target, "a")
    target.fetch(source, remote="origin")
    assert state(Repository(target.store), "a") == {"value": "a" * 5_000, "more": 1}
    assert target.fsck().ok
    bundle = tmp_path / "bundle"
    commit(source, "b", more=2)
    source.export(bundle, ["a", "b"], since=["a2"])
    target.import_bundle(bundle)
    assert state(Repository(target.store), "b") == state(source, "b")
    target.delete_branch("a", forget=True)
    target.gc(keep_reflog="0s")
    assert state(Repository(target.store), "b") == state(source, "b")
    assert target.fsck().ok


def test_an_import_looks_for_each_branch_in_its_room() -> None:
    """Branches of several rooms move, are ahead or have parted, whichever room the objects come into."""
    source, target, names = Repository(Memory()), Repository(Memory()), ["a", "b", "c", "d", "e"]
    for name in names:
        commit(source, name, value=name)
    source.push(target, names)
    for name in ("b", "d"):
        commit(source, name, value=0)
    for name in ("a", "c", "d"):
        commit(target, name, value=1)
    bundle = io.BytesIO()
    source.export(bundle, names)
    bundle.seek(0)
    outcomes = {ref.name.removeprefix("heads/"): ref.outcome for ref in target.import_bundle(bundle).refs}
    assert outcomes == {"a": "ahead", "b": "moved", "c": "ahead", "d": "diverged", "e": "unchanged"}
    assert state(Repository(target.store), "b") == {"value": 0}
    target.gc(keep_reflog="0s")
    assert target.fsck().ok


def test_a_tracking_ref_stays_in_its_room() -> None:
    """Though the branch of that name has begun in another one: the next fetch moves it."""
    source, target = Repository(Memory()), Repository(Memory())
    source.commit("a", set={"value": 1})
    target.fetch(source.store, remote="origin")
    commit(target, "a", value=2)
    newest = source.commit("a", set={"value": 3})
    (moved,) = target.fetch(source.store, remote="origin").refs
    assert (moved.status, target.resolve("origin/a")) == ("moved", newest)
    assert target.fsck().ok


def test_a_commit_that_no_ref_leads_to_is_found(tmp_path: Path) -> None:
    """A fetch without a remote, and a pull that makes the branch, of a thread in a room of its own."""
    source = Repository(Memory())
    commit(source, "a", value=1)
    for _ in range(2):  # the second time, the branch is here, in a room
        target = Repository(Disk(tmp_path / "target"))
        target.commit("main", set={"x": 1})
        (fetched,) = target.fetch(source.store, "a").refs
        assert Repository(target.store).resolve(present(fetched.new)) == source.branch("a")
        with Versioned(target.store, branch="a") as pulled:
            pulled.pull(source.store)
            assert dict(pulled) == {"value": 1}
        assert target.fsck().ok


def test_the_numbers_of_new_rooms_ascend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later rooms lie behind earlier ones, so their rows are not scattered over the store.

    Those of one millisecond differ by all 20 bits that are drawn.
    """
    drawn = random.Random(1).sample(range(1 << 20), 100)
    draws = iter(drawn)
    system = SimpleNamespace(urandom=lambda size: (next(draws) << 4).to_bytes(size, "big"))
    monkeypatch.setattr(rooms, "os", system)
    numbers = [new_room() for _ in drawn]
    assert [number >> 20 for number in numbers] == sorted(number >> 20 for number in numbers)
    assert [number % (1 << 20) for number in numbers] == drawn
    assert len(set(numbers)) == 100


def steps(repo: Repository, rng: random.Random, room: bool) -> None:
    """One random verb, the same in both stores."""
    names = repo.branch_names()
    some = lambda: rng.choice(names)  # noqa: E731
    verb = rng.choice(["commit"] * 4 + ["new", "fork", "merge", "delete", "forget", "gc", "rename", "undo"])
    number = rng.randrange(8)
    with suppress(AlreadyExists, NotFound, InvalidInput, MergeConflict):
        if verb == "new" or not names:
            values = {"k": number, f"x{number}": [number] * 3_000}
            repo.commit_many([BranchChanges(f"b{number}", set=values, room=room)])
        elif verb == "commit":
            values = {f"x{number}": [rng.randrange(5)] * 3_000}
            repo.commit_many([BranchChanges(some(), set=values)])
        elif verb == "fork":
            repo.create_branch(f"b{number}", some())
        elif verb == "merge":
            repo.merge(some(), some(), policy="theirs")
        elif verb == "delete":
            repo.delete_branch(some())
        elif verb == "forget":
            repo.delete_branch(some(), forget=True)
        elif verb == "gc":
            repo.gc(keep_reflog=rng.choice(["0s", "30d"]))
        elif verb == "rename":
            repo.rename_branch(some(), f"b{number}")
        elif verb == "undo":
            repo.undo(some())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_rooms_change_no_answer(seed: int) -> None:
    """After random verbs, a store with rooms has the same branches, values and reflogs as one without."""
    plain, rooms = Memory(), Memory()
    numbers: set[str] = set()
    for step in range(40):
        for store, room in ((plain, False), (rooms, True)):
            steps(Repository(store), random.Random(f"{seed} {step}"), room)
        numbers |= in_rooms(rooms).keys()
        ours, theirs = Repository(plain), Repository(rooms)
        assert ours.branch_names() == theirs.branch_names()
        for name in ours.branch_names():
            assert state(ours, name) == state(theirs, name)
            assert len([*ours.log(name)]) == len([*theirs.log(name)])
    report = Repository(rooms).fsck()
    assert report.ok, str(report)
    Repository(rooms).gc(keep_reflog="0s")
    assert Repository(rooms).fsck().orphans == 0
    assert len(numbers) > 2


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "second"])
def test_the_mark_of_a_room_that_goes_at_that_moment(is_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is never None, which would hold once the room is gone."""
    store = Memory()
    repo = Repository(store)
    commit(repo, "a", value=1)
    room = Room(store, room_of(repo, "a"))

    def swap(key: str, expected: bytes | None, new: bytes | None) -> bool:
        if not is_first:
            store.set(room.prefix + key, b"of another")
        done = room.transact({key: new}, {key: expected})
        store.delete_many([*store.keys(room.prefix)])
        return done

    monkeypatch.setattr(room, "compare_and_swap", swap)
    assert mark_of(room) is not None


def test_a_branch_is_deleted_where_it_is(store: KVStore) -> None:
    """Another thread read it in an older room, and notes that while the branch is being deleted."""
    repo = Repository(store)
    first = commit(repo, "a", value=1)
    rooms = repo.rooms
    assert rooms is not None
    known, before = rooms.known, room_of(repo, "a")
    repo.delete_branch("a", forget=True)
    now = commit(repo, "a", value=2)
    read = rooms.get

    def late(key: str) -> bytes | None:
        row = read(key)
        rooms._met(known, "r/heads/a", str(first.oid).encode(), before)
        return row

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rooms, "get", late)
        assert repo.refs.end(HEADS + "a", {}, expected=now.oid)
    assert Repository(store).branch_names() == []
    assert Repository(store).fsck().ok


def test_a_branch_that_is_forgotten_as_it_begins_anew_in_another_room(
    store: KVStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new one stays, with its labels; the call raises RefMoved."""
    repo, other = Repository(store), Repository(store)
    commit(repo, "a", value=1)
    repo.create_branch("b", "a")
    begin = forgetting._begin

    def looked(*given: Any) -> list[str]:
        lines = begin(*given)
        monkeypatch.undo()
        other.delete_branch("b", forget=True)
        other.commit_many([BranchChanges("b", set={"value": 2}, room=True, labels={"user": "ann"})])
        return lines

    monkeypatch.setattr(forgetting, "_begin", looked)
    with pytest.raises(RefMoved):
        repo.delete_branch("b", forget=True)
    assert state(Repository(store), "b") == {"value": 2}
    assert Repository(store).branch_names(labels={"user": "ann"}) == ["b"]
    assert Repository(store).fsck().ok


def test_a_copy_into_a_room_goes_on_beside_gc_of_that_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time it has looked at the room, a sweep comes, twice. No ref of that room has been read."""
    store = Memory()
    repo = Repository(store)
    first = commit(repo, "a", value=1)
    commit(repo, "b", value=2)
    mark = f"{room_prefix(room_of(repo, 'b'))}gc"
    repo.delete_branch("b")  # its reflog stays in the room
    send, late = Transfer._send, iter(range(2))

    def slow(self: Transfer, batch: Any, copied: Any) -> None:
        if batch[0].kind is COMMIT and next(late, None) is not None:
            store.set(mark, new_mark())
        send(self, batch, copied)

    monkeypatch.setattr(Transfer, "_send", slow)
    assert Repository(store).create_branch("b", first.oid) == first
    assert next(late, None) is None
    assert Repository(store).fsck().ok
