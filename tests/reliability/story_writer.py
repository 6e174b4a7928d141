"""Tell the story into a store: `python story_writer.py DIRECTORY DURABILITY STEP|RUN [RECORD]`.

Prints the number of each acknowledged commit. With STEP it then waits for a line. Now and then it merges,
tags, collects garbage or opens the store anew. With RECORD, and faulty_disk.c preloaded, it records its
writes to the disk, for as many commits as STEP says.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from story import number_of, tell

from vstate import Disk, Versioned
from vstate.errors import NotFound, VStateError

FAILED = 3
"""The exit status after an error of vstate."""


def is_by_another(number: int) -> bool:
    """Whether a second handle makes this commit, so the next commit is a merge."""
    return number % 7 == 3


def is_tagged(number: int) -> bool:
    """Whether this commit gets a tag before it is acknowledged."""
    return number % 5 == 0 and not is_by_another(number)


def write(directory: Path, durability: str, acknowledge: Callable[[int, Disk], None]) -> None:
    """Write without end. Calls `acknowledge` with each number whose commit has returned."""
    while True:
        with Disk(directory, durability=durability) as disk:  # type: ignore[arg-type]
            state = Versioned(disk, branch="main")
            number = number_of(state.head)
            for _ in range(40):
                number += 1
                if is_by_another(number):
                    other = Versioned(disk, branch="main")
                    tell(other, number)
                    other.commit(str(number))
                    acknowledge(number, disk)
                    number += 1
                tell(state, number)
                state.commit(str(number))
                if is_tagged(number):
                    state.tag(f"t{number}")
                if number % 13 == 0:
                    with suppress(NotFound):  # left by a writer that was killed
                        state.delete_branch("junk")
                    state.fork("junk").apply(lambda junk: junk.pop(next(iter(junk))))
                    state.delete_branch("junk")
                    state.repo.gc(keep_reflog="0s")
                acknowledge(number, disk)


def main(directory: Path, durability: str, how: str, record: str | None = None) -> None:
    def acknowledge(number: int, disk: Disk) -> None:
        print(number, flush=True)
        if how == "STEP":
            sys.stdin.readline()

    if record is None:
        write(directory, durability, acknowledge)
        return

    class Enough(Exception):
        pass

    def note(number: int, disk: Disk) -> None:
        library.faulty_disk_acknowledge(ctypes.c_int64(number))
        if number >= int(how):
            raise Enough

    library = ctypes.CDLL(None)
    library.faulty_disk_record(record.encode(), bytes(directory))
    try:
        write(directory, durability, note)
    except Enough:
        print(how)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), *sys.argv[2:])
    except VStateError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(FAILED)
