"""Branches with a rule for idle ones: gc deletes them once no commit has reached them for so long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import count

import pytest
from bundle_files import save
from clock import Time, standing_still
from histories import needed, objects_of
from soak import sized

from vstate import KVStore, Memory, NotFound, RefMoved, StoreUnavailable, Versioned
from vstate.repo import Repository
from vstate.testing import Faulty


@pytest.fixture
def time() -> Iterator[Time]:
    with standing_still() as time:
        yield time


def session(store: KVStore) -> Versioned:
    Repository(store).keep("session*", idle="60s")
    return Versioned(store, branch="session")


def committed(state: Versioned, **values: object) -> Versioned:
    save(state, "set", **values)
    return state


def whole(store: KVStore) -> None:
    report = Repository(store).fsck()
    assert report.ok, str(report)
    assert report.foreign == 0


# Moves of one moment are a microsecond apart in a reflog, so the tests wait a second more.
def kept(store: KVStore, *, after: float, time: Time) -> bool:
    """Whether a gc after so many seconds leaves the branch."""
    time.pass_(after)
    return Repository(store).gc(dry_run=True).expired == ()


def test_gc_deletes_an_idle_branch(store: KVStore, time: Time) -> None:
    """Until then it is there, and a commit to it counts; a handle on a deleted branch gets RefMoved."""
    main = committed(Versioned(store), main=1)
    state = committed(session(store), k=[1])
    assert kept(store, after=59, time=time)
    assert not kept(store, after=1, time=time)
    assert Versioned(store, branch="session")["k"] == [1]
    assert main.repo.gc().expired == ("session",)
    assert list(main.branches()) == ["main"]
    whole(store)
    state["late"] = 1
    with pytest.raises(RefMoved, match="gone: deleted"):
        state.commit()
    new = committed(Versioned(store, branch="session"), k="new")
    assert new.head.parent_ids == ()
    assert kept(store, after=59, time=time)
    assert not kept(store, after=1, time=time)
    whole(store)


@pytest.mark.parametrize(
    "move",
    [
        lambda store: committed(session(store), n=2),
        lambda store: session(store).apply(lambda now: now.__setitem__("n", 5)),
        lambda store: committed(Versioned(store, branch="session"), m=1),
        lambda store: Repository(store).rollback("session", "session~1"),
        lambda store: Versioned(store, branch="session").undo(),
        lambda store: Repository(store).rename_branch("session", "session-2"),
    ],
)
def test_any_move_begins_the_time_anew(move: Callable[[KVStore], object], store: KVStore, time: Time) -> None:
    """A read or an empty commit does not."""
    committed(committed(session(store), n=0), n=1)
    time.pass_(59)
    move(store)
    assert kept(store, after=59, time=time)
    assert session(store).commit() is None
    assert not kept(store, after=1, time=time)


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
    time.pass_(61)
    dry = main.repo.gc(dry_run=True, grace="0")
    report = main.repo.gc(grace="0")
    assert dry.expired == report.expired == ("session",)
    assert dry.removed == report.removed or not store.transactional
    assert dry.reflog_lines == report.reflog_lines
    assert [part.reason for part in dry.garbage] == ["of branches that were idle"]
    assert [key for key, _ in store.items() if "session" in key] == []
    assert dict(Versioned(store, branch="fork")) == {"n": 2, "big": ["x" * 3000, 1]}
    whole(store)
    main.delete_branch("fork")
    for _ in range(2):  # without transactions, garbage is in the trash first
        main.repo.gc(keep_reflog="0", grace="0")
    assert objects_of(store) == before
    whole(store)


@pytest.mark.parametrize("atomic", [True, False])
def test_head_may_come_to_a_branch_as_gc_deletes_it(time: Time, atomic: bool) -> None:
    """Another program has put HEAD on it since gc found it idle: it stays."""

    class Overtaken(Faulty):
        def exclusively(self, plan: Callable[[], Mapping[str, bytes | None]]) -> bool:
            self.compare_and_swap("r/HEAD", None, b"ref: heads/session")
            return super().exclusively(plan)

    store = Overtaken(Memory(), atomic=atomic)
    committed(session(store), k=1)
    assert not kept(store, after=60, time=time)
    assert Repository(store).gc().expired == ()
    assert Versioned(store)["k"] == 1


def test_changes_on_a_branch_that_gc_deleted(store: KVStore, time: Time) -> None:
    """The commit below them may be gone too: the error says so, and the changes are still staged."""
    committed(Versioned(store), main=1)
    state = committed(session(store), k=1)
    time.pass_(61)
    for _ in range(2):  # without transactions, garbage is in the trash first
        Repository(store).gc(keep_reflog="0", grace="0")
    state["late"] = 1
    with pytest.raises(RefMoved, match="as long as gc has left its commits"):
        state.commit()
    with pytest.raises(NotFound, match="open the state again"):
        state.switch("rescued", create=True)
    assert state["late"] == 1
    assert state.status().added == ["late"]


@pytest.mark.parametrize("looked_at", ["keep/", "reflog/heads/session", "r/heads/session"])
def test_a_commit_that_arrives_as_gc_looks(looked_at: str, time: Time) -> None:
    """gc deletes the branch only where it found it idle."""
    happens: list[Callable[[], object]] = []

    class Overtaken(Memory):
        def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
            found = super().get_many(keys)
            if any(key.startswith(looked_at) for key in found) and happens:
                happens.pop()()
            return found

        def get(self, key: str) -> bytes | None:
            found = super().get(key)
            if key.startswith(looked_at) and happens:
                happens.pop()()
            return found

        def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
            found = list(super().items(prefix))
            if prefix.startswith(looked_at) and happens:
                happens.pop()()
            return iter(found)

    store = Overtaken()
    state = committed(session(store), k=1)
    time.pass_(61)
    happens.append(lambda: committed(state, k=2))
    assert Repository(store).gc().expired == ()
    assert not happens
    assert Versioned(store, branch="session")["k"] == 2
    whole(store)
