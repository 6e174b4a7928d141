"""Small changes of large values: a 100 MB array, a DataFrame of 100 MB, a dict of 100,000 items."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy
import pandas
from blake3 import blake3

from benchmarks.harness import Row, Sides, Target, median_seconds, seconds, workload
from benchmarks.stores import OPEN, Start, Stores
from benchmarks.subjects import Floor, MeteredDisk, open_kvgit, open_vstate, size_of

MEGABYTE = 1_000_000
COMMITS = 5

ARRAY_TIME = "a 100 MB array, one element changed: commit on disk"
ARRAY_BYTES = "a 100 MB array, one element changed: bytes added"


def large_array() -> Any:
    """12.5 million random float64, 100 MB."""
    return numpy.random.default_rng(9).random(100 * MEGABYTE // 8)


def bytes_added(
    start: Start,
    directory: Path,
    value: Any,
    edit: Callable[[Any], Any],
    commits: int = 1,
) -> float:
    """The bytes that a commit of an edited value adds to a store, which is reopened before each edit.

    `edit` gets the value that was read and returns its replacement, perhaps the same object. The result is
    the mean of several `commits`: a file grows by pages, and a small commit may fit into a page that exists.
    """
    subject = start(directory)
    subject.mapping["value"] = value
    subject.commit()
    subject.close()
    before = size_of(directory)
    for _ in range(commits):
        subject = start(directory)
        subject.mapping["value"] = edit(subject.mapping["value"])
        subject.commit()
        subject.close()
    return (size_of(directory) - before) / commits


@workload(Row(ARRAY_TIME, "seconds", (Target(0.25, side="kvgit"), Target(4.0, side="floor"))))
def change_an_array(scratch: Path) -> Iterator[Sides]:
    floor, disk = Floor(scratch / "floor.db"), MeteredDisk(scratch / "vstate")
    array = large_array()
    subjects = {"vstate": open_vstate(disk=disk), "kvgit": open_kvgit(scratch / "kvgit")}
    arrays = {side: array.copy() for side in subjects}
    for side, subject in subjects.items():
        subject.mapping["array"] = arrays[side]
        subject.commit()
    # The floor writes as much beforehand: overwriting a log is faster than making it grow.
    floor.write(floor.rows(disk.written))
    turns = count(1)

    def change(side: str) -> dict[str, float]:
        subject, array = subjects[side], arrays[side]

        def once(i: int) -> None:
            array[(next(turns) * 7_919_333) % len(array)] += 1
            if side == "kvgit":
                # vstate finds the edit by itself. kvgit needs the assignment.
                subject.mapping["array"] = array
            subject.commit()

        return {ARRAY_TIME: median_seconds(once, COMMITS)}

    def on_floor() -> dict[str, float]:
        rows = [floor.rows(disk.written) for _ in range(COMMITS)]

        def hash_and_write(i: int) -> None:
            blake3(array.data.cast("B")).digest()
            floor.write(rows[i])

        return {ARRAY_TIME: median_seconds(hash_and_write, COMMITS)}

    yield {"vstate": lambda: change("vstate"), "kvgit": lambda: change("kvgit"), "floor": on_floor}
    for subject in subjects.values():
        subject.close()
    floor.close()


@workload(Row(ARRAY_BYTES, "bytes", (Target(1 * MEGABYTE),)), rounds=0)
def grow_by_an_array(scratch: Path) -> Iterator[Sides]:
    def edit(array: Any) -> Any:
        array[7_919_333] += 1
        return array

    def once(start: Start, directory: Path) -> dict[str, float]:
        return {ARRAY_BYTES: bytes_added(start, directory, large_array(), edit)}

    yield Stores(scratch).rounds(once)


FRAME_APPEND = "a DataFrame of 100 MB by pd.concat, one row appended: bytes added"
FRAME_INSERT = "a DataFrame of 100 MB by pd.concat, one row inserted: bytes added"


def frame(rows: int, seed: int) -> Any:
    """Eight columns of float64, one of int64 and one of datetime64: 80 bytes a row."""
    generator = numpy.random.default_rng(seed)
    columns: dict[str, Any] = {f"measure {i}": generator.random(rows) for i in range(8)}
    columns["count"] = generator.integers(0, 1000, rows)
    columns["time"] = numpy.datetime64("2024-01-01", "ns") + generator.integers(0, 10**15, rows)
    return pandas.DataFrame(columns)


def large_frame() -> Any:
    """100 MB, concatenated from ten pieces."""
    return pandas.concat([frame(100 * MEGABYTE // 80 // 10, seed) for seed in range(10)], ignore_index=True)


def append_row(table: Any) -> Any:
    return pandas.concat([table, frame(1, 100)], ignore_index=True)


def insert_row(table: Any) -> Any:
    middle = len(table) // 2
    return pandas.concat([table.iloc[:middle], frame(1, 101), table.iloc[middle:]], ignore_index=True)


@workload(
    Row(FRAME_APPEND, "bytes", (Target(2 * MEGABYTE),)),
    Row(FRAME_INSERT, "bytes", (Target(2 * MEGABYTE),)),
    rounds=0,
)
def grow_by_a_row(scratch: Path) -> Iterator[Sides]:
    def once(start: Start, directory: Path) -> dict[str, float]:
        return {
            FRAME_APPEND: bytes_added(start, directory / "append", large_frame(), append_row),
            FRAME_INSERT: bytes_added(start, directory / "insert", large_frame(), insert_row),
        }

    yield Stores(scratch).rounds(once)


DICT_BYTES = "a dict of 100,000 small items, one changed: bytes added"


@workload(Row(DICT_BYTES, "bytes", (Target(40_000),)), rounds=0)
def grow_by_an_item(scratch: Path) -> Iterator[Sides]:
    generator = random.Random(10)

    def edit(items: dict[str, Any]) -> dict[str, Any]:
        items[f"item {generator.randrange(100_000)}"] = {"score": generator.random(), "note": "changed"}
        return items

    def items() -> dict[str, Any]:
        return {f"item {i}": {"score": i / 7, "note": f"note {i * i}"} for i in range(100_000)}

    def once(start: Start, directory: Path) -> dict[str, float]:
        return {DICT_BYTES: bytes_added(start, directory, items(), edit, commits=20)}

    yield Stores(scratch).rounds(once)


READ_ONLY = "commit another key after only reading the 100 MB array"


@workload(Row(READ_ONLY, "seconds", (Target(2.0, side="floor"),)), rounds=3)
def commit_beside_an_array(scratch: Path) -> Iterator[Sides]:
    array, turns = large_array(), count()
    for side, start in OPEN.items():
        subject = start(scratch / side)
        subject.mapping["array"] = array
        subject.commit()
        subject.close()

    def run(start: Start, directory: Path) -> dict[str, float]:
        samples = []
        for _ in range(COMMITS):
            subject = start(directory)
            # The program still holds the array, so it could have edited it.
            read = subject.mapping["array"]
            read.sum()
            subject.mapping["other"] = next(turns)
            samples.append(seconds(subject.commit))
            subject.close()
        return {READ_ONLY: statistics.median(samples)}

    def on_floor() -> dict[str, float]:
        return {READ_ONLY: median_seconds(lambda i: blake3(array.data.cast("B")).digest(), COMMITS)}

    yield {
        "vstate": lambda: run(open_vstate, scratch / "vstate"),
        "kvgit": lambda: run(open_kvgit, scratch / "kvgit"),
        "floor": on_floor,
    }
