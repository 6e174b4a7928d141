"""Let every sync of a script fail in turn: `python failing_syncs.py COMMITS ERRNO once|ever|dies DIRECTORY`.

Preload faulty_disk.c. A child commits, and after an error opens the store anew and continues; or the child
dies and another process continues. One sync fails, or that sync and all later ones. Then the script checks
the store twice: as the process left it, and as power cuts at several moments would have left it, without the
data of the failed sync. It prints the numbers of errors and cuts as JSON.
"""

from __future__ import annotations

import ctypes
import errno
import json
import random
import shutil
import sys
from collections import Counter
from pathlib import Path

from running import Fork, run_forked
from simulated_disk import SimulatedDisk, read_record
from soak import sized
from soundness import check_sound
from story import check_story, number_of, tell

from vstate import Disk, Versioned
from vstate.errors import StorageError

CUTS = sized(2, 20)
PATIENCE = 3

library = ctypes.CDLL(None)
left_open: list[Disk] = []
"""Stores that a dying process leaves open."""


def commit_and_go_on(directory: Path, commits: int, dies: bool) -> tuple[list[str], int]:
    """Reach commit `commits` through all failures. Returns the errors and the last acknowledged number."""
    errors: list[str] = []
    acknowledged = 0
    while len(errors) < (1 if dies else PATIENCE):
        disk = None
        try:
            disk = Disk(directory)
            left_open.append(disk)
            state = Versioned(disk)
            while (number := number_of(state.head) + 1) <= commits:
                tell(state, number)
                if number % 8 == 3:
                    run_forked(lambda: None)  # the store opens its file anew: no reader is left from before
                state.commit(str(number))
                acknowledged = number
                library.faulty_disk_acknowledge(ctypes.c_int64(number))
                if number % 8 == 0:
                    state.repo.gc(keep_reflog="0s")
            disk.close()
            break
        except StorageError as error:
            errors.append(type(error).__name__)
            if disk is not None and not dies:
                disk.close()
    return errors, acknowledged


Answer = tuple[list[str], int, int]
"""The errors of a child, the last number that it acknowledged, and the number of its syncs."""


def one(directory: Path, commits: int, fail_at: int, how: str, error: int) -> Answer:
    """Run one child. At its end it closes nothing, as a killed process does."""

    def work() -> None:
        library.faulty_disk_record(bytes(directory / "record"), bytes(directory / "store"))
        library.faulty_disk_fail(fail_at, int(how == "ever"), error)
        errors, acknowledged = commit_and_go_on(directory / "store", commits, how == "dies")
        print(json.dumps([errors, acknowledged, library.faulty_disk_syncs()]))

    code, answer = Fork(work).end()
    assert code == 0, f"at sync {fail_at} the child ended with {code}"
    errors, acknowledged, syncs = json.loads(answer)
    return errors, acknowledged, syncs


def cut_the_power(directory: Path, fail_at: int) -> int:
    """Check the stores that power cuts after the failed sync leave. Returns the number of cuts."""
    lines = list(read_record(directory / "record"))
    failed = [place for place, line in enumerate(lines) if line.kind == "f"]
    if not failed:  # a directory above the store was synced, before any write
        return 0
    chance = random.Random(fail_at)
    after = range(failed[0] + 1, len(lines) + 1)
    places = sorted({len(lines), *chance.sample(after, min(CUTS - 1, len(after)))})
    disk = SimulatedDisk()
    fed = 0
    for place in places:
        for line in lines[fed:place]:
            disk.feed(line)
        fed = place
        disk.cut(directory / "cut", chance, kept=chance.choice((0.0, 0.0, 0.5)))
        with Disk(directory / "cut") as store:
            found = check_story(store)
            assert found >= disk.acknowledged, (
                f"sync {fail_at} failed, the power was cut at line {place} of {len(lines)}: "
                f"{disk.acknowledged} was acknowledged, {found} is there"
            )
            check_sound(store, fsck=sized(False, True))
    return len(places)


def main(commits: int, error: int, how: str, directory: Path) -> dict[str, object]:
    (directory / "undisturbed").mkdir()
    _, acknowledged, syncs = one(directory / "undisturbed", commits, 0, how, error)
    assert acknowledged == commits
    seen: Counter[str] = Counter()
    silent = cuts = 0
    first, step = sized({"once": (1, 1), "ever": (1, 2), "dies": (2, 2)}[how], (1, 1))
    failing = range(first, syncs + 1, step)
    for fail_at in failing:
        place = directory / str(fail_at)
        place.mkdir()
        errors, acknowledged, _ = one(place, commits, fail_at, how, error)
        seen.update(errors)
        silent += not errors
        if how == "dies" and errors:
            again, more, _ = one(place, commits, 0, how, error)
            assert not again
            acknowledged = max(acknowledged, more)
        with Disk(place / "store") as disk:
            check_sound(disk, fsck=sized(fail_at % 10 == 0, True))
            found = check_story(disk, every=sized(7, 1))
            assert acknowledged <= found <= acknowledged + len(errors), f"{fail_at=} {acknowledged=} {found=}"
            assert how == "ever" or found == commits, f"sync {fail_at}: it never recovered from {errors}"
            state = Versioned(disk)
            tell(state, found + 1)
            assert state.commit(str(found + 1)) is not None
        cuts += cut_the_power(place, fail_at)
        shutil.rmtree(place)
    return {"syncs": len(failing), "errors": dict(seen), "without an error": silent, "cuts": cuts}


if __name__ == "__main__":
    commits, error, how, place = sys.argv[1:]
    print(json.dumps(main(int(commits), getattr(errno, error), how, Path(place))))
