"""What people keep: each kind in the table is stored and read by a fresh process, or refused by name."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from kinds_of_values import kinds

HERE = Path(__file__).parent
PACKAGES = list(dict.fromkeys(kind.package for kind in kinds()))
USUAL = ["standard", "numpy", "pandas", "pydantic"]
MODULES = {"sklearn": "scikit-learn", "PIL": "Pillow", "bs4": "beautifulsoup4"}


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_every_kind(package: str, run_python: Any, tmp_path: Path) -> None:
    """Each kind commits or is refused by name. A fresh process reads it, and reading makes no change. Two
    handles that only read it merge. An edit in place is found, and nothing else changes.
    """
    if package not in USUAL and "VSTATE_ZOO" not in os.environ:
        pytest.skip("make zoo runs it")
    if package != "standard" and find_spec(package) is None:
        pytest.skip(f"{MODULES.get(package, package)} is not installed: make zoo installs it")
    if package == "openai" and find_spec("httpx") is None:
        pytest.skip("httpx is not installed: make zoo installs it")
    faults: dict[str, dict[str, str]] = {}
    for seed, mode in enumerate(("write", "read")):
        out = run_python(HERE / "journey.py", mode, tmp_path / "store", package, seed=seed, path=HERE)
        for source, steps in json.loads(out).items():
            faults.setdefault(source, {}).update({step: fault for step, fault in steps.items() if fault})
    assert len(faults) == sum(kind.package == package for kind in kinds())
    assert {source: steps for source, steps in faults.items() if steps} == {}
