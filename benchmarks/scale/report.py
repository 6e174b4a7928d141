"""The figures of all sizes as JSON for programs, and as a table and a picture for a page."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import machine, versions
from benchmarks.report import figure
from benchmarks.scale.measure import OPERATIONS, Samples
from benchmarks.scale.threads import CHECKPOINTS

_MARKS = re.compile(r"(<!-- scale -->).*(<!-- /scale -->)", re.DOTALL)

Report = Mapping[str, Any]


def report_of(samples: Mapping[int, Samples], file_system: str) -> Report:
    """The medians of each operation at each size, their ratios to the first size, whether its goal holds."""
    rows = []
    for operation in OPERATIONS:
        medians = [statistics.median(found[operation.name]) for found in samples.values()]
        ratios = [median / medians[0] for median in medians]
        rows.append(
            {
                "name": operation.name,
                "unit": operation.unit,
                "samples": [len(found[operation.name]) for found in samples.values()],
                "medians": medians,
                "ratios": ratios,
                "at_most": operation.at_most,
                "holds": max(ratios) <= operation.at_most,
            }
        )
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(file_system),
        "versions": versions(),
        "checkpoints": CHECKPOINTS,
        "sizes": [*samples],
        "rows": rows,
    }


def table(report: Report) -> str:
    """A line for each operation in Markdown, and the number of goals that hold."""
    sizes: Sequence[int] = report["sizes"]
    head = f"| operation | {' | '.join(f'{size:,}' for size in sizes)} | goal | reached |"
    lines = [head, f"|---|{'--:|' * len(sizes)}---|---|"]
    for row in report["rows"]:
        cells = [figure(median, row["unit"]) for median in row["medians"]]
        missed = "" if row["holds"] else " **missed**"
        cells += [f"≤ {row['at_most']:g} x", f"{max(row['ratios']):.2f} x{missed}"]
        lines.append(f"| {row['name']} | {' | '.join(cells)} |")
    met = sum(row["holds"] for row in report["rows"])
    return "\n".join([*lines, "", f"{met} of {len(report['rows'])} goals hold."])


def put_into(page: Path, report: Report) -> None:
    """Replace the text between `<!-- scale -->` and `<!-- /scale -->` of the page by the table."""
    text = page.read_text(encoding="utf-8")
    made, count = _MARKS.subn(lambda marks: f"{marks[1]}\n\n{table(report)}\n\n{marks[2]}", text)
    if not count:
        raise ValueError(f"{page} has no <!-- scale --> … <!-- /scale -->")
    page.write_text(made, "utf-8")
