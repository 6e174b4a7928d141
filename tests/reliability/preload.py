"""C libraries that a test compiles and loads before the C library."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def compiled(source: str, directory: Path) -> dict[str, str]:
    """Compile a source of this directory and return the environment that preloads the library.

    Skips the test if no compiler works.
    """
    if not sys.platform.startswith("linux"):
        pytest.skip("LD_PRELOAD is tested on Linux only")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler (cc, gcc or clang) to build the library that makes fsync fail")
    library = directory / source.replace(".c", ".so")
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(HERE / source), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"{compiler} cannot build a shared library here: {done.stderr.strip()[-300:]}")
    return {"LD_PRELOAD": str(library)}
