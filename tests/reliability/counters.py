"""Processes that count in one key of one branch: `python counters.py PROCESSES COMMITS MOST STORE`.

Each counts until all have made COMMITS commits, or it has made MOST. STORE is a path or a URL. Prints as JSON
the counter's end, the number of commits, and the smallest share of a process in them.
"""

from __future__ import annotations

import json
import mmap
import sys
import time
from collections import Counter
from functools import partial

from running import Fork
from soundness import check_sound

from vstate import Versioned, open_store


def increment(state: Versioned) -> None:
    state["counter"] += 1


def count(place: str, name: int, commits: int, most: int, counts: memoryview) -> None:
    """Increment the counter, each time in a commit."""
    with Versioned(place, branch="main") as state:
        while min(counts) < commits and counts[name] < most:
            state.apply(increment, attempts=1000, writer=name)
            counts[name] += 1


def run(processes: int, commits: int, most: int, place: str) -> dict[str, object]:
    with Versioned(place) as state:
        state["counter"] = 0
        state.commit("zero")
    counts = memoryview(mmap.mmap(-1, 8 * processes)).cast("Q")
    began = time.monotonic()
    for child in [Fork(partial(count, place, name, commits, most, counts)) for name in range(processes)]:
        assert child.end()[0] == 0, "a process failed"
    seconds = time.monotonic() - began
    with open_store(place) as store:
        state = Versioned(store)
        writers = Counter(commit.info["writer"] for commit in state.log() if "writer" in commit.info)
        check_sound(store, fsck=writers.total() < 10_000)
        assert [*counts] == [writers[name] for name in range(processes)]
        return {
            "counter": state["counter"],
            "commits": writers.total(),
            "share": min(counts) / writers.total(),
            "seconds": seconds,
        }


if __name__ == "__main__":
    *numbers, place = sys.argv[1:]
    print(json.dumps(run(*map(int, numbers), place)))
