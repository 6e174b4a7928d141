"""The example agent, run as a user runs it: in other processes, some of which are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from running import dull_messages

from vstate import Disk, Versioned

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
AGENT = ROOT / "docs" / "examples" / "research_agent.py"
CALLS = 39


def run(store: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the agent once on `store`, with a random hash seed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    return subprocess.run(
        [sys.executable, str(AGENT), "--store", str(store), *options],
        capture_output=True,
        text=True,
        env=environment,
        timeout=400,
    )


def contents(store: Path, branch: str) -> dict[str, Any]:
    """Everything on a branch, with the plan as a dict: its class is in another program's `__main__`."""
    with Disk(store) as disk:
        state = Versioned(disk, branch=branch)
        return {key: vars(value) if key == "plan" else value for key, value in state.items()}


def commits(store: Path, branch: str = "main") -> list[str]:
    with Disk(store) as disk:
        return [commit.id for commit in Versioned(disk, branch=branch).log()]


def table(output: str) -> str:
    """The findings that a run printed."""
    _, head, rest = output.partition("module   ")
    return head + rest[: rest.index(" are documented.")]


def difference(store: Path) -> list[tuple[str, str]]:
    """The keys in which the two branches differ, each with the kind of its change."""
    with Disk(store) as disk:
        diff = Versioned(disk, branch="main").diff("main", "what-if")
        return [(change.kind, key) for key, change in diff.items()]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The store and the output of an undisturbed run."""
    store = tmp_path_factory.mktemp("uninterrupted") / "store"
    done = run(store)
    assert done.returncode == 0, done.stderr
    return store, done.stdout


def test_a_run_makes_one_commit_a_call(uninterrupted: tuple[Path, str]) -> None:
    """39 calls make 39 commits, and the state has the keys that the example names."""
    store, _ = uninterrupted
    assert len(commits(store)) == CALLS
    assert not dull_messages(store)
    state = contents(store, "main")
    assert state["plan"]["calls"] == CALLS
    assert state["plan"]["finished"]
    assert isinstance(state["seen"], set)
    assert len(state["messages"]) == CALLS - 1  # all calls but tabulate() add one
    assert sum(key.startswith("notes/") for key in state) == len(state["plan"]["read"]) == 30
    assert len(state["findings"]["modules"]) == 30


@pytest.mark.parametrize("call", [3, 39])
def test_a_killed_run_resumes_to_the_same_state(
    call: int, uninterrupted: tuple[Path, str], tmp_path: Path
) -> None:
    """A run that is killed in a call and started again ends like an undisturbed run."""
    store = tmp_path / "store"
    killed = run(store, "--crash-at", str(call))
    assert killed.returncode == -signal.SIGKILL
    before = commits(store)
    assert len(before) == call - 1

    resumed = run(store)
    assert resumed.returncode == 0, resumed.stderr
    after = commits(store)
    assert after[len(after) - len(before) :] == before
    assert len(after) == CALLS
    for branch in ("main", "what-if"):
        assert contents(store, branch) == contents(uninterrupted[0], branch)
    assert table(resumed.stdout) == table(uninterrupted[1])
    assert difference(store) == difference(uninterrupted[0])


def test_the_demo_fits_two_screens(tmp_path: Path) -> None:
    """`make demo` starts the agent, says that SIGKILL ended it, resumes it, forks it, and shows a change."""
    for name, module in (("python", ""), ("vstate", "-m vstate_cli ")):
        script = tmp_path / "bin" / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module}"$@"\n')
        script.chmod(0o755)
    places = [f"BIN={tmp_path / 'bin'}", f"DEMO={tmp_path / 'demo'}", f"PYTHON={sys.executable}"]
    done = subprocess.run(
        ["make", "--no-print-directory", "-o", ".venv/installed-runtime", "demo", *places],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}", "COLUMNS": "100"},
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) <= 60
    assert [line.partition(" ")[0] for line in lines if line.startswith(("$", "#"))] == ["#", "$"] * 6
    story = [
        "killed by SIGKILL",
        "22 calls are in .vstate",
        "Back to call 29",
        "differs from main",
        "policy:",
    ]
    assert [word for line in lines for word in story if word in line] == story
