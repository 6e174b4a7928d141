"""Interleavings that once lost something: each is forced, and loses nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest
from present import present
from raising import called_within

from vstate import (
    CannotLoad,
    Conflict,
    CorruptObject,
    Diff,
    InvalidInput,
    KVStore,
    Memory,
    MergeConflict,
    NotFound,
    RefMoved,
    Snapshot,
    StorageError,
    UncommittedChanges,
    UntrustedCommit,
    Versioned,
    task,
)
from vstate.objects.canonical import encode
from vstate.repo.repository import Repository
from vstate.repo.rules.policies import encode_policies
from vstate.repo.rules.signing import SigningKey


def history(count: int, store: KVStore | None = None) -> Versioned:
    """A state with this many commits of its own values."""
    state = Versioned(store or Memory())
    for i in range(count):
        state["k"] = [i, "x" * 200]
        state.commit(f"c{i}")
    return state


def intact(store: KVStore) -> bool:
    return bool(Repository(store).fsck().ok)


# A branch whose history was taken back


def begin_again(state: Versioned) -> None:
    """Delete the branch, and make another of its name."""
    state.switch("aside", create=True)
    state.delete_branch("main")
    again = Versioned(state.store, branch="main")
    again["k"] = "new"
    again.commit("another main")
    state.switch("main")


def cut_off(state: Versioned) -> None:
    state["w"] = 1
    state.commit()
    state.repo.gc(branch="main", keep_last=1, keep_reflog="0")


REWRITES = {
    "reset": lambda state: state.reset("HEAD~2"),
    "undo": lambda state: state.undo(),
    "another branch of the name": begin_again,
    "gc": cut_off,
}
"""Each takes the commit that the branch was at out of its history."""


def write_by(how: str, stale: Versioned, lease: str) -> object:
    """Let a stale handle write in one way."""
    if how == "transaction":
        with stale.transaction():
            stale["mine"] = 1
    elif how == "task":
        return task(lambda *, state: state.update({"mine": 1}), name="work")(state=stale)
    elif how == "lease":
        with stale.lease(lease) as held:
            stale["mine"] = 1
            return held.commit()
    elif how == "rollback":
        return stale.rollback("main")
    elif how == "record":
        stale.record("seen")
        return stale.commit()
    else:
        stale["mine"] = 1
        return stale.commit()
    return None


@pytest.mark.parametrize("rewrite", REWRITES.values(), ids=REWRITES)
@pytest.mark.slow
def test_a_stale_handle_brings_nothing_back(rewrite: Callable[[Versioned], object]) -> None:
    """Each kind of write raises RefMoved, and the branch does not move; after refresh the change lands."""
    for how in ("commit", "record", "transaction", "task", "lease", "rollback"):
        store = Memory()
        state = history(3, store)
        stale = Versioned(store)
        assert stale["k"][0] == 2
        rewrite(state)
        before = list(state.log())
        with pytest.raises(RefMoved, match=r"refresh\(\)"):
            write_by(how, stale, how)
        assert list(Versioned(store).log()) == before, how
        stale.discard()
        stale.refresh()
        stale["mine"] = 2
        assert stale.commit() is not None
        assert list(Versioned(store).log())[1:] == before, how
        assert intact(store)


@pytest.mark.parametrize("rewrite", REWRITES.values(), ids=REWRITES)
def test_an_update_and_a_merge_of_a_stale_handle_begin_at_the_branch(
    rewrite: Callable[[Versioned], object],
) -> None:
    """They run again on the newest commit, and so bring nothing back."""
    store = Memory()
    state = history(3, store)
    side = state.fork("side")
    side["side"] = 1
    picked = side.commit("side")
    stales = [Versioned(store) for _ in range(2)]
    rewrite(state)
    before = list(state.log())
    stales[0].apply(lambda now: now.update(mine=1))
    stales[1].cherry_pick(picked)
    assert list(Versioned(store).log())[2:] == before
    assert stales[1]["side"] == stales[1]["mine"] == 1
    assert intact(store)


# gc beside others


def cut_below(store: KVStore) -> None:
    """Commit by another handle, and remove all earlier commits."""
    writer = Versioned(store)
    for i in range(4):
        writer["w"] = i
        writer.commit()
    writer.repo.gc(branch="main", keep_last=1, keep_reflog="0")


def test_a_handle_that_cannot_read_its_base_any_more_is_told_the_way_out() -> None:
    """With changes, refresh names discard, which helps. Nothing is dropped before."""
    store = Memory()
    history(2, store)
    stale = Versioned(store)
    cut_below(store)
    stale["mine"] = 1
    with pytest.raises(RefMoved):
        stale.commit()
    with pytest.raises(NotFound, match="discard"):
        stale.refresh()
    assert stale["mine"] == 1
    stale.discard()
    stale.refresh()
    assert dict(stale).keys() == {"k", "w"}


READS: dict[str, Callable[[Versioned | Snapshot], object]] = {
    "value": lambda state: state["k"],
    "get": lambda state: state.get("k"),
    "get_many": lambda state: dict(state.get_many(["k", "other"])),
    "in": lambda state: "k" in state,
    "keys": list,
    "len": len,
    "items": lambda state: list(state.items()),
}
"""Each reads from the tree of the commit that the handle is at."""


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_read_from_a_commit_that_gc_removed_is_told_as_that(
    read: Callable[[Versioned | Snapshot], object],
) -> None:
    """A stale handle raises RefMoved, and reads on after refresh; a snapshot says that gc removed it."""
    store = Memory()
    history(2, store)
    stale, snapshot = Versioned(store), Versioned(store).checkout("HEAD")
    state = Versioned(store)
    state["k"] = 1
    cut_off(state)
    with pytest.raises(RefMoved, match=r"refresh\(\)") as caught:
        read(stale)
    assert caught.value.rewritten
    with pytest.raises(StorageError, match="gc has removed"):
        read(snapshot)
    stale.refresh()
    assert read(stale) == read(state)
    store.delete(f"o/{present(state.head).tree}")
    with pytest.raises(CorruptObject):
        read(Versioned(store))


LOOKS_BACK: dict[str, Callable[[Versioned], object]] = {
    "log of a key": lambda state: [*state.log(key="first")],
    "log of a key that changes": lambda state: [*state.log(key="k")],
    "blame": lambda state: state.blame("first"),
    "changes": lambda state: str(state.repo.changes(state.repo.resolve("main~1"))),
}


@pytest.mark.parametrize("look", LOOKS_BACK.values(), ids=LOOKS_BACK)
def test_a_look_back_ends_where_gc_has_cut_the_history_off(look: Callable[[Versioned], object]) -> None:
    """A handle that has the removed commits in memory says what one says that has just been opened."""
    store = Memory()
    state = Versioned(store)
    state["first"] = 1
    state.commit()
    history(5, store)
    stale = Versioned(store)
    assert len([*stale.log()]) == 6
    Versioned(store).repo.gc(branch="main", keep_last=2, keep_reflog="0")
    stale.refresh()
    assert look(stale) == look(Versioned(store))


@pytest.mark.parametrize("new", ["HEAD~4", None])
def test_a_diff_from_a_commit_that_gc_removed_is_told_as_that(new: str | None) -> None:
    """A handle that has the commit in memory says that it is gone, and speaks of no damage."""
    state = history(6)
    stale = Versioned(state.store)
    assert len([*stale.log()]) == 6
    cut_below(state.store)
    stale.refresh()
    with pytest.raises(NotFound):
        stale.diff("HEAD~5", new)


@pytest.mark.parametrize(
    "read", [lambda diff: diff["k"].old, lambda diff: diff["k"].new, lambda diff: diff.details("k")]
)
def test_a_value_of_a_diff_that_gc_removed_is_told_as_that(read: Callable[[Diff], object]) -> None:
    """A diff reads its values late: they may have gone with a commit meanwhile."""
    state = history(6)
    diff = Versioned(state.store).diff("HEAD~2", "HEAD~1")
    cut_below(state.store)
    with pytest.raises(NotFound, match="gc has removed it"):
        read(diff)


# Trust


def test_a_shallow_row_cannot_give_a_commit_parents() -> None:
    """A row that names a stranger's commit as a parent does not make that trusted."""
    store = Memory()
    key = SigningKey.generate()
    state = Versioned(store, sign=key)
    state["k"] = 1
    good = present(state.commit())
    evil = Versioned(store, branch="evil")
    evil["k"] = print
    bad = present(evil.commit())
    store.set(f"shallow/{good.id}", encode([bytes(bad.oid)]))
    store.set("r/heads/copy", good.id.encode())
    store.set("r/heads/main", bad.id.encode())
    with pytest.raises(UntrustedCommit):
        Versioned(store, trust=[key.public])


@pytest.mark.parametrize("operation", ["merge", "cherry_pick", "revert"])
def test_a_handle_from_before_the_first_commit_builds_on_no_stranger(operation: str) -> None:
    """The branch that it is on was made meanwhile by another."""
    store, key = Memory(), SigningKey.generate()
    state = Versioned(store, sign=key, trust=[key.public], branch="main")
    other = Versioned(store, sign=key, branch="other")
    other["k"] = 1
    other.commit()
    evil = Versioned(store, branch="main")
    evil["e"] = 1
    evil.commit()
    with pytest.raises(UntrustedCommit):
        getattr(state, operation)("other")


def test_allow_holds_for_policies_by_name() -> None:
    """A name that walks out of the allowed module, or runs one that is none, is refused."""
    store = Memory()
    state = Versioned(store)
    state["k"] = 1
    state.commit()
    side = state.fork("side")
    for each, value in ((state, 2), (side, 3)):
        each["k"] = value
        each.commit()
    for name in ("threading:_os.getpid", "threading:local", "os:getpid"):
        store.set("policy/heads/main", encode_policies({"k": name}) or b"")
        narrow = Versioned(store, branch="main", allow=["threading"])
        with pytest.raises((CannotLoad, Conflict)):
            narrow.merge("side")
        assert narrow["k"] == 2


# Edits in hand


def test_an_edit_during_a_merge_is_not_lost() -> None:
    """Another thread edits a value that the merge is about to replace: the merge stops, the edit stays."""
    state = history(1)
    state["log"] = ["base"]
    state["n"] = 0
    state.commit()
    side = state.fork("side")
    side["log"].append("side")
    side["n"] = 1
    side.commit()
    state["n"] = 2
    state.commit()
    log = state["log"]

    def edit(base: Any, ours: Any, theirs: Any) -> Any:
        log.append("edited meanwhile")
        return theirs

    with pytest.raises(UncommittedChanges):
        state.merge("side", policy={"n": edit})
    assert state["log"] is log
    assert log == ["base", "edited meanwhile"]
    state.commit()
    assert Versioned(state.store)["log"] == log


# Which commit, which branch


def test_head_is_looked_up_once() -> None:
    """revert("HEAD") reverts this handle's HEAD, not a later commit of another."""
    state = history(1)
    state["mine"] = 1
    state.commit("mine")
    other = Versioned(state.store)
    other["others"] = 1
    other.commit("others")
    state.revert("HEAD")
    assert "mine" not in state
    assert state["others"] == 1


def test_a_merge_without_the_history_in_between_is_refused() -> None:
    """Where gc cut off the commit at which two branches parted, a merge would count things twice."""
    store = Memory()
    state = history(1, store)
    state.set_policy("n", "counter")
    state["n"] = 5
    state.commit()
    side = state.fork("side")
    side["n"] = 7
    side.commit()
    for _ in range(3):
        state["n"] += 0
        state["x"] = state.get("x", 0) + 1
        state.commit()
    state.repo.gc(branch="main", keep_last=1, keep_reflog="0")
    fresh = Versioned(store, branch="main")
    with pytest.raises(InvalidInput, match="cherry_pick"):
        fresh.merge("side")
    assert fresh["n"] == 5


# update


# Lists that were merged crosswise


@pytest.mark.parametrize("first", ["b", b"b", ["b"], ("b",)], ids=["str", "bytes", "list", "tuple"])
def test_a_lost_race_appends_behind_what_is_there(first: Any) -> None:
    """Under the policy append, items of the branch keep their place after any merge."""
    kind = type(first)

    def more(state: Versioned, name: str) -> None:
        state["t"] += name.encode() if kind is bytes else kind([name]) if kind is not str else name
        state.commit()

    store = Memory()
    main = Versioned(store, branch="main")
    main["t"] = first
    main.commit()
    main.set_policy("t", "append")
    other = main.fork("other")
    more(other, "o")
    more(main, "m")
    late = Versioned(store, branch="main")
    late["t"]
    main.merge("other")
    before = main["t"]
    more(late, "late")
    main.refresh()
    assert main["t"][: len(before)] == before
    assert main["t"] == late["t"]
    assert len(main["t"]) > len(before)


def test_a_commit_may_refuse_to_merge() -> None:
    """With on_race="raise" a moved branch is RefMoved, everything stays staged, and refresh is the way on."""
    store = Memory()
    state = history(1, store)
    other = Versioned(store)
    other["theirs"] = 1
    other.commit()
    state["mine"] = 1
    with pytest.raises(RefMoved, match=r"refresh\(\)"):
        state.commit("a", on_race="raise")
    assert (state["mine"], state.has_uncommitted) == (1, True)
    state.refresh()
    made = present(state.commit("a", on_race="raise", by="me"))
    assert (len(made.parents), made.info) == (1, {"by": "me"})
    with pytest.raises(InvalidInput, match="on_race"):
        state.commit(on_race="maybe")  # type: ignore[arg-type]


# While a commit is written


class Calling(Memory):
    """A store whose next transaction calls a function first."""

    call: Callable[[], object] | None = None

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        call, self.call = self.call, None
        if call is not None:
            call()
        return super().transact(writes, expected)


def test_a_value_handed_out_while_a_commit_is_written_stays_open() -> None:
    """Its edits are seen, also if the comparison is made again before the commit has landed."""
    store = Calling()
    state = Versioned(store)
    state["list"] = [0]
    state.commit()
    state["list"].append(1)
    held: list[list[int]] = []
    store.call = lambda: (held.append(state["list"]), state.has_uncommitted)
    state.commit()
    held[0].append(2)
    assert state.has_uncommitted


def test_an_edit_while_a_commit_loses_its_race_is_not_lost() -> None:
    """The other side's value would replace the edited one, so the commit is in conflict."""
    store = Calling()
    state = Versioned(store)
    state["list"], state["n"] = ["base"], 0
    state.commit()
    other = Versioned(store)
    other["list"].append("theirs")
    other.commit()
    held, state["n"] = state["list"], 1
    store.call = lambda: held.append("edited meanwhile")
    with pytest.raises(MergeConflict, match="list"):
        state.commit()
    assert state["list"] is held
    assert held == ["base", "edited meanwhile"]


def test_a_value_set_back_while_a_commit_is_written() -> None:
    """It is compared with the commit that landed, not with the one before."""
    store = Calling()
    state = Versioned(store)
    state["list"] = [0]
    state.commit()
    state = Versioned(store)
    state["list"].append(1)
    store.call = lambda: state.__setitem__("list", [0])
    state.commit()
    assert state.has_uncommitted
    state.commit()
    assert Versioned(store)["list"] == [0]


HANDLERS: dict[str, Callable[[Versioned], object]] = {
    "read": lambda state: state["list"],
    "write": lambda state: state.update(list=[0]),
    "commit": lambda state: (state["list"].append(1), state.commit("two")),
    "refresh": lambda state: state.refresh(),
}


@pytest.mark.slow
@pytest.mark.parametrize("call", HANDLERS)
def test_a_signal_handler_in_the_middle_of_a_call(call: str) -> None:
    """At any moment it may set a key, which stays set. Its commit is made, or refused with an error."""
    for moment in itertools.count(1, 5):
        state = history(1)
        state["list"] = [0]
        state.commit()
        other = Versioned(state.store)
        other["theirs"] = [moment]
        other.commit()
        state["staged"] = 1

        refused: list[InvalidInput] = []

        def handler(
            state: Versioned = state, moment: int = moment, refused: list[InvalidInput] = refused
        ) -> None:
            try:
                state["list"], state["by the handler"] = [moment], 1
            except InvalidInput as error:  # values are being pickled
                refused.append(error)
            with suppress(InvalidInput):
                state.commit("by the handler")

        came = called_within(lambda state=state: HANDLERS[call](state), moment, handler)  # type: ignore[misc]
        state.commit("rest")
        state.refresh()
        found = dict(state)
        assert found == dict(Versioned(state.store)), moment
        assert (found["theirs"], found["staged"]) == ([moment], 1)
        if not came:
            break
        if not refused:
            assert found["by the handler"] == 1, moment
            assert found["list"] in ([moment], [0] if call == "write" else [moment, 1]), moment


def test_an_interruption_right_after_a_merge_landed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of keys that the other writer changed are read anew, also without the handle's lock."""
    state = Versioned()
    state["a"], state["b"] = 1, 1
    state.commit()
    other = Versioned(state.store)
    other["a"] = 2
    other.commit()
    state["b"] = 2
    assert state["a"] == 1

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(state._handle.at.table), "apply", interrupted)
        with pytest.raises(KeyboardInterrupt):
            state.commit()
    assert state["a"] == 2
    assert dict(state) == {"a": 2, "b": 2}
