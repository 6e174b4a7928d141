"""The command `python -m benchmarks.scale`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.machine import file_system
from benchmarks.memory import apart
from benchmarks.scale.measure import BYTES, Samples, measure, threads
from benchmarks.scale.picture import picture
from benchmarks.scale.report import put_into, report_of, table
from benchmarks.scale.threads import fill
from benchmarks.subjects import size_of

TURNS = 3
SIZES = "1000,10000,100000,1000000"
RESULTS = Path(__file__).parent.parent / "scale.json"


def measured(scratch: Path, sizes: Sequence[int], samples: int, console: Console) -> dict[int, Samples]:
    """Fill a store with so many threads for each size, and measure them in turns.

    So other work on the machine slows all sizes alike.
    """
    found: dict[int, dict[str, list[float]]] = {}
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with (
        tempfile.TemporaryDirectory(dir=scratch) as place,
        Progress(*columns, console=console, transient=True) as progress,
    ):
        for size in sizes:
            start = time.perf_counter()
            task = progress.add_task(f"{size:,} threads", total=size)
            directory = Path(place) / str(size)
            for done in fill(directory, threads(samples), size):
                progress.update(task, completed=done)
            found[size] = {BYTES.name: [size_of(directory) / size]}
            console.print(f"{size:9,} threads written in {time.perf_counter() - start:.0f} s", style="dim")
        task = progress.add_task("measuring", total=TURNS * len(sizes))
        for turn, size in product(range(TURNS), sizes):
            some = apart(measure, Path(place) / str(size), samples, slice(turn, None, TURNS))
            for name, values in some.items():
                found[size].setdefault(name, []).extend(values)
            progress.advance(task)
    return dict(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description="Measure what operations cost with many threads."
    )
    parser.add_argument("--sizes", default=SIZES, metavar="N,N", help=f"numbers of threads ({SIZES})")
    parser.add_argument("--samples", type=int, default=36, metavar="N", help="samples of each operation (36)")
    parser.add_argument("--json", type=Path, metavar="FILE", default=RESULTS, help=f"({RESULTS})")
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="also put the table into this Markdown page"
    )
    parser.add_argument("--picture", type=Path, metavar="FILE", help="also draw the figures into this SVG")
    parser.add_argument(
        "--scratch", type=Path, default=Path("build/benchmarks"), metavar="DIR", help="make the stores in DIR"
    )
    options = parser.parse_args()
    sizes = sorted(map(int, options.sizes.split(",")))
    least = len(threads(options.samples).measured)
    if sizes[0] < least:
        parser.error(f"the least size is {least}: so many threads are measured")

    options.scratch.mkdir(parents=True, exist_ok=True)
    console = Console(width=None if sys.stdout.isatty() else 160)
    samples = measured(options.scratch, sizes, options.samples, console)
    report = report_of(samples, file_system(options.scratch))
    console.print(table(report), markup=False, highlight=False)
    options.json.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.page is not None:
        put_into(options.page, report)
    if options.picture is not None:
        lines = {row["name"]: row["medians"] for row in report["rows"] if row["unit"] == "seconds"}
        options.picture.write_text(picture(sizes, lines), encoding="utf-8")


if __name__ == "__main__":
    main()
