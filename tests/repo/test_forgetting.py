"""Forgetting a branch: it is gone with its reflog and all that it alone led to; all else is untouched."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from bundle_files import large, save
from histories import Tangle, needed, objects_of, plain, rows_of, sound
from present import present
from soak import sized
from sync_stores import Once, Overtaken

from vstate import BranchChanges, Commit, Disk, KVStore, Memory, Versioned
from vstate.errors import CorruptObject, InvalidInput, NotFound, RefMoved
from vstate.objects.ids import ObjectId
from vstate.patterns.journal import Journal
from vstate.repo import Repository
from vstate.repo.upkeep import forgetting
from vstate.repo.upkeep.gc import Plan, Sweep
from vstate.repo.upkeep.reach import Marks


def left(store: KVStore) -> set[str]:
    """The objects that are left. In a store without transactions, gc removes those of a forgotten branch."""
    if not store.transactional:
        for _ in range(2):
            Repository(store).gc(grace="0s")
    return objects_of(store)


@pytest.mark.parametrize("room", [True, False])
@pytest.mark.parametrize("forget", [True, False])
def test_a_branch_that_is_elsewhere_than_it_was_seen_stays(store: KVStore, forget: bool, room: bool) -> None:
    """RefMoved, and the branch keeps the commit that has reached it; at `seen` it goes."""
    repo = Repository(store)
    repo.commit("main", set={"n": 0})

    def put(n: int) -> Commit:
        (made,) = repo.commit_many([BranchChanges("one", set={"n": n}, room=room)])
        assert made is not None
        return made

    seen, newest = put(1), put(2)
    with pytest.raises(RefMoved):
        repo.delete_branch("one", forget=forget, seen=seen)
    assert repo.branch("one") == newest
    assert repo.delete_branch("one", forget=forget, seen=newest) == newest
    assert repo.branch_names() == ["main"]
    with pytest.raises(NotFound):
        repo.delete_branch("one", forget=forget, seen=newest)


@pytest.mark.parametrize("seed", range(sized(3, 1000)))
@pytest.mark.slow
def test_forgets_what_the_branch_alone_led_to(store: KVStore, seed: int) -> None:
    """One branch after another goes with exactly the objects that nothing else leads to."""
    tangle = Tangle(store, seed)
    tangle.grow(30)
    repo = Repository(store)
    repo.gc()
    for name in random.Random(seed).sample(names := repo.branch_names(), len(names)):
        if repo.refs.head().branch == name:
            continue
        before = rows_of(store)
        repo.delete_branch(name, forget=True)
        after = rows_of(store)
        assert left(store) == needed(store)
        for key in before.keys() - after.keys():
            ours = key.startswith(
                ("o/", f"reflog/heads/{name}:", "reflog/HEAD:", "commit-graph/", "shallow/")
            )
            ours = ours or (key.startswith(("r/newest/", "r/with/")) and key.endswith(f"/{name}"))
            assert ours or key in (f"r/heads/{name}", f"keep/heads/{name}"), key
        assert not any(key.startswith(f"reflog/heads/{name}:") for key in after)
        new = {key for key in after if before.get(key) != after[key]}
        assert all(key in ("gc", "format") or key.startswith("trash/") for key in new), new
        sound(store)


def test_gc_follows_no_history_that_another_process_forgets() -> None:
    """gc knew where a history ends when the branch was forgotten. The older part of it is half removed."""
    store = plain()
    repo = Repository(store)
    repo.commit("main", set={"main": 1})
    first = present(repo.commit("it", set={"k": 1}))
    repo.commit("it", set={"k": 2})
    repo.gc(branch="it", keep_last=1, keep_reflog="0s")
    marks = Marks(repo)
    marks.begin(lambda key, line: line.commits)
    store.delete(f"trash/{first.tree}")
    Repository(store).delete_branch("it", forget=True)
    marks.catch_up()
    assert first.oid not in marks


def test_gc_begins_anew_beside_an_import_of_a_forgotten_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its look and its sweep the branch is forgotten, and an import that has not landed writes
    commits of it again, one without its tree.
    """
    store = Memory()
    repo = Repository(store)
    repo.commit("main", set={"main": 1})
    first = present(repo.commit("it", set={"k": 1}))
    last = present(repo.commit("it", set={"k": 2}))
    rows = store.get_many([f"o/{commit.id}" for commit in (first, last)])
    repo.gc(branch="it", keep_last=1, keep_reflog="0s")
    repo.commit("garbage", set={"k": large(1)})
    repo.delete_branch("garbage")
    execute, attempts = Sweep.execute, list[int]()

    def swept(self: Sweep, plan: Plan, grace: timedelta) -> None:
        attempts.append(1)
        if len(attempts) == 1:
            Repository(store).delete_branch("it", forget=True)
            store.set_many(rows)
        execute(self, plan, grace)

    monkeypatch.setattr(Sweep, "execute", swept)
    repo.gc(keep_reflog="0s")
    assert len(attempts) == 2
    assert objects_of(store) == needed(store)
    sound(store)


def test_policies_and_ends_of_histories_go_too() -> None:
    """No row names the branch or one of its commits afterwards, and the name begins anew."""
    store = Memory()
    Versioned(store).set_policy("x", "ours")
    state = Versioned(store, branch="session")
    for number in range(5):
        state["n"] = number
        state.commit(str(number))
    state.set_policy("n", "counter")
    state.repo.gc(branch="session", keep_last=2, keep_reflog="0s")
    ids = {commit.id for commit in state.log()}
    assert any(key.startswith("shallow/") for key in rows_of(store))
    state.repo.delete_branch("session", forget=True)
    assert not [key for key in rows_of(store) if "session" in key or key[-64:] in ids]
    again = Versioned(store, branch="session")
    assert not again
    assert again.policies() == {}


def test_lines_of_head_that_name_the_branch_go() -> None:
    """A look at the branch by the command keeps nothing alive; lines about other commits stay."""
    store = Memory()
    state = Versioned(store)
    save(state, "a", a=1)
    other = state.fork("other")
    save(other, "b", b=large(1))
    repo = Repository(store)
    for target in ("other", present(other.head).id, "main"):
        repo.checkout(target)
    repo.delete_branch("other", forget=True)
    assert left(store) == needed(store)
    assert len(list(repo.refs.reflog("HEAD"))) == 2  # to the branch, and back
    sound(store)


def meanwhile(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Let something happen once, when a call has looked around, and has removed nothing yet."""
    begin = forgetting._begin

    def looked(*given: Any) -> list[str]:
        lines = begin(*given)
        monkeypatch.setattr(forgetting, "_begin", begin)
        happens()
        return lines

    monkeypatch.setattr(forgetting, "_begin", looked)


@pytest.mark.parametrize("ref", ["value", "fork", "tag", "detached head"])
@pytest.mark.slow
def test_what_is_shared_meanwhile_stays(store: KVStore, ref: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that another branch writes meanwhile stays, and so does a commit that a ref comes to."""
    repo, other = Repository(store), Repository(store)
    repo.commit("main", set={"a": 1})
    at = repo.commit("it", set={"k": large(1)})
    repo.commit("it", set={"l": large(2)})

    def share() -> None:
        if ref == "value":
            other.commit("other", set={"k": large(1)})
        elif ref == "fork":
            other.create_branch("other", present(at))
        elif ref == "tag":
            other.create_tag("other", present(at))
        else:
            other.checkout(present(at).id)

    meanwhile(monkeypatch, share)
    repo.delete_branch("it", forget=True)
    assert left(store) == needed(store)
    sound(store)


@pytest.mark.parametrize("store", ["memory", "disk"], indirect=True)
def test_a_branch_that_begins_anew_in_between_stays(store: KVStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the steps of a long call another writer begins a branch of that name, with the same values."""
    repo = Repository(store)
    repo.commit("main", set={"a": 1})
    repo.commit("it", set={"k": large(1)})
    remove, done = Sweep._remove, list[int]()

    def between(self: Sweep, marks: Marks, ids: Iterable[ObjectId], noted: Collection[str]) -> None:
        if not done:
            done.append(1)
            Repository(store).commit("it", set={"k": large(1)})
        remove(self, marks, ids, noted)

    monkeypatch.setattr(Sweep, "_remove", between)
    repo.delete_branch("it", forget=True)
    assert done
    assert Versioned(store, branch="it")["k"] == large(1)
    sound(store)


def test_a_ref_to_a_commit_that_is_forgotten_in_between_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that has found the commit, and not moved its ref yet, gets NotFound."""
    store = Memory()
    repo, other = Repository(store), Repository(store)
    repo.commit("main", set={"a": 1})
    at = present(repo.commit("it", set={"k": large(1)}))
    publish = other.refs.publish_all

    def late(*arguments: Any, **options: Any) -> bool:
        monkeypatch.undo()
        repo.delete_branch("it", forget=True)
        return publish(*arguments, **options)

    monkeypatch.setattr(other.refs, "publish_all", late)
    with pytest.raises(NotFound):
        other.create_branch("back", at)
    sound(store)


def test_a_commit_that_only_heads_reflog_names_keeps_its_values() -> None:
    """A value of the branch that such a commit needs stays."""
    store = Memory()
    repo = Repository(store)
    repo.commit("main", set={"a": 1})
    at = present(repo.commit("other", set={"k": large(1)}))
    repo.checkout(at.id)
    repo.checkout("main")
    repo.delete_branch("other")
    store.delete_many(list(store.keys("reflog/heads/other:")))
    repo.commit("it", set={"k": large(1), "l": large(2)})
    repo.delete_branch("it", forget=True)
    assert left(store) == needed(store)
    repo.create_branch("back", at)
    assert Versioned(store, branch="back")["k"] == large(1)


def test_a_branch_that_moves_meanwhile_goes_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits that another writer makes while the call looks around are forgotten too."""
    store = Memory()
    state = Versioned(store, branch="busy")
    save(state, "0", n=0)
    meanwhile(monkeypatch, lambda: save(state, "late", n=large(7)))
    Repository(store).delete_branch("busy", forget=True)
    assert left(store) == set()


def test_forgotten_stays_forgotten_beside_stale_handles(store: KVStore) -> None:
    """A handle, a commit, an id and a base from before bring nothing back."""
    Versioned(store).set_policy("x", "ours")
    stale = Versioned(store, branch="gone")
    old = save(stale, "secret", secret=large(3))
    head = save(stale, "more", more=1)
    repo, forgotten = Repository(store), left(store)
    repo.delete_branch("gone", forget=True)
    stale["more"] = 2
    for _ in range(2):
        with pytest.raises(RefMoved):
            stale.commit("late")
    stale.discard()
    left(store)
    for attempt in (
        lambda: stale.repo.create_branch("back", old),
        lambda: stale.tag("back", old),
        lambda: stale.fork("back"),
        lambda: stale.reset(old),
        lambda: stale.rollback(old),
        lambda: stale.undo(),
        lambda: repo.create_branch("back", old.oid),
        lambda: stale.repo.commit("gone", set={"a": 1}, expect=head),
    ):
        with pytest.raises((NotFound, RefMoved)):
            attempt()
    assert not left(store) & forgotten
    with pytest.raises(NotFound):
        repo.resolve(head.oid)
    assert repo.commit("gone", set={"a": 1}) is not None  # a new branch of that name
    assert list(Versioned(store, branch="gone")) == ["a"]


def test_refuses_heads_branch_and_absent_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """HEAD's branch stays, also if HEAD comes to it meanwhile; NotFound names the others."""
    store = Memory()
    repo = Repository(store)
    repo.commit("main", set={"a": 1})
    with pytest.raises(InvalidInput, match="HEAD is on branch 'main'"):
        repo.delete_branch("main", forget=True)
    with pytest.raises(NotFound, match="no branch 'absent'"):
        repo.delete_branch("absent", forget=True)
    state = Versioned(store)
    with pytest.raises(InvalidInput, match="this state is on branch"):
        state.delete_branch("main", forget=True)
    repo.commit("other", set={"b": 1})
    meanwhile(monkeypatch, lambda: Repository(store).checkout("other"))
    with pytest.raises(InvalidInput, match="HEAD is on branch 'other'"):
        repo.delete_branch("other", forget=True)
    assert repo.newest("other") is not None


@pytest.mark.parametrize("killed_before", [0, 1, 2, 3])
def test_a_value_that_garbage_holds_too(monkeypatch: pytest.MonkeyPatch, killed_before: int) -> None:
    """gc is killed before one of its deletions. Forgetting then leaves no commit without its value."""
    repo = Repository(Memory())
    repo.commit("main", set={"kept": 0})
    commits = [repo.commit("old", set={"value": [number] * 5_000}) for number in range(3)]
    repo.commit("side", set={"value": [0] * 5_000, "more": 1})
    repo.delete_branch("old")
    deletions = iter(range(10))
    exclusively = repo.store.exclusively

    def killed(plan: Callable[[], Any]) -> bool:
        if next(deletions) == killed_before:
            raise SystemExit
        return exclusively(plan)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(repo.store, "exclusively", killed)
        patch.setattr("vstate.repo.upkeep.gc.MOST_DELETED", 1)
        repo.gc(keep_reflog="0s")
    there = [commit for commit in commits if repo.objects.is_stored(commit.oid)]
    assert len(there) == 3 - killed_before
    repo.delete_branch("side", forget=True)
    assert not any(repo.objects.is_stored(commit.oid) for commit in there)
    assert repo.fsck().ok


def test_two_branches_are_forgotten_at_once() -> None:
    """A branch that another process forgets during the look is no damage: the look begins anew."""
    store = Overtaken(Memory())
    repo = Repository(store)
    for name in ("main", "s", "t"):
        repo.commit(name, set={"name": [name, large(1)]})
    store.after_read = once = Once(lambda: repo.delete_branch("t", forget=True), "r/heads/t")
    Repository(store).delete_branch("s", forget=True)
    assert once.done
    assert repo.branch_names() == ["main"]
    assert left(store) == needed(store)


READERS: dict[str, Callable[[Versioned], object]] = {
    "newest": lambda state: present(state.repo.newest("t")).message,
    "branch": lambda state: state.repo.branch("t").message,
    "branches": lambda state: state.repo.branches()["t"].message,
    "some branches": lambda state: state.repo.branches(iter(["t"]))["t"].message,
    "resolve": lambda state: state.repo.resolve("t").message,
    "open": lambda state: present(Versioned(state.repo.store, branch="t").head).message,
    "refresh": lambda state: present(state.refresh()).message,
    "journal": lambda state: "".join(Journal(state.repo, "t").refresh()),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS.keys())
def test_a_branch_that_is_forgotten_after_the_look_is_read_again(read: Callable[[Versioned], object]) -> None:
    """A commit that another process forgets in the middle of a read is no damage; real damage is told."""
    store = Overtaken(Memory())
    Repository(store).commit("t", set={"journal/000000000000": ["begin"]}, message="begin")
    state = Versioned(store, branch="t")
    state.refresh()
    Repository(store).commit("t", set={"journal/000000000000": ["old"]}, message="old")

    def anew() -> None:
        other = Repository(store)
        other.delete_branch("t", forget=True)
        other.commit("t", set={"journal/000000000000": ["new"]}, message="new")

    store.after_read = once = Once(anew, "r/heads/t")
    assert read(state) == "new"
    assert once.done
    damaged = Repository(store).commit("t", set={"n": 1})
    store.delete("o/" + present(damaged).id)
    with pytest.raises(CorruptObject):
        read(state)


def test_no_byte_of_it_is_left_in_the_files(tmp_path: Path) -> None:
    """A branch that was forgotten is in neither the file nor its log, while the store stays open."""
    mark = random.Random(7).randbytes(64)
    with Disk(tmp_path / "s") as store:
        state = Versioned(store)
        save(state, kept=1)
        with state.fork("secret") as secret:
            save(secret, mark=mark)
        state.repo.delete_branch("secret", forget=True)
        assert not [file for file in (tmp_path / "s").iterdir() if mark in file.read_bytes()]
        assert state["kept"] == 1
