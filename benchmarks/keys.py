"""Many small keys: committing, opening and reading them."""

from __future__ import annotations

import functools
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, Sides, Target, median_seconds, seconds, workload
from benchmarks.stores import OPEN, Start, Stores
from benchmarks.subjects import Floor, MeteredDisk, Subject, open_kvgit, open_vstate
from benchmarks.values import KEYS, key, random_values, small_dict

COMMITS = 30
MANY_KEYS = 1_000_000
SAMPLE = 1_000

COMMIT_IN_MEMORY = "commit 1 changed key of 10,000, memory"
OPEN_AND_READ = "open a store and read one key, 10,000 keys"


Values = Callable[[int], Any]
"""The value of key number i. The call makes a new dict, so only the store refers to it."""


def fill(subject: Subject, values: Values | None = None) -> Subject:
    """Set 10,000 keys, to random values by default, and commit them."""
    values = values or random_values(KEYS).__getitem__
    for i in range(KEYS):
        subject.mapping[key(i)] = values(i)
    subject.commit()
    return subject


def random_round(turn: int) -> Values:
    """New random values for the commits of one round."""
    return random_values(COMMITS, seed=1000 + turn).__getitem__


def dict_round(turn: int) -> Values:
    """New small dicts for the commits of one round."""
    return lambda i: small_dict(KEYS + turn * COMMITS + i)


def commit_changes(
    subject: Subject, row: str, new: Callable[[int], Values] = random_round, commits: int = COMMITS
) -> Callable[[], dict[str, float]]:
    """A round: change one key and commit, many times. The sample is the median commit."""
    turns, generator = count(), random.Random(3)

    def one_round() -> dict[str, float]:
        values = new(next(turns))
        chosen = [key(generator.randrange(KEYS)) for _ in range(commits)]

        def change(i: int) -> None:
            subject.mapping[chosen[i]] = values(i)
            subject.commit()

        return {row: median_seconds(change, commits)}

    return one_round


@workload(Row(COMMIT_IN_MEMORY, "seconds", (Target(0.7, side="kvgit"),)))
def commit_in_memory(scratch: Path) -> Iterator[Sides]:
    yield {side: commit_changes(fill(start(None)), COMMIT_IN_MEMORY) for side, start in OPEN.items()}


COMMIT_ON_DISK = "commit 1 changed key of 10,000, disk"
SLOW_COMMITS = 3
"""Commits of prollytree in a round: each takes a few hundred milliseconds."""


@functools.cache
def _kept_open(start: Start, directory: Path) -> Callable[[], dict[str, float]]:
    commits = COMMITS if directory.name == "doltlite" else SLOW_COMMITS
    return commit_changes(fill(start(directory)), COMMIT_ON_DISK, commits=commits)


def commit_as_peer(start: Start, directory: Path) -> dict[str, float]:
    """A round of a peer, whose process keeps the store open for the next round."""
    return _kept_open(start, directory)()


@workload(Row(COMMIT_ON_DISK, "seconds", (Target(0.8, side="kvgit"), Target(2.5, side="floor"))))
def commit_on_disk(scratch: Path) -> Iterator[Sides]:
    disk, floor = MeteredDisk(scratch / "vstate"), Floor(scratch / "floor.db")
    vstate = fill(open_vstate(disk=disk))
    # The floor writes as much beforehand: overwriting a log is faster than making it grow.
    floor.write(floor.rows(disk.written))
    kvgit = fill(open_kvgit(scratch / "kvgit"))
    on_vstate = commit_changes(vstate, COMMIT_ON_DISK)

    def on_floor() -> dict[str, float]:
        rows = [floor.rows(disk.written) for _ in range(COMMITS)]
        return {COMMIT_ON_DISK: median_seconds(lambda i: floor.write(rows[i]), COMMITS)}

    with Stores(scratch, "doltlite", "prollytree") as stores:
        yield {
            "vstate": on_vstate,
            "kvgit": commit_changes(kvgit, COMMIT_ON_DISK),
            **stores.rounds_of_peers(commit_as_peer),
            "floor": on_floor,
        }
    vstate.close()
    kvgit.close()
    floor.close()


FIRST_IN_MEMORY = "first commit of 10,000 keys, memory"
FIRST_ON_DISK = "first commit of 10,000 keys, disk"


def first_commit(subject: Subject, values: list[bytes]) -> float:
    """Seconds to set and commit all keys of a new store."""
    start = time.perf_counter()
    for i, value in enumerate(values):
        subject.mapping[key(i)] = value
    subject.commit()
    return time.perf_counter() - start


@workload(Row(FIRST_IN_MEMORY, "seconds", (Target(0.25, side="kvgit"),)))
def first_commit_in_memory(scratch: Path) -> Iterator[Sides]:
    values = random_values(KEYS)
    yield {
        "vstate": lambda: {FIRST_IN_MEMORY: first_commit(open_vstate(), values)},
        "kvgit": lambda: {FIRST_IN_MEMORY: first_commit(open_kvgit(), values)},
    }


def first_commit_once(start: Start, directory: Path) -> dict[str, float]:
    """A round: the first commit of a new store."""
    directory.mkdir(exist_ok=True)
    subject = start(Path(tempfile.mkdtemp(dir=directory)) / "store")
    sample = first_commit(subject, random_values(KEYS))
    subject.close()
    return {FIRST_ON_DISK: sample}


@workload(Row(FIRST_ON_DISK, "seconds", (Target(0.25, side="kvgit"),)))
def first_commit_on_disk(scratch: Path) -> Iterator[Sides]:
    values, turns = random_values(KEYS), count()
    written: tuple[int, ...] = ()

    def on_vstate() -> dict[str, float]:
        nonlocal written
        disk = MeteredDisk(scratch / f"vstate-{next(turns)}")
        subject = open_vstate(disk=disk)
        sample = first_commit(subject, values)
        written = disk.written
        subject.close()
        return {FIRST_ON_DISK: sample}

    def on_floor() -> dict[str, float]:
        floor = Floor(scratch / f"floor-{next(turns)}.db")
        rows = floor.rows(written)
        sample = seconds(lambda: floor.write(rows))
        floor.close()
        return {FIRST_ON_DISK: sample}

    with Stores(scratch, "doltlite", "prollytree") as stores:
        yield {**stores.rounds(first_commit_once), "vstate": on_vstate, "floor": on_floor}


SMALL_DICTS = "10,000 keys of small dicts put there, commit 1 changed key, memory"
SMALL_DICTS_HELD = "10,000 keys of small dicts that the program holds too, commit 1 changed key, memory"


@workload(Row(SMALL_DICTS, "seconds", (Target(2.0, row=COMMIT_IN_MEMORY),)))
def small_dicts(scratch: Path) -> Iterator[Sides]:
    yield {
        side: commit_changes(fill(start(None), small_dict), SMALL_DICTS, dict_round)
        for side, start in OPEN.items()
    }


@workload(Row(SMALL_DICTS_HELD, "seconds"), rounds=2)
def small_dicts_held(scratch: Path) -> Iterator[Sides]:
    held = [small_dict(i) for i in range(KEYS)]
    yield {
        side: commit_changes(fill(start(None), held.__getitem__), SMALL_DICTS_HELD, dict_round)
        for side, start in OPEN.items()
    }


def open_and_read(start: Start, directory: Path, keys: int, times: int) -> float:
    """The median of opening the store and reading one key, without closing it."""
    generator, samples = random.Random(4), []
    for _ in range(times):
        wanted = key(generator.randrange(keys))
        begin = time.perf_counter()
        subject = start(directory)
        value = subject.mapping[wanted]
        samples.append(time.perf_counter() - begin)
        assert len(value) == 1024
        subject.close()
    return statistics.median(samples)


def fill_and_close(start: Start, directory: Path) -> None:
    fill(start(directory)).close()


def open_and_read_once(start: Start, directory: Path) -> dict[str, float]:
    return {OPEN_AND_READ: open_and_read(start, directory, KEYS, 10)}


@workload(Row(OPEN_AND_READ, "seconds", (Target(0.03, side="kvgit"),)))
def open_a_store(scratch: Path) -> Iterator[Sides]:
    with Stores(scratch, "doltlite", "prollytree") as stores:
        stores.each(fill_and_close)
        yield stores.rounds(open_and_read_once)


OPEN_MANY = "open a store and read one key, 1,000,000 keys"


@workload(Row(OPEN_MANY, "seconds", (Target(2.0, row=OPEN_AND_READ),)))
def open_a_large_store(scratch: Path) -> Iterator[Sides]:
    subject, batch = open_vstate(scratch / "vstate"), 50_000
    for start in range(0, MANY_KEYS, batch):
        # Each commit takes 50,000 keys, so memory holds the values of one commit at a time.
        for i, value in enumerate(random_values(batch, seed=start), start):
            subject.mapping[key(i)] = value
        subject.commit()
    subject.close()
    yield {"vstate": lambda: {OPEN_MANY: open_and_read(open_vstate, scratch / "vstate", MANY_KEYS, 10)}}


READ_FIRST = "read a key for the first time, of 10,000 on disk"
READ_AGAIN = "read a key again"


def read_twice(start: Start, directory: Path) -> dict[str, float]:
    """Read 1,000 keys of a store just opened, and read them again."""
    wanted = [key(i) for i in random.Random(5).sample(range(KEYS), SAMPLE)]
    subject = start(directory)

    def all_wanted() -> None:
        for name in wanted:
            subject.mapping[name]

    samples = {READ_FIRST: seconds(all_wanted) / SAMPLE, READ_AGAIN: seconds(all_wanted) / SAMPLE}
    subject.close()
    return samples


@workload(
    Row(READ_FIRST, "seconds", (Target(1.5, side="kvgit"),)),
    Row(READ_AGAIN, "seconds", (Target(1.0, side="kvgit"),)),
)
def read_keys(scratch: Path) -> Iterator[Sides]:
    with Stores(scratch, "doltlite", "prollytree") as stores:
        stores.each(fill_and_close)
        yield stores.rounds(read_twice)
