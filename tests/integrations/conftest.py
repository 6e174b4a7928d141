"""The examples of docs/integrations.md run as they stand, with agents and models that follow a script."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
PART = re.compile(r"^#{2,3} ([^\n]+)$|^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"^ *print\(.*\) +# (.+)$", re.MULTILINE)

Example = Callable[..., dict[str, Any]]


def examples() -> dict[str, list[str]]:
    """The programs under each heading of the page."""
    found: dict[str, list[str]] = {}
    title = ""
    for heading, program in PART.findall(PAGE.read_text("utf-8")):
        title = heading or title
        if program:
            found.setdefault(title, []).append(program)
    return found


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Example:
    """Run the example with this number under a heading, in `tmp_path`, with names that it takes for given.

    It prints the lines that its comments promise. The result has its names.
    """
    monkeypatch.chdir(tmp_path)

    def run(title: str, number: int = 0, **names: Any) -> dict[str, Any]:
        program = examples()[title][number]
        exec(compile(program, f"{title} {number}", "exec"), names)
        promised = PRINTED.findall(program)
        assert [line for line in capsys.readouterr().out.splitlines() if line in promised] == promised
        return names

    return run
