"""The command `python -m benchmarks.scale`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.machine import file_system
from benchmarks.memory import apart
from benchmarks.scale.measure import BYTES, Samples, measure, threads
from benchmarks.scale.report import picture_of, put_into, report_of, tables
from benchmarks.scale.stores import STORES, Stores
from benchmarks.scale.threads import fill

SIZES = "1000,10000,100000,1000000"
RESULTS = Path(__file__).parent.parent / "scale.json"


def measured(
    stores: Stores, sizes: Sequence[int], samples: int, turns: int, console: Console
) -> dict[int, Samples]:
    """Fill a store with so many threads for each size, and measure them in so many turns.

    So other work on the machine slows all sizes alike.
    """
    found: dict[int, dict[str, list[float]]] = {}
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        for size in sizes:
            start = time.perf_counter()
            task = progress.add_task(f"{stores.name}, {size:,} threads", total=size)
            with stores.made(size) as store:
                for done in fill(store, threads(samples), size):
                    progress.update(task, completed=done)
            found[size] = {BYTES.name: [stores.bytes_of(size) / size]}
            times = f"written in {time.perf_counter() - start:.0f} s"
            console.print(f"{stores.name}, {size:9,} threads {times}", style="dim", highlight=False)
        task = progress.add_task(f"{stores.name}, measuring", total=turns * len(sizes))
        for turn, size in product(range(turns), sizes):
            some = apart(measure, stores.address(size), samples, slice(turn, None, turns), stores.clock)
            for name, values in some.items():
                found[size].setdefault(name, []).extend(values)
            progress.advance(task)
    return dict(found)


def read_options() -> argparse.Namespace:
    """The options of the command. Exits with an error if they ask for what cannot be measured."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description="Measure what operations cost with many threads."
    )
    parser.add_argument("--sizes", default=SIZES, metavar="N,N", help=f"numbers of threads ({SIZES})")
    parser.add_argument("--stores", default=",".join(STORES), metavar="NAME,NAME", help="disk,postgres")
    parser.add_argument("--samples", type=int, default=36, metavar="N", help="samples of each operation (36)")
    parser.add_argument("--turns", type=int, default=12, metavar="N", help="turns that each size has (12)")
    parser.add_argument("--json", type=Path, metavar="FILE", default=RESULTS, help=f"({RESULTS})")
    parser.add_argument("--page", type=Path, metavar="FILE", help="also put the tables into this page")
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", help="also draw the first table into this SVG"
    )
    parser.add_argument(
        "--scratch", type=Path, default=Path("build/benchmarks"), metavar="DIR", help="make the stores in DIR"
    )
    options = parser.parse_args()
    options.sizes = sorted(map(int, options.sizes.split(",")))
    least = len(threads(options.samples).measured)
    if options.sizes[0] < least:
        parser.error(f"the least size is {least}: so many threads are measured")
    if others := set(options.stores.split(",")) - STORES.keys():
        parser.error(f"no store {min(others)!r}; there are: {', '.join(STORES)}")
    return options


def main() -> None:
    options = read_options()
    options.scratch.mkdir(parents=True, exist_ok=True)
    console = Console(width=None if sys.stdout.isatty() else 160)
    found: dict[str, dict[int, Samples]] = {}
    for name in options.stores.split(","):
        with (
            tempfile.TemporaryDirectory(dir=options.scratch) as place,
            closing(STORES[name](Path(place))) as stores,
        ):
            some = [size for size in options.sizes if size <= stores.most]
            found[stores.name] = measured(stores, some, options.samples, options.turns, console)
    report = report_of(found, file_system(options.scratch))
    console.print(tables(report), markup=False, highlight=False)
    options.json.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.page is not None:
        put_into(options.page, "scale", tables(report))
    if options.picture is not None:
        options.picture.write_text(picture_of(report), encoding="utf-8")


if __name__ == "__main__":
    main()
