"""The machine and the packages that figures were measured with."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import vstate

PACKAGES = (
    "kvgit",
    "doltlite",
    "prollytree",
    "langgraph-checkpoint-postgres",
    "langgraph-checkpoint-sqlite",
    "openai-agents",
    "msgpack",
    "cloudpickle",
    "blake3",
    "pyfastcdc",
    "zstandard",
    "diskcache",
    "numpy",
    "pandas",
)


def machine(file_system: str) -> dict[str, Any]:
    """The machine, with the file system of the stores."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": sys.version.split()[0],
        "sqlite": sqlite3.sqlite_version,
        "file_system": file_system,
    }


def versions() -> dict[str, str]:
    """The versions of vstate, and of the packages that are installed."""
    found = {"vstate": vstate.__version__}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def file_system(directory: Path) -> str:
    """The type of the directory's file system on Linux; "unknown" elsewhere."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return "unknown"
    inside = [mount for mount in mounts if directory.resolve().is_relative_to(mount[1])]
    return max(inside, key=lambda mount: len(mount[1]))[2] if inside else "unknown"
