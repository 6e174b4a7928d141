"""The example docs/examples/openai_agent.py, as a reader of the docs runs it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("agents", reason="openai-agents is not installed: pip install vstate[openai-agents]")

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "openai_agent.py"


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
    """A killed turn goes on at its tool, a fork has the turns before, and the command shows both."""
    store = tmp_path / "chats"
    assert run(store, "tea", "--crash-at", 2, code=-signal.SIGKILL) == ["search: tea", "check: tea"]
    assert run(store, "tea") == ["check: tea", "Tea comes from one plant."]
    assert run(store, "coffee")[2:] == ["Coffee comes from two plants."]
    other = (store, "water", "--branch", "other")
    assert run(*other, "--fork", 2, "--crash-at", 1, code=-signal.SIGKILL) == ["search: water"]
    assert run(*other) == ["search: water", "check: water", "Nobody knows."]
    log = vstate(store, "log", "openai/ann/main", "--oneline").splitlines()
    assert len(log) == 10
    assert [line.split(maxsplit=1)[1] for line in log[1:5]] == [
        "add assistant  ~1",
        "add function_call, function_call_output  ~1",
        "add function_call, function_call_output  ~1",
        "add user  ~1",
    ]
    diff = vstate(store, "diff", "openai/ann/main", "openai/ann/other")
    assert "+ [6].item: {'content': 'water', 'role': 'user'}" in diff
    assert "one plant" not in diff
    blame = vstate(store, "blame", "items/000000000000", "[9].item.output", "--rev", "openai/ann/main")
    assert blame.startswith(log[3].split()[0])
    assert "Coffee comes" in blame
