"""The command `python -m benchmarks`."""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

from rich.console import Console

from benchmarks import (
    agents,
    arrays,
    chat,
    chat_server,
    files,
    history,
    keys,
    langgraph_threads,
    large,
    openai_sessions,
    postgres_threads,
    reading,
    report,
    runs,
    servers,
    startup,
    upkeep,
)
from benchmarks.harness import WORKLOADS, Result, Workload, run
from benchmarks.machine import file_system
from benchmarks.peers import missing
from benchmarks.stores import PEERS

RESULTS = Path(__file__).parent / "results.json"
IN_MEMORY = {"tmpfs", "ramfs"}
# In the order of the report. Importing these modules registered their workloads.
MODULES = [
    module.__name__
    for module in (
        keys,
        reading,
        history,
        chat,
        arrays,
        large,
        files,
        runs,
        upkeep,
        agents,
        langgraph_threads,
        chat_server,
        openai_sessions,
        postgres_threads,
        servers,
        startup,
    )
]


def chosen(pattern: str) -> list[Workload]:
    """The workloads with a matching row, and the workloads that their targets compare with."""
    names = {row.name for work in WORKLOADS for row in work.rows if re.search(pattern, row.name)}
    names |= {name for work in WORKLOADS if names & {row.name for row in work.rows} for name in work.needs}
    works = sorted(WORKLOADS, key=lambda work: MODULES.index(work.sides.__module__))
    return [work for work in works if names & {row.name for row in work.rows}]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure vstate, other stores and the floor."
    )
    parser.add_argument("--rows", default="", metavar="REGEX", help="only rows whose name matches")
    parser.add_argument(
        "--repeat", type=int, default=5, metavar="N", help="rounds after the warm-up (5); slow work has fewer"
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help=f"write the figures to FILE ({RESULTS}; with --rows, results.json in the scratch directory), "
        "where the other rows stay as they are",
    )
    parser.add_argument(
        "--scratch", type=Path, default=Path("build/benchmarks"), metavar="DIR", help="make the stores in DIR"
    )
    parser.add_argument(
        "--page",
        type=Path,
        metavar="FILE",
        action="append",
        default=[],
        help="also put the figures into this Markdown page; may be repeated",
    )
    parser.add_argument(
        "--measured", action="store_true", help="measure nothing: write the pages from the file of --json"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the rows and exit")
    options = parser.parse_args()
    options.scratch = options.scratch.absolute()  # servers have a working directory of their own
    if options.rows and options.page:
        parser.error("a page shows all rows: leave out --rows or --page")
    options.json = options.json or (options.scratch / "results.json" if options.rows else RESULTS)
    if options.repeat < 1:
        parser.error("--repeat is 1 or more")
    works = chosen(options.rows)
    if not works:
        parser.error(f"no row matches {options.rows!r}; --list shows them")
    if options.list:
        for work in works:
            print("\n".join(row.name for row in work.rows))
        return

    if options.measured:
        if not options.page:
            parser.error("--measured writes pages: name one with --page")
        for page in options.page:
            report.put_into(page, report.read(options.json))
        return

    options.scratch.mkdir(parents=True, exist_ok=True)
    kind = file_system(options.scratch)
    if kind in IN_MEMORY:
        print(
            f"{options.scratch} is in memory ({kind}), so writing there never waits for a disk; "
            "choose a directory on a disk with --scratch",
            file=sys.stderr,
        )
    console = Console(width=None if sys.stdout.isatty() else 160)
    for peer in PEERS:
        if reason := missing(peer):
            console.print(f"{peer} is not measured: {reason}")
    results: dict[str, Result] = {}
    for number, work in enumerate(works, 1):
        start = time.perf_counter()
        with console.status(f"{number} of {len(works)}: {work.rows[0].name}"):
            results.update((result.row.name, result) for result in run(work, options.scratch, options.repeat))
        done = f"{number:3} of {len(works)}  {time.perf_counter() - start:6.1f} s"
        console.print("\n".join(f"{done}  {row.name}" for row in work.rows), style="dim", highlight=False)
    if options.rows and options.json.exists():  # the other rows stay as they are
        results = report.read(options.json) | results
    report.write(results, report.Run(options.repeat, kind), options.json, console)
    for page in options.page:
        report.put_into(page, results)


if __name__ == "__main__":
    main()
