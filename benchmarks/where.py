"""Where the time of slow rows goes: `python -m benchmarks.where` prints a table for docs/architecture.md.

A timer interrupts the work a thousand times a second. The processor time since the last interrupt counts for
the innermost module of vstate that runs then, with the time of SQLite, BLAKE3 or pickle below that
module. Time in which the processor waits or does other work does not count. A profiler that traces each
call would add its own time to short functions.
"""

from __future__ import annotations

import argparse
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, islice
from pathlib import Path
from types import FrameType

import vstate
from benchmarks.arrays import large_array
from benchmarks.chat import TURNS
from benchmarks.large import read_value, write, write_bytes
from benchmarks.reading import store_records
from benchmarks.subjects import open_vstate
from benchmarks.values import messages

PACKAGE = str(Path(vstate.__file__).parent)
OUTSIDE = "outside of vstate"
Work = Callable[[], Callable[[], None] | None]
"""Does the work once. It may return a function that cleans up, whose time does not count."""


def read_all(directory: Path, snapshot: bool) -> Callable[[], None]:
    subject = open_vstate(directory)
    mapping = subject.at(subject.head()) if snapshot else subject.mapping
    dict(mapping.items())
    return subject.close


def reads(directory: Path, *, snapshot: bool) -> Work:
    store_records(open_vstate, directory)
    return partial(read_all, directory, snapshot)


def array_reads(directory: Path) -> Work:
    write(open_vstate(directory), large_array())
    return partial(read_value, directory)


def first_commits(directory: Path) -> Work:
    array, turns = large_array(), count()

    def commit() -> None:
        write(open_vstate(directory / str(next(turns))), array)

    return commit


def bytearray_reads(directory: Path) -> Work:
    write_bytes(directory / "store", directory / "file")
    return partial(read_value, directory / "store")


def chat_commits(directory: Path) -> Work:
    source = messages(seed=45)
    chat = list(islice(source, 10 * TURNS))
    subject = open_vstate(directory)
    subject.mapping["chat"] = chat

    def turn() -> None:
        chat.append(next(source))
        subject.commit()

    turn()
    return turn


# The column's heading, the preparation of the work, and the rounds.
CASES: list[tuple[str, Callable[[Path], Work], int]] = [
    ("read 10,000 dicts", partial(reads, snapshot=False), 12),
    ("… through a snapshot", partial(reads, snapshot=True), 12),
    ("read a 100 MB array", array_reads, 12),
    ("its first commit", first_commits, 5),
    ("read a bytearray of 1 GB", bytearray_reads, 2),
    ("append to a chat list", chat_commits, 150),
]


class Samples:
    """The processor time of each module, in seconds, or of each function."""

    def __init__(self, functions: bool) -> None:
        self.seconds: Counter[str] = Counter()
        self._functions, self._last = functions, 0.0

    def _take(self, _: int, frame: FrameType | None) -> None:
        now = time.process_time()
        self.seconds[place(frame, self._functions)] += now - self._last
        self._last = time.process_time()

    def of(self, work: Work) -> None:
        """Do the work, and count its time."""
        before = signal.signal(signal.SIGALRM, self._take)
        self._last = time.process_time()
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        try:
            clean_up = work()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        if clean_up is not None:
            clean_up()


def place(frame: FrameType | None, function: bool) -> str:
    """The innermost module of vstate on the stack, as `kv/disk/store.py`, perhaps with its function."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(PACKAGE):
            module = code.co_filename[len(PACKAGE) + 1 :]
            return f"{module}: {code.co_name}" if function else module
        frame = frame.f_back
    return OUTSIDE


def lines(columns: dict[str, dict[str, float]], least: float) -> Iterator[str]:
    """The table in Markdown. A place has a line if it takes the least share of one of the columns."""
    whole = {case: sum(times.values()) for case, times in columns.items()}
    found = {name for case, times in columns.items() for name in times if times[name] >= least * whole[case]}
    yield f"| ms of one core | {' | '.join(columns)} |"
    yield f"|---|{'--:|' * len(columns)}"
    for name in sorted(found):
        cells = (_cell(times.get(name, 0.0)) for times in columns.values())
        yield f"| `{name}` | {' | '.join(cells)} |"
    rest = (_cell(sum(t for name, t in times.items() if name not in found)) for times in columns.values())
    yield f"| all others | {' | '.join(rest)} |"
    yield f"| in all | {' | '.join(_cell(total) for total in whole.values())} |"


def _cell(seconds: float) -> str:
    milliseconds = seconds * 1000
    if milliseconds < 0.05:
        return "–"
    return f"{milliseconds:.1f}" if milliseconds < 10 else f"{milliseconds:.0f}"


def main() -> None:
    description = "Print where the time of slow rows goes, as a table in Markdown."
    parser = argparse.ArgumentParser(prog="python -m benchmarks.where", description=description)
    parser.add_argument("--functions", action="store_true", help="a line for each function")
    parser.add_argument("--cases", default="", metavar="TEXT", help="only columns whose heading has TEXT")
    parser.add_argument(
        "--least", type=float, default=0.05, metavar="SHARE", help="hide smaller shares of a column (0.05)"
    )
    parser.add_argument(
        "--scratch", type=Path, default=Path("build/benchmarks"), metavar="DIR", help="make the stores in DIR"
    )
    options = parser.parse_args()
    options.scratch.mkdir(parents=True, exist_ok=True)
    columns: dict[str, dict[str, float]] = {}
    for case, prepare, rounds in CASES:
        if options.cases in case:
            with tempfile.TemporaryDirectory(dir=options.scratch) as directory:
                work, samples = prepare(Path(directory)), Samples(options.functions)
                Samples(options.functions).of(work)  # the warm-up
                for _ in range(rounds):
                    samples.of(work)
                columns[case] = {name: taken / rounds for name, taken in samples.seconds.items()}
    print("\n".join(lines(columns, options.least)))


if __name__ == "__main__":
    main()
