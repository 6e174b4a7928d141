"""How long the tests are: short in the test command, long where the environment sets VSTATE_SOAK."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

SOAK = bool(os.environ.get("VSTATE_SOAK"))
LONGEST = 6 * 3600 if SOAK else 580
"""Seconds for one test; the long variants need hours where the test command needs seconds."""

HERE = Path(__file__).parent


def sized(short: T, long: T) -> T:
    """`short` in the test command, `long` in a soak."""
    return long if SOAK else short


def run_script(script: str, *arguments: object, **environment: str) -> Any:
    """Run a script of this directory in a process of its own; what it prints, as JSON.

    A process of its own has one thread, and so may fork.
    """
    root = HERE.parent.parent
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, str(HERE / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **environment},
        timeout=LONGEST,
    )
    assert done.returncode == 0, f"{script} {arguments}: {done.stderr[-6000:]}"
    return json.loads(done.stdout)
