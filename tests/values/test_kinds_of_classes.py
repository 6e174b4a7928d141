"""Each kind of class of `__main__`: one process stores an object, and others read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kinds_of_classes import KINDS

SCRIPT = Path(__file__).with_name("kinds_of_classes.py")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """By process: the result of each use."""
    return {}


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_it_is_read_by_other_processes(name: str, results: Any, run_python: Any, tmp_path: Path) -> None:
    """An object works in a program that lacks its class, and is of the class of one that has it; reading an
    object makes no commit.
    """
    if not results:
        for role in (("write",), ("read",), ("read", "here")):
            results[role] = json.loads(run_python(SCRIPT, tmp_path / "store", *role))
    written, without, having = (results[role][name] for role in results)
    if written.startswith("needs "):
        pytest.skip(written)
    assert (without, having) == (written, written)
