"""vstate refuses an async function where it calls a function, because the body would never run."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any

import pytest
from loops import in_a_loop
from pydantic import BaseModel

from vstate import InvalidRecord, Live, Memory, MergeConflict, Versioned, aio
from vstate.managers import Manager
from vstate.patterns import EventStream, Records, bound
from vstate.sessions import Conversation, StateModule


async def coroutine(*args: Any) -> Any:
    """An async function, as in a program that is async throughout."""
    return args


def generator(*args: Any) -> Any:
    """A generator function: calling it runs nothing."""
    yield args


async def both(*args: Any) -> Any:
    yield args


class Hidden:
    """A callable that does not look async before it is called."""

    async def __call__(self, *args: Any) -> Any:
        return args


class Note(BaseModel):
    name: str
    text: str = ""


def update_a_live_state(function: Any) -> object:
    return Live().apply(function)


def update_in_a_transaction(function: Any) -> object:
    state = Versioned()
    with state.transaction():
        return state.apply(function)


def bisect(function: Any) -> object:
    state = Versioned()
    for number in range(3):
        state["n"] = number
        state.commit()
    return state.bisect(function, "HEAD~2")


def commit_with_a_hook(function: Any) -> object:
    state = Versioned()
    state.before_commit(function)
    return state.commit()


def commit_a_live_state_with_a_hook(function: Any) -> object:
    state = Live()
    state.namespace("part").before_commit(function)
    return state.commit()


def change_a_record(function: Any) -> object:
    notes = Records(Versioned(), Note, key="name")
    notes.put(Note(name="a"))
    return notes.change("a", function)


def shrink(function: Any) -> object:
    state = Versioned()
    bound(state, "list", limit=1, shrink=function)
    state["list"] = [1, 2]
    return state.commit()


def count_the_cost(function: Any) -> object:
    state = Versioned()
    bound(state, "list", limit=1, cost=function)
    state["list"] = [1, 2]
    return state.commit()


def fold(function: Any) -> object:
    stream: EventStream[Any] = EventStream(Versioned(), "events")
    stream.append(1)
    return stream.fold(function, 0)


def summarise(function: Any) -> object:
    conversation = Conversation(Versioned(), "chat")
    conversation.extend(["a", "b"])
    return conversation.window(last=1, summarise=function)


def load_an_attribute(function: Any) -> object:
    module = StateModule()
    module.mood = "good"  # type: ignore[attr-defined]
    module.register_state("mood", custom_to_json=str, custom_from_json=function)
    return module.load_state_dict({"mood": "bad"})


CALLS: list[Callable[[Any], object]] = [
    *(
        update_a_live_state,
        update_in_a_transaction,
        bisect,
        commit_with_a_hook,
        change_a_record,
        shrink,
        fold,
    ),
    *(commit_a_live_state_with_a_hook, count_the_cost, summarise, load_an_attribute),
]


@pytest.mark.parametrize(
    "function", [coroutine, generator, both, Hidden()], ids=lambda each: getattr(each, "__name__", "hidden")
)
@pytest.mark.parametrize("call", CALLS)
def test_what_would_not_run_is_refused(call: Callable[[Any], object], function: Any) -> None:
    """TypeError says to pass a plain function, and no coroutine is left that was never awaited."""
    with pytest.raises(TypeError, match="must be a plain function, not async or a generator"):
        call(function)


@pytest.mark.parametrize("function", [coroutine, generator, both])
def test_a_subscriber_is_refused_before_anything_is_watched(function: Any) -> None:
    """subscribe() refuses the function, because later no caller could get the error."""
    with Versioned() as state:
        for mapping in (state, state.namespace("part")):
            with pytest.raises(TypeError, match="plain function"):
                mapping.subscribe("*", function)


@pytest.mark.slow
def test_a_subscriber_that_is_not_seen_to_be_async_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The error goes to the log, like any error of a subscriber."""
    with Versioned() as state, state.subscribe("*", Hidden()):
        state["n"] = 1
        state.commit()
        end = time.monotonic() + 60
        while not caplog.records and time.monotonic() < end:
            time.sleep(0.005)
    (record,) = caplog.records
    assert record.exc_info is not None
    assert "the function of subscribe must be a plain function" in str(record.exc_info[1])


def test_a_policy_is_refused_where_it_is_set() -> None:
    """A merge policy must return a value, not a coroutine."""
    with pytest.raises(TypeError, match="a merge policy must be a plain function"):
        Versioned().set_policy("n", coroutine)


def test_a_policy_that_is_not_seen_to_be_async_decides_nothing() -> None:
    """The conflict stays, and its reason says so."""
    store = Memory()
    state = Versioned(store)
    state["n"] = 0
    state.commit()
    other = state.fork("other")
    for handle, value in ((state, 1), (other, 2)):
        handle["n"] = value
        handle.commit()
    with pytest.raises(MergeConflict) as caught:
        state.merge("other", policy=lambda *sides: coroutine(*sides))
    assert "plain function" in caught.value.conflicts["n"].reason


def test_a_migration_that_is_async_makes_no_record() -> None:
    """InvalidRecord, as after any migration that fails."""
    state = Versioned()
    Records(state, Note, key="name").put(Note(name="a"))
    notes = Records(state, Note, key="name", version=2, migrate={1: coroutine})  # type: ignore[dict-item]
    with pytest.raises(InvalidRecord, match="raised TypeError"):
        notes["a"]


@in_a_loop
async def test_awaited_states_call_what_they_are_given_too() -> None:
    """The calls in worker threads refuse async functions too; `await` is for the call itself."""

    class Notes(Manager):
        part = "notes"

    async with aio.Versioned() as state, Notes() as notes:
        for call in (state.read, state.apply, notes.read, lambda function: notes.change(function, "")):
            assert callable(call)
            with pytest.raises(TypeError, match="plain function"):
                assert not inspect.iscoroutine(await call(coroutine))
