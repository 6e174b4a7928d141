"""Long values: the first commit and the first read of 100 MB and more, in time and memory."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy
from blake3 import blake3

from benchmarks.arrays import MEGABYTE, large_array
from benchmarks.harness import Row, Sides, Target, seconds, workload
from benchmarks.memory import peak_growth
from benchmarks.stores import OPEN, Start, Stores
from benchmarks.subjects import Subject, open_kvgit, open_vstate
from vstate import Versioned

ARRAY_READ = "open a store and read a 100 MB array, disk"
ARRAY_READ_PEAK = "open a store and read a 100 MB array: peak memory"
ARRAY_FIRST = "first commit of a 100 MB array, disk"
ARRAY_FIRST_PEAK = "first commit of a 100 MB array: peak memory"
BYTES_READ = "open a store and read a bytearray of 1 GB, disk: each 100 MB"
BYTES_READ_PEAK = "open a store and read a bytearray of 1 GB: peak memory"
ARRAY = 100 * MEGABYTE
BYTEARRAY = 1_000 * MEGABYTE
BUFFER = 64 * MEGABYTE
PEAK = 2.2
"""The goal for the peak of memory, as a multiple of the value. The value itself counts."""


def read_value(directory: Path) -> None:
    """Open vstate's store, read its value, and close the store."""
    with Versioned(directory) as state:
        state["value"]


def commit_array(directory: Path) -> None:
    """Commit an array to a new store of vstate."""
    with Versioned(directory) as state:
        state["value"] = large_array()
        state.commit()


def load_and_hash(file: Path) -> None:
    """The floor of a read."""
    blake3(numpy.load(file).data.cast("B")).digest()


def save_and_sync(file: Path, array: Any) -> None:
    """The floor of a first commit."""
    with file.open("wb") as target:
        numpy.save(target, array)
        target.flush()
        os.fsync(target.fileno())


def save_array(file: Path) -> None:
    save_and_sync(file, large_array())


@workload(
    Row(ARRAY_READ, "seconds", (Target(2.0, side="floor"),)),
    Row(ARRAY_READ_PEAK, "bytes", (Target(PEAK * ARRAY),)),
    rounds=3,
)
def read_an_array(scratch: Path) -> Iterator[Sides]:
    array, file = large_array(), scratch / "floor.npy"
    save_and_sync(file, array)
    for side, start in OPEN.items():
        write(start(scratch / side), array)

    def once(start: Start, directory: Path) -> dict[str, float]:
        begin = time.perf_counter()
        subject = start(directory)
        found = subject.mapping["value"]
        samples = {ARRAY_READ: time.perf_counter() - begin}
        assert numpy.array_equal(found, array)
        subject.close()
        if start is open_vstate:
            samples[ARRAY_READ_PEAK] = peak_growth(read_value, directory)
        return samples

    def on_floor() -> dict[str, float]:
        peak = peak_growth(load_and_hash, file)
        return {ARRAY_READ: seconds(load_and_hash, file), ARRAY_READ_PEAK: peak}

    yield {**Stores(scratch).rounds(once), "floor": on_floor}


def write(subject: Subject, value: Any) -> float:
    """The seconds to set and commit the value in a new store, which is closed then."""
    begin = time.perf_counter()
    subject.mapping["value"] = value
    subject.commit()
    sample = time.perf_counter() - begin
    subject.close()
    return sample


@workload(
    Row(ARRAY_FIRST, "seconds", (Target(2.0, side="floor"),)),
    Row(ARRAY_FIRST_PEAK, "bytes"),
    rounds=3,
)
def commit_an_array(scratch: Path) -> Iterator[Sides]:
    array, turns = large_array(), count()

    def fresh() -> Path:
        """A new directory; the ones before are deleted, so the disk does not fill."""
        shutil.rmtree(scratch / "stores", ignore_errors=True)
        directory = scratch / "stores" / str(next(turns))
        directory.mkdir(parents=True)
        return directory

    def on_floor() -> dict[str, float]:
        sample = seconds(save_and_sync, fresh() / "array.npy", array)
        return {ARRAY_FIRST: sample, ARRAY_FIRST_PEAK: peak_growth(save_array, fresh() / "array.npy")}

    def on_vstate() -> dict[str, float]:
        sample = write(open_vstate(fresh()), array)
        return {ARRAY_FIRST: sample, ARRAY_FIRST_PEAK: peak_growth(commit_array, fresh())}

    yield {
        "vstate": on_vstate,
        "kvgit": lambda: {ARRAY_FIRST: write(open_kvgit(fresh()), array)},
        "floor": on_floor,
    }


def write_bytes(directory: Path, file: Path) -> None:
    """Commit the bytearray to a new store of vstate, and write its bytes to the file."""
    value = bytearray(numpy.random.default_rng(43).bytes(BYTEARRAY))
    write(open_vstate(directory), value)
    file.write_bytes(value)


def read_and_hash(file: Path) -> None:
    """The floor of reading a bytearray."""
    value = bytearray(file.stat().st_size)
    with file.open("rb", buffering=0) as source:
        for start in range(0, len(value), BUFFER):
            source.readinto(memoryview(value)[start : start + BUFFER])
    blake3(value).digest()


@workload(
    Row(BYTES_READ, "seconds", (Target(2.0, row=ARRAY_READ),)),
    Row(BYTES_READ_PEAK, "bytes", (Target(PEAK * BYTEARRAY),)),
    rounds=2,
)
def read_a_bytearray(scratch: Path) -> Iterator[Sides]:
    directory, file = scratch / "vstate", scratch / "floor"
    write_bytes(directory, file)

    def once(read: Callable[[Path], None], path: Path) -> dict[str, float]:
        sample = seconds(read, path) * ARRAY / BYTEARRAY
        return {BYTES_READ: sample, BYTES_READ_PEAK: peak_growth(read, path)}

    yield {"vstate": lambda: once(read_value, directory), "floor": lambda: once(read_and_hash, file)}
