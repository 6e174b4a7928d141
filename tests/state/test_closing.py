"""Uncommitted changes when a state is closed or dropped, and when its program ends."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vstate import Disk, Memory, MergeConflict, StoreUnavailable, UncommittedWarning, Versioned, aio
from vstate.state import closing
from vstate.testing import Faulty

ROOT = Path(__file__).parent.parent.parent


def edit(state: Versioned) -> None:
    state["list"].append(1)


CHANGES: dict[str, tuple[Callable[[Versioned], object], str]] = {
    "set": (lambda state: state.update(new=1), "'new'"),
    "in place": (edit, "'list'"),
    "deleted": (lambda state: state.pop("gone"), "'gone'"),
    "expiry": (lambda state: state.expire("gone", 60), "'gone'"),
    "unpicklable": (lambda state: state.update(bad=lambda: 0, gen=(x for x in ())), "'gen'"),
    "event": (lambda state: state.record("seen"), "1 recorded event"),
    "namespace": (lambda state: state.namespace("a").update(b=1), "'a/b'"),
    "many": (lambda state: state.update({f"k{i:02}": i for i in range(12)}), "'k09', 2 more keys"),
}
CLEAN: dict[str, Callable[[Versioned], object]] = {
    "nothing": lambda state: None,
    "read": lambda state: dict(state),
    "same": lambda state: state.update(gone=1, list=[]),
    "discarded": lambda state: (edit(state), state.discard()),
    "committed": lambda state: (edit(state), state.commit()),
    "transaction undone": lambda state: undone(state),
}


def undone(state: Versioned) -> None:
    with pytest.raises(ZeroDivisionError), state.transaction():
        state["new"] = 1 / 0


def made(store: Any = None) -> Versioned:
    state = Versioned(Memory() if store is None else store)
    state.update(list=[], gone=1, set={"a", "b", "c"})
    state.commit()
    return Versioned(state.store)


@pytest.fixture
def warned() -> Any:
    gc.freeze()  # states of other tests stay as they are, and no collection takes long
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught
    gc.unfreeze()


@pytest.mark.parametrize("change", CHANGES)
def test_a_state_that_is_closed_names_what_is_lost(
    change: str, warned: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """close() and the end of the with block warn once, at the caller's line, of changes of every kind."""
    # A collection of garbage that falls into the look takes more than its 5 ms.
    monkeypatch.setattr("vstate.state.closing._LOOK_SECONDS", 10)
    make, named = CHANGES[change]
    state = made()
    with state:
        make(state)
    state.close()
    [found] = warned
    assert found.category is UncommittedWarning
    assert named in str(found.message)
    assert "autocommit=True" in str(found.message)
    assert found.filename == __file__


@pytest.mark.parametrize("change", CLEAN)
@pytest.mark.slow
def test_nothing_lost_is_no_warning(change: str, warned: list[Any]) -> None:
    """A read, a set to the same value and an undone change are no loss, however the state ends."""
    for end in (Versioned.close, lambda state: None):
        state = made()
        if change != "same" or end is Versioned.close:
            CLEAN[change](state)
        end(state)
        del state
        gc.collect()
    assert not warned


@pytest.mark.slow
def test_a_state_that_is_dropped_names_its_staged_keys(warned: list[Any]) -> None:
    """It asks no store, so a dead server holds no collector up; also in a cycle of references."""
    store = Faulty(Memory())
    state = made(store)
    state["x"] = 1
    before = list(store.calls)
    del state
    assert store.calls == before
    assert "was dropped" in str(warned.pop().message)
    state = Versioned(Memory())
    state["cycle"] = [1]
    state["cycle"].append(state)
    del state
    gc.collect()
    assert "'cycle'" in str(warned.pop().message)


def test_autocommit_that_cannot_commit_closes_nothing() -> None:
    """The conflict comes out of close(), everything is still staged, and the next close() commits."""
    store = Memory()
    state, other = Versioned(store, autocommit=True), Versioned(store)
    state["x"], other["x"] = 1, 2
    other.commit()
    with pytest.raises(MergeConflict):
        state.close()
    state.discard("x")
    state.refresh()
    state["x"] = 3
    state.close()
    assert Versioned(store)["x"] == 3


def test_with_await(warned: list[Any]) -> None:
    """The awaited state commits, or warns, as the state does."""

    async def work(store: Memory) -> None:
        async with aio.Versioned(store, autocommit=True) as state:
            state["x"] = 1
        with pytest.raises(ZeroDivisionError):
            async with aio.Versioned(store, autocommit=True) as state:
                state["x"] = 1 / 0
        async with aio.Versioned(store) as state:
            state["y"] = 1

    store = Memory()
    asyncio.run(work(store))
    assert dict(Versioned(store)) == {"x": 1}
    [found] = warned
    assert "'y'" in str(found.message)


def test_a_warning_that_is_an_error_keeps_no_other_state_from_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each state is committed or named at the end of the program, in whatever order they come."""
    states = [Versioned(Memory(), branch="main", autocommit=number % 2 == 0) for number in range(6)]
    for state in states:
        state["k"] = 1
    monkeypatch.setattr(closing, "_open", states)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UncommittedWarning):
            closing._at_exit()
        closing._at_exit()  # each has had its turn
    assert [state.head is not None for state in states] == [True, False] * 3


def ended_program(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments, and wait for its end."""
    command = [sys.executable, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)


PROGRAM = """
import os, sys
from vstate import Disk, Versioned

plain = Versioned(sys.argv[1] + "/plain")
plain["list"] = []
plain.commit()
plain["list"].append("in place")
kept = Versioned(sys.argv[1] + "/kept", autocommit=True)
kept["x"] = 1
if os.fork() == 0:
    sys.exit()
os.wait()
with Disk(sys.argv[1] + "/closed") as store:
    closed = Versioned(store)
    closed["y"] = 1
Versioned(sys.argv[1] + "/dropped", autocommit=True)["z"] = 1
"""


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["-W", "error"]], ids=["shown", "error"])
def test_the_end_of_the_program(options: list[str], tmp_path: Path) -> None:
    """The program ends well; stderr names the lost keys, edits in place too, once and not from the fork."""
    ended = ended_program(*options, "-c", PROGRAM, tmp_path)
    assert ended.returncode == 0
    if not options:
        assert ended.stderr.count("UncommittedWarning") == 2, ended.stderr
        assert "are lost: 'list'" in ended.stderr
        assert "are lost: 'y'" in ended.stderr
    for name, key in (("kept", "x"), ("dropped", "z")):
        assert list(Versioned(tmp_path / name)) == [key]
        assert len(list(Versioned(tmp_path / name).log())) == 1


LAST = """
import os, signal, sys, threading, time
from vstate import Versioned
open_state = Versioned(sys.argv[1] + "/open", autocommit=True)
open_state["k"] = 1
with Versioned(sys.argv[1] + "/block", autocommit=True) as block:
    block["k"] = 1
    {end}
"""
HANDLER = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); "
KILL = "os.kill(os.getpid(), signal.{}); time.sleep(60)"
BOTH, AT_EXIT, NONE = (True, True), (True, False), (False, False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "status", "committed"),
    [
        ("pass", 0, BOTH),
        ("sys.exit(3)", 3, AT_EXIT),
        (KILL.format("SIGINT"), -signal.SIGINT, AT_EXIT),
        (HANDLER + KILL.format("SIGTERM"), 143, AT_EXIT),
        (KILL.format("SIGTERM"), -signal.SIGTERM, NONE),
    ],
)
def test_each_way_in_which_a_program_ends(
    end: str, status: int, committed: tuple[bool, bool], tmp_path: Path
) -> None:
    """`autocommit` commits as the docs say: where Python runs its exit functions, and no block raised."""
    ended = ended_program("-c", LAST.format(end=end), tmp_path)
    assert ended.returncode == status, ended.stderr
    assert "UncommittedWarning" not in ended.stderr
    found = tuple("k" in Versioned(tmp_path / name, branch="main") for name in ("open", "block"))
    assert found == committed


@pytest.mark.parametrize("kind", ["pickle", "conflict", "gone", "rewritten"])
def test_a_failed_commit_at_the_end_says_one_thing(kind: str, warned: list[Any]) -> None:
    """The warning says why, and that the changes are lost; no part of it says that they are still staged."""
    store = Memory()
    state = Versioned(store, branch="side", autocommit=True)
    state["k"] = 1
    state.commit("begin")
    other = Versioned(store, branch="side")
    state["k"] = (i for i in "generator") if kind == "pickle" else 2
    if kind == "conflict":
        other["k"] = "theirs"
        other.commit("theirs")
    elif kind == "gone":
        Versioned(store).delete_branch("side")
    elif kind == "rewritten":
        other["k"] = 3
        other.commit("one more")
        state.discard()
        state.refresh()
        state["k"] = 4
        other.reset("HEAD~1")
    state._at_exit()
    told = str(warned.pop().message)
    assert "could not commit when the program ended (" in told
    assert told.endswith("with uncommitted changes, which are lost: 'k'")
    assert not {"stay", "staged", "keep"} & set(re.findall("[a-z]+", told))
    state.close()


def test_changes_whose_commit_may_have_landed_may_be_lost(
    warned: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer of the commit at the end is lost, or a thread is in the middle of the commit.

    Or the answer of an earlier commit is lost, and that commit has not landed: it still may.
    """
    state = Versioned(store := Faulty(Memory(), away=100), branch="main")
    state["k"] = 1
    store.fail_at = len(store.calls) + 3
    with pytest.raises(StoreUnavailable):
        state.commit()
    store.fail_at, store.away = None, 0
    state.refresh()
    state._at_exit()
    assert "which may be lost: 'k'" in str(warned.pop().message)

    store = Faulty(Memory(), after=True, away=100)
    state = Versioned(store, branch="main", autocommit=True)
    state["k"] = 1
    store.fail_at = len(store.calls) + 3
    state._at_exit()
    assert "which may be lost: 'k'" in str(warned.pop().message)

    begun, go_on = threading.Event(), threading.Event()

    class Slow(Faulty):
        def transact(self, writes: Any, expected: Any) -> bool:
            begun.set()
            return go_on.wait(60) and super().transact(writes, expected)

    monkeypatch.setattr(closing, "_WAIT_SECONDS", 0.01)
    state = Versioned(Slow(Memory()), branch="main")
    state["k"] = 1
    thread = threading.Thread(target=state.commit)
    thread.start()
    assert begun.wait(60)
    state._at_exit()
    go_on.set()
    thread.join()
    assert "with uncommitted changes, which may be lost: 'k'" in str(warned.pop().message)


IN_THE_MIDDLE = """
import sys, threading, time
from vstate import Versioned

class Stuck:
    def __reduce__(self):
        stuck.set()
        time.sleep(600)

def transact():
    with half.transaction():
        half["half"] = 1
        begun.set()
        time.sleep(600)

begun, stuck = threading.Event(), threading.Event()
half = Versioned(sys.argv[1] + "/half", autocommit=True)
threading.Thread(target=transact, daemon=True).start()
begun.wait()
late = Versioned(sys.argv[1] + "/late", autocommit=True)
late["late"] = "mine"
with Versioned(sys.argv[1] + "/late") as other:
    other["late"] = "theirs"
    other.commit()
busy = Versioned(sys.argv[1] + "/busy", autocommit=True)
busy["busy"] = Stuck()
threading.Thread(target=busy.commit, daemon=True).start()
stuck.wait()
"""


@pytest.mark.slow
def test_the_end_of_the_program_in_the_middle_of_work(tmp_path: Path) -> None:
    """Half a transaction is not committed, a refused commit is told, and a stuck thread holds up nobody."""
    ended = ended_program("-c", IN_THE_MIDDLE, tmp_path)
    assert ended.returncode == 0, ended.stderr
    told = {line.rsplit("'", 2)[-2]: line for line in ended.stderr.splitlines() if "are lost" in line}
    assert "was open when the program ended, with uncommitted changes" in told["half"]
    assert "could not commit when the program ended (" in told["late"]
    assert "staged" not in told["late"]
    assert "was dropped with uncommitted changes" in told["busy"]
    assert Versioned(tmp_path / "half").head is None
    assert Versioned(tmp_path / "late")["late"] == "theirs"


@pytest.mark.slow
def test_a_state_that_is_dropped_goes_without_the_collector(tmp_path: Path) -> None:
    """So its store closes its files at once: no part of it refers to itself."""

    def use() -> list[weakref.ref[Any]]:
        disk = Disk(tmp_path / "store")
        state = Versioned(disk, branch="main")
        for i in range(3):
            state["a"] = [i]
            state.commit()
        with state.fork("side") as side:
            side["b"] = 1
            side.commit()
        state.apply(lambda now: now.update(c=1))
        state.merge("side")
        assert next(iter(state.log())) == state.checkout("HEAD~0").commit
        assert state.diff("HEAD~1", "HEAD")
        assert state.merge_base("side", "HEAD")
        state.close()
        return [weakref.ref(each) for each in (disk, state.repo, state.repo.objects, state.repo.history)]

    gc.collect()
    gc.disable()
    try:
        assert [each() for each in use()] == [None] * 4
    finally:
        gc.enable()


def test_a_store_that_is_gone_does_not_keep_a_state_from_closing(warned: list[Any], tmp_path: Path) -> None:
    """The warning names the staged keys, and close() ends as ever."""
    with Disk(tmp_path / "store") as store:
        with Versioned(store) as first:
            first["x"] = 0
            first.commit()
        state = Versioned(store)
        state["x"] = 1  # only the store knows whether this is a change
    state.close()
    assert "'x'" in str(warned.pop().message)


def test_autocommit_commits_at_the_end_of_the_block() -> None:
    """close() and the end of the block commit, once; a fork does too."""
    store = Memory()
    with Versioned(store, autocommit=True) as state:
        state["x"] = [1]
    assert state.head is not None
    assert state.head.message == "autocommit"
    with Versioned(store, autocommit=True) as state:
        state["x"].append(2)
        other = state.fork("other")
        other["x"].append(3)
        other.close()
    assert len(list(Versioned(store).log())) == 2
    assert Versioned(store, branch="other")["x"] == [1, 3]
