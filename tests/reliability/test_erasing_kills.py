"""SIGKILL at each step of `erase`: nothing is half erased."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import LONGEST, Record, run_script
from servers import kind_of
from soak import sized

KILLS = sized(50, 4000)
KILLS_BESIDE_A_SERVER = {"redis": sized(8, 200), "postgres": sized(8, 200), "s3": sized(2, 200)}

pytestmark = pytest.mark.timeout(LONGEST)


@pytest.mark.slow
def test_kills_of_erase(fast_path: Path, record: Record) -> None:
    """A process that erases a key is killed at each of its steps: all refs of a room are old, or all new.

    The same call, made again, finishes, and leaves no byte of the erased values in any file.
    """
    result = run_script("erasing.py", KILLS, 7, fast_path)
    assert result["killed"] > KILLS // 2
    assert {"old and old", "new and old", "new and new"} <= result.keys(), result
    record(**result)


def test_kills_of_erase_beside_a_server(server_url: str, record: Record) -> None:
    """A process that erases a key on a server is killed at random moments: each ref is old or new.

    In Redis and PostgreSQL all refs of a room are. The same call, made again, finishes.
    """
    result = run_script("erasing.py", KILLS_BESIDE_A_SERVER[kind_of(server_url)], 7, server_url)
    assert result.get("killed")
    record(**result)
