"""Importing a bundle: interrupted, beside gc, and into a store that is damaged or cut short."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

import pytest
import zstandard
from bundle_files import (
    chain,
    equal,
    exported,
    forged,
    imported,
    outcomes,
    parsed,
    refs_of,
    values_at,
    whole,
)

from vstate import Disk, Memory, Versioned
from vstate.errors import (
    InvalidInput,
    StoreUnavailable,
)
from vstate.objects.ids import ObjectId
from vstate.repo import Repository
from vstate.repo.exchange import bundle as bundles
from vstate.testing import Faulty

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


# Interrupted


def written_frames(calls: Sequence[str]) -> int:
    return sum(call in ("set_many", "transact") for call in calls)


@pytest.fixture
def many_frames(monkeypatch: pytest.MonkeyPatch) -> tuple[Memory, bytes]:
    """A store, and a bundle of it in many small frames."""
    from vstate.repo.exchange import bundle_export

    monkeypatch.setattr(bundle_export, "FRAME_BYTES", 5_000)
    store = Memory()
    chain(store, 4)
    return store, exported(store)


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "plain"])
def test_interrupted_anywhere_and_done_again(
    many_frames: tuple[Memory, bytes], after: bool, atomic: bool
) -> None:
    """Whichever call of the store fails, refs lead to whole commits, and the next import ends as usual."""
    store, data = many_frames

    def run(fail_at: int | None) -> tuple[Memory, Faulty]:
        target = Memory()
        faulty = Faulty(target, fail_at, after=after, atomic=atomic)
        if fail_at is None:
            imported(faulty, data)
        else:
            with pytest.raises(StoreUnavailable):
                imported(faulty, data)
        return target, faulty

    _, counted = run(None)
    assert written_frames(counted.calls) > 5
    for fail_at in range(2, len(counted.calls) + 1, 3):
        target, faulty = run(fail_at)
        report = Repository(Faulty(target, atomic=atomic)).fsck()
        assert report.ok, str(report)
        before = set(target.keys("o/"))
        report_again = imported(target, data)
        assert report_again.written == report_again.objects - len(before)
        equal(store, target)
        whole(target)
        assert faulty.fail_at == fail_at


def test_what_is_there_is_not_even_decompressed(
    many_frames: tuple[Memory, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second import decompresses no frames."""
    store, data = many_frames
    target = Memory()
    imported(target, data)
    unpacked: list[int] = []
    objects = bundles.Frame.objects
    monkeypatch.setattr(bundles.Frame, "objects", lambda frame: unpacked.append(1) or objects(frame))
    faulty = Faulty(target)
    assert imported(faulty, data).written == 0
    assert not unpacked
    assert not {"set_many", "transact", "set"} & set(faulty.calls)
    some = list(target.keys("o/"))[:1]
    target.delete_many(some)
    assert imported(target, data).written == 1
    assert len(unpacked) == 1
    equal(store, target)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no signals to kill with")
def test_killed_in_the_middle(tmp_path: Path) -> None:
    """A process that is killed while it imports, over and over, gets there, and the store is whole all the
    time.
    """
    source, target = tmp_path / "source", tmp_path / "target"
    with Disk(source, durability="process") as disk:
        state = Versioned(disk)
        for number in range(8):
            state[f"own/{number}"] = Random(number).randbytes(1_200_000)
            state.commit(f"{number}")
        Repository(disk).export(tmp_path / "a.bundle", ["main"])
        right = refs_of(disk), values_at(disk)
    script = (
        "import sys\n"
        "from vstate import Disk\n"
        "from vstate.repo import Repository\n"
        "with Disk(sys.argv[1], durability='process') as disk:\n"
        "    def progress(step, count, total):\n"
        "        print(step, flush=True)\n"
        "    Repository(disk).import_bundle(sys.argv[2], progress=progress)\n"
        "print('done', flush=True)\n"
    )
    chance = Random(5)
    kills = 0
    for attempt in range(60):
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(target), str(tmp_path / "a.bundle")],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        while line and line != b"importing\n" and line != b"done\n":
            line = process.stdout.readline()
        if line == b"importing\n":
            time.sleep(chance.uniform(0, 0.05 * attempt))
            process.send_signal(signal.SIGKILL)
            kills += 1
        rest = process.stdout.read()
        process.stdout.close()
        process.wait()
        with Disk(target, durability="process") as disk:
            report = Repository(disk).fsck(full=False)
            assert report.ok, str(report)
            assert not report.refs or refs_of(disk) == right[0]
        if line == b"done\n" or b"done\n" in rest:
            break
        assert attempt < 59
    assert kills > 1
    with Disk(target, durability="process") as disk:
        Repository(disk).import_bundle(tmp_path / "a.bundle")
        assert (refs_of(disk), values_at(disk)) == right
        whole(disk)


# Beside gc


@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "plain"])
@pytest.mark.parametrize("times", [1, 3])
def test_gc_takes_away_what_no_ref_leads_to_yet(
    many_frames: tuple[Memory, bytes], atomic: bool, times: int
) -> None:
    """An import writes objects that gc removes meanwhile again, before a ref leads to them."""
    store, data = many_frames
    memory = Memory()
    chain(memory, 1, "mine")
    new = len(set(store.keys("o/")) - set(memory.keys("o/")))
    target = Faulty(memory, atomic=atomic)
    runs: list[int] = []

    def collect(step: str, count: int, total: int | None) -> None:
        if step == "importing" and count > total * 0.9 and len(runs) < times:  # type: ignore[operator]
            runs.append(Repository(target).gc(keep_reflog="0", grace="0").removed)

    report = Repository(target).import_bundle(io.BytesIO(data), progress=collect)
    assert len(runs) == times
    assert outcomes(report) == {"heads/main": "created"}
    assert refs_of(target)["heads/main"] == refs_of(store)["heads/main"]
    report_after = Repository(target).fsck()
    assert report_after.ok, str(report_after)
    if atomic:
        assert runs[0] > 0
        assert report.written > new
    Repository(target).gc(keep_reflog="0", grace="0")
    whole(memory)


def test_gc_just_before_the_ref_moves(many_frames: tuple[Memory, bytes]) -> None:
    """gc removes everything right before the ref moves."""
    store, data = many_frames

    class Late(Faulty):
        def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
            if "r/heads/main" in expected and not done:
                done.append(Repository(memory).gc(keep_reflog="0").removed)
            return super().transact(writes, expected)

    done: list[int] = []
    memory = Memory()
    imported(Late(memory), data)
    assert done[0] > 0
    equal(store, memory)
    whole(memory)


def test_no_commit_is_written_whose_state_gc_took_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that is there is a sign for others that all it holds is there too, also before a ref leads to
    it.
    """
    from vstate.repo.exchange import bundle_export

    monkeypatch.setattr(bundle_export, "FRAME_BYTES", 1)
    store = Memory()
    state = Versioned(store)
    for number in range(3):
        state["key"] = "value " * number
        state.commit(f"{number}")
    data = exported(store)
    trees = {key: value for key, value in store.items("o/") if value[:1] in b"tT"}
    moments = 0
    at = 0
    while at <= moments:
        memory = Memory()
        memory.set_many(trees)
        repo = Repository(memory)
        moments = 0

        def look(step: str, count: int, total: int | None, memory: Memory = memory, at: int = at) -> None:
            nonlocal moments
            if step != "importing":
                return
            if moments == at:
                Repository(memory).gc(keep_reflog="0")
            moments += 1
            fresh = Repository(memory)
            for oid in map(ObjectId.parse, (key[2:] for key, row in memory.items("o/") if row[:1] in b"cC")):
                assert f"o/{fresh.objects.commit(oid).root}" in memory

        repo.import_bundle(io.BytesIO(data), progress=look)
        equal(store, memory)
        at += 1
    assert at > 5


def test_garbage_that_gc_removed_in_part_continues_no_history() -> None:
    """A history that ends in the bundle ends here too, if the store has only a remnant of the rest."""
    store = Memory()
    chain(store, 5)
    before_the_cut = Repository(store).resolve("main~2").id
    remnant = {f"o/{before_the_cut}": store.get(f"o/{before_the_cut}") or b""}
    Repository(store).gc(branch="main", keep_last=2, keep_reflog="0")
    data = exported(store)
    for target in (store, Memory()):
        target.set_many(remnant)
        assert outcomes(imported(target, data, prefix="x/")) == {"heads/x/main": "created"}
        assert [commit.message for commit in Repository(target).log("x/main")] == ["c4", "c3"]
        Repository(target).gc(keep_reflog="0")
        assert not set(remnant) & set(target.keys())
        whole(target)


def test_an_import_at_each_moment_of_a_gc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another import has left garbage behind, which gc is removing piece by piece."""
    from vstate.repo.upkeep import gc

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
    moments = 0

    def collect(stage: str, count: int) -> None:
        nonlocal moments, data
        if stage != "removing":
            return
        if not moments and not commits & set(store.keys()):
            data = exported(store)
            assert outcomes(imported(store, older)) == {"heads/old": "diverged"}
            assert commits <= set(store.keys())
            moments = 1
        elif moments:
            report = imported(store, data, prefix=f"{moments}/")
            assert set(outcomes(report).values()) == {"created"}
            Repository(store).delete_branch(f"{moments}/main")
            moments += 1

    data = b""
    repo.gc(branch="main", keep_last=2, keep_reflog="0", progress=collect)
    assert moments > 3
    repo.gc(keep_reflog="0")
    whole(store)


def test_a_writer_moves_the_branch_meanwhile(many_frames: tuple[Memory, bytes]) -> None:
    """The import looks at the ref again, which has diverged by now."""
    _, data = many_frames

    class Overtaken(Faulty):
        def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
            if "r/heads/main" in expected and not done:
                done.append(True)
                chain(memory, 1)
            return super().transact(writes, expected)

    done: list[bool] = []
    memory = Memory()
    assert outcomes(imported(Overtaken(memory), data)) == {"heads/main": "diverged"}
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


@pytest.mark.slow
@pytest.mark.parametrize("letter", "bitc")
def test_what_is_there_and_damaged_is_written_again(letter: str) -> None:
    """A ref moves to whole objects only: a damaged one that is present is written again."""
    store = Memory()
    chain(store, 3)
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


def test_what_is_there_and_damaged_and_in_no_bundle_keeps_one_out() -> None:
    """The message names the damaged object, and no ref moves."""
    store, target = Memory(), Memory()
    state = chain(store, 3)
    imported(target, exported(store))
    since = [str(state.head.id)] if state.head else []
    later = chain(store, 2, start=3)
    before = refs_of(target)
    root = Repository(target).branch("main").root
    assert root is not None
    row = target.get(f"o/{root}")
    assert row is not None
    target.set(f"o/{root}", row[:-1] + bytes([row[-1] ^ 1]))
    later.rollback("HEAD~2")
    with pytest.raises(InvalidInput, match=f"tree {root}"):
        imported(target, exported(store, since=since))
    assert refs_of(target) == before


def test_damage_elsewhere_does_not_keep_a_bundle_out() -> None:
    """A tag that is broken has nothing to do with the branch that goes on."""
    store, target = Memory(), Memory()
    state = chain(store, 3)
    imported(target, exported(store))
    since = [str(state.head.id)] if state.head else []
    Repository(target).create_tag("broken", "main~2")
    target.delete(f"o/{Repository(target).resolve('main~2').root}")
    assert Repository(target).fsck().broken == ("tags/broken",)
    chain(store, 2, start=3)
    assert outcomes(imported(target, exported(store, since=since))) == {"heads/main": "moved"}
    assert Versioned(target)["small"] == 4
    assert Repository(target).fsck().broken == ("tags/broken",)


def test_a_branch_whose_commit_is_lost_has_diverged() -> None:
    """Nobody can say whether the bundle's commits follow it."""
    store, target = Memory(), Memory()
    chain(store, 3)
    chain(target, 1)
    target.delete(f"o/{refs_of(target)['heads/main']}")
    assert outcomes(imported(target, exported(store))) == {"heads/main": "diverged"}


@pytest.mark.parametrize("how", ["same", "ahead"])
def test_a_bundle_brings_back_what_a_history_was_cut_off_from(how: str) -> None:
    """The history goes on where it ended, and gc keeps the older commits."""
    store = Memory()
    chain(store, 5)
    data = exported(store)
    Repository(store).gc(branch="main", keep_last=2, keep_reflog="0")
    if how == "ahead":
        chain(store, 1, start=5)
    expected = [commit.message for commit in Versioned(store).log()]
    assert len(expected) < 4
    report = imported(store, data)
    assert set(outcomes(report).values()) == {"unchanged" if how == "same" else "ahead"}
    assert [commit.message for commit in Versioned(store).log()][-5:] == ["c4", "c3", "c2", "c1", "c0"]
    assert Repository(store).gc(keep_reflog="0").removed == 0
    whole(store)


def test_a_history_that_goes_on_has_to_be_complete() -> None:
    """The history stays cut off if an object of the rest is missing."""
    store = Memory()
    chain(store, 5)
    root = Repository(store).resolve("main~3").root
    header, objects, _ = parsed(exported(store))
    needed, refs, known, shallow, counts, size = header
    assert root is not None
    assert isinstance(counts, list)
    kept = [item for item in objects if item[1] != bytes(root)]
    frames = [(k, i, [len(b)], zstandard.ZstdCompressor().compress(b)) for k, i, b in kept]
    counts[2] -= 1
    size -= sum(len(item[2]) for item in objects if item[1] == bytes(root))
    Repository(store).gc(branch="main", keep_last=2, keep_reflog="0")
    with pytest.raises(InvalidInput, match=str(root)):
        imported(store, forged([needed, refs, known, shallow, counts, size], frames))
    assert len(list(Versioned(store).log())) == 2
    Repository(store).gc(keep_reflog="0")
    whole(store)


@pytest.mark.parametrize("stage", ["marking", "finding garbage", "removing"])
def test_a_history_goes_on_while_gc_is_at_work(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """gc keeps commits that an import brings back while it looks at the shortened history."""
    from vstate.repo.upkeep import gc

    monkeypatch.setattr(gc, "MOST_DELETED", 2)
    store = Memory()
    chain(store, 5)
    data = exported(store)
    Repository(store).gc(branch="main", keep_last=2, keep_reflog="0")
    state = chain(store, 3, "dead")
    assert state.head is not None
    Repository(store).delete_branch("dead")
    done: list[str] = []

    def bring_back(step: str, count: int) -> None:
        if step == stage and not done:
            done.append(step)
            imported(store, data)

    Repository(store).gc(keep_reflog="0", progress=bring_back)
    assert done
    assert len(list(Versioned(store).log())) == 5
    whole(store)


def test_a_history_goes_on_that_gc_is_just_cutting_off() -> None:
    """An import that still has the rest brings it back between the cut and the sweep."""
    store = Memory()
    chain(store, 5)
    data = exported(store)
    done: list[str] = []

    def bring_back(step: str, count: int) -> None:
        if step == "finding garbage" and not done:
            done.append(step)
            imported(store, data)

    Repository(store).gc(branch="main", keep_last=2, keep_reflog="0", progress=bring_back)
    assert done
    assert len(list(Versioned(store).log())) == 5
    whole(store)


@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "plain"])
def test_a_history_that_ends_arrives_while_gc_is_at_work(atomic: bool) -> None:
    """gc walks no further than the end of the bundle's history."""
    store = Memory()
    chain(store, 5)
    Repository(store).gc(branch="main", keep_last=2, keep_reflog="0")
    data = exported(store)
    memory = Memory()
    target = Faulty(memory, atomic=atomic)
    chain(memory, 1, "mine")
    chain(memory, 1, "dead")
    Repository(memory).delete_branch("dead")
    done: list[str] = []

    def bring(step: str, count: int) -> None:
        if step == "finding garbage" and not done:
            done.append(step)
            imported(target, data)

    Repository(target).gc(keep_reflog="0", grace="0", progress=bring)
    assert done
    assert [commit.message for commit in Versioned(memory, branch="main").log()] == ["c4", "c3"]
    assert Repository(target).fsck().ok


def test_a_history_that_ends_arrives_while_fsck_looks() -> None:
    """gc looks at commits that came meanwhile with the ends that came with them."""
    store, target = Memory(), Memory()
    chain(store, 5)
    Repository(store).gc(branch="main", keep_last=2, keep_reflog="0")
    data = exported(store)
    chain(target, 1, "mine")
    done: list[str] = []

    def bring(step: str, count: int) -> None:
        if not done:
            done.append(step)
            imported(target, data)

    report = Repository(target).fsck(progress=bring)
    assert done
    assert report.ok, str(report)


def test_progress_is_told(many_frames: tuple[Memory, bytes]) -> None:
    """The callback gets the step, the count, and the total."""
    store, data = many_frames
    told: list[tuple[str, int, int | None]] = []
    Repository(store).export(io.BytesIO(), ["main"], progress=lambda *step: told.append(step))
    Repository(Memory()).import_bundle(io.BytesIO(data), progress=lambda *step: told.append(step))
    assert [*dict.fromkeys(step for step, _, _ in told)] == ["collecting", "writing", "checking", "importing"]
    for step in ("writing", "checking", "importing"):
        counts = [(count, total) for name, count, total in told if name == step]
        assert counts == sorted(counts)
        assert all(total is not None and count <= total for count, total in counts)


def test_reports_can_be_read(many_frames: tuple[Memory, bytes]) -> None:
    """The text of a report has a line for each ref."""
    _, data = many_frames
    report = imported(Memory(), data)
    assert str(report).splitlines()[1].endswith(": created")
    assert f"{report.objects:,} objects" in str(report)
