"""Processes that count in one key of one branch: `python counters.py PROCESSES COMMITS WINDOW STORE`.

STORE is a path or a URL. Prints as JSON the counter's end, and the smallest share of a process in WINDOW
commits in a row while all processes were counting.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from functools import partial

from running import Fork
from soundness import check_sound

from vstate import Versioned, open_store
from vstate.repo import Repository


def increment(state: Versioned) -> None:
    state["counter"] += 1


def count(place: str, name: int, commits: int, start: tuple[int, int]) -> None:
    """Print a line when the store is open. Once the pipe of the start is closed, increment the counter
    `commits` times, each time in a commit.
    """
    wait, go = start
    os.close(go)
    with Versioned(place, branch="main") as state:
        print("open")
        os.read(wait, 1)
        for _ in range(commits):
            state.apply(increment, attempts=1000, writer=name)


def smallest_share(writers: list[int], processes: int, window: int) -> float:
    """The smallest share of a process in any `window` commits in a row."""
    there = Counter(writers[:window])
    least = min(there[name] for name in range(processes))
    for place in range(window, len(writers)):
        there[writers[place]] += 1
        there[writers[place - window]] -= 1
        least = min(least, there[writers[place - window]])
    return least / window


def run(processes: int, commits: int, window: int, place: str) -> dict[str, object]:
    with Versioned(place) as state:
        state["counter"] = 0
        state.commit("zero")
    start = os.pipe()
    children = [Fork(partial(count, place, name, commits, start)) for name in range(processes)]
    for child in children:
        assert child.output.readline(), "a process cannot open the store"
    began = time.monotonic()
    os.close(start[1])
    for child in children:
        assert child.end()[0] == 0, "a process failed"
    seconds = time.monotonic() - began
    with open_store(place) as store:
        repo = Repository(store)
        state = Versioned(store)
        log = [commit for commit in state.log() if "writer" in commit.info]
        writers = [int(commit.info["writer"]) for commit in reversed(log)]
        first = max(writers.index(name) for name in range(processes))
        last = min(len(writers) - writers[::-1].index(name) for name in range(processes))
        check_sound(repo.store, fsck=len(log) < 10_000)
        return {
            "counter": state["counter"],
            "commits": len(log),
            "together": last - first,
            "share": smallest_share(writers[first:last], processes, window),
            "seconds": seconds,
        }


if __name__ == "__main__":
    processes, commits, window, place = sys.argv[1:]
    print(json.dumps(run(int(processes), int(commits), int(window), place)))
