"""Data that grows with every turn of an agent: a list of messages in one key, and events."""

from __future__ import annotations

import pickle
import statistics
import tempfile
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path

from benchmarks.harness import Row, Sides, Target, median_seconds, seconds, workload
from benchmarks.stores import OPEN, Start, Stores
from benchmarks.subjects import Floor, MeteredDisk, Subject, open_vstate, size_of
from benchmarks.values import messages
from vstate import Disk, Versioned

TURNS = 1_000
LAST = 30

CHAT_BYTES = "a chat list, 1,000 turns on disk: bytes in the store"
CHAT_TIME = "a chat list, 1,000 turns on disk: commit at turn 1,000"
CHAT_BYTES_LONG = "a chat list, 10,000 turns on disk: bytes in the store"


def chat(subject: Subject, turns: int) -> float:
    """Commit one message a turn. Returns the median commit of the last turns, in seconds."""
    chat: list[dict[str, str]] = []
    subject.mapping["chat"] = chat
    samples: list[float] = []

    def turn(message: dict[str, str]) -> None:
        chat.append(message)
        # vstate finds the edit by itself. kvgit needs the assignment.
        subject.mapping["chat"] = chat
        subject.commit()

    for message in islice(messages(), turns):
        samples.append(seconds(turn, message))
    return statistics.median(samples[-LAST:])


def chat_in_a_new_store(start: Start, directory: Path) -> dict[str, float]:
    """A round of a chat of 1,000 turns."""
    directory.mkdir(exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=directory)) / "store"
    subject = start(new)
    sample = chat(subject, TURNS)
    subject.close()
    return {CHAT_BYTES: size_of(new), CHAT_TIME: sample}


@workload(
    Row(CHAT_BYTES, "bytes", (Target(3_000_000),)),
    Row(CHAT_TIME, "seconds", (Target(1.0, side="kvgit"),)),
    rounds=2,
)
def chat_of_1000_turns(scratch: Path) -> Iterator[Sides]:
    rounds = count()
    written: tuple[int, ...] = ()

    def start_metered(directory: Path) -> Subject:
        disk = MeteredDisk(directory)
        subject = open_vstate(disk=disk)

        def close() -> None:
            nonlocal written
            written = disk.written
            subject.close()

        return Subject(subject.mapping, subject.commit, subject.head, subject.at, subject.changed, close)

    def on_floor() -> dict[str, float]:
        floor = Floor(scratch / f"floor-{next(rounds)}.db")
        rows = [floor.rows(written) for _ in range(LAST)]
        sample = median_seconds(lambda i: floor.write(rows[i]), LAST)
        floor.close()
        return {CHAT_TIME: sample}

    with Stores(scratch, "doltlite") as stores:
        yield {
            "vstate": lambda: chat_in_a_new_store(start_metered, scratch / "vstate"),
            "kvgit": lambda: chat_in_a_new_store(OPEN["kvgit"], scratch / "kvgit"),
            **stores.rounds_of_peers(chat_in_a_new_store),
            "floor": on_floor,
        }


# Without kvgit: it stores the whole list in every commit and would write 20 GB.
@workload(Row(CHAT_BYTES_LONG, "bytes", (Target(14.0, row=CHAT_BYTES),)), rounds=0)
def chat_of_10000_turns(scratch: Path) -> Iterator[Sides]:
    def on_vstate() -> dict[str, float]:
        subject = open_vstate(disk=Disk(scratch / "vstate", durability="process"))
        chat(subject, 10 * TURNS)
        subject.close()
        return {CHAT_BYTES_LONG: size_of(scratch / "vstate")}

    yield {"vstate": on_vstate}


LONG_CHAT = "a chat list of 10,000 messages, one appended: commit on disk"
LONG_CHAT_SLOW = "a chat list of 10,000 messages, one appended: 9 of 10 commits are as quick as this"


@workload(
    Row(LONG_CHAT, "seconds", (Target(2.0, side="floor"),)),
    Row(LONG_CHAT_SLOW, "seconds", (Target(3.0, side="floor"),)),
)
def chat_of_10000_messages(scratch: Path) -> Iterator[Sides]:
    source = messages(seed=45)
    chat = list(islice(source, 10 * TURNS))
    subject = open_vstate(scratch / "vstate")
    subject.mapping["chat"] = chat
    subject.commit()

    def turn(_: int) -> None:
        chat.append(next(source))
        subject.commit()

    def timed(work: Callable[[int], object]) -> dict[str, float]:
        samples = [seconds(work, i) for i in range(LAST)]
        return {LONG_CHAT: statistics.median(samples), LONG_CHAT_SLOW: statistics.quantiles(samples, n=10)[8]}

    # The program holds the list, so a commit has to pickle it at least once to find the edit.
    yield {
        "vstate": lambda: timed(turn),
        "floor": lambda: timed(lambda _: pickle.dumps(chat, protocol=5)),
    }
    subject.close()


EVENT_BYTES = "1,000 events, one commit each, disk: bytes in the store"
EVENT_GROWTH = "1,000 events, one commit each, disk: last 50 commits / first 50"


@workload(Row(EVENT_BYTES, "bytes", (Target(1_500_000),)), Row(EVENT_GROWTH, "ratio", (Target(1.2),)))
def events(scratch: Path) -> Iterator[Sides]:
    rounds = count()

    def on_vstate() -> dict[str, float]:
        directory = scratch / str(next(rounds))
        samples = []
        with Disk(directory) as disk:
            state = Versioned(disk, branch="main")

            def one(i: int) -> None:
                state.record("tool.call", tool="search", query=f"query {i}", results=i % 20, ok=True)
                state.commit()

            for i in range(TURNS):
                samples.append(seconds(one, i))
            state.close()
        growth = statistics.median(samples[-50:]) / statistics.median(samples[:50])
        return {EVENT_BYTES: size_of(directory), EVENT_GROWTH: growth}

    yield {"vstate": on_vstate}
