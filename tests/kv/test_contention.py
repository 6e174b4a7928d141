"""Many processes that update one key: all their updates happen, and nobody starves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from servers import with_options
from soak import SOAK

from vstate import Versioned, open_store

WRITERS = 10
TIMES = 50 if SOAK else 20
KINDS = [("disk", 1.6), ("postgres", 1.7), ("redis", 1.7)] if SOAK else [("disk", 1.6)]
"""The stores, and the most that the slowest writer may take, as a multiple of the mean."""

COUNT = """
import json, sys, time
from vstate import Versioned
with Versioned(sys.argv[1], branch="main") as state:
    state.apply(lambda now: now["n"])
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    for _ in range(int(sys.argv[2])):
        state.apply(lambda now: now.update(n=now["n"] + 1))
    print(json.dumps(time.monotonic() - began), flush=True)
"""


def spent(url: str) -> list[float]:
    """The seconds that each of the writers takes to increment one counter, all at once."""
    with open_store(url) as store, Versioned(store, branch="main") as state:
        state["n"] = 0
        state.commit()
    pipe = subprocess.PIPE
    workers = [
        subprocess.Popen([sys.executable, "-c", COUNT, url, str(TIMES)], stdin=pipe, stdout=pipe, text=True)
        for _ in range(WRITERS)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    seconds = [json.loads(worker.communicate()[0]) for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * WRITERS
    with open_store(url) as store, Versioned(store, branch="main") as state:
        assert state["n"] == WRITERS * TIMES
    return seconds


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "most"), KINDS)
def test_writers_of_one_counter_share_it(
    kind: str, most: float, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """No update fails, and the slowest writer is not far behind the mean. If ten writers went one after the
    other, the last one would take 1.82 times the mean.
    """
    if kind == "disk":
        url = str(tmp_path / "store")
    elif kind == "postgres":
        dsn, table = request.getfixturevalue("postgres_dsn"), request.getfixturevalue("postgres_table")
        url = with_options(dsn, [f"table={table}"])
    else:
        prefix = request.getfixturevalue("redis_prefix")
        url = with_options(request.getfixturevalue("redis_url"), [f"prefix={prefix}"])
    seconds = spent(url)
    assert max(seconds) <= most * sum(seconds) / len(seconds)
