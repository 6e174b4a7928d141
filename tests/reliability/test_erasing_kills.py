"""SIGKILL at each step of `erase`: nothing is half erased."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from scripts import LONGEST, Record, run_script
from soak import sized

KILLS = sized(40, 4000)

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.timeout(LONGEST),
]


def test_kills_of_erase(fast_path: Path, record: Record) -> None:
    """A process that erases a key is killed at each of its steps: all refs of a room are old, or all new.

    The same call, made again, finishes, and leaves no byte of the erased values in any file.
    """
    result = run_script("erasing.py", KILLS, 7, fast_path)
    assert result["killed"] > KILLS // 2
    assert {"old and old", "new and old", "new and new"} <= result.keys(), result
    record(**result)
