"""Transactions, their turns, and the code that runs inside them."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import sys
import threading
from collections.abc import Callable

import pytest

from vstate import CannotLoad, InvalidInput, Memory, Versioned, task
from vstate.state.base import handle_of


class Breaks:
    """Loads while its class works."""

    works = True

    def __init__(self) -> None:
        self.n = 0

    def __setstate__(self, state: dict[str, int]) -> None:
        if not self.works:
            raise LookupError("it broke since")


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr(Breaks, "works", False)


class Writes:
    """Reads and writes the state that it is in while it is pickled."""

    state: Versioned
    write = False

    def __getstate__(self) -> dict[str, object]:
        Writes.seen = self.state["seen"]
        if self.write:
            self.state["other"] = 1
        return dict(self.__dict__)


def test_a_transaction_may_end_in_another_context() -> None:
    """A with block entered in one context and left in another commits, and gives the turn back."""
    state = Versioned()
    block = state.transaction("request")
    contextvars.copy_context().run(block.__enter__)
    state["a"] = 1
    contextvars.copy_context().run(block.__exit__, None, None, None)
    done = threading.Event()

    def another() -> None:
        with state.transaction("next"):
            state["b"] = 2
        done.set()

    threading.Thread(target=another, daemon=True).start()
    assert done.wait(60)
    assert [commit.message for commit in state.log()] == ["next", "request"]


def test_a_savepoint_that_cannot_be_loaded_loses_nothing_else(breaking: Callable[[], None]) -> None:
    """Undoing continues past a value that does not unpickle, and the program's own exception is raised."""
    state = Versioned()
    state["base"], state["error"] = 0, Breaks()
    for i in range(10):
        state[f"work{i}"] = ["staged before"]
    with pytest.raises(KeyboardInterrupt) as caught, state.transaction():
        state["error"].n = 1
        for i in range(10):
            state[f"work{i}"].append("inside")
        breaking()
        raise KeyboardInterrupt
    assert all(state[f"work{i}"] == ["staged before"] for i in range(10))
    assert isinstance(state["error"], Breaks)
    assert "error" in caught.value.__notes__[0]


def test_a_wrapped_coroutine_function_is_an_async_task() -> None:
    """A decorator between @task and an async def does not make the task end before its work."""

    def plain(function):
        @functools.wraps(function)
        def wrapper(*args, **options):
            return function(*args, **options)

        return wrapper

    @task
    @plain
    async def build(*, state):
        state["x"] = 1
        await asyncio.sleep(0)
        raise ValueError("failed")

    state = Versioned()
    with pytest.raises(ValueError, match="failed"):
        asyncio.run(build(state=state))
    assert dict(state) == {}
    assert state.head is not None
    assert state.head.info["outcome"] == "error"


def test_a_def_that_returns_a_coroutine_is_refused() -> None:
    """A task whose work would only begin after its commit raises, and commits no change."""

    async def work(state):
        state["x"] = 1

    @task
    def build(*, state):
        state["y"] = 1
        return work(state)

    state = Versioned()
    with pytest.raises(InvalidInput, match="async def"):
        build(state=state)
    assert dict(state) == {}


WAITS: dict[str, tuple[Callable[[Versioned], object], int]] = {
    "commit": (lambda state: state.commit("unrelated"), 100),
    "undo": (lambda state: state.undo(), 0),
}
"""A call beside a transaction that fails, and the balance after it."""


@pytest.mark.parametrize("call", WAITS)
def test_a_call_waits_for_the_transaction_of_another_thread(call: str) -> None:
    """A call beside a transaction publishes none of its half, and a failing one is undone whole."""
    act, balance = WAITS[call]
    state = Versioned()
    for each in (0, 100):
        state["balance"] = each
        state.commit(f"{each}")
    inside, go, failed = threading.Event(), threading.Event(), []

    def transfer() -> None:
        try:
            with state.transaction("transfer"):
                state["balance"] -= 50
                inside.set()
                go.wait(60)
                raise RuntimeError
        except RuntimeError as error:
            failed.append(error)

    first = threading.Thread(target=transfer)
    second = threading.Thread(target=act, args=[state])
    first.start()
    assert inside.wait(60)
    second.start()
    second.join(0.05)
    assert [commit.message for commit in Versioned(state.store).log()] == ["100", "0"]
    go.set()
    first.join(60)
    second.join(60)
    assert failed
    assert state["balance"] == state.checkout("HEAD")["balance"] == balance


def test_pickling_sees_the_state_as_it_is() -> None:
    """A value's own pickling code reads the very objects in hand, and may not write to the state."""
    state = Versioned()
    state["seen"] = seen = []
    state.commit()
    value = Writes()
    Writes.state = state
    state["v"] = value
    state.commit()
    assert Writes.seen is seen is state["seen"]
    value.write = True
    state["w"] = 1
    with pytest.raises(Exception, match="cannot be written to"):
        state.commit()
    assert state["w"] == 1
    assert "other" not in state


def test_a_view_shows_what_cannot_be_loaded(breaking: Callable[[], None]) -> None:
    """One value that cannot be loaded leaves the rest of a view readable."""
    from vstate import view

    state = Versioned()
    state["error"], state["ok"] = Breaks(), 1
    state.commit()
    breaking()
    shown = view(Versioned(state.store))
    assert shown["ok"] == 1
    assert isinstance(shown["error"], CannotLoad)
    assert "error" in str(shown)


def test_a_savepoint_of_what_was_committed_since_brings_back_nothing() -> None:
    """Changes staged before are the committed state, which others may have changed since."""
    state = Versioned()
    state["a"] = 1
    savepoint = handle_of(state).savepoint()
    state.commit()
    other = Versioned(state.store)
    other["a"] = 2
    other.commit()
    state.refresh()
    state["b"] = 3
    savepoint.restore()
    assert dict(state) == {"a": 2}
    assert not state.has_uncommitted


def test_nested_transactions_may_be_collected_in_any_order() -> None:
    """Two transactions that were left open, and let go of outer first: the changes of both are undone."""
    for order in ("outer", "inner"):
        state = Versioned()
        state["a"], state["b"] = 1, 1
        state.commit()
        outer, inner = state.transaction(), state.transaction()
        outer.__enter__()
        state["a"] = 2
        inner.__enter__()
        state["b"] = 2
        if order == "outer":
            del outer
            assert dict(state) == {"a": 1, "b": 1}
            state["c"] = 3
            del inner
        else:
            del inner
            assert dict(state) == {"a": 2, "b": 1}
            state["c"] = 3
            del outer
        assert dict(state) == {"a": 1, "b": 1}
        assert not state.has_uncommitted


def test_a_call_from_inside_an_operation_is_refused() -> None:
    """A merge policy, or a finalizer, that commits the state in the middle of its commit gets an error."""
    store = Memory()
    state = Versioned(store)
    state["n"] = 0
    state.commit()
    refused: list[Exception] = []

    def policy(base: object, ours: object, theirs: object) -> object:
        try:
            state.commit("inside")
        except InvalidInput as error:
            refused.append(error)
        return ours

    sys.modules[__name__].policy = policy  # type: ignore[attr-defined]  # a policy is imported by its name
    policy.__qualname__ = "policy"
    state.set_policy("n", policy)
    other = Versioned(store)
    other["n"] = 1
    other.commit()
    state["n"] = 2
    state.commit("outside")
    assert len(refused) == 1
    assert "inside another call" in str(refused[0])
    assert Versioned(store)["n"] == 2


class Known:
    """An object that everybody can find."""

    newest: Known

    def __init__(self) -> None:
        self.items: list[int] = []
        Known.newest = self

    def __setstate__(self, state: dict[str, list[int]]) -> None:
        self.__dict__.update(state)
        Known.newest = self


def test_a_restored_value_that_others_hold_is_watched() -> None:
    """Edits of a value that a failed transaction brought back are seen, though nobody read it since."""
    state = Versioned()
    state["k"] = Known()
    with pytest.raises(ZeroDivisionError), state.transaction():
        state["k"] = 1
        state["other"] = 1
        state.discard("other")
        raise ZeroDivisionError
    newest = Known.newest  # the commit looks whether a copy of it loads
    state.commit()
    newest.items.append(1)
    assert state.commit() is not None
    assert Versioned(state.store)["k"].items == [1]
