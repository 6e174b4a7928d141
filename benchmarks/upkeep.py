"""gc, fsck and merge, and commits by many writers."""

from __future__ import annotations

import functools
import multiprocessing
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import kvgit
import numpy as np
from blake3 import blake3
from kvgit.kv.disk import Disk as KvgitDisk

from benchmarks.harness import Row, Side, Sides, Target, seconds, workload
from benchmarks.peers import Table
from benchmarks.stores import Start, Stores
from benchmarks.values import key, random_values
from vstate import Disk, KVStore, Memory, Versioned
from vstate.repo.repository import Repository

COMMITS = 1000
FEW_KEYS = 100

GC_LIVE = "gc of 1,000 commits, all in use, disk"
GC_DEAD = "gc that removes 1,000 commits, disk"


def kvgit_repo(directory: Path) -> kvgit.Repo:
    """kvgit's repository in a directory."""
    return kvgit.Repo(KvgitDisk(str(directory)))


def changes() -> Iterator[tuple[str, bytes]]:
    """1,000 pairs of a key and its new value."""
    generator = random.Random(21)
    for value in random_values(COMMITS, seed=23):
        yield key(generator.randrange(FEW_KEYS)), value


def few_values() -> dict[str, bytes]:
    """100 keys and their values."""
    return dict(zip(map(key, range(FEW_KEYS)), random_values(FEW_KEYS, seed=22), strict=True))


def vstate_with_commits(directory: Path, *, dead: bool) -> None:
    """Commit 100 keys, and 1,000 changes of one key on a branch; delete that branch if `dead`."""
    with Versioned(directory) as state:
        state.update(few_values())
        state.commit()
        state.switch("work", create=True)
        for name, value in changes():
            state[name] = value
            state.commit()
        state.switch("main")
        if dead:
            state.delete_branch("work")


def kvgit_with_commits(directory: Path, *, dead: bool) -> None:
    """The same in kvgit."""
    repo = kvgit_repo(directory)
    tree = repo.worktree("main", create=True)
    for name, value in few_values().items():
        tree[name] = value
    tree.commit()
    repo.branches.create("work", at=tree.head)
    tree = repo.worktree("work")
    for name, value in changes():
        tree[name] = value
        tree.commit()
    if dead:
        repo.branches.delete("work")
    repo.close()


def doltlite_with_commits(start: Start, directory: Path, *, dead: bool) -> None:
    """The same in doltlite."""
    table = Table(directory)
    table.update(few_values())
    table.commit()
    table.run("SELECT dolt_checkout('-b', 'work')")
    for name, value in changes():
        table[name] = value
        table.commit()
    table.run("SELECT dolt_checkout('main')")
    if dead:
        table.run("SELECT dolt_branch('-D', 'work')")
    table.close()


def vstate_gc(directory: Path) -> float:
    """Seconds of a gc that keeps no commit for the reflog."""
    repo = Repository(Disk(directory))
    sample = seconds(lambda: repo.gc(keep_reflog="0"))
    repo.store.close()
    return sample


def kvgit_gc(directory: Path) -> float:
    """Seconds of a gc that keeps no commit for its age."""
    repo = kvgit_repo(directory)
    sample = seconds(lambda: repo.gc(min_age=0))
    repo.close()
    return sample


def doltlite_gc(start: Start, directory: Path) -> float:
    """Seconds of a gc."""
    table = Table(directory)
    sample = seconds(lambda: table.run("SELECT dolt_gc()"))
    table.close()
    return sample


def doltlite_gc_live(start: Start, directory: Path) -> dict[str, float]:
    return {GC_LIVE: doltlite_gc(start, directory)}


def doltlite_gc_dead(start: Start, directory: Path) -> dict[str, float]:
    copy = Path(tempfile.mkdtemp(dir=directory.parent)) / "copy"
    shutil.copytree(directory, copy)
    return {GC_DEAD: doltlite_gc(start, copy)}


@workload(Row(GC_LIVE, "seconds", (Target(1.0, side="kvgit"),)))
def gc_of_live_commits(scratch: Path) -> Iterator[Sides]:
    vstate_with_commits(scratch / "vstate", dead=False)
    kvgit_with_commits(scratch / "kvgit", dead=False)
    with Stores(scratch, "doltlite") as stores:
        stores.on_peers(partial(doltlite_with_commits, dead=False))
        yield {
            "vstate": lambda: {GC_LIVE: vstate_gc(scratch / "vstate")},
            "kvgit": lambda: {GC_LIVE: kvgit_gc(scratch / "kvgit")},
            **stores.rounds_of_peers(doltlite_gc_live),
        }


@workload(Row(GC_DEAD, "seconds", (Target(1.0, side="kvgit"),)))
def gc_of_dead_commits(scratch: Path) -> Iterator[Sides]:
    vstate_with_commits(scratch / "vstate", dead=True)
    kvgit_with_commits(scratch / "kvgit", dead=True)
    turns = count()

    def on(side: str, collect: Callable[[Path], float]) -> dict[str, float]:
        copy = scratch / f"{side}-{next(turns)}"
        shutil.copytree(scratch / side, copy)
        return {GC_DEAD: collect(copy)}

    with Stores(scratch, "doltlite") as stores:
        stores.on_peers(partial(doltlite_with_commits, dead=True))
        yield {
            "vstate": lambda: on("vstate", vstate_gc),
            "kvgit": lambda: on("kvgit", kvgit_gc),
            **stores.rounds_of_peers(doltlite_gc_dead),
        }


FSCK = "fsck of an array of 200 MB, disk"
FSCK_BYTES = 200 * 10**6


ERASE, ERASED_COMMITS = "erase a key that half of 10,000 commits have, disk", 10_000


@workload(Row(ERASE, "seconds", (Target(10.0),)), rounds=2)
def erase_of_a_key(scratch: Path) -> Iterator[Sides]:
    with Versioned(scratch / "vstate") as state:
        for number in range(ERASED_COMMITS):
            if number == ERASED_COMMITS // 2:
                state["users/ann"] = {"name": "Ann", "visits": 0}
            elif number > ERASED_COMMITS // 2:
                state["users/ann"]["visits"] += 1
            state["turn"] = number
            state.commit(f"turn {number}")
    turns = count()

    def erase() -> dict[str, float]:
        copy = scratch / f"copy-{next(turns)}"
        shutil.copytree(scratch / "vstate", copy)
        with Versioned(copy) as state:
            return {ERASE: seconds(state.erase, "users/ann")}

    yield {"vstate": erase}


@workload(Row(FSCK, "seconds", (Target(2.0, side="floor"),)))
def fsck_of_an_array(scratch: Path) -> Iterator[Sides]:
    array = np.random.default_rng(24).integers(0, 255, FSCK_BYTES, dtype=np.uint8)
    with Versioned(scratch / "vstate") as state:
        state["array"] = array
        state.commit()
    data = array.tobytes()
    repo = Repository(Disk(scratch / "vstate"))

    def check() -> None:
        assert repo.fsck().ok

    yield {
        "vstate": lambda: {FSCK: seconds(check)},
        "floor": lambda: {FSCK: seconds(lambda: blake3(data).digest())},
    }
    repo.store.close()


MERGE_IN_MEMORY = "merge of two branches with one change each, 1,000 keys, memory"
MERGE_ON_DISK = "merge of two branches with one change each, 1,000 keys, disk"
MERGE_WITHOUT_SYNC = "the same with no fsync on either side"
MERGED_KEYS = 1000
MERGES = 30


def vstate_merges(store: KVStore) -> Callable[[], float]:
    """A round of merges. Before each merge, main and a new branch change one key each."""
    state, turns, generator = Versioned(store, branch="main"), count(), random.Random(25)
    state.update({key(i): value for i, value in enumerate(random_values(MERGED_KEYS, seed=26))})
    state.commit()

    def one_merge() -> float:
        name = f"branch-{next(turns)}"
        other = state.fork(name)
        for handle, changed in zip((state, other), generator.sample(range(MERGED_KEYS), 2), strict=True):
            handle[key(changed)] = generator.randbytes(1024)
            handle.commit()
        return seconds(lambda: state.merge(name))

    return lambda: sorted(one_merge() for _ in range(MERGES))[MERGES // 2]


def kvgit_merges(repo: kvgit.Repo) -> Callable[[], float]:
    """The same in kvgit."""
    tree, turns, generator = repo.worktree("main", create=True), count(), random.Random(25)
    for i, value in enumerate(random_values(MERGED_KEYS, seed=26)):
        tree[key(i)] = value
    tree.commit()

    def one_merge() -> float:
        name = f"branch-{next(turns)}"
        repo.branches.create(name, at=tree.head)
        other = repo.worktree(name)
        for handle, changed in zip((tree, other), generator.sample(range(MERGED_KEYS), 2), strict=True):
            handle[key(changed)] = generator.randbytes(1024)
            handle.commit()
        return seconds(lambda: tree.merge(branch=name))

    return lambda: sorted(one_merge() for _ in range(MERGES))[MERGES // 2]


def doltlite_merges(table: Table) -> Callable[[], float]:
    """The same in doltlite, on one connection that goes from branch to branch."""
    turns, generator = count(), random.Random(25)
    table.update({key(i): value for i, value in enumerate(random_values(MERGED_KEYS, seed=26))})
    table.commit()

    def one_merge() -> float:
        name = f"branch-{next(turns)}"
        table.run("SELECT dolt_branch(?)", name)
        for branch, changed in zip(("main", name), generator.sample(range(MERGED_KEYS), 2), strict=True):
            table.run("SELECT dolt_checkout(?)", branch)
            table[key(changed)] = generator.randbytes(1024)
            table.commit()
        table.run("SELECT dolt_checkout('main')")
        return seconds(lambda: table.run("SELECT dolt_merge(?)", name))

    return lambda: sorted(one_merge() for _ in range(MERGES))[MERGES // 2]


@functools.cache
def _open_doltlite_merges(directory: Path) -> Callable[[], float]:
    return doltlite_merges(Table(directory))


def merge_in_doltlite(start: Start, directory: Path) -> dict[str, float]:
    """A round of merges. doltlite's process keeps the store open for the next round."""
    return {MERGE_ON_DISK: _open_doltlite_merges(directory)()}


@workload(Row(MERGE_IN_MEMORY, "seconds", (Target(0.6, side="kvgit"),)))
def merge_in_memory(scratch: Path) -> Iterator[Sides]:
    on_vstate, on_kvgit = vstate_merges(Memory()), kvgit_merges(kvgit.open().repo)
    yield {
        "vstate": lambda: {MERGE_IN_MEMORY: on_vstate()},
        "kvgit": lambda: {MERGE_IN_MEMORY: on_kvgit()},
    }


@workload(
    Row(MERGE_ON_DISK, "seconds", (Target(0.6, side="kvgit"),)),
    Row(MERGE_WITHOUT_SYNC, "seconds", (Target(0.6, side="kvgit"),)),
)
def merge_on_disk(scratch: Path) -> Iterator[Sides]:
    disk, repo = Disk(scratch / "vstate"), kvgit_repo(scratch / "kvgit")
    unsynced = Disk(scratch / "vstate-unsynced", durability="process")
    on_vstate, on_kvgit, on_unsynced = vstate_merges(disk), kvgit_merges(repo), vstate_merges(unsynced)

    def in_kvgit() -> dict[str, float]:
        sample = on_kvgit()  # it never waits for the disk
        return {MERGE_ON_DISK: sample, MERGE_WITHOUT_SYNC: sample}

    with Stores(scratch, "doltlite") as stores:
        yield {
            "vstate": lambda: {MERGE_ON_DISK: on_vstate(), MERGE_WITHOUT_SYNC: on_unsynced()},
            "kvgit": in_kvgit,
            **stores.rounds_of_peers(merge_in_doltlite),
        }
    for store in (disk, unsynced, repo):
        store.close()


UPDATE = "4 processes increment one counter with update, one commit, disk"
WRITERS = 4
INCREMENTS = 100
COUNTER = "n"

Work = Callable[[Path, "Queue[tuple[float, float]]", Barrier], None]


def vstate_writer(directory: Path, times: Queue[tuple[float, float]], start: Barrier) -> None:
    """Increment the counter 100 times, and put the start and the end into the queue."""
    with Versioned(directory, branch="main") as state:

        def increment(now: Versioned) -> None:
            now[COUNTER] += 1

        start.wait()
        began = time.time()
        for _ in range(INCREMENTS):
            state.apply(increment)
        times.put((began, time.time()))


def kvgit_writer(directory: Path, times: Queue[tuple[float, float]], start: Barrier) -> None:
    """The same in kvgit, with a retry loop: its own merge of counters loses increments."""
    tree = kvgit_repo(directory).worktree("main")
    start.wait()
    began = time.time()
    for _ in range(INCREMENTS):
        while True:
            tree[COUNTER] = tree[COUNTER] + 1
            try:
                tree.commit(on_moved="raise")
                break
            except (kvgit.ConcurrencyError, kvgit.MergeConflict):
                tree.discard()
                tree.refresh()
    times.put((began, time.time()))


def race(work: Work, directory: Path) -> float:
    """Seconds for each commit while four processes commit at once."""
    context = multiprocessing.get_context("spawn")
    times: Queue[tuple[float, float]] = context.Queue()
    start = context.Barrier(WRITERS)
    writers = [context.Process(target=work, args=(directory, times, start)) for _ in range(WRITERS)]
    for writer in writers:
        writer.start()
    spans = [times.get() for _ in writers]
    for writer in writers:
        writer.join()
    return (max(end for _, end in spans) - min(began for began, _ in spans)) / (WRITERS * INCREMENTS)


@workload(Row(UPDATE, "seconds", (Target(1.0, side="kvgit"),)))
def update_under_four_writers(scratch: Path) -> Iterator[Sides]:
    values = {COUNTER: 0, **few_values()}
    with Versioned(scratch / "vstate") as state:
        state.update(values)
        state.commit()
    repo = kvgit_repo(scratch / "kvgit")
    tree = repo.worktree("main", create=True)
    for name, value in values.items():
        tree[name] = value
    tree.commit()
    repo.close()
    rounds: dict[Side, int] = {"vstate": 0, "kvgit": 0}

    def on(side: Side, work: Work, value: Callable[[], int]) -> dict[str, float]:
        sample = race(work, scratch / side)
        rounds[side] += 1
        assert value() == rounds[side] * WRITERS * INCREMENTS, f"{side} lost increments"
        return {UPDATE: sample}

    def in_vstate() -> int:
        with Versioned(scratch / "vstate") as state:
            return int(state[COUNTER])

    yield {
        "vstate": lambda: on("vstate", vstate_writer, in_vstate),
        "kvgit": lambda: on(
            "kvgit", kvgit_writer, lambda: int(kvgit_repo(scratch / "kvgit").worktree("main")[COUNTER])
        ),
    }


ALONE = "one thread commits one key again and again, disk: each commit"
TOGETHER = "32 threads, each with a branch of its own on one Disk: each commit"
THREADS = 32
IN_ALL = 30 * THREADS  # commits, alone as together: each pays its share of SQLite's checkpoints


def committed_by(disk: Disk, threads: int, turn: int) -> float:
    """Seconds for each commit, while threads commit a key of their own branches, `IN_ALL` times."""
    states = [Versioned(disk, branch=f"branch-{number}") for number in range(threads)]

    def work(state: Versioned) -> None:
        for i in range(IN_ALL // threads):
            state[COUNTER] = turn * IN_ALL + i
            state.commit()

    with ThreadPoolExecutor(threads) as pool:
        sample = seconds(lambda: list(pool.map(work, states)))
    for state in states:
        state.close()
    return sample / IN_ALL


@workload(Row(ALONE, "seconds"), Row(TOGETHER, "seconds", (Target(0.4, row=ALONE),)))
def commits_of_threads(scratch: Path) -> Iterator[Sides]:
    disk, turns = Disk(scratch / "vstate"), count()

    def once() -> dict[str, float]:
        return {
            name: committed_by(disk, threads, next(turns))
            for name, threads in ((ALONE, 1), (TOGETHER, THREADS))
        }

    yield {"vstate": once}
    disk.close()
