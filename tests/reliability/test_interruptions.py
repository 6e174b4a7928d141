"""Every operation, interrupted at every call it makes of the store: all of it happened, or nothing, or whole steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from crashing import Crash, Crashing, subsets
from operations import OPERATIONS, Picture, picture, prepared
from soundness import check_sound

from vstate import Memory, Versioned
from vstate.errors import StoreUnavailable, VStateError
from vstate.testing import Faulty

STORES = pytest.mark.parametrize("atomic", [True, False], ids=["transactions", "no transactions"])
NAMES = pytest.mark.parametrize("name", OPERATIONS)
THAT_WRITE = pytest.mark.parametrize("name", [name for name in OPERATIONS if OPERATIONS[name].writes])

Record = Callable[[str, object], None]


def pictures(name: str) -> list[Picture]:
    """What a program may see of the store, in order, while nothing goes wrong."""
    memory = prepared(name)
    seen = [picture(memory)]

    class Looking(Crashing):
        def _call(self, called: str, parts: list, read: bool = False):  # type: ignore[no-untyped-def]
            result = super()._call(called, parts, read)
            if not read:
                now = picture(memory)
                if now != seen[-1]:
                    seen.append(now)
            return result

    OPERATIONS[name].run(Versioned(Looking(memory)))
    return seen


def check(name: str, memory: Memory, atomic: bool, allowed: list[Picture], what: str) -> Picture:
    """Open the store anew, as it was left; the picture that it shows."""
    if not OPERATIONS[name].mends:
        check_sound(Faulty(memory, atomic=atomic))
    found = picture(memory)
    assert found in allowed, what
    if OPERATIONS[name].keeps:
        for key, value in prepared(name).items():
            assert key.startswith("r/") or memory.get(key) == value, f"{what}: {key} is gone"
    return found


def finish(name: str, state: Versioned, memory: Memory, found: Picture, allowed: list[Picture]) -> None:
    """Do again what did not happen, and go on working."""
    if found == allowed[0] or OPERATIONS[name].mends:
        OPERATIONS[name].run(state)
        assert picture(memory) == allowed[-1]
    objects = check_sound(Faulty(memory, atomic=state.store.transactional))
    if OPERATIONS[name].cleans and found == allowed[0]:
        assert len(list(memory.keys("o/"))) == objects
        assert not list(memory.keys("trash/"))
    with_more = Versioned(memory, branch="side" if "heads/side" in found else "main")
    with_more["more"] = ["more"]
    assert with_more.commit("more") is not None
    with_more.repo.gc(grace="0s")
    check_sound(memory, fsck=False)
    assert dict(Versioned(memory, branch=with_more.branch)) == dict(with_more)


@NAMES
def test_the_steps_of_an_operation(name: str) -> None:
    """Undisturbed, an operation shows a program as many states of the store as the table says, and no others."""
    assert len(pictures(name)) == OPERATIONS[name].steps + 1


@STORES
@NAMES
def test_a_failure_at_each_call(name: str, atomic: bool, record_property: Record) -> None:
    """Whatever call of the store fails, before or after it did its work: an error of vstate, nothing lost, and a retry works."""
    allowed = pictures(name)
    run = OPERATIONS[name].run
    faults = 0
    for after in (False, True):
        fail_at = 0
        while True:
            fail_at += 1
            memory = prepared(name)
            faulty = Faulty(memory, atomic=atomic)
            state = Versioned(faulty)
            faulty.calls.clear()
            faulty.fail_at, faulty.after = fail_at, after
            raised: VStateError | None = None
            try:
                run(state)
            except VStateError as error:
                raised = error
            assert raised is None or isinstance(raised, StoreUnavailable), f"call {fail_at}: {raised!r}"
            reached = len(faulty.calls) >= fail_at
            faulty.fail_at = None
            if not reached:
                break
            faults += 1
            found = check(name, memory, atomic, allowed, f"{after=} call {fail_at} of {faulty.calls}")
            if raised is None:
                assert found == allowed[-1]
            finish(name, state, memory, found, allowed)
    assert faults
    record_property("faults", faults)


@STORES
@THAT_WRITE
def test_a_crash_in_each_call(name: str, atomic: bool, record_property: Record) -> None:
    """Whatever call the process dies in, and whichever of that call's writes were done: nothing lost, and all whole."""
    allowed = pictures(name)
    crashes = 0
    for crash_at, done in deaths(name, atomic):
        memory = prepared(name)
        dying = Crashing(memory, atomic=atomic)
        state = Versioned(dying)
        dying.crash_at, dying.done = len(dying.calls) + crash_at, frozenset(done)
        with pytest.raises(Crash):
            OPERATIONS[name].run(state)
        crashes += 1
        what = f"call {crash_at} of {dying.calls}, of whose writes {done} were done"
        found = check(name, memory, atomic, allowed, what)
        finish(name, Versioned(Crashing(memory, atomic=atomic)), memory, found, allowed)
    assert crashes
    record_property("crashes", crashes)


def deaths(name: str, atomic: bool) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Every call of the operation that writes, and every subset of its writes.

    To die in a call that reads leaves what the last write left, and so does to die before a write was begun.
    """
    store = Crashing(prepared(name), atomic=atomic)
    state = Versioned(store)
    opened = len(store.calls)
    OPERATIONS[name].run(state)
    first = True
    for number, (_, writes) in enumerate(store.calls[opened:], 1):
        for done in subsets(writes) if writes else ():
            if done or first:
                yield number, done
        first = first and not writes
