"""An exception of any class at any line: the call happened or did not, and the same handle goes on.

A signal handler, the allocator or a deep recursion may raise almost anywhere. So a tracer raises at each line
of each operation in turn. It leaves out the line of a `with` at the end of its block. The tracer is called
there before `__exit__`, so its exception would leave a lock held. Python handles signals only after
`__exit__` has begun, when a lock written in C is released.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from raising import raised_at
from soak import SOAK
from state_operations import OPERATIONS, Stores, check_after, undisturbed

from vstate import Versioned

LINES = None if SOAK else 1
"""At how many lines of each operation each class is raised: all, or so many at random.

The operations have 50,000 lines together. All of them take an hour and a half of CPU time.
"""

pytestmark = pytest.mark.timeout(7200 if SOAK else 580)

Record = Callable[[str, object], None]


class TimeLimit(Exception):
    """As a task queue raises it from a signal handler."""


CLASSES = [KeyboardInterrupt, TimeLimit, MemoryError]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Memory", "Disk"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_exception_at_each_line(name: str, kind: str, tmp_path: Path, record_property: Record) -> None:
    """After an exception of any class at any line the operation happened or not, and a repeated call takes
    effect once.
    """
    operation, stores = OPERATIONS[name], Stores(kind, tmp_path)
    undisturbed(operation, stores)  # imports everything that is imported late
    seen = undisturbed(operation, stores)
    with stores.new() as store:
        state = Versioned(store)
        operation.prepare(state)
        lines, _ = raised_at(partial(operation.run, state), None, KeyboardInterrupt)
    came = 0
    chance = random.Random(name + kind)
    for number, raised in enumerate(CLASSES):
        chosen = range(1, lines + 1)
        if LINES is not None and len(chosen) > LINES:
            chosen = sorted(chance.sample(chosen, LINES))
        for line in chosen:
            with stores.new() as store:
                state = Versioned(store)
                operation.prepare(state)
                _, error = raised_at(partial(operation.run, state), line, raised)
                came += error is not None
                if operation.in_a_block or number:
                    error = None
                try:
                    check_after(operation, state, seen)
                except BaseException as failure:
                    failure.add_note(f"{name}: {raised.__name__} at line {line} of {lines}")
                    raise
                del error
    assert came
    record_property("exceptions", came)


# Real signals

PROGRAM = """if True:
    import random, signal, sys, time
    from vstate import Conflict, Disk, Memory, Versioned

    kind, directory, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    chance = random.Random(sys.argv[4])
    signal.signal(signal.SIGALRM, signal.default_int_handler)

    def quiet():
        while True:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0)
                time.sleep(0)
                return
            except KeyboardInterrupt:
                pass

    came, held = 0, None

    def interrupted(function, hold=True, longer=1):
        global came, held
        try:
            signal.setitimer(signal.ITIMER_REAL, longer * chance.random() * 0.002 + 0.00002)
            function()
            quiet()
            return False
        except KeyboardInterrupt as error:
            quiet()
            came += 1
            held = error if hold else None  # and with it all frames that it came through
            return True

    def until_done(function):
        tries = 1
        while interrupted(function, longer=tries):  # a slow machine may take long for it
            tries += 1

    def check(where):
        fresh = dict(Versioned(store, branch="main"))
        assert dict(state) == fresh, (where, dict(state), fresh)
        assert not state.has_uncommitted, where
        return fresh

    def step(state):
        state["update"] += 1
        state["list"].append("update")

    def transact():
        with state.transaction():
            state["transaction"] += 1
            state["list"].append("transaction")

    store = Memory() if kind == "Memory" else Disk(directory, durability="process")
    state = Versioned(store, branch="main")
    state["n"], state["update"], state["transaction"], state["list"] = 0, 0, 0, []
    state.commit()
    done, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        done += 1
        state["n"] += 1
        state["list"].append(done)
        until_done(lambda: state.commit(str(done)))
        seen = check("commit")
        assert seen["n"] == done and seen["list"].count(done) == 1, seen
        if kind == "Disk":
            with Disk(directory, durability="process", timeout=20) as other:
                other.set("another process", b"writes")
        for name, change in (("update", lambda: state.apply(step)), ("transaction", transact)):
            before = seen
            hit = interrupted(change, hold=name == "update")
            if hit and name == "transaction" and state.has_uncommitted:
                state.commit()  # its block had ended, and its commit was interrupted
            seen = check(name)
            steps = seen[name] - before[name]
            assert steps in (0, 1), (name, seen)
            assert seen["list"] == before["list"] + [name] * steps, (name, seen)
        state["n"] = -1
        state["list"].append("never")
        until_done(state.discard)
        assert check("discard") == seen
        target = state.head
        with Versioned(store, branch="main") as other:
            other["theirs"] = done
            other.commit("theirs")
        until_done(state.refresh)
        assert check("refresh")["theirs"] == done
        until_done(lambda: state.rollback(target))
        assert check("rollback") == seen
        if done % 20 == 0:
            assert state.repo.fsck().ok
            state["list"].clear()
            state.commit()
    assert state.repo.fsck().ok
    print(came)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Memory", "Disk"])
def test_signals_at_random_moments(kind: str, tmp_path: Path, record_property: Record) -> None:
    """Real signals, at any moment at all: nothing is lost, done twice, or left locked."""
    seconds = 600 if SOAK else 3
    program = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        PROGRAM,
        kind,
        str(tmp_path / "store"),
        str(seconds),
        "1",
    ]
    done = subprocess.run(program, capture_output=True, text=True, timeout=seconds + 180)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
    record_property("signals", int(done.stdout))
