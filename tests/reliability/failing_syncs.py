"""Let every sync of a script fail in turn: `python failing_syncs.py COMMITS ERRNO once|ever|dies DIRECTORY`.

To be run with faulty_disk.c preloaded. A child commits, and goes on after an error as a program would: it
opens the store anew, and continues from what it finds there; or it dies, and another process continues.
That sync alone fails, or all from then on. Afterwards the store is looked at twice: as the
process left it, and as power cuts at several moments would have left it, with what the failing sync was to
write lost. Prints what happened as JSON.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import random
import shutil
import sys
from collections import Counter
from pathlib import Path

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
"""What a process that dies does not close."""


def commit_and_go_on(directory: Path, commits: int, dies: bool) -> tuple[list[str], int]:
    """Reach commit `commits`, through whatever fails; the errors, and the last number that was acknowledged."""
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
                if number % 20 == 3:
                    fork()
                state.commit(str(number))
                acknowledged = number
                library.faulty_disk_acknowledge(ctypes.c_int64(number))
                if number % 20 == 0:
                    state.repo.gc(keep_reflog="0s")
            disk.close()
            break
        except StorageError as error:
            errors.append(type(error).__name__)
            if disk is not None and not dies:
                disk.close()
    return errors, acknowledged


def fork() -> None:
    """A fork makes the store open its file anew, so that no reader from before the commit is left."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


Answer = tuple[list[str], int, int]
"""The errors of a child, the last number that it acknowledged, and how often it synced."""


def one(directory: Path, commits: int, fail_at: int, how: str, error: int) -> Answer:
    """One child."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            library.faulty_disk_record(bytes(directory / "record"), bytes(directory / "store"))
            library.faulty_disk_fail(fail_at, int(how == "ever"), error)
            errors, acknowledged = commit_and_go_on(directory / "store", commits, how == "dies")
            os.write(writing, json.dumps([errors, acknowledged, library.faulty_disk_syncs()]).encode())
            status = 0
        except BaseException as failure:
            print(f"at sync {fail_at}: {failure!r}", file=sys.stderr, flush=True)
        finally:
            # Without closing anything: so does a process that is killed.
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, f"at sync {fail_at} the child ended with {status}"
    errors, acknowledged, syncs = json.loads(answer)
    return errors, acknowledged, syncs


def cut_the_power(directory: Path, fail_at: int) -> int:
    """Look at what power cuts after the failing sync leave; how many there were."""
    lines = list(read_record(directory / "record"))
    failed = [place for place, line in enumerate(lines) if line.kind == "f"]
    if not failed:  # it was a directory's above the store, before anything was written
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
    for fail_at in range(1, syncs + 1):
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
    return {"syncs": syncs, "errors": dict(seen), "without an error": silent, "cuts": cuts}


if __name__ == "__main__":
    commits, error, how, place = sys.argv[1:]
    print(json.dumps(main(int(commits), getattr(errno, error), how, Path(place))))
