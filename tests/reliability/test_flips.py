"""Damage to any single byte of a store's file is found or harmless, and never gives a wrong value."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import LONGEST, Record, run_script
from soak import sized

PARTS = 4
EVERY = sized(59, 1)
"""Every 59th byte covers each place of SQLite's words of 4 and 8 bytes, and of ours.

A soak takes each byte.
"""
MASKS = sized([0xFF], [0xFF, *(1 << bit for bit in range(8))])
"""All bits of a byte; in a soak also each bit alone."""
REPAIRED = sized(5, 1)
"""Repair runs on every fifth of these bytes; in a soak on each."""

pytestmark = pytest.mark.timeout(LONGEST)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_byte_of_the_file(part: int, mask: int, fast_path: Path, record: Record) -> None:
    """If a byte is inverted, all values are right, or reading raises, or fsck reports it.

    In each case fsck can check and repair the store, and makes no value wrong. Every 59th byte; with
    VSTATE_SOAK set each one.
    """
    first, step = part * EVERY, PARTS * EVERY
    result = run_script("flips.py", "vstate.db", first, step, mask, REPAIRED, fast_path)
    assert result["flipped"] == len(range(first, result["bytes"], step))
    assert result["outcomes"].keys() == {"read", "fsck", "harmless"}, result
    assert {"mended", "left"} <= result["repairs"].keys() <= {"mended", "left", "refused"}, result
    record(**result["outcomes"], **result["repairs"])


def test_bytes_of_the_log(fast_path: Path, record: Record) -> None:
    """SQLite ends its log at the damage, so the store has an older state, all of it right, and never a
    mixture.
    """
    step = sized(401, 1)
    result = run_script("flips.py", "vstate.db-wal", 0, step, 0xFF, REPAIRED, fast_path)
    assert result["flipped"] == len(range(0, result["bytes"], step))
    assert result["outcomes"].keys() <= {"read", "fsck", "harmless", "older"}, result
    assert result["repairs"].keys() <= {"mended", "left", "refused"}, result
    record(**result["outcomes"])
