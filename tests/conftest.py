"""What the tests share: Hypothesis without clocks or luck, and real Python processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from running import RunPython

pytest_plugins = ["redis_server", "postgres_server", "seaweed_server", "server_urls", "agent_stores"]

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

# What a shell starts in the background ignores Ctrl-C, and so would the processes that are to be interrupted.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def run_python() -> RunPython:
    """Run a script in another process and give back what it prints; it fails the test if it fails."""

    def run(script: str | Path, *arguments: object, seed: int = 0, path: Path | None = None) -> str:
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
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    return run
