"""SIGKILL at random moments: every acknowledged commit is there and right."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from kills import OPERATIONS, seen_enough
from scripts import LONGEST, run_script
from soak import sized

KILLS = sized(25, 1250)
"""For each of nine operations."""

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.timeout(LONGEST),
]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_kills(operation: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """A process is killed at random moments of an operation, again and again.

    No acknowledged commit is lost or damaged.
    """
    result = run_script("kills.py", operation, KILLS, 7, tmp_path)
    assert result["kills"] >= KILLS
    assert result["acknowledged"] > KILLS
    assert seen_enough(result["where"], KILLS), result["where"]
    record_property("kills", result["kills"])
    record_property("acknowledged", result["acknowledged"])
    for place, count in result["where"].items():
        record_property(place, count)
