"""Run a script of this directory in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from soak import sized

LONGEST = sized(580, 6 * 3600)
"""Seconds for one test."""

Record = Callable[..., None]
"""The type of the fixture `record`: it notes figures, by their names."""

HERE = Path(__file__).parent


def run_script(script: str, *arguments: object, **environment: str) -> Any:
    """Run a script of this directory and return its output, parsed as JSON.

    The new process has a single thread, so the script may fork.
    """
    root = HERE.parent.parent
    path = os.pathsep.join(filter(None, [str(root), str(HERE.parent), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, str(HERE / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **environment},
        timeout=LONGEST,
    )
    assert done.returncode == 0, f"{script} {arguments}: {done.stderr[-6000:]}"
    return json.loads(done.stdout)


def gc_figures(done: dict[str, int]) -> dict[str, int]:
    """What to tell of the actions of `beside_gc.py`."""
    commits = sum(done.get(name, 0) for name in ("commit", "count", "what_if", "rollback"))
    return {"gc": done["gc"], "objects removed": done.get("objects removed", 0), "commits": commits}
