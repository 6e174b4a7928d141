"""Any byte of a store's file damaged, one at a time: found, or harmless, and never a wrong value."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from scripts import LONGEST, run_script
from soak import sized

PARTS = 4
EVERY = sized(3, 1)
"""Every third byte, and so each place of SQLite's and of our own words of 4 and 8 bytes; in a soak each byte."""
MASKS = sized([0xFF], [0xFF, *(1 << bit for bit in range(8))])
"""All bits of a byte; in a soak each of them alone, too."""
REPAIRED = sized(16, 1)
"""Repair is tried on every sixteenth of these; in a soak on each."""

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.timeout(LONGEST),
]

Record = Callable[[str, object], None]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_byte_of_the_file(part: int, mask: int, fast_path: Path, record_property: Record) -> None:
    """Whichever byte is inverted: all is there and right, or reading raises, or fsck tells; and whatever it was, fsck
    looks at it and repairs it without making anything wrong. Every third byte, and with VSTATE_SOAK set every one."""
    first, step = part * EVERY, PARTS * EVERY
    result = run_script("flips.py", "vstate.db", first, step, mask, REPAIRED, fast_path)
    assert result["flipped"] == len(range(first, result["bytes"], step))
    assert result["outcomes"].keys() == {"read", "fsck", "harmless"}, result
    assert {"mended", "left"} <= result["repairs"].keys() <= {"mended", "left", "refused"}, result
    for name, count in [*result["outcomes"].items(), *result["repairs"].items()]:
        record_property(name, count)


def test_bytes_of_the_log(fast_path: Path, record_property: Record) -> None:
    """SQLite takes its log to end where it is damaged: an older state, all of it right, and never a mixture."""
    step = sized(101, 1)
    result = run_script("flips.py", "vstate.db-wal", 0, step, 0xFF, REPAIRED, fast_path)
    assert result["flipped"] == len(range(0, result["bytes"], step))
    assert result["outcomes"].keys() <= {"read", "fsck", "harmless", "older"}, result
    assert result["repairs"].keys() <= {"mended", "left", "refused"}, result
    for name, count in result["outcomes"].items():
        record_property(name, count)
