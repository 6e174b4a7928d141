"""Workloads, the rows that they fill, the targets of a row, and the loop that runs a workload."""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Unit = Literal["seconds", "bytes", "ratio"]
Side = Literal["vstate", "kvgit", "doltlite", "prollytree", "langgraph", "openai", "git", "floor"]
SIDES: tuple[Side, ...] = ("vstate", "kvgit", "doltlite", "prollytree", "langgraph", "openai", "git", "floor")

Sides = Mapping[Side, Callable[[], Mapping[str, float]]]
"""One round for each side. A round returns a sample for each row, by the row's name."""


@dataclass(frozen=True)
class Target:
    """A limit for vstate's figure: `at_most` times another figure, or `at_most` itself.

    The other figure is that of `side` in the same row, or vstate's in the row named `row`.
    """

    at_most: float
    side: Side | None = None
    row: str | None = None


@dataclass(frozen=True)
class Row:
    """One line of the report. A row without targets only informs.

    README has a line for each `headline`, with its rows beside those of LangGraph's own saver.
    """

    name: str
    unit: Unit
    targets: tuple[Target, ...] = ()
    headline: str = ""


@dataclass(frozen=True)
class Workload:
    """Work that fills one or more rows.

    `sides` prepares it in a directory and yields a round for each side. `rounds` limits the rounds after
    the warm-up. With 0 the warm-up itself is measured.
    """

    rows: tuple[Row, ...]
    sides: Callable[[Path], Iterator[Sides]]
    rounds: int | None

    @property
    def needs(self) -> set[str]:
        """The rows of other workloads that the targets refer to."""
        return {target.row for row in self.rows for target in row.targets if target.row is not None}


@dataclass
class Result:
    """A row and the samples of each side, in the row's unit."""

    row: Row
    samples: dict[Side, list[float]] = field(default_factory=dict)

    def median(self, side: Side) -> float | None:
        """The side's figure; None if the side was not measured."""
        return statistics.median(self.samples[side]) if side in self.samples else None


WORKLOADS: list[Workload] = []


def workload(
    *rows: Row, rounds: int | None = None
) -> Callable[[Callable[[Path], Iterator[Sides]]], Callable[[Path], Iterator[Sides]]]:
    """Register the decorated generator as the workload of these rows.

    Give `rounds=2` to slow work whose medians are stable. Give `rounds=0` to long work that counts bytes,
    because they are equal in every round.
    """

    def register(sides: Callable[[Path], Iterator[Sides]]) -> Callable[[Path], Iterator[Sides]]:
        WORKLOADS.append(Workload(rows, sides, rounds))
        return sides

    return register


def run(chosen: Workload, scratch: Path, repeat: int) -> list[Result]:
    """Run one workload, the sides in turn, and return its rows."""
    results = {row.name: Result(row) for row in chosen.rows}
    rounds = repeat if chosen.rounds is None else min(repeat, chosen.rounds)
    with tempfile.TemporaryDirectory(dir=scratch) as directory:
        with contextmanager(chosen.sides)(Path(directory)) as sides:
            for warm_up in [True] + [False] * rounds if rounds else [False]:
                for side, once_more in sides.items():
                    gc.collect()
                    for name, sample in once_more().items():
                        if not warm_up:
                            results[name].samples.setdefault(side, []).append(sample)
    return list(results.values())


def seconds(work: Callable[..., object], *arguments: object) -> float:
    """The seconds that one call takes."""
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


def processor_seconds(work: Callable[..., object], *arguments: object) -> float:
    """The processor time of one call, of all threads."""
    start = time.process_time()
    work(*arguments)
    return time.process_time() - start


def median_seconds(work: Callable[[int], object], times: int) -> float:
    """The median of the calls `work(0)`, `work(1)`, …"""
    return statistics.median(seconds(work, i) for i in range(times))
