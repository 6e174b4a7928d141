"""The coding agent of the examples: it is killed in the call that pays, and goes back with its files."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vstate import Disk, File, Versioned

pytestmark = pytest.mark.slow

AGENT = Path(__file__).parent.parent / "docs" / "examples" / "coding_agent.py"


def run(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(AGENT), *options]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=400, check=False)


def test_it_pays_once_and_rewinds_its_files(tmp_path: Path) -> None:
    """Killed after the payment, and begun anew twice, it has paid once, and the files are the second try."""
    killed = run(tmp_path, "--crash")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "its test says: AssertionError: 2.5\n" in done.stdout
    assert "went back to the start, where the files are ['test_cart.py']\n" in done.stdout
    assert done.stdout.endswith("its test says: ok\ndone; payments made: 1\n")
    assert run(tmp_path).stdout == "done; payments made: 1\n"
    with Disk(tmp_path / ".vstate") as store, Versioned(store) as state:
        first, second = (File((tmp_path / "project" / "cart.py").read_bytes()), state["files/cart.py"])
        assert first == second
        tries = [commit for commit in state.log() if commit.message == "a try"]
        assert [b"len" in state.checkout(each)["files/cart.py"].data for each in tries] == [False, True]
        assert "files/cart.py" not in state.checkout("start")
        assert [(run.id, run.steps) for run in state.runs()] == [("pay", 1)]
