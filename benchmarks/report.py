"""The figures as a table for people and as JSON for programs."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness import SIDES, WORKLOADS, Result, Side, Target, Unit
from benchmarks.machine import machine, versions


@dataclass(frozen=True)
class Run:
    """The conditions of the figures: rounds after the warm-up, and the file system of the stores."""

    rounds: int
    file_system: str


@dataclass(frozen=True)
class Verdict:
    """A target and the value that was reached: a ratio or the figure itself; None if not measured."""

    target: Target
    value: float | None

    @property
    def met(self) -> bool | None:
        return None if self.value is None else self.value <= self.target.at_most


def verdicts(result: Result, results: Mapping[str, Result]) -> list[Verdict]:
    """A verdict for each target of a row."""
    return [Verdict(target, _value(target, result, results)) for target in result.row.targets]


def _value(target: Target, result: Result, results: Mapping[str, Result]) -> float | None:
    own = result.median("vstate")
    if target.side is not None:
        other = result.median(target.side)
    elif target.row is not None:
        other = results[target.row].median("vstate") if target.row in results else None
    else:
        return own
    return own / other if own is not None and other else None


def _measured(results: Iterable[Result]) -> list[Side]:
    """The sides that have a figure in one of the rows: the columns of a table."""
    found = {side for result in results for side in result.samples}
    return [side for side in SIDES if side in found]


def table(results: Mapping[str, Result]) -> Table:
    """A line for each row: the medians, and each target beside the value that was reached."""
    lines = Table(title="medians", title_justify="left")
    lines.add_column("workload", ratio=1)
    sides = _measured(results.values())
    for side in sides:
        lines.add_column(side, justify="right", no_wrap=True)
    lines.add_column("target", no_wrap=True)
    lines.add_column("reached", justify="right", no_wrap=True)
    lines.add_column("", no_wrap=True)
    for result in results.values():
        unit, judged = result.row.unit, verdicts(result, results)
        lines.add_row(
            result.row.name,
            *(figure(result.median(side), unit) for side in sides),
            "\n".join(_describe(verdict.target, unit) for verdict in judged),
            "\n".join(_reached(verdict, unit) for verdict in judged),
            "\n".join(_word(verdict) for verdict in judged),
        )
    return lines


def figure(value: float | None, unit: Unit) -> str:
    """A figure as people read it, with its unit."""
    if value is None:
        return "–"
    if unit == "ratio":
        return f"{value:.2f}"
    if unit == "bytes":
        return f"{value / 1e6:.2f} MB" if value >= 1e6 else f"{value / 1e3:.1f} KB"
    for factor, name in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if value * factor >= 1 or name == "µs":
            return f"{value * factor:.3g} {name}" if value * factor < 1000 else f"{value * factor:.0f} {name}"
    raise AssertionError(unit)


def _describe(target: Target, unit: Unit) -> str:
    if target.side is not None:
        return f"≤ {target.at_most:g} x {target.side}"
    if target.row is not None:
        return f"≤ {target.at_most:g} x {_short(target.row)}"
    return f"≤ {figure(target.at_most, unit)}"


def _short(row: str) -> str:
    return row if len(row) <= 24 else f"{row[:23]}…"


def _reached(verdict: Verdict, unit: Unit) -> str:
    if verdict.value is None:
        return "not measured"
    if verdict.target.side is None and verdict.target.row is None:
        return figure(verdict.value, unit)
    return f"{verdict.value:.3g} x"


def _word(verdict: Verdict) -> str:
    return {True: "[green]met[/]", False: "[bold red]missed[/]", None: ""}[verdict.met]


_FIGURES = re.compile(r"(<!-- figures: (headlines|all) -->).*(<!-- /figures -->)", re.DOTALL)


def lines_of(rows: list[Result], results: Mapping[str, Result]) -> list[str]:
    """A table of the rows in Markdown."""
    sides = _measured(rows)
    head = [f"| workload | {' | '.join(sides)} | target | reached |", f"|---|{'--:|' * len(sides)}---|---|"]
    return head + [_line_of(row, sides, results) for row in rows]


def _line_of(result: Result, sides: list[Side], results: Mapping[str, Result]) -> str:
    unit, judged = result.row.unit, verdicts(result, results)
    cells = (
        result.row.name,
        *(figure(result.median(side), unit) for side in sides),
        "; ".join(_describe(verdict.target, unit) for verdict in judged) or "–",
        "; ".join(_reached(verdict, unit) + _missed(verdict) for verdict in judged) or "–",
    )
    return f"| {' | '.join(cells)} |"


def _missed(verdict: Verdict) -> str:
    return " **missed**" if verdict.met is False else ""


def put_into(page: Path, results: Mapping[str, Result]) -> None:
    """Replace the text between the two marks of the page by the table of headlines, or of all rows.

    The first mark says which: `<!-- figures: headlines -->` or `<!-- figures: all -->`.
    """
    text = page.read_text(encoding="utf-8")
    marks = _FIGURES.search(text)
    if marks is None:
        raise ValueError(
            f"{page} has no <!-- figures: headlines --> or <!-- figures: all --> … <!-- /figures -->"
        )
    begin, which, end = marks.groups()
    if which == "headlines":
        lines = headlines(results)
    else:
        judged = [verdict.met for result in results.values() for verdict in verdicts(result, results)]
        met, missed = judged.count(True), judged.count(False)
        count = f"In all {len(results)} rows, {met} targets are met and {missed} missed."
        lines = [*lines_of([*results.values()], results), "", count]
    body = "\n".join(lines)
    page.write_text(f"{text[: marks.start()]}{begin}\n\n{body}\n\n{end}{text[marks.end() :]}", "utf-8")


def headlines(results: Mapping[str, Result]) -> list[str]:
    """A table of the headlines in Markdown: bytes and the time of a step, vstate's and LangGraph's."""
    units: list[Unit] = ["bytes", "seconds"]
    found: dict[str, dict[Unit, Result]] = {}
    for result in results.values():
        if result.row.headline:
            found.setdefault(result.row.headline, {})[result.row.unit] = result
    lines = ["| in LangGraph | vstate: bytes | LangGraph's: bytes | vstate: a step | LangGraph's: a step |"]
    lines.append(f"|---|{'--:|' * 4}")
    for name, rows in found.items():
        cells = (figure(rows[unit].median(side), unit) for unit in units for side in ("vstate", "langgraph"))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def read(file: Path) -> dict[str, Result]:
    """The figures of a JSON file that `write` wrote, for the rows that are still measured."""
    rows = {row.name: row for work in WORKLOADS for row in work.rows}
    measured = json.loads(file.read_text(encoding="utf-8"))["rows"]
    return {one["name"]: Result(rows[one["name"]], one["samples"]) for one in measured if one["name"] in rows}


def as_json(results: Mapping[str, Result], run: Run) -> dict[str, Any]:
    """All figures; times in seconds and sizes in bytes."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(run.file_system),
        "versions": versions(),
        "rounds": run.rounds,
        "rows": [
            {
                "name": name,
                "unit": result.row.unit,
                "medians": {side: result.median(side) for side in result.samples},
                "samples": result.samples,
                "targets": [
                    {
                        "at_most": verdict.target.at_most,
                        "times": verdict.target.side or verdict.target.row,
                        "reached": verdict.value,
                        "met": verdict.met,
                    }
                    for verdict in verdicts(result, results)
                ],
            }
            for name, result in results.items()
        ],
    }


def write(results: Mapping[str, Result], run: Run, file: Path, console: Console) -> None:
    """Print the table, the missed targets and the summary, and write the JSON file."""
    console.print(table(results))
    judged = [(result.row, verdict) for result in results.values() for verdict in verdicts(result, results)]
    missed = [(row, verdict) for row, verdict in judged if verdict.met is False]
    for row, verdict in missed:
        line = (
            f"missed: {row.name}: {_reached(verdict, row.unit)}, target {_describe(verdict.target, row.unit)}"
        )
        console.print(line, markup=False, highlight=False)
    met = sum(verdict.met is True for _, verdict in judged)
    console.print(f"{met} targets met, {len(missed)} missed. Figures and samples are in {file}")
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(as_json(results, run), indent=1, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")
