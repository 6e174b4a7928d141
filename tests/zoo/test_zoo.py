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


def missing(package: str) -> str:
    """Why the kinds of a package are left out, or ""."""
    if package not in USUAL and "VSTATE_ZOO" not in os.environ:
        return "make zoo runs it"
    needed = {"standard": [], "openai": ["openai", "httpx"]}.get(package, [package])
    absent = [MODULES.get(name, name) for name in needed if find_spec(name) is None]
    return f"{absent[0]} is not installed: make zoo installs it" if absent else ""


@pytest.fixture(scope="module")
def faults(run_python: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """The faults of each kind, after one process wrote values of all kinds, and another one read them."""
    store = tmp_path_factory.mktemp("zoo")
    found: dict[str, dict[str, str]] = {}
    for seed, mode in enumerate(("write", "read")):
        packages = [package for package in PACKAGES if not missing(package)]
        out = run_python(HERE / "journey.py", mode, store, *packages, seed=seed, path=HERE)
        for source, steps in json.loads(out).items():
            found.setdefault(source, {}).update({step: fault for step, fault in steps.items() if fault})
    return found


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_every_kind(package: str, faults: dict[str, dict[str, str]]) -> None:
    """Each kind commits or is refused by name. A fresh process reads it, and reading makes no change. Two
    handles that only read it merge. An edit in place is found, and nothing else changes.
    """
    if reason := missing(package):
        pytest.skip(reason)
    assert {kind.source: faults[kind.source] for kind in kinds() if kind.package == package} == {
        kind.source: {} for kind in kinds() if kind.package == package
    }


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
