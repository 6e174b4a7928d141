"""Kill a process at random moments of an operation: `python kills.py OPERATION KILLS SEED DIRECTORY`.

A child works on the store and reports each acknowledged commit through a pipe. SIGKILL ends the child, and
the script opens the store anew and compares it with the story. It prints as JSON the number of kills by the
child's place in its work.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import select
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from soundness import check_sound
from story import chain, check_story, number_of, tell

from vstate import Disk, Versioned
from vstate.errors import NotFound
from vstate.repo import Repository

LOOK_CLOSELY_EVERY = 25
NEW_STORE_EVERY = 50
TOLD = 400
"""The length of the imported story: longer than a store's history gets."""

SHORTEST_HISTORY = 5

MOST = 5
"""Up to this many times as many kills as asked for, until they are spread well: a busy machine hits few short
moments.
"""

BEFORE, INSIDE, COMMITTING, AFTER = range(4)
PLACES = ("before a transaction", "inside one", "in its COMMIT", "after it, not acknowledged yet")

place = mmap.mmap(-1, 1)
"""The child's place in its work. Shared memory makes telling it free."""


class Watched(Disk):
    """A Disk that records its place in a transaction."""

    def _open(self, handle: Any) -> sqlite3.Connection:
        connection = super()._open(handle)
        connection.set_trace_callback(self._watch)
        return connection

    def _watch(self, statement: str) -> None:
        if statement == "BEGIN IMMEDIATE":
            place[0] = INSIDE
        elif statement == "COMMIT":
            place[0] = COMMITTING

    def _transaction(self, *arguments: Any) -> bool:
        done = super()._transaction(*arguments)
        place[0] = AFTER
        return done


@dataclass
class Work:
    """The work of a child: without end, in this directory."""

    directory: Path
    pipe: int

    def acknowledge(self, number: int) -> None:
        os.write(self.pipe, b"%d\n" % number)
        place[0] = BEFORE


def commit(work: Work) -> None:
    with Versioned(Watched(work.directory)) as state:
        number = number_of(state.head)
        while True:
            number += 1
            tell(state, number)
            state.commit(str(number))
            work.acknowledge(number)


def reopen(work: Work) -> None:
    while True:
        with Watched(work.directory) as disk:
            state = Versioned(disk)
            number = number_of(state.head) + 1
            tell(state, number)
            state.commit(str(number))
        work.acknowledge(number)


def commit_beside_another(work: Work) -> None:
    """Every second commit finds that the branch moved, and becomes a merge."""
    disk = Watched(work.directory)
    state = Versioned(disk)
    number = number_of(state.head)
    while True:
        other = Versioned(disk)
        for handle in (other, state):
            number += 1
            tell(handle, number)
            handle.commit(str(number))
            work.acknowledge(number)


def merge(work: Work) -> None:
    state = Versioned(Watched(work.directory))
    number = number_of(state.head)
    with suppress(NotFound):
        state.delete_branch("side")
    if not number:
        number = 1
        tell(state, number)
        state.commit(str(number))
        work.acknowledge(number)
    while True:
        side = state.fork("side")
        tell(side, number + 2)
        side.commit("side")
        place[0] = BEFORE
        tell(state, number + 1)
        state.commit(str(number + 1))
        work.acknowledge(number + 1)
        number += 2
        state.merge("side", message=str(number))
        work.acknowledge(number)
        state.delete_branch("side")


def update(work: Work) -> None:
    """One update after another."""
    state = Versioned(Watched(work.directory))
    number = number_of(state.head)
    while True:
        number += 1
        state.apply(lambda fresh, number=number: tell(fresh, number), message=str(number))
        work.acknowledge(number)


def import_bundle(work: Work) -> None:
    """Import from a store with the whole story, one commit at a time."""
    told = Repository(Disk(source(work.directory)))
    commits = {number_of(commit): commit for commit in chain(told)}
    repo = Repository(Watched(work.directory))
    number = number_of(next(chain(repo), None))
    while True:
        number += 1
        file = BytesIO()
        since = [commits[number - 1]] if number > 1 else []
        told.export(file, [commits[number]], since=since, as_branch="main")
        repo.import_bundle(file)
        work.acknowledge(number)


def source(directory: Path) -> Path:
    return directory.with_name("source")


def tell_the_source(directory: Path) -> None:
    with Versioned(Disk(source(directory), durability="process")) as state:
        for number in range(1, TOLD + 1):
            tell(state, number)
            state.commit(str(number))


def gc(work: Work, keep_last: int | None = None) -> None:
    disk = Watched(work.directory)
    state = Versioned(disk)
    number = number_of(state.head)
    with suppress(NotFound):
        state.delete_branch("junk")
    while True:
        number += 1
        tell(state, number)
        state.commit(str(number))
        work.acknowledge(number)
        junk = state.fork("junk")
        junk["noise"] = random.Random(number).randbytes(20_000)
        junk.commit("junk")
        state.delete_branch("junk")
        place[0] = BEFORE
        if keep_last is None:
            state.repo.gc(keep_reflog="0s")
        else:
            state.repo.gc(keep_reflog="0s", branch="main", keep_last=keep_last)


def shallow_gc(work: Work) -> None:
    gc(work, SHORTEST_HISTORY)


def forget(work: Work) -> None:
    """Forget a branch that shares values, and each second time its history, with the story."""
    state = Versioned(Watched(work.directory))
    number = number_of(state.head)
    with suppress(NotFound):
        state.delete_branch("junk", forget=True)
    while True:
        number += 1
        tell(state, number)
        state.commit(str(number))
        work.acknowledge(number)
        junk = state.fork("junk") if number % 2 else Versioned(state.store, branch="junk")
        tell(junk, number + 1)
        junk["noise"] = random.Random(number).randbytes(20_000)
        junk.commit("junk")
        place[0] = BEFORE
        state.delete_branch("junk", forget=True)


OPERATIONS: dict[str, Callable[[Work], None]] = {
    "commit": commit,
    "commit beside another": commit_beside_another,
    "merge": merge,
    "update": update,
    "import": import_bundle,
    "reopen": reopen,
    "gc": gc,
    "shallow gc": shallow_gc,
    "forget": forget,
}


def run(operation: str, kills: int, seed: int, directory: Path) -> dict[str, object]:
    """Kill the operation `kills` times. Raises AssertionError if an acknowledged commit is lost or wrong."""
    chance = random.Random(seed)
    where: Counter[str] = Counter()
    total = acknowledged = 0
    if operation == "import":
        tell_the_source(directory / "store")
    for kill in range(MOST * kills):
        if kill >= kills and seen_enough(where, kills):
            break
        store = directory / f"store-{kill // NEW_STORE_EVERY}"
        if kill % NEW_STORE_EVERY == 0:
            total += acknowledged
            acknowledged = 0
        heard = one_kill(operation, store, chance)
        where[PLACES[place[0]]] += 1
        acknowledged = max(acknowledged, heard)
        closely = kill % LOOK_CLOSELY_EVERY == LOOK_CLOSELY_EVERY - 1 or kill >= kills - 1
        found = verify(operation, store, closely)
        assert acknowledged <= found <= acknowledged + 2, f"{acknowledged=} {found=} after kill {kill}"
        acknowledged = found
    return {"kills": where.total(), "acknowledged": total + acknowledged, "where": dict(where)}


def seen_enough(where: Mapping[str, int], kills: int) -> bool:
    """Whether kills hit the child inside transactions and outside.

    Kills at one same moment would show nothing.
    """
    return sum(where.get(name, 0) for name in PLACES[1:3]) > kills / 5 and where.get(PLACES[0], 0) > 0


def one_kill(operation: str, store: Path, chance: random.Random) -> int:
    """Start a child, kill it at a random moment, and return the last number that it acknowledged."""
    place[0] = BEFORE
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            OPERATIONS[operation](Work(store, writing))
        except BaseException as error:  # the parent sees that the child ended by itself; this line says why
            print(repr(error), file=sys.stderr, flush=True)
        finally:
            os._exit(1)
    os.close(writing)
    heard = b""
    wanted = chance.randrange(0, 4)
    while heard.count(b"\n") < wanted:
        part = os.read(reading, 4096)
        assert part, "the child ended by itself"
        heard += part
    if chance.random() < 0.5:
        # Aim: most of the time between two acknowledgements passes outside transactions.
        await_inside(0.5)
        spin(chance.uniform(0, 0.0005))
    else:
        spin(chance.uniform(0, 0.006))
    os.kill(child, signal.SIGKILL)
    while part := os.read(reading, 4096):
        heard += part
    os.close(reading)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL, "the child ended by itself"
    numbers = heard[: heard.rfind(b"\n") + 1].split()
    return int(numbers[-1]) if numbers else 0


def await_inside(seconds: float) -> None:
    end = time.monotonic() + seconds
    while place[0] not in (INSIDE, COMMITTING) and time.monotonic() < end:
        pass


def spin(seconds: float) -> None:
    if seconds > 0.002:
        select.select([], [], [], seconds - 0.001)
        seconds = 0.001
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def verify(operation: str, store: Path, closely: bool) -> int:
    """Open the store anew and compare it with the story. Returns the number of the newest commit."""
    begin: int | None = 1
    if operation == "shallow gc":
        begin = None
    with Disk(store) as disk:
        if not closely:
            return check_story(disk, looked_at=4)
        check_sound(disk)
        return check_story(disk, looked_at=4, every=7, begin=begin)


if __name__ == "__main__":
    name, count, seed, place_of_store = sys.argv[1:]
    print(json.dumps(run(name, int(count), int(seed), Path(place_of_store))))
