"""Forgetting a branch: it is gone with its reflog and all that it alone led to; all else is untouched."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from test_gc import Plain, large, needed, objects_of, rows_of, whole

from vstate import Disk, KVStore, Memory, Versioned
from vstate.errors import CorruptObject, InvalidInput, NotFound, RefMoved
from vstate.objects.commit import Commit
from vstate.repo import Repository
from vstate.repo.upkeep import forgetting

STORES = ["memory", "plain", "disk"]


def opened(kind: str, tmp_path: Path) -> KVStore:
    if kind == "disk":
        return Disk(tmp_path / "store")
    return Memory() if kind == "memory" else Plain()


def head_of(state: Versioned) -> Commit:
    assert state.head is not None
    return state.head


def tangle(store: KVStore, seed: int) -> list[str]:
    """Branches that share commits and values in every way that the verbs allow; their names."""
    chance = random.Random(seed)
    state = Versioned(store)
    state["start"] = large(0)
    state.commit("start")
    states = [state]

    def commit() -> None:
        # Few different values, so that branches write equal ones, and old ones come back.
        value = random.Random(chance.randrange(4)).randbytes(chance.choice((60, 400, 20_000)))
        it[f"k{chance.randrange(3)}"] = [value, chance.randrange(2)]
        it.commit("change")

    def fork() -> None:
        if len(states) < 6:
            states.append(it.fork(f"b{len(states)}", at=f"HEAD~{chance.randrange(2)}" if steps else "HEAD"))

    def take() -> None:
        verb = chance.choice((it.merge, it.cherry_pick, it.reset, it.rollback))
        rev = head_of(chance.choice(states))
        if verb == it.merge:
            it.merge(rev, policy="theirs")
        elif verb != it.cherry_pick or it.repo.history.parents(rev):
            verb(rev)

    def tag() -> None:
        it.tag(f"t{len(it.tags())}")

    for _ in range(25):
        it = chance.choice(states)
        steps = len(list(it.log(limit=2))) > 1
        try:
            chance.choices((commit, fork, take, it.undo, tag), (8, 3, 3, 1, 1))[0]()
        except (InvalidInput, NotFound):
            it.discard()
    if chance.random() < 0.3:
        state.repo.checkout(head_of(chance.choice(states)).id)
    names = [str(state.branch) for state in states]
    for state in states:
        state.close()
    return names


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("seed", range(8))
def test_forgets_what_the_branch_alone_led_to(kind: str, seed: int, tmp_path: Path) -> None:
    """One branch after another goes with exactly the objects that nothing else leads to."""
    store = opened(kind, tmp_path)
    names = tangle(store, seed)
    random.Random(seed).shuffle(names)
    repo = Repository(store)
    if repo.refs.head().branch is not None:
        repo.checkout(names.pop())
    repo.gc()
    for name in names:
        before = rows_of(store)
        assert repo.delete_branch(name, forget=True) is not None
        after = rows_of(store)
        assert objects_of(store) == needed(store)
        for key in before.keys() - after.keys():
            ours = key.startswith(("o/", f"reflog/heads/{name}:", "reflog/HEAD:", "commit-graph/"))
            assert ours or key == f"r/heads/{name}", key
        assert not any(key.startswith(f"reflog/heads/{name}:") for key in after)
        new = {key for key in after if before.get(key) != after[key]}
        assert all(key in ("gc", "format") or key.startswith("trash/") for key in new), new
        whole(store)


def test_policies_lifetimes_and_ends_of_histories_go_too() -> None:
    """No row names the branch or one of its commits afterwards, and the name begins anew."""
    store = Memory()
    Versioned(store).set_policy("x", "ours")
    state = Versioned(store, branch="session", ttl=1000)
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
    state["a"] = 1
    state.commit("a")
    other = state.fork("other")
    other["b"] = large(1)
    other.commit("b")
    repo = Repository(store)
    for target in ("other", head_of(other).id, "main"):
        repo.checkout(target)
    repo.delete_branch("other", forget=True)
    assert objects_of(store) == needed(store)
    assert len(list(repo.refs.reflog("HEAD"))) == 2  # to the branch, and back
    whole(store)


def test_a_branch_that_moves_meanwhile_goes_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits that another writer makes while the call looks around are forgotten too."""
    store = Memory()
    state = Versioned(store, branch="busy")
    state["n"] = 0
    state.commit("0")
    walk = forgetting._Forgetting._read_lines_of_head

    def late(self: forgetting._Forgetting) -> None:
        state["n"] = large(7)
        state.commit("late")
        walk(self)

    monkeypatch.setattr(forgetting._Forgetting, "_read_lines_of_head", late)
    Repository(store).delete_branch("busy", forget=True)
    assert objects_of(store) == set()


@pytest.mark.parametrize("kind", STORES)
def test_forgotten_stays_forgotten_beside_stale_handles(kind: str, tmp_path: Path) -> None:
    """A handle, a commit, an id and a base from before bring nothing back."""
    store = opened(kind, tmp_path)
    Versioned(store).set_policy("x", "ours")
    stale = Versioned(store, branch="gone")
    stale["secret"] = large(3)
    old = stale.commit("secret")
    stale["more"] = 1
    head = stale.commit("more")
    assert old is not None
    assert head is not None
    repo, forgotten = Repository(store), objects_of(store)
    repo.delete_branch("gone", forget=True)
    stale["more"] = 2
    for _ in range(2):
        with pytest.raises(RefMoved):
            stale.commit("late")
    stale.discard()
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
    assert not objects_of(store) & forgotten
    assert repo.commit("gone", set={"a": 1}) is not None  # a new branch of that name
    assert list(Versioned(store, branch="gone")) == ["a"]


def test_refuses_heads_branch_and_absent_ones() -> None:
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


def test_damage_elsewhere_keeps_everything() -> None:
    """If an object of another branch is missing, nobody knows what it needs, so nothing is removed."""
    store = Memory()
    repo = Repository(store)
    kept = repo.commit("main", set={"a": large(1)})
    repo.commit("gone", set={"b": large(2)})
    assert kept is not None
    store.delete(f"o/{kept.root}")
    before = rows_of(store)
    with pytest.raises(CorruptObject):
        Repository(store).delete_branch("gone", forget=True)
    assert rows_of(store) == before
