"""The examples and commands of docs/integrations.md, with agents and models that follow a script."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from page import Commands, Example, examples, lines
from vstate_cli.app import cli

PRINTED = re.compile(r"^ *print\(.*\) +# (.+)$", re.MULTILINE)


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
