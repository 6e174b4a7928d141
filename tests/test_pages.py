"""The pages: lines end at 110, links lead somewhere, and the programs of README and tutorial run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent
PAGES = [*sorted(TOP.glob("*.md")), *sorted((TOP / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|console)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def blocks(page: str, language: str) -> list[str]:
    return [text for found, text in BLOCK.findall((TOP / page).read_text("utf-8")) if found == language]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = HEADING.findall(BLOCK.sub("", page.read_text("utf-8")))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def run(directory: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(TOP), str(TOP / "cli")))}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_of_prose_end_at_110(page: Path) -> None:
    """Tables, code and the generated reference may have longer lines."""
    prose = BLOCK.sub("", page.read_text("utf-8")).splitlines()
    long = [line for line in prose if len(line) > 110 and not line.startswith("|")]
    assert page.name == "cli.md" or not long


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    """A relative link names a file that is there, and a heading of it."""
    for target in LINK.findall(BLOCK.sub("", page.read_text("utf-8"))):
        if not target.startswith("https://"):
            name, _, anchor = target.partition("#")
            there = page.parent / name if name else page
            assert there.exists(), target
            assert not anchor or anchor in anchors(there), target


def test_the_program_of_the_readme(tmp_path: Path) -> None:
    """It prints the lines that its comments promise."""
    (tmp_path / "program.py").write_text(blocks("README.md", "python")[0], "utf-8")
    assert run(tmp_path, "-W", "error", "program.py").splitlines() == [
        "~ steps: 3 -> 4",
        "{'goal': 'greet', 'steps': 3}",
        "{'goal': 'say goodbye', 'steps': 3}",
    ]


def test_the_programs_and_commands_of_the_tutorial(tmp_path: Path) -> None:
    """Each block runs where the page has it; the interactive blocks are one program."""
    page = (TOP / "docs" / "tutorial.md").read_text("utf-8")
    (_, agent), *others = [block for block in BLOCK.findall(page) if block[0]]
    (tmp_path / "agent.py").write_text(agent, "utf-8")
    for _ in range(2):
        assert "goal='learn vstate'" in run(tmp_path, "agent.py")
    command = "subprocess.run({!r}, shell=True, check=True)\n"
    session = [
        text
        if language == "python"
        else "".join(
            command.format(f"{sys.executable} -m vstate_cli {line.removeprefix('$ vstate ')}")
            for line in text.splitlines()
        )
        for language, text in others
    ]
    (tmp_path / "session.py").write_text("import subprocess\n" + "\n".join(session), "utf-8")
    printed = run(tmp_path, "session.py")
    assert "pay 50\nwork\n" in printed
    assert "The first bad commit is" in printed
