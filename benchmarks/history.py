"""Checkout and diff on a store of 10,000 keys on disk, with warm caches and just after opening."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.harness import Row, Sides, Target, median_seconds, workload
from benchmarks.keys import fill
from benchmarks.subjects import OPEN, Subject, on_both
from benchmarks.values import KEYS, key, random_values

COMMITS = 40

CHECKOUT = "checkout an old commit and read one key, 10,000 keys"
DIFF = "diff of two commits, 1 key changed of 10,000"
COLD_CHECKOUT = "the same checkout on a store just opened"
COLD_DIFF = "the same diff on a store just opened"


def with_history(subject: Subject) -> list[str]:
    """Fill the store, commit changes of one key each, and close it. Returns the commits, oldest first."""
    fill(subject)
    commits, generator = [subject.head()], random.Random(6)
    for value in random_values(COMMITS, seed=7):
        subject.mapping[key(generator.randrange(KEYS))] = value
        subject.commit()
        commits.append(subject.head())
    subject.close()
    return commits


@workload(
    Row(CHECKOUT, "seconds", (Target(1.0, side="kvgit"),)),
    Row(DIFF, "seconds", (Target(0.5, side="kvgit"),)),
    Row(COLD_CHECKOUT, "seconds", ()),
    Row(COLD_DIFF, "seconds", ()),
)
def look_back(scratch: Path) -> Iterator[Sides]:
    histories: dict[str, list[str]] = {
        side: with_history(start(scratch / side)) for side, start in OPEN.items()
    }

    def look(start: Callable[[Path], Subject], directory: Path) -> dict[str, float]:
        commits = histories[directory.name]
        generator = random.Random(8)
        wanted = [key(generator.randrange(KEYS)) for _ in range(COMMITS)]

        def checkouts(subject: Subject) -> float:
            return median_seconds(lambda i: subject.at(commits[i])[wanted[i]], COMMITS)

        def diffs(subject: Subject) -> float:
            return median_seconds(lambda i: subject.changed(commits[i], commits[i + 1]), COMMITS)

        # Cold: each row opens a handle and visits every commit once, so caches hold only nodes that earlier
        # visits shared. Warm: the same visits once more on that handle.
        rows: dict[str, float] = {}
        for cold, warm, measure in ((COLD_CHECKOUT, CHECKOUT, checkouts), (COLD_DIFF, DIFF, diffs)):
            subject = start(directory)
            rows[cold], rows[warm] = measure(subject), measure(subject)
            assert len(subject.changed(commits[0], commits[1])) == 1
            subject.close()
        return rows

    yield on_both(look, scratch)
