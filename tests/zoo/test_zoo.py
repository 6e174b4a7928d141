"""What people keep: each kind in the table is stored and read by a fresh process, or refused by name."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from journey import same
from kinds_of_values import Kind, edit, kinds, make, usual, view

from vstate import Memory, Versioned

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


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in usual() if kind.edit], ids=lambda kind: kind.source[:60])
def test_an_edit_through_an_old_reference(kind: Kind) -> None:
    """The repr of a value that was set makes no commit. An edit of it after other commits makes one, which
    another handle reads.
    """
    store, expected = Memory(), make(kind)
    state = Versioned(store)
    state["v"] = value = make(kind)
    state.commit()
    state["other"] = 1
    state.commit()
    assert state["v"] is value
    repr(value)
    assert state.commit() is None
    edit(kind, value)
    edit(kind, expected)
    assert state.commit() is not None
    assert state.commit() is None
    assert same(view(kind, Versioned(store)["v"]), view(kind, expected))
