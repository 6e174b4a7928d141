"""The figures of all sizes as JSON for programs, and as a table and a picture for a page."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import machine, versions
from benchmarks.report import figure
from benchmarks.scale.measure import OPERATIONS, Operation, Samples
from benchmarks.scale.picture import picture
from benchmarks.scale.threads import CHECKPOINTS

Report = Mapping[str, Any]


def report_of(found: Mapping[str, Mapping[int, Samples]], file_system: str) -> Report:
    """The samples of each kind of store at each size, as medians, with their ratios to the first size."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(file_system),
        "versions": versions(),
        "checkpoints": CHECKPOINTS,
        "stores": [
            {
                "name": name,
                "sizes": [*samples],
                "rows": [_row(operation, [*samples.values()]) for operation in OPERATIONS],
            }
            for name, samples in found.items()
        ],
    }


def _row(operation: Operation, samples: Sequence[Samples]) -> dict[str, Any]:
    medians = [statistics.median(found[operation.name]) for found in samples]
    ratios = [median / medians[0] for median in medians]
    return {
        "name": operation.name,
        "unit": operation.unit,
        "samples": [len(found[operation.name]) for found in samples],
        "medians": medians,
        "ratios": ratios,
        "at_most": operation.at_most,
        "holds": max(ratios) <= operation.at_most,
    }


def tables(report: Report) -> str:
    """For each kind of store a table in Markdown, and the number of goals that hold."""
    return "\n\n".join(map(_table, report["stores"]))


def _table(store: Mapping[str, Any]) -> str:
    head = " | ".join(f"{size:,}" for size in store["sizes"])
    lines = [f"| {store['name']} | {head} | goal | reached |", f"|---|{'--:|' * len(store['sizes'])}---|---|"]
    for row in store["rows"]:
        cells = [figure(median, row["unit"]) for median in row["medians"]]
        missed = "" if row["holds"] else " **missed**"
        cells += [f"≤ {row['at_most']:g} x", f"{max(row['ratios']):.2f} x{missed}"]
        lines.append(f"| {row['name']} | {' | '.join(cells)} |")
    met = sum(row["holds"] for row in store["rows"])
    return "\n".join([*lines, "", f"{met} of {len(store['rows'])} goals hold on {store['name']}."])


def picture_of(report: Report) -> str:
    """The times of the first kind of store as SVG."""
    store = report["stores"][0]
    lines = {row["name"]: row["medians"] for row in store["rows"] if row["unit"] == "seconds"}
    return picture(store["sizes"], lines)


def put_into(page: Path, mark: str, tables: str) -> None:
    """Replace the text between `<!-- mark -->` and `<!-- /mark -->` of the page."""
    text = page.read_text(encoding="utf-8")
    begin, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    before, found, rest = text.partition(begin)
    _, also_found, after = rest.partition(end)
    if not (found and also_found):
        raise ValueError(f"{page} has no {begin} … {end}")
    page.write_text(f"{before}{begin}\n\n{tables}\n\n{end}{after}", "utf-8")
