"""What a benchmark is, and how it is run: workloads, the rows they fill, the targets of a row."""

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
Side = Literal["vstate", "kvgit", "langgraph", "floor"]
SIDES: tuple[Side, ...] = ("vstate", "kvgit", "langgraph", "floor")

Sides = Mapping[Side, Callable[[], Mapping[str, float]]]
"""One round on each side: it returns a sample for each row, by the row's name."""


@dataclass(frozen=True)
class Target:
    """vstate's figure is to be at most `at_most` times another one, or at most `at_most` itself.

    The other one is a side's in the same row, or vstate's in the row named `row`.
    """

    at_most: float
    side: Side | None = None
    row: str | None = None


@dataclass(frozen=True)
class Row:
    """One line of the report. A row without targets is for information."""

    name: str
    unit: Unit
    targets: tuple[Target, ...] = ()


@dataclass(frozen=True)
class Workload:
    """Work that fills one or more rows. `sides` prepares it in a directory, and yields a round for each side."""

    rows: tuple[Row, ...]
    sides: Callable[[Path], Iterator[Sides]]
    once: bool

    @property
    def needs(self) -> set[str]:
        """The rows of other workloads that the targets refer to."""
        return {target.row for row in self.rows for target in row.targets if target.row is not None}


@dataclass
class Result:
    """A row with what was measured: the samples of each side, in the row's unit."""

    row: Row
    samples: dict[Side, list[float]] = field(default_factory=dict)

    def median(self, side: Side) -> float | None:
        """The side's figure, None if it was not measured."""
        return statistics.median(self.samples[side]) if side in self.samples else None


WORKLOADS: list[Workload] = []


def workload(
    *rows: Row, once: bool = False
) -> Callable[[Callable[[Path], Iterator[Sides]]], Callable[[Path], Iterator[Sides]]]:
    """Register the decorated generator as the workload of these rows.

    `once` is for work that takes long and counts bytes, which are the same each time: no warm-up, one round.
    """

    def register(sides: Callable[[Path], Iterator[Sides]]) -> Callable[[Path], Iterator[Sides]]:
        WORKLOADS.append(Workload(rows, sides, once))
        return sides

    return register


def run(chosen: Workload, scratch: Path, repeat: int) -> list[Result]:
    """Run one workload, side by side in turn, and return its rows."""
    results = {row.name: Result(row) for row in chosen.rows}
    rounds = 1 if chosen.once else repeat
    with tempfile.TemporaryDirectory(dir=scratch) as directory:
        with contextmanager(chosen.sides)(Path(directory)) as sides:
            for warm_up in [False] if chosen.once else [True] + [False] * rounds:
                for side, once_more in sides.items():
                    gc.collect()
                    for name, sample in once_more().items():
                        if not warm_up:
                            results[name].samples.setdefault(side, []).append(sample)
    return list(results.values())


def seconds(work: Callable[..., object], *arguments: object) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


def median_seconds(work: Callable[[int], object], times: int) -> float:
    """The median of calling `work` with 0, 1, 2, …"""
    return statistics.median(seconds(work, i) for i in range(times))
