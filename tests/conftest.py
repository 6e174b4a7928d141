"""Settings and fixtures of all tests: Hypothesis without clocks or luck, processes, a clean repository."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from running import RunPython

from vstate import UncommittedWarning
from vstate.repo import core, graph

pytest_plugins = ["servers", "agent_stores"]

settings.register_profile(
    "vstate",
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("vstate")

ROOT = Path(__file__).parent.parent

# Some modules hold states until the process ends, and all filters of pytest have ended by then.
atexit.register(warnings.simplefilter, "ignore", UncommittedWarning)

# By chance, one commit in 256 writes a row of the commit graph, and a read of it looks for one. That would
# change the calls of a store from run to run, which many tests count.
RANKS, graph._RANKS = graph._RANKS, (0, 0, 0)

# The modules of the tests, and the frameworks that they import, stay until the end. No garbage collection
# looks at their million objects: it is off while they are imported, and passes over them later.
gc.disable()

# A shell starts background processes with Ctrl-C ignored. Tests that interrupt a process need it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def untracked_files() -> set[str]:
    """The files of the repository that git neither tracks nor ignores; none where there is no git."""
    command = ["git", "ls-files", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return set()
    return set(filter(None, listed.split("\0")))


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    """Fail a run that leaves new files in the repository."""
    gc.freeze()
    gc.enable()
    if hasattr(session.config, "workerinput"):  # a worker of pytest-xdist; the main process checks for all
        return (yield)
    before = untracked_files()
    result = yield
    if left := untracked_files() - before:
        pytest.exit(f"the tests left files in the repository: {', '.join(sorted(left))}", returncode=1)
    return result


@pytest.fixture(scope="session")
def pandas() -> Any:
    """The module pandas. Only the workers that test with it import it, which takes a second."""
    return pytest.importorskip("pandas", reason="pandas is not installed")


@pytest.fixture(scope="session")
def run_python() -> RunPython:
    """Run a script in another process and return its output. The test fails if it ends with another code."""

    def run(
        script: str | Path, *arguments: object, seed: int = 0, path: Path | None = None, code: int = 0
    ) -> str:
        command = [sys.executable, "-c", script] if isinstance(script, str) else [sys.executable, str(script)]
        places = [str(ROOT), str(path) if path else "", os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONHASHSEED": str(seed),
            "PYTHONPATH": os.pathsep.join(filter(None, places)),
        }
        done = subprocess.run(
            [*command, *map(str, arguments)], capture_output=True, text=True, env=environment, timeout=300
        )
        assert done.returncode == code, done.stderr[-4000:]
        return done.stdout

    return run


@pytest.fixture
def commit_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write and read the commit graph, as programs do. See `RANKS`."""
    monkeypatch.setattr(graph, "_RANKS", RANKS)
    monkeypatch.setattr(core, "_SEGMENT_SECONDS", 60.0)  # on a busy machine, too
