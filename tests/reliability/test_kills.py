"""SIGKILL at random moments: every acknowledged commit is there and right."""

from __future__ import annotations

from pathlib import Path

import pytest
from kills import OPERATIONS, seen_enough
from scripts import LONGEST, Record, run_script
from soak import sized

KILLS = sized(15, 1250)
"""For each of nine operations."""

pytestmark = pytest.mark.timeout(LONGEST)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_kills(operation: str, tmp_path: Path, record: Record) -> None:
    """A process is killed at random moments of an operation, again and again.

    No acknowledged commit is lost or damaged.
    """
    result = run_script("kills.py", operation, KILLS, 7, tmp_path)
    assert result["kills"] >= KILLS
    assert result["acknowledged"] > KILLS
    assert seen_enough(result["where"], KILLS), result["where"]
    record(**result.pop("where"), **result)
