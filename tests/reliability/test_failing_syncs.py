"""A disk that says it could not write: every fsync of a script fails in turn."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from preload import compiled
from scripts import LONGEST, run_script
from soak import sized

COMMITS = sized(30, 50)
"""With forks at 3, 23 and 43, and a gc after each 20."""
HOW = ["once", "ever", "dies"]
ERRORS = sized(["EIO"], ["EIO", "ENOSPC"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.timeout(LONGEST)
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("how", HOW)
def test_each_sync_fails(
    how: str, error: str, tmp_path: Path, fast_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Whichever fsync or fdatasync fails, nothing is acknowledged that a power cut could still take away.

    It fails once, or all do from then on, or the process dies of it and another goes on. Among 30 commits, and with
    VSTATE_SOAK set among 50.
    """
    environment = compiled("faulty_disk.c", tmp_path)
    result = run_script("failing_syncs.py", COMMITS, error, how, fast_path, **environment)
    assert result["syncs"] > COMMITS
    assert sum(result["errors"].values()) > COMMITS / 2
    assert result["cuts"] > result["syncs"]
    for name in ("syncs", "cuts", "without an error"):
        record_property(name, result[name])
    for name, count in result["errors"].items():
        record_property(name, count)
