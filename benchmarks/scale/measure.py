"""The operations, and how a process measures each on threads that nothing has touched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from itertools import islice
from typing import NamedTuple

from benchmarks.memory import peak
from benchmarks.scale.threads import CHECKPOINTS, THREADS_OF_A_USER, Threads, branch_of, config_of, put
from vstate.integrations.langgraph import VstateSaver
from vstate.repo.names.refs import HEADS
from vstate.repo.repository import Repository
from vstate.repo.upkeep.gc import NEXT

NEWEST = 20
BEGINNINGS = 12
SLOW_BEGINNINGS = 3


class Operation(NamedTuple):
    """An operation that is measured. Its goal: with any number of threads, it costs at most so many times
    what it costs with the fewest.
    """

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
ROUND_0 = Operation("the same, with a branch in room 0")
MEMORY = Operation("peak memory of the process that did all this", unit="bytes")
BYTES = Operation("bytes of the files, a thread", unit="bytes")
OPERATIONS = (PUT, OPEN, GET, AGAIN, FILTERED, RECENT, COPY, DELETE, COLLECT, ROUND, ROUND_0, MEMORY, BYTES)

Samples = Mapping[str, list[float]]
"""By the name of an operation."""


def threads(samples: int) -> Threads:
    """The threads of a store for so many samples of each operation."""
    return Threads([operation.name for operation in (PUT, OPEN, GET, COPY, DELETE, COLLECT)], samples)


def measure(address: str, samples: int, turn: slice, clock: Callable[[], float]) -> Samples:
    """Samples of all operations but the bytes, in the store at this address, which `fill` has filled.

    A turn has some of the threads. So several stores can be measured in turns.
    """
    its = threads(samples).some(turn)

    def timed(work: Callable[..., object], *arguments: object) -> float:
        start = clock()
        work(*arguments)
        return clock() - start

    found: dict[str, list[float]] = {OPEN.name: []}
    for name in its.of[OPEN.name]:
        with ExitStack() as opened:
            found[OPEN.name].append(timed(_open_and_get, opened, address, name))
    with VstateSaver(address) as saver:
        repo = saver.repo
        for operation, work in ((GET, _get), (PUT, _put), (COPY, _copy), (DELETE, _delete)):
            found[operation.name] = [timed(work, saver, name) for name in its.of[operation.name]]
            if operation is GET:
                found[AGAIN.name] = [timed(_get, saver, name) for name in its.of[GET.name]]
        found[FILTERED.name] = [timed(_list, saver, user) for user in its.users]
        found[RECENT.name] = [timed(_recent, repo) for _ in its.users]
        repo.keep("threads/*", last=1)
        found[COLLECT.name] = [
            timed(_step, repo, 1) for _ in _beginning_at(repo, _rooms_of(repo, its.of[COLLECT.name]))
        ]
        if turn.start == 0:  # a branch in room 0 would be there in later turns too
            found[ROUND.name] = [timed(_step, repo) for _ in _beginning_at(repo, [0] * BEGINNINGS)]
            repo.commit("settings", set={"model": "one"})
            found[ROUND_0.name] = [timed(_step, repo) for _ in _beginning_at(repo, [0] * SLOW_BEGINNINGS)]
    return found | {MEMORY.name: [peak()]}


def _open_and_get(opened: ExitStack, address: str, name: str) -> None:
    _get(opened.enter_context(VstateSaver(address)), name)


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


def _recent(repo: Repository) -> None:
    assert len(list(islice(repo.newest_branches("threads/"), NEWEST))) == NEWEST


def _rooms_of(repo: Repository, names: Sequence[str]) -> list[int]:
    assert repo.rooms is not None
    return [repo.rooms.room_of(HEADS + branch_of(name)) for name in names]


def _beginning_at(repo: Repository, rooms: Iterable[int]) -> Iterator[int]:
    """The rooms. While the caller has one, the next step of `gc` begins with it."""
    for room in rooms:
        repo.store.set(NEXT, f"{room} 1 1".encode())
        yield room


def _step(repo: Repository, garbage: int = 0) -> None:
    """Collect one room, for which no reflog keeps anything, with at least so many objects of garbage."""
    report = repo.gc(seconds=0, keep_reflog=timedelta(0))
    assert (report.rooms, report.removed >= garbage) == (1, True)
