"""docs/agents.md: every example runs as it stands, and prints what its comments say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TOP = Path(__file__).parent.parent
PAGE = TOP / "docs" / "agents.md"

BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"^ *print\(.*\) +# (.+)$", re.MULTILINE)
COMMAND = re.compile(r"^\$ vstate (.+)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
SECTION = re.compile(r"^(## .+)$", re.MULTILINE)


def sections() -> dict[str, list[tuple[str, str]]]:
    """The blocks of each section, by its title: their language and their text."""
    _, *parts = SECTION.split(PAGE.read_text(encoding="utf-8"))
    return {
        title.removeprefix("## "): BLOCK.findall(text)
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


def run(directory: Path, *command: str) -> str:
    places = [str(TOP), str(TOP / "cli"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=directory,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places)), "COLUMNS": "160"},
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def without_chance(output: str) -> str:
    """The output without what is another each time: ids, times, how long pickles are, spaces at the end of lines."""
    output = re.sub(r"\b[0-9a-f]{10}\b", "ID", output)
    output = re.sub(r"\b\d+ B\b", "SIZE", output)
    output = re.sub(r"datetime\.datetime\([^)]*\)", "TIME", output)
    return "\n".join(line.rstrip() for line in output.strip().splitlines())


@pytest.mark.parametrize("title", sections())
def test_the_examples_of_a_section(title: str, tmp_path: Path) -> None:
    """Each program of a section runs in a directory that was empty, prints what it says, and the command shows it."""
    blocks = sections()[title]
    assert any(language == "python" for language, _ in blocks)
    for number, (language, text) in enumerate(blocks):
        if language == "python":
            program = tmp_path / f"example_{number}.py"
            program.write_text(text, encoding="utf-8")
            printed = run(tmp_path, "-W", "error", str(program)).splitlines()
            promised = [line.rstrip() for line in PRINTED.findall(text)]
            assert [line for line in printed if line in promised] == promised, printed
        else:
            commands = COMMAND.findall(text)
            assert commands
            for command, shown in commands:
                output = run(tmp_path, "-m", "vstate_cli", *command.split())
                assert without_chance(output) == without_chance(shown), output
