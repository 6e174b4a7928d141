"""Branches that expire: absent at once, replaced when they are opened again, and removed by gc."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import count

import pytest
from bundle_files import save
from clock import Time, standing_still
from histories import needed, objects_of
from soak import sized

from vstate import InvalidInput, KVStore, Memory, NotFound, RefMoved, StoreUnavailable, Versioned
from vstate.repo import Repository
from vstate.testing import Faulty


@pytest.fixture
def time() -> Iterator[Time]:
    with standing_still() as time:
        yield time


def session(store: KVStore) -> Versioned:
    return Versioned(store, branch="session", ttl=60)


def committed(state: Versioned, **values: object) -> Versioned:
    save(state, "set", **values)
    return state


def whole(store: KVStore) -> None:
    report = Repository(store).fsck()
    assert report.ok, str(report)
    assert report.foreign == 0


@pytest.mark.slow
def test_an_expired_branch_is_gone(store: KVStore, time: Time) -> None:
    """It is in no list, no revision finds it, and opening it begins a new, empty branch."""
    main = committed(Versioned(store), main=1)
    state = committed(session(store), k=[1])
    time.pass_(59)
    assert Versioned(store, branch="session")["k"] == [1]
    assert list(main.branches()) == ["main", "session"]
    time.pass_(1)
    repo = Repository(store)
    assert list(main.branches()) == list(repo.branches()) == ["main"]
    assert list(repo.refs.all()) == ["heads/main"]
    for read in (
        lambda: repo.resolve("session"),
        lambda: repo.resolve("heads/session"),
        lambda: repo.branch("session"),
        lambda: main.switch("session"),
        lambda: main.merge("session"),
        lambda: main.delete_branch("session"),
    ):
        with pytest.raises(NotFound):
            read()
    whole(store)
    new = Versioned(store, branch="session")
    assert new.head is None
    assert len(new) == 0
    state["late"] = 1
    with pytest.raises(RefMoved, match="gone: deleted, or expired"):
        state.commit()
    assert list(main.branches()) == ["main"]
    committed(new, k="new")
    assert dict(Versioned(store, branch="session")) == {"k": "new"}
    assert new.head.parent_ids == ()
    time.pass_(1e6)
    assert dict(Versioned(store, branch="session")) == {"k": "new"}  # no handle gave the new branch an end
    whole(store)


def test_the_time_begins_anew_with_each_move_of_a_program_that_gives_one(store: KVStore, time: Time) -> None:
    """A move of any other program leaves the end as it is, and so does a read or an empty commit."""
    state = committed(session(store), n=1)
    moves: list[Callable[[], object]] = [
        lambda: committed(state, n=2),
        lambda: session(store).apply(lambda now: now.__setitem__("n", 5)),
        lambda: committed(session(store), n=6),
    ]
    for move in moves:
        time.pass_(59)
        move()
    others: list[Callable[[], object]] = [
        lambda: committed(Versioned(store, branch="session"), m=1),
        lambda: Repository(store).rollback("session", "session~1"),
        lambda: Versioned(store, branch="session").undo(),
        lambda: Repository(store).rename_branch("session", "other"),
        lambda: Repository(store).rename_branch("other", "session"),
    ]
    for move in others:
        time.pass_(11)
        move()
    assert session(store).commit() is None
    time.pass_(4)
    assert Versioned(store, branch="session")["n"] == 6
    time.pass_(1)
    assert Repository(store).branches() == {}


def test_a_branch_that_was_there(store: KVStore, time: Time) -> None:
    """The next commit of a handle with a `ttl` sets its end; other handles see it when the branch moves."""
    plain = committed(Versioned(store, branch="session"), n=1)
    given = session(store)
    time.pass_(1000)
    committed(given, n=2)
    time.pass_(59)
    committed(plain, m=1)  # made on the older commit, and merged
    assert dict(Versioned(store, branch="session")) == {"n": 2, "m": 1}
    time.pass_(1)
    assert Repository(store).branches() == {}


@pytest.mark.slow
def test_gc_removes_it_with_its_reflog(store: KVStore, time: Time) -> None:
    """One gc removes branch, row, policies, reflog and objects; objects of other branches stay."""
    main = committed(Versioned(store), main=1)
    before = objects_of(store)
    state = committed(session(store), big=["x" * 3000, 1])
    state.set_policy("big", "union")
    for number in range(5):
        committed(state, n=number)
    main.create_branch("fork", at="session~2")
    time.pass_(60)
    dry = main.repo.gc(dry_run=True, grace="0")
    report = main.repo.gc(grace="0")
    assert dry.expired == report.expired == ("session",)
    assert dry.removed == report.removed or not store.transactional
    assert [key for key, _ in store.items() if "session" in key] == []
    assert dict(Versioned(store, branch="fork")) == {"n": 2, "big": ["x" * 3000, 1]}
    whole(store)
    main.delete_branch("fork")
    for _ in range(2):  # without transactions, garbage is in the trash first
        main.repo.gc(keep_reflog="0", grace="0")
    assert objects_of(store) == before
    whole(store)


def test_gc_after_it_was_begun_anew(store: KVStore, time: Time) -> None:
    """Objects of the old branch go, although a new branch has its name; the new reflog stays."""
    committed(session(store), big="x" * 3000)
    time.pass_(60)
    state = committed(session(store), k=1)
    committed(state, k=2)
    actions = [line.action for line in state.repo.refs.reflog("heads/session")]
    assert actions[:2] == ["commit: set"] * 2
    assert "branch: expired" in actions
    whole(store)
    for _ in range(2):
        assert state.repo.gc(grace="0").expired == ()
    lines = list(state.repo.refs.reflog("heads/session"))
    assert [line.action for line in lines] == ["commit: set"] * 2
    assert lines[-1].old is None
    assert objects_of(store) == needed(store)
    assert state.undo()
    assert state["k"] == 1
    whole(store)
    time.pass_(60)
    assert state.repo.branches() == {}


def test_head_on_an_expired_branch(store: KVStore, time: Time) -> None:
    """HEAD keeps its name, as in a new store, and fsck passes before and after gc."""
    state = committed(session(store), k=1)
    state.repo.checkout("session")
    time.pass_(60)
    assert Versioned(store).head is None
    assert Versioned(store).branch == "session"
    whole(store)
    state.repo.gc(grace="0")
    whole(store)
    again = committed(Versioned(store), new=1)
    assert dict(again) == {"new": 1}
    whole(store)


def test_bad_times_to_live() -> None:
    """A `ttl` needs a named branch and a valid time."""
    for options in ({"ttl": 5}, {"ttl": 0, "branch": "b"}):
        with pytest.raises(InvalidInput):
            Versioned(**options)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Versioned(branch="b", ttl="5")  # type: ignore[arg-type]
    assert Versioned(branch="b", ttl=timedelta(days=1)).branch == "b"


def test_a_damaged_row(time: Time) -> None:
    """Nothing is lost: the branch stays, and fsck reports and repairs the row."""
    store = Memory()
    state = committed(session(store), k=1)
    store.set("expiry/heads/session", b"\x00" + (store.get("expiry/heads/session") or b""))
    time.pass_(60)
    assert Versioned(store, branch="session")["k"] == 1
    report = state.repo.fsck()
    assert [damage.kind for damage in report.damage] == ["expiry"]
    assert state.repo.fsck(repair=True).ok
    assert Versioned(store, branch="session")["k"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("what", ["begun anew", "gc", "again"])
def test_interrupted_anywhere(what: str, after: bool, atomic: bool) -> None:
    """Fail at each store call: an expired branch never returns, and a new one is never taken for expired."""
    # A failure after a call is as one before the next.
    for number in count(1 + after, sized(2, 1)):
        with standing_still() as time:
            memory = Memory()
            committed(Versioned(memory), main=1)
            committed(session(memory), old=1)
            time.pass_(30 if what == "again" else 60)
            store = Faulty(memory, atomic=atomic)
            state = session(store) if what == "again" else Versioned(store, branch="session")
            store.calls.clear()
            store.fail_at, store.after = number, after
            failed = True
            with suppress(StoreUnavailable):
                state.repo.gc(grace="0") if what == "gc" else committed(state, new=1)
                failed = False
            shown = dict(Versioned(memory, branch="session"))
            if what == "again":
                assert shown in ({"old": 1}, {"old": 1, "new": 1})
                assert failed or "new" in shown
                time.pass_(40)
                assert failed or "new" in Versioned(memory, branch="session")
            else:
                assert shown in ({}, {"new": 1})
                assert failed or what == "gc" or shown == {"new": 1}
                store.fail_at = None
                committed(Versioned(store, branch="session"), newer=2)
                for _ in range(2):
                    Repository(store).gc(grace="0")
                shown = dict(Versioned(memory, branch="session"))
                assert "old" not in shown
                assert shown["newer"] == 2
            whole(Faulty(memory, atomic=atomic))
        if number > len(store.calls) and not failed:
            break
    assert number >= 3


def test_another_time_for_a_branch_that_has_one(store: KVStore, time: Time) -> None:
    """The last handle with a `ttl` that moved the branch has set its end."""
    committed(session(store), k=1)
    time.pass_(30)
    committed(Versioned(store, branch="session", ttl=20), k=3)
    time.pass_(19)
    committed(Versioned(store, branch="session", ttl=100), k=4)
    time.pass_(99)
    assert Versioned(store, branch="session")["k"] == 4
    time.pass_(1)
    assert Versioned(store, branch="session").head is None


def test_a_renamed_branch_expires_in_the_handle_that_renamed_it(store: KVStore, time: Time) -> None:
    """The handle remembers the lifetime that came with the new name."""
    old = save(session(store), n=1)
    new = save(Versioned(store), main=1)
    repo = Repository(store)
    repo.rename_branch("session", "other")
    time.pass_(60)
    assert not repo.refs.compare_and_swap("heads/other", expected=old.oid, new=new.oid, action="late")
    assert "other" not in repo.branches()


def test_a_lost_race_tells_nothing_of_a_lifetime(store: KVStore, time: Time) -> None:
    """After a failed move, another writer may put the branch on the same commit with an end."""
    main = Versioned(store)
    old, new = save(main, n=1), save(main, n=2)
    loser, winner = Repository(store).refs, Repository(store).refs
    assert not loser.compare_and_swap("heads/session", expected=old.oid, new=new.oid, action="too early")
    winner.lifetimes.wanted["heads/session"] = 60_000_000
    assert winner.compare_and_swap("heads/session", expected=None, new=new.oid, action="begun")
    time.pass_(60)
    assert not loser.compare_and_swap("heads/session", expected=new.oid, new=old.oid, action="too late")


def test_a_branch_that_is_deleted_leaves_no_lifetime(store: KVStore, time: Time) -> None:
    """Its row is deleted with it, for good."""
    committed(session(store), n=1)
    assert list(store.keys("expiry/")) == ["expiry/heads/session"]
    Repository(store).delete_branch("session")
    assert list(store.keys("expiry/")) == []
