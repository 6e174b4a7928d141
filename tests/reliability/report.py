"""Run the reliability tests and print their figures: `make reliability`.

With VSTATE_SOAK set, it runs the long variants. `--page docs/reliability.md` also puts the table into that
page. Further arguments go to pytest. PYTHONPATH has to hold the directory `tests`.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts import HERE
from soak import SOAK

MARKS = ("<!-- soak -->", "<!-- /soak -->") if SOAK else ("<!-- figures -->", "<!-- /figures -->")


@dataclass
class Outcome:
    """The outcome of a test function, over all its variants. The figures are sums."""

    passed: int = 0
    failed: int = 0
    skipped: set[str] = field(default_factory=set)
    figures: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        if self.failed:
            return f"**failed**: {self.failed} of {self.failed + self.passed}"
        parts = [f"{name}: {number:,.{2 * (number % 1 > 0)}f}" for name, number in self.figures.items()]
        if self.skipped:
            parts.append(f"skipped: {'; '.join(sorted(self.skipped))}")
        return ", ".join(parts)


def outcomes(file: Path) -> dict[str, Outcome]:
    """The results of pytest, by `module.py::function`."""
    found: dict[str, Outcome] = defaultdict(Outcome)
    for case in ElementTree.parse(file).iter("testcase"):
        module = case.get("classname", "").rpartition(".")[2]
        outcome = found[f"{module}.py::{case.get('name', '').partition('[')[0]}"]
        if (skipped := case.find("skipped")) is not None:
            outcome.skipped.add(skipped.get("message", ""))
        elif case.find("failure") is not None or case.find("error") is not None:
            outcome.failed += 1
        else:
            outcome.passed += 1
        for figure in case.iter("property"):
            outcome.figures[figure.get("name", "")] += float(figure.get("value", "0"))
    return found


def promises() -> Iterator[tuple[str, str]]:
    """The tests of this directory, and the first paragraph of their docstrings."""
    for file in sorted(HERE.glob("test_*.py")):
        for each in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(each, ast.FunctionDef) and each.name.startswith("test_"):
                promise = (ast.get_docstring(each) or "").partition("\n\n")[0]
                yield f"{file.name}::{each.name}", " ".join(promise.split())


def table(found: dict[str, Outcome]) -> str:
    """The tests that have figures, in Markdown."""
    lines = ["| test | it must hold that | measured |", "|---|---|---|"]
    for test, promise in promises():
        if test in found and (text := str(found[test])):
            module, _, function = test.partition("::")
            lines.append(f"| `{module}`: `{function}` | {promise} | {text} |")
    return "\n".join(lines)


def put_into(page: Path, text: str) -> None:
    """Replace the text between the two marks of the page."""
    before, mark, rest = page.read_text(encoding="utf-8").partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not mark or not end:
        raise ValueError(f"{page} has no {MARKS[0]} … {MARKS[1]}")
    page.write_text(f"{before}{mark}\n\n{text}\n\n{end}{after}", encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Run the reliability tests and print their figures.")
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="also put the table into this Markdown page"
    )
    options, others = parser.parse_known_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "results.xml"
        junit = f"--junitxml={file}", "-o", "junit_family=xunit1"
        command = [sys.executable, "-m", "pytest", str(HERE), *junit, "-q", *others]
        status = subprocess.run(command, cwd=HERE.parent.parent).returncode
        if not file.exists():
            return status
        text = table(outcomes(file))
    seconds = time.monotonic() - began
    print(f"\n{text}\n\n{'Soak' if SOAK else 'Test command'}: {seconds:.0f} s on {os.cpu_count()} cores")
    if options.page is not None:
        put_into(options.page, text)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
