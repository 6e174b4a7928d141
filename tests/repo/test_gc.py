"""gc: objects that refs and the reflog lead to stay, and the rest goes, beside any other process."""

from __future__ import annotations

import io
import itertools
import os
import sqlite3
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from bundle_files import chain, large, save
from damaged_stores import Shuffled
from histories import Tangle, needed, objects_of, plain, rows_of, sound
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import sized
from sync_stores import Once

from vstate import Cache, Disk, KVStore, Memory, Versioned
from vstate.errors import CorruptObject, InvalidInput, NotFound
from vstate.kv import Encrypted, Prefixed
from vstate.repo import Repository, idset
from vstate.repo.exchange import sync
from vstate.repo.idset import IdSet
from vstate.repo.names.refs import line_check
from vstate.repo.objects import TRASH
from vstate.repo.upkeep import gc
from vstate.testing import Faulty
from vstate.values.entry import decode_value
from vstate.values.inspection import size_text


def age_reflog(store: KVStore, days: float) -> None:
    """Make every line of the reflog older."""
    for key, value in list(store.items("reflog/")):
        begin, _, mark = key.rpartition(":")
        time = int(mark[:16], 16) - int(days * 86_400 * 10**9)
        aged = f"{begin}:{time:016x}"
        store.transact({key: None, aged + line_check(aged, value): value}, {})


# Objects that stay


@pytest.mark.slow
@settings(max_examples=sized(20, 1000))
@given(st.integers(0, 2**32), st.booleans())
def test_exactly_what_is_needed_stays(seed: int, atomic: bool) -> None:
    """After any history exactly the objects that refs and the reflog lead to are left, as a dry run
    foretells.
    """
    memory = Memory()
    tangle = Tangle(memory, seed)
    for _ in range(3):
        tangle.grow(8)
        age_reflog(memory, 20)
    before = rows_of(memory)
    predicted = Repository(memory).gc(dry_run=True)
    assert rows_of(memory) == before
    store = memory if atomic else Faulty(memory, atomic=False)
    report = Repository(store).gc(grace="0")
    assert objects_of(memory) == needed(memory)
    assert report.live == len(objects_of(memory)) == predicted.live
    gone = {key: value for key, value in before.items() if key.startswith("o/") and key not in memory}
    if atomic:
        assert (report.removed, report.removed_bytes) == (len(gone), sum(map(len, gone.values())))
    assert (predicted.removed, predicted.removed_bytes) == (len(gone), sum(map(len, gone.values())))
    assert report.reflog_lines == predicted.reflog_lines
    sound(memory)
    Repository(memory).gc(keep_reflog="0", grace="0")
    assert objects_of(memory) == needed(memory, reflog=False)
    sound(memory)
    again = Repository(memory).gc(keep_reflog="0")
    assert (again.removed, again.reflog_lines, again.waiting) == (0, 0, 0)


@pytest.mark.parametrize(("age", "stays"), [("10d", False), ("50d", True), (timedelta(days=50), True)])
def test_the_reflog_keeps_what_it_names_for_a_time(age: str | timedelta, stays: bool) -> None:
    """A commit that only a line of the reflog leads to stays until the line is old; then both go."""
    store = Memory()
    state = chain(store, 3)
    dead = state.head
    state.reset("HEAD~2")
    age_reflog(store, 40)
    state.refresh()
    save(state, "young", new=1)
    repo = Repository(store)
    report = repo.gc(keep_reflog=age)
    assert (f"o/{dead.id}" in store) is stays
    assert report.reflog_lines == (0 if stays else 4)
    assert len(list(repo.refs.reflog("heads/main"))) == (5 if stays else 1)
    sound(store)


def test_what_the_reflog_names_may_be_gone() -> None:
    """A line whose commit was removed long ago does not keep gc from working."""
    store = Memory()
    state = chain(store, 3)
    line = next(key for key in store.keys("reflog/heads/main:"))
    state.reset("HEAD~2")
    Repository(store).gc(keep_reflog="0")
    store.set(line, b"\x93\xc4\x20" + b"\x07" * 32 + b"\xc4\x20" + b"\x08" * 32 + b"\xa1x")
    assert Repository(store).gc().removed == 0


@pytest.mark.parametrize(
    "remove",
    [lambda repo: repo.gc(keep_reflog="0"), lambda repo: repo.delete_branch("gone", forget=True)],
    ids=["gc", "forget"],
)
def test_damage_in_use_stops_it(remove: Callable[[Repository], object]) -> None:
    """If a needed object is missing, nobody knows which objects it needs: nothing is removed."""
    store = Memory()
    state = chain(store, 3)
    chain(store, 1, "gone")
    state.reset("HEAD~1")
    store.delete(f"o/{state.head.root}")
    before = rows_of(store)
    with pytest.raises(CorruptObject, match=str(state.head.root)):
        remove(Repository(store))
    assert rows_of(store) == before


def test_damage_in_garbage_does_not_matter() -> None:
    """gc removes damaged garbage too."""
    store = Memory()
    state = chain(store, 3)
    dead = state.head
    state.reset("HEAD~2")
    store.set_many({f"o/{dead.id}": b"c?", "o/" + "0" * 64: b""})
    Repository(store).gc(keep_reflog="0")
    assert objects_of(store) == needed(store)


def test_rows_of_others_are_left_alone() -> None:
    """gc knows vstate's rows and leaves the others, also those whose names look alike."""
    store = Memory()
    chain(store, 2)
    others = {"o/x": b"1", "o/" + "A" * 64: b"2", "mine": b"3", "objects/1": b"4", "damaged/note": b"5"}
    store.set_many(others)
    Repository(store).gc(keep_reflog="0")
    assert others.items() <= rows_of(store).items()


def test_a_dry_run_tells_why() -> None:
    """Each object that would go counts for one reason, and damaged garbage for one too."""
    store = Memory()
    state = chain(store, 6)
    state.reset("HEAD~1")
    chain(store, 2, "side")
    state.repo.delete_branch("side")
    for key in list(store.keys("reflog/heads/side:")):
        store.delete(key)
    arriving = io.BytesIO()
    other = Versioned(Memory(), branch="new")
    save(other, new="elsewhere")
    other.repo.export(arriving, ["new"])
    arriving.seek(0)
    with pytest.raises(InvalidInput), pytest.MonkeyPatch.context() as patched:
        patched.setattr(sync.Sync, "_publish", refuse)
        state.repo.import_bundle(arriving)
    report = state.repo.gc(dry_run=True, branch="main", keep_last=2, keep_reflog="0s")
    found = {part.reason: part for part in report.garbage}
    assert list(found) == [
        "taken out of a history",
        "named by lines of a reflog that go",
        "left by an import or a push that did not end",
        "nothing leads to them",
    ]
    assert found["left by an import or a push that did not end"].objects == len(objects_of(other.store))
    assert sum(part.objects for part in report.garbage) == report.removed
    assert sum(part.bytes for part in report.garbage) == report.removed_bytes
    assert "taken out of a history" in str(report)
    done = state.repo.gc(branch="main", keep_last=2, keep_reflog="0s")
    assert (done.removed, done.removed_bytes, done.garbage) == (report.removed, report.removed_bytes, ())


def refuse(*_: object) -> None:
    raise InvalidInput("refused")


@pytest.mark.parametrize("killed_before", range(0, 14, 2))
def test_a_gc_that_is_killed_between_lines_leaves_no_damage(
    killed_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the order in which the store lists its keys, the rest of each reflog fits its ref."""
    store = Shuffled()
    repo = Repository(store)
    for branch in ("main", "again", "gone"):
        for number in range(4):
            repo.commit(branch, set={"k": number})
    repo.delete_branch("again")
    repo.commit("again", set={"k": 9})
    repo.delete_branch("gone")
    deletions, delete = itertools.count(), store.delete_many

    def killed(keys: Iterable[str]) -> None:
        if next(deletions) == killed_before:
            raise SystemExit
        delete(keys)

    monkeypatch.setattr(gc, "MOST_DELETED", 1)
    monkeypatch.setattr(store, "delete_many", killed)
    with pytest.raises(SystemExit):
        repo.gc(keep_reflog="0")
    sound(store)


# Cutting histories off


def test_keep_last_ends_the_log_there() -> None:
    """Only the newest commits are left: the log ends there, and the error for `HEAD~n` says why.

    A dry run foretells the cut.
    """
    store = Memory()
    chain(store, 10)
    repo, before = Repository(store), rows_of(store)
    predicted = repo.gc(branch="main", keep_last=3, dry_run=True)
    assert rows_of(store) == before
    report = repo.gc(branch="main", keep_last=3)
    for name in ("live", "removed", "removed_bytes", "reflog_lines", "shallow"):
        assert getattr(report, name) == getattr(predicted, name), name
    assert (report.shallow, report.removed > 0) == (1, True)
    fresh = Versioned(store)
    assert [commit.message for commit in fresh.log()] == ["c9", "c8", "c7"]
    last = list(fresh.log())[-1]
    assert repo.history.is_shallow(last)
    assert dict(fresh.checkout("HEAD~2"))["shared"] == large(7)
    with pytest.raises(NotFound, match=f"{last.short} is where the history was cut off"):
        fresh.checkout("HEAD~3")
    assert objects_of(store) == needed(store)
    assert len(fresh.diff("HEAD~2", "HEAD").added) == 2
    again = repo.gc(branch="main", keep_last=3)
    assert (again.removed, again.shallow, again.reflog_lines) == (0, 0, 0)
    save(fresh, "c10", more=1)
    assert [commit.message for commit in fresh.log()] == ["c10", "c9", "c8", "c7"]
    sound(store)


def test_a_cut_leaves_other_branches_whole() -> None:
    """History that an unnamed branch shares is not cut. If both branches are named, it is."""
    store = Memory()
    repo = chain(store, 8).repo
    repo.create_branch("dev", "main")
    report = repo.gc(branch="main", keep_last=2, keep_reflog="0")
    assert report.kept_by == ("dev",)
    assert "dev" in str(report)
    assert [len(list(repo.log(name))) for name in ("main", "dev")] == [8, 8]
    report = repo.gc(branch=["main", "dev"], keep_last=2, keep_reflog="0")
    assert (report.kept_by, report.shallow) == ((), 1)
    assert [len(list(repo.log(name))) for name in ("main", "dev")] == [2, 2]
    sound(store)


def test_what_only_a_detached_head_was_on_survives_a_cut() -> None:
    """The line of HEAD alone keeps the commit, which is of no branch that is cut."""
    store = Memory()
    repo = chain(store, 5).repo
    commit = chain(store, 1, "lone").head
    assert commit is not None
    repo.checkout(commit.id)
    repo.delete_branch("lone")
    repo.checkout("main")
    store.delete_many(list(store.keys("reflog/heads/lone:")))
    repo.gc(branch="main", keep_last=1)
    assert Versioned(store).checkout(commit.id)["shared"] == large(0)


@pytest.mark.parametrize(
    "options",
    [
        {"keep_last": 1},
        {"keep_since": "1d"},
        {"branch": "main"},
        {"branch": "main", "keep_last": 0},
        {"keep_reflog": "soon"},
        {"branch": "main", "keep_since": "-1d"},
    ],
)
def test_cut_options_go_together(options: dict[str, Any]) -> None:
    """A cut needs a branch and a measure."""
    with pytest.raises(InvalidInput):
        chain(Memory(), 1).repo.gc(**options)


# Stores without transactions


def test_garbage_waits_for_the_grace_period() -> None:
    """Without transactions garbage is put aside first, can still be read, and goes when its time is up."""
    store = plain()
    state = chain(store, 3)
    dead = state.head
    state.reset("HEAD~2")
    repo = Repository(store)
    report = repo.gc(keep_reflog="0", grace="1h")
    assert report.removed == 0
    assert report.waiting == len(list(store.keys(TRASH))) > 0
    assert objects_of(store) == needed(store)
    fresh = Repository(store)
    entry = fresh.entry(fresh.objects.commit(dead.oid).root, "shared")
    assert decode_value(entry, fresh.objects).value == large(2)
    later = repo.gc(keep_reflog="0", grace="1h")
    assert (later.removed, later.waiting) == (0, report.waiting)
    sweep = repo.refs.sweep()
    last = repo.gc(keep_reflog="0", grace="0")
    assert repo.refs.sweep() != sweep, "nobody who found it in the trash can know"
    assert (last.removed, last.waiting) == (report.waiting, 0)
    assert not list(store.keys(TRASH))
    sound(store)


def test_what_was_cut_off_stays_garbage() -> None:
    """A line of the reflog still names the first commit of the history that goes."""
    store = plain()
    state = chain(store, 6)
    cut = state.repo.gc(branch="main", keep_last=2, grace="1h")
    assert state.repo.gc(grace="1h").waiting == cut.waiting > 0
    assert state.repo.gc(grace="0").removed == cut.waiting
    assert not list(store.keys(TRASH))
    assert len(list(state.log())) == 2
    sound(store)


@pytest.mark.parametrize("make", [Memory, plain])
def test_what_a_young_line_names_beside_a_cut_stays(make: Callable[[], KVStore]) -> None:
    """Of an undo to the end of a history, and of another branch that a reset put below it."""
    store = make()
    state = chain(store, 6)
    other = state.fork("other", "HEAD~2")
    save(other, n="lost without its line")
    lost = other.head
    other.reset("HEAD~4")
    state.repo.gc(branch="main", keep_last=2, grace="0")
    assert Repository(store).resolve(lost.id) == lost
    undone = state.head
    state.undo()
    moves = [*state.repo.refs.lines("heads/main")]
    store.delete_many(sorted(moves)[:-1])  # the line of the undo alone is young
    state.repo.gc(grace="0")
    state.redo()
    assert state.head == undone
    sound(store)


def test_a_ref_that_came_while_gc_looked_elsewhere() -> None:
    """Without transactions a writer writes the commit, and then moves the ref. If gc puts the commit aside in
    between, it brings the commit back at once, and another writer waits for that.
    """

    class Between(Faulty):
        def delete_many(self, keys: Iterable[str]) -> None:
            keys = list(keys)
            super().delete_many(keys)
            if f"o/{late}" in keys and not done:
                done.append(Thread(target=lambda: writer.create_tag("again", late)))
                self.store.set("r/heads/late", str(late).encode())
                done[0].start()

    done: list[Thread] = []
    memory = Memory()
    chain(memory, 2)
    chain(memory, 1, "late")
    store = Between(memory, atomic=False)
    writer = Repository(store)
    late = writer.branch("late").oid
    Repository(store).delete_branch("late")
    Repository(store).gc(keep_reflog="0", grace="1h")
    done[0].join()
    assert not list(store.keys(TRASH))
    assert set(Repository(store).refs.all().values()) >= {late}
    assert Repository(store).resolve("again").oid == late
    sound(store)


def test_what_is_needed_again_comes_back() -> None:
    """gc puts back an object in the trash that a ref leads to again, and nothing is lost."""
    store = plain()
    state = chain(store, 3)
    dead = state.head
    state.reset("HEAD~2")
    repo = Repository(store)
    repo.gc(keep_reflog="0")
    assert f"o/{dead.id}" not in store
    # A writer that began before moves the ref to a commit that it knows.
    store.set("r/heads/main", dead.id.encode())
    assert dict(Versioned(store))["shared"] == large(2)
    sound(store)
    report = Repository(store).gc(keep_reflog="0", grace="0")
    assert not list(store.keys(TRASH))
    assert objects_of(store) == needed(store)
    assert report.live == len(objects_of(store))
    assert dict(Versioned(store))["shared"] == large(2)
    sound(store)


# Beside writers


@pytest.mark.parametrize("atomic", [True, False])
def test_what_was_there_for_a_moment_is_in_the_reflog(atomic: bool) -> None:
    """A commit that is made and taken back while gc looks for garbage, and a branch that comes and goes."""
    store = Faulty(Memory(), atomic=atomic)
    chain(store, 3).reset("HEAD~1")
    made: list[str] = []

    def there_and_back() -> None:
        other = Versioned(store)
        made.append(save(other, "brief", brief=1).id)
        other.reset("HEAD~1")
        with other.fork("gone") as gone:
            made.append(save(gone, "gone", brief=2).id)
        other.delete_branch("gone")

    looked = Once(there_and_back, "finding garbage")
    store.set("o/" + "ab" * 32, b"bgarbage")
    repo = Repository(store)
    repo.gc(progress=looked)
    assert [Versioned(store).checkout(commit)["brief"] for commit in made] == [1, 2]
    sound(store)


def test_a_cut_beside_gc_stays() -> None:
    """A run that began before it does not drop the rows of the ends."""
    store = Memory()
    chain(store, 6).reset("HEAD~1")
    store.set("o/" + "ab" * 32, b"bgarbage")
    cut = Once(lambda: Repository(store).gc(branch="main", keep_last=1, keep_reflog="0"), "finding garbage")
    Repository(store).gc(progress=cut)
    assert len(list(Versioned(store).log())) == 1
    sound(store)


STAGES = ["marking", "finding garbage", "removing"]


MOVES: dict[str, Callable[[Repository, str], object]] = {
    "branch": lambda repo, dead: repo.create_branch("x", dead),
    "tag": lambda repo, dead: repo.create_tag("x", dead),
    "rollback": lambda repo, dead: repo.rollback("main", dead),
    "reset": lambda repo, dead: repo.move_branch("main", dead),
    "checkout": lambda repo, dead: repo.checkout(dead),
    "merge": lambda repo, dead: repo.merge("main", dead, policy="theirs"),
    "cherry-pick": lambda repo, dead: repo.cherry_pick("main", dead, policy="theirs"),
    "commit": lambda repo, dead: repo.commit("main", set={"shared": large(4)}),
}


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("move", MOVES)
def test_a_ref_onto_what_gc_removes_never_dangles(
    store: KVStore, stage: str, move: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ref that is put on a dead commit during gc either keeps it, or is refused with NotFound. Content that
    was garbage stays if it is committed again.

    An operation that is reading dead commits may find one missing.
    """
    refused = (NotFound, CorruptObject) if move in ("merge", "cherry-pick") else NotFound
    monkeypatch.setattr(gc, "MOST_DELETED", 2)
    state = chain(store, 5)
    dead = state.head.id
    state.reset("HEAD~4")
    repo = Repository(store)
    repo.resolve(dead)  # so it is remembered, as in a program that runs for long
    moved: list[bool] = []

    def put() -> None:
        with suppress(refused):
            MOVES[move](repo, dead)
            moved.append(True)

    put_once = Once(put, stage)
    Repository(store).gc(keep_reflog="0", grace="1h", progress=put_once)
    put_once(stage)  # a store without transactions has no stage of removal
    sound(store)
    Repository(store).gc(keep_reflog="0", grace="0")
    assert store.transactional is False or objects_of(store) == needed(store)
    sound(store)
    if move == "commit":
        assert Versioned(store)["shared"] == large(4)
    if not moved:
        with pytest.raises(refused):
            MOVES[move](repo, dead)
        sound(store)


# After fsck


def test_what_was_lost_and_is_there_again_is_kept() -> None:
    """An object that was noted as lost and has been written again counts, with all that it leads to."""
    store = Memory()
    chain(store, 4)
    before = rows_of(store)
    tree = f"o/{Repository(store).resolve('HEAD~2').root}"
    store.delete(tree)
    Repository(store).fsck(repair=True)
    store.set(tree, before[tree])
    Repository(store).gc()
    assert all(key in store for key, row in before.items() if key[:2] == "o/" and row[:1] in b"bi")
    assert objects_of(store) == needed(store)
    assert not list(store.keys("damaged/"))
    sound(store)


# IdSet


ids = st.binary(min_size=32, max_size=32) | st.builds(
    lambda start, number: start * 8 + number.to_bytes(8, "big"),
    st.sampled_from([b"\0\0\0", b"\xff\xff\xff", b"ab", b"abc"]),
    st.integers(0, 300),
).map(lambda raw: raw.ljust(32, b"\0")[:32])


@given(st.lists(ids), st.lists(ids))
@pytest.mark.slow
def test_id_set_is_a_set(added: list[bytes], asked: list[bytes]) -> None:
    """An IdSet behaves like a set, also for forged ids that differ only at their ends."""
    model: set[bytes] = set()
    found = IdSet()
    for oid in added:
        assert found.add(oid) is (oid not in model)
        model.add(oid)
        assert len(found) == len(model)
    for oid in added + asked:
        assert (oid in found) is (oid in model)


def test_id_set_finds_no_bytes_across_two_ids() -> None:
    """What a walk takes for known it does not follow: gc would remove what lies behind it."""
    rows = [bytes(range(start, start + 14)) for start in (0, 14, 7)]
    bucket = b"".join(rows)
    assert all(idset._holds(bucket, row) for row in rows)
    assert not any(idset._holds(bucket[:28], bucket[at : at + 14]) for at in range(1, 14))
    assert not idset._holds(b"", bytes(14))


def _fill(state: Versioned, count: int = 12) -> None:
    for number in range(count):
        state["blob"] = os.urandom(400_000)
        state.commit(str(number))


CUT: dict[str, Any] = {"branch": "main", "keep_last": 1, "keep_reflog": "0s", "grace": "0s"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "front", [lambda disk: disk, lambda disk: Encrypted(Prefixed(Cache(disk), "a"), bytes(32))]
)
def test_gc_gives_the_room_back(tmp_path: Path, front: Callable[[Disk], KVStore]) -> None:
    """The file shrinks to what is in use, whatever stands in front of it; the report says both sizes."""
    with Disk(tmp_path / "store", durability="process") as disk:
        state = Versioned(front(disk))
        _fill(state)
        assert state.repo.gc(dry_run=True, **CUT).size_after is None
        report = state.repo.gc(**CUT)
        assert report.size_before is not None
        assert report.size_after == disk.size() < 1_500_000 < 4_800_000 < report.size_before
        assert f"take {size_text(report.size_after)}" in str(report)
        assert list(disk.check()) == []
        before = state["blob"]
        _fill(state, 2)
        assert state.checkout("HEAD~2")["blob"] == before
    assert Repository(Memory()).gc().size_after is None


@pytest.mark.slow
def test_others_go_on_while_room_is_given_back(tmp_path: Path) -> None:
    """A reader of SQLite keeps its snapshot, and a writer finds all that it wrote."""
    with Disk(tmp_path / "store", durability="process") as disk, ThreadPoolExecutor() as threads:
        state = Versioned(disk)
        _fill(state, 16)
        kept = state.checkout("HEAD")
        reader = sqlite3.connect(tmp_path / "store" / "vstate.db", isolation_level=None)
        reader.execute("BEGIN")
        rows = reader.execute("SELECT count(*) FROM kv").fetchone()
        beside, stop = state.fork("beside"), Event()

        def write() -> None:
            while not stop.is_set():
                save(beside, n=beside.get("n", 0) + 1)

        writer = threads.submit(write)
        report = state.repo.gc(**CUT | {"branch": ["main", "beside"]})
        stop.set()
        writer.result()
        assert report.removed_bytes > 5_000_000
        assert Versioned(disk, branch="beside")["n"] == beside["n"] > 0
        assert reader.execute("SELECT count(*) FROM kv").fetchone() == rows
        reader.close()
        assert kept["blob"] == state["blob"]
        assert list(disk.check()) == []
        assert Repository(disk).fsck().ok


@pytest.mark.slow
def test_giving_room_back_is_bounded_in_time(tmp_path: Path) -> None:
    """When the time is over, gc ends with a step made; the next one goes on."""
    with Disk(tmp_path / "store", durability="process") as disk:
        state = Versioned(disk)
        _fill(state)
        first = state.repo.gc(**CUT, seconds=0)
        assert first.size_after is not None
        assert first.size_after > 3_000_000
        assert (state.repo.gc().size_after or 0) < 1_500_000
