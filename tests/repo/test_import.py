"""Importing a bundle: interrupted, beside gc, and into a store that is damaged or cut short."""

from __future__ import annotations

import io
from itertools import count
from typing import Any

import pytest
from bundle_files import (
    chain,
    equal,
    exported,
    imported,
    large,
    outcomes,
    refs_of,
    save,
    store_of,
    values_at,
    whole,
)
from sync_stores import Counted, Hooked, Once

from vstate import Memory, Versioned
from vstate.objects.ids import ObjectId
from vstate.repo import Repository
from vstate.repo.exchange import bundle_export
from vstate.repo.upkeep import gc
from vstate.testing import Faulty

pytestmark = pytest.mark.slow

CUT: dict[str, Any] = {"branch": "main", "keep_last": 2}


@pytest.fixture
def many_frames(small_batches: None) -> tuple[Memory, bytes]:
    """A store, and a bundle of it in many small frames."""
    store = Memory()
    chain(store, 4)
    return store, exported(store)


def test_what_is_there_is_not_written_again(many_frames: tuple[Memory, bytes]) -> None:
    """A second import writes nothing, and one that finds one object gone writes that one."""
    store, data = many_frames
    target = Memory()
    imported(target, data)
    faulty = Faulty(target)
    assert imported(faulty, data).written == 0
    assert not {"set_many", "transact", "set"} & set(faulty.calls)
    target.delete_many(list(target.keys("o/"))[:1])
    assert imported(target, data).written == 1
    equal(store, target)


def test_an_import_costs_what_is_new() -> None:
    """The values that it wrote are not read again, nor are those that our refs lead to."""
    store, target = Memory(), Memory()
    state = chain(store, 3)
    save(state, "large", block=large(1, 1_000_000))
    there = Counted(target)
    imported(there, exported(store))
    assert there.read < 200_000
    since = state.head
    assert since is not None
    save(state, "little", n=2)
    there.read = 0
    imported(there, exported(store, since=[since.id]))
    assert there.read < 200_000
    equal(store, target)


# Beside gc


def test_no_commit_is_written_whose_state_gc_took_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that is there is a sign for others that all it holds is there too, also before a ref leads to
    it.
    """
    monkeypatch.setattr(bundle_export, "FRAME_BYTES", 1)
    store = Memory()
    for number in range(3):
        save(store, f"{number}", key="value " * number)
    data = exported(store)
    trees = {key: value for key, value in store.items("o/") if value[:1] in b"tT"}
    for at in count():
        memory, moments = store_of(trees), count()

        def look(
            step: str, *_: object, memory: Memory = memory, at: int = at, moments: count[int] = moments
        ) -> None:
            if step == "copying":
                if next(moments) == at:
                    Repository(memory).gc(keep_reflog="0")
                fresh = Repository(memory)
                for key in [key for key, row in memory.items("o/") if row[:1] in b"cC"]:
                    assert f"o/{fresh.objects.commit(ObjectId.parse(key[2:])).root}" in memory

        Repository(memory).import_bundle(io.BytesIO(data), progress=look)
        equal(store, memory)
        if next(moments) <= at:
            break
    assert at > 1


def test_an_import_at_each_moment_of_a_gc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another import has left garbage behind, which gc is removing piece by piece."""
    monkeypatch.setattr(gc, "MOST_DELETED", 1)
    store, elsewhere = Memory(), Memory()
    chain(store, 5)
    repo = Repository(store)
    repo.create_branch("old", "main~2")
    older = exported(store, "old")
    repo.delete_branch("old")
    chain(elsewhere, 1, "old", start=50)
    imported(store, exported(elsewhere, "old"))
    commits = {f"o/{commit.id}" for commit in repo.log("main~2")}
    imports, data = 0, b""

    def collect(stage: str, _: int) -> None:
        nonlocal imports, data
        if stage == "removing" and imports:
            report = imported(store, data, prefix=f"{imports}/")
            assert set(outcomes(report).values()) == {"created"}
            Repository(store).delete_branch(f"{imports}/main")
            imports += 1
        elif stage == "removing" and not commits & set(store.keys()):
            data = exported(store)
            imported(store, older, prefix="x/")
            repo.delete_branch("x/old")
            assert commits <= set(store.keys())
            imports = 1

    repo.gc(keep_reflog="0", progress=collect, **CUT)
    assert imports > 1
    repo.gc(keep_reflog="0")
    whole(store)


def test_a_writer_moves_the_branch_meanwhile(many_frames: tuple[Memory, bytes]) -> None:
    """The import looks at the ref again, which has diverged by now."""
    memory = Memory()
    overtaken = Hooked(memory, Once(lambda: chain(memory, 1), "r/heads/main"))
    assert outcomes(imported(overtaken, many_frames[1])) == {"heads/main": "diverged"}
    assert [commit.message for commit in Versioned(memory).log()] == ["c0"]


# With a damaged store


def test_a_bundle_brings_back_what_was_lost() -> None:
    """After fsck has moved damage aside, importing a bundle that has the objects heals it."""
    store = Memory()
    chain(store, 4)
    data = exported(store)
    for key, value in list(store.items("o/"))[::3]:
        store.set(key, value[:-1])
    repo = Repository(store)
    assert not repo.fsck(repair=True).ok
    report = imported(store, data)
    assert report.written > 0
    assert Repository(store).fsck(repair=True).ok
    fresh = Memory()
    imported(fresh, data)
    assert not list(store.keys("shallow/"))
    assert values_at(store) == values_at(fresh)


@pytest.mark.parametrize("letter", "bitc")
def test_what_is_there_and_damaged_is_written_again(letter: str) -> None:
    """A ref moves to whole objects only: a damaged one that is present is written again."""
    store = Memory()
    chain(store, 2)
    data = exported(store)
    rows = {key: value for key, value in store.items("o/") if value[:1].lower() == letter.encode()}
    for key, value in rows.items():
        target = Memory()
        target.set_many(dict(store.items("o/")))
        target.set(key, value[:-1] + bytes([value[-1] ^ 1]))
        report = imported(target, data)
        assert report.written == 1
        equal(store, target)
        whole(target)


def test_damage_elsewhere_does_not_keep_a_bundle_out() -> None:
    """A tag that is broken has nothing to do with the branch that goes on."""
    store, target = Memory(), Memory()
    chain(store, 3)
    imported(target, exported(store))
    tag = Repository(target).create_tag("broken", "main~2")
    target.delete(f"o/{tag.root}")
    assert Repository(target).fsck().broken == ("tags/broken",)
    since = Repository(store).branch("main").id
    chain(store, 2, start=3)
    assert outcomes(imported(target, exported(store, since=[since]))) == {"heads/main": "moved"}
    assert Versioned(target)["small"] == 4
    assert Repository(target).fsck().broken == ("tags/broken",)


def test_a_branch_whose_commit_is_lost_has_diverged() -> None:
    """Nobody can say whether the bundle's commits follow it."""
    store, target = Memory(), Memory()
    chain(store, 3)
    chain(target, 1)
    target.delete(f"o/{refs_of(target)['heads/main']}")
    assert outcomes(imported(target, exported(store))) == {"heads/main": "diverged"}


@pytest.mark.parametrize(
    ("stage", "cut"), [("marking", {}), ("finding garbage", {}), ("removing", {}), ("finding garbage", CUT)]
)
def test_a_history_goes_on_while_gc_is_at_work(
    stage: str, cut: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """gc keeps commits that an import brings back while it looks at the shortened history."""
    monkeypatch.setattr(gc, "MOST_DELETED", 2)
    store = Memory()
    chain(store, 5)
    data = exported(store)
    if not cut:
        Repository(store).gc(keep_reflog="0", **CUT)
    chain(store, 3, "dead")
    Repository(store).delete_branch("dead")
    bring_back = Once(lambda: imported(store, data), stage)
    Repository(store).gc(keep_reflog="0", progress=bring_back, **cut)
    assert bring_back.done
    assert len(list(Versioned(store).log())) == 5
    whole(store)


@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "plain"])
def test_a_history_that_ends_arrives_while_gc_is_at_work(atomic: bool) -> None:
    """gc walks no further than the end of the bundle's history."""
    store = Memory()
    chain(store, 5)
    Repository(store).gc(keep_reflog="0", **CUT)
    data = exported(store)
    memory = Memory()
    target = Faulty(memory, atomic=atomic)
    chain(memory, 1, "mine")
    chain(memory, 1, "dead")
    Repository(memory).delete_branch("dead")
    bring = Once(lambda: imported(target, data), "finding garbage")
    Repository(target).gc(keep_reflog="0", grace="0", progress=bring)
    assert bring.done
    assert [commit.message for commit in Versioned(memory, branch="main").log()] == ["c4", "c3"]
    assert Repository(target).fsck().ok


def test_a_history_that_ends_arrives_while_fsck_looks() -> None:
    """gc looks at commits that came meanwhile with the ends that came with them."""
    store, target = Memory(), Memory()
    chain(store, 5)
    Repository(store).gc(keep_reflog="0", **CUT)
    data = exported(store)
    chain(target, 1, "mine")
    bring = Once(lambda: imported(target, data))
    report = Repository(target).fsck(progress=bring)
    assert bring.done
    assert report.ok, str(report)


def test_progress_is_told(many_frames: tuple[Memory, bytes]) -> None:
    """The callback gets the step, the count, and the total; the report has a line for each ref."""
    store, data = many_frames
    told: list[tuple[str, int, int | None]] = []
    Repository(store).export(io.BytesIO(), ["main"], progress=lambda *step: told.append(step))
    report = Repository(Memory()).import_bundle(io.BytesIO(data), progress=lambda *step: told.append(step))
    assert [*dict.fromkeys(step for step, _, _ in told)] == [
        "collecting", "writing", "checking", "finding commits", "copying",
    ]  # fmt: skip
    for step in ("writing", "checking"):
        counts = [(count, total) for name, count, total in told if name == step]
        assert counts == sorted(counts)
        assert all(total is not None and count <= total for count, total in counts)
    assert str(report).splitlines()[1].endswith(": created")
    assert f"{report.objects:,} objects" in str(report)
