"""Many processes on one store: no increment is lost, no process starves, gc deletes no reachable object."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import LONGEST, Record, gc_figures, run_script
from soak import sized

PROCESSES = sized(4, 8)
COMMITS = sized(300, 20_000)
LEAST_SHARE = 0.1

SECONDS = sized(5, 1800)
SECONDS_IN_THREADS = sized(3, 300)
WRITERS = 3

pytestmark = pytest.mark.timeout(LONGEST)


def test_processes_that_count(tmp_path: Path, record: Record) -> None:
    """Processes that `apply` to one key lose no increment, and each has a share of the commits."""
    result = run_script("counters.py", PROCESSES, COMMITS, 10 * COMMITS, tmp_path)
    assert result["counter"] == result["commits"] >= PROCESSES * COMMITS
    assert result["share"] >= LEAST_SHARE, result
    record(commits=result["commits"], share=result["share"])


def test_writers_beside_gc(tmp_path: Path, record: Record) -> None:
    """While a process collects garbage all the time, others find all their writes, and no reference dangles
    at the end.

    For 5 s, or half an hour with VSTATE_SOAK set.
    """
    result = run_script("beside_gc.py", WRITERS, SECONDS, tmp_path)
    assert result["gc"] > 5
    assert result["objects removed"] > 0  # on a machine with much other work few come together
    assert result["import"] > 1
    assert result["fsck"] > 1
    record(seconds=SECONDS, **gc_figures(result))


def test_writers_beside_gc_without_transactions(record: Record) -> None:
    """The same with threads, on a store that cannot keep writers out: gc moves garbage to the trash first."""
    result = run_script("beside_gc.py", WRITERS, SECONDS_IN_THREADS, "-")
    assert result["gc"] > 5
    record(seconds=SECONDS_IN_THREADS, **gc_figures(result))
