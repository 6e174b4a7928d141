"""The example docs/examples/langgraph_agent.py, as a reader of the docs runs it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("langgraph.graph", reason="langgraph is not installed: pip install langgraph")

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "langgraph_agent.py"


def run(*arguments: object, code: int = 0) -> list[str]:
    """The lines that the example prints."""
    done = subprocess.run([sys.executable, EXAMPLE, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stdout.splitlines()


def vstate(store: Path, *arguments: str) -> str:
    """The output of the command."""
    command = [sys.executable, "-m", "vstate_cli", "-s", store, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_the_agent_is_killed_resumed_forked_and_looked_at(tmp_path: Path) -> None:
    """A killed run goes on at its step, a fork has the steps before, and the command shows both."""
    store = tmp_path / "threads"
    assert run(store, "tea", "--die-in", "write", code=-signal.SIGKILL) == ["search: tea", "write: tea"]
    report = "On tea: Tea comes from one plant."
    assert run(store, "tea") == ["write: tea", "check: tea", report]
    forked = run(store, "coffee", "--fork", "tea")
    assert forked[:3] == ["search: coffee", "write: coffee", "check: coffee"]
    assert forked[3] == "On coffee: Tea comes from one plant. checked Coffee comes from two plants."
    log = vstate(store, "log", "threads/tea", "--oneline")
    assert "loop 3" in log
    assert "input -1" in log
    assert "Coffee comes from two plants." in vstate(store, "diff", "threads/tea", "threads/coffee")
    assert "Coffee" not in vstate(store, "show", "threads/tea", "journal/000000000000")
    assert "loop" in vstate(store, "blame", "journal/000000000000", "--rev", "threads/tea")
