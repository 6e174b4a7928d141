"""The Pythons of this machine: the quick tests on each, and values that each writes and each reads.

`python tests/pythons.py TEST…` makes a venv of each Python in `build/pythons`, and runs these tests in it.
Then each stores the kinds of `tests/zoo`, and each reads all the stores. It ends with 1 after a failure.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "pythons"
PACKAGES = (
    *(f"{ROOT}[agents,crypto,postgres,redis,testing,view]", "attrs", "hypothesis", "jsonschema", "msgspec"),
    *("numpy", "opentelemetry-sdk", "pandas", "pytest-timeout", "pytest-xdist", "time-machine"),
)
JOURNEY = ROOT / "tests" / "zoo" / "journey.py"
KINDS = ("standard", "numpy", "pandas", "pydantic", "msgspec")
OF_ONE_PYTHON = ("lambda x: x + 1",)
"""Kinds whose code only the Python that wrote it can run."""


def installed() -> dict[str, str]:
    """The interpreters that vstate runs on, by minor version: on the path, and those of pyenv."""
    found = {f"3.{sys.version_info.minor}": sys.executable}
    root = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    for version in (f"3.{minor}" for minor in range(11, 15)):
        named = shutil.which(f"python{version}")
        for path in (*map(str, sorted(root.glob(f"{version}.*/bin/python"))), *([named] if named else ())):
            # A program of this name may only tell where the interpreter is.
            runs = subprocess.run([path, "--version"], capture_output=True).returncode == 0
            if version not in found and runs:
                found[version] = path
    return dict(sorted(found.items()))


def with_packages(version: str, python: str) -> str:
    """The interpreter of a venv with vstate and the packages of its quick tests."""
    place = BUILD / version
    inside = str(place / "bin" / "python")
    if not Path(inside).exists():
        subprocess.run([python, "-m", "venv", place], check=True)
    pip = [inside, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    subprocess.run([*pip, "--editable", *PACKAGES], check=True)
    return inside


def faults(writer: str, reader: str, pythons: dict[str, str]) -> list[str]:
    """The faults of values that one Python wrote, when another reads, merges, compares and edits them."""
    store, copy = BUILD / "stores" / writer, BUILD / "stores" / f"{writer} in {reader}"
    shutil.copytree(store, copy)
    command = [pythons[reader], JOURNEY, "read", copy, *KINDS]
    done = subprocess.run(command, capture_output=True, text=True, cwd=JOURNEY.parent)
    if done.returncode:
        return [f"{writer} in {reader}: {done.stderr[-2000:]}"]
    return [
        f"{writer} in {reader}: {source}: {step}: {fault}"
        for source, steps in json.loads(done.stdout).items()
        for step, fault in steps.items()
        if fault and (writer == reader or source not in OF_ONE_PYTHON)
    ]


def main(tests: list[str]) -> int:
    """Run the tests and the matrix on each Python."""
    pythons = {version: with_packages(version, python) for version, python in installed().items()}
    failed = [
        version
        for version, python in pythons.items()
        if subprocess.run([python, "-m", "pytest", "-q", "-m", "not slow", *tests], cwd=ROOT).returncode
    ]
    shutil.rmtree(BUILD / "stores", ignore_errors=True)
    for version, python in pythons.items():
        command = [python, JOURNEY, "write", BUILD / "stores" / version, *KINDS]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=JOURNEY.parent)
    found = [fault for one in pythons for other in pythons for fault in faults(one, other, pythons)]
    print(*found, sep="\n")
    print(
        f"{', '.join(pythons)}: tests failed on {', '.join(failed) or 'none'}; {len(found)} faults of values"
    )
    return 1 if failed or found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
