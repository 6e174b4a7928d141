"""The time of `import vstate`."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Row, Sides, Target, workload

IMPORT = "import vstate"
# The packages that `import vstate` may import. click and rich belong to the command.
DEPENDENCIES = "msgpack, cloudpickle, blake3, pyfastcdc, zstandard"
PROCESSES = 5

_TIMED = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"


def import_seconds(modules: str, bytecode: Path) -> float:
    """Seconds to import the modules in a new interpreter that keeps compiled modules in `bytecode`."""
    command = [sys.executable, "-c", _TIMED.format(modules)]
    # pip compiles a package when it installs it. A checkout may not be compiled, or not be writable.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(bytecode.resolve())
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return float(done.stdout)


# The floor imports the packages that vstate uses.
@workload(Row(IMPORT, "seconds", (Target(0.120), Target(1.5, side="floor"))))
def import_vstate(scratch: Path) -> Iterator[Sides]:
    def median_import(modules: str) -> dict[str, float]:
        return {IMPORT: statistics.median(import_seconds(modules, scratch) for _ in range(PROCESSES))}

    yield {
        "vstate": lambda: median_import("vstate"),
        "kvgit": lambda: median_import("kvgit"),
        "floor": lambda: median_import(DEPENDENCIES),
    }
