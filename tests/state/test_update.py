"""update: a function runs again until no other commit is in its way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from vstate import (
    InvalidInput,
    Live,
    Memory,
    MergeConflict,
    Versioned,
)
from vstate.state import transactions


def start(**values: Any) -> tuple[Versioned, Versioned]:
    """Two handles on one branch."""
    store = Memory()
    state = Versioned(store)
    state.update(values)
    state.commit()
    return state, Versioned(store)


def test_update_with_a_mapping_is_a_dicts_update() -> None:
    """Mappings, pairs and keywords are set, and nothing is committed."""
    state = Versioned()
    assert state.update({"a": 1}, b=2) is None
    state.update([("c", 3)], attempts=4)
    assert dict(state) == {"a": 1, "b": 2, "c": 3, "attempts": 4}
    assert state.head is None


def increment(now: Versioned) -> None:
    now["n"] += 1


SAW: dict[str, tuple[Callable[[Versioned], object], dict[str, int | None], dict[str, object]]] = {
    "key": (increment, {"n": 10}, {"n": 11}),
    "same value": (increment, {"n": 2}, {"n": 3}),
    "read": (lambda now: now.update(out=now["seen"]), {"seen": 5}, {"out": 5}),
    "contains": (lambda now: now.update(out="seen" in now), {"seen": None}, {"out": False}),
    "missing": (lambda now: now.update(out=now.get("later")), {"later": 7}, {"out": 7}),
    "listed": (lambda now: now.update(out=[*now.keys("s")]), {"second": 7}, {"out": ["second", "seen"]}),
    "counted": (lambda now: now.update(out=len(now)), {"later": 7}, {"out": 3}),
    "status": (lambda now: now.update(out=bool(now.status())), {"seen": 5}, {"out": False}),
}
"""What a function does, what another handle sets meanwhile (None deletes), and what comes of it."""


@pytest.mark.parametrize("how", SAW)
def test_it_runs_again_when_what_it_saw_has_changed(how: str) -> None:
    """Also when it only read the key, found it missing, or listed or counted keys; and not otherwise."""
    look, theirs, outcome = SAW[how]
    state, other = start(n=1, seen=1)
    runs = []

    def function(now: Versioned) -> None:
        runs.append(1)
        look(now)
        if len(runs) == 1:
            for key, value in theirs.items():
                if value is None:
                    del other[key]
                else:
                    other[key] = value
            other.commit()

    state.apply(function)
    assert len(runs) == 2
    assert outcome.items() <= dict(state).items()
    assert dict(Versioned(state.store)) == dict(state)


def test_who_lost_a_race_pauses_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt of the next half second begins with a pause of at most the lost one's time; then none."""
    state, other = start(n=1)
    now, pauses = [100.0], list[float]()
    monkeypatch.setattr(transactions.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(transactions.time, "sleep", pauses.append)

    def slowly(state: Versioned) -> None:
        increment(state)
        now[0] += 0.02
        if not pauses:
            other["n"] = 5
            other.commit()

    state.apply(slowly)
    assert len(pauses) == 1
    state.apply(increment)
    assert len(pauses) == 2
    assert all(0 <= pause < 0.021 for pause in pauses)
    now[0] += 0.5
    state.apply(increment)
    assert (len(pauses), state["n"]) == (2, 8)


def test_attempts_end() -> None:
    """After the last attempt the conflict is raised and nothing has changed.

    Events of failed runs are dropped.
    """
    state, other = start(n=1)
    runs = []

    def function(now: Versioned) -> None:
        runs.append(1)
        now.record("try")
        now["n"] += 1
        other["n"] = 100 + len(runs)
        other.commit()

    with pytest.raises(MergeConflict, match="nothing is staged: call it again, or with more attempts="):
        state.apply(function, attempts=3)
    assert len(runs) == 3
    assert not state.status()
    state.refresh()
    assert state["n"] == 103
    for attempts in (0, 1.5, "3", True):
        with pytest.raises(InvalidInput, match="attempts is a whole number from 1 on"):
            state.apply(function, attempts=attempts)  # type: ignore[arg-type]  # refused


def test_the_message_may_be_a_function_of_what_the_function_returned() -> None:
    """The message is made from the result of the attempt that was committed."""
    state, _ = start(tasks=["b", "a"])

    def take(state: Versioned) -> str:
        task: str = state["tasks"].pop()
        return task

    commit = state.apply(take, message=lambda task: f"took {task}")
    assert commit is not None
    assert commit.message == "took a"
    with pytest.raises(ZeroDivisionError):
        state.apply(take, message=lambda task: 1 / 0)
    assert state["tasks"] == ["b"]
    assert not state.status()
    part = state.namespace("part")
    commit = part.apply(lambda part: part.update({"n": 1}), message=lambda nothing: f"{nothing}")
    assert commit is not None
    assert commit.message == "None"
    Live().apply(lambda live: None, message=lambda nothing: 1 / 0)  # no commit, and no message


@pytest.mark.slow
def test_a_commit_of_another_thread_waits_for_an_update() -> None:
    """While the function of an update runs, commit() in another thread waits its turn.

    Inside the function it is refused.
    """
    state, _ = start(n=0)
    inside, done = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def commit() -> None:
        inside.wait(60)
        state["mine"] = 1
        try:
            state.commit("mine")
        except BaseException as error:
            errors.append(error)
        done.set()

    thread = threading.Thread(target=commit)
    thread.start()

    def step(now: Versioned) -> None:
        now["n"] += 1
        with pytest.raises(InvalidInput, match="leave commit"):
            now.commit()
        inside.set()
        assert not done.wait(0.2)

    state.apply(step)
    thread.join(60)
    assert errors == []
    assert dict(Versioned(state.store)) == {"n": 1, "mine": 1}


def test_an_edit_right_after_an_update_is_the_next_commit() -> None:
    """An update that has landed is over: nothing undoes an edit of a value that it handed out."""
    state = Versioned()
    state["list"] = [0]
    state.commit()
    held: list[list[int]] = []

    def function(now: Versioned) -> None:
        held.append(now["list"])
        now["list"].append(1)

    state.apply(function)
    held[0].append(2)
    assert state.commit() is not None
    assert Versioned(state.store)["list"] == [0, 1, 2]


def test_an_event_recorded_while_an_update_begins_stays() -> None:
    """It is recorded by another thread, and the update fails: only events of the update are taken back."""

    class Calling(Memory):
        begins = False

        def get(self, key: str) -> bytes | None:
            if self.begins:
                self.begins = False
                state.record("theirs")
            return super().get(key)

    store = Calling()
    state = Versioned(store, branch="main")
    state["n"] = 0
    state.commit()

    def function(now: Versioned) -> None:
        now.record("ours")
        raise ZeroDivisionError

    store.begins = True
    with pytest.raises(ZeroDivisionError):
        state.apply(function)
    assert [event.kind for event in state._handle.pending_events()] == ["theirs"]


class Looks:
    """Reads another key of its state, and lists keys, while it is pickled."""

    state: Versioned

    def __getstate__(self) -> dict[str, Any]:
        return {"seen": self.state["seen"], "count": len(self.state.keys("s"))}


def test_an_update_does_not_depend_on_the_keys_that_pickling_reads() -> None:
    """Another writer changes such a key meanwhile: the function is not run again."""
    state, other = start(seen=0)
    Looks.state = state
    runs = 0

    def step(now: Versioned) -> None:
        nonlocal runs
        runs += 1
        now["value"] = Looks()
        if runs == 1:
            other["seen"] = 1
            other.commit()

    state.apply(step)
    assert runs == 1
    assert Versioned(state.store)["seen"] == 1


def test_its_function_may_wait_for_its_own_threads() -> None:
    """Workers that it starts read and write the state while it runs."""
    state, _ = start(n=1)

    def function(now: Versioned) -> None:
        thread = threading.Thread(target=lambda: now.__setitem__("from thread", now["n"]))
        thread.start()
        thread.join(60)
        assert not thread.is_alive()

    state.apply(function)
    assert Versioned(state.store)["from thread"] == 1
