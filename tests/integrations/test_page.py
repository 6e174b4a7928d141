"""The page of the adapters: a test of each framework runs its examples."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "integrations.md"


def test_each_example_is_run_by_a_test() -> None:
    """A test calls `example` for each program under each heading of the page."""
    programs: list[tuple[str, str]] = []
    heading = ""
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line == "```python":
            number = sum(title == heading for title, _ in programs)
            programs.append((heading, str(number or "")))
    tests = "".join(path.read_text("utf-8") for path in HERE.glob("test_*.py"))
    assert set(re.findall(r'\bexample\("([^"]+)"(?:, (\d+))?', tests)) == set(programs)


def test_the_commands_of_each_section_are_run_by_a_test() -> None:
    """A test calls `commands` for each heading with lines `$ vstate …`."""
    headings = set()
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("$ vstate"):
            headings.add(heading)
    tests = "".join(path.read_text("utf-8") for path in HERE.glob("test_*.py"))
    assert set(re.findall(r'\bcommands\("([^"]+)"\)', tests)) == headings
