"""Writers beside a process that collects garbage, one that exports and imports, and one that checks the
store.

`python beside_gc.py WRITERS SECONDS STORE`: each writer has a branch of its own and a model of its values,
and makes garbage there. All writers count in main. STORE is a path or a URL; "-" means threads on a store
without transactions. At the end the script reads every reachable object and runs fsck. It prints the numbers
of actions as JSON.
"""

from __future__ import annotations

import copy
import io
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from running import Fork, at_once
from soundness import check_sound

from vstate import KVStore, Memory, Versioned, open_store
from vstate.errors import InvalidInput, NotFound
from vstate.repo import Repository
from vstate.testing import Faulty

Values = dict[str, Any]
Task = Callable[[KVStore], Counter[str]]
Start = Callable[[list[Task]], list[Counter[str]]]
"""Runs all tasks at once, and returns what each has done."""


GRACE = "2s" if sys.argv[-1:] == ["-"] else "6s"
"""The grace period of a store without transactions: longer than a commit of these writers, on a busy server
too.
"""

LEAST = 1 if sys.argv[-1].startswith("s3") else 6
"""The least number of gc runs, even if the time is over. The other processes make half as many runs."""


class Writer:
    """A writer, and a model of its branch."""

    def __init__(self, store: KVStore, number: int) -> None:
        self.store = store
        self.number = number
        self.chance = random.Random(number)
        self.state = Versioned(store, branch=f"own-{number}")
        self.main = Versioned(store, branch="main")
        self.states: list[Values] = []  # values of the branch, one dict a commit
        self.done: Counter[str] = Counter()
        self.commit()

    def run(self, end: float) -> Counter[str]:
        actions = [self.commit] * 4 + [self.count] * 2 + [self.reset, self.rollback, self.undo]
        actions += [self.what_if, self.tag, self.look, self.squash]
        actions += [self.thread] * 2
        while time.monotonic() < end:
            action = self.chance.choice(actions)
            action()
            self.done[action.__name__] += 1
        self.look()
        return self.done

    def commit(self) -> None:
        values = copy.deepcopy(self.states[-1]) if self.states else {}
        for _ in range(self.chance.randrange(1, 4)):
            key = f"key-{self.chance.randrange(8)}"
            # Few different values, so a commit often brings back a value that gc is deleting.
            values[key] = random.Random(self.chance.randrange(6)).randbytes(
                self.chance.choice((40, 900, 20_000))
            )
            self.state[key] = values[key]
        if self.state.commit("commit") is not None:
            self.states.append(values)

    def count(self) -> None:
        self.main.apply(increment, attempts=1000)

    def reset(self) -> None:
        if len(self.states) > 1:
            self.state.reset("HEAD~1")
            del self.states[-1]

    def rollback(self) -> None:
        if len(self.states) > 1:
            self.state.rollback("HEAD~1")
            self.states.append(self.states[-2])

    def undo(self) -> None:
        """Only the reflog knows the earlier positions of the branch, and gc deletes lines of the reflog."""
        before = self.state.head
        with suppress(NotFound, InvalidInput):
            self.state.undo()
            try:
                self.state.reset(before)
            except NotFound:  # gc may have deleted the commit
                self.states = [dict(self.state)]

    def what_if(self) -> None:
        name = f"what-if-{self.number}"
        other = self.state.fork(name)
        noise = random.Random(self.chance.randrange(6)).randbytes(20_000)
        other["what-if"] = noise
        other.commit("what if")
        if self.chance.random() < 0.5:
            before = self.state.head
            self.state.merge(name)
            if self.state.head != before:
                self.states.append({**self.states[-1], "what-if": noise})
        self.state.delete_branch(name, forget=self.chance.random() < 0.5)

    def thread(self) -> None:
        """A branch that shares values with the others, and no commits, is forgotten."""
        name = f"thread-{self.number}"
        for number in range(self.chance.randrange(1, 4)):
            noise = random.Random(self.chance.randrange(6)).randbytes(20_000)
            self.state.repo.commit(name, set={f"key-{number}": noise})
        self.state.delete_branch(name, forget=True)

    def squash(self) -> None:
        keep = self.chance.randrange(3)
        self.state.repo.squash(str(self.state.branch), keep=keep)
        self.state.refresh()
        self.states = self.states[-keep - 1 :]

    def tag(self) -> None:
        name = f"tag-{self.number}"
        with suppress(NotFound):
            self.state.delete_tag(name)
        self.state.tag(name)

    def look(self) -> None:
        """Read all values again with a new handle."""
        found = dict(Versioned(self.store, branch=f"own-{self.number}"))
        assert found == self.states[-1], f"{self.number}: other values than were written, after {self.done}"


def increment(state: Versioned) -> None:
    state["counter"] += 1


def collect(store: KVStore, end: float) -> Counter[str]:
    """Collect garbage until `end`, and cut the history of main short now and then."""
    done: Counter[str] = Counter()
    repo = Repository(store)
    while time.monotonic() < end or done["gc"] < LEAST:
        done["gc"] += 1
        if done["gc"] % 5:
            report = repo.gc(keep_reflog="0s", grace=GRACE)
        else:
            report = repo.gc(keep_reflog="0s", grace=GRACE, branch="main", keep_last=20)
        done["objects removed"] += report.removed
    return done


def exchange(store: KVStore, end: float) -> Counter[str]:
    """Export branches until `end`, import them under other names, and delete most of these again."""
    done: Counter[str] = Counter()
    chance = random.Random(0)
    repo = Repository(store)
    while time.monotonic() < end or done["import"] < LEAST // 2:
        bundle = io.BytesIO()
        repo.export(bundle, ["main", *(f"own-{number}" for number in repo.refs.list("heads/own-"))])
        repo.import_bundle(bundle, prefix=f"imported-{done['import'] % 3}/")
        done["import"] += 1
        for name in repo.refs.list("heads/imported-"):
            if chance.random() < 0.7:
                repo.delete_branch(f"imported-{name}", forget=chance.random() < 0.5)
    return done


def look_for_damage(store: KVStore, end: float) -> Counter[str]:
    """Let fsck repair the store until `end`; it finds no damage."""
    done: Counter[str] = Counter()
    repo = Repository(store)
    while time.monotonic() < end or done["fsck"] < LEAST // 2:
        report = repo.fsck(repair=True)
        assert not report.damaged, str(report)
        assert not report.repaired, str(report)
        done["fsck"] += 1
    return done


def run(
    writers: int,
    seconds: float,
    start: Start,
    store: KVStore,
) -> dict[str, int]:
    """The number of actions of all processes. Raises AssertionError if a value is missing afterwards."""
    state = Versioned(store, branch="main")
    state["counter"] = 0
    state.commit("zero")
    end = time.monotonic() + seconds
    work: list[Task] = [
        lambda opened, number=number: Writer(opened, number).run(end) for number in range(writers)
    ]
    work += [lambda opened, task=task: task(opened, end) for task in (collect, exchange, look_for_damage)]
    done = sum(start(work), Counter())
    repo = Repository(store)
    check_sound(store)
    assert Versioned(store, branch="main")["counter"] == done["count"]
    repo.gc(keep_reflog="0s", grace="0s")
    live = check_sound(store)
    assert len(list(store.keys("o/"))) == live
    return dict(done)


def in_threads(store: KVStore) -> Start:
    return lambda work: at_once(lambda task: task(store), work)


def in_processes(place: str) -> Start:
    def one(task: Task) -> None:
        with open_store(place) as store:
            print(json.dumps(task(store)))

    def start(work: list[Task]) -> list[Counter[str]]:
        children = [Fork(partial(one, task)) for task in work]
        ended = [child.end() for child in children]
        assert not any(code for code, _ in ended), "a process failed"
        return [Counter(json.loads(output)) for _, output in ended]

    return start


if __name__ == "__main__":
    count, length, place = sys.argv[1:]
    if place == "-":
        memory = Faulty(Memory(), atomic=False)
        print(json.dumps(run(int(count), float(length), in_threads(memory), memory)))
    else:
        with open_store(place) as opened:
            print(json.dumps(run(int(count), float(length), in_processes(place), opened)))
