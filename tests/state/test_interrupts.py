"""Ctrl-C at any moment: a call has happened or it has not, and the same handle goes on.

Python looks for signals where a function begins and after a call of a function in C. A profiler is called at just
these two, and what it raises comes out there: so each of these moments is tried, one at a time. Python also looks
where a loop jumps back and where a generator goes on, which is left to real signals: they come whenever they like.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from inspect import CO_GENERATOR
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from soak import SOAK

from vstate import Disk, KVStore, Memory, Versioned
from vstate.state.base import ReadableState

MOMENTS = None if SOAK else 40
"""How many moments of each operation are tried: all, or that many at random."""

PATIENCE = 60  # seconds; whoever waits longer waits for ever

pytestmark = pytest.mark.timeout(3600 if SOAK else 580)

Contents = dict[str, Any]
Record = Callable[[str, object], None]


# The operations


@dataclass(frozen=True)
class Operation:
    """`prepare` a handle, then `run`; `staged` says that an interrupted one leaves all that it was to commit.

    What a program's own with block holds, it may hold until the exception is let go of: `in_a_block`.
    """

    run: Callable[[Versioned], object]
    prepare: Callable[[Versioned], object] = lambda state: None
    staged: bool = False
    in_a_block: bool = False


def edit(state: Versioned) -> None:
    state["list"].append(2)
    state["count"] += 10
    state["new"] = {"of": ["main"]}
    del state["gone"]
    state["slides"].append(1)
    state.expire("list", 3600)
    state.record("edited")


def edit_beside_another(state: Versioned) -> None:
    other = Versioned(state.store, branch="main")
    other["theirs"] = 1
    other["count"] += 100
    other.commit("theirs")
    edit(state)


def count(state: Versioned) -> None:
    state["count"] += 10
    state["list"].append(2)
    state["new"] = [1]


def in_a_transaction(state: Versioned) -> None:
    with state.transaction("two"):
        count(state)


def failing_transaction(state: Versioned) -> None:
    try:
        with state.transaction("two"):
            count(state)
            raise RuntimeError
    except RuntimeError:
        pass


def failing_update(state: Versioned) -> None:
    def function(fresh: Versioned) -> None:
        count(fresh)
        raise RuntimeError

    try:
        state.update(function)
    except RuntimeError:
        pass


def others_commit(state: Versioned) -> None:
    other = Versioned(state.store, branch="main")
    other["theirs"] = [1]
    other["list"].append(3)
    other.commit("theirs")
    state["count"] += 10


def expiries(state: Versioned) -> None:
    """Every way to change when something expires."""
    state.expire("list", 3600)
    state["list"].append(2)
    state.expire("slides", None)
    state["new"] = [1]
    state.expire("new", 3600, sliding=True)
    state["over"] = [1]  # committed, but absent
    state.expire("count", 1e-6)
    state["count"] = 7
    state["briefly"] = 1
    state.expire("briefly", 1e-6)


OPERATIONS = {
    "commit": Operation(lambda state: state.commit("two"), edit, staged=True),
    "commit beside another": Operation(lambda state: state.commit("two"), edit_beside_another, staged=True),
    "update": Operation(lambda state: state.update(count)),
    "failing update": Operation(failing_update),
    "transaction": Operation(in_a_transaction, in_a_block=True),
    "failing transaction": Operation(
        failing_transaction, lambda state: state.update({"kept": [1]}), in_a_block=True
    ),
    "discard": Operation(lambda state: state.discard(), edit),
    "rollback": Operation(lambda state: state.rollback("v0")),
    "rollback with changes": Operation(lambda state: state.rollback("v0"), edit),
    "merge": Operation(lambda state: state.merge("side")),
    "refresh": Operation(lambda state: state.refresh(), others_commit, staged=True),
    "reset": Operation(lambda state: state.reset("v0"), edit),
    "undo": Operation(lambda state: state.undo()),
    "commit of expiries": Operation(lambda state: state.commit("two"), expiries, staged=True),
    "update of expiries": Operation(lambda state: state.update(expiries)),
    "discard of expiries": Operation(lambda state: state.discard(), expiries),
    "expire": Operation(lambda state: state.expire("list", 3600), lambda state: state["list"]),
    "expire no more": Operation(lambda state: state.expire("slides", None), lambda state: state["slides"]),
    "set what has expired": Operation(lambda state: state.__setitem__("over", [1])),
    "purge": Operation(lambda state: state.purge()),
    "cherry-pick": Operation(lambda state: state.cherry_pick("side")),
}


def fill(store: KVStore) -> None:
    """Two commits on main, one on a side branch."""
    state = Versioned(store)
    state.set_policy("count", "counter")
    state["list"], state["count"], state["gone"] = [0], 0, "gone"
    state["slides"], state["over"] = [0], [0]
    state.expire("slides", 3600, sliding=True)
    state.expire("over", 1e-6)
    state.commit("zero")
    state.tag("v0")
    side = state.fork("side")
    side["side"] = {"of": "side"}
    side["count"] = 1000
    side.commit("side")
    state["list"].append(1)
    state["count"] = 1
    state.commit("one")


class Stores:
    """New stores that `fill` has filled, each in one of its own."""

    def __init__(self, kind: str, directory: Path) -> None:
        self._directory = directory if kind == "Disk" else None
        self._number = 0
        self._rows: dict[str, bytes] = {}
        if self._directory is not None:
            with Disk(self._directory / "filled") as store:
                fill(store)
        else:
            memory = Memory()
            fill(memory)
            self._rows = dict(memory.items())

    @contextmanager
    def new(self) -> Iterator[KVStore]:
        if self._directory is None:
            memory = Memory()
            memory.set_many(self._rows)
            yield memory
            return
        self._number += 1
        copy = shutil.copytree(self._directory / "filled", self._directory / str(self._number))
        with Disk(copy, durability="process", create=False) as store:
            yield store
        shutil.rmtree(copy)


# The interruptions


def interrupted(function: Callable[[], object], moment: int | None) -> tuple[int, KeyboardInterrupt | None]:
    """Call the function and interrupt it at a moment, if it has so many; how many it had, and what came out.

    The exception holds all the frames that it came through, and so everything in them.
    """
    passed = 0

    def profiler(frame: FrameType, event: str, argument: object) -> None:
        nonlocal passed
        # An exception of a profiler ends a generator that goes on, without its `finally`; that of a signal does not.
        goes_on = event == "call" and frame.f_code.co_flags & CO_GENERATOR
        if event in ("call", "c_return") and not goes_on:
            passed += 1
            if passed == moment:
                raise KeyboardInterrupt

    before = sys.unraisablehook
    sys.unraisablehook = lambda unraisable: None  # a destructor that is interrupted tells nobody
    try:
        sys.setprofile(profiler)
        function()
    except KeyboardInterrupt as interruption:
        return passed, interruption
    finally:
        sys.setprofile(None)
        sys.unraisablehook = before
    return passed, None


def in_a_thread(function: Callable[[], object]) -> None:
    """Call the function where nothing that this thread holds counts as its own; fail if it waits for ever."""
    raised: list[BaseException] = []

    def call() -> None:
        try:
            function()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it hangs"
    if raised:
        raise raised[0]


def picture(state: ReadableState) -> Contents:
    """What is in a state now, whatever is edited in place later, and what of it is going to expire."""
    found = deepcopy(dict(state))
    if isinstance(state, Versioned):
        found |= {f"{key} expires": True for key in found if state.expires(key) is not None}
    return found


def contents(store: KVStore) -> Contents:
    return picture(Versioned(store, branch="main"))


def edits(state: Versioned) -> int:
    return sum(event.kind == "edited" for commit in state.log() for event in commit.events)


@dataclass
class Undisturbed:
    """What is seen of an operation that nothing interrupts: on the handle, and in the store after each step."""

    before: Contents
    after: Contents
    stored: list[Contents]
    moments: int
    edits: int


def undisturbed(operation: Operation, stores: Stores) -> Undisturbed:
    with stores.new() as store:
        state = Versioned(store)
        operation.prepare(state)
        before, stored = picture(state), [contents(store)]
        moments, _ = interrupted(partial(operation.run, state), None)
        commits = [commit for commit in state.log() if commit.message == "Before rollback"]
        stored += [picture(Versioned.fork(state, f"at-{n}", commit)) for n, commit in enumerate(commits)]
        stored.append(contents(store))
        after = picture(state)
        state.commit("rest")
        return Undisturbed(before, after, stored, moments, edits(state))


def check_after(operation: Operation, state: Versioned, seen: Undisturbed) -> None:
    """After an interruption: whole before or whole after, on the handle too, and it goes on."""
    store = state.store
    stored = contents(store)
    assert stored in seen.stored
    happened = stored == seen.stored[-1] != seen.stored[0]
    assert picture(state) in (seen.before, seen.after)
    if isinstance(store, Disk):
        with Disk(store.location, durability="process", timeout=20) as other:
            other.set("another process", b"writes")
    uncommitted: list[bool] = []
    in_a_thread(lambda: uncommitted.append(state.has_uncommitted()))
    now = picture(state)
    assert now in (seen.before, seen.after)
    if happened and not operation.staged:
        assert now == seen.after
    if operation.staged and happened:
        assert uncommitted == [False]
    in_a_thread(lambda: state.commit("again"))
    in_a_thread(state.refresh)
    final = contents(store)
    assert picture(state) == final
    assert final in (seen.before, seen.after)
    if operation.staged or happened:
        assert final == seen.after
    assert edits(state) <= 1
    if operation.staged:
        assert edits(state) == seen.edits
    assert state.repo.fsck().ok
    state["more"] = ["more"]
    in_a_thread(lambda: state.commit("more"))
    assert contents(store) == final | {"more": ["more"]}
    with state.transaction():
        state["most"] = 1
    assert contents(store)["most"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Memory", "Disk"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_interruption_at_each_moment(
    name: str, kind: str, tmp_path: Path, record_property: Record
) -> None:
    """Wherever Python may look for signals while an operation runs: it has happened or not, and work goes on."""
    operation, stores = OPERATIONS[name], Stores(kind, tmp_path)
    undisturbed(operation, stores)  # what is imported late has been
    seen = undisturbed(operation, stores)
    moments = list(range(1, seen.moments + 1))
    if MOMENTS is not None and len(moments) > MOMENTS:
        moments = sorted(random.Random(name).sample(moments, MOMENTS))
    came = 0
    for moment in moments:
        with stores.new() as store:
            state = Versioned(store)
            operation.prepare(state)
            _, interruption = interrupted(partial(operation.run, state), moment)
            came += interruption is not None
            if operation.in_a_block:
                interruption = None
            try:
                check_after(operation, state, seen)
            except BaseException as error:
                error.add_note(f"{name}, moment {moment} of {seen.moments}")
                raise
            del interruption
    assert came > len(moments) // 2
    record_property("interruptions", came)


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
        assert not state.has_uncommitted(), where
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
        for name, change in (("update", lambda: state.update(step)), ("transaction", transact)):
            before = seen
            if interrupted(change, hold=name == "update") and name == "transaction" and state.has_uncommitted():
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
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no interval timers")
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
