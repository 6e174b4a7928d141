"""Looking back: checkout and diff with warm caches and just after opening; histories of many commits."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks.harness import Row, Sides, Target, median_seconds, seconds, workload
from benchmarks.keys import fill
from benchmarks.memory import peak_growth
from benchmarks.stores import Start, Stores
from benchmarks.subjects import Subject
from benchmarks.values import KEYS, key, random_values
from vstate import Disk, Versioned
from vstate.repo.repository import Repository

COMMITS = 40

CHECKOUT = "checkout an old commit and read one key, 10,000 keys"
DIFF = "diff of two commits, 1 key changed of 10,000"
COLD_CHECKOUT = "the same checkout on a store just opened"
COLD_DIFF = "the same diff on a store just opened"


def with_history(start: Start, directory: Path) -> list[str]:
    """Fill a store, commit changes of one key each, and close it. Returns the commits, oldest first."""
    subject = fill(start(directory))
    commits, generator = [subject.head()], random.Random(6)
    for value in random_values(COMMITS, seed=7):
        subject.mapping[key(generator.randrange(KEYS))] = value
        subject.commit()
        commits.append(subject.head())
    subject.close()
    return commits


def look(start: Start, directory: Path, histories: dict[str, list[str]]) -> dict[str, float]:
    """Visit old commits of a store.

    Cold: each row opens a handle and visits every commit once, so caches hold only nodes that earlier visits
    shared. Warm: the same visits once more on that handle.
    """
    commits, generator = histories[directory.name], random.Random(8)
    wanted = [key(generator.randrange(KEYS)) for _ in range(COMMITS)]

    def checkouts(subject: Subject) -> float:
        return median_seconds(lambda i: subject.at(commits[i])[wanted[i]], COMMITS)

    def diffs(subject: Subject) -> float:
        return median_seconds(lambda i: subject.changed(commits[i], commits[i + 1]), COMMITS)

    rows: dict[str, float] = {}
    for cold, warm, measure in ((COLD_CHECKOUT, CHECKOUT, checkouts), (COLD_DIFF, DIFF, diffs)):
        subject = start(directory)
        rows[cold], rows[warm] = measure(subject), measure(subject)
        assert len(subject.changed(commits[0], commits[1])) == 1
        subject.close()
    return rows


@workload(
    Row(CHECKOUT, "seconds", (Target(1.0, side="kvgit"),)),
    Row(DIFF, "seconds", (Target(0.5, side="kvgit"),)),
    Row(COLD_CHECKOUT, "seconds", ()),
    Row(COLD_DIFF, "seconds", ()),
)
def look_back(scratch: Path) -> Iterator[Sides]:
    with Stores(scratch, "doltlite") as stores:
        yield stores.rounds(partial(look, histories=stores.each(with_history)))


COMMIT_MANY = "commit 1,000 changed keys of 100,000, disk"
DIFF_MANY = "diff of two commits, 1,000 keys changed of 100,000"
MANY, CHANGED = 100_000, 1_000


@workload(Row(COMMIT_MANY, "seconds"), Row(DIFF_MANY, "seconds", (Target(0.4, row=COMMIT_MANY),)))
def change_many_keys(scratch: Path) -> Iterator[Sides]:
    state, generator, turns = Versioned(scratch / "vstate", branch="main"), random.Random(46), count()
    state.update(zip(map(key, range(MANY)), random_values(MANY, seed=47, size=200), strict=True))
    state.commit()

    def once() -> dict[str, float]:
        chosen = map(key, generator.sample(range(MANY), CHANGED))
        values = random_values(CHANGED, seed=1000 + next(turns), size=200)
        state.update(zip(chosen, values, strict=True))
        sample = seconds(state.commit)
        with Versioned(scratch / "vstate", branch="main") as fresh:
            found: list[str] = []
            diff = seconds(lambda: found.extend(fresh.diff("HEAD~1", "HEAD").modified))
        assert len(found) == CHANGED
        return {COMMIT_MANY: sample, DIFF_MANY: diff}

    yield {"vstate": once}
    state.close()


HISTORY = 30_000
BACK, LOGGED = 4_990, 5_000
GO_BACK = "HEAD~4990 on a store just opened: each commit"
LOG = "log of 5,000 commits on a store just opened: each commit"
LOG_PEAK = "log of 30,000 commits: peak memory"
MERGE_BASE = "merge base of two branches, 30,000 commits ago on one of them"
GC_LONG = "gc of 30,000 commits, all in use, disk"


MESSAGES = 5_000
BLAME = "blame of 5,000 messages in 10,000 commits on a store just opened, disk"


@workload(Row(BLAME, "seconds", (Target(5.0),)), rounds=3)
def long_chat(scratch: Path) -> Iterator[Sides]:
    with Disk(scratch / "vstate", durability="process") as disk, Versioned(disk, branch="main") as state:
        state["messages"] = []
        for number in range(MESSAGES):
            state["messages"].append({"role": "user", "content": f"message {number} " * 6})
            state.commit(f"turn {number}")
            state["count"] = number
            state.commit(f"count {number}")

    def once() -> dict[str, float]:
        with Disk(scratch / "vstate") as disk:
            repo = Repository(disk)
            return {BLAME: seconds(lambda: repo.blame_items("HEAD", "messages"))}

    yield {"vstate": once}


def walk(directory: Path) -> None:
    """Read all commits of the history, and keep none."""
    with Versioned(directory, branch="main") as state:
        deque(state.log(), maxlen=0)


@workload(
    Row(GO_BACK, "seconds", (Target(15e-6),)),
    Row(LOG, "seconds", (Target(25e-6),)),
    Row(LOG_PEAK, "bytes"),
    Row(MERGE_BASE, "seconds", (Target(0.1),)),
    Row(GC_LONG, "seconds", (Target(3.0),)),
    rounds=3,
)
def long_history(scratch: Path) -> Iterator[Sides]:
    directory = scratch / "vstate"
    # The store is made without a sync for each commit; the rows open it anew.
    with Disk(directory, durability="process") as disk, Versioned(disk, branch="main") as state:
        state.update(zip(map(key, range(100)), random_values(100, seed=48), strict=True))
        state.commit("first")
        with state.fork("side") as side:
            side["side"] = True
            side.commit("aside")
        for i in range(HISTORY):
            state[key(i % 100)] = i
            state.commit(f"step {i}")

    def on_fresh(look: Callable[[Versioned], object]) -> float:
        with Versioned(directory, branch="main") as fresh:
            return seconds(look, fresh)

    def bases(state: Versioned) -> list[object]:
        core = state.repo
        return list(core.history.merge_bases(core.resolve("main").oid, core.resolve("side").oid))

    def collect() -> float:
        with Disk(directory) as disk:
            return seconds(Repository(disk).gc)

    yield {
        "vstate": lambda: {
            GO_BACK: on_fresh(lambda state: state.checkout(f"HEAD~{BACK}")) / BACK,
            LOG: on_fresh(lambda state: deque(state.log(limit=LOGGED), maxlen=0)) / LOGGED,
            LOG_PEAK: peak_growth(walk, directory),
            MERGE_BASE: on_fresh(bases),
            GC_LONG: collect(),
        }
    }
