"""Erasing: keys, parts of values and events go from every commit, and nothing else changes."""

from __future__ import annotations

import asyncio
import io
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from decimal import Decimal
from itertools import islice
from pathlib import Path
from queue import Queue
from random import Random
from typing import Any, NamedTuple

import pytest
from histories import Tangle, needed, objects_of, plain, rows_of, sound
from present import present
from servers import on_server, url_of
from soak import sized

from vstate import (
    ABSENT,
    BranchChanges,
    Commit,
    Disk,
    Event,
    KVStore,
    Memory,
    SigningKey,
    Versioned,
    Workspace,
    aio,
    open_store,
)
from vstate.errors import (
    Diverged,
    InvalidInput,
    NotFound,
    ReadOnly,
    RefMoved,
    StorageError,
    StoreUnavailable,
    UncommittedChanges,
)
from vstate.kv.wrapper import ReadOnly as ReadOnlyStore
from vstate.objects import tree
from vstate.objects.ids import ObjectId
from vstate.patterns.journal import Journal, Records
from vstate.readers.shown import Shown
from vstate.repo import Repository
from vstate.repo.clone import clone
from vstate.repo.rules.security import Security
from vstate.repo.rules.signing import check
from vstate.repo.upkeep import erasing
from vstate.state.watching import Watch
from vstate.testing import Faulty

MARKER = "MARKER-of-ann"


class Old(NamedTuple):
    """A commit as it was: what must stay of it."""

    entries: dict[str, bytes]
    parents: tuple[str, ...]
    rest: tuple[Any, ...]


def as_it_was(repo: Repository, commit: Commit) -> Old:
    events = [(event.kind, event.time, event.data, event.namespace) for event in commit.events]
    rest = (commit.message, commit.time, commit.order, commit.info, events)
    parents = tuple(map(str, repo.history.parents(commit)))
    return Old(dict(tree.scan(repo.objects.nodes, commit.root)), parents, rest)


def everything(repo: Repository) -> dict[str, Old]:
    """All commits that refs and reflogs lead to, by id."""
    starts = list(repo.refs.all().values())
    for key, row in repo.view.items("reflog/"):
        starts += [oid for oid in repo.refs.parse_line(key, row).commits if repo.objects.is_stored(oid)]
    return {each.id: as_it_was(repo, each) for each in repo.history.ancestors(*starts)}


def moves(repo: Repository, refs: list[str]) -> dict[str, list[tuple[Any, ...]]]:
    """The lines of each reflog without their commits."""
    return {ref: [(line.time, line.action, line.order) for line in repo.refs.reflog(ref)] for ref in refs}


def same_but(store: KVStore, before: dict[str, Old], *keys: str) -> None:
    """Each old id, in full and abbreviated, leads to a commit with all that it had, but for the keys."""
    repo = Repository(store)
    for digits, old in before.items():
        commit = repo.resolve(ObjectId.parse(digits))
        assert repo.resolve(digits) == repo.resolve(digits[:20]) == commit
        kept = {key: entry for key, entry in old.entries.items() if key not in keys}
        parents = tuple(repo.resolve(parent).id for parent in old.parents)
        assert as_it_was(repo, commit) == Old(kept, parents, old.rest)


@pytest.mark.parametrize("seed", range(sized(4, 1000)))
@pytest.mark.slow
def test_a_key_goes_and_nothing_else_changes(store: KVStore, seed: int) -> None:
    """After any history each old id leads to a commit with the same state, but for the key; all is sound."""
    tangle = Tangle(store, seed)
    tangle.grow(sized(30, 60))
    repo = Repository(store)
    before, refs, labels = everything(repo), repo.refs.all(), repo.labels()
    logs = moves(repo, [*refs, "HEAD"])
    report = repo.erase("k1", "theirs", all_branches=True)
    assert not report.traces
    assert not report.kept_by
    repo = Repository(store)
    same_but(store, before, "k1", "theirs")
    assert repo.refs.all() == {ref: repo.resolve(oid).oid for ref, oid in refs.items()}
    assert moves(repo, [*refs, "HEAD"]) == logs
    assert repo.labels() == labels
    assert objects_of(store) == needed(store)
    sound(store)
    again = repo.erase("k1", "theirs", all_branches=True)
    assert (again.commits, again.versions, again.refs) == (0, 0, ())


@pytest.mark.parametrize("seed", range(sized(6, 300)))
def test_one_branch_loses_a_key_and_the_others_keep_it(seed: int) -> None:
    """Refs that were not named stay where they were, and `kept_by` names one for each value that is left."""
    tangle = Tangle(Memory(), seed)
    tangle.grow(40)
    repo = Repository(tangle.store)
    name = repo.branch_names()[0]
    refs, foreseen = repo.refs.all(), repo.erase("k1", branch=name, dry_run=True)
    report = repo.erase("k1", branch=name)
    assert (foreseen.commits, foreseen.versions, foreseen.refs) == (
        report.commits,
        report.versions,
        report.refs,
    )
    for ref, oid in Repository(tangle.store).refs.all().items():
        if ref.startswith("heads/") and ref != f"heads/{name}":
            assert oid == refs[ref]
    assert not [old for old in repo.log(name) if repo.entry(old.root, "k1")]
    assert bool(report.kept_by) == any(
        repo.objects.is_stored(ObjectId.parse(old)) for old in replaced(tangle.store)
    )
    assert bool(foreseen.kept_by) == bool(report.kept_by)
    sound(tangle.store)


def replaced(store: KVStore) -> list[str]:
    return [str(old) for old in Repository(store).objects.replaced()]


# Stores


def opened(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> KVStore:
    if kind == "memory":
        return Memory()
    if kind == "disk":
        return Disk(tmp_path / "store", durability="process")
    return open_store(url_of(kind, request), create=True)


def person(store: KVStore) -> Versioned:
    """A branch with a person's key in some commits, a merge, a tag, and large values."""
    state = Versioned(store)
    for number in range(8):
        state["count"] = number
        if number > 2:
            state["users/ann"] = {"name": MARKER, "number": number, "long": MARKER * number * 400}
        state["users/ben"] = {"name": "ben", "number": number // 4}
        state.commit(f"commit {number}", number=number)
    state.tag("v1", "HEAD~2")
    side = state.fork("side", "HEAD~1")
    side["side"] = [1]
    side.commit("aside")
    state.merge("side", message="merged")
    state.repo.create_branch("other", "HEAD~2")
    return state


STORES = ["memory", "disk", on_server("redis"), on_server("postgres"), on_server("s3")]


@pytest.mark.parametrize("kind", STORES)
def test_every_kind_of_store(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Merges, tags, branches and old ids: the key is gone everywhere, and no object of it is left."""
    with opened(kind, request, tmp_path) as store:
        state = person(store)
        before = everything(state.repo)
        report = state.erase("users/ann", all_branches=True)
        assert report.versions == 5
        assert (report.traces, report.kept_by, report.held) == ((), (), ())
        assert report.checked.endswith(f" for {report.objects} objects")
        assert "users/ann" not in state
        assert [commit.message for commit in state.log(limit=1)] == ["merged"]
        same_but(store, before, "users/ann")
        assert objects_of(store) == needed(store)
        assert not list(store.keys("trash/"))
        sound(store)
        state["count"] = 100
        state.commit("goes on")
        assert state.undo().message == "merged"


def bytes_of(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in path.iterdir())


@pytest.mark.parametrize("packed", [False, True])
def test_no_byte_stays_on_a_disk(tmp_path: Path, packed: bool) -> None:
    """The values, short and long, are in no file of the store, in packs and rooms neither; others are."""
    path = tmp_path / "store"
    with Disk(path) as disk:
        state, noise = Versioned(disk), Random(1).randbytes
        texts = [MARKER.encode() + noise(size) for size in (20, 90, 3000, 60_000)]
        for number, text in enumerate(texts * 10):
            state["users/ann"] = text + bytes([number])
            state[f"other/{number}"] = f"kept {number} {number**9}"
            state.commit(MARKER[:6])
        for number in range(5):
            change = BranchChanges("chat", set={"users/ann": f"{MARKER} {number}"}, room=True)
            state.repo.commit_many([change])
        if packed:
            state.repo.gc()
        with Disk(path) as control:
            assert MARKER.encode() in bytes_of(path) or packed
            assert Versioned(control)["users/ann"]
        report = state.erase("users/ann", all_branches=True)
        assert not report.traces
        found = bytes_of(path)
        assert MARKER.encode() not in found
        assert b"users/ann" not in found
        assert all(text[-15:] not in found for text in texts)
        assert b"kept 3" in found or packed
        sound(disk)


@pytest.mark.slow
def test_rows_that_sqlite_moved_leave_no_trace(tmp_path: Path) -> None:
    """As its pages fill, SQLite moves rows, and leaves copies behind that a deletion does not overwrite."""
    for count in range(80, 440, 40):
        with Disk(tmp_path / str(count), durability="process") as disk:
            state, noise = Versioned(disk), Random(count).randbytes
            for number in range(count):
                state[f"other/{number % 50}"] = noise(40)
                if number % 2:
                    state["users/ann"] = MARKER.encode() + noise(90 + number % 60 * 9)
                state.commit(str(number))
            assert state.erase("users/ann").traces == ()
            assert MARKER.encode() not in bytes_of(tmp_path / str(count))


def test_readers_that_keep_old_bytes_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader keeps old pages in the log or the file: the report says so, and the next call removes them."""
    from vstate.kv.disk import database

    monkeypatch.setattr(database, "_LOG_SECONDS", 0.1)
    with Disk(tmp_path / "store") as disk:
        state = person(disk)
        reader = sqlite3.connect(tmp_path / "store" / "vstate.db", isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM kv").fetchall()
        report = state.erase("users/ann", all_branches=True)
        assert "has traces" in report.traces[0]
        reader.execute("ROLLBACK")
        reader.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        reader.execute("BEGIN")
        reader.execute(
            "SELECT count(*) FROM kv"
        ).fetchall()  # of the file alone: the new one stays in the log
        (told,) = state.erase("users/ann", all_branches=True).traces
        assert "has a reader" in told
        with monkeypatch.context() as patched:
            patched.setenv("PATH", str(tmp_path))
            told = " ".join(state.erase("users/ann", all_branches=True).traces)
            assert "could not be searched" in told
        reader.close()
        assert not state.erase("users/ann", all_branches=True).traces
        assert MARKER.encode() not in bytes_of(tmp_path / "store")


@pytest.mark.parametrize("room", [False, True])
def test_scrub_cleans_the_file_after_a_branch_was_forgotten(tmp_path: Path, room: bool) -> None:
    """A reader keeps bytes of a forgotten branch in the log. `scrub` removes them, as does any erasure."""
    with Disk(tmp_path / "store") as disk:
        repo = Repository(disk)
        reader = sqlite3.connect(tmp_path / "store" / "vstate.db", isolation_level=None)
        repo.commit("main", set={"kept": 1})
        for name in ("ann", "ben"):
            repo.commit_many([BranchChanges(name, set={"name": f"{MARKER} {name}"}, room=room)])
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM kv").fetchall()
            repo.delete_branch(name, forget=True)
            assert MARKER.encode() in bytes_of(tmp_path / "store")
            reader.execute("ROLLBACK")
            assert not (disk.scrub()[1] if name == "ann" else repo.erase("no such key").traces)
            assert MARKER.encode() not in bytes_of(tmp_path / "store")
        reader.close()


def test_other_branches_and_other_rooms_are_named() -> None:
    """Who keeps the old commits is in the report before and after: a fork, a reflog, a copy in a room."""
    store = Memory()
    state = person(store)
    state.fork("gone").repo.delete_branch("gone")
    state.repo.commit_many([BranchChanges("room", set={"mine": 1}, room=True)])
    state.repo.merge("room", "main")
    state.repo.commit("side", set={"more": 1})
    state.repo.create_branch("below", "side~1")
    foreseen = state.erase("users/ann", dry_run=True)
    report = state.erase("users/ann")
    assert set(report.kept_by) == set(foreseen.kept_by)
    assert {"side", "below", "other", "room"} <= set(report.kept_by)
    assert report.refs == ("heads/main", "tags/v1")
    report = state.erase("users/ann", all_branches=True)
    assert report.kept_by == ()
    assert not any("users/ann" in old.entries for old in everything(Repository(store)).values())
    assert not any(MARKER.encode() in row for row in rows_of(store).values())
    sound(store)


def test_equal_values_elsewhere_are_named() -> None:
    """A value that another key has too stays there, and so do parts of long values."""
    state = Versioned(Memory())
    noise = Random(2).randbytes(200_000)
    state.update(
        {"a": noise, "b": noise, "c": "a text of its own", "d": "a text of its own", "e": noise + b"x"}
    )
    state.commit("equal")
    report = state.erase("a", "c")
    assert report.held == ("main:b", "main:d")
    assert state["b"] == noise
    assert state.erase("b").held == ("a part of b in other values",)
    assert state.erase("d", "e").held == ()


# What goes


def test_patterns_and_conditions() -> None:
    """A key that ends in `*` stands for all that begin so; `where` chooses among values, as plain data."""
    state = Versioned(Memory())
    for number in range(4):
        state.update({"u/a/1": number, "u/a/2": {"who": "ann"}, "u/b": {"who": "ben"}, "w": {"who": "ann"}})
        state.commit(str(number))
    assert state.erase("u/a/*").keys == ("u/a/1", "u/a/2")
    assert [*state] == ["u/b", "w"]
    report = state.erase(where=lambda value: value == {"who": "ann"})
    assert report.keys == ("w",)
    assert [*state] == ["u/b"]
    assert state.erase("u/*", where=lambda value: False).commits == 0
    assert state.erase("no such key").commits == 0
    for wrong in (
        lambda: state.erase(),
        lambda: state.erase(path="x"),
        lambda: state.erase("u", path="x", edit=str),
        lambda: state.repo.erase("u", branch="main", all_branches=True),
    ):
        with pytest.raises(InvalidInput):
            wrong()
    with pytest.raises(NotFound):
        state.repo.erase("u", branch="no-such-branch")


def test_a_part_of_a_value() -> None:
    """The part at a path goes from each version that has it: of dicts, lists, tuples and sets."""
    state = Versioned(Memory())
    values = [
        {"users": {"ann": 1, "ben": 2}, "list": [1, {"name": "ann"}, 3]},
        {"users": {"ann": [5]}, "list": [0], "pair": (1, ("ann", 2)), "set": {"ann", "ben"}},
    ]
    for value in values:
        state["v"] = value
        state.commit("v")
    state.expire("v", 10_000)
    state.commit("expires")
    due = state.expires("v")
    assert state.erase("v", path="users.ann").versions == 3
    assert state.erase("v", path="list[1]").versions == 1
    assert state.erase("v", path="pair[1][0]").versions == 2
    state.erase("v", path="set{'ann'}")
    assert state["v"] == {"users": {}, "list": [0], "pair": (1, (2,)), "set": {"ben"}}
    assert state.expires("v") == due
    assert state.checkout("HEAD~2")["v"] == {"users": {"ben": 2}, "list": [1, 3]}
    assert state.erase("v", path="nothing.here").commits == 0


def test_a_part_of_an_object_takes_a_function() -> None:
    """Values with classes are not unpickled for a path; `edit` gets them loaded, and may drop the key."""
    state = Versioned(Memory())
    for number in range(3):
        state["v"] = {"price": Decimal(number), "ann": MARKER}
        state.commit(str(number))
    with pytest.raises(InvalidInput, match=r"state\.erase\('v', edit=function\)"):
        state.erase("v", path="ann")

    def edited(value: Any) -> Any:
        return ABSENT if value["price"] == 1 else {"price": value["price"]}

    assert state.erase("v", edit=edited).versions == 3
    assert [state.checkout(f"HEAD~{back}").get("v") for back in range(3)] == [
        {"price": Decimal(2)},
        None,
        {"price": Decimal(0)},
    ]


def test_events_that_carry_it() -> None:
    """Events go whose data name the key, those that fit the condition, or those that a function chooses."""
    store = Memory()
    repo = Repository(store)
    texts = [{"about": "users/ann"}, {"deep": [{"users/ann": 1}]}, {"who": "ann"}, {"about": "users/anna"}]
    for number, data in enumerate(texts):
        repo.commit("main", set={"n": number, "users/ann": MARKER}, events=[Event.now("told", data)])
    assert repo.erase("users/ann", events=True).events == 2
    state = Versioned(store)
    left = [event.data for commit in state.log() for event in commit.events]
    assert left == [{"about": "users/anna"}, {"who": "ann"}]
    assert repo.erase("x", where=lambda value: value == {"who": "ann"}, events=True).events == 1
    assert repo.erase(events=lambda event: event.kind == "told").events == 1
    assert not [event for commit in Versioned(store).log() for event in commit.events]


# Signatures, cut histories, names


def test_signed_commits(tmp_path: Path) -> None:
    """The eraser's key signs what was signed; without a key the signatures go, and the report says so."""
    key, other = SigningKey.generate(), SigningKey.generate()
    store = Memory()
    for number in range(3):
        Repository(store).commit("main", set={"n": number})
        Repository(store, Security(sign=other)).commit("main", set={"users/ann": number, "m": number})
    report = Repository(store, Security(sign=key)).erase("users/ann")
    assert (report.signed, report.unsigned) == (3, 0)
    repo = Repository(store)
    assert [check(commit) for commit in repo.log()] == ["good", "unsigned"] * 3
    assert repo.branch("main").signature.signer == key.public
    with pytest.raises(ReadOnly):
        Repository(store, Security(trust=[key.public])).erase("m")
    assert not Repository(store, Security(sign=key, trust=[key.public])).erase("m").traces
    Versioned(store, trust=[key.public])["n"]
    report = repo.erase("n")
    assert (report.signed, report.unsigned) == (0, 3)
    assert "0 signed anew, 3 without their signature" in str(report)
    assert {check(commit) for commit in repo.log()} == {"unsigned"}


@pytest.mark.parametrize("kind", ["memory", "plain"])
def test_a_history_that_was_cut_off(kind: str) -> None:
    """The commits at the end of a shortened or thinned history keep the parents that they had here."""
    store = Memory() if kind == "memory" else plain()
    state = person(store)
    state.repo.gc(branch=["main", "side", "other"], keep_last=3, keep_reflog="0s")
    before = everything(state.repo)
    assert any(key.startswith("shallow/") for key in rows_of(store))
    state.refresh()
    report = state.erase("users/ann", all_branches=True)
    assert report.checked.endswith(f" for {report.objects} objects")
    same_but(store, before, "users/ann")
    sound(store)
    assert state.repo.log("main")


def test_what_names_commits_moves_along() -> None:
    """Labels, tracking refs, a detached HEAD, positions in reflogs and rollbacks keep their meaning."""
    store = Memory()
    state = person(store)
    state.repo.commit("main", set={"l": 1}, labels={"user": "ann"})
    state.refresh()
    state.repo.commit("other", set={"l": 1}, labels={"user": "ben"})
    state.repo.push(Memory(), "main", remote="origin")
    state.rollback("HEAD~2")
    state.rollback()
    Repository(store).checkout("main~1")
    before = everything(state.repo)
    at = {rev: state.repo.resolve(rev).message for rev in ("main@{1}", "main@{3}", "origin/main", "HEAD")}
    back = state.repo.steps_back(present(state.head), 1)
    report = state.erase("users/ann", all_branches=True)
    assert {"HEAD", "remotes/origin/main"} <= set(report.refs)
    repo = Repository(store)
    assert {rev: repo.resolve(rev).message for rev in at} == at
    assert repo.branch_names(labels={"user": "ann"}) == ["main"]
    assert repo.labels() == {"main": {"user": "ann"}, "other": {"user": "ben"}}
    assert repo.labels_at("other", repo.branch("other").oid) == {"user": "ben"}
    assert "other" not in repo.possible_branches({"user": "zoe"})
    assert repo.steps_back(repo.branch("main"), 1) == repo.resolve(back.id)
    same_but(store, before, "users/ann")
    sound(store)


def test_old_ids_lead_on_after_another_erasure() -> None:
    """An id from before two erasures leads to the newest commit; a damaged row is found by fsck."""
    store = Memory()
    state = person(store)
    old = present(state.head).id
    state.erase("users/ann", all_branches=True)
    middle = present(state.head).id
    state.erase("users/ben", all_branches=True)
    for digits in (old, middle, old[:8], old.upper()):
        assert state.repo.resolve(digits) == state.head
    for key in list(store.keys("replaced/")):
        store.set(key, present(store.get(key))[:-1] + b"\0")
    assert not Repository(store).fsck().ok
    assert Repository(store).fsck(repair=True).ok
    with pytest.raises(NotFound):
        state.repo.resolve(old)


# Others


def late(store: KVStore) -> None:
    """A commit after the erasure, of a key that comes after the erased one."""
    Repository(store).commit("main", set={"zone": 1})


def reader(store: KVStore, _: Path) -> Iterator[None]:
    """A state that has read nothing of its commit yet; one that has the key in memory."""
    state, warm = Versioned(store), Versioned(store)
    assert warm["users/ann"]["name"] == MARKER
    yield
    with pytest.raises(RefMoved) as caught:
        state["users/ben"]
    assert caught.value.rewritten
    late(store)
    for each in state, warm:
        each.refresh()
        assert "users/ann" not in each
        assert each["zone"] == 1


def writer(store: KVStore, _: Path) -> Iterator[None]:
    """Staged changes, and a transaction."""
    state, block = Versioned(store), Versioned(store)
    state["mine"] = 1
    with pytest.raises(RefMoved) as lost, block.transaction():
        block["block"] = 1
        yield
        late(store)
    with pytest.raises(RefMoved) as caught:
        state.commit("mine")
    assert lost.value.rewritten
    assert caught.value.rewritten
    state.refresh()
    state.commit("mine")
    assert (state["mine"], state["zone"], "block" in state) == (1, 1, False)
    block.discard()


def detached(store: KVStore, _: Path) -> Iterator[None]:
    """A state at a commit of no branch."""
    Repository(store).checkout("main~1")
    state = Versioned(store)
    yield
    with pytest.raises(RefMoved):
        state["users/ben"]
    state.refresh()
    assert "users/ann" not in state


def past(store: KVStore, _: Path) -> Iterator[None]:
    """A commit, its id, a snapshot and a walk."""
    state = Versioned(store)
    snapshot, log, old = state.checkout("HEAD"), iter(state.log()), present(state.head)
    next(log)
    yield
    with pytest.raises(StorageError, match="the commit of this snapshot"):
        snapshot["users/ben"]
    with pytest.raises(NotFound, match="gc has removed it"):
        list(log)
    for rev in old, old.id, old.oid:
        assert state.repo.resolve(rev) == Repository(store).branch("main")
    state.refresh()
    state.rollback(old)
    state.create_branch("new", old.id)
    state.merge(old)
    assert "users/ann" not in state


def watch(store: KVStore, _: Path) -> Iterator[None]:
    """A watch at the head, one on its way, and one that an event loop waits for."""
    ahead = Versioned(store).watch(since="HEAD~2")
    assert next(ahead)[2].message == "commit 7"
    with Versioned(store).watch() as ends, ahead, Versioned(store).watch() as awaited:
        yield
        late(store)
        assert next(ends)[0] == "zone"
        assert "zone" in [next(ahead)[0] for _ in range(3)]
        assert asyncio.run(anext_of(awaited))[0] == "zone"
        assert present(ends.seen) == Repository(store).branch("main")


async def anext_of(found: Watch) -> Any:
    return await anext(found)


def subscription(store: KVStore, _: Path) -> Iterator[None]:
    """A function that is called for each change."""
    told: Queue[str] = Queue()
    with Versioned(store).subscribe("*", lambda key, *_: told.put(key)) as listening:
        yield
        late(store)
        assert told.get(timeout=20) == "zone"  # the first news
        assert listening.active


def journal(store: KVStore, _: Path) -> Iterator[None]:
    """A journal beside the key, in a room of its own."""
    records = Journal[Records](Repository(store), "told", room=True)
    records.append(lambda _: [1], beside={"users/ann": MARKER})
    yield
    records.append(lambda _: [2])
    assert records.refresh() == [1, 2]


def run(store: KVStore, _: Path) -> Iterator[None]:
    """A run under way: what was done once is not done again."""
    state, paid = Versioned(store), list[int]()

    def pay(amount: int) -> int:
        paid.append(amount)
        return amount

    with pytest.raises(RefMoved), state.run("order") as order:
        order.step(pay, 1, once=True)
        state["edit"] = 1
        yield
        order.step(pay, 2, once=True)
    state.refresh()
    state.discard()
    with state.run("order") as order:
        assert order.step(pay, 1, once=True) == 1
        assert order.step(pay, 2, once=True) == 2  # it was refused before its intent was committed
    assert paid == [1, 2]


def lease(store: KVStore, _: Path) -> Iterator[None]:
    """A lease names no commit."""
    with Versioned(store).lease("turn") as held:
        yield
        assert held.held


def workspace(store: KVStore, path: Path) -> Iterator[None]:
    """A directory of files, whose index is of an old tree."""
    state = Versioned(store)
    files = Workspace(state, path / "files")
    (path / "files" / "a").write_text("a")
    state.commit("a file")
    yield
    (path / "files" / "b").write_text("b")
    assert str(files.status()) == "+ b"
    with pytest.raises(RefMoved):
        state.commit("b")
    state.refresh()
    state.commit("b")
    assert {*files.at("HEAD")} == {"a", "b"}


def saver(store: KVStore, _: Path) -> Iterator[None]:
    """A checkpointer of LangGraph, with a thread in memory."""
    langgraph = pytest.importorskip("vstate.integrations.langgraph")
    base = pytest.importorskip("langgraph.checkpoint.base")
    graph = langgraph.VstateSaver(store)

    def put(config: Any, number: int) -> Any:
        checkpoint = base.empty_checkpoint() | {"id": f"1ef{number:05}-0000-6000-8000-000000000000"}
        checkpoint |= {"channel_values": {"n": number}, "channel_versions": {"n": number}}
        return graph.put(config, checkpoint, {"step": number}, {"n": number})

    thread = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    first = put(thread, 1)
    Repository(store).commit("threads/t", set={"users/ann": MARKER})
    second = put(first, 2)
    yield
    put(second, 3)
    assert [each.checkpoint["channel_values"]["n"] for each in graph.list(thread)] == [3, 2, 1]


def shown(store: KVStore, _: Path) -> Iterator[None]:
    """The repository of the viewer and of MCP, by a permalink: nothing is shown from memory."""
    repo = Shown(Repository(store))
    old = repo.resolve("main").id
    assert repo.entry(repo.resolve(old).root, "users/ann")
    yield
    assert repo.resolve(old) == Repository(store).resolve("main")
    assert repo.entry(repo.resolve(old).root, "users/ann") is None


HANDLES = [reader, writer, detached, past, watch, subscription, journal, run, lease, workspace, saver, shown]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "disk"])
@pytest.mark.parametrize("handle", HANDLES)
def test_who_has_the_old_history_open(handle: Any, kind: str, tmp_path: Path) -> None:
    """Each handle goes on with the new history, or raises an error whose advice works. Nothing comes back."""
    with ExitStack() as opened:
        stores = [Memory()] * 2
        if kind == "disk":
            stores = [opened.enter_context(Disk(tmp_path / "store", durability="process")) for _ in range(2)]
        person(stores[0]).close()
        steps = handle(stores[0], tmp_path)
        next(steps)
        Repository(stores[1]).erase("users/ann", all_branches=True)
        assert next(steps, "over") == "over"
        sound(stores[1])
        report = Repository(stores[1]).erase("users/ann", all_branches=True)
        assert (report.commits, report.traces) == (0, ())


@pytest.mark.parametrize("handle", [watch, subscription])
def test_before_the_old_commits_are_removed(
    handle: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the branch has moved, whoever waits for changes goes on with the new history."""
    store = Memory()
    person(store).close()
    steps = handle(store, tmp_path)
    next(steps)

    def cut_off(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(erasing.Rewrite, "sweep", cut_off)
        Repository(store).erase("users/ann", all_branches=True)
    assert next(steps, "over") == "over"


@pytest.mark.parametrize("branch", ["main", "other"])
@pytest.mark.parametrize("erased", [[], ["main"], ["main", "main"], [None]])
def test_a_watch_follows_its_branch_through_resets(erased: Sequence[str | None], branch: str) -> None:
    """It reports each move, whether its branch was made anew, or another one with the same commits."""
    store = Memory()
    with Versioned(store) as state:
        for number in range(3):
            state.update({"users/ann": MARKER, "users/ben": MARKER, "count": number})
            state.commit(f"commit {number}")
    repo = Repository(store)
    repo.create_branch("other", "main")
    with Versioned(store, branch=branch).watch() as found:
        for key, name in zip(["users/ann", "users/ben"], erased, strict=False):
            repo.erase(key, branch=name) if name else repo.erase(key, all_branches=True)
        with Versioned(store, branch=branch) as state:
            for number in range(2):
                state.reset("HEAD~1")
                state["new"] = number
                state.commit(f"new {number}")
        moves = [(key, change.kind, commit.message) for key, change, commit in islice(found, 4)]
    assert moves == [
        ("count", "modified", "commit 1"),
        ("new", "added", "new 0"),
        ("new", "removed", "commit 1"),
        ("new", "added", "new 1"),
    ]


def test_its_own_handle() -> None:
    """The state that erases goes to the new head; with uncommitted changes it refuses, and a dry run changes
    nothing.
    """
    store = Memory()
    state = person(store)
    state.repo.commit_many([BranchChanges("room", set={"users/ann": 1}, room=True)])
    rows = rows_of(store)
    assert state.erase("users/ann", all_branches=True, dry_run=True).commits == 8
    assert rows_of(store) == rows
    assert Repository(ReadOnlyStore(store)).erase("users/ann", all_branches=True, dry_run=True).commits == 8
    ben = state["users/ben"]
    state["users/new"] = 1
    with pytest.raises(UncommittedChanges):
        state.erase("users/ann")
    assert rows_of(store) == rows
    state.discard()
    state.erase("users/ann", all_branches=True)
    assert state["users/ben"] == ben
    state["users/new"] = 1
    assert present(state.commit("on")).parents == (present(state.repo.newest("main")).parents)


def test_nothing_brings_it_back() -> None:
    """A push, a forced push, a fetch and an import of the old history are refused with a sentence."""
    store, file = Memory(), io.BytesIO()
    person(store)
    copy = Memory()
    clone(store, copy)
    Repository(store).export(file, ["main"])
    Versioned(store).erase("users/ann", all_branches=True)
    theirs = Versioned(copy)
    theirs["late"] = 1
    theirs.commit("late")
    rows = rows_of(store)
    for bring in (
        lambda: theirs.push(store),
        lambda: theirs.push(store, force=True),
        lambda: theirs.repo.push(store, "side"),
        lambda: Repository(store).fetch(copy, remote="copy"),
        lambda: Versioned(store).pull(copy),
        lambda: Repository(store).import_bundle(io.BytesIO(file.getvalue()), prefix="imported/"),
    ):
        with pytest.raises(Diverged):
            bring()
    with pytest.raises(Diverged, match="an old commit never comes back"):
        theirs.push(store, force=True)
    left = {key: row for key, row in rows_of(store).items() if not key.startswith("remote")}
    assert left == rows
    # The same call there gives the same ids, so that both go on together.
    theirs.erase("users/ann", all_branches=True)
    assert Repository(copy).branch_ids(["side", "other"]) == Repository(store).branch_ids(["side", "other"])
    assert theirs.push(store).refs[0].status == "moved"
    assert Versioned(store)["late"] == 1


def test_remotes_are_listed(tmp_path: Path) -> None:
    """The report names the remotes with the time of the last exchange, and what else it cannot reach."""
    state = Versioned(Memory())
    state["a"] = 1
    state.commit("a")
    state.repo.remotes.add("origin", str(tmp_path / "there"))
    state.repo.remotes.add("second", str(tmp_path / "second"))
    state.push("origin", create=True)
    first, second, others = state.erase("a", dry_run=True).beyond
    assert first.startswith("the remote origin (")
    assert "last in sync 2" in first
    assert second.endswith("never in sync")
    state.repo.gc(keep_reflog="0")
    assert state.erase("a", dry_run=True).beyond[0].endswith("in sync before the reflog begins")
    assert "backups" in others


# Meanwhile, and failures


def beside(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Let something happen once, when the new commits are written and no ref has moved yet."""
    move = erasing.Rewrite.move_refs

    def moved(self: erasing.Rewrite) -> None:
        monkeypatch.setattr(erasing.Rewrite, "move_refs", move)
        happens()
        move(self)

    monkeypatch.setattr(erasing.Rewrite, "move_refs", moved)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["commit", "branch", "gc", "delete"])
def test_others_at_work(store: KVStore, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits and branches that come meanwhile lose the key too; a gc that sweeps the new commits does no
    harm.
    """
    state = person(store)
    other = Repository(store)
    happens: dict[str, Callable[[], object]] = {
        "commit": lambda: other.commit("main", set={"users/ann": "again", "more": 1}),
        "branch": lambda: other.create_branch("new", "main~1"),
        "gc": lambda: other.gc(grace="0s"),
        "delete": lambda: other.delete_branch("other", forget=True),
    }
    beside(monkeypatch, happens[what])
    report = Repository(store).erase("users/ann", all_branches=True)
    assert not report.traces
    assert not report.kept_by
    state.refresh()
    assert state.get("more") == (1 if what == "commit" else None)
    found = everything(Repository(store))
    assert not any("users/ann" in old.entries for old in found.values())
    assert objects_of(store) == needed(store)
    sound(store)


@pytest.mark.slow
@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("after", [True, False])
def test_a_failure_at_each_call(atomic: bool, after: bool) -> None:
    """The store fails at one call after the other: all is whole, and the same call, made again, finishes."""
    rows = Memory()
    person(rows)
    rows_before = dict(rows.items())
    before = everything(Repository(rows))
    count, step = 1, sized(7, 1)
    while True:
        memory = Memory()
        memory.set_many(rows_before)
        faulty = Faulty(memory, count, atomic=atomic, after=after)
        with suppress(StoreUnavailable):
            Repository(faulty).erase("users/ann", all_branches=True)
            if len(faulty.calls) < count:
                break
        store = Faulty(memory, atomic=atomic)
        sound(store)
        report = Repository(store).erase("users/ann", all_branches=True)
        assert (report.traces, report.kept_by) == ((), ()), count
        same_but(store, before, "users/ann")
        assert objects_of(store) == needed(store)
        count += step
    assert count > 30


def test_await() -> None:
    """The state and the repository with `await` have it too."""

    async def run() -> None:
        async with aio.Versioned(Memory()) as state:
            state.sync["a"] = 1
            await state.commit("a")
            assert (await state.repo.erase("a", dry_run=True)).commits == 1
            assert (await state.erase("a")).commits == 1
            assert (await state.erase("a")).commits == 0

    asyncio.run(run())


@pytest.mark.slow
def test_commits_after_an_erasure_outlive_another_process(tmp_path: Path) -> None:
    """The look for traces leaves SQLite its locks: a process that opens the store removes no log in use."""
    program = """
import os, subprocess, sys
from vstate import Disk, Versioned
state = Versioned(Disk(sys.argv[1]))
state["secret"] = "x" * 500
state.commit("one")
state.erase("secret")
state["a"] = 1
state.commit("two")
command = [sys.executable, "-m", "vstate_cli", "-s", sys.argv[1], "log"]
subprocess.run(command, check=True, capture_output=True)
state["a"] = 2
state.commit("three")
os._exit(0)
"""
    top = Path(__file__).parents[2]
    path = os.pathsep.join(map(str, [top, top / "cli"]))
    command = [sys.executable, "-c", program, str(tmp_path)]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": path}, timeout=200)
    with Disk(tmp_path) as store, Versioned(store) as state:
        assert state["a"] == 2
