"""The examples and commands of docs/integrations.md, with agents and models that follow a script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from vstate_cli.app import cli

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
PART = re.compile(r"^#{2,3} ([^\n]+)$|^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINE = re.compile(r"^#{2,3} (.+)$|^\$ vstate (.+)$", re.MULTILINE)
PRINTED = re.compile(r"^ *print\(.*\) +# (.+)$", re.MULTILINE)

Example = Callable[..., dict[str, Any]]
Commands = Callable[[str], list[str]]


def examples() -> dict[str, list[str]]:
    """The programs under each heading of the page."""
    found: dict[str, list[str]] = {}
    title = ""
    for heading, program in PART.findall(PAGE.read_text("utf-8")):
        title = heading or title
        if program:
            found.setdefault(title, []).append(program)
    return found


def lines() -> dict[str, list[str]]:
    """The lines `$ vstate …` under each heading of the page, but for imports, whose files are not there."""
    found: dict[str, list[str]] = {}
    title = ""
    for heading, line in LINE.findall(PAGE.read_text("utf-8")):
        title = heading or title
        if line and " import " not in line:
            found.setdefault(title, []).append(line)
    return found


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Run the commands under a heading of the page, in `tmp_path`: the text that each of them prints."""
    monkeypatch.chdir(tmp_path)

    def run(title: str) -> list[str]:
        printed = []
        for line in lines()[title]:
            result = CliRunner(env={"VSTATE_STORE": None}).invoke(cli, shlex.split(line, comments=True))
            assert (result.exit_code, result.stderr) == (0, ""), line
            assert result.stdout, line
            printed.append(result.stdout)
        return printed

    return run


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
