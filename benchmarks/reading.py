"""All of a store is read: 10,000 dicts by a program that opens it."""

from __future__ import annotations

import functools
import gc
import pickle
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from blake3 import blake3

from benchmarks.harness import Row, Sides, Target, seconds, workload
from benchmarks.memory import peak_growth
from benchmarks.stores import Start, Stores
from benchmarks.subjects import Subject, open_vstate
from benchmarks.values import KEYS, key, messages, small_dict

READ_ALL = "open a store and read all of 10,000 small dicts, disk"
READ_SNAPSHOT = "read all of 10,000 small dicts through a snapshot, disk"
READ_PEAK = "read each of 10,000 small dicts and keep none: peak memory"
TEXT = 100
"""Characters of text in a dict. Its pickle is too long for a leaf of the tree, so each dict is an object."""


@functools.cache
def records() -> dict[str, dict[str, object]]:
    """10,000 small dicts, of some 200 bytes each."""
    texts = islice(messages(seed=41, length=TEXT), KEYS)
    return {key(i): {**small_dict(i), **text} for i, text in enumerate(texts)}


def pass_over(directory: Path) -> None:
    """Open the store and read each value once; keep none."""
    subject = open_vstate(directory)
    for _ in subject.mapping.values():
        pass
    subject.close()


def pass_over_rows(file: Path) -> None:
    """The floor: read each row, hash and unpickle it."""
    with closing(sqlite3.connect(file)) as connection:
        for _, digest, data in connection.execute("SELECT key, digest, value FROM kv"):
            assert blake3(data).digest() == digest
            pickle.loads(data)


def store_records(start: Start, directory: Path) -> None:
    subject = start(directory)
    subject.mapping.update(records())
    subject.commit()
    subject.close()


def timed(start: Start, directory: Path, snapshot: bool) -> float:
    """The seconds to open the store and read all of it."""
    subjects: list[Subject] = []
    found: dict[str, Any] = {}

    def read() -> None:
        subjects.append(start(directory))
        mapping: Mapping[str, Any] = subjects[0].mapping
        found.update((subjects[0].at(subjects[0].head()) if snapshot else mapping).items())

    gc.collect()  # the garbage of the sample before is not of this one
    sample = seconds(read)
    assert found == records()
    subjects[0].close()
    return sample


def read_once(start: Start, directory: Path) -> dict[str, float]:
    samples = {READ_ALL: timed(start, directory, False)}
    if directory.name != "prollytree":
        samples[READ_SNAPSHOT] = timed(start, directory, True)
    if start is open_vstate:
        samples[READ_PEAK] = peak_growth(pass_over, directory)
    return samples


@workload(
    Row(READ_ALL, "seconds", (Target(0.4, side="kvgit"), Target(3.0, side="floor"))),
    Row(READ_SNAPSHOT, "seconds", (Target(0.4, side="kvgit"), Target(3.0, side="floor"))),
    Row(READ_PEAK, "bytes"),
)
def read_all(scratch: Path) -> Iterator[Sides]:
    file = scratch / "floor.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE kv (key TEXT PRIMARY KEY, digest BLOB, value BLOB)")
        pickles = ((name, pickle.dumps(value, protocol=5)) for name, value in records().items())
        rows = [(name, blake3(data).digest(), data) for name, data in pickles]
        connection.executemany("INSERT INTO kv VALUES (?, ?, ?)", rows)

    def select() -> dict[str, Any]:
        found = {}
        with closing(sqlite3.connect(file)) as connection:
            for name, digest, data in connection.execute("SELECT key, digest, value FROM kv"):
                assert blake3(data).digest() == digest
                found[name] = pickle.loads(data)
        return found

    def on_floor() -> dict[str, float]:
        sample = seconds(select)
        return {READ_ALL: sample, READ_SNAPSHOT: sample, READ_PEAK: peak_growth(pass_over_rows, file)}

    with Stores(scratch, "doltlite", "prollytree") as stores:
        stores.each(store_records)
        yield {**stores.rounds(read_once), "floor": on_floor}
