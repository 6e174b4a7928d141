"""Every operation, interrupted at each of its calls of the store: it happens as a whole, not at all, or in
whole steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from crashing import READING, Crash, Crashing, subsets
from operations import OPERATIONS, Picture, picture, prepared
from scripts import Record
from soak import sized
from soundness import check_sound

from vstate import Memory, Versioned
from vstate.errors import StoreUnavailable, VStateError
from vstate.repo.names.refs import REFLOG, SWEEP
from vstate.testing import Faulty

STORES = pytest.mark.parametrize("atomic", [True, False], ids=["transactions", "no transactions"])
NAMES = pytest.mark.parametrize("name", OPERATIONS)
THAT_WRITE = pytest.mark.parametrize("name", [name for name in OPERATIONS if OPERATIONS[name].writes])


def pictures(name: str) -> list[Picture]:
    """The pictures that a program may see of the store, in order, while nothing fails."""
    memory = prepared(name)
    seen = [picture(memory)]

    class Looking(Crashing):
        def _call(self, called, action, parts=()):  # type: ignore[no-untyped-def]
            result = super()._call(called, action, parts)
            if called not in READING:
                now = picture(memory)
                if now != seen[-1]:
                    seen.append(now)
            return result

    OPERATIONS[name].run(Versioned(Looking(memory)))
    return seen


Content = tuple[tuple[str, bytes], ...]


def content_of(memory: Memory) -> Content:
    """All keys and values, without the mark of the last gc and the times of the lines in reflogs."""
    return tuple(
        (key.partition(":")[0] if key.startswith(REFLOG) else key, b"" if key == SWEEP else value)
        for key, value in sorted(memory.items())
    )


class Looker:
    """Checks the stores that an operation's interruptions leave, each content once, because many are equal.

    A crash before the first write leaves the old content, and a repeated operation often ends alike. A handle
    that opens the store sees only its content.
    """

    def __init__(self, name: str, atomic: bool) -> None:
        self.name = name
        self.atomic = atomic
        self.operation = OPERATIONS[name]
        self.allowed = pictures(name)
        self._left: dict[Content, Picture] = {}
        self._finished: set[tuple[Content, bool, str]] = set()

    def check(self, memory: Memory, what: str) -> Picture:
        """Open the store anew, check it, and return its picture."""
        content = content_of(memory)
        if content not in self._left:
            self._left[content] = self._check(memory, what)
        return self._left[content]

    def _check(self, memory: Memory, what: str) -> Picture:
        if not self.operation.mends:
            check_sound(Faulty(memory, atomic=self.atomic))
        found = picture(memory)
        assert found in self.allowed, what
        if self.operation.keeps:
            for key, value in prepared(self.name).items():
                assert key.startswith("r/") or memory.get(key) == value, f"{what}: {key} is gone"
        return found

    def finish(self, state: Versioned, memory: Memory, found: Picture) -> None:
        """Repeat the operation if it did not happen, and go on working."""
        again = found == self.allowed[0]
        if again or self.operation.mends:
            self.operation.run(state)
        branch = "side" if "heads/side" in found else "main"
        finished = (content_of(memory), again, branch)
        if finished not in self._finished:
            self._finished.add(finished)
            self._go_on(memory, again, branch)

    def _go_on(self, memory: Memory, again: bool, branch: str) -> None:
        if again or self.operation.mends:
            assert picture(memory) == self.allowed[-1]
        objects = check_sound(Faulty(memory, atomic=self.atomic))
        if self.operation.cleans and again:
            assert len(list(memory.keys("o/"))) == objects
            assert not list(memory.keys("trash/"))
        with_more = Versioned(memory, branch=branch)
        with_more["more"] = ["more"]
        assert with_more.commit("more") is not None
        with_more.repo.gc(grace="0s")
        check_sound(memory, fsck=False)
        assert dict(Versioned(memory, branch=with_more.branch)) == dict(with_more)


@NAMES
def test_the_steps_of_an_operation(name: str) -> None:
    """Without a failure, a program sees as many states of the store as the table says, and no others."""
    assert len(pictures(name)) == OPERATIONS[name].steps + 1


@STORES
@NAMES
def test_a_failure_at_each_call(name: str, atomic: bool, record: Record) -> None:
    """If a call of the store fails, before its work or after a write, vstate raises an error, loses nothing,
    and a retry works.
    """
    looker = Looker(name, atomic)
    faults = 0
    # A repair takes many calls, each with a look at the whole store.
    for fail_at in count(1, sized(5, 1) if looker.operation.mends else 1):
        called = fail(looker, fail_at, after=False)
        if called is None:
            break
        faults += 1
        if called not in READING and fail(looker, fail_at, after=True) is not None:
            faults += 1
    assert faults
    record(faults=faults)


def fail(looker: Looker, fail_at: int, *, after: bool) -> str | None:
    """Let the call of this number fail, and check the store.

    Returns the call; None if there are fewer calls.
    """
    memory = prepared(looker.name)
    faulty = Faulty(memory, atomic=looker.atomic)
    state = Versioned(faulty)
    faulty.calls.clear()
    faulty.fail_at, faulty.after = fail_at, after
    raised: VStateError | None = None
    try:
        looker.operation.run(state)
    except VStateError as error:
        raised = error
    assert raised is None or isinstance(raised, StoreUnavailable), f"call {fail_at}: {raised!r}"
    faulty.fail_at = None
    if len(faulty.calls) < fail_at:
        return None
    called = faulty.calls[fail_at - 1]
    found = looker.check(memory, f"{after=} call {fail_at} of {faulty.calls}")
    if raised is None:
        assert found == looker.allowed[-1]
    looker.finish(state, memory, found)
    return called


@STORES
@THAT_WRITE
def test_a_crash_in_each_call(name: str, atomic: bool, record: Record) -> None:
    """If the process dies in a call, with any subset of the call's writes done, nothing is lost and all is
    whole.
    """
    looker = Looker(name, atomic)
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
        found = looker.check(memory, what)
        looker.finish(Versioned(Crashing(memory, atomic=atomic)), memory, found)
    assert crashes
    record(crashes=crashes)


def deaths(name: str, atomic: bool) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Every call of the operation that writes, and every subset of its writes.

    A crash in a call that reads leaves the same store as a crash before the next write.
    """
    store = Crashing(prepared(name), atomic=atomic)
    state = Versioned(store)
    opened = len(store.calls)
    OPERATIONS[name].run(state)
    first = True
    for number, writes in enumerate(store.writes[opened:], 1):
        for done in subsets(writes) if writes else ():
            if done or first:
                yield number, done
        first = first and not writes
