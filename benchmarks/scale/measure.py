"""The operations, and how a process measures each on threads that nothing has touched."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from benchmarks.memory import peak
from benchmarks.scale.threads import CHECKPOINTS, THREADS_OF_A_USER, Threads, branch_of, config_of, put
from vstate.integrations.langgraph import VstateSaver
from vstate.repo.names.refs import HEADS
from vstate.repo.upkeep.gc import NEXT

NEWEST = 20
BEGINNINGS = 3


class Operation(NamedTuple):
    """A row of the report. Its cost at any size is to be `at_most` times the cost at the first size."""

    name: str
    at_most: float = 1.5
    unit: str = "seconds"


PUT = Operation("`put` to a cold thread")
OPEN = Operation("open the store, get a cold thread")
GET = Operation("get a cold thread")
AGAIN = Operation("get it again")
FILTERED = Operation("list the 10 threads of a user", 3)
RECENT = Operation("list the 20 newest threads", 3)
COPY = Operation("`copy_thread`")
DELETE = Operation("`delete_thread`")
COLLECT = Operation("a step of `gc` that removes the garbage of a thread")
ROUND = Operation("a step of `gc` that begins a round")
MEMORY = Operation("peak memory of the process that did all this", unit="bytes")
BYTES = Operation("bytes of the files, a thread", unit="bytes")
OPERATIONS = (PUT, OPEN, GET, AGAIN, FILTERED, RECENT, COPY, DELETE, COLLECT, ROUND, MEMORY, BYTES)

Samples = Mapping[str, list[float]]
"""By the name of an operation."""


def threads(samples: int) -> Threads:
    """The threads of a store for so many samples of each operation."""
    return Threads([operation.name for operation in (PUT, OPEN, GET, COPY, DELETE, COLLECT)], samples)


def measure(directory: Path, samples: int, turn: slice) -> Samples:
    """Samples of all operations but the bytes, in the store that `fill` made of these threads.

    A turn has some of the threads. So several stores can be measured in turns.
    """
    its = threads(samples).some(turn)
    found = {OPEN.name: [_seconds(_open_and_get, directory, name) for name in its.of[OPEN.name]]}
    with VstateSaver(directory) as saver:
        for operation, work in (
            (GET, _get),
            (AGAIN, _get),
            (PUT, _put),
            (COPY, _copy),
            (DELETE, _delete),
        ):
            names = its.of[(GET if operation is AGAIN else operation).name]
            found[operation.name] = [_seconds(work, saver, name) for name in names]
        found[FILTERED.name] = [_seconds(_list, saver, user) for user in its.users]
        found[RECENT.name] = [_seconds(_recent, saver) for _ in its.users]
        saver.repo.keep("threads/*", last=1)
        found[COLLECT.name] = [_collect(saver, name) for name in its.of[COLLECT.name]]
        found[ROUND.name] = [_begin_round(saver) for _ in range(BEGINNINGS)]
    return found | {MEMORY.name: [peak()]}


def _seconds(work: Callable[..., object], *arguments: object) -> float:
    """The processor time of a call."""
    start = time.process_time()
    work(*arguments)
    return time.process_time() - start


def _open_and_get(directory: Path, name: str) -> None:
    with VstateSaver(directory) as saver:
        _get(saver, name)


def _get(saver: VstateSaver, name: str) -> None:
    found = saver.get_tuple(config_of(name))
    assert found is not None
    assert len(found.checkpoint["channel_values"]["messages"]) == CHECKPOINTS


def _put(saver: VstateSaver, name: str) -> None:
    put(saver, name, CHECKPOINTS, [{"role": "user", "content": "one more"}], f"the user of {name}")


def _copy(saver: VstateSaver, name: str) -> None:
    source, target = (config_of(each)["configurable"]["thread_id"] for each in (name, f"copy of {name}"))
    saver.copy_thread(source, target)


def _delete(saver: VstateSaver, name: str) -> None:
    saver.delete_thread(config_of(name)["configurable"]["thread_id"])


def _list(saver: VstateSaver, user: str) -> None:
    listed = sum(1 for _ in saver.list(None, filter={"user": user}))
    assert listed == THREADS_OF_A_USER * CHECKPOINTS


def _recent(saver: VstateSaver) -> None:
    assert len(list(islice(saver.repo.newest_branches("threads/"), NEWEST))) == NEWEST


def _collect(saver: VstateSaver, name: str) -> float:
    """Measure the step that cuts the history of a thread off, and removes what nothing leads to then."""
    repo = saver.repo
    assert repo.rooms is not None
    repo.store.set(NEXT, f"{repo.rooms.room_of(HEADS + branch_of(name))} 1 1".encode())
    return _step(saver)


def _begin_round(saver: VstateSaver) -> float:
    """Measure the step that begins with room 0, where no thread is."""
    saver.repo.store.delete(NEXT)
    return _step(saver, is_garbage=False)


def _step(saver: VstateSaver, *, is_garbage: bool = True) -> float:
    """The processor time of a step of one room, for which no reflog keeps anything."""
    start = time.process_time()
    report = saver.repo.gc(seconds=0, keep_reflog=timedelta(0))
    spent = time.process_time() - start
    assert (report.rooms, report.removed > 0) == (1, is_garbage)
    return spent
