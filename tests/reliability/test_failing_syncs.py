"""A disk that fails to write: every fsync of a script fails in turn."""

from __future__ import annotations

from pathlib import Path

import pytest
from preload import compiled
from scripts import LONGEST, Record, run_script
from soak import sized

COMMITS = sized(10, 50)
"""With forks at 3, 11 and so on, and a gc after every eighth."""
HOW = ["once", "ever", "dies"]
ERRORS = sized(["EIO"], ["EIO", "ENOSPC"])


@pytest.mark.timeout(LONGEST)
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("how", HOW)
def test_each_sync_fails(how: str, error: str, tmp_path: Path, fast_path: Path, record: Record) -> None:
    """If any fsync or fdatasync fails, no commit is acknowledged that a power cut could still take away.

    It fails once, or all later ones fail too, or the process dies and another continues. 10 commits, or 50
    with VSTATE_SOAK set.
    """
    environment = compiled("faulty_disk.c", tmp_path)
    result = run_script("failing_syncs.py", COMMITS, error, how, fast_path, **environment)
    assert result["syncs"] > COMMITS
    assert sum(result["errors"].values()) > COMMITS / 2
    assert result["cuts"] > result["syncs"]
    record(**result.pop("errors"), **result)
