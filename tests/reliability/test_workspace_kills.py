"""SIGKILL at the steps by which the files of a workspace move."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import LONGEST, Record, run_script
from soak import sized

pytestmark = pytest.mark.timeout(LONGEST)

FEWEST = 8
"""Steps of each verb."""


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["switch", "rollback", "reset", "merge", "commit"])
def test_a_kill_leaves_each_file_whole(verb: str, tmp_path: Path, record: Record) -> None:
    """Each file is old or new after a kill, no edit is lost, and the next call finishes."""
    result = run_script("workspace_kills.py", verb, sized(1, 10), 7, tmp_path)
    assert result["kills"] >= FEWEST
    record(**result)
